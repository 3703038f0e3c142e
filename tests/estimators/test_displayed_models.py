"""Displays take calibrated models, and models within pipelines and of tables, or say what to give instead."""

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("matplotlib")

from quernel import ConformalQuantileRegressor, KernelQuantileRegressor
from quernel.plots import (
    CalibrationDisplay,
    IntervalWidthDisplay,
    PermutationImportanceDisplay,
    QuantileFanDisplay,
    ResidualQuantileDisplay,
)

BASE = KernelQuantileRegressor([0.1, 0.5, 0.9], n_components=40, random_state=0)


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"wind": rng.uniform(0, 1, 600), "noise": rng.uniform(0, 1, 600)})
    site = np.where(rng.random(600) < 0.5, "hill", "sea")
    y = np.sin(5 * X["wind"]) + np.where(site == "hill", 1.0, 0.2) * rng.standard_normal(600)
    return X, y.to_numpy(), site


def shown(display, interval, y, groups, coverage):
    """The display has the coverage, and in each group the widths and shares, of these intervals."""
    assert display.coverage == coverage
    for name, width, share in zip(display.names, display.widths, display.observed, strict=True):
        low, high = interval[groups == name].T
        assert width == pytest.approx(np.mean(high - low))
        assert share == np.mean((low <= y[groups == name]) & (y[groups == name] <= high))
    assert display.figure_ is display.ax_.figure


def test_the_widths_of_calibrated_intervals(data):
    X, y, site = data
    model = ConformalQuantileRegressor(BASE, 0.7, random_state=0).fit(X, y)
    shown(IntervalWidthDisplay.from_estimator(model, X, y, site), model.predict_interval(X), y, site, 0.7)
    with pytest.raises(ValueError, match=r"calibrated for a coverage of 0.7; got coverage=0.8. Leave it out"):
        IntervalWidthDisplay.from_estimator(model, X, y, site, coverage=0.8)


def test_groups_and_ratios_reach_the_intervals(data):
    X, y, site = data
    ratio = 0.5 + X["wind"].to_numpy()
    model = ConformalQuantileRegressor(BASE, 0.7, random_state=0).fit(X, y, groups=site, density_ratio=ratio)
    interval = model.predict_interval(X, groups=site, density_ratio=ratio)
    shown(IntervalWidthDisplay.from_estimator(model, X, y, site, density_ratio=ratio), interval, y, site, 0.7)
    half = np.where(X["wind"] > 0.5, "windy", "calm")
    display = IntervalWidthDisplay.from_estimator(model, X, y, half, calibration_groups=site, density_ratio=ratio)
    shown(display, interval, y, half, 0.7)
    by_function = ConformalQuantileRegressor(BASE, 0.7, random_state=0).fit(X, y, groups=lambda X: X["wind"] > 0.5)
    display = IntervalWidthDisplay.from_estimator(by_function, X, y, site)
    shown(display, by_function.predict_interval(X), y, site, 0.7)
    with pytest.raises(ValueError, match="density_ratio is for intervals that were calibrated with one"):
        IntervalWidthDisplay.from_estimator(model.estimators_[0], X, y, site, density_ratio=ratio, coverage=0.7)


def test_a_calibrated_model_has_no_levels_and_says_what_to_draw(data):
    X, y, _ = data
    model = ConformalQuantileRegressor(BASE, 0.7, random_state=0).fit(X, y)
    for display in (CalibrationDisplay, ResidualQuantileDisplay, PermutationImportanceDisplay):
        with pytest.raises(ValueError, match=r"IntervalWidthDisplay, or the model that.*estimators_\[0\]"):
            display.from_estimator(model, X, y)
    with pytest.raises(ValueError, match=r"predicts one interval"):
        QuantileFanDisplay.from_estimator(model, X, y, "wind")
    assert CalibrationDisplay.from_estimator(model.estimators_[0], X, y).levels.tolist() == [0.1, 0.5, 0.9]
