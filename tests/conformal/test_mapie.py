"""MAPIE calibrates fitted models of ours by its prefit route, and comes to the intervals that it should."""

import numpy as np
import pytest

from quernel import ConformalQuantileRegressor, TabularQuantileRegressor
from support.models import plain_regressor

regression = pytest.importorskip("mapie.regression", reason="MAPIE is not installed")

COVERAGE = 0.9
LEVELS = (0.05, 0.95, 0.5)  # in the order that MAPIE wants


@pytest.mark.parametrize("symmetric", [True, False])
def test_the_prefit_route(symmetric):
    rng = np.random.default_rng(0)
    X = rng.random((700, 2))
    y = np.sin(5 * X[:, 0]) + (0.2 + X[:, 1]) * rng.standard_normal(700)
    settings = {"n_components": 50, "alpha": 1e-4, "bandwidth": 0.5, "random_state": 0}
    models = [plain_regressor(level, **settings).fit(X[:200], y[:200]) for level in LEVELS]
    theirs = regression.ConformalizedQuantileRegressor(models, confidence_level=COVERAGE, prefit=True)
    theirs.conformalize(X[200:500], y[200:500])
    points, intervals = theirs.predict_interval(X[500:], symmetric_correction=symmetric)
    np.testing.assert_array_equal(points, models[2].predict(X[500:]))
    together = plain_regressor(LEVELS[:2], **settings).fit(X[:200], y[:200])
    ours = ConformalQuantileRegressor(together, COVERAGE, method="prefit", symmetric=symmetric)
    interval = ours.fit(X[200:500], y[200:500]).predict_interval(X[500:])
    np.testing.assert_allclose(intervals[:, :, 0], interval, atol=1e-6)
    assert np.abs(together.predict_interval(X[500:]) - interval).max() > 1e-3  # calibration did something


def test_intervals_of_one_width_around_the_tabular_estimator():
    rng = np.random.default_rng(0)
    X = rng.random((399, 2))
    y = np.sin(5 * X[:, 0]) + 0.3 * rng.standard_normal(399)
    model = TabularQuantileRegressor(n_trees=5, random_state=0).fit(X[:100], y[:100])
    theirs = regression.SplitConformalRegressor(model, confidence_level=COVERAGE, prefit=True)
    _, intervals = theirs.conformalize(X[100:299], y[100:299]).predict_interval(X[299:])
    error = np.sort(np.abs(y - model.predict(X))[100:299])[179]  # the 180th of 199: ceil(0.9 (199 + 1))
    np.testing.assert_allclose(intervals[:, :, 0], model.predict(X[299:])[:, None] + [-error, error], rtol=1e-9)
