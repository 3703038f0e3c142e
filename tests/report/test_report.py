"""The page says what is so: its numbers are computed again here, from the rows."""

import importlib.machinery
import json
import re
import sys
import types
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv
from sklearn.base import BaseEstimator
from sklearn.linear_model import QuantileRegressor

import quernel
from quernel import KernelQuantileRegressor, KernelQuantileRegressorCV
from quernel.report import charts, evaluate_by_refitting, evaluate_on, held_out_rows, report_page
from quernel.report.charts import Chart, round_ticks
from quernel.report.content import describe_choices
from quernel.report.effects import compute_fans, compute_what_if
from quernel.report.evaluation import (
    EvaluationOptions,
    find_baselines,
    predict_boosting,
    predict_linear,
    predict_unconditional,
)
from quernel.report.formatting import format_amount, format_number, format_numbers, format_tick
from quernel.tables.training_data import read_numbers
from support.command_line import run
from support.models import plain_regressor
from support.report_page import LEVELS, as_number, fitted, made, pinball, read
from support.tables import sales

SECTIONS = ["loss", "coverage", "columns", "whatif", "worst", "predictions", "data", "choices", "load"]
OUTSIDE_WORLD = r"https?:|//[a-z]|\bsrc=|@import|url\(|<link(?! rel=\"icon\" href=\"data:,\")|fetch\(|XMLHttp"


@pytest.fixture(scope="module")
def reader():
    return read(made()[-1])


def held_out():
    """The held-out rows, and a model fitted to the others alone."""
    _, _, training, _, _ = made()
    train, test = held_out_rows(len(training.rows.y), seed=3)
    model = plain_regressor(LEVELS, n_components=40, random_state=0).fit(training.rows.X[train], training.rows.y[train])
    return training, train, test, model


def test_the_page_is_whole_and_has_every_section(reader):
    expected = SECTIONS
    assert [name for name in reader.ids if name in SECTIONS] == expected
    assert len(set(reader.ids)) == len(reader.ids)
    links = [attrs["href"][1:] for tag, attrs in reader.tags if tag == "a" and "download" not in attrs]
    assert links == expected
    assert [tag for tag, _ in reader.tags].count("h1") == 1


def test_the_page_needs_nothing_from_outside():
    page = made()[-1]
    assert re.search(OUTSIDE_WORLD, page) is None
    assert re.search(OUTSIDE_WORLD, page.replace("<nav", '<img src="x"><nav')) is not None


def test_every_picture_has_words(reader):
    pictures = [attrs for tag, attrs in reader.tags if tag == "svg"]
    assert len(pictures) == 1 + 4 + 4  # histogram, and a fan for each column, four of dates
    assert all(len(json.loads(attrs["data-values"])) > 1 for attrs in pictures)  # at the pointer
    assert all(len(attrs["aria-label"]) > 40 and attrs["role"] == "img" for attrs in pictures)
    assert len({attrs["aria-label"] for attrs in pictures}) == len(pictures)


def test_the_data_are_counted(reader):
    table = made()[0]
    assert f"{table.num_rows:,} rows, 5 input columns" in reader.texts["data"]
    assert f"{table['price'].null_count} rows have no target" in reader.texts["data"]
    for name in table.column_names:
        missing = table[name].null_count
        assert reader.row("data", name)[2] == (f"{missing}" if missing else "\N{EN DASH}")
    assert "true in" in reader.row("data", "garden")[3]
    assert "3 categories: north" in reader.row("data", "place")[3]


def test_the_losses_are_those_of_models_that_have_not_seen_the_rows(reader):
    training, train, test, model = held_out()
    ours = reader.row("loss", "This model")
    expected = pinball(training.rows.y[test], model.predict(training.rows.X[test]), LEVELS)
    assert as_number(ours[1]) == pytest.approx(expected, rel=1e-3)
    constant = reader.row("loss", "Same quantiles for every row")
    curves = np.tile(np.quantile(training.rows.y[train], LEVELS), (len(test), 1))
    assert as_number(constant[1]) == pytest.approx(pinball(training.rows.y[test], curves, LEVELS), rel=1e-3)
    change = 100 * (as_number(ours[1]) / as_number(constant[1]) - 1)
    assert float(re.match(r"([+-][\d.]+) %", constant[2])[1]) == pytest.approx(change, abs=0.2)
    # The model in the file has seen them, and would have looked better.
    seen = pinball(training.rows.y[test], made()[1].predict_encoded(training.rows.X[test]), LEVELS)
    assert seen < 0.99 * expected


def test_the_top_says_which_way_the_loss_goes(reader):
    ours, constant = (as_number(reader.row("loss", name)[1]) for name in ("This model", "Same quantiles for every row"))
    evaluation = made()[3]
    best = as_number(reader.row("loss", evaluation.best_baseline)[1])
    said = (
        r"is ([\d.,]+): ([\d.]+) % (less|more) than the ([\d.,]+) of (.*) and ([\d.]+) % less than the ([\d.,]+) of the"
    )
    loss, share, way, theirs, name, other, last = re.search(said, reader.texts[""]).groups()
    np.testing.assert_allclose([*map(as_number, (loss, theirs, last))], [ours, best, constant], rtol=1e-3)
    assert (way == "less") == (ours <= best)
    np.testing.assert_allclose(
        [float(share), float(other)], [100 * abs(1 - ours / one) for one in (best, constant)], atol=0.6
    )
    assert ("a tuned one may be as good" in name) == ("not tuned" in evaluation.best_baseline and ours <= best)
    middle = evaluation.curves[:, LEVELS.index(0.5)]
    (mean,) = re.findall(r"mean absolute error: ([\d.,]+);", reader.texts[""])
    assert as_number(mean) == pytest.approx(np.abs(evaluation.y - middle).mean(), rel=1e-3)
    rng = np.random.default_rng(0)
    noise = pa.table({f"x{j}": rng.normal(size=60) for j in range(8)} | {"y": rng.normal(size=60)})
    model, training = fitted(noise, "y")
    evaluation = evaluate_by_refitting(model, training)
    assert evaluation.losses().mean() > evaluation.losses("Same quantiles for every row").mean()
    page = read(report_page(model, noise, evaluation, data="d.csv", model_file="m.quernel"))
    assert re.search(r"\d % more than the [\d.]+ of the same quantiles for every row", page.texts[""])
    for one in (page, reader):
        best = min(one.rows["loss"][1:], key=lambda row: as_number(row[1]))[0]
        assert ("has a lower loss on these rows than this model" in one.texts[""]) == (best != "This model")


def test_a_perfect_fit_and_a_constant_target_have_a_page():
    x = np.repeat([0.0, 1.0], 50)
    for y in (x, np.ones(100)):
        table = pa.table({"x": x, "y": y})
        model, training = fitted(table, "y")
        page = report_page(model, table, evaluate_by_refitting(model, training), data="d.csv", model_file="m.quernel")
        assert read(page).row("loss", "This model")
        assert re.search(r"\b(nan|inf)\b", re.sub(r"<(style|script)>.*?</\1>", "", page, flags=re.S)) is None


def page_of(columns, y):
    table = pa.table(columns | {"y": y})
    model, training = fitted(table, "y")
    return read(
        report_page(model, table, evaluate_by_refitting(model, training), data="d.csv", model_file="a b.quernel")
    )


def test_a_page_about_one_column_does_not_speak_of_others(reader):
    x = np.random.default_rng(0).random(80)
    page = page_of({"x": x}, x)
    assert "This is not the effect of this column alone" in reader.texts["columns"]
    assert "Rows are spread sideways." in reader.texts["columns"]  # those of a place
    assert "sideways" not in page.texts["columns"]
    assert "effect of this column alone" not in page.texts["columns"]
    choosers = [[attrs for _, attrs in one.tags if attrs.get("class") == "chooser"] for one in (page, reader)]
    assert ["hidden" in attrs for (attrs,) in choosers] == [True, False]
    assert "quernel predict 'a b.quernel' new.csv" in page.texts["load"]  # as a shell takes it


def test_the_panel_says_which_model_it_is_of(reader):
    table, model, _, evaluation, _ = made()
    assert "This is the evaluated model, not fitted to this row" in reader.texts["whatif"]
    assert "Bar: 90 % interval; line: median." in reader.texts["whatif"]
    page = report_page(model, table, replace(evaluation, unseen=False), data="d.csv", model_file="m.quernel")
    assert "If the model was fitted to rows like these" in read(page).texts["whatif"]
    shown = compute_what_if(evaluation.model, table.filter(table["price"].is_valid()), ["size", "place"], np.array([7]))
    row = table.filter(table["price"].is_valid()).slice(7, 1).to_pylist()[0]
    assert {name: shown.row[name] for name in ("size", "place")} == {name: row[name] for name in ("size", "place")}


def test_rows_near_the_panel_are_near_in_both_inputs_and_possible():
    rng = np.random.default_rng(0)
    x = rng.random(2000)
    model = rng.choice(["A4", "A6", "Corsa", "Zafira"], 2000)
    brand = np.where(np.char.startswith(model, "A"), "Audi", "Opel")
    table = pa.table({"x": x, "y": x + 0.02 * rng.standard_normal(2000), "model": model, "brand": brand, "z": x})
    estimator, _ = fitted(table, "z")
    shown = compute_what_if(estimator, table, ["x", "y"], np.arange(2000))  # all rows are near a diagonal
    reach = 0.04 * np.array([np.ptp(np.quantile(table[name], (0.05, 0.95))) for name in "xy"])
    for i, a in enumerate(shown.values[0]):
        for j, b in enumerate(shown.values[1]):
            expected = (np.abs(x - a) <= reach[0]) & (np.abs(table["y"].to_numpy() - b) <= reach[1])
            assert shown.near[i, j] == expected.sum()
            assert shown.near[i, j] == 0 or abs(a - b) < 0.3
    assert (shown.near > 0).any(axis=0).all()
    shown = compute_what_if(estimator, table, ["x", "model"], np.flatnonzero(brand == "Opel"))
    assert shown.labels[1] == ["Corsa", "Zafira"]  # in order, and only those of the row's brand
    assert shown.totals == [0, 4]
    assert {name for names in shown.apart for name in names} == {""}
    shown = compute_what_if(estimator, table, ["model", "x"], np.flatnonzero(brand == "Opel"))
    odd = table.set_column(3, "brand", pa.array(np.where(np.arange(2000) == 5, "Ferrari", brand)))
    estimator, _ = fitted(odd, "z")
    shown = compute_what_if(estimator, odd, ["model", "x"], np.array([5]))  # no other row has its brand
    assert shown.labels[0] == ["A4", "A6", "Corsa", "Zafira"]
    there = np.array(shown.apart) == ""
    assert set(np.nonzero(there)[0]) == {shown.start[0]}
    assert there[shown.start[0], shown.start[1]]
    assert (shown.near > 0).sum() > 20


def test_a_page_about_many_columns_says_what_it_leaves_out(reader):
    x = np.random.default_rng(0).random((80, 25))
    page = page_of({f"x{k}": x[:, k] for k in range(25)}, x[:, 0])
    assert len(page.rows["columns"]) == 1 + 12
    assert "The 12 most important ones." in page.texts["columns"]
    assert "listed above (25)" in page.texts["load"]
    assert "most important ones" not in reader.texts["columns"]
    assert "size, " in reader.texts["load"]


def test_long_names_of_categories_take_turns_on_two_lines():
    rng = np.random.default_rng(0)
    for length, lines in ((3, 1), (9, 2)):
        categories = [f"{'abcdefgh'[k % 8]}{'o' * (length - 1)}" for k in range(160)]
        table = pa.table({"word": categories, "y": rng.random(160)})
        model, training = fitted(table, "y")
        (fan,) = compute_fans(model, table, training.rows.y, ["word"])
        drawn = charts.draw_fan(fan, np.array(LEVELS), "y")
        names = re.findall(r'y="([\d.]+)" text-anchor="middle">(\w+)<', drawn)[:8]
        assert {name for _, name in names} == set(categories)  # whole
        assert len({height for height, _ in names}) == lines
        assert len({height for height, _ in names[::2]}) == 1


def test_the_evaluated_model_predicts_from_the_table_what_the_page_shows_and_knows_no_held_out_target():
    rng = np.random.default_rng(0)
    code, x = rng.integers(0, 60, 900), rng.random(900)
    y = np.sin(code) + x + 0.3 * rng.standard_normal(900)
    held_out = held_out_rows(900)[1]
    curves = []
    for moved in (np.empty(0, dtype=int), held_out, held_out_rows(900)[0]):
        table = pa.table({"x": x, "word": [f"w{k}" for k in code], "y": y + 3.0 * np.isin(np.arange(900), moved)})
        model, training = fitted(table, "y")
        evaluation = evaluate_by_refitting(model, training)
        np.testing.assert_array_equal(evaluation.rows, held_out)
        shown = evaluation.model.predict(table.take(evaluation.rows))
        np.testing.assert_allclose(shown, evaluation.curves, rtol=1e-9)
        assert not np.allclose(training.rows.X[held_out], evaluation.X, rtol=1e-6)  # out of fold, of all rows
        curves.append(evaluation.curves)
    np.testing.assert_allclose(curves[0], curves[1], rtol=1e-9)
    assert np.abs(curves[0] - curves[2]).min() > 0.5


def test_rare_categories_have_shares_that_are_not_0():
    x = np.arange(900.0)
    page = page_of({"x": x, "w": [f"w{k % 150}" for k in range(900)]}, x)
    assert "(0.7 %)" in page.row("data", "w")[3]


def test_coverage_and_calibration_are_counted(reader):
    training, _, test, model = held_out()
    y, curves = training.rows.y[test], model.predict(training.rows.X[test])
    for k, level in enumerate(LEVELS):
        row = reader.row("coverage", f"{level:g}")
        assert row[1] == f"{100 * sum(y <= curves[:, k]) / len(y):.1f} %"
    row = reader.row("coverage", "90 %")
    assert row[1] == f"{100 * np.mean((curves[:, 0] <= y) & (y <= curves[:, 2])):.1f} %"
    assert as_number(row[4]) == pytest.approx(np.mean(curves[:, 2] - curves[:, 0]), rel=1e-3)


@pytest.mark.parametrize("counts", [False, True])
def test_two_shares_are_given_only_where_rows_on_curves_have_the_same_target(counts):
    """Rows that have their target to themselves lie on a curve by rounding, where the curve was fitted to them."""
    rng = np.random.default_rng(0)
    x = rng.random(200)
    y = rng.poisson(1.0, 200).astype(float) if counts else x + 0.1 * rng.normal(size=200)
    table = pa.table({"x": x, "y": y})
    model, training = fitted(table, "y")
    evaluation = evaluate_on(model, training.rows.X, training.rows.y)
    curves = evaluation.curves.copy()
    curves[:20, 1] = evaluation.y[:20]  # as rounding may have it
    assert counts or len(np.unique(y)) == 200
    evaluation = replace(evaluation, curves=curves)
    page = read(report_page(model, table, evaluation, data="d.csv", model_file="m.quernel"))
    assert ("Rows with the same target lie" in page.texts["coverage"]) == counts
    assert (" to " in page.row("coverage", "0.5")[1]) == counts
    (wide,) = evaluation.intervals()
    assert (wide.inner < wide.observed) == counts
    both = f"{100 * wide.inner:.1f} to {100 * wide.observed:.1f} %"
    assert (page.row("coverage", "90 %")[1] == both) == counts
    assert ("without rows on its bounds" in page.texts[""]) == counts


def test_coverage_and_loss_over_time_are_those_of_consecutive_rows(reader):
    table = sales(300)
    model, training = fitted(table)
    evaluation = evaluate_on(model, training.rows.X, training.rows.y)
    page = read(report_page(model, table, evaluation, data="d.csv", model_file="m.quernel"))
    assert "time" not in reader.ids, "60 rows are too few periods"
    coverage, loss = (attrs["aria-label"] for tag, attrs in page.tags if tag == "svg" and ": " in attrs["aria-label"]
                      and attrs["aria-label"].startswith(("rows inside, %", "mean pinball loss")))  # fmt: skip
    when = np.array([date.timestamp() if date else np.nan for date in table["sold"].to_pylist()])
    when = when[np.isfinite(read_numbers(table, "price"))][evaluation.rows]
    order = np.argsort(when, kind="stable")[: np.isfinite(when).sum()]
    periods = np.array_split(order, len(order) // 40)
    inside = (evaluation.curves[:, 0] <= evaluation.y) & (evaluation.y <= evaluation.curves[:, 2])
    shares = [100 * inside[rows].mean() for rows in periods]
    losses = [pinball(evaluation.y[rows], evaluation.curves[rows], LEVELS) for rows in periods]
    for shown, expected in ((coverage, shares), (loss, losses)):
        numbers = [float(text.replace(",", "")) for text in shown.split(": ")[1].split(", ")]
        np.testing.assert_allclose(numbers, expected, rtol=1e-3)
    assert f"in {len(periods)} consecutive periods" in page.texts["time"]


def test_the_choices_are_those_of_the_model(reader):
    assert "(tolerance: 0.000001)" in reader.row("choices", "Certified gap")[2]
    model = made()[1].model
    assert reader.row("choices", "Random features M")[1] == "40"
    assert float(reader.row("choices", "Ridge weight alpha")[1]) == pytest.approx(model.alpha_, rel=1e-2)
    assert float(reader.row("choices", "Certified gap")[1]) == pytest.approx(model.duality_gap_.max(), rel=0.1)
    dimension = float(reader.row("choices", "Effective dimension")[1])
    assert 1 < dimension < 40
    for name, width in zip(made()[1].encoder.names, model.bandwidth_, strict=True):
        assert as_number(reader.row("choices", name)[1]) == pytest.approx(width, rel=1e-2)


def test_every_way_to_choose_says_why():
    rng = np.random.default_rng(0)
    X = rng.random((120, 2))
    y = np.sin(5 * X[:, 0]) + 0.1 * rng.standard_normal(120)
    settings = {"n_components": 30, "random_state": 0}
    searched = KernelQuantileRegressorCV([0.1, 0.9], alphas=[1e-4, 1e-2], bandwidths=[0.5], cv=3, **settings)
    ways = {
        "each column's standard deviation": plain_regressor([0.1, 0.9], **settings),
        "given": plain_regressor([0.1, 0.9], bandwidth=0.5, alpha=1e-3, noncrossing=None, **settings),
        "by leave-one-out error": KernelQuantileRegressor([0.1, 0.9], bandwidth="learned", **settings),
        "among 2 pairs": searched,
        "has none": KernelQuantileRegressor([0.1, 0.9], kernel="linear"),
    }
    for why, model in ways.items():
        stated = {one.name: one for one in describe_choices(model.fit(X, y), X, y)}
        assert why in stated["Bandwidth"].why, stated["Bandwidth"]
        assert stated["Ridge weight alpha"].value == f"{model.alpha_:.3g}"
        dimension = float(stated["Effective dimension"].value)
        assert 0 < dimension <= model.n_components_
        if why in ("given", "among 2 pairs"):
            assert why in stated["Ridge weight alpha"].why


def test_the_worst_rows_are_named_by_their_place_in_the_file(reader):
    table, (training, _, test, model) = made()[0], held_out()
    y, curves = training.rows.y[test], model.predict(training.rows.X[test])
    worst = max(range(len(y)), key=lambda i: pinball(y[[i]], curves[[i]], LEVELS))
    head, first, *others = reader.rows["worst"]
    assert len(others) == 9
    assert as_number(first[head.index("price")]) == pytest.approx(y[worst], rel=1e-3)
    entry = table["price"][int(as_number(first[0])) - 1].as_py()  # rows without a target are counted, too
    assert entry == pytest.approx(y[worst])
    size = table["size"][int(as_number(first[0])) - 1].as_py()
    assert first[head.index("size")] == ("missing" if size is None else format_number(size))


def test_rows_outside_the_range_are_counted_and_shown():
    model, _ = fitted(sales(200))
    table = sales(60, seed=1, gaps=False)
    size = table["size"].to_numpy().copy()
    size[[4, 30]] = 5000.0
    table = table.set_column(0, "size", pa.array(size))
    X, y = model.encoder.transform(table), table["price"].to_numpy()
    evaluation = evaluate_on(model, X, y)
    assert set(np.flatnonzero(evaluation.outside)) >= {4, 30}
    reader = read(report_page(model, table, evaluation, data="d.csv", model_file="m.quernel"))
    count = int(evaluation.outside.sum())
    text = reader.texts[""]
    assert f"{count} of 60 rows are outside the range of the training rows, most often in size" in text
    assert "the results are too optimistic" in reader.texts["loss"]
    inside = sales(200)
    inside = inside.filter(np.isfinite(inside["price"].to_numpy(zero_copy_only=False)))
    seen = evaluate_on(model, model.encoder.transform(inside), inside["price"].to_numpy())
    page = read(report_page(model, inside, seen, data="d.csv", model_file="m.quernel"))
    assert "outside the range" not in page.texts[""]


def test_a_time_of_day_is_never_outside():
    """Its sine may be a little larger than any in the training rows; a later date is outside, and named."""
    model, training = fitted(sales(200, gaps=False))
    names = model.encoder.names
    assert sum(model.encoder.cyclic) >= 2
    assert all(("sine of" in name) == cyclic for name, cyclic in zip(names, model.encoder.cyclic, strict=True))
    X = training.rows.X.copy()
    X[:2, model.encoder.cyclic] = 1.0000001
    X[2, names.index("sold trend")] = 50.0
    assert model.model.is_extrapolation(X[:3]).all()
    assert np.flatnonzero(evaluate_on(model, X, training.rows.y).outside).tolist() == [2]


def test_missing_values_and_dates_in_the_tables_of_rows():
    page = made()[-1]
    assert '<td class="n">missing</td>' in page  # beneath the numbers of its column
    assert re.search(r'<td class="whole">\d{4}-\d\d-\d\d', page)  # a date does not wrap
    minutes = np.random.default_rng(0).integers(0, 1440, 80)
    opened = pa.array(60 * minutes.astype(np.int32), mask=minutes > 1200).cast(pa.time32("s"))
    times = {row[-1] for row in page_of({"opened": opened}, minutes.astype(float)).rows["worst"][1:]}
    assert "missing" in times
    assert all(re.fullmatch(r"\d\d:\d\d", time) for time in times - {"missing"})  # no seconds, as there are none


@pytest.mark.parametrize("high", [1, 2000, 0.00025, 9e6])
def test_the_label_of_an_axis_keeps_clear_of_its_ticks(high):
    drawn = Chart((0, 1), (-high, high), alt="", x_label="x", y_label="y").svg()
    ends = re.findall(r'<text x="([\d.]+)" y="[\d.]+" text-anchor="end">([^<]*)</text>', drawn)
    assert len(ends) > 2
    for end, text in ends:
        assert float(end) - 7 * len(text) >= 18  # a letter is 7 wide, and the label ends at 16


def test_names_that_look_like_html_are_only_names():
    rng = np.random.default_rng(0)
    x, word = rng.random(120), np.where(rng.random(120) < 0.5, '"><script>alert(1)</script>', "a & b")
    table = pa.table({"<b>x": x, "w'\"": word, "</title><i>y": x + 0.1 * rng.standard_normal(120)})
    model, training = fitted(table, "</title><i>y")
    evaluation = evaluate_by_refitting(model, training)
    page = report_page(model, table, evaluation, data="<u>.csv", model_file="<u>.quernel")
    reader = read(page)
    kinds = {tag for tag, _ in reader.tags}
    assert not kinds & {"b", "u"}
    assert [tag for tag, _ in reader.tags].count("script") == 1
    assert reader.row("data", "<b>x")[1] == "number"
    assert "a & b" in reader.texts["data"]


def test_levels_in_any_order_and_a_single_one_have_a_page():
    table = sales(200)
    for levels in ([0.9, 0.1, 0.5], [0.3], [0.2, 0.9]):
        model, training = fitted(table, levels=levels)
        evaluation = evaluate_by_refitting(model, training)
        assert evaluation.levels.tolist() == sorted(levels)
        assert np.all(np.diff(evaluation.curves, axis=1) >= 0)
        reader = read(report_page(model, table, evaluation, data="d.csv", model_file="m.quernel"))
        assert reader.rows["worst"][0][2 : 2 + len(levels)] == [f"{level:g}" for level in sorted(levels)]


def test_a_logarithmic_target_is_evaluated_in_its_own_units():
    table = sales(200)
    model, training = fitted(table, log_target=True)
    evaluation = evaluate_by_refitting(model, training)
    there = np.isfinite(table["price"].to_numpy(zero_copy_only=False))
    price = table["price"].to_numpy(zero_copy_only=False)[there]
    np.testing.assert_allclose(evaluation.y, price[evaluation.rows])
    train, test = held_out_rows(len(price))
    np.testing.assert_array_equal(evaluation.rows, test)
    # The quantile between two rows is interpolated in logarithms; close to the plain one.
    expected = np.quantile(price[train], LEVELS)
    np.testing.assert_allclose(evaluation.baselines["Same quantiles for every row"][0], expected, rtol=0.02)


def test_weighted_fits_are_evaluated_by_models_with_the_same_weights():
    table = sales(200)
    table = table.append_column("w", pa.array(np.arange(200) % 3.0))
    model, training = fitted(table, weights="w")
    evaluation = evaluate_by_refitting(model, training)
    train, test = held_out_rows(len(training.rows.y))
    again = plain_regressor(LEVELS, n_components=40, random_state=0).fit(
        training.rows.X[train], training.rows.y[train], sample_weight=training.rows.weight[train]
    )
    np.testing.assert_allclose(evaluation.curves, again.predict(training.rows.X[test]))
    assert "weighted" in evaluation.how


def test_held_out_rows_are_a_fifth_and_the_last_ones_on_request():
    train, test = held_out_rows(100, seed=1)
    assert (len(train), len(test)) == (80, 20)
    assert sorted([*train, *test]) == list(range(100))
    np.testing.assert_array_equal(test, held_out_rows(100, seed=1)[1])
    assert set(test) != set(held_out_rows(100, seed=2)[1])
    assert held_out_rows(100, time_ordered=True)[1].tolist() == list(range(80, 100))


def test_linear_quantile_regression_is_that_of_scikit_learn():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(150, 2)) * [1, 1000] + [0, 5000]
    y = X @ [1.0, 0.002] + (1 + 0.3 * X[:, 0] ** 2) * rng.standard_normal(150)
    ours = predict_linear(X, y, X, np.array([0.25, 0.5]))
    for level, curve in zip((0.25, 0.5), ours.T, strict=True):
        theirs = QuantileRegressor(quantile=level, alpha=0).fit(X, y).predict(X)
        assert pinball(y, curve[:, None], [level]) == pytest.approx(pinball(y, theirs[:, None], [level]), rel=1e-3)
    assert pinball(y, predict_unconditional(X, y, X, np.array([0.5])), [0.5]) > 1.1 * pinball(y, ours[:, 1:], [0.5])


def test_baselines_of_large_tables_are_fitted_to_some_rows_and_the_page_says_so(monkeypatch):
    _, model, training, _, _ = made()
    monkeypatch.setattr("quernel.report.evaluation.OPTIONS", EvaluationOptions(max_rows=50))
    evaluation = evaluate_by_refitting(model, training)
    train, _ = held_out_rows(len(training.rows.y))
    curves = evaluation.baselines["Same quantiles for every row"]
    assert not np.allclose(curves[0], np.quantile(training.rows.y[train], LEVELS))
    assert np.all(curves == curves[0])
    assert "fitted to 50 of these rows" in evaluation.how
    assert "of these rows" not in made()[3].how


def test_lightgbm_takes_part_where_it_is_installed(monkeypatch):
    class LGBMRegressor(BaseEstimator):
        def __init__(self, alpha=0.5, objective=None, n_estimators=0, verbose=0, random_state=None, n_jobs=None):
            self.alpha, self.objective, self.n_estimators = alpha, objective, n_estimators
            self.verbose, self.random_state, self.n_jobs = verbose, random_state, n_jobs

        def fit(self, X, y):
            self.value = -np.quantile(y, self.alpha)  # the wrong way round: the levels of a row are sorted
            return self

        def predict(self, X):
            return np.full(len(X), self.value)

    fake = types.ModuleType("lightgbm")
    fake.LGBMRegressor = LGBMRegressor
    fake.__spec__ = importlib.machinery.ModuleSpec("lightgbm", None)
    monkeypatch.setitem(sys.modules, "lightgbm", fake)
    found = find_baselines()
    (name,) = [name for name in found if "LightGBM" in name]
    curves = found[name](np.zeros((50, 1)), np.arange(50.0), np.zeros((3, 1)), np.array([0.1, 0.9]))
    np.testing.assert_allclose(curves, np.tile(-np.quantile(np.arange(50.0), [0.9, 0.1]), (3, 1)))
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    found = find_baselines()
    assert [name.split(" (")[0] for name in found] == [
        "Same quantiles for every row", "Linear quantile regression", "Gradient boosting",
    ]  # fmt: skip


def test_without_lightgbm_the_baseline_is_boosting_by_scikit_learn():
    rng = np.random.default_rng(0)
    X, levels = rng.random((1500, 2)), np.array([0.1, 0.5, 0.9])
    y = np.where(X[:, 0] > 0.5, 5, 0) + (1 + X[:, 1]) * rng.standard_normal(1500)
    curves = predict_boosting(X[:1000], y[:1000], X[1000:], levels)
    assert (np.diff(curves) >= 0).all()
    np.testing.assert_allclose((y[1000:, None] <= curves).mean(axis=0), levels, atol=0.12)  # boosting is not calibrated
    assert pinball(y[1000:], curves, levels) < 0.6 * pinball(
        y[1000:], np.tile(np.quantile(y, levels), (500, 1)), levels
    )


def test_a_fan_is_the_mean_of_predictions_for_rows_with_such_values():
    table, model, training, _, _ = made()
    whole = table.filter(np.isfinite(table["price"].to_numpy(zero_copy_only=False)))
    size, place, garden = compute_fans(model, whole, training.rows.y, ["size", "place", "garden"])
    predicted, sizes = model.predict(whole), whole["size"].to_numpy(zero_copy_only=False)
    distance = np.abs(sizes - size.grid[20])
    reach = max(np.nanquantile(distance, 0.11), 0.05 * np.ptp(size.grid))
    near = predicted[distance < reach]
    assert np.all((near.min(axis=0) < size.curves[20]) & (size.curves[20] < near.max(axis=0)))
    spread = np.ptp(size.curves[np.isfinite(size.curves[:, 1]), 1])
    np.testing.assert_allclose(size.curves[20], near.mean(axis=0), atol=0.2 * spread)
    assert spread > 0.5 * np.std(training.rows.y)
    assert place.categories[0] == "north"
    assert set(place.categories) == {"north", "south", "east", "(missing)"}
    south = predicted[np.array(whole["place"].to_pylist()) == "south"].mean(axis=0)
    np.testing.assert_allclose(south, place.curves[place.categories.index("south")])
    assert garden.categories == ("false", "true")
    assert len(garden.x) > 200


def test_a_fan_says_how_many_rows_it_rests_on_and_has_no_curves_where_there_are_few():
    rng = np.random.default_rng(0)
    x = np.where(np.arange(300) < 4, 9.0, rng.random(300))  # more than the share that a grid leaves out
    words = np.where(np.arange(300) < 4, "rare", rng.choice([f"w{k:02}" for k in range(20)], 300))
    table = pa.table({"x": x, "word": words, "y": rng.random(300)})
    model, training = fitted(table, "y")
    number, word = compute_fans(model, table, training.rows.y, ["x", "word"])
    reach = 0.04 * np.ptp(np.quantile(x, (0.05, 0.95)))
    assert number.n_near.tolist() == [np.sum(np.abs(x - at) <= reach) for at in number.grid]
    np.testing.assert_array_equal(np.isnan(number.curves).any(axis=1), number.n_near < 5)
    assert np.isnan(number.curves[-1]).all()
    assert number.value_texts(np.array(LEVELS))[-1] == "9: 4 rows near\ntoo few for an average"
    text = number.value_texts(np.array(LEVELS))[1].split("\n")
    assert text[0].endswith(f": {number.n_near[1]} rows near")
    assert [line.split(": ")[0] for line in text[1:]][1:] == ["average 90\N{NO-BREAK SPACE}% range"]
    assert "nan" not in charts.draw_fan(number, np.array(LEVELS), "y")
    assert word.total == 20 + ("rare" in model.encoder.columns_[1].categories)
    page = read(report_page(model, table, evaluate_by_refitting(model, training), data="d.csv", model_file="m"))
    assert f"Shown are the 10 most frequent of {word.total} values in these rows." in page.texts["columns"]
    assert "average 90 % range" in page.texts["columns"]


def test_charts_put_values_where_they_belong():
    chart = Chart((0, 10), (0, 5), alt="a", x_label="x", y_label="y")
    assert chart.across(10) > chart.across(0)
    assert chart.down(5) < chart.down(0)
    assert chart.across(5) == (chart.across(0) + chart.across(10)) / 2
    chart.dots([5, 50], [1, 1], "rows")
    assert chart.marks[-1].count("M") == 1
    assert Chart((3, 3), (0, 0), alt="a", x_label="x", y_label="y").svg().count("nan") == 0


def test_numbers_are_short_and_right():
    assert [format_number(v) for v in (0, 12345.6, 9999.7, 2017, 2127, -1234.56, 12.345678, 0.5, 1.2e-7)] == [
        "0", "12,346", "10,000", "2017", "2,127", "-1,235", "12.35", "0.5", "1.2e-07",
    ]  # fmt: skip
    assert [format_amount(v) for v in (0, 9198.4, 12345.6, -1234.56, 12.345678, 0.5)] == [
        "0", "9,198", "12,346", "-1,235", "12.35", "0.5",
    ]  # fmt: skip
    assert format_numbers([3334.2, 10599]) == ["3,334", "10,599"]
    assert format_numbers([2013, 2016], grouped=None) == ["2013", "2016"]
    assert format_numbers([2013, 2500], grouped=None) == ["2,013", "2,500"]
    assert [format_tick(v) for v in (0, 2500, 250_000, 1.5e6, -2e9)] == ["0", "2,500", "250k", "1.5M", "-2G"]
    assert [text for _, text in round_ticks(2000, 2020)] == ["2000", "2005", "2010", "2015", "2020"]
    assert [text for _, text in round_ticks(0, 4000)] == ["0", "1,000", "2,000", "3,000", "4,000"]
    assert [value for value, _ in round_ticks(0.03, 0.97)] == pytest.approx([0.2, 0.4, 0.6, 0.8])


@pytest.fixture
def sales_files(monkeypatch, tmp_path):
    """Rows to fit and rows to report on, in the working directory."""
    csv.write_csv(sales(200), tmp_path / "old.csv")
    csv.write_csv(sales(100, seed=1), tmp_path / "new.csv")
    monkeypatch.chdir(tmp_path)


FIT = ("fit", "old.csv", "--target", "price", "--components", 40, "--quantiles", "0.05,0.5,0.95")


def test_fit_and_report_write_pages(sales_files, tmp_path):
    code, out, err = run(*FIT, "--model", "m.quernel", "--report", "fit.html", "--json")
    assert code == 0, err
    report = json.loads(out)
    page = read((tmp_path / "fit.html").read_text("utf-8"))
    assert format_number(np.mean(report["evaluation"]["pinball_loss"])) == page.row("loss", "This model")[1]
    assert report["evaluation"]["unseen"]
    code, out, err = run("report", "m.quernel", "new.csv", "--out", "new.html", "--json")
    assert code == 0, err
    report = json.loads(out)
    assert (report["rows_evaluated"], report["unseen"]) == (100 - sales(100, seed=1)["price"].null_count, False)
    assert "sales" not in (tmp_path / "new.html").read_text("utf-8")
    assert "new.csv, 100 rows" in read((tmp_path / "new.html").read_text("utf-8")).texts[""]
    code, out, err = run("report", "m.quernel", "new.csv", "--compare", "m.quernel", "--out", "both.html", "--json")
    assert code == 0, err
    models = json.loads(out)["models"]
    assert models["m"]["pinball_loss"] == models["m.quernel"]["pinball_loss"] == report["pinball_loss"]
    assert "Difference" in {row[0] for row in read((tmp_path / "both.html").read_text("utf-8")).rows["models"]}
    code, out, _ = run("report", "m.quernel", "new.csv", "--out", "again.html")
    assert code == 0
    assert "again.html" in out
    loss = read((tmp_path / "again.html").read_text("utf-8")).row("loss", "This model")[1]
    assert f" rows {loss} (" in " ".join(out.split())  # as on the page, not 1.2e+04


def test_a_calibrated_interval_is_evaluated_by_one_that_has_not_seen_the_rows(sales_files, tmp_path):
    csv.write_csv(sales(800), tmp_path / "old.csv")  # enough to tell the shares below from chance
    narrow = ("fit", "old.csv", "--target", "price", "--components", 200, "--quantiles", "0.1,0.5,0.9", "--conformal")
    narrow = (*narrow, "--alpha", 1e-8, "--no-recalibrate", "--bandwidth", "auto", "--log-target")
    code, out, err = run(*narrow, "--model", "m.quernel", "--report", "c.html", "--json")
    assert code == 0, err
    report = json.loads(out)
    calibrated, fitted = report["evaluation"]["intervals"]
    assert (calibrated["calibrated"], fitted["calibrated"]) == (True, False)
    assert calibrated["coverage"] == fitted["coverage"] == 0.8
    # So small a ridge weight follows single rows: as fitted, the interval holds far too few others.
    assert fitted["observed"] < 0.68 < calibrated["observed"] < 0.92
    page = read((tmp_path / "c.html").read_text("utf-8"))
    line = page.row("coverage", "80 %, calibrated")
    assert line[1] == f"{100 * calibrated['observed']:.1f} %"
    assert line[-1] == format_number(calibrated["mean_width"])
    assert "Coverage of the 80 % calibrated interval" in page.texts[""]
    assert "fitted to and calibrated on" in page.texts["loss"]
    assert "predict_interval(frame)" in page.texts["load"]
    assert "the model overfits" not in page.texts["coverage"]  # the remedy has been taken

    model, table = quernel.load(tmp_path / "m.quernel"), sales(100, seed=1)
    code, out, err = run("report", "m.quernel", "new.csv", "--out", "new.html", "--json")
    assert code == 0, err
    y = table["price"].to_numpy(zero_copy_only=False)
    low, high = model.predict_interval(table).T
    there = np.isfinite(y)
    assert json.loads(out)["intervals"][0]["observed"] == np.mean(((low <= y) & (y <= high))[there])


def test_a_report_does_not_change_the_model(sales_files, tmp_path):
    run(*FIT, "--model", "a.quernel")
    code, out, err = run(*FIT, "--model", "b.quernel", "--report", "b.html", "--time-ordered")
    assert code == 0, err
    assert "b.html" in out
    a, b = (quernel.load(tmp_path / name).predict(sales(50, seed=2)) for name in ("a.quernel", "b.quernel"))
    np.testing.assert_array_equal(a, b)
    assert "evaluated on the last" in read((tmp_path / "b.html").read_text("utf-8")).texts["loss"]


def test_what_cannot_work_is_said_in_one_line_and_leaves_no_file(sales_files, tmp_path):
    run(*FIT, "--model", "m.quernel")
    (tmp_path / "mine.html").write_text("mine")
    (tmp_path / "untargeted.csv").write_text("\n".join(
        line.rsplit(",", 1)[0] for line in (tmp_path / "new.csv").read_text().splitlines()
    ))  # fmt: skip
    (tmp_path / "few.csv").write_text("\n".join((tmp_path / "new.csv").read_text().splitlines()[:9]))
    (tmp_path / "none.csv").write_text((tmp_path / "new.csv").read_text().splitlines()[0] + "\n")
    before = sorted(tmp_path.iterdir())
    cases = {
        ("report", "m.quernel", "new.csv", "--out", "mine.html"): "exists already",
        ("report", "m.quernel", "new.csv", "--out", "page.txt"): "must end in .html",
        ("report", "m.quernel", "new.csv", "--out", "gone/page.html"): "is missing",
        ("report", "m.quernel", "untargeted.csv", "--out", "p.html"): "no column 'price'",
        ("report", "m.quernel", "few.csv", "--out", "p.html"): "at least 20 are needed",
        ("report", "m.quernel", "none.csv", "--out", "p.html"): "no rows|at least 20",
        ("report", "new.csv", "new.csv", "--out", "p.html"): "model",
        (*FIT, "--model", "n.quernel", "--report", "mine.html"): "exists already",
        (*FIT, "--model", "n.quernel", "--time-ordered"): "Add --conformal or --report",
    }
    for arguments, message in cases.items():
        code, _, err = run(*arguments)
        assert code == 1, arguments
        assert re.search(message, err), (arguments, err)
        assert "Traceback" not in err
        assert [line.startswith("Error:") for line in err.strip().splitlines()] == [True]
    assert sorted(tmp_path.iterdir()) == before
    assert (tmp_path / "mine.html").read_text() == "mine"
    assert run("report", "m.quernel", "new.csv", "--out", "mine.html", "--force")[0] == 0
    assert (tmp_path / "mine.html").read_text("utf-8").startswith("<!doctype html>")
