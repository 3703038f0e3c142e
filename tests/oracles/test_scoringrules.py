"""The package scoringrules computes the same scores."""

import numpy as np
import pytest

from quernel.metrics import crps, interval_score, pinball_loss

scoringrules = pytest.importorskip("scoringrules", reason="scoringrules is not installed")


@pytest.fixture
def forecast():
    """Targets, means and standard deviations of normal forecasts of them."""
    rng = np.random.default_rng(0)
    mean, sd = rng.standard_normal(400), 0.5 + rng.random(400)
    return mean + sd * rng.standard_normal(400), mean, sd


@pytest.mark.parametrize("level", [0.03, 0.5, 0.9])
def test_the_quantile_score_is_the_pinball_loss(forecast, level):
    y, mean, _ = forecast
    assert pinball_loss(y, mean, level) == pytest.approx(scoringrules.quantile_score(y, mean, level).mean(), rel=1e-12)


@pytest.mark.parametrize("nominal", [0.5, 0.9])
def test_the_interval_score(forecast, nominal):
    y, mean, sd = forecast
    low, high = mean - sd, mean + 2 * sd
    expected = scoringrules.interval_score(y, low, high, 1 - nominal)
    assert interval_score(y, low, high, nominal) == pytest.approx(expected.mean(), rel=1e-12)
    weight = np.arange(400.0)
    weighted = interval_score(y, low, high, nominal, sample_weight=weight)
    assert weighted == pytest.approx(np.average(expected, weights=weight), rel=1e-12)
    assert weighted != pytest.approx(expected.mean(), rel=1e-3)


def test_crps_of_levels_in_the_middles_of_equal_strips(forecast):
    """There, our trapezoids with constant ends have equal weights: the mean that scoringrules takes."""
    y, mean, sd = forecast
    levels = (np.arange(20) + 0.5) / 20
    members = np.sort(mean[:, None] + sd[:, None] * np.random.default_rng(1).standard_normal((400, 20)), axis=1)
    found = crps(y, members, levels)
    assert found == pytest.approx(scoringrules.crps_quantile(y, members, levels).mean(), rel=1e-12)
    # and it is exactly the CRPS of the ensemble whose members are the quantiles
    for estimator in ("nrg", "qd"):
        assert found == pytest.approx(scoringrules.crps_ensemble(y, members, estimator=estimator).mean(), rel=1e-9)


def test_crps_of_many_levels_is_that_of_the_distribution(forecast):
    from scipy.stats import norm

    y, mean, sd = forecast
    levels = np.arange(1, 1000) / 1000
    found = crps(y, mean[:, None] + sd[:, None] * norm.ppf(levels), levels)
    assert found == pytest.approx(scoringrules.crps_normal(y, mean, sd).mean(), rel=2e-4)
    assert found != pytest.approx(scoringrules.crps_normal(y, mean, 1.1 * sd).mean(), rel=2e-4)
