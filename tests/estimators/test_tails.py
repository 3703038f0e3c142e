"""tails="pareto": generalised Pareto laws beyond the outer quantile curves."""

from copy import copy

import numpy as np
import pytest
from scipy import stats
from scipy.integrate import quad
from scipy.optimize import minimize
from sklearn.exceptions import ConvergenceWarning

import quernel
from quernel import KernelQuantileRegressor, KernelQuantileRegressorCV, KernelRegressor, TabularQuantileRegressor
from quernel.data import ArrayRows, MemmapRows
from quernel.estimators import tail_fit, tails
from quernel.estimators.levels import ParetoLaw, QuantileFunction
from quernel.losses import GeneralizedPareto
from quernel.solvers.progress import stopping

QUICK = {"bandwidth": 0.4, "n_components": 40, "alpha": 1e-3, "alpha_scale": "relative", "random_state": 0}
LEVELS = [0.1, 0.5, 0.9]


def make(law, n=1200, seed=0):
    """Location and scale depend on the one column; the scale grows by a factor of 7."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(0, 1, (n, 1))
    return X, np.sin(3 * X[:, 0]) + np.exp(2 * X[:, 0]) * law.rvs(n, random_state=rng)


def true_quantile(law, X, level):
    return np.sin(3 * X[:, 0]) + np.exp(2 * X[:, 0]) * law.ppf(level)


def pareto(X, y, quantiles=LEVELS, **more):
    return KernelQuantileRegressor(quantiles, tails="pareto", **QUICK | more).fit(X, y)


@pytest.fixture(scope="module")
def heavy():
    X, y = make(stats.t(3))
    return pareto(X, y), X, y


@pytest.mark.parametrize("shape", [-0.4, 0.0, 0.3])
def test_the_law_is_that_of_scipy(shape):
    law, known = ParetoLaw(1.0, 0.1, np.array([2.0]), shape), stats.genpareto(shape, scale=2.0)
    beyond = np.array([0.1, 0.03, 1e-3, 1e-4])
    np.testing.assert_allclose(law.distance(beyond)[0], known.isf(beyond / 0.1), atol=1e-12)
    for z in (0.0, 0.5, 4.0, 50.0):
        np.testing.assert_allclose(law.beyond(np.array([z])), 0.1 * known.sf(z), atol=1e-15)
    z = known.isf(0.2)
    mean = quad(known.sf, z, known.support()[1])[0] / known.sf(z) + z
    np.testing.assert_allclose(law.mean_distance(0.02), mean, rtol=1e-7)


@pytest.mark.parametrize("shape", [-0.3, 0.0, 0.25])
def test_the_log_scale_is_a_certified_optimum(shape):
    rng = np.random.default_rng(1)
    X = rng.random((150, 2))
    y = np.log(stats.genpareto(shape, scale=np.exp(X[:, 0])).rvs(150, random_state=rng))
    model = KernelRegressor(GeneralizedPareto(shape), alpha=1e-3, n_components=20, random_state=0).fit(X, y)
    assert model.duality_gap_[0] <= 1e-6
    Phi = np.column_stack([model.feature_map_.transform(X), np.ones(150)])

    def F(point):
        r = y - Phi @ point
        bent = np.minimum(r, np.log(21 / (1 - 20 * shape)) if 20 * shape < 1 else 100)
        inner = np.exp(bent) if shape == 0 else (1 + 1 / shape) * np.log1p(shape * np.exp(bent))
        least = 1 if shape == 0 else (1 + 1 / shape) * np.log1p(shape)
        line = min(1 / max(shape, 1e-9), 20) * (r - bent)
        return np.mean(inner - bent - least + line) + 1e-3 * point[:-1] @ point[:-1]

    best = minimize(F, np.zeros(Phi.shape[1]), method="BFGS", options={"gtol": 1e-7}).fun
    assert model.objective_[0] == pytest.approx(best, rel=2e-6)


def test_levels_go_on_without_a_jump(heavy):
    model, X, _ = heavy
    levels = [1e-4, 0.01, 0.1 - 1e-9, 0.1, 0.5, 0.9, 0.9 + 1e-9, 0.99, 0.999, 0.9999]
    curves = model.predict(X, quantiles=levels)
    assert np.all(np.diff(curves, axis=1) >= 0)
    np.testing.assert_array_equal(curves[:, [3, 4, 5]], model.predict(X))
    np.testing.assert_allclose(curves[:, [2, 6]], curves[:, [3, 5]], rtol=1e-6)
    for k in (0, 1, 7, 8, 9):
        np.testing.assert_allclose(model.predict_cdf(X, curves[:, k]), levels[k], rtol=1e-9)
    without = KernelQuantileRegressor(LEVELS, **QUICK).fit(X, heavy[2])
    np.testing.assert_array_equal(without.predict(X), model.predict(X))
    assert model.predict_interval(X, 0.998).shape == (len(X), 2)


def test_samples_and_expected_shortfall_have_the_tail(heavy):
    model, X, _ = heavy
    some = X[:3]
    samples = model.sample(some, 200_000, rng=0)
    assert np.all(samples.max(axis=1) > model.predict(some, quantiles=0.9999))
    for level in (0.999, 0.002):
        at = model.predict(some, quantiles=level)
        np.testing.assert_allclose(np.mean(samples <= at[:, None], axis=1), level, atol=3e-4)
    for level in (0.7, 0.95, 0.3, 0.02):
        at, sign = model.predict(some, quantiles=level), 1 if level >= 0.5 else -1
        beyond = sign * samples >= sign * at[:, None]
        means = np.sum(samples, axis=1, where=beyond) / beyond.sum(axis=1)
        np.testing.assert_allclose(model.predict_expected_shortfall(some, level), means, rtol=0.05)


def test_the_mean_beyond_a_level_is_the_integral_of_quantiles(heavy):
    model, X, _ = heavy
    t = (np.arange(100_000) + 0.5) / 100_000
    for level in (0.6, 0.9, 0.97):
        quantiles = model.predict(X[:2], quantiles=level + (1 - level) * t)
        np.testing.assert_allclose(model.predict_expected_shortfall(X[:2], level), quantiles.mean(axis=1), rtol=2e-3)


def test_the_scale_follows_x_and_a_constant_one_loses(heavy):
    """Negative control: the same exceedances, one scale for all rows."""
    model, X, y = heavy
    new, law = np.linspace(0.02, 0.98, 200)[:, None], stats.t(3)
    truth = true_quantile(law, new, 0.999)
    curve = model.predict(X, quantiles=0.9)
    shape, _, scale = stats.genpareto.fit((y - curve)[y > curve], floc=0)
    naive = model.predict(new, quantiles=0.9) + scale * ((0.1 / 0.001) ** shape - 1) / shape
    error, naive_error = (np.mean(np.abs(np.log(one / truth))) for one in (model.predict(new, quantiles=0.999), naive))
    assert error < 0.3
    assert naive_error > 1.5 * error


@pytest.mark.parametrize(
    ("law", "kind"),
    [(stats.t(2), "heavy"), (stats.expon(), "light"), (stats.beta(1, 2), "bounded")],
)
def test_the_kind_of_tail_is_recognised(law, kind):
    X, y = make(law, n=2000, seed=3)
    model = pareto(X, y, quantiles=[0.5, 0.9])
    found = model.upper_tail_.kind
    assert found == kind or (kind, found) == ("light", "undetermined")
    assert f"{found} tail" in str(model.upper_tail_)
    assert model.lower_tail_ is None
    error = np.abs(model.predict(X, quantiles=0.999) - true_quantile(law, X, 0.999))
    assert np.mean(error) < {"heavy": 0.5, "light": 0.2, "bounded": 0.1}[kind] * np.mean(
        np.abs(true_quantile(law, X, 0.999))
    )


def test_intervals_of_the_shape_hold_and_light_tails_are_rarely_called_heavy():
    """5 % on either side, of 150 exponential samples of 60: a binomial count of 14 has a probability of 1 %."""
    rng, n = np.random.default_rng(6), 60
    rows = tail_fit.Exceedances(np.zeros((n, 1)), np.zeros(n), np.full(n, 1 / n))
    low, high = np.array([tail_fit._fit_shape(np.log(rng.exponential(size=n)), rows)[1] for _ in range(150)]).T
    assert np.sum(low > 0) < 14
    assert np.sum(high < 0) < 14
    assert np.sum(low > 0) + np.sum(high < 0) > 3, "nor are they far too wide"


@pytest.mark.parametrize(
    ("interval", "kind"),
    [((0.01, 0.5), "heavy"), ((-0.5, -0.21), "bounded"), ((-0.2, 0.1), "light"), ((-0.2, 0.3), "undetermined")],
)
def test_kinds_follow_the_interval_of_the_shape(interval, kind):
    assert tails.ParetoTail(0.9, 0.0, interval, 0.5, 100, 0.0).kind == kind


def test_units_and_sign_of_y_and_order_of_rows_do_not_matter(heavy):
    model, X, y = heavy
    levels, shuffled = np.array([0.001, 0.999]), np.random.default_rng(0).permutation(len(y))
    mirrored = pareto(X[shuffled], 5 - 1e3 * y[shuffled]).predict(X, quantiles=1 - levels)
    np.testing.assert_allclose((5 - mirrored) / 1e3, model.predict(X, quantiles=levels), rtol=1e-2)


def test_the_test_of_a_constant_shape_sees_a_shape_that_varies():
    rng = np.random.default_rng(5)
    X = rng.random((4000, 1))
    shape = np.where(X[:, 0] < 0.5, -0.4, 0.6)
    z = ((1 - rng.random(4000)) ** -shape - 1) / shape
    rows = tail_fit.Exceedances.from_rows(X, z, np.full(4000, 1 / 4000))
    fitted, _ = tail_fit._fit_shape(rows.log_excess, rows)
    log_scale = GeneralizedPareto(fitted).fit_constant(rows.log_excess, rows.share)[0]
    assert tail_fit._test_constant_shape(rows, rows.log_excess - log_scale, fitted) < 1e-3
    p_values = []
    for _ in range(40):
        z = stats.genpareto(0.2).rvs(200, random_state=rng)
        rows = tail_fit.Exceedances.from_rows(rng.random((200, 2)), z, np.full(200, 1 / 200))
        log_scale = GeneralizedPareto(0.2).fit_constant(rows.log_excess, rows.share)[0]
        p_values.append(tail_fit._test_constant_shape(rows, rows.log_excess - log_scale, 0.2))
    assert np.mean(np.array(p_values) < 0.1) < 0.25
    assert np.mean(p_values) > 0.35


def test_the_shape_is_that_of_maximum_likelihood():
    """With many exceedances the penalty is nothing: SciPy's estimate."""
    z = stats.genpareto(0.3, scale=2.0).rvs(3000, random_state=np.random.default_rng(2))
    rows = tail_fit.Exceedances.from_rows(np.zeros((3000, 1)), z, np.full(3000, 1 / 3000))
    assert tail_fit._fit_shape(rows.log_excess, rows)[0] == pytest.approx(stats.genpareto.fit(z, floc=0)[0], abs=0.02)
    few = tail_fit.Exceedances.from_rows(np.zeros((60, 1)), z[:60], np.full(60, 1 / 60))
    assert abs(tail_fit._fit_shape(few.log_excess, few)[0]) < abs(stats.genpareto.fit(z[:60], floc=0)[0]), "toward 0"


def test_a_scale_without_x_is_the_peaks_over_threshold_of_pyextremes():
    models = pytest.importorskip("pyextremes.models")
    pandas = pytest.importorskip("pandas")
    z = stats.genpareto(0.3, scale=2.0).rvs(3000, random_state=np.random.default_rng(4))
    known = models.get_model(
        "MLE", pandas.Series(z, pandas.date_range("2000", periods=3000)), "genpareto", {"floc": 0.0}
    )
    rows = tail_fit.Exceedances.from_rows(np.zeros((3000, 1)), z, np.full(3000, 1 / 3000))
    shape, _ = tail_fit._fit_shape(rows.log_excess, rows)
    scale = np.exp(GeneralizedPareto(shape).fit_constant(rows.log_excess, rows.share))
    ours = ParetoLaw(1.0, 0.1, scale, shape).distance(np.array([0.01, 0.001]))[0]
    theirs = [known.get_return_value(probability, alpha=None)[0] for probability in (0.1, 0.01)]
    np.testing.assert_allclose(ours, theirs, rtol=0.02)


@pytest.mark.parametrize(
    ("n", "levels", "given", "expected"),
    [
        (1000, [0.1, 0.5, 0.9], None, (0.1, 0.9)),
        (1000, [0.5, 0.8, 0.9, 0.95], None, (None, 0.8)),  # 200 exceedances
        (4000, [0.5, 0.8, 0.9, 0.95], None, (None, 0.95)),
        (4000, [0.05, 0.8, 0.9, 0.95], 0.9, (None, 0.9)),
        (2000, [0.01, 0.5, 0.95], None, (None, 0.95)),
    ],
)
def test_choice_of_the_level(n, levels, given, expected):
    lower, upper = tails.choose_tail_levels(np.array(levels), n, given)
    assert (lower is None, upper is None) == (expected[0] is None, expected[1] is None)
    np.testing.assert_allclose([lower or 0, upper or 0], [expected[0] or 0, expected[1] or 0])


def test_fitted_levels_beyond_the_tail_level_are_the_tails(heavy, tmp_path):
    _, X, y = heavy
    model = pareto(X, y, quantiles=[0.98, 0.5, 0.9], tail_level=0.9)
    np.testing.assert_allclose(model.predict(X)[:, 0], model.predict(X, quantiles=0.98))
    assert model.upper_tail_.level == 0.9
    with pytest.raises(ValueError, match="predicted by the tail"):
        quernel.to_onnx(model, tmp_path / "m.onnx")


def test_what_cannot_be_fitted_is_refused(heavy, tmp_path):
    _, X, y = heavy
    with pytest.raises(
        ValueError, match=r"400 rows have about 40 beyond the level 0\.9, for which 500 rows are needed"
    ):
        pareto(X[:400], y[:400])
    with pytest.raises(ValueError, match=r"at least 0\.8, .* got quantiles=\[0\.5\]"):
        pareto(X, y, quantiles=0.5)
    with pytest.raises(ValueError, match=r"a fitted quantile level of 0\.95"):
        pareto(X, y, tail_level=0.95)
    with pytest.raises(ValueError, match="tail_level must be"):
        pareto(X, y, tail_level=0.3)
    with pytest.raises(ValueError, match="Unknown tails 'normal'"):
        KernelQuantileRegressor(tails="normal").fit(X, y)
    with pytest.raises(ValueError, match="the other rows being at or inside"):
        pareto(X, np.minimum(y, -5.0))
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "y.npy", y)
    with pytest.raises(ValueError, match="tails='pareto'"):
        KernelQuantileRegressor(LEVELS, tails="pareto", max_memory=1000, **QUICK).fit(
            MemmapRows(tmp_path / "X.npy", tmp_path / "y.npy")
        )
    without = KernelQuantileRegressor(LEVELS, **QUICK).fit(X, y)
    with pytest.raises(ValueError, match="fit with tails='pareto'"):
        without.predict_expected_shortfall(X)
    with pytest.raises(ValueError, match=r"or with tails='pareto'"):
        without.predict(X, quantiles=0.95)
    with pytest.raises(ValueError, match=r"Shapes \(lower\) cannot be combined with tails"):
        pareto(X, y, lower=-1e3)


def test_a_search_has_tails_too(heavy):
    _, X, y = heavy
    search = KernelQuantileRegressorCV(
        [0.5, 0.9], alphas=[1e-3, 1e-2], bandwidths=[0.4], n_components=30, cv=2, tails="pareto", random_state=0
    ).fit(X, y)
    assert np.all(search.predict(X, quantiles=0.999) > search.predict(X, quantiles=0.9))
    assert search.lower_tail_ is None
    with pytest.raises(ValueError, match="none was fitted on that side"):
        search.predict_expected_shortfall(X, 0.05)


def test_tails_are_saved(heavy, tmp_path):
    model, X, _ = heavy
    smooth = tail_fit._scale_model("gaussian", GeneralizedPareto(0.2), 1e-2, 1e-6).fit(X, np.sin(X[:, 0]))
    model = copy(model)
    model.upper_tail_ = tails.replace(model.upper_tail_, log_scale_model=smooth)
    quernel.save(model, tmp_path / "m.quernel")
    loaded = quernel.load(tmp_path / "m.quernel")
    np.testing.assert_array_equal(
        loaded.predict(X, quantiles=[0.001, 0.999]), model.predict(X, quantiles=[0.001, 0.999])
    )
    with pytest.raises(ValueError, match="a tail has level"):
        tails.replace(model.upper_tail_, shape=1.5)
    with pytest.raises(ValueError, match="a tail is of 1 columns, not 2"):
        model.upper_tail_.law(np.zeros((2, 2)), QuantileFunction(np.array([0.5, 0.9]), np.array([[0.0, 1.0]] * 2)))


def test_crps_is_lower_with_tails(heavy):
    model, X, y = heavy
    new, target = make(stats.t(3), seed=9)
    without = KernelQuantileRegressor(LEVELS, **QUICK).fit(X, y)
    assert model.crps(new, target) < without.crps(new, target)


SMALL = {"n_trees": 20, "n_components": 100, "random_state": 0}


@pytest.fixture(scope="module")
def tabular():
    X, y = make(stats.t(3), n=800)
    return (*(TabularQuantileRegressor(tails=one, **SMALL).fit(X, y) for one in ("pareto", None)), X, y)


def test_tables_have_tails_beyond_what_residuals_give(tabular):
    """Negative control: without tails the 0.9999 quantile is that of the largest residuals of 800 rows."""
    model, without, X, _ = tabular
    levels = np.array([1e-4, 0.001, 0.1, 0.2, 0.5, 0.8, 0.9, 0.999, 0.9999])
    curves = model.predict(X, levels)
    np.testing.assert_array_equal(curves[:, 3:6], without.predict(X, levels[3:6]))
    assert np.all(np.diff(curves, axis=1) > 0)
    for k in (0, 1, 2, 6, 7, 8):
        np.testing.assert_allclose(model.predict_cdf(X, curves[:, k]), levels[k], rtol=1e-9)
    truth = true_quantile(stats.t(3), X, 0.9999)
    errors = [np.mean(np.abs(one.predict(X, 0.9999) - truth)) / truth.mean() for one in (model, without)]
    assert errors[0] < 0.3
    assert errors[1] > 1.3 * errors[0]
    assert model.sample(X[:2], 100_000, rng=0).max() > 1.5 * without.sample(X[:2], 100_000, rng=0).max()


def test_tails_of_tables_are_in_means_scores_texts_and_files(tabular, tmp_path):
    model, without, X, y = tabular
    t = (np.arange(20_000) + 0.5) / 20_000
    for level in (0.7, 0.99):
        mean = model.predict(X[:2], level + (1 - level) * t).mean(axis=1)
        np.testing.assert_allclose(model.predict_expected_shortfall(X[:2], level), mean, rtol=0.01)
    with pytest.raises(ValueError, match="fit with tails='pareto'"):
        without.predict_expected_shortfall(X)
    assert str(model.upper_tail_) in str(model)
    assert "tail" not in str(without)
    assert model.crps(*make(stats.t(3), seed=8)) <= 1.001 * without.crps(*make(stats.t(3), seed=8))
    quernel.save(model, tmp_path / "m.quernel")
    loaded, levels = quernel.load(tmp_path / "m.quernel"), [0.0001, 0.5, 0.9999]
    np.testing.assert_array_equal(loaded.predict(X, levels), model.predict(X, levels))
    shallow = TabularQuantileRegressor(tails="pareto", tail_level=0.85, parts=["kernel"], **SMALL).fit(X, y)
    assert (shallow.lower_tail_.level, shallow.upper_tail_.level) == (0.15, 0.85)
    with pytest.raises(ValueError, match=r"200 rows have about 40 beyond the level 0\.8, for which 250 .* Leave tails"):
        TabularQuantileRegressor(tails="pareto").fit(X[:200], y[:200])
    with pytest.raises(ValueError, match="tail_level must be"):
        TabularQuantileRegressor(tails="pareto", tail_level=0.3).fit(X, y)


def test_a_time_limit_ends_the_fit_of_tails(heavy, monkeypatch):
    _, X, y = heavy
    with pytest.warns(ConvergenceWarning) as caught:
        model = pareto(X, y, max_seconds=1e-3)
    assert any("The fit of the tails was stopped by the time limit" in str(one.message) for one in caught)
    assert model.upper_tail_.log_scale_model is None
    assert np.all(np.diff(model.predict(X, quantiles=[0.001, 0.5, 0.999])) > 0)
    monkeypatch.setattr(tail_fit, "_scale_model", None)  # called by nobody
    monkeypatch.setattr(tail_fit, "_predict_out_of_fold", lambda *_: None)
    with stopping(1e-9):
        tail_fit.fit_tails(ArrayRows(X, y), np.array([0.5, 0.9]), np.c_[y * 0, y * 0 + 2], (None, 0.9), None, 1e-6)


def test_values_that_are_not_continuous_have_no_tail(heavy):
    _, X, y = heavy
    with pytest.raises(ValueError, match="y has 6 different values"):
        pareto(X, np.clip(np.round(y), 3, 8))
    counts = np.random.default_rng(0).poisson(5.0, len(y)).astype(float)
    with pytest.raises(ValueError, match=r"values of y beyond the level 0\.1 are .*; .* beyond the level 0\.9 are"):
        pareto(X, counts)
    censored = np.minimum(y, np.quantile(y, 0.95))
    with pytest.warns(UserWarning, match=r"no upper tail: \d+ of \d+ values of y beyond the level 0\.9"):
        model = pareto(X, censored)
    assert model.upper_tail_ is None
    assert model.predict(X, quantiles=0.001).max() < model.predict(X, quantiles=0.1).max()
    with pytest.raises(ValueError, match=r"Level 0\.95 is outside"):
        model.predict(X, quantiles=0.95)
    rows, copies = ArrayRows(X, y), ArrayRows(np.repeat(X, 9, axis=0), np.repeat(y, 9))
    for one in (rows, copies):
        curves = np.tile(np.quantile(one.y, [0.5, 0.9]), (one.n_rows, 1))
        tail_fit._find_exceedances(one, np.array([0.5, 0.9]), curves, 0.9, 0.5)  # copies of a row are no ties
