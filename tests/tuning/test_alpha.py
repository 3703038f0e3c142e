"""alpha="auto" on small tables: the ridge weight follows what the columns tell of y, and obeys the laws of a fit."""

import numpy as np
import pytest

import quernel
from quernel import KernelClassifier, KernelRegressor
from quernel.data import ArrayRows
from quernel.kernels import PeriodicSpline
from quernel.metrics import pinball_loss
from quernel.tuning import alpha
from support.models import plain_regressor

LEVELS = [0.1, 0.5, 0.9]


def noise(n, seed):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, 6)), rng.standard_normal(n)


def exact(n, seed):
    X = np.random.default_rng(seed).random((n, 2))
    return X, np.sin(6 * X[:, 0]) + X[:, 1] ** 2


def waves(n, seed):
    rng = np.random.default_rng(seed)
    X = rng.random((n, 2))
    return X, np.sin(6 * X[:, 0]) + (0.2 + X[:, 1]) * rng.standard_normal(n)


def fitted(X, y, weight=None, **settings):
    settings = {"n_components": 60, "random_state": 0} | settings
    return plain_regressor(settings.pop("levels", LEVELS), **settings).fit(X, y, weight)


def loss_of(model, X, y):
    return np.mean(pinball_loss(y, model.predict(X), LEVELS))


def test_columns_that_tell_nothing_are_smoothed_away():
    X, y = noise(200, 0)
    new_X, new_y = noise(4000, 1)
    model = fitted(X, y, n_components="auto")
    usual = fitted(X, y, n_components="auto", alpha=model.alpha_choice_.usual)
    constant = np.mean(pinball_loss(new_y, np.tile(np.quantile(y, LEVELS), (4000, 1)), LEVELS))
    assert loss_of(model, new_X, new_y) < 1.03 * constant
    assert loss_of(usual, new_X, new_y) > 1.3 * constant  # what it is chosen for
    low, _, high = model.predict(new_X).T
    assert 0.72 < np.mean((low <= new_y) & (new_y <= high)) < 0.86


def test_a_target_without_noise_is_followed():
    X, y = exact(200, 0)
    new_X, new_y = exact(2000, 1)
    model = fitted(X, y, n_components="auto")
    usual = fitted(X, y, n_components="auto", alpha=model.alpha_choice_.usual)
    assert model.alpha_ < model.alpha_choice_.usual
    assert loss_of(model, new_X, new_y) < 0.7 * loss_of(usual, new_X, new_y)


def steps(n, seed):
    """Rows that share x."""
    X, y = waves(n, seed)
    return np.round(3 * X[:, :1]), y


@pytest.mark.parametrize("made", [noise, exact, waves, steps])
@pytest.mark.parametrize("levels", [LEVELS, [0.1, 0.2, 0.7, 0.9], 0.3])
def test_the_unit_and_the_sign_of_y_do_not_matter(made, levels):
    X, y = made(150, 2)
    plain = fitted(X, y, levels=levels).alpha_choice_
    for factor in (1e-6, 1e6):
        scaled = fitted(X, factor * y, levels=levels).alpha_choice_
        assert scaled.alpha * factor == pytest.approx(plain.alpha, rel=1e-9)
    turned = fitted(X, -y, levels=1 - np.asarray(levels)).alpha_choice_
    assert turned.alpha == pytest.approx(plain.alpha, rel=1e-9)


@pytest.mark.parametrize("made", [noise, exact, waves])
def test_order_repetition_and_units_of_rows_do_not_matter(made):
    X, y = made(150, 3)
    weight = np.random.default_rng(0).integers(0, 4, 150)
    plain = fitted(X, y, weight.astype(float)).alpha_
    rows = np.random.default_rng(1).permutation(np.repeat(np.arange(150), weight))
    assert fitted(X[rows], y[rows]).alpha_ == pytest.approx(plain, rel=1e-9)
    assert fitted(X * [1000, 0.01, 7, 1, 1, 1][: X.shape[1]], y, weight.astype(float)).alpha_ == pytest.approx(plain)


def test_folds_keep_the_lowest_of_equal_rows_with_the_highest():
    rows = ArrayRows(np.array([[0], [1], [1], [1], [1], [1], [2], [2]]) * 1.0, np.arange(8.0), np.ones(8))
    np.testing.assert_array_equal(alpha.sign_symmetric_groups(rows), [0, 1, 2, 3, 2, 1, 4, 4])
    held_out = [part.y for _, part in alpha.iter_folds(rows, alpha.sign_symmetric_groups(rows))]
    np.testing.assert_array_equal(np.sort(np.concatenate(held_out)), np.arange(8))
    for part in held_out:
        assert (1 in part) == (5 in part)
        assert (6 in part) == (7 in part)


def test_an_outlier_does_not_decide():
    """It makes up nearly all of the loss, and trials that are solved to a share of that alone tell nothing."""
    rng = np.random.default_rng(9)
    X, new_X = rng.uniform(-1, 1, (150, 2)), rng.uniform(-1, 1, (2000, 2))
    y, new_y = np.sin(4 * X[:, 0]), np.sin(4 * new_X[:, 0])
    y[0] = 1e6
    model = fitted(X, y, n_components=200)
    usual = fitted(X, y, n_components=200, alpha=model.alpha_choice_.usual)
    assert loss_of(model, new_X, new_y) < 1.5 * loss_of(usual, new_X, new_y)


@pytest.mark.parametrize("heavy", [1e6, 1e15])
def test_a_row_with_nearly_all_the_weight_chooses_nothing(heavy):
    X, y = waves(100, 11)
    weight = np.ones(100)
    weight[0] = heavy
    assert fitted(X, y, weight).alpha_choice_ is None


@pytest.mark.parametrize("settings", [{"n_components": "exact"}, {"dtype": "float32"}])
def test_what_could_not_be_certified_is_not_chosen(settings):
    X, y = exact(200, 12)
    model = fitted(X, y, **settings)  # a warning would be an error
    assert model.alpha_ == model.alpha_choice_.usual
    assert fitted(X, y).alpha_ < fitted(X, y).alpha_choice_.usual


def test_it_is_chosen_only_where_it_is_open_and_rows_are_few():
    X, y = waves(200, 4)
    assert fitted(X, y).alpha_choice_ is not None
    assert fitted(X, y, alpha=1e-3).alpha_choice_ is None
    assert fitted(X, y, bandwidth="learned").alpha_choice_ is None
    assert fitted(X, y, kernel="linear").alpha_choice_ is None
    assert fitted(X, y, kernel=PeriodicSpline(order=1.0)).alpha_choice_ is None  # has no Gram matrix
    assert fitted(X[: alpha.OPTIONS.min_rows - 1], y[: alpha.OPTIONS.min_rows - 1]).alpha_choice_ is None
    assert fitted(*waves(alpha.OPTIONS.max_rows + 500, 5)).alpha_choice_ is None
    labels = KernelClassifier(n_components=20, random_state=0).fit(X, y > 0)
    assert labels.alpha_choice_ is None


@pytest.mark.parametrize("loss", ["huber", "squared", "expectile", "epsilon_insensitive", "absolute", "logcosh"])
def test_other_losses_choose_too(loss):
    few = {"n_components": 40, "random_state": 0}
    smooth, rough = (KernelRegressor(loss, **few).fit(*made(150, 6)).alpha_choice_ for made in (noise, exact))
    assert smooth.alpha / smooth.usual > 16 * rough.alpha / rough.usual


def test_what_is_chosen_is_the_nearest_that_cannot_be_told_from_the_best():
    choice = fitted(*waves(300, 7)).alpha_choice_
    losses = dict(choice.tried)
    assert choice.alpha in losses
    assert choice.usual in losses
    assert losses[choice.alpha] <= losses[choice.usual] or choice.alpha == choice.usual
    assert [alpha for alpha, _ in choice.tried] == sorted(losses)
    text = str(choice)
    assert "chosen" in text
    assert "300 rows" in text


def test_a_warm_start_keeps_it_and_a_file_remembers_it(tmp_path):
    X, y = waves(200, 8)
    model = fitted(X, y, warm_start=True)
    before = model.alpha_
    assert model.fit(X[:100], y[:100]).alpha_ == before
    quernel.save(model, tmp_path / "m.quernel")
    assert str(quernel.load(tmp_path / "m.quernel").alpha_choice_) == str(model.alpha_choice_)
    model.set_params(alpha=before / 2).fit(X, y)
    assert model.alpha_choice_ is None  # what was chosen is not what is used
