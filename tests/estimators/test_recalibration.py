"""Levels that hold on new rows: shifts from leave-one-out residuals, and alphas that do not depend on the unit of y."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from quernel import KernelQuantileRegressor, KernelQuantileRegressorCV, KernelRegressor
from quernel.kernels import ArcCosine, Gaussian

LEVELS = [0.05, 0.1, 0.5, 0.9, 0.95]
PLAIN = {"bandwidth": "auto", "random_state": 0}


def wave(n: int, d: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    return X, np.sin(2 * X[:, 0]) + (0.3 + 0.2 * np.abs(X[:, 0])) * rng.standard_normal(n)


def coverages(recalibrate: bool, n: int, d: int, repetitions: int) -> np.ndarray:
    """Shares of new rows inside the 80 and 90 % intervals."""
    shares = []
    for seed in range(repetitions):
        X, y = wave(n + 1000, d, seed)
        model = KernelQuantileRegressor(LEVELS, recalibrate=recalibrate, **PLAIN).fit(X[:n], y[:n])
        curves = model.predict(X[n:])
        shares.append([np.mean((curves[:, k] <= y[n:]) & (y[n:] <= curves[:, -1 - k])) for k in (1, 0)])
    return np.mean(shares, axis=0)


def test_intervals_of_small_tables_hold_and_did_not_without():
    np.testing.assert_allclose(coverages(True, 100, 5, 12), [0.8, 0.9], atol=0.03)
    assert np.all(coverages(False, 100, 5, 5) < [0.73, 0.84])


def test_the_shift_is_about_that_of_refits_without_each_row():
    n, alpha, levels = 60, 3e-3, np.array([0.1, 0.5, 0.9])
    X, y = wave(n, 8, seed=1)
    settings = {"kernel": Gaussian(2.0), "n_components": "exact"}
    model = KernelQuantileRegressor(levels, alpha=alpha, **settings).fit(X, y)
    # The penalty of a sum over the rows stays the same.
    refit = KernelQuantileRegressor(levels, alpha=alpha * n / (n - 1), recalibrate=False, **settings)
    rest = [np.delete(np.arange(n), i) for i in range(n)]
    residuals = np.array([y[i] - refit.fit(X[kept], y[kept]).predict(X[[i]])[0] for i, kept in enumerate(rest)])
    expected = [np.quantile(one, level, method="weibull") for one, level in zip(residuals.T, levels, strict=True)]
    assert np.abs(model.level_shift_ - expected).sum() < 0.1 * np.abs(expected).sum()
    held = np.mean(residuals <= model.level_shift_, axis=0)
    np.testing.assert_allclose(held, levels, atol=0.03)
    assert np.abs(np.mean(residuals <= 0, axis=0) - levels).max() > 0.06  # without the shift


def test_the_optimum_is_not_touched():
    X, y = wave(80, 3)
    shifted = KernelQuantileRegressor([0.1, 0.9], **PLAIN).fit(X, y)
    plain = clone(shifted).set_params(recalibrate=False).fit(X, y)
    for name in ("coef_", "intercept_", "objective_", "duality_gap_"):
        np.testing.assert_array_equal(getattr(shifted, name), getattr(plain, name))
    assert not plain.level_shift_.any()
    assert shifted.level_shift_[0] < 0 < shifted.level_shift_[1]
    np.testing.assert_allclose(shifted.predict(X), np.sort(plain.predict(X) + shifted.level_shift_, axis=1), rtol=1e-12)


def test_shifted_levels_do_not_cross():
    X, y = wave(60, 4)
    model = KernelQuantileRegressor(np.linspace(0.05, 0.95, 19), **PLAIN).fit(X, y)
    assert model.level_shift_.any()
    assert np.all(np.diff(model.predict(3 * wave(500, 4, 1)[0]), axis=1) >= 0)
    assert not KernelQuantileRegressor([0.1, 0.9], noncrossing=None, **PLAIN).fit(X, y).level_shift_.any()


def test_weights_are_repeated_rows_and_units_do_not_matter():
    X, y = wave(60, 2)
    settings = {"alpha": 1e-4, "n_components": 40, "tol": 1e-9, **PLAIN}
    times = np.random.default_rng(0).integers(1, 4, 60)
    model = KernelQuantileRegressor([0.1, 0.8], **settings)
    weighted = clone(model).fit(X, y, sample_weight=times).level_shift_
    repeated = clone(model).fit(np.repeat(X, times, axis=0), np.repeat(y, times)).level_shift_
    np.testing.assert_allclose(repeated, weighted, rtol=1e-4)
    far = clone(model).set_params(alpha=1e-7).fit(X, 1e6 + 1000 * y, sample_weight=times).level_shift_
    np.testing.assert_allclose(far, 1000 * weighted, rtol=1e-4)
    mirrored = KernelQuantileRegressor([0.9, 0.2], **settings).fit(X, -y, sample_weight=times).level_shift_
    np.testing.assert_allclose(mirrored, -weighted, rtol=1e-4)


def test_quantiles_at_a_point_mass_stay_there():
    rng = np.random.default_rng(0)
    X = rng.random((200, 1))
    y = np.where(rng.random(200) < 0.6, 0.0, rng.exponential(size=200))
    model = KernelQuantileRegressor([0.3, 0.9], **PLAIN).fit(X, y)
    assert model.level_shift_.all()
    lower, upper = model.predict(X).T
    assert np.all(lower == 0)
    assert np.all(upper > 0)


@pytest.mark.parametrize("bad", [None, "yes", 1])
def test_recalibrate_is_a_bool(bad):
    with pytest.raises(ValueError, match="recalibrate must be True or False; got"):
        KernelQuantileRegressor(recalibrate=bad).fit([[0.0], [1.0]], [0.0, 1.0])


@pytest.mark.parametrize(
    "estimator", [KernelQuantileRegressor([0.1, 0.9]), KernelRegressor("absolute")], ids=["quantile", "absolute"]
)
def test_a_relative_alpha_means_the_same_in_every_unit(estimator):
    X, y = wave(100, 2)
    settings = {"alpha": 1e-4, "n_components": 50, **PLAIN}
    relative = clone(estimator).set_params(alpha_scale="relative", **settings)
    np.testing.assert_allclose(
        clone(relative).fit(X, 1000 * y).predict(X), 1000 * relative.fit(X, y).predict(X), rtol=1e-3
    )
    absolute = clone(estimator).set_params(**settings)
    assert np.abs(clone(absolute).fit(X, 1000 * y).predict(X) - 1000 * absolute.fit(X, y).predict(X)).max() > 10


def test_a_grid_of_relative_alphas_chooses_the_same_in_every_unit():
    X, y = wave(150, 2)
    search = KernelQuantileRegressorCV(0.5, alphas=[1e-6, 1e-4, 1e-2], n_components=40, cv=3, random_state=0)
    search.set_params(alpha_scale="relative")
    small, large = clone(search).fit(X, y), clone(search).fit(X, 1000 * y)
    assert small.best_index_ == large.best_index_
    assert small.alpha_ == pytest.approx(1000 * large.alpha_)
    with pytest.raises(ValueError, match="alpha_scale"):
        search.set_params(alpha_scale="y").fit(X, y)


def test_bandwidths_are_learned_by_default_where_they_can_be():
    X, y = wave(90, 3)
    model = KernelQuantileRegressor(random_state=0).fit(X, y)
    assert model.plan_.bandwidth_choice is not None
    assert model.bandwidth_[0] < model.bandwidth_[1:].min()  # y depends on the first column only
    few = KernelQuantileRegressor(random_state=0).fit(X[:20], y[:20])
    assert "too few different rows" in few.plan_.bandwidth_reason
    for kernel, why in (("arccosine", "has none"), (Gaussian(1.0), "given"), (Gaussian() + ArcCosine(), "not learned")):
        assert why in KernelQuantileRegressor(kernel=kernel, random_state=0).fit(X, y).plan_.bandwidth_reason


def test_constant_columns_are_learned_around():
    X, y = wave(90, 2)
    X = np.column_stack([X, np.ones(90)])
    model = KernelQuantileRegressor([0.1, 0.9], random_state=0).fit(X, y)
    assert np.isfinite(model.predict(X)).all()


def test_a_fit_that_was_stopped_is_not_recalibrated():
    """Its duals are not those of the optimum, and there is no time left."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (2000, 2))
    y = np.sin(X[:, 0]) + rng.standard_normal(2000)
    settings = {"n_components": 300, "bandwidth": 0.3, "alpha": 1e-10, "random_state": 0}
    with pytest.warns(ConvergenceWarning, match="time limit"):
        model = KernelQuantileRegressor([0.1, 0.9], max_seconds=1e-3, **settings).fit(X, y)
    np.testing.assert_array_equal(model.level_shift_, 0)
    assert np.any(KernelQuantileRegressor([0.1, 0.9], **settings).fit(X, y).level_shift_ != 0)


def test_landmarks_among_the_rows_do_not_pass_for_new_rows():
    """A rough kernel on many columns: leave-one-out residuals of landmarks are larger than errors on new rows."""
    shares = []
    for seed in range(2):
        rng = np.random.default_rng(seed)
        X = rng.standard_normal((3500, 40))
        y = X[:, 0] + np.sin(2 * X[:, 1]) + rng.standard_normal(3500)
        rough = {"kernel": "laplacian", "bandwidth": 10.0, "sampling": "landmarks", "n_components": 600, "alpha": 5e-5}
        model = KernelQuantileRegressor([0.25, 0.75], **rough, random_state=0).fit(X[:1500], y[:1500])
        low, high = model.predict(X[1500:]).T
        shares.append(np.mean((low <= y[1500:]) & (y[1500:] <= high)))
    assert abs(np.mean(shares) - 0.5) < 0.05
