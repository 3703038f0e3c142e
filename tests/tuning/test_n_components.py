"""n_components="auto": laws of the choice, when it stops, what limits it, and that it loses nothing against 2,000."""

import dataclasses
import re

import numpy as np
import pytest
from benchmarks.components import DATA, compare
from benchmarks.components import fitted as fitted_losses

from quernel import KernelClassifier, KernelRegressor, estimate_cost
from quernel.features import RandomFeatures
from quernel.kernels import Gaussian, Matern, SpectralKernel
from quernel.tuning import n_components
from support.models import plain_regressor


def table(n=1000, d=2, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.random((n, d))
    return X, np.sin(5 * X[:, 0]) + X[:, -1] + (0.3 + 0.5 * X[:, -1]) * rng.standard_normal(n)


def fitted(X, y, weight=None, levels=0.5, **settings):
    """A fit of low accuracy: the choice is made before it."""
    return plain_regressor(levels, **{"random_state": 0, "tol": 0.1, **settings}).fit(X, y, sample_weight=weight)


def numbers(model, unit=1.0):
    """All that was measured, losses in units of y."""
    trials = [dataclasses.astuple(trial) for trial in model.n_components_choice_.trials]
    table = np.array(trials, dtype=float)
    table[:, 2:] /= unit
    return table


def same(ours, theirs, unit=1.0):
    assert ours.n_components_ == theirs.n_components_
    np.testing.assert_allclose(numbers(ours, unit), numbers(theirs), rtol=1e-7, atol=1e-9)


def differ(ours, theirs):
    with pytest.raises(AssertionError):
        same(ours, theirs)


@pytest.fixture(scope="module")
def plain():
    return fitted(*table())


# --- laws ------------------------------------------------------------------------------------------------------------


def test_the_choice_is_repeatable_and_the_model_is_that_of_its_number(plain):
    X, y = table()
    again = fitted(X, y)
    same(again, plain)
    np.testing.assert_array_equal(again.predict(X), plain.predict(X))
    by_hand = fitted(X, y, n_components=plain.n_components_)
    np.testing.assert_array_equal(by_hand.predict(X), plain.predict(X))
    assert by_hand.n_components_choice_ is None
    differ(fitted(X, y, random_state=1), plain)


def test_order_and_repetition_of_rows_do_not_matter(plain):
    X, y = table()
    order = np.random.default_rng(3).permutation(len(y))
    same(fitted(X[order], y[order]), plain)
    differ(fitted(X[order], y), plain)
    count = np.random.default_rng(1).integers(0, 4, 1400)
    X, y = table(1400)
    weighted = fitted(X, y, count)
    same(fitted(np.repeat(X, count, axis=0), np.repeat(y, count)), weighted)
    same(fitted(X, y, 1e6 * count), weighted)
    differ(fitted(X[count > 0], y[count > 0]), weighted)


def test_order_and_repetition_do_not_matter_where_rows_are_sampled():
    X, y = table(5000)
    X[:, 1] = np.round(X[:, 1], 2)
    order, plain = np.random.default_rng(3).permutation(5000), fitted(X, y)
    same(fitted(X[order], y[order]), plain)
    same(fitted(np.vstack([X, X]), np.r_[y, y]), plain)
    assert plain.n_components_choice_.n_train == plain.n_components_choice_.n_held_out == 1000


def test_units_do_not_matter(plain):
    X, y = table()
    same(fitted(X, 1e9 * y), plain, unit=1e9)
    same(fitted(X, y - 7), plain)
    same(fitted(1000 * X - 5, y), plain)
    differ(fitted(X, y**3), plain)


def test_turning_y_over_does_not_matter():
    X, y = table()
    levels = [0.05, 0.3, 0.5, 0.9]
    turned = fitted(X, -y, levels=[1 - level for level in levels])
    same(turned, fitted(X, y, levels=levels))
    differ(fitted(X, -y, levels=levels), turned)


def test_many_targets_at_few_places_are_sampled():
    rng = np.random.default_rng(0)
    X = rng.integers(0, 4, (8000, 2)).astype(float)
    model = fitted(X, X[:, 0] + rng.standard_normal(8000))
    choice = model.n_components_choice_
    assert (choice.n_train, choice.n_held_out) == (1000, 1000)
    # Sixteen places leave at most sixteen directions.
    assert max(trial.dimension for trial in choice.trials) < 16
    assert model.n_components_ <= 500


# --- when it stops ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("d", "kernel"), [(1, "gaussian"), (2, "matern"), (6, "gaussian"), (2, "arccosine")])
def test_it_stops_where_dimension_and_loss_have_converged_and_not_before(d, kernel):
    X, y = table(1000, d)
    choice = fitted(X, y, kernel=kernel).n_components_choice_
    converged = []
    for before, after in zip(choice.trials, choice.trials[1:], strict=False):
        assert after.n_components == 2 * before.n_components
        resolved = after.dimension <= 1.1 * before.dimension
        converged.append(resolved and after.gain <= after.error)
        if after.gain is not None:
            assert after.gain == pytest.approx(before.loss - after.loss, abs=1e-12)
    assert not any(converged[:-1])
    assert converged[-1] or choice.n_components == 1000
    assert choice.n_components == choice.trials[-1].n_components


def test_a_smooth_kernel_in_one_column_needs_few_features():
    assert fitted(*table(1000, 1)).n_components_ <= 500


def test_held_out_loss_has_a_say(monkeypatch):
    """With every dimension taken as resolved, features that matter to y are still waited for."""
    monkeypatch.setattr(n_components, "OPTIONS", dataclasses.replace(n_components.OPTIONS, resolved=np.inf))
    X, noise = table()
    wavy = np.sin(15 * X[:, 0]) * np.cos(15 * X[:, 1]) + 0.1 * noise
    first = fitted(X, wavy, bandwidth=0.1).n_components_choice_
    assert first.trials[1].gain > 3 * first.trials[1].error
    assert first.n_components > 250
    nothing = X[:, 0] + np.random.default_rng(2).standard_normal(len(X))
    assert fitted(X, nothing, bandwidth=0.5).n_components_choice_.n_components == 250


def test_the_dimension_has_a_say(monkeypatch):
    monkeypatch.setattr(n_components, "OPTIONS", dataclasses.replace(n_components.OPTIONS, resolved=-0.5))
    choice = fitted(*table(1000, 1)).n_components_choice_
    assert choice.n_components == 1000
    assert "no more are tried for so few rows" in choice.reason
    assert all(trial.loss is None for trial in choice.trials)


@pytest.mark.parametrize("n", [50, 999])
def test_few_rows_are_not_asked(n):
    X, y = table(n)
    model = fitted(X, y)
    assert model.n_components_ == 500
    assert model.n_components_choice_.trials == ()
    assert "too few different rows" in str(model.n_components_choice_)
    repeated = fitted(np.vstack([X] * 25), np.tile(y, 25))
    assert repeated.n_components_choice_ == model.n_components_choice_


# --- every kind of feature, and what limits their number -------------------------------------------------------------


def boxes(rng, n_components, n_columns):
    return rng.uniform(-1, 1, (n_columns, n_components))


@pytest.mark.parametrize(
    "settings",
    [
        *({"sampling": way} for way in ("orthogonal", "qmc", "leverage")),
        {"kernel": Gaussian() + 0.5 * Matern(0.3)},
        {"kernel": SpectralKernel(1.0, boxes)},
        {"kernel": "spline"},
        {"fit_intercept": False},
        {"solver": "admm"},
    ],
    ids=lambda options: "-".join(f"{name}={getattr(value, 'name', value)}" for name, value in options.items()),
)
def test_every_kind_of_feature_can_be_counted(settings):
    X, y = table(1000)
    model = fitted(X, y, **settings)
    assert model.n_components_choice_.n_components == model.n_components_ == len(model.coef_)
    assert model.n_components_choice_.trials


def test_features_that_are_given_or_exact_are_not_chosen():
    X, y = table(1000)
    assert fitted(X, y, kernel="linear").n_components_choice_ is None
    assert fitted(X, y, n_components="exact", bandwidth=3.0).n_components_choice_ is None


def test_a_small_pool_limits_the_choice():
    X, y = table(1000, 6)
    model = fitted(X, y, sampling=RandomFeatures(sampling="leverage", pool_size=300))
    assert model.n_components_ == 250
    assert "the pool has 300 features" in model.n_components_choice_.reason


@pytest.mark.parametrize(
    ("solver", "max_memory", "limit"),
    [("newton", 10**6, 500), ("newton", 17 * 10**6, 1000), ("newton", None, 2000), ("admm", 5 * 10**6, 250)],
)
def test_memory_limits_the_choice_and_the_estimate_is_an_upper_bound(solver, max_memory, limit):
    X, y = table(2000, 6)
    model = fitted(X, y, kernel="laplacian", solver=solver, max_memory=max_memory)
    assert model.n_components_ == limit
    reason = model.n_components_choice_.reason
    assert reason.startswith("no more are tried;" if max_memory is None else "memory has no room")
    assert "still grew" in reason
    memory = {"solver": solver, "max_memory": max_memory}
    memory["bandwidth"] = "auto"
    assert estimate_cost(2000, 6, **memory).memory == estimate_cost(2000, 6, limit, **memory).memory


def test_it_prints_a_table_and_a_reason(plain):
    text = str(plain.n_components_choice_)
    lines = text.splitlines()
    assert re.split(r"\s{2,}", lines[0].strip()) == ["features", "effective dimension", "held-out loss", "gain", "(se)"]
    assert lines[1].split()[0] == "125"
    assert lines[-1].startswith(f"{plain.n_components_:,} random features: beyond ")
    with pytest.raises(dataclasses.FrozenInstanceError):
        plain.n_components_choice_.n_components = 1


# --- every estimator, with its own loss ------------------------------------------------------------------------------


def labels(n_classes, n=1000):
    X, y = table(n)
    return X, np.digitize(y, np.quantile(y, np.arange(1, n_classes) / n_classes))


OTHERS = {
    "huber": (KernelRegressor, "huber", table),
    "squared": (KernelRegressor, "squared", table),
    "hinge": (KernelClassifier, "hinge", lambda: labels(2)),
    "logistic": (KernelClassifier, "logistic", lambda: labels(3)),
}


def other(name, X, y, weight=None, **settings):
    made, loss, _ = OTHERS[name]
    return made(loss, **{"random_state": 0, "tol": 0.1, **settings}).fit(X, y, sample_weight=weight)


@pytest.mark.parametrize("name", OTHERS)
def test_every_estimator_chooses_by_the_same_laws(name):
    X, y = OTHERS[name][2]()
    model = other(name, X, y)
    choice = model.n_components_choice_
    assert choice.n_components == model.n_components_ == len(model.coef_)
    assert len(choice.trials) > 1
    order = np.random.default_rng(3).permutation(len(y))
    same(other(name, np.vstack([X, X[order]]), np.r_[y, y[order]]), model)
    same(other(name, X[order], y[order], weight=np.full(len(y), 2.0)), model)
    differ(other(name, X[order], y), model)
    assert other(name, X, y, n_components=50).n_components_choice_ is None


@pytest.mark.parametrize("name", ["huber", "squared"])
def test_losses_are_in_units_of_their_own(name):
    X, y = table()
    plain = other(name, X, y)
    large = other(name, X, 1000 * y)
    same(large, plain, unit=1000.0**2)
    with pytest.raises(AssertionError):
        same(large, plain, unit=1000.0)


@pytest.mark.parametrize("name", ["hinge", "squared"])
def test_their_held_out_loss_has_a_say(name, monkeypatch):
    monkeypatch.setattr(n_components, "OPTIONS", dataclasses.replace(n_components.OPTIONS, resolved=np.inf))
    X, _ = table()
    wavy = np.sin(15 * X[:, 0]) * np.cos(15 * X[:, 1])
    coin = np.random.default_rng(2).standard_normal(len(X))
    if name != "squared":
        wavy, coin = wavy > 0, coin > 0
    first = other(name, X, wavy, bandwidth=0.1).n_components_choice_
    assert first.trials[1].gain > 3 * first.trials[1].error
    assert first.n_components > 250
    assert other(name, X, coin, bandwidth=0.5).n_components_ == 250


def test_a_class_without_held_out_rows_is_not_evaluated():
    X, y = labels(2)
    choices = [other("hinge", X, np.where(np.arange(1000) == row, 1, 0)).n_components_choice_ for row in range(3)]
    assert {choice.n_components for choice in choices if not choice.trials} == {500}
    assert any("rarer class" in choice.reason for choice in choices)
    y[7] = 2
    assert other("hinge", X, y).n_components_choice_.trials


# --- what it is for --------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("name", "repetitions"), [("wind", 3), ("homoscedastic", 8), ("heteroscedastic", 8)])
def test_it_loses_no_more_than_a_standard_error_against_2000_features(name, repetitions):
    found = compare(name, 2000, repetitions, [0.5], tol=1e-4)
    print(name, found.chosen, f"excess {found.excess:.2g}, standard error {found.error:.2g}")
    assert found.excess <= found.error
    if name == "wind":  # negative control: too few features would be noticed
        few = {"n_components": 125, "tol": 1e-4}
        losses = [fitted_losses(few | {"random_state": k}, [0.5], *DATA[name](2000, k))[0] for k in range(repetitions)]
        found = dataclasses.replace(found, auto=np.array(losses))
        assert found.excess > 2 * found.error
