"""crepes calibrates fitted models of ours, and comes to the order statistics that conformal prediction asks for."""

import numpy as np
import pytest

from quernel.metrics import coverage
from support.models import plain_regressor

crepes = pytest.importorskip("crepes", reason="crepes is not installed")

CONFIDENCE = 0.75  # with 199 rows no rounding decides: 0.25 (199 + 1) is a whole number


@pytest.fixture(scope="module")
def split():
    """Rows to fit, to calibrate and to predict, and a model of the first."""
    rng = np.random.default_rng(0)
    X = rng.random((700, 2))
    y = np.sin(5 * X[:, 0]) + (0.1 + X[:, 1]) * rng.standard_normal(700)
    settings = {"n_components": 50, "alpha": 1e-4, "bandwidth": 0.5, "random_state": 0}
    model = plain_regressor([0.1, 0.5, 0.9], **settings).fit(X[:200], y[:200])
    median = plain_regressor(0.5, **settings).fit(X[:200], y[:200])
    return model, median, (X[200:399], y[200:399]), (X[399:], y[399:])


def test_intervals_around_the_median(split):
    _, median, (X, y), (new, target) = split
    wrapped = crepes.WrapRegressor(median).calibrate(X, y)
    interval = wrapped.predict_int(new, confidence=CONFIDENCE)
    error = np.sort(np.abs(y - median.predict(X)))[149]  # the 150th of 199
    np.testing.assert_allclose(interval, median.predict(new)[:, None] + [-error, error], rtol=1e-12)
    assert coverage(target, *interval.T) == pytest.approx(CONFIDENCE, abs=0.05)


def test_the_width_of_our_intervals_is_a_difficulty(split):
    """Normalised by our widths, intervals are narrow where the noise is small; those of one width are not."""
    model, median, (X, y), (new, target) = split

    def width(rows):
        return np.diff(model.predict_interval(rows, CONFIDENCE))[:, 0]

    wrapped = crepes.WrapRegressor(median).calibrate(X, y, de=crepes.extras.DifficultyEstimator().fit(f=width))
    interval = wrapped.predict_int(new, confidence=CONFIDENCE)
    assert coverage(target, *interval.T) == pytest.approx(CONFIDENCE, abs=0.05)
    calm = new[:, 1] < 0.3
    one_width = crepes.WrapRegressor(median).calibrate(X, y).predict_int(new, confidence=CONFIDENCE)
    assert coverage(target[calm], *interval[calm].T) == pytest.approx(CONFIDENCE, abs=0.1)
    assert coverage(target[calm], *one_width[calm].T) > CONFIDENCE + 0.1


def test_a_predictive_distribution_has_calibrated_levels(split):
    _, median, (X, y), (new, target) = split
    wrapped = crepes.WrapRegressor(median).calibrate(X, y, cps=True)
    levels = np.array([10, 50, 90])
    below = target[:, None] <= wrapped.predict_percentiles(new, higher_percentiles=levels.tolist())
    np.testing.assert_allclose(below.mean(axis=0), levels / 100, atol=0.05)
