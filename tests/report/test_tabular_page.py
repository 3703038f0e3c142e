"""The page about a TabularQuantileRegressor: what it says is true of that model."""

import re

import numpy as np
import pyarrow as pa
import pytest
from scipy.special import ndtri

from quernel import TabularQuantileRegressor
from quernel.conformal.table_model import TableModel
from quernel.report import evaluate_by_refitting, report_page
from quernel.report.evaluation import Evaluation, held_out_rows
from quernel.tables.training_data import ReadOptions
from support.report_page import as_number, made, pinball, read
from support.tables import prepare, sales

LEVELS = [0.05, 0.5, 0.95]


@pytest.fixture(scope="module")
def page():
    """Model, training rows and the page."""
    table = sales(200)
    training = prepare(table, ReadOptions("price"))
    estimator = TabularQuantileRegressor(LEVELS, n_trees=30, random_state=0).fit(training.rows.X, training.rows.y)
    model = TableModel(training.encoder, estimator, "price")
    evaluation = evaluate_by_refitting(model, training, seed=3)
    return model, training, read(report_page(model, table, evaluation, data="sales.csv", model_file="m.quernel"))


def test_the_tiles_lead_with_loss_and_coverage_and_leave_the_gap_to_the_table(page):
    _, training, reader = page
    top = reader.texts[""]
    train, test = held_out_rows(len(training.rows.y), seed=3)
    first = f"Pinball loss on {len(test)} held-out rows"
    names = "less than the", first, "Coverage of the 90 % interval"
    places = [top.index(name) for name in names]
    assert places == sorted(places)
    assert "gap" not in top.lower()
    again = TabularQuantileRegressor(LEVELS, n_trees=30, random_state=0).fit(
        training.rows.X[train], training.rows.y[train]
    )
    ours = pinball(training.rows.y[test], again.predict(training.rows.X[test]), LEVELS)
    assert as_number(reader.row("loss", "This model")[1]) == pytest.approx(ours, rel=1e-3)
    losses = {row[0]: as_number(row[1]) for row in reader.rows["loss"][1:]}
    best = min((name for name in losses if name not in ("This model", "Same quantiles for every row")), key=losses.get)
    change = 100 * (losses["This model"] / losses[best] - 1)
    found = re.search(r"([\d.]+) % (less|more) than the ([\d.,]+) of", top)
    assert (found[2], as_number(found[3])) == ("less" if change <= 0 else "more", losses[best])
    assert float(found[1]) == pytest.approx(abs(change), abs=0.7)


def test_the_choices_are_those_of_the_model(page):
    model, _, reader = page
    estimator = model.model
    for name, share in estimator.shares_.items():
        line = reader.row("choices", f"Share of the {name.replace('_', ' ')}")
        assert line[1] == f"{share:.0%}".replace("%", " %")
    gap = reader.row("choices", "Certified gap")
    assert float(gap[1]) == pytest.approx(estimator.duality_gap_.max(), rel=0.1)
    assert "not how good predictions are" in gap[2]
    shift = 100 * (estimator.parts_.calibration(estimator.quantiles_) - estimator.quantiles_)
    largest = shift[np.argmax(np.abs(shift))]
    assert f"up to {largest:+.1f} points" in reader.row("choices", "Correction of levels")[1]
    said = {row[0] for row in reader.rows["choices"]}
    assert said.isdisjoint({"Ridge weight alpha", "Effective dimension", "Crossing levels", "Random features M"})
    assert "quantiles=[0.01, 0.99])  # or any level" in reader.texts["load"]
    assert "between these" not in reader.texts["load"]


def test_the_remedy_for_narrow_intervals_is_none_of_a_kernel():
    """Rows in order of time that leave their old range: no calibration on old rows helps."""
    table = pa.table(
        {"x": np.tile([0.0, 1.0, 2.0, 3.0], 60), "y": np.r_[np.random.default_rng(0).random(192), 9 + np.arange(48)]}
    )
    training = prepare(table, ReadOptions("y"))
    estimator = TabularQuantileRegressor(LEVELS, parts=["forest"], n_trees=10).fit(training.rows.X, training.rows.y)
    model = TableModel(training.encoder, estimator, "y")
    evaluation = evaluate_by_refitting(model, training, time_ordered=True)
    reader = read(report_page(model, table, evaluation, data="d.csv", model_file="m.quernel"))
    assert "--groups" in reader.texts["coverage"]
    assert "--time-ordered" in reader.texts["coverage"]
    assert "--alpha" not in reader.texts["coverage"]
    assert "Certified gap" not in {row[0] for row in reader.rows["choices"]}  # a forest has none


def test_chance_is_that_of_units_where_rows_are_of_units(page):
    """The share of rows below a level varies between draws of units; the band of rows would be far too narrow."""
    _, training, _ = page
    rng, outside = np.random.default_rng(0), {True: 0, False: 0}
    unit = np.repeat(np.arange(40), 10)
    for _ in range(200):
        y = np.repeat(rng.standard_normal(40), 10) + 0.5 * rng.standard_normal(400)
        curves = np.tile(np.sqrt(1.25) * ndtri(LEVELS), (400, 1))  # the true quantiles of rows of new units
        for units in (unit, None):
            evaluation = Evaluation(page[0], np.arange(400), training.rows.X, y, np.array(LEVELS), curves,
                                    np.zeros((400, 1), bool), {}, "", True, units=units)  # fmt: skip
            outside[units is not None] += not evaluation.intervals()[0].holds
    assert outside[True] < 0.12 * 200
    assert outside[False] > 0.3 * 200
    few, many = np.repeat(rng.random(40) < 0.5, 10), rng.random(400) < 0.5
    evaluation = Evaluation(page[0], np.arange(400), training.rows.X, y, np.array(LEVELS), curves,
                            np.zeros((400, 1), bool), {}, "", True, units=unit)  # fmt: skip
    assert evaluation.effective_rows(few) == pytest.approx(40, abs=2)
    assert 200 < evaluation.effective_rows(many) <= 400
    assert evaluation.effective_rows(np.ones(400, dtype=bool)) == 400


def test_the_page_of_a_kernel_has_its_gap_in_the_table_only():
    reader = read(made()[4])
    assert "Certified gap" not in reader.texts[""]
    assert reader.row("choices", "Certified gap")
