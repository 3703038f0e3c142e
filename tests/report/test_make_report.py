"""`quernel.make_report`, and what the top of the page says about baselines and overfitting."""

import base64
import json
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import polars as pl
import pytest

import quernel
from quernel import (
    ConformalQuantileRegressor,
    KernelQuantileRegressor,
    KernelRegressor,
    QuantileForecaster,
    TabularQuantileRegressor,
)
from quernel.report import report_page
from quernel.tables import TableError
from support.report_page import as_number, made, pinball, read

LEVELS = [0.05, 0.5, 0.95]


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    n = 240
    frame = pd.DataFrame(
        {
            "size": np.where(rng.random(n) < 0.1, np.nan, rng.gamma(4, 30, n)),
            "place": rng.choice(["north", "south"], n),
            "sold": pd.Timestamp("2023-01-01") + pd.to_timedelta(rng.integers(0, 700, n), "D"),
        }
    )
    price = frame["size"].fillna(100) * np.where(frame["place"] == "north", 3, 2) + 10 * rng.standard_normal(n)
    return frame, price.rename("price")


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_the_page_of_a_frame_has_its_losses_and_columns(rows, library, tmp_path):
    frame, price = rows
    if library == "polars":
        frame = pl.from_pandas(frame)
    model = KernelQuantileRegressor(LEVELS, bandwidth="auto", n_components=40, random_state=0)
    model.fit(frame[:120], price[:120])
    page = quernel.make_report(model, frame[120:], price[120:], tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text("utf-8") == page
    reader = read(page)
    found = as_number(reader.row("loss", "This model")[1])
    expected = pinball(price[120:].to_numpy(), model.predict(frame[120:]), LEVELS)
    assert found == pytest.approx(expected, rel=1e-3)
    assert {row[0] for row in reader.rows["data"][1:]} >= {"price", "size", "place", "sold"}
    assert "Mean width of the 90 % interval" in reader.texts[""]
    with pytest.raises(FileExistsError, match="overwrite=True"):
        quernel.make_report(model, frame[120:], price[120:], tmp_path / "report.html")
    model.predict(frame[:2])  # untouched


def test_arrays_and_the_tabular_estimator_have_a_page(rows):
    frame, price = rows
    X = np.column_stack([frame["size"].fillna(0), frame["place"] == "north", np.full(len(frame), 3.0)])
    model = TabularQuantileRegressor(LEVELS, parts=["forest"], n_trees=10, random_state=0).fit(X[:120], price[:120])
    reader = read(quernel.make_report(model, X[120:], price[120:].to_numpy()))
    expected = pinball(price[120:].to_numpy(), model.predict(X[120:]), LEVELS)
    assert as_number(reader.row("loss", "This model")[1]) == pytest.approx(expected, rel=1e-3)


def test_frames_of_numbers_keep_the_names_of_their_columns(rows):
    frame, price = rows
    numbers = pd.DataFrame({"size": frame["size"].fillna(0), "north": (frame["place"] == "north").astype(float)})
    model = KernelQuantileRegressor(LEVELS, bandwidth="auto", n_components=40, random_state=0)
    reader = read(quernel.make_report(model.fit(numbers[:120], price[:120]), numbers[120:], price[120:]))
    assert {row[0] for row in reader.rows["columns"][1:]} == {"size", "north"}


def test_other_models_are_refused_with_what_to_do(rows):
    frame, price = rows
    with pytest.raises(TypeError, match="got KernelRegressor"):
        quernel.make_report(KernelRegressor(), frame, price)


def test_two_models_are_shown_side_by_side(rows):
    frame, price = rows
    good = KernelQuantileRegressor(LEVELS, bandwidth="auto", n_components=40, random_state=0)
    poor = KernelQuantileRegressor([0.02, 0.5, 0.98], kernel="linear", alpha=100.0)
    good.fit(frame[:120], price[:120])
    poor.fit(frame[["place"]][:120], price[:120])
    new, y = frame[120:], price[120:].to_numpy()
    page = read(quernel.make_report({"good": good, "poor": poor}, new, price[120:]))
    assert page.rows["models"][0] == ["", "good", "poor"]
    curves = {"good": good.predict(new), "poor": poor.predict(new[["place"]], quantiles=LEVELS)}
    losses = {name: pinball(y, one, LEVELS) for name, one in curves.items()}
    shown = page.row("models", "Mean pinball loss")
    assert [as_number(text) for text in shown[1:]] == pytest.approx(list(losses.values()), rel=1e-3)
    change = 100 * (losses["poor"] / losses["good"] - 1)
    assert page.row("models", "Difference")[2].startswith(f"{change:+.1f} %")
    low, _, high = curves["poor"].T
    assert page.row("models", "Coverage of the 90 % interval")[2] == f"{100 * np.mean((low <= y) & (y <= high)):.1f} %"
    assert "good has the lowest loss" in page.texts[""]
    with pytest.raises(TableError, match=r"levels of the first, 0\.02 to 0\.98, and KernelQuantileRegressor 2"):
        quernel.make_report([poor, good], new, price[120:])
    poor.set_params(quantiles=LEVELS).fit(frame[["place"]][:120], price[:120])
    other = read(quernel.make_report([poor, good], new, price[120:]))
    assert "KernelQuantileRegressor 2 has a lower loss than KernelQuantileRegressor 1" in other.texts[""]
    assert other.row("models", "place is north")


def test_the_numbers_are_given_as_json(rows, tmp_path):
    frame, price = rows
    model = KernelQuantileRegressor(LEVELS, bandwidth="auto", n_components=40, random_state=0)
    model.fit(frame[:120], price[:120])
    text = quernel.make_report({"a": model, "b": model}, frame[120:], price[120:], tmp_path / "r.json", output="json")
    assert (tmp_path / "r.json").read_text("utf-8") == text
    numbers = json.loads(text)
    curves, y = model.predict(frame[120:]), price[120:].to_numpy()
    assert np.mean(numbers["pinball_loss"]) == pytest.approx(pinball(y, curves, LEVELS))
    shares = [one["at_or_below"] for one in numbers["calibration"]]
    np.testing.assert_allclose(shares, (y[:, None] <= curves).mean(axis=0))
    assert set(numbers["importance"]) == {"size", "place", "sold"}
    north = next(one for one in numbers["groups"] if one["name"] == "north")
    inside = (curves[:, 0] <= y) & (y <= curves[:, 2])
    assert north["observed"] == pytest.approx(inside[frame["place"][120:] == "north"].mean())
    assert numbers["models"]["a"]["pinball_loss"] == numbers["models"]["b"]["pinball_loss"]
    assert len(numbers["periods"]["loss"]) == 3
    page = quernel.make_report(model, frame[120:], price[120:])
    held = re.findall(r'href="data:application/json;base64,([^"]*)"', page)[0]
    assert json.loads(base64.b64decode(held))["pinball_loss"] == numbers["pinball_loss"]
    with pytest.raises(ValueError, match="output must be"):
        quernel.make_report(model, frame, price, output="pdf")


def test_calibrated_intervals_have_a_page_and_other_wrappers_an_error(rows):
    frame, price = rows
    inner = KernelQuantileRegressor(LEVELS, bandwidth="auto", n_components=40, random_state=0)
    model = ConformalQuantileRegressor(inner, 0.8, random_state=0).fit(frame[:160], price[:160])
    page = read(quernel.make_report(model, frame[160:], price[160:]))
    low, high = model.predict_interval(frame[160:]).T
    y = price[160:].to_numpy()
    assert page.row("coverage", "80 %, calibrated")[1] == f"{100 * np.mean((low <= y) & (y <= high)):.1f} %"
    assert as_number(page.row("coverage", "80 %, calibrated")[4]) == pytest.approx(np.mean(high - low), rel=1e-3)
    folds = ConformalQuantileRegressor(inner, 0.8, method="cv+", cv=2, random_state=0).fit(frame[:160], price[:160])
    with pytest.raises(ValueError, match="one model and one calibration"):
        quernel.make_report(folds, frame[160:], price[160:])
    with pytest.raises(TypeError, match=r"forecasts a series.*quernel forecast --report"):
        quernel.make_report(QuantileForecaster(3), frame, price)


def page_with(**changes):
    table, model, _, evaluation, _ = made()
    evaluation = replace(evaluation, **changes)
    return evaluation, read(report_page(model, table, evaluation, data="d.csv", model_file="m.quernel")).texts[""]


def test_the_top_names_the_baseline_that_wins_and_what_to_try():
    evaluation = made()[3]
    for name, remedy in (("Linear quantile regression", "--kernel linear"), ("LightGBM", "forests together")):
        halfway = (evaluation.y[:, None] + evaluation.curves) / 2  # half of the loss of every row
        _, top = page_with(baselines=evaluation.baselines | {name: halfway})
        said = (
            rf"{name} has a lower loss on these rows than this model, whose loss is 100\.0 % \(± [\d.]+ points\) higher"
        )
        assert re.search(said, top)
        assert remedy in top
    worse = {name: curves + 1e6 for name, curves in evaluation.baselines.items()}
    assert "has a lower loss" not in page_with(baselines=worse)[1]


def test_the_top_warns_of_rows_that_the_model_may_have_seen():
    for unseen in (True, False):
        assert ("If the model was fitted to any of these rows" in page_with(unseen=unseen)[1]) != unseen


def test_overfitting_is_said_where_training_rows_show_it_and_not_else():
    evaluation = made()[3]
    ours = evaluation.losses().mean()
    assert evaluation.training_loss == pytest.approx(ours, rel=0.6)
    exact = {"Linear quantile regression": np.repeat(evaluation.y[:, None], 3, axis=1)}
    assert "overfits" in page_with(training_loss=0.5 * ours, baselines=exact)[1]
    for known in (0.95 * ours, None):
        assert "overfits" not in page_with(training_loss=known, baselines=exact)[1]
