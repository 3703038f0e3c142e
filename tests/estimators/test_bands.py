"""Confidence bands and tests of quantile curves: laws, an explicit sandwich, simulations with negative controls."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import quernel
from quernel import KernelQuantileRegressor
from quernel.data import ArrayRows, MemmapRows
from quernel.estimators.inference import (
    OPTIONS,
    Curve,
    TrainingFeatures,
    _Level,
    confidence_bounds,
    density_at_zero,
    smooth_spread,
)

LEVELS = np.array([0.25, 0.5, 0.9])
KWARGS = {"kernel": "gaussian", "bandwidth": 1.5, "n_components": 40, "alpha": 2e-4, "inference": True}


def simulate(n, seed, shift=0.0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(0, 10, (n, 2))
    return X, np.sin(X[:, 0]) + shift + (0.3 + 0.05 * X[:, 0]) * rng.standard_normal(n)


def fit_model(X, y, levels=LEVELS, weight=None, kind=KernelQuantileRegressor, **kwargs):
    return kind(levels, random_state=0, **KWARGS | kwargs).fit(X, y, weight)


@pytest.fixture(scope="module")
def fitted():
    X, y = simulate(400, 1)
    return X, y, fit_model(X, y)


class Kept(KernelQuantileRegressor):
    """Keeps what its inference is computed from, so that it can be computed with other options."""

    def _estimate_inference(self, *fitted, **kwargs):
        self.fitted = fitted
        return super()._estimate_inference(*fitted, **kwargs)

    def estimate(self, **options):
        return super()._estimate_inference(*self.fitted, options=replace(OPTIONS, **options))


def levels_of(model, X, y):
    """The intermediate values of each curve, with the density."""
    features, result = TrainingFeatures(model.feature_map_, X, np.full(len(y), 1 / len(y))), model.fitted[3].result
    residual = y[:, None] - features.predict(model.coef_) - model.intercept_
    spread = smooth_spread(features, residual)
    for k, tau in enumerate(LEVELS):
        curve = Curve(float(tau), model.coef_[:, k], residual[:, k], result.dual[:, k], spread[:, k])
        yield _Level(features, curve, model.alpha_, model.fit_intercept, OPTIONS)


@pytest.mark.parametrize("fit_intercept", [True, False])
def test_centre_and_covariance_are_those_of_the_formulas(fitted, fit_intercept):
    """Against dense matrices: theta_K = (I + A + ... + A^K) theta and the sandwich (..) H^-1 Cov(S) H^-1 (..)'."""
    X, y, _ = fitted
    model = fit_model(X, y, fit_intercept=fit_intercept, kind=Kept, recalibrate=False)
    Phi, n = model.feature_map_.transform(X), len(y)
    for k, level in enumerate(levels_of(model, X, y)):
        tau, density = LEVELS[k], level.density / level.curve.spread
        Psi = np.column_stack([Phi, np.ones(n)]) if fit_intercept else Phi
        D = np.diag(np.r_[np.ones(Phi.shape[1]), np.zeros(int(fit_intercept))])
        H = (Psi * density[:, None]).T @ Psi / n + 2 * model.alpha_ * D
        A = 2 * model.alpha_ * np.linalg.solve(H, D)
        total = sum(np.linalg.matrix_power(A, j) for j in range(OPTIONS.corrections + 1))
        theta = np.r_[model.coef_[:, k], model.intercept_[k]][: Psi.shape[1]]
        step = Psi @ total @ np.linalg.inv(H)
        covariance = tau * (1 - tau) * step @ (Psi.T @ Psi / n**2) @ step.T
        P = model.inference_.deviations(Phi, k)
        size = np.abs(covariance).max()
        np.testing.assert_allclose(P @ P.T, covariance, atol=2e-3 * size)
        np.testing.assert_allclose(model.inference_.centre(Phi)[:, k], Psi @ total @ theta, atol=2e-3 * np.sqrt(size))


def test_degrees_of_freedom_follow_from_how_errors_depend_on_the_density(fitted):
    """1 / (2 e^2 v), with e the slope of the log of the mean error on that of the density, by differences."""
    X, y, _ = fitted
    model = fit_model(X, y, kind=Kept, recalibrate=False)
    for k, level in enumerate(levels_of(model, X, y)):
        assert level.degrees() == pytest.approx(model.inference_.degrees[k])
        variance, degrees, density, logs = level.density_variance, level.degrees(), level.density, []
        for factor in (0.99, 1.01):
            level.density = factor * density
            corrected = level._filters()[1]
            logs.append(0.5 * np.log(corrected @ corrected + 1) - np.log(level.density))
        slope = -np.diff(logs)[0] / np.log(1.01 / 0.99)
        assert 0.3 < slope < 0.99  # a fit with shrinkage: between no dependence and 1 / c
        assert degrees == pytest.approx(1 / (2 * slope**2 * variance), rel=1e-3)


def test_band_moves_and_stretches_with_y(fitted):
    X, y, model = fitted
    other = fit_model(X, 1000 + 50 * y, alpha=KWARGS["alpha"] / 50)
    moved, band = (m.predict_band(X, simultaneous=False) for m in (other, model))
    np.testing.assert_allclose(moved, 1000 + 50 * band, atol=0.05)  # of widths around 60


def test_band_ignores_the_unit_of_weights_and_rows_of_weight_zero(fitted):
    X, y, model = fitted
    sevenfold = fit_model(X, y, weight=np.full(len(y), 7.0)).predict_band(X, simultaneous=False)
    np.testing.assert_allclose(sevenfold, model.predict_band(X, simultaneous=False), atol=1e-3)
    weight = np.r_[np.ones(300), np.zeros(100)]
    half = fit_model(X[:300], y[:300]).predict_band(X)
    np.testing.assert_allclose(fit_model(X, y, weight=weight).predict_band(X), half, rtol=1e-6)


def test_a_row_of_weight_two_is_one_observation(fitted):
    """Doubling a third of the weights widens the band by 6 % (Kish); a third of the rows twice would narrow it."""
    X, y, model = fitted
    weights = [np.where(np.arange(len(y)) % 3 == k, 2.0, 1.0) for k in range(3)]
    models = [model, *(fit_model(X, y, weight=weight) for weight in weights)]
    same, *widths = (np.ptp(m.predict_band(X, simultaneous=False), axis=2).mean() for m in models)
    assert 1 < np.mean(widths) / same < 1.15


def test_shapes_order_and_nesting(fitted):
    X, y, model = fitted
    each, every = (model.predict_band(X, simultaneous=both) for both in (False, True))
    assert each.shape == (400, 3, 2)
    assert np.all(every[..., 0] < each[..., 0])
    assert np.all(each[..., 1] < every[..., 1])
    assert np.all(np.diff(every, axis=1) >= 0)  # sorted by level
    assert np.all(np.ptp(model.predict_band(X, 0.8), axis=2) < np.ptp(every, axis=2))
    one = model.predict_band(X[:1]) - model.predict_band(X[:1], simultaneous=False)
    assert np.abs(one).max() < 0.1 * np.ptp(each[:1], axis=2).max()  # a single row: the same but for its draws
    single = fit_model(X, y, 0.5)
    assert single.predict_band(X).shape == (400, 2)
    np.testing.assert_array_equal(single.predict_band(X), single.predict_band(X))


def test_more_rows_give_a_narrower_band():
    widths = [np.ptp(fit_model(*simulate(n, 3)).predict_band(simulate(50, 0)[0]), axis=2).mean() for n in (300, 1200)]
    assert widths[1] < 0.7 * widths[0]


@pytest.mark.parametrize("at", [0.0, 1.28])
@pytest.mark.parametrize("error", [0.0, 0.1])
def test_density_at_zero_of_normal_numbers(at, error):
    """Unbiased at the peak and on the slope, as a plain kernel estimate is not; errors of the values are undone."""
    truth, n = np.exp(-0.5 * at**2) / np.sqrt(2 * np.pi), 500
    rng = np.random.default_rng(0)
    values = rng.standard_normal((400, n)) - at + np.sqrt(error) * rng.standard_normal((400, n))
    found, variance = np.transpose([density_at_zero(some, np.full(n, 1 / n), np.full(n, error)) for some in values])
    assert np.mean(found) == pytest.approx(truth, rel=0.015)
    assert 0.6 < np.var(found) / truth**2 / np.mean(variance) < 1.2
    if error:
        ignored = [density_at_zero(some, np.full(n, 1 / n))[0] for some in values]
        assert np.mean(ignored) != pytest.approx(truth, rel=0.02)  # negative control


def test_density_of_values_with_huge_errors_stays_near_that_without():
    values = np.random.default_rng(0).standard_normal(100)
    plain, corrected = (density_at_zero(values, np.full(100, 0.01), error)[0] for error in (0.0, 1e6))
    assert 0.2 * plain < corrected < 5 * plain


def test_stored_and_recomputed_features_agree(fitted, monkeypatch):
    X, y, _ = fitted
    model = fit_model(X, y, kind=Kept)
    monkeypatch.setattr("quernel.estimators.inference.OPTIONS", replace(OPTIONS, cached_entries=0))
    np.testing.assert_allclose(model.estimate().coef, model.inference_.coef, rtol=1e-12)


def test_bands_cover_and_uncorrected_ones_do_not():
    """A fit with much shrinkage: 40 repetitions, points covered in the mean, and all of them at once."""
    options = {"band": {}, "none": {"corrections": 0}, "naive": {"rounds": 0}}
    points = np.column_stack([np.linspace(0.5, 9.5, 40), np.full(40, 5.0)])
    truth = np.sin(points[:, :1])
    each, every = ({name: [] for name in options} for _ in range(2))
    for seed in range(40):
        X, y = simulate(400, 100 + seed)
        model = fit_model(X, y, [0.5], kind=Kept, recalibrate=False, n_components=60, alpha=3e-3)
        for name, option in options.items():
            fit = model.estimate(**option)
            Phi = model.feature_map_.transform(points)
            for both, kept in ((False, each), (True, every)):
                low, high = np.moveaxis(confidence_bounds(fit, Phi, 0.95, simultaneous=both), 2, 0)
                kept[name].append(np.mean((low < truth) & (truth < high)))
    mean = {name: np.mean(values) for name, values in each.items()}
    whole = {name: np.mean(np.array(values) == 1) for name, values in every.items()}
    assert 0.91 < mean["band"] < 0.985
    assert whole["band"] >= 0.85
    assert mean["none"] < 0.8  # negative control: shrinkage left in
    assert whole["none"] < 0.3
    assert mean["naive"] < mean["band"]  # negative control: residuals of the rows that were fitted


def test_tests_keep_their_size_and_have_power():
    irrelevant, relevant, equal, different = [], [], [], []
    for seed in range(16):
        model, other, shifted = (
            fit_model(*simulate(300, 1000 * k + seed, shift), [0.5], recalibrate=False)
            for k, shift in enumerate((0.0, 0.0, 0.6))
        )
        grid = simulate(40, 0)[0]
        irrelevant.append(model.test_column(grid, 1).pvalue[0])
        relevant.append(model.test_column(grid, 0).pvalue[0])
        equal.append(model.test_equal(other, grid).pvalue[0])
        different.append(model.test_equal(shifted, grid).pvalue[0])
    # With the nominal size of 5 %, four or more rejections of 16 have a probability of 0.7 %.
    assert np.sum(np.array(irrelevant) < 0.05) <= 3
    assert np.sum(np.array(equal) < 0.05) <= 3
    assert np.median(irrelevant) > 0.15
    assert np.mean(np.array(relevant) < 0.05) == 1
    assert np.mean(np.array(different) < 0.05) > 0.9


def test_a_model_against_itself_is_equal(fitted):
    X, _, model = fitted
    found = model.test_equal(model, X[:20])
    np.testing.assert_array_equal(found.pvalue, 1)
    assert str(found).count("p = 1.0000") == 3


@pytest.mark.parametrize("sampling", ["uniform", "landmarks"])
def test_saved_models_have_the_same_band(fitted, tmp_path, sampling):
    X, y, _ = fitted
    model = fit_model(X, y, sampling=sampling)
    quernel.save(model, tmp_path / "m.quernel")
    loaded = quernel.load(tmp_path / "m.quernel")
    np.testing.assert_allclose(loaded.predict_band(X), model.predict_band(X), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(loaded.test_column(X, 0).pvalue, model.test_column(X, 0).pvalue, atol=2e-3)


def test_mixed_frames_and_column_names():
    X, y = simulate(300, 5)
    frame = pd.DataFrame({"size": X[:, 0], "kind": np.where(X[:, 1] > 5, "a", "b")}, index=range(10, 310))
    model = fit_model(frame, y + 2 * (X[:, 1] > 5), [0.5, 0.9], bandwidth="auto")
    band = model.predict_band(frame, as_frame=True)
    assert list(band.columns) == ["q0.5_lower", "q0.5_upper", "q0.9_lower", "q0.9_upper"]
    assert list(band.index) == list(frame.index)
    np.testing.assert_array_equal(band.to_numpy().reshape(300, 2, 2), model.predict_band(frame))
    assert model.test_column(frame, "kind").pvalue.max() < 0.01
    np.testing.assert_array_equal(model.test_column(frame, "kind").pvalue, model.test_column(frame, 1).pvalue)
    for column in ("age", 2, 0.5, True, [0]):
        with pytest.raises(ValueError, match="one of size, kind"):
            model.test_column(frame, column)
    for ask in (model.predict_band, lambda X: model.test_column(X, "kind"), lambda X: model.test_equal(model, X)):
        with pytest.raises(ValueError, match="at least one row"):
            ask(frame[:0])


def test_other_feature_maps():
    X, y = simulate(200, 6)
    for kwargs in ({"n_components": "exact"}, {"kernel": "linear", "bandwidth": "auto"}, {"dtype": "float32"}):
        band = fit_model(X, y, **kwargs).predict_band(X)
        assert np.all(np.ptp(band, axis=2) > 0)


def test_default_fits_store_nothing(fitted):
    X, y, _ = fitted
    model = fit_model(X, y, inference=False)
    assert model.inference_ is None
    with pytest.raises(ValueError, match="inference=True"):
        model.predict_band(X)
    with pytest.raises(ValueError, match="inference=True"):
        model.test_column(X, 0)


def test_what_cannot_be_had_is_refused(fitted, tmp_path):
    X, y, model = fitted
    with pytest.raises(ValueError, match="fitted one by one"):
        fit_model(X, y, noncrossing="joint")
    with pytest.raises(ValueError, match="cannot be combined with inference=True"):
        fit_model(X, y, 0.5, monotone={0: 1})
    with pytest.raises(ValueError, match="rows share the value -2"):
        fit_model(X, np.round(y))
    with pytest.raises(ValueError, match="nearly all of the 25 rows"):  # the band had no width
        fit_model(X[:25], y[:25], 0.5, n_components=200, alpha="auto", bandwidth="auto")
    with pytest.raises(ValueError, match="inference must be True or False"):
        fit_model(X, y, inference="yes")
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "y.npy", y)
    with pytest.raises(ValueError, match="rows in memory"):
        fit_model(MemmapRows(tmp_path / "X.npy", tmp_path / "y.npy"), None, max_memory=1)
    with pytest.raises(ValueError, match="arrays or data frames; got ArrayRows"):
        model.predict_band(ArrayRows(X, y))
    with pytest.raises(ValueError, match="level must"):
        model.predict_band(X, 95)
    with pytest.raises(ValueError, match="same ones"):
        model.test_equal(fit_model(X, y, 0.5), X)
    with pytest.raises(ValueError, match="got ndarray"):
        model.test_equal(X, X)
