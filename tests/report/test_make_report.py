"""`quernel.make_report`, and what the top of the page says about baselines and overfitting."""

from dataclasses import replace

import numpy as np
import pandas as pd
import polars as pl
import pytest

import quernel
from quernel import KernelQuantileRegressor, KernelRegressor, TabularQuantileRegressor
from quernel.report import report_page
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


def test_other_models_are_refused_with_what_to_do(rows):
    frame, price = rows
    with pytest.raises(TypeError, match="got KernelRegressor"):
        quernel.make_report(KernelRegressor(), frame, price)


def page_with(**changes):
    table, model, _, evaluation, _ = made()
    evaluation = replace(evaluation, **changes)
    return evaluation, read(report_page(model, table, evaluation, data="d.csv", model_file="m.quernel")).texts[""]


def test_the_top_names_the_baseline_that_wins_and_what_to_try():
    evaluation = made()[3]
    for name, remedy in (("Linear quantile regression", "--kernel linear"), ("LightGBM", "forests together")):
        _, top = page_with(baselines=evaluation.baselines | {name: np.repeat(evaluation.y[:, None], 3, axis=1)})
        assert f"{name} has a lower loss on these rows than this model, by 100.0 %" in top
        assert remedy in top
    worse = {name: curves + 1e6 for name, curves in evaluation.baselines.items()}
    assert "has a lower loss" not in page_with(baselines=worse)[1]


def test_overfitting_is_said_where_training_rows_show_it_and_not_else():
    evaluation = made()[3]
    ours = evaluation.losses().mean()
    assert evaluation.training_loss == pytest.approx(ours, rel=0.6)
    exact = {"Linear quantile regression": np.repeat(evaluation.y[:, None], 3, axis=1)}
    assert "overfits" in page_with(training_loss=0.5 * ours, baselines=exact)[1]
    for known in (0.95 * ours, None):
        assert "overfits" not in page_with(training_loss=known, baselines=exact)[1]
