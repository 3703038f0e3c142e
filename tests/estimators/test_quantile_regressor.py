"""What a fitted KernelQuantileRegressor predicts, keeps and says."""

import re
from itertools import pairwise
from statistics import NormalDist

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import d2_pinball_score

from quernel.kernels import KERNELS
from quernel.tuning.data_summary import robust_scale
from support.models import plain_regressor

RANDOM = {"n_components": 60, "alpha": 1e-3, "random_state": 0}
EXACT = {"n_components": "exact", "alpha": 1e-3}
LINEAR = {"kernel": "linear", "alpha": 1e-3}
MODELS = pytest.mark.parametrize("settings", [RANDOM, EXACT, LINEAR], ids=["random", "exact", "linear"])
LEVELS = [0.1, 0.3, 0.5, 0.8, 0.95]


def table(n=150, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.random((n, 2))
    return X, np.sin(4 * X[:, 0]) + (0.2 + X[:, 1]) * rng.standard_normal(n)


@pytest.fixture(scope="module")
def fitted():
    return plain_regressor(LEVELS, **RANDOM).fit(*table())


def bell(levels, mean=3.0, deviation=2.0):
    """A model that predicts the quantiles of one normal distribution for every row."""
    X, y = table(30)
    model = plain_regressor(levels, **LINEAR).fit(X, y)
    law = NormalDist(mean, deviation)
    model.coef_ = np.zeros_like(model.coef_)
    model.intercept_ = np.array([law.inv_cdf(level) for level in levels])
    return model, law, X


# --- shapes and order ------------------------------------------------------------------------------------------------


@MODELS
@pytest.mark.parametrize(
    ("levels", "shape"), [(0.3, (7,)), ([0.3], (7, 1)), ((0.2, 0.7, 0.9), (7, 3)), (np.array([0.2, 0.7]), (7, 2))]
)
def test_a_number_predicts_a_vector_and_a_sequence_a_table(settings, levels, shape):
    X, y = table(60)
    model = plain_regressor(levels, **settings).fit(X, y)
    assert model.predict(X[:7]).shape == shape
    assert model.predict(X[:1]).shape == (1, *shape[1:])
    assert model.predict(X[:7]).dtype == np.float64


def test_shape_of_a_prediction_follows_the_levels_that_are_asked_for(fitted):
    X, _ = table(7)
    assert fitted.predict(X, quantiles=0.4).shape == (7,)
    assert fitted.predict(X, quantiles=[0.4]).shape == (7, 1)
    assert fitted.predict(X, quantiles=[0.4, 0.2]).shape == (7, 2)


@pytest.mark.parametrize("noncrossing", ["rearrange", None])
def test_unsorted_levels_keep_the_callers_order(noncrossing):
    X, y = table()
    ascending = plain_regressor([0.1, 0.5, 0.9], noncrossing=noncrossing, **RANDOM).fit(X, y)
    mixed = plain_regressor([0.9, 0.1, 0.5], noncrossing=noncrossing, **RANDOM).fit(X, y)
    assert mixed.quantiles_.tolist() == [0.9, 0.1, 0.5]
    np.testing.assert_allclose(mixed.predict(X), ascending.predict(X)[:, [2, 0, 1]], atol=1e-9)
    np.testing.assert_allclose(mixed.predict(X, [0.7, 0.2]), ascending.predict(X, [0.7, 0.2]), atol=1e-9)
    assert mixed.crossing_rate_ == pytest.approx(ascending.crossing_rate_)
    np.testing.assert_allclose(mixed.objective_, ascending.objective_[[2, 0, 1]], rtol=1e-9)


def test_levels_together_are_the_levels_alone():
    X, y = table()
    together = plain_regressor(LEVELS, noncrossing=None, **RANDOM).fit(X, y).predict(X)
    alone = [plain_regressor(level, **RANDOM).fit(X, y).predict(X) for level in LEVELS]
    np.testing.assert_allclose(together, np.column_stack(alone), atol=1e-9)


# --- crossing --------------------------------------------------------------------------------------------------------


def crossing_table():
    """Few rows, many close levels and hardly any penalty: the levels cross."""
    rng = np.random.default_rng(0)
    return rng.random((40, 3)), rng.standard_normal(40), [0.3, 0.35, 0.4, 0.45, 0.5]


def test_rearranged_levels_never_cross_and_raw_ones_do():
    X, y, levels = crossing_table()
    settings = {"n_components": 100, "alpha": 1e-6, "random_state": 0}
    new = np.random.default_rng(1).random((500, 3))
    sorted_model = plain_regressor(levels, **settings).fit(X, y)
    raw_model = plain_regressor(levels, noncrossing=None, **settings).fit(X, y)
    raw = raw_model.predict(new)
    assert np.mean(np.any(np.diff(raw, axis=1) < 0, axis=1)) > 0.1
    assert np.all(np.diff(sorted_model.predict(new), axis=1) >= 0)
    np.testing.assert_array_equal(sorted_model.predict(new), np.sort(raw, axis=1))
    # The attribute tells of the raw levels, on the training rows, whatever is done about them.
    at_home = np.mean(np.any(np.diff(raw_model.predict(X), axis=1) < -1e-9 * np.std(y), axis=1))
    assert sorted_model.crossing_rate_ == raw_model.crossing_rate_ == at_home > 0


def test_rearranging_respects_the_order_of_descending_levels():
    X, y, levels = crossing_table()
    model = plain_regressor(levels[::-1], n_components=100, alpha=1e-6, random_state=0).fit(X, y)
    assert np.all(np.diff(model.predict(X), axis=1) <= 0)


def test_one_level_cannot_cross():
    assert plain_regressor(0.5, **RANDOM).fit(*table()).crossing_rate_ == 0


# --- levels between the fitted ones ----------------------------------------------------------------------------------


def test_fitted_levels_are_reproduced_when_asked_for(fitted):
    X, _ = table(50, seed=1)
    np.testing.assert_allclose(fitted.predict(X, quantiles=LEVELS), fitted.predict(X), rtol=1e-12)
    np.testing.assert_allclose(fitted.predict(X, quantiles=0.8), fitted.predict(X)[:, 3], rtol=1e-12)
    np.testing.assert_allclose(fitted.predict(X, quantiles=1 - 0.05), fitted.predict(X)[:, 4], rtol=1e-12)


def test_levels_between_are_monotone_and_strictly_between(fitted):
    X, _ = table(50, seed=1)
    grid = np.linspace(0.1, 0.95, 200)
    curves = fitted.predict(X, quantiles=grid)
    assert np.all(np.diff(curves, axis=1) >= 0)
    assert np.all(np.diff(curves[:, ::20], axis=1) > 0)  # and not by being constant


def test_interpolation_is_exact_for_a_normal_distribution():
    model, law, X = bell([0.05, 0.4, 0.95])
    grid = [0.05, 0.1, 0.25, 0.5, 0.77, 0.95]
    expected = [law.inv_cdf(level) for level in grid]
    np.testing.assert_allclose(model.predict(X, quantiles=grid), np.tile(expected, (30, 1)), rtol=1e-12)
    linear_in_the_level = np.interp(grid, model.quantiles_, model.intercept_)
    assert np.abs(linear_in_the_level - expected).max() > 0.1


def test_one_fitted_level_can_be_asked_for_by_name():
    X, y = table()
    model = plain_regressor(0.3, **RANDOM).fit(X, y)
    np.testing.assert_array_equal(model.predict(X, quantiles=0.3), model.predict(X))
    with pytest.raises(ValueError, match=r"outside the fitted range \[0\.3, 0\.3\]"):
        model.predict(X, quantiles=0.31)


# --- intervals, distribution functions and draws ---------------------------------------------------------------------


def test_intervals_are_two_ordered_columns(fitted):
    X, _ = table(50, seed=1)
    interval = fitted.predict_interval(X, coverage=0.7)
    assert interval.shape == (50, 2)
    assert np.all(interval[:, 0] < interval[:, 1])
    np.testing.assert_allclose(interval, fitted.predict(X, quantiles=[0.15, 0.85]), rtol=1e-9)
    wider = fitted.predict_interval(X, coverage=0.8)
    assert np.all(wider[:, 0] < interval[:, 0])
    assert np.all(wider[:, 1] > interval[:, 1])


def test_an_interval_at_the_edge_of_the_fitted_range_is_given_and_beyond_it_refused():
    X, y = table()
    model = plain_regressor([0.05, 0.95], **RANDOM).fit(X, y)
    np.testing.assert_allclose(model.predict_interval(X), model.predict(X), rtol=1e-9)  # (1 - 0.9) / 2 is not 0.05
    with pytest.raises(ValueError, match=r"outside the fitted range \[0\.05, 0\.95\]"):
        model.predict_interval(X, coverage=0.91)


def test_the_distribution_function_inverts_the_quantiles(fitted):
    X, _ = table(50, seed=1)
    for level in [0.11, 0.3, 0.42, 0.5, 0.66, 0.94]:
        np.testing.assert_allclose(fitted.predict_cdf(X, fitted.predict(X, quantiles=level)), level, rtol=1e-9)


def test_the_distribution_function_is_monotone_from_0_to_1(fitted):
    X, _ = table(20, seed=1)
    grid = np.linspace(-5, 5, 300)
    curves = np.column_stack([fitted.predict_cdf(X, threshold) for threshold in grid])
    assert np.all(np.diff(curves, axis=1) >= 0)
    assert np.all(curves[:, 0] == 0)
    assert np.all(curves[:, -1] == 1)
    assert np.all(np.ptp(curves, axis=1) == 1)


def test_one_threshold_serves_all_rows_and_one_per_row_too(fitted):
    X, y = table(20, seed=1)
    np.testing.assert_array_equal(fitted.predict_cdf(X, 0.5), fitted.predict_cdf(X, np.full(20, 0.5)))
    each = [fitted.predict_cdf(X[i : i + 1], y[i])[0] for i in range(20)]
    np.testing.assert_allclose(fitted.predict_cdf(X, y), each, rtol=1e-12)


def test_draws_have_the_quantiles_that_were_predicted(fitted):
    X, _ = table(5, seed=1)
    n = 20_000
    draws = fitted.sample(X, n, rng=np.random.default_rng(0))
    assert draws.shape == (5, n)
    for level in [0.3, 0.4, 0.5, 0.8, 0.9]:
        share = np.mean(draws <= fitted.predict(X, quantiles=level)[:, None], axis=1)
        error = 4 * np.sqrt(level * (1 - level) / n)
        np.testing.assert_allclose(share, level, atol=error)
        assert np.abs(share - (level + 0.03)).max() > error  # the bound is tight enough to notice 3 %
    low, high = fitted.predict_interval(X, 0.8)[:, 0], fitted.predict(X)[:, -1]
    assert np.all(draws.min(axis=1) >= low - 1e-12)
    np.testing.assert_allclose(draws.max(axis=1), high)


def test_draws_repeat_with_their_seed_and_differ_between_rows(fitted):
    X = np.full((2, 2), 0.5)
    np.testing.assert_array_equal(fitted.sample(X, 50, rng=3), fitted.sample(X, 50, rng=3))
    assert np.any(fitted.sample(X, 50, rng=3) != fitted.sample(X, 50, rng=4))
    first, second = fitted.sample(X, 50, rng=3)
    assert np.any(first != second)
    assert fitted.sample(X).shape == (2, 1)


# --- score -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("levels", [0.3, [0.3], LEVELS])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_score_is_the_mean_of_scikit_learns_d2(levels, weighted):
    X, y = table(151)
    model = plain_regressor(levels, **RANDOM).fit(X, y)
    new, truth = table(101, seed=1)
    weight = np.random.default_rng(2).integers(1, 5, 101) if weighted else None
    prediction = model.predict(new).reshape(101, -1)
    # Older scikit-learn compares with an interpolated quantile unless weights are given: equal ones do no harm.
    theirs = [
        d2_pinball_score(truth, prediction[:, k], alpha=level, sample_weight=np.ones(101) if weight is None else weight)
        for k, level in enumerate(np.atleast_1d(levels))
    ]
    assert model.score(new, truth, sample_weight=weight) == pytest.approx(np.mean(theirs), rel=1e-9)
    if weighted:
        assert abs(model.score(new, truth) - np.mean(theirs)) > 1e-6


def test_a_perfect_model_scores_1_and_a_constant_one_0():
    X, y = table(101)
    model = plain_regressor(0.5, **LINEAR).fit(X, y)
    assert model.score(X, model.predict(X)) == pytest.approx(1)
    model.coef_, model.intercept_ = np.zeros_like(model.coef_), np.array([np.median(y)])
    assert model.score(X, y) == pytest.approx(0, abs=1e-12)


# --- what a fit keeps and says ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_components", ["auto", 70, "exact"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_attributes(kernel, n_components):
    X, y = table(100)
    model = plain_regressor([0.2, 0.6], kernel=kernel, n_components=n_components, random_state=0).fit(X, y)
    assert model.quantiles_.tolist() == [0.2, 0.6]
    M = model.n_components_
    assert isinstance(M, int)
    if kernel == "linear":
        assert M == 2
        assert model.bandwidth_ is None
    else:
        assert n_components in ("auto", "exact", M)
        if KERNELS[kernel]().takes_bandwidth:
            assert model.bandwidth_.shape == (2,)
            assert np.all(model.bandwidth_ > 0)
        else:
            assert model.bandwidth_ is None
    assert model.coef_.shape == (M, 2)
    for name in ("intercept_", "duality_gap_", "objective_"):
        assert getattr(model, name).shape == (2,), name
    assert isinstance(model.alpha_, float)
    assert model.alpha_ > 0
    assert np.all((model.duality_gap_ >= 0) & (model.duality_gap_ <= 1e-6))
    assert 1 <= model.n_iter_ <= 1000
    assert 0 <= model.crossing_rate_ <= 1
    assert model.n_features_in_ == 2
    by_hand = model.feature_map_.transform(X) @ model.coef_ + model.intercept_
    np.testing.assert_allclose(model.predict(X), np.sort(by_hand, axis=1), rtol=1e-9)


@MODELS
def test_the_objective_is_the_one_that_is_documented(settings):
    X, y = table(100)
    weight = np.random.default_rng(0).random(100)
    model = plain_regressor([0.2, 0.6], noncrossing=None, **settings).fit(X, y, weight)
    residual = y[:, None] - model.predict(X)
    pinball = np.where(residual > 0, residual * [0.2, 0.6], residual * [-0.8, -0.4])
    expected = np.average(pinball, axis=0, weights=weight) + model.alpha_ * np.sum(model.coef_**2, axis=0)
    np.testing.assert_allclose(model.objective_, expected, rtol=1e-9)


@MODELS
def test_without_intercept_there_is_none(settings):
    X, y = table(80)
    assert np.all(plain_regressor([0.2, 0.6], fit_intercept=False, **settings).fit(X, y).intercept_ == 0)
    assert np.all(plain_regressor([0.2, 0.6], **settings).fit(X, y).intercept_ != 0)


def test_alpha_and_bandwidth_given_are_alpha_and_bandwidth_used():
    X, y = table(60)
    model = plain_regressor(0.5, alpha=0.02, bandwidth=[0.3, 2.0], n_components=40, random_state=0).fit(X, y)
    assert model.alpha_ == 0.02
    np.testing.assert_array_equal(model.bandwidth_, [0.3, 2.0])
    assert model.n_components_ == 40


@pytest.mark.parametrize("solver", ["newton", "admm"])
def test_a_fit_that_misses_its_tolerance_says_so(solver):
    X, y = table()
    model = plain_regressor([0.1, 0.9], solver=solver, max_iter=1, **RANDOM)
    with pytest.warns(ConvergenceWarning) as caught:
        model.fit(X, y)
    assert len(caught) == 1
    message = str(caught[0].message)
    assert "level 0.1, level 0.9" in message
    assert f"{model.duality_gap_.max():.1e}" in message
    assert model.duality_gap_.max() > 1e-6
    for word in ("duality gap", "tol=1e-06", "larger max_iter (now 1)", "alpha (now 0.001)"):
        assert word in message
    assert caught[0].filename == __file__  # it points to the user's line, not into the library
    assert "accept" not in message, "nobody should accept such a gap"
    plain_regressor([0.1, 0.9], **RANDOM).fit(X, y)  # and no warning where the steps suffice


@pytest.mark.parametrize(("solver", "max_iter"), [("newton", 1000), ("admm", 500)])
def test_the_advice_to_accept_a_small_gap_is_good_advice(solver, max_iter):
    X, y = table()
    settings = {**RANDOM, "solver": solver, "max_iter": max_iter, "tol": 1e-18}
    with pytest.warns(ConvergenceWarning) as caught:
        plain_regressor([0.1, 0.9], **settings).fit(X, y)
    accepted = float(re.search(r"accept the gap with tol=(\S+?)\.?$", str(caught[0].message)).group(1))
    assert accepted < 0.02
    plain_regressor([0.1, 0.9], **{**settings, "tol": accepted}).fit(X, y)


def test_the_gap_of_an_unfinished_fit_is_honest():
    X, y = table()
    best = plain_regressor(0.3, **RANDOM).fit(X, y).objective_[0]
    for steps in (1, 2, 4, 8):
        with pytest.warns(ConvergenceWarning):
            model = plain_regressor(0.3, max_iter=steps, **RANDOM).fit(X, y)
        assert model.objective_[0] * (1 - model.duality_gap_[0]) <= best * (1 + 1e-9)
        assert model.objective_[0] >= best * (1 - 1e-9)


@pytest.mark.parametrize("solver", ["newton", "admm"])
def test_verbose_prints_a_gap_that_falls(capsys, solver):
    X, y = table()
    plain_regressor([0.1, 0.9], solver=solver, tol=1e-4, max_iter=5000, **RANDOM).fit(X, y)
    assert capsys.readouterr().out == ""
    plain_regressor([0.1, 0.9], solver=solver, tol=1e-4, max_iter=5000, verbose=1, **RANDOM).fit(X, y)
    lines = capsys.readouterr().out.splitlines()
    assert lines
    assert lines[0].startswith("quernel: choosing bandwidth, alpha and features, about ")
    found = [re.search(r"relative gap (\S+), about .* left$", line) for line in lines]
    gaps = [float(one.group(1)) for one in found if one]
    assert gaps[-1] <= 1e-4
    assert all(later <= earlier for earlier, later in pairwise(gaps))


def test_verbose_prints_only_when_the_certificate_improves(capsys):
    rng = np.random.default_rng(0)
    X, y = rng.random((40, 3)), rng.standard_normal(40)
    plain_regressor(0.5, verbose=1, n_components=500, alpha=1e-4, random_state=0).fit(X, y)
    lines = capsys.readouterr().out.splitlines()
    gaps = [found.group(1) for line in lines if (found := re.search(r"relative gap (\S+),", line))]
    assert len(gaps) > 2
    assert len(set(gaps)) == len(gaps), gaps


@pytest.mark.parametrize("alpha", [1e-3, 1.0, 100.0])
def test_a_fit_that_is_finished_stops(alpha):
    X, y = table(80)
    model = plain_regressor([0.25, 0.75], n_components=50, alpha=alpha, random_state=0).fit(X, y)
    assert model.duality_gap_.max() <= 1e-6
    assert model.n_iter_ <= 200


def test_random_state_makes_fits_repeatable():
    X, y = table()
    settings = {"n_components": 30, "alpha": 1e-4}
    first = plain_regressor(0.5, random_state=7, **settings).fit(X, y).predict(X)
    np.testing.assert_array_equal(plain_regressor(0.5, random_state=7, **settings).fit(X, y).predict(X), first)
    assert np.abs(plain_regressor(0.5, random_state=8, **settings).fit(X, y).predict(X) - first).max() > 1e-3
    for make in (np.random.default_rng, np.random.RandomState):
        a, b = (plain_regressor(0.5, random_state=make(7), **settings).fit(X, y).predict(X) for _ in range(2))
        np.testing.assert_array_equal(a, b)


def test_random_state_leaves_the_global_seed_alone():
    X, y = table(40)
    state = np.random.get_state()[1].copy()  # noqa: NPY002
    plain_regressor(0.5, **RANDOM).fit(X, y).sample(X, 3, rng=0)
    np.testing.assert_array_equal(np.random.get_state()[1], state)  # noqa: NPY002


def test_refitting_forgets_the_first_fit():
    X, y = table()
    model = plain_regressor(LEVELS, **RANDOM).fit(X[:, :1], -y)
    fresh = plain_regressor(LEVELS, **RANDOM).fit(X, y)
    np.testing.assert_array_equal(model.fit(X, y).predict(X), fresh.predict(X))


def test_little_memory_gives_the_same_answer():
    X, y = table(400)
    stored = plain_regressor(LEVELS, **RANDOM).fit(X, y)
    recomputed = plain_regressor(LEVELS, max_memory=1, **RANDOM).fit(X, y)
    np.testing.assert_allclose(recomputed.predict(X), stored.predict(X), atol=1e-7)


# --- degenerate tables -----------------------------------------------------------------------------------------------

SOLVED = [*[pytest.param(s, id=i) for s, i in ((RANDOM, "random"), (EXACT, "exact"), (LINEAR, "linear"))]]
SOLVED += [pytest.param({**RANDOM, "solver": "admm", "tol": 1e-3, "max_iter": 5000}, id="admm")]


@pytest.mark.parametrize("settings", SOLVED)
@pytest.mark.parametrize("value", [0.0, 3.0, -1e9])
def test_a_constant_target_is_predicted_exactly(settings, value):
    X, _ = table(50)
    model = plain_regressor([0.1, 0.9], **settings).fit(X, np.full(50, value))
    np.testing.assert_allclose(model.predict(X + 0.1), value, rtol=1e-12)
    assert np.all(model.duality_gap_ <= model.tol)


@pytest.mark.parametrize("settings", SOLVED)
def test_a_single_row_is_predicted_exactly(settings):
    model = plain_regressor([0.1, 0.9], **settings).fit([[1.0, 2.0]], [5.0])
    np.testing.assert_allclose(model.predict([[1.0, 2.0]]), 5.0, rtol=1e-6)


@pytest.mark.parametrize("settings", SOLVED)
def test_a_single_column(settings):
    X, y = table()
    model = plain_regressor([0.1, 0.9], **settings).fit(X[:, :1], y)
    assert model.predict(X[:, :1]).shape == (150, 2)
    assert 0.7 < np.mean((y >= model.predict(X[:, :1])[:, 0]) & (y <= model.predict(X[:, :1])[:, 1])) < 0.9


@pytest.mark.parametrize("constant", [0.0, 1.0, 0.1, 1e9])
def test_constant_columns_do_no_harm(constant):
    X, y = table()
    plain = plain_regressor([0.1, 0.9], **EXACT).fit(X, y)
    wider = np.column_stack([X, np.full(150, constant)])
    model = plain_regressor([0.1, 0.9], **EXACT).fit(wider, y)
    np.testing.assert_allclose(model.predict(wider), plain.predict(X), atol=1e-6)


@pytest.mark.parametrize("settings", SOLVED)
def test_columns_that_are_all_constant_leave_the_quantiles_of_y(settings):
    _, y = table(151)
    X = np.ones((151, 2))
    model = plain_regressor([0.25, 0.5], **settings).fit(X, y)
    expected = np.quantile(y, [0.25, 0.5], method="inverted_cdf")
    np.testing.assert_allclose(model.predict(X[:1])[0], expected, atol=0.02 if "solver" in settings else 1e-6)


@pytest.mark.parametrize("settings", SOLVED)
def test_duplicate_rows(settings):
    X, _ = table(5)
    rng = np.random.default_rng(0)
    X, y = np.repeat(X, 41, axis=0), rng.standard_normal(205) + np.repeat(np.arange(5.0), 41)
    model = plain_regressor([0.2, 0.8], **{**settings, "alpha": 1e-7}).fit(X, y)
    if settings.get("kernel") == "linear":
        assert np.isfinite(model.predict(X)).all()
        return
    # With hardly any penalty each group of equal rows gets its own quantiles.
    expected = [np.quantile(y[i * 41 : (i + 1) * 41], [0.2, 0.8], method="inverted_cdf") for i in range(5)]
    np.testing.assert_allclose(model.predict(X[::41]), expected, atol=0.1 if "solver" in settings else 1e-6)


# --- automatic bandwidth and exact kernels ---------------------------------------------------------------------------


UNITS = {
    "times 1000": lambda X: X * [1000, 1],
    "over a million": lambda X: X * [1, 1e-6],
    "plus 50": lambda X: X + np.array([0, 50]),
    "Celsius to Kelvin": lambda X: X + np.array([273.15, 0]),
}


@pytest.mark.parametrize("settings", [RANDOM, EXACT], ids=["random", "exact"])
@pytest.mark.parametrize("change", UNITS)
def test_automatic_bandwidth_makes_units_irrelevant(settings, change):
    (X, y), (new, _) = table(), table(40, seed=1)
    expected = plain_regressor([0.2, 0.8], **settings).fit(X, y).predict(new)
    model = plain_regressor([0.2, 0.8], **settings).fit(UNITS[change](X), y)
    np.testing.assert_allclose(model.predict(UNITS[change](new)), expected, atol=1e-6)


def test_a_fixed_bandwidth_does_feel_the_units():
    (X, y), (new, _) = table(), table(40, seed=1)
    plain = plain_regressor([0.2, 0.8], bandwidth=0.5, **EXACT).fit(X, y).predict(new)
    scaled = plain_regressor([0.2, 0.8], bandwidth=0.5, **EXACT).fit(X * [1000, 1], y).predict(new * [1000, 1])
    assert np.abs(plain - scaled).max() > 0.1


def test_many_random_features_approach_the_exact_kernel():
    (X, y), (new, _) = table(300), table(100, seed=1)
    settings = {"alpha": 1e-3, "bandwidth": 0.5}
    exact = plain_regressor([0.2, 0.8], n_components="exact", **settings).fit(X, y)
    assert exact.n_components_ < 150  # a smooth kernel has few directions, and they are found

    def distance(M):
        model = plain_regressor([0.2, 0.8], n_components=M, random_state=0, **settings).fit(X, y)
        return np.sqrt(np.mean((model.predict(new) - exact.predict(new)) ** 2)), model.objective_

    far, _ = distance(20)
    near, objective = distance(4000)
    assert near < 0.03
    assert near < far / 3
    np.testing.assert_allclose(objective, exact.objective_, rtol=0.01)


def test_the_automatic_ridge_weight_is_halved_whenever_there_are_four_times_as_many_different_rows():
    rng = np.random.default_rng(0)
    X, y = rng.uniform(size=(40_000, 1)), rng.standard_normal(40_000)
    model = plain_regressor(0.5, n_components=5, tol=0.1, random_state=0)

    def weight(size, unit=1.0, times=1, **kwargs):
        rows = np.repeat(np.arange(size), times)
        return (
            clone(model).fit(X[rows], unit * y[rows], **kwargs).alpha_
            * unit
            * robust_scale(y[:size], np.full(size, 1 / size))
        )

    sizes = 2_100, 7_500, 8_500, 30_000, 34_000
    np.testing.assert_allclose([weight(size) / 5e-5 for size in sizes], [1 / 2, 1 / 2, 1 / 4, 1 / 4, 1 / 8])
    for size in (500, 1_900):  # where it is chosen, what it is near to
        usual = clone(model).fit(X[:size], y[:size]).alpha_choice_.usual
        assert usual * robust_scale(y[:size], np.full(size, 1 / size)) == pytest.approx(5e-5)
    assert weight(30_000, unit=1e4) == pytest.approx(weight(30_000))
    assert weight(1_900, times=3) == pytest.approx(weight(1_900))  # repeated rows tell nothing new
    assert weight(1_900, sample_weight=np.full(1_900, 7.0)) == pytest.approx(weight(1_900))
