"""Displays hold the numbers they say they hold, draw them, and refuse what they cannot draw."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy.stats import binom, norm

pytest.importorskip("matplotlib")

from matplotlib.figure import Figure

from quernel import KernelRegressor
from quernel.metrics import pinball_loss
from quernel.plots import (
    CalibrationDisplay,
    FeatureCountDisplay,
    IntervalWidthDisplay,
    PermutationImportanceDisplay,
    PITDisplay,
    QuantileFanDisplay,
)
from quernel.tuning.n_components import ComponentsChoice, Trial
from support.models import plain_regressor

LEVELS = np.array([0.05, 0.25, 0.5, 0.75, 0.95])


def drawn(n=2000, scale=1.0, seed=0):
    """Targets of a known law, and its true quantiles; `scale` makes them too wide or too narrow."""
    rng = np.random.default_rng(seed)
    centre, spread = rng.normal(size=n), rng.uniform(0.5, 2, n)
    y = centre + spread * rng.standard_normal(n)
    return y, centre[:, None] + scale * spread[:, None] * norm.ppf(LEVELS)


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.uniform(0, 1, (400, 3)), columns=["wind", "noise", "site"])
    X["site"] = (X["site"] > 0.5).astype(float)
    y = np.sin(5 * X["wind"]) + 0.5 * X["site"] + (0.1 + 0.3 * X["wind"]) * rng.standard_normal(400)
    return X, y.to_numpy()


@pytest.fixture(scope="module")
def model(data):
    return plain_regressor(LEVELS, n_components=60, random_state=0).fit(*data)


def test_true_quantiles_lie_within_chance_and_wrong_ones_do_not():
    """The band is a binomial one: over many draws, true levels leave it about as often as it says."""
    shown = [CalibrationDisplay.compute(*drawn(500, seed=seed), LEVELS) for seed in range(60)]
    inside = np.mean([display.holds for display in shown])
    assert 0.92 < inside < 0.99
    wide = CalibrationDisplay.compute(*drawn(500, scale=1.5), LEVELS)
    assert wide.holds.tolist() == [False, False, True, False, False]


def test_calibration_counts_rows():
    y, curves = drawn(1000)
    display = CalibrationDisplay.from_predictions(y, curves, LEVELS)
    assert display.observed.tolist() == [sum(y <= curve) / 1000 for curve in curves.T]
    assert display.lower[1] == binom.ppf(0.025, 1000, 0.25) / 1000
    points = [line for line in display.ax_.lines if line.get_marker() == "o"]
    assert sum(len(line.get_xdata()) for line in points) == display.holds.sum()
    missed = CalibrationDisplay.from_predictions(y, 2 * curves, LEVELS)
    assert [line.get_label() for line in missed.ax_.lines].count("beyond chance") == 1


def test_only_rows_with_the_same_target_count_to_either_side_of_a_curve():
    """A fit goes through some of its training rows; that these compare as equal to it is rounding."""
    y = np.arange(10.0)
    curves = np.column_stack([np.where(y < 4, y, 4.0), np.full(10, 7.0)])
    apart = CalibrationDisplay.compute(y, curves, [0.5, 0.9])
    assert apart.below.tolist() == apart.observed.tolist() == [0.5, 0.8]
    assert PITDisplay.compute(y, curves, [0.5, 0.9]).counts.tolist() == [5, 3, 2]
    y[6:9] = 7.0
    together = CalibrationDisplay.compute(y, curves, [0.5, 0.9])
    assert together.below.tolist() == [0.5, 0.6]
    assert together.observed.tolist() == [0.5, 0.9]


def test_levels_may_come_in_any_order(data, model):
    X, y = data
    order = [3, 0, 4, 1, 2]
    one = CalibrationDisplay.compute(y, model.predict(X), LEVELS)
    two = CalibrationDisplay.compute(y, model.predict(X)[:, order], LEVELS[order])
    np.testing.assert_array_equal(one.observed, two.observed)
    three = CalibrationDisplay.from_estimator(model, X, y, quantiles=[0.75, 0.3])
    assert three.levels.tolist() == [0.3, 0.75]


def test_the_histogram_and_the_worm_of_true_quantiles_are_flat():
    right = PITDisplay.compute(*drawn(20_000), LEVELS)
    assert right.counts.sum() == right.n_rows == 20_000
    np.testing.assert_allclose(right.density, 1, atol=0.12)
    np.testing.assert_allclose(right.worm, 0, atol=0.05)
    wide = PITDisplay.compute(*drawn(20_000, scale=1.5), LEVELS)
    # Below 1.5 times the true score of a level lies the share Phi(1.5 z): the worm has the slope 0.5.
    np.testing.assert_allclose(wide.worm, 0.5 * norm.ppf(LEVELS), atol=0.1)
    assert wide.density[0] < 0.5 < 1.2 < wide.density[2]


def test_the_worm_stays_finite_where_no_row_is_below():
    display = PITDisplay.compute(np.zeros(10), np.ones((10, 2)), [0.1, 0.9])
    assert np.isfinite(display.worm).all()
    assert display.plot().figure_ is display.ax_[0].figure


def test_the_fan_is_the_prediction_for_typical_rows(data, model):
    X, y = data
    display = QuantileFanDisplay.from_estimator(model, X, y, "wind", y_label="power")
    row = pd.DataFrame({"wind": display.grid[[7]], "noise": X["noise"].median(), "site": X["site"].median()})
    np.testing.assert_allclose(display.curves[7], model.predict(row)[0])
    assert (display.ax_.get_xlabel(), display.ax_.get_ylabel()) == ("wind", "power")
    by_number = QuantileFanDisplay.compute(model, X, y, 0)
    np.testing.assert_array_equal(by_number.curves, display.curves)
    assert QuantileFanDisplay.compute(model, X, y, "site").grid.tolist() == [0, 1]


def test_the_averaged_fan_is_a_mean_over_rows(data, model):
    X, y = data
    display = QuantileFanDisplay.compute(model, X[:50], y[:50], "wind", others="average", grid=[0.6, 0.3])
    assert display.grid.tolist() == [0.3, 0.6]
    np.testing.assert_allclose(display.curves[1], model.predict(X[:50].assign(wind=0.6)).mean(axis=0))


def test_arrays_and_polars_give_the_same_fan(data, model):
    X, y = data
    bare = plain_regressor(LEVELS, n_components=60, random_state=0).fit(X.to_numpy(), y)
    one = QuantileFanDisplay.from_estimator(bare, X.to_numpy(), y, 1)
    two = QuantileFanDisplay.compute(model, pl.DataFrame(X.to_dict("list")), y, "noise")
    np.testing.assert_allclose(one.curves, two.curves)
    assert one.ax_.get_xlabel() == "column 1"


def test_shuffling_a_column_that_matters_costs_loss(data, model):
    X, y = data
    display = PermutationImportanceDisplay.from_estimator(model, X, y, n_repeats=3)
    wind, noise, site = display.increase.mean(axis=1)
    assert wind > site > 5 * abs(noise)
    assert display.loss == np.mean(pinball_loss(y, model.predict(X), LEVELS))
    order = np.random.default_rng(0).permutation(len(X))
    shuffled = X.assign(wind=X["wind"].to_numpy()[order])
    expected = np.mean(pinball_loss(y, model.predict(shuffled), LEVELS)) / display.loss - 1
    assert display.increase[0, 0] == pytest.approx(expected)
    assert [label.get_text() for label in display.ax_.get_yticklabels()] == ["noise", "site", "wind"]


def test_columns_can_be_shuffled_together(data, model):
    X, y = data
    both = PermutationImportanceDisplay.compute(model, X, y, together={"both": [0, 2]}, n_repeats=2)
    alone = PermutationImportanceDisplay.compute(model, X, y, n_repeats=2)
    assert both.increase.shape == (1, 2)
    assert both.increase.min() > alone.increase.max()


def test_widths_and_coverage_of_groups_are_means_over_their_rows():
    y = np.array([0.0, 1, 2, 3, 4])
    display = IntervalWidthDisplay.from_predictions(y, y - [1, 1, 2, 2, -1], y + 2, list("aabbb"), coverage=0.8)
    assert display.names == ["a", "b"]
    np.testing.assert_allclose(display.widths, [3, 3])
    np.testing.assert_allclose(display.observed, [1, 2 / 3])
    assert display.n_rows.tolist() == [2, 3]
    assert [text.get_text() for text in display.ax_.texts] == ["a", "b"]


def test_numbers_become_groups_of_equal_size(data, model):
    X, y = data
    display = IntervalWidthDisplay.from_estimator(model, X, y, X["wind"], coverage=0.8)
    assert display.n_rows.tolist() == [80] * 5
    assert np.all(np.diff(display.widths) > 0)  # the noise grows with the wind
    many_zeros = np.r_[np.zeros(300), np.arange(1, 101.0)]
    assert IntervalWidthDisplay.compute(y, y - 1, y + 1, many_zeros).n_rows.sum() == 400


def test_a_group_that_is_covered_too_little_is_marked():
    y = np.zeros(200)
    low = np.where(np.arange(200) % 2, -1.0, 1.0)
    display = IntervalWidthDisplay.from_predictions(y, low, low + 1.5, np.where(np.arange(200) % 2, "good", "bad"))
    assert dict(zip(display.names, display.holds, strict=True)) == {"bad": False, "good": True}
    assert [line.get_label() for line in display.ax_.lines].count("holds too little") == 1


def test_the_choice_of_features_is_shown(model):
    choice = ComponentsChoice(
        500, "enough.", (Trial(125, 20.0), Trial(250, 22.0, 1.0), Trial(500, 22.5, 0.99, 0.01, 0.02)), 10, 10
    )
    searched = plain_regressor(LEVELS, n_components=60)
    searched.__dict__.update(model.__dict__ | {"plan_": replace(model.plan_, n_components_choice=choice)})
    display = FeatureCountDisplay.from_estimator(searched)
    np.testing.assert_array_equal(display.loss, [np.nan, 1.0, 0.99])
    (chosen,) = [line for line in display.ax_[1].lines if line.get_markersize() == 9]
    assert (chosen.get_xdata()[0], chosen.get_ydata()[0]) == (500, 22.5)
    with pytest.raises(ValueError, match="was told its number of features"):
        FeatureCountDisplay.compute(model)
    searched.plan_ = replace(model.plan_, n_components_choice=ComponentsChoice(500, "too few different rows."))
    with pytest.raises(ValueError, match="tried none: too few different rows"):
        FeatureCountDisplay.compute(searched)


def test_given_axes_are_used(data, model):
    X, y = data
    ax = Figure().add_subplot()
    pair = tuple(Figure().subplots(1, 2))
    assert CalibrationDisplay.from_estimator(model, X, y, ax=ax).ax_ is ax
    assert QuantileFanDisplay.from_estimator(model, X, y, 0, ax=ax).figure_ is ax.figure
    assert PITDisplay.from_estimator(model, X, y, ax=pair).ax_[1] is pair[1]
    with pytest.raises(ValueError, match="pair of axes"):
        PITDisplay.from_estimator(model, X, y, ax=ax)


def test_matplotlib_is_imported_only_to_draw():
    code = (
        "import sys, numpy as np; from quernel.plots import *\n"
        "y = np.zeros(5); CalibrationDisplay.compute(y, y, 0.5); PITDisplay.compute(y, y, 0.5)\n"
        "IntervalWidthDisplay.compute(y, y, y, y)\n"
        "assert 'matplotlib' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


Y = np.zeros(4)
BAD = {
    "level 1": (lambda: CalibrationDisplay.compute(Y, Y, 1.0), "strictly between 0 and 1"),
    "levels twice": (lambda: CalibrationDisplay.compute(Y, np.zeros((4, 2)), [0.5, 0.5]), "different levels"),
    "columns": (lambda: PITDisplay.compute(Y, np.zeros((4, 2)), [0.5]), r"one column per level, \(4, 1\)"),
    "no rows": (lambda: CalibrationDisplay.compute([], [], 0.5), "n > 0"),
    "NaN": (lambda: CalibrationDisplay.compute([np.nan], [1.0], 0.5), "y_true contains NaN"),
    "confidence": (lambda: CalibrationDisplay.compute(Y, Y, 0.5, confidence=95), "confidence must lie"),
    "coverage": (lambda: IntervalWidthDisplay.compute(Y, Y, Y, Y, coverage=90), "coverage must lie"),
    "groups": (lambda: IntervalWidthDisplay.compute(Y, Y, Y, Y[:3]), "same shape"),
    "endless": (lambda: IntervalWidthDisplay.compute(Y, Y, Y + np.inf, Y), "no NaN or infinite"),
    "many labels": (
        lambda: IntervalWidthDisplay.compute(*[np.zeros(20)] * 3, list("abcdefghijklmnopqrst")),
        "20 different",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_arguments_are_refused_by_name(case):
    call, message = BAD[case]
    with pytest.raises(ValueError, match=message):
        call()


def test_bad_columns_and_estimators_are_refused(data, model):
    X, y = data
    with pytest.raises(ValueError, match=r"no column 'wnd'. Its columns: wind, noise, site"):
        QuantileFanDisplay.from_estimator(model, X, y, "wnd")
    with pytest.raises(ValueError, match="from 0 to 2; got 3"):
        QuantileFanDisplay.from_estimator(model, X, y, 3)
    with pytest.raises(ValueError, match="others must be one of"):
        QuantileFanDisplay.from_estimator(model, X, y, 0, others="mean")
    with pytest.raises(ValueError, match="n_repeats must be 1 or more"):
        PermutationImportanceDisplay.compute(model, X, y, n_repeats=0)
    mean = KernelRegressor(n_components=20).fit(X, y)
    with pytest.raises(ValueError, match="KernelRegressor has no quantiles_"):
        CalibrationDisplay.from_estimator(mean, X, y)
    with pytest.raises(ValueError, match="predicts no intervals"):
        IntervalWidthDisplay.from_estimator(mean, X, y, y)
