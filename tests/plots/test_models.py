"""Displays take calibrated models, and models within pipelines and of tables, or say what to give instead."""

from datetime import datetime, time
from itertools import pairwise

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

pytest.importorskip("matplotlib")

from matplotlib.figure import Figure

from quernel import ConformalQuantileRegressor, KernelQuantileRegressor
from quernel.conformal.table_model import TableModel
from quernel.plots import (
    CalibrationDisplay,
    FeatureCountDisplay,
    ImportanceDisplay,
    IntervalWidthDisplay,
    PathDisplay,
    PermutationImportanceDisplay,
    PITDisplay,
    QuantileFanDisplay,
)
from quernel.plots.fans import sample_rows
from quernel.tables.training_data import ReadOptions
from support.models import plain_regressor
from support.tables import prepare, sales

BASE = plain_regressor([0.1, 0.5, 0.9], n_components=40, random_state=0)


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
    wider = IntervalWidthDisplay.from_estimator(model, X, y, site, coverage=0.8)
    shown(wider, model.predict_interval(X, 0.8), y, site, 0.8)


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
    for display in (CalibrationDisplay, PITDisplay, PermutationImportanceDisplay):
        with pytest.raises(ValueError, match=r"IntervalWidthDisplay, or the model that.*estimators_\[0\]"):
            display.from_estimator(model, X, y)
    with pytest.raises(ValueError, match=r"predicts one interval"):
        QuantileFanDisplay.from_estimator(model, X, y, "wind")
    assert CalibrationDisplay.from_estimator(model.estimators_[0], X, y).levels.tolist() == [0.1, 0.5, 0.9]


@pytest.fixture(scope="module")
def sold():
    """Rows with words, dates, truth values and gaps, and a model of them, as from a file."""
    table = sales(500)
    training = prepare(table, ReadOptions("price", log_target=True))
    model = KernelQuantileRegressor([0.1, 0.5, 0.9], n_components=60, bandwidth="learned", random_state=0)
    fitted = TableModel(training.encoder, model.fit(training.rows.X, training.rows.y), "price", log_target=True)
    frame = table.to_pandas()
    return fitted, frame[frame["price"].notna()].reset_index(drop=True)


@pytest.fixture(scope="module")
def piped(data):
    """A pipeline with words in it, and its rows."""
    X, y, site = data
    frame = X.assign(site=site)
    columns = make_column_transformer((OneHotEncoder(sparse_output=False), ["site"]), remainder=StandardScaler())
    return make_pipeline(columns, clone(BASE)).fit(frame, y), frame, y


def test_every_display_draws_a_model_of_tables(sold):
    model, frame = sold
    y = frame["price"]
    held = CalibrationDisplay.from_estimator(model, frame, y)
    assert held.observed.tolist() == np.mean(y.to_numpy()[:, None] <= model.predict(frame), axis=0).tolist()
    assert PITDisplay.from_estimator(model, frame, y).n_rows == len(frame)
    matter = PermutationImportanceDisplay.from_estimator(model, frame, y, n_repeats=2)
    assert matter.names == ["size", "age", "place", "garden", "sold"]  # and not the target
    size, age, place, *_ = matter.increase.mean(axis=1)
    assert size > place > age
    place = frame["place"].fillna("unknown")
    display = IntervalWidthDisplay.from_estimator(model, frame, y, place, coverage=0.8)
    shown(display, model.predict_interval(frame, coverage=0.8), y, place, 0.8)
    assert ImportanceDisplay.from_estimator(model).names == model.encoder.names
    with pytest.raises(ValueError, match="KernelQuantileRegressor was told its number of features"):
        FeatureCountDisplay.from_estimator(model)
    with pytest.raises(ValueError, match="KernelQuantileRegressor has no path"):
        PathDisplay.from_estimator(model)


@pytest.mark.parametrize("kind", [pd.DataFrame, pl.DataFrame, pa.table])
def test_the_fan_of_a_table_is_the_prediction_for_typical_rows(sold, kind):
    model, frame = sold
    rows = {pd.DataFrame: lambda f: f, pl.DataFrame: pl.from_pandas, pa.table: pa.table}[kind](frame)
    typical = {
        "size": frame["size"].median(),
        "age": frame["age"].median(),
        "place": "north",
        "garden": False,
        "sold": frame["sold"].median(),
    }
    for name in typical:
        fan = QuantileFanDisplay.from_estimator(model, rows, frame["price"], name)
        alike = pd.DataFrame({**typical, name: fan.grid})
        np.testing.assert_allclose(fan.curves, model.predict(alike))
        assert fan.ax_.get_xlabel() == name
    assert QuantileFanDisplay.compute(model, rows, frame["price"], "place").grid.tolist() == ["north", "south", "east"]
    assert QuantileFanDisplay.compute(model, rows, frame["price"], "garden").grid.tolist() == [False, True]
    assert fan.grid.dtype.kind == "M"
    given = QuantileFanDisplay.compute(model, rows, frame["price"], "place", grid=["south"], others="average")
    np.testing.assert_allclose(
        given.curves[0],
        model.predict(frame.iloc[sample_rows(len(frame))].assign(place="south")).mean(axis=0),
    )


def test_categories_are_drawn_side_by_side(sold):
    model, frame = sold
    display = QuantileFanDisplay.from_estimator(model, frame, frame["price"], "place")
    assert [label.get_text() for label in display.ax_.get_xticklabels()] == ["north", "south", "east"]
    drawn = display.ax_.collections[0].get_offsets()
    assert len(drawn) == frame["place"].notna().sum()
    np.testing.assert_array_equal(
        drawn[:, 0].round().astype(int).data,
        [["north", "south", "east"].index(place) for place in frame["place"].dropna()],
    )


@pytest.mark.parametrize(
    ("width", "layout", "first"),
    [
        (7.0, "constrained", "Saint-Germain-en-Laye w…"),
        (7.0, None, "Saint-Germai…"),
        (25.0, None, "Saint-Germain-en-Laye with a very long name"),
    ],
)
def test_long_labels_keep_clear_of_each_other(width, layout, first):
    names = ["Saint-Germain-en-Laye with a very long name", "Rome", "Oslo", "Llanfairpwll", "Bath"]
    grid = np.array(names, dtype=object)
    ax = Figure((width, 5), layout=layout).subplots()
    display = QuantileFanDisplay(grid, np.arange(5.0), grid, np.ones((5, 1)), np.array([0.5])).plot(ax=ax)
    display.figure_.draw_without_rendering()
    labels = ax.get_xticklabels()
    assert labels[0].get_text() == first
    assert labels[1].get_text() == "Rome"
    assert min(label.get_window_extent().y0 for label in labels) > 0  # none leaves the figure
    if labels[0].get_rotation() == 0:
        assert all(one.x1 < two.x0 for one, two in pairwise(label.get_window_extent() for label in labels))
    else:
        assert layout == "constrained"


def test_large_targets_are_written_out(sold):
    """A power of ten above the axis would be where the legend is."""
    model, frame = sold
    display = QuantileFanDisplay.from_estimator(model, frame, frame["price"], "size")
    display.figure_.canvas.draw()
    assert frame["price"].max() > 1e6
    assert display.ax_.yaxis.get_offset_text().get_text() == ""


def test_every_display_looks_into_pipelines(piped):
    model, frame, y = piped
    held = CalibrationDisplay.from_estimator(model, frame, y)
    assert held.levels.tolist() == [0.1, 0.5, 0.9]
    assert PITDisplay.from_estimator(model, frame, y).n_rows == len(y)
    assert PermutationImportanceDisplay.compute(model, frame, y, n_repeats=1).names == ["wind", "noise", "site"]
    by_site = QuantileFanDisplay.from_estimator(model, frame, y, "site")
    medians = {"wind": frame["wind"].median(), "noise": frame["noise"].median()}
    np.testing.assert_allclose(by_site.curves, model.predict(pd.DataFrame({**medians, "site": by_site.grid})))
    interval = model.predict(frame, quantiles=[0.1, 0.9])
    display = IntervalWidthDisplay.from_estimator(model, frame, y, frame["site"], coverage=0.8)
    shown(display, interval, y, frame["site"], 0.8)
    with pytest.raises(ValueError, match="KernelQuantileRegressor was told its number of features"):
        FeatureCountDisplay.from_estimator(model)
    calibrated = make_pipeline(StandardScaler(), ConformalQuantileRegressor(BASE, 0.7, random_state=0))
    calibrated.fit(frame[["wind", "noise"]], y)
    display = IntervalWidthDisplay.from_estimator(calibrated, frame[["wind", "noise"]], y, frame["site"])
    expected = calibrated[-1].predict_interval(calibrated[0].transform(frame[["wind", "noise"]]))
    shown(display, expected, y, frame["site"], 0.7)


def test_digits_in_text_stay_text(data):
    X, y, site = data
    frame = X.assign(site=np.where(site == "hill", "01", "02"))
    columns = make_column_transformer((OneHotEncoder(sparse_output=False), ["site"]), remainder="passthrough")
    model = make_pipeline(columns, clone(BASE)).fit(frame, y)
    assert QuantileFanDisplay.compute(model, frame, y, "site").grid.tolist() in (["01", "02"], ["02", "01"])
    bare = make_pipeline(make_column_transformer((OneHotEncoder(), [2]), remainder="passthrough"), clone(BASE))
    bare.fit(frame.to_numpy(object), y)
    assert set(QuantileFanDisplay.compute(bare, frame.to_numpy(object), y, 2).grid) == {"01", "02"}


def test_choices_are_found_inside(data):
    X, y, _ = data
    learned = clone(BASE).set_params(bandwidth="learned")
    names = ImportanceDisplay.from_estimator(make_pipeline(StandardScaler(), learned).fit(X, y)).names
    assert names == ["wind", "noise"]
    calibrated = ConformalQuantileRegressor(learned, 0.7, random_state=0).fit(X, y)
    assert len(ImportanceDisplay.from_estimator(calibrated).importance) == 2
    folds = ConformalQuantileRegressor(BASE, 0.7, method="cv+", cv=2, random_state=0).fit(X, y)
    with pytest.raises(ValueError, match=r"a model for each of 2 folds.*estimators_\[0\]"):
        FeatureCountDisplay.from_estimator(folds)


def test_other_models_are_told_what_to_do(data):
    X, y, site = data
    mean = make_pipeline(StandardScaler(), LinearRegression()).fit(X, y)
    for quantiles in (None, [0.5]):
        with pytest.raises(ValueError, match=r"LinearRegression has no quantiles_.*from_predictions"):
            CalibrationDisplay.from_estimator(mean, X, y, quantiles=quantiles)
    with pytest.raises(ValueError, match=r"LinearRegression predicts no intervals.*from_predictions"):
        IntervalWidthDisplay.from_estimator(mean, X, y, site)
    with pytest.raises(ValueError, match="LinearRegression has no random features"):
        FeatureCountDisplay.from_estimator(mean)
    with pytest.raises(NotFittedError):
        CalibrationDisplay.from_estimator(make_pipeline(StandardScaler(), clone(BASE)), X, y)


def test_a_table_of_other_columns_is_refused_in_one_line(sold):
    model, frame = sold
    with pytest.raises(ValueError, match="column 'size' is missing") as refused:
        QuantileFanDisplay.from_estimator(model, frame.drop(columns="size"), frame["price"], "place")
    assert len(str(refused.value)) < 200
    with pytest.raises(ValueError, match="has no value in these rows"):
        QuantileFanDisplay.compute(model, frame.assign(age=np.nan), frame["price"], "age")


def test_times_of_day_and_missing_markers_are_drawn(data):
    rng = np.random.default_rng(0)
    seconds = rng.integers(0, 86_400, 300)
    num = rng.random(300)
    y = pa.array(np.sin(2 * np.pi * seconds / 86_400) + num)
    clean = {
        "t": pa.array(seconds.astype(np.int32)).cast(pa.time32("s")),
        "num": pa.array(num, mask=num > 0.95),
        "y": y,
    }
    training = prepare(pa.table(clean), ReadOptions("y", missing=["?"]))
    model = TableModel(training.encoder, clone(BASE).fit(training.rows.X, training.rows.y), "y")
    marked = ["?" if value > 0.95 else str(value) for value in num]
    table = pa.table(clean | {"num": marked})
    display = QuantileFanDisplay.from_estimator(model, table, y, "num")
    assert np.isfinite(display.x).sum() == np.sum(num <= 0.95)
    along = QuantileFanDisplay.from_estimator(model, table, y, "t")
    assert along.grid.max() < np.datetime64("1970-01-02")
    assert {label.get_text()[2:] for label in along.ax_.get_xticklabels()} == {":00"}
    assert np.ptp(along.curves[:, 1]) > 1
    noon = pa.table({"t": pa.array([time(12)]), "num": [float(np.median(num[num <= 0.95]))]})
    for given in (["12:00", "08:00:30"], [time(12), time(8, 0, 30)]):
        few = QuantileFanDisplay.from_estimator(model, table, y, "t", grid=given)
        assert few.grid.tolist() == [datetime(1970, 1, 1, 8, 0, 30), datetime(1970, 1, 1, 12)]
        np.testing.assert_allclose(few.curves[1], model.predict(noon)[0])
    few = QuantileFanDisplay.compute(model, table, y, "t", grid=along.grid[:2])
    np.testing.assert_allclose(few.curves, along.curves[:2])
    with pytest.raises(ValueError, match=r"'25:00', which is no time of day. Write times like 08:30"):
        QuantileFanDisplay.compute(model, table, y, "t", grid=["25:00"])
    shuffled = PermutationImportanceDisplay.from_estimator(model, table, y, n_repeats=2, random_state=0)
    assert sorted(shuffled.names) == ["num", "t"]
    hours = pa.table(
        {"t": pa.array(np.repeat([28_800, 43_200], 150).astype(np.int32)).cast(pa.time32("s")), "num": num}
    )
    two = QuantileFanDisplay.compute(model, hours, y, "t").grid
    assert two.tolist() == [datetime(1970, 1, 1, 8), datetime(1970, 1, 1, 12)]  # few values are their own grid


def test_names_are_those_that_the_estimator_inside_sees(data):
    X, y, site = data
    frame = X.assign(site=site)
    steps = make_column_transformer((OneHotEncoder(), ["site"]), remainder="passthrough")
    piped = make_pipeline(steps, clone(BASE).set_params(bandwidth="learned"))
    model = ConformalQuantileRegressor(piped, random_state=0).fit(frame, y)
    names = ImportanceDisplay.from_estimator(model).names
    assert [name.split("__")[1] for name in names] == ["site_hill", "site_sea", "wind", "noise"]
