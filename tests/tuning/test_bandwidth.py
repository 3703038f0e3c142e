"""bandwidth="learned": laws of the choice, which columns it finds, and what it is worth."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from quernel import KernelClassifier, KernelQuantileRegressor, KernelRegressor
from quernel.data import ArrayRows
from quernel.features import Nystroem, RandomFeatures
from quernel.kernels import ArcCosine, Gaussian, Laplacian, SpectralKernel
from quernel.losses import Pinball
from quernel.metrics import pinball_loss
from quernel.tuning import alpha, bandwidth, data_summary, leave_one_out
from quernel.tuning.plan import LEARNED_KERNELS
from support.models import plain_regressor

LEVELS = [0.1, 0.5, 0.9]


def table(n=400, d=4, seed=0):
    """Two columns that matter, the first more, and d - 2 that do not; in different units.

    A column along which quantiles are straight may have a wide bandwidth, so that only the first must get a narrow one.
    """
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    y = np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] + 0.2 * rng.standard_normal(n)
    return X * 10.0 ** np.arange(d), y


def learned(X, y, levels=LEVELS, weight=None, **settings):
    settings = {"n_components": 100, "random_state": 0, "tol": 1e-3, **settings}
    return KernelQuantileRegressor(levels, bandwidth="learned", **settings).fit(X, y, sample_weight=weight)


def in_deviations(model, X):
    return model.bandwidth_ / X.std(axis=0)


@pytest.fixture(autouse=True, scope="module")
def small():
    """Laws hold for searches of any size: a small one is quick."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bandwidth, "OPTIONS", replace(bandwidth.OPTIONS, n_landmarks=100, pilot_rows=300))
        patch.setattr(leave_one_out, "OPTIONS", replace(leave_one_out.OPTIONS, usual_rows=300))
        for name, value in {"FOLDS": 3, "MAX_ITER": 40}.items():
            patch.setattr(alpha, name, value)
        yield


@pytest.fixture(scope="module")
def plain(small):
    return learned(*table())


def same(ours, theirs, rtol=1e-6):
    np.testing.assert_allclose(
        [one.error for one in ours.bandwidth_choice_.rounds],
        [one.error for one in theirs.bandwidth_choice_.rounds],
        rtol=rtol,
    )
    np.testing.assert_allclose(ours.bandwidth_, theirs.bandwidth_, rtol=rtol)
    assert ours.alpha_ == pytest.approx(theirs.alpha_, rel=rtol)


def differ(ours, theirs):
    with pytest.raises(AssertionError):
        same(ours, theirs)


# --- laws ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kernel", "sampling"), [("gaussian", "uniform"), ("laplacian", "landmarks")])
def test_it_is_repeatable_and_the_model_is_that_of_its_numbers(kernel, sampling):
    X, y = table()
    first, again = (learned(X, y, kernel=kernel) for _ in range(2))
    np.testing.assert_array_equal(again.predict(X), first.predict(X))
    settings = {"n_components": 100, "random_state": 0, "tol": 1e-3, "sampling": sampling}
    by_hand = KernelQuantileRegressor(LEVELS, kernel=first.kernel_, alpha=first.alpha_, **settings).fit(X, y)
    np.testing.assert_array_equal(by_hand.predict(X), first.predict(X))
    assert by_hand.bandwidth_choice_ is None
    same(learned(X, y, kernel=kernel, random_state=1), first)  # features are drawn only for the fit


def test_order_and_repetition_of_rows_do_not_matter(plain):
    X, y = table()
    order = np.random.default_rng(3).permutation(len(y))
    same(learned(X[order], y[order]), plain)
    count = np.random.default_rng(1).integers(0, 4, len(y))
    weighted = learned(X, y, weight=count)
    same(learned(np.repeat(X, count, axis=0), np.repeat(y, count)), weighted)
    differ(learned(X[count > 0], y[count > 0]), weighted)


def test_units_of_columns_and_target_do_not_matter(plain):
    X, y = table()
    factor = np.array([1e-3, 7.0, 1e5, 0.3])
    scaled = learned(X * factor + 5 * factor, y)
    np.testing.assert_allclose(scaled.bandwidth_ / factor, plain.bandwidth_, rtol=1e-6)
    np.testing.assert_allclose(scaled.predict(X * factor + 5 * factor), plain.predict(X), atol=1e-4)
    raised = learned(X, 1000 * y)
    np.testing.assert_allclose(raised.bandwidth_, plain.bandwidth_, rtol=1e-6)
    np.testing.assert_allclose(raised.predict(X) / 1000, plain.predict(X), atol=1e-4)
    bent = learned(np.sinh(X / X.std(axis=0)), y)  # no change of units
    assert np.abs(bent.predict(np.sinh(X / X.std(axis=0))) - plain.predict(X)).max() > 0.1


def test_nor_do_they_where_matrices_are_inverted_in_single_precision(monkeypatch):
    """As of large tables; what is found is nearly what double precision finds."""
    options = replace(leave_one_out.OPTIONS, coarse_rows=200, single_from=200)
    monkeypatch.setattr(leave_one_out, "OPTIONS", options)
    X, y = table()
    first, order, factor = learned(X, y), np.random.default_rng(3).permutation(len(y)), np.array([1e-3, 7.0, 1e5, 0.3])
    np.testing.assert_allclose(learned(X[order], y[order]).bandwidth_, first.bandwidth_, rtol=1e-6)
    thrice = learned(np.repeat(X, 3, axis=0), np.repeat(y, 3))
    np.testing.assert_allclose(thrice.bandwidth_, first.bandwidth_, rtol=1e-6)
    scaled = learned(X * factor + 5 * factor, 1000 * y)
    np.testing.assert_allclose(scaled.bandwidth_ / factor, first.bandwidth_, rtol=1e-6)
    monkeypatch.setattr(leave_one_out, "OPTIONS", replace(options, single_condition=0.0))
    double = learned(X, y).bandwidth_
    np.testing.assert_allclose(first.bandwidth_[:2], double[:2], rtol=0.02)  # of the columns that matter
    assert not np.array_equal(first.bandwidth_, double)


def test_a_ridge_weight_that_is_given_is_kept():
    X, y = table()
    model = learned(X, y, alpha=0.003)
    assert model.alpha_ == model.bandwidth_choice_.alpha == 0.003
    assert model.bandwidth_choice_.alphas == ()


# --- which columns it finds ------------------------------------------------------------------------------------------


def test_columns_without_effect_get_a_large_bandwidth(plain):
    X, _ = table()
    width = in_deviations(plain, X)
    assert width[2:].min() > 10 * width[0]
    assert width[0] < width[1] < width[2:].min()
    rng = np.random.default_rng(5)
    alike = np.sin(X / X.std(axis=0)).sum(axis=1) + 0.2 * rng.standard_normal(len(X))
    width = in_deviations(learned(X, alike), X)
    assert width.max() < 2 * width.min()


def test_a_column_that_moves_the_spread_only_is_kept_for_outer_levels():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (1500, 3))
    y = np.sin(4 * X[:, 0]) + np.exp(1.5 * X[:, 1]) * rng.standard_normal(1500) / 20
    outer = in_deviations(learned(X, y, [0.05, 0.95]), X)
    median = in_deviations(learned(X, y, 0.5), X)
    assert outer[2] > 1.3 * outer[1]  # the third does nothing
    assert median[1] / median[0] > 5 * outer[1] / outer[0]


def test_constant_columns_survive(plain):
    X, y = table()
    model = learned(np.column_stack([X, np.full(len(X), 3.0)]), y)
    assert np.isfinite(model.bandwidth_).all()
    assert np.isfinite(model.predict(np.column_stack([X, np.full(len(X), 3.0)]))).all()
    width = model.bandwidth_[:4] / X.std(axis=0)
    assert width[2:].min() > 10 * width[0]
    everywhere = learned(np.ones((100, 2)), y[:100])
    assert np.ptp(everywhere.predict(np.ones((5, 2)))[:, 1]) == 0


def test_a_constant_target_is_fitted():
    X, _ = table()
    np.testing.assert_allclose(learned(X, np.full(len(X), 2.5)).predict(X), 2.5)


def test_few_rows_keep_the_automatic_bandwidths():
    X, y = table(20)
    model = learned(X, y)
    np.testing.assert_array_equal(model.bandwidth_, plain_regressor(random_state=0).fit(X, y).bandwidth_)
    assert "too few different rows" in str(model.bandwidth_choice_)
    same(learned(np.vstack([X] * 5), np.tile(y, 5)), model)


def test_it_prints_kernels_and_ridge_weights(plain):
    lines = str(plain.bandwidth_choice_).splitlines()
    assert lines[0].split()[:3] == ["bandwidths", "kernel", "leave-one-out"]
    assert [line.split()[:2] for line in lines[1:3]] == [["auto", "gaussian"], ["learned", "gaussian"]]
    assert "by ridge weight" in lines[3]
    assert lines[4].startswith("Learned bandwidths for the gaussian kernel, from 400 rows; alpha = ")


# --- which kernel it takes -------------------------------------------------------------------------------------------


def test_quantiles_that_jump_get_the_rough_kernel_and_smooth_ones_the_smooth(plain):
    X, y = table()
    assert isinstance(plain.kernel_, Gaussian)
    assert isinstance(plain.feature_map_, RandomFeatures)
    steps = np.floor(2 * X[:, 0]) + (X[:, 1] > 0) + 0.05 * np.random.default_rng(0).standard_normal(len(y))
    rough = learned(X, steps)
    assert rough.kernel_.full_name == "gaussian + laplacian"
    assert "gaussian + laplacian" in str(rough.bandwidth_choice_)
    assert isinstance(rough.feature_map_, Nystroem)
    assert rough.n_components_ == 100
    for width in rough.kernel_.bandwidth:  # of both summands
        np.testing.assert_array_equal(width, rough.bandwidth_)
    own = learned(X, steps, kernel=Gaussian() + 0.5 * Laplacian(2.0))
    assert own.bandwidth_[1] == 2.0, "a summand with its own bandwidth keeps it, and both are told"
    np.testing.assert_array_equal(own.bandwidth_[0], own.bandwidth_choice_.bandwidth)
    given = learned(X, steps, kernel="gaussian")
    assert isinstance(given.kernel_, Gaussian), "a kernel that is given is kept"
    assert isinstance(learned(X, steps, sampling="orthogonal").feature_map_, RandomFeatures)


def test_the_ridge_weight_falls_as_rows_are_added(monkeypatch):
    """The same sample out of twice as many rows: half the weight on the mean loss."""
    X, y = table()
    alphas = []
    for n_rows in (400, 800):
        monkeypatch.setattr(data_summary.DataSummary, "n_distinct", n_rows)
        alphas.append(learned(X, y).alpha_)
    assert alphas[0] == pytest.approx(2 * alphas[1])


# --- what it is worth ------------------------------------------------------------------------------------------------


def test_quantiles_gain_from_it_where_columns_differ_and_lose_nothing_where_they_do_not():
    X, y = table(1000, 6)
    new, y_new = table(3000, 6, seed=1)
    alike, alike_new = (np.sin(Z / 10.0 ** np.arange(6)).sum(axis=1) for Z in (X, new))
    noise = np.random.default_rng(7).standard_normal(4000)
    for target, truth, most in ((y, y_new, 0.8), (alike + noise[:1000], alike_new + noise[1000:], 1.05)):
        ours = learned(X, target, n_components=300)
        usual = plain_regressor(LEVELS, n_components=300, random_state=0, tol=1e-3).fit(X, target)
        ratio = pinball_loss(truth, ours.predict(new), LEVELS) / pinball_loss(truth, usual.predict(new), LEVELS)
        assert np.mean(ratio) < most


@pytest.mark.parametrize("loss", ["huber", "squared", "epsilon_insensitive"])
def test_regression_gains_from_it(loss):
    X, y = table(500, 8)
    new, y_new = table(2000, 8, seed=1)
    settings = {"n_components": 200, "random_state": 0, "tol": 1e-3}
    ours = KernelRegressor(loss, bandwidth="learned", **settings).fit(X, y)
    usual = KernelRegressor(loss, **settings).fit(X, y)
    assert 1 - ours.score(new, y_new) < 0.5 * (1 - usual.score(new, y_new))
    width = in_deviations(ours, X)
    assert width[2:].min() > 4 * width[0]


@pytest.mark.parametrize(("loss", "classes"), [("hinge", 2), ("logistic", 2), ("logistic", 3)])
def test_classification_gains_from_it(loss, classes):
    X, y = table(600, 10)
    new, y_new = table(2000, 10, seed=1)
    edges = np.quantile(y, np.arange(1, classes) / classes)
    settings = {"n_components": 200, "random_state": 0, "tol": 1e-3}
    ours = KernelClassifier(loss, bandwidth="learned", **settings).fit(X, np.digitize(y, edges))
    usual = KernelClassifier(loss, **settings).fit(X, np.digitize(y, edges))
    assert ours.score(new, np.digitize(y_new, edges)) > usual.score(new, np.digitize(y_new, edges)) + 0.05
    assert in_deviations(ours, X)[2:].min() > 2 * in_deviations(ours, X)[0]


def test_other_kernels_and_the_exact_one_learn_too():
    X, y = table(300)
    for settings in ({"kernel": "laplacian"}, {"kernel": "matern"}, {"n_components": "exact"}):
        width = in_deviations(learned(X, y, 0.5, **settings), X)
        assert width[2:].min() > 3 * width[0], settings


# --- scikit-learn, and errors ----------------------------------------------------------------------------------------


@parametrize_with_checks([KernelQuantileRegressor(bandwidth="learned", alpha=1e-3, n_components=50)])
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


@pytest.mark.parametrize(
    ("kernel", "reason"),
    [
        ("linear", "this kernel has none"),
        ("spline", "this kernel has none"),
        (Gaussian(2.0), "given"),
        (SpectralKernel(sampler=lambda rng, m, d: rng.standard_normal((d, m))), "known by its random features only"),
        (Gaussian() + ArcCosine(), "not learned, since the arccosine kernel in the sum has none"),
    ],
)
def test_what_cannot_be_learned_is_not_and_the_plan_says_why(kernel, reason):
    X, y = table(50)
    for estimator in (KernelQuantileRegressor, KernelRegressor):
        learned, usual = (
            estimator(kernel=kernel, bandwidth=bandwidth, n_components=30, random_state=0).fit(X, y)
            for bandwidth in ("learned", "auto")
        )
        assert reason in learned.plan_.bandwidth_reason
        np.testing.assert_array_equal(learned.predict(X), usual.predict(X))


def test_large_tables_are_sampled(monkeypatch):
    monkeypatch.setattr(bandwidth, "OPTIONS", replace(bandwidth.OPTIONS, max_rows=300))
    X, y = table(2000)
    choice = learned(X, y).bandwidth_choice_
    assert choice.n_rows == 300
    assert "from 300 rows" in choice.reason


def test_bandwidths_of_large_tables_are_refined_on_more_rows(monkeypatch):
    """Waves that 100 rows cannot follow, but 600 can: bandwidths of 100 rows are too wide for them."""
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 1, (1600, 2))
    y = np.sin(30 * X[:, 0]) * np.cos(15 * X[:, 1]) + 0.05 * rng.standard_normal(1600)
    few = replace(bandwidth.OPTIONS, pilot_rows=100, refined_share=0.6)
    losses = {}
    for refined in (100, 600):
        monkeypatch.setattr(bandwidth, "OPTIONS", replace(few, refined_rows=refined))
        model = learned(X[:1000], y[:1000], kernel="gaussian", n_components=300)
        losses[refined] = pinball_loss(y[1000:], model.predict(X[1000:]), LEVELS).mean()
    assert losses[600] < 0.95 * losses[100]
    monkeypatch.setattr(bandwidth, "OPTIONS", replace(few, refined_share=0.1))  # a small table is not
    small = learned(X[:1000], y[:1000], kernel="gaussian", n_components=300)
    assert pinball_loss(y[1000:], small.predict(X[1000:]), LEVELS).mean() == pytest.approx(losses[100])


def test_landmarks_are_centres_of_clusters_where_rows_are_many():
    X, y = table(600)
    chosen = {M: learned(X, y, kernel="laplacian", n_components=M).feature_map_.landmarks_ for M in (60, 61)}
    are_rows = {M: np.all([np.any(np.all(one == X, axis=1)) for one in P]) for M, P in chosen.items()}
    assert are_rows == {60: False, 61: True}


@pytest.mark.parametrize(("errors", "few", "many"), [((0.0, 0.04, 0.04), 1, 2), ((0.0, 0.06, 0.06), 0, 0),
                                                     ((1.0, 0.0, 0.01), 1, 2), ((1.0, 0.03, 0.0), 1, 2),
                                                     ((1.0, 0.06, 0.0), 2, 2), ((1.0, 0.0, 0.03), 1, 1)])  # fmt: skip
def test_of_about_equal_kernels_a_rough_one_is_chosen(errors, few, many):
    """The smooth one only if it is clearly better; the roughest one sooner on tables of many rows."""
    X, y = table(60)
    pilots = [leave_one_out.Pilot(ArrayRows(X, y), Pinball(np.array(LEVELS)), X.std(axis=0))]
    for many_rows, expected in ((False, few), (True, many)):
        best, _ = leave_one_out.fit_bandwidths(
            pilots, LEARNED_KERNELS, X.std(axis=0), lambda kernels: list(errors[: len(kernels)]), many_rows=many_rows
        )
        assert best == expected
