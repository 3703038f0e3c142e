"""Coverage under drift: adaptive calibration holds it, split conformal prediction does not (the negative control)."""

import numpy as np
import pytest
from sklearn.frozen import FrozenEstimator

from quernel import ConformalQuantileRegressor, KernelQuantileRegressor
from quernel.forecasting import AdaptiveCalibrator, AdaptiveConformalRegressor
from quernel.forecasting.adaptive import METHODS

ADAPTIVE = [method for method in METHODS if method != "rolling"]


def drifting(n=3000, seed=0):
    """A series whose noise grows fivefold and whose mean moves, half-way."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n, 1))
    late = np.clip((np.arange(n) - n / 2) / (n / 4), 0, 1)
    return X, np.sin(X[:, 0]) + 0.5 * late + (0.2 + 0.8 * late) * rng.standard_normal(n)


def walk_forward(X, y, method, batch=20, coverage=0.9):
    n = 1000
    base = KernelQuantileRegressor(bandwidth=1.0, n_components=30, alpha=1e-3, random_state=0)
    model = AdaptiveConformalRegressor(base, coverage, method=method).fit(X[:n], y[:n])
    hits = []
    for k in range(n, len(y), batch):
        low, high = model.predict_interval(X[k : k + batch]).T
        hits.extend((low <= y[k : k + batch]) & (y[k : k + batch] <= high))
        model.update(X[k : k + batch], y[k : k + batch])
    return np.array(hits)


@pytest.mark.parametrize("coverage", [0.8, 0.9])
@pytest.mark.parametrize("method", ADAPTIVE)
def test_coverage_holds_under_drift(method, coverage):
    hits = walk_forward(*drifting(), method, coverage=coverage)
    assert abs(hits.mean() - coverage) < 0.03
    assert all(abs(part.mean() - coverage) < 0.08 for part in np.split(hits, 4)), "in every quarter"


def test_split_conformal_fails_under_the_same_drift():
    """Negative control."""
    X, y = drifting()
    base = KernelQuantileRegressor(bandwidth=1.0, n_components=30, alpha=1e-3, random_state=0)
    model = ConformalQuantileRegressor(base, 0.9, time_ordered=True).fit(X[:1000], y[:1000])
    low, high = model.predict_interval(X[1000:]).T
    assert np.mean((low <= y[1000:]) & (y[1000:] <= high)) < 0.7


@pytest.mark.parametrize("method", METHODS)
def test_without_drift_every_method_covers(method):
    rng = np.random.default_rng(1)
    X = rng.uniform(-2, 2, (3000, 1))
    hits = walk_forward(X, np.sin(X[:, 0]) + 0.3 * rng.standard_normal(3000), method)
    assert abs(hits.mean() - 0.9) < 0.025


def test_a_rolling_window_forgets():
    """After the drift is over, the window has seen only what holds now."""
    hits = walk_forward(*drifting(5000), "rolling")
    assert abs(hits[-800:].mean() - 0.9) < 0.04


def test_targets_after_the_intervals_change_none_of_them():
    """Leakage: intervals depend on targets of earlier updates only."""
    X, y = drifting(1200)
    other = y.copy()
    other[1100:] = np.random.default_rng(3).permutation(other[1100:]) + 5
    bounds = []
    for target in (y, other):
        model = AdaptiveConformalRegressor(FrozenEstimator(Constant()), 0.9).fit(X[:1000], target[:1000])
        model.update(X[1000:1100], target[1000:1100])
        bounds.append(model.predict_interval(X[1100:]))
        model.update(X[1100:], target[1100:])
        bounds.append(model.predict_interval(X[1100:]))
    np.testing.assert_array_equal(bounds[0], bounds[2])
    assert not np.allclose(bounds[1], bounds[3]), "negative control"


class Constant:
    """A fitted model whose interval is always -1 to 1."""

    def fit(self, X, y=None):
        return self

    def predict_interval(self, X, coverage):
        return np.tile([-1.0, 1.0], (len(X), 1))


def test_intervals_never_turn_inside_out():
    calibrator = AdaptiveCalibrator(0.9).fit(-np.full(50, 5.0), np.full(50, 5.0), np.zeros(50))
    bounds = calibrator.adjust([-1.0], [1.0])
    np.testing.assert_array_equal(bounds, [[0.0, 0.0]])


@pytest.mark.parametrize(
    ("kwargs", "given", "message"),
    [
        ({"coverage": 90}, ([0.0], [1.0], [0.0]), "coverage must lie strictly between 0 and 1"),
        ({"method": "magic"}, ([0.0], [1.0], [0.0]), "Unknown method 'magic'"),
        ({"window": 0}, ([0.0], [1.0], [0.0]), "window must be a positive integer"),
        ({}, ([0.0], [1.0], [np.nan]), "must be finite"),
        ({}, ([0.0], [1.0], [1.0, 2.0]), "of one length"),
        ({}, ([], [], []), "no intervals to begin with"),
    ],
)
def test_calibrators_refuse_what_they_cannot_use(kwargs, given, message):
    with pytest.raises(ValueError, match=message):
        AdaptiveCalibrator(**kwargs).fit(*given)


@pytest.mark.parametrize("method", METHODS)
def test_whole_days_at_once_are_covered_though_their_hours_differ(method):
    """Levels must not follow the hours of a day: every interval of a day is made before its first hour."""
    rng, hours = np.random.default_rng(0), np.arange(24)
    scale = np.where(hours < 6, 3.0, 0.3)  # the day ends with hours that are easy
    y = (rng.standard_normal((400, 1)) + 0.5 * rng.standard_normal((400, 24))) * scale
    low, high = np.full(24, -1.0), np.full(24, 1.0)
    calibrator = AdaptiveCalibrator(0.8, method=method).fit(np.tile(low, 40), np.tile(high, 40), y[:40].ravel())
    inside = []
    for day in y[40:]:
        a, b = calibrator.adjust(low, high).T
        inside.append((a <= day) & (day <= b))
        calibrator.update(low, high, day)
    assert abs(np.mean(inside) - 0.8) < 0.04
