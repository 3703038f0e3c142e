"""Where the page says that predictions are not to be relied on, and that it does not say so elsewhere."""

import base64
import csv
import io
import re
import sys
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from scipy.special import ndtri

from quernel import KernelQuantileRegressor
from quernel.conformal.table_model import TableModel
from quernel.plots.calibration import binomial_band
from quernel.report import Evaluation, evaluate_by_refitting, report_page
from quernel.report.advice import describe_deviation
from quernel.report.evaluation import Interval
from quernel.report.formatting import format_share
from quernel.report.reliability import compute_groups, compute_periods
from quernel.report.sections import MAX_DOWNLOAD
from quernel.tables.training_data import ReadOptions
from support.report_page import LEVELS, made, read
from support.tables import prepare

DAY = 86_400


def evaluated(table, curves, **changes):
    """A model of a table, and an evaluation on all its rows with these quantiles instead of the model's."""
    training = prepare(table, ReadOptions("y"))
    estimator = KernelQuantileRegressor(LEVELS, kernel="linear", recalibrate=False, tol=1e-2)
    model, y = (
        TableModel(training.encoder, estimator.fit(training.rows.X[:200], training.rows.y[:200]), "y"),
        table["y"].to_numpy(),
    )
    baselines = {"Same quantiles for every row": np.tile(np.quantile(y, LEVELS), (len(y), 1))}
    inside = np.zeros(training.rows.X.shape, dtype=bool)
    arrays = np.arange(len(y)), training.rows.X, y, np.array(LEVELS), curves, inside
    return model, Evaluation(model, *arrays, baselines, "on all rows", unseen=True, **changes)


def noisy(n=600, seed=0):
    rng = np.random.default_rng(seed)
    place = rng.choice(["north", "south"], n)
    return rng, place, rng.random(n), np.tile(ndtri(LEVELS), (n, 1))


def test_a_group_that_is_not_covered_is_named_and_the_others_are_not():
    rng, place, x, curves = noisy()
    y = rng.standard_normal(600) * np.where(place == "south", 2.0, 0.8)
    table = pa.table({"place": place, "x": x, "y": y})
    model, evaluation = evaluated(table, curves)
    page = read(report_page(model, table, evaluation, data="d.csv", model_file="m.quernel"))
    inside = np.abs(y) <= ndtri(0.95)
    rows = {row[1]: row for row in page.rows["groups"]}
    for name in ("north", "south"):
        assert rows[name][2] == f"{np.sum(place == name)}"
        assert rows[name][3] == f"{100 * inside[place == name].mean():.1f} %"
    assert (rows["north"][5], rows["south"][5]) == ("wide", "off")
    assert "place is south" in page.texts["groups"].split("Do not rely")[0]
    assert "place is north" not in page.texts["groups"].split("Do not rely")[0]
    assert re.search(r"Where not to trust it:.*place is south \(covers \d+ %\)", page.texts[""])


def test_groups_of_right_quantiles_are_rarely_called_off():
    """Of all groups together, by the 95 % that the page promises."""
    off = 0
    for seed in range(60):
        rng, place, x, curves = noisy(400, seed)
        table = pa.table({"place": place, "x": x, "y": rng.standard_normal(400)})
        if seed == 0:
            _, evaluation = evaluated(table, curves)
        evaluation = replace(evaluation, y=table["y"].to_numpy())
        groups = compute_groups(evaluation, table, ["place", "x"])
        assert [group.column for group in groups] == ["place"] * 2 + ["x"] * 4  # one prediction: no groups by it
        off += any(group.narrow for group in groups)
    assert off <= 8


@pytest.mark.parametrize("dated", [True, False])
def test_drift_is_said_in_words_where_rows_are_in_time_order(dated):
    rng, _, x, curves = noisy()
    when = {"when": pa.array(np.arange(600, dtype=np.int32)).cast(pa.date32())} if dated else {"z": rng.random(600)}
    steady = rng.standard_normal(600)
    for y, drifts in ((steady, False), (steady + np.linspace(-0.5, 2.5, 600), True)):
        table = pa.table(when | {"x": x, "y": y})
        model, evaluation = evaluated(table, curves, time_ordered=not dated)
        page = read(report_page(model, table, evaluation, data="d.csv", model_file="m.quernel"))
        # Rows were held out at random unless they are in time order: no all-clear between rows of the same time.
        assert ("time" in page.texts) == (drifts or not dated)
        assert ("future" in page.texts[""]) == dated
        if "time" not in page.texts:
            continue
        assert ("rises with time" in page.texts["time"]) == drifts
        assert ("The coverage falls with time" in page.texts[""]) == drifts
        assert ("No drift shows" in page.texts["time"]) == (not drifts and not dated)
        assert ("row, in time order" in page.texts["time"]) != dated
        assert ("from 1970-01-01 to 1971-08-23." in page.texts["time"]) == dated
        inside = np.abs(y) <= ndtri(0.95)
        low, high = binomial_band(0.9, 50)
        shares = np.array([inside[k : k + 50].mean() for k in range(0, 600, 50)])
        below, above = np.sum(shares < low), np.sum(shares > high)
        said = f"Coverage is below its band in {below} and above it in {above} of 12 periods"
        assert (said in page.texts["time"]) == (below + above > 0)
    if not dated:
        assert compute_periods(replace(evaluation, time_ordered=False), table, np.arange(600)) is None


def test_later_rows_that_have_risen_are_said_to_have():
    rng = np.random.default_rng(0)
    for rise in (0.0, 3.0):
        y = rng.standard_normal(1000) + np.where(np.arange(1000) < 800, 0, rise)
        table = pa.table({"x": rng.random(1000), "y": y})
        training = prepare(table, ReadOptions("y"))
        estimator = KernelQuantileRegressor(LEVELS, kernel="linear").fit(training.rows.X, training.rows.y)
        model = TableModel(training.encoder, estimator, "y")
        evaluation = evaluate_by_refitting(model, training, time_ordered=True)
        drift = " ".join(compute_periods(evaluation, table.slice(800), np.arange(800, 1000)).drift)
        assert ("Targets have risen since the training rows: 100" in drift) == (rise > 0)
        assert ("Rows after the training rows differ from them" in drift) == (rise > 0)


def test_later_rows_that_spread_more_are_said_to_be_covered_less():
    rng = np.random.default_rng(0)
    for scale in (1.0, 3.0):
        table = pa.table({"x": rng.random(1000), "y": rng.standard_normal(1000) * np.repeat([1, scale], [800, 200])})
        training = prepare(table, ReadOptions("y"))
        estimator = KernelQuantileRegressor(LEVELS, kernel="linear").fit(training.rows.X, training.rows.y)
        evaluation = evaluate_by_refitting(TableModel(training.encoder, estimator, "y"), training, time_ordered=True)
        drift = " ".join(compute_periods(evaluation, table.slice(800), np.arange(800, 1000)).drift)
        assert ("differ from them: the 90\u00a0% interval covers" in drift) == (scale > 1)
        assert "Targets have" not in drift


@pytest.mark.parametrize(("alpha", "word"), [(1e-9, "overfits"), (10.0, "underfits")])
def test_underfit_is_not_called_overfit(alpha, word):
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (250, 2))
    table = pa.table({"a": X[:, 0], "b": X[:, 1], "y": X @ [3.0, 1.0] + 0.5 * rng.standard_normal(250)})
    training = prepare(table, ReadOptions("y"))
    settings = {"bandwidth": 0.6, "alpha": alpha, "n_components": 150, "recalibrate": False, "random_state": 0}
    estimator = KernelQuantileRegressor(LEVELS, **settings).fit(training.rows.X, training.rows.y)
    model = TableModel(training.encoder, estimator, "y")
    evaluation = evaluate_by_refitting(model, training)
    top = read(report_page(model, table, evaluation, data="d.csv", model_file="m.quernel")).texts[""]
    assert [name for name in ("overfits", "underfits") if name in top] == [word]
    assert ("smaller ridge weight" in top) == (word == "underfits")
    assert ("larger ridge weight" in top) == (word == "overfits")


def downloaded(page):
    (held,) = re.findall(r'href="data:text/csv;base64,([^"]*)"', page)
    return list(csv.reader(io.StringIO(base64.b64decode(held).decode())))


def test_predictions_can_be_downloaded_from_the_page_itself():
    *_, evaluation, page = made()
    head, *rows = downloaded(page)
    assert head == ["row", "price", "q0.05", "q0.5", "q0.95", "outside_training_range"]
    assert len(rows) == len(evaluation.y)
    numbers = np.array(rows, dtype=float)
    np.testing.assert_allclose(numbers[:, 1], evaluation.y, rtol=1e-6)
    np.testing.assert_allclose(numbers[:, 2:5], evaluation.curves, rtol=1e-6)
    np.testing.assert_array_equal(numbers[:, 5], evaluation.outside)


def test_the_page_of_many_rows_columns_and_levels_is_below_five_megabytes(monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "LEVELS", (np.arange(1, 20) / 20).tolist())
    rng, n = np.random.default_rng(0), 9000
    table = pa.table({f"column number {k}": rng.random(n) for k in range(32)} | {"y": rng.random(n)})
    model, evaluation = evaluated(table, np.sort(rng.random((n, 19)), axis=1))
    page = report_page(model, table, evaluation, data="d.csv", model_file="m.quernel")
    assert 1e6 < len(page.encode()) < 5e6
    assert len(downloaded(page)) - 1 == MAX_DOWNLOAD // 22 < n


def test_the_top_says_what_looks_capped_impossible_or_rests_on_a_random_split():
    rng, place, x, curves = noisy()
    y = np.minimum(np.exp(rng.standard_normal(600)), 2.0)
    table = pa.table({"place": place, "x": x, "y": y})
    model, evaluation = evaluated(table, curves)  # whose lowest quantiles are negative
    text = " ".join(read(report_page(model, table, evaluation, data="d.csv", model_file="m.quernel")).texts[""].split())
    capped = f"Values near 2: {100 * np.mean(y == 2):.1f} % of rows have exactly this value, which looks like a cap"
    assert f"{capped}; true values above it are unknown" in text
    below = f"100.0 % of the predicted 0.05 quantiles are below 0 (down to {ndtri(0.05):.3f})"
    assert f"{below}, though no target is; quernel fit --lower 0 or --log-target prevents that" in text
    inside = 100 * np.mean(curves[y == 2, 2] >= 2)
    assert f"The 90 % interval covers only {inside:.0f} % of the {np.sum(y == 2)} held-out rows that have it" in text
    assert "The future" not in text, "rows without dates"
    page = report_page(
        model, table, replace(evaluation, curves=curves + np.array([-3, -1, 1])), data="d.csv", model_file="m"
    )
    text = " ".join(read(page).texts[""].split())
    below = "100.0 % of the predicted 0.05 quantiles and 100.0 % of the predicted 0.5 quantiles are below 0"
    assert below in text
    assert f"The 90 % interval covers 100 % of the {np.sum(y == 2)} held-out rows that have it" in text
    above = 100 * np.mean(curves[:, 2] + 1 > 2)
    assert f"Of the predicted 0.95 quantiles {above:.1f} % lie there" in text
    table = table.set_column(2, "y", pa.array(y - 5 + 0.01 * x))
    model, evaluation = evaluated(table, curves)
    text = read(report_page(model, table, evaluation, data="d.csv", model_file="m.quernel")).texts[""]
    assert "a cap" not in text
    assert "below 0, though" not in text


@pytest.mark.parametrize(
    ("observed", "low", "high", "said"),
    [
        (0.910, 0.890, 0.912, "1.0 point more than 90\u00a0%: within chance"),
        (0.910, 0.891, 0.909, "1.0 point more than 90\u00a0%, beyond chance: slightly wide"),
        (0.950, 0.891, 0.909, "5.0 points more than 90\u00a0%, beyond chance: wide"),
        (0.885, 0.891, 0.909, "1.5 points less than 90\u00a0%, beyond chance: slightly narrow"),
        (0.800, 0.891, 0.909, "10.0 points less than 90\u00a0%, beyond chance: narrow"),
        (0.900, 0.891, 0.909, "as nominal: within chance"),
    ],
)
def test_coverage_has_one_wording_with_the_size_of_the_deviation(observed, low, high, said):
    for calibrated in (False, True):
        assert describe_deviation(Interval(0.9, observed, observed, low, high, 1.0, calibrated)) == said


def test_levels_that_do_not_hold_are_named_and_are_too_low_or_too_high():
    rng, place, x, curves = noisy()
    table = pa.table({"place": place, "x": x, "y": rng.standard_normal(600)})
    cases = (
        (1.0, ["ok", "ok", "ok", "ok"], ""),
        (1.5, ["too low", "ok", "too high", "wide"], "wider than stated over all rows"),
        (0.7, ["too high", "ok", "too low", "off"], "narrower than stated over all rows"),
    )
    for factor, marks, named in cases:
        model, evaluation = evaluated(table, factor * curves)
        page = read(report_page(model, table, evaluation, data="d.csv", model_file="m.quernel"))
        assert [page.row("coverage", name)[3] for name in ("0.05", "0.5", "0.95", "90 %")] == marks
        assert ("--conformal" in page.texts["coverage"]) == (factor != 1.0)
        assert ("More than chance explains" in page.texts[""]) == (factor != 1.0)
        for way in ("too low", "too high") if named else ():
            level = ("0.05", "0.5", "0.95")[marks.index(way)]
            assert f"the predicted {level} quantile is {way}" in page.texts[""]
        covered = f"(the 90 % interval covers {page.row('coverage', '90 %')[1]} of the rows)"
        assert not named or f"intervals are {named} {covered}" in page.texts[""]


def test_marks_are_those_of_the_numbers_as_they_are_printed():
    for observed, high, wide in ((0.91849, 0.91811, False), (0.91851, 0.91811, True), (0.9184, 0.9186, False)):
        assert Interval(0.9, observed, observed, 0.88, high, 1.0).wide == wide
        assert (format_share(observed) > format_share(high)) == wide


def test_small_groups_are_marked_as_such_and_capped_rows_are_not_forgotten():
    rng, _, x, curves = noisy(2000)
    place = np.where(np.arange(2000) < 40, "hamlet", "town")
    y = np.minimum(rng.standard_normal(2000), 1.7)
    page = page_of(pa.table({"place": place, "x": x, "y": y}), curves)
    rows = {row[1]: row for row in page.rows["groups"]}
    assert (rows["hamlet"][5], rows["town"][5]) == ("too few", "ok")
    inside = np.mean(y[y == 1.7] <= ndtri(0.95))
    assert inside == 0
    text = page.texts["groups"]
    assert "None of the groups listed is covered less than chance explains. Capped rows, which are not listed, " in text
    assert "are covered less: 0 %" in text
    assert "1 of the groups have too few rows to tell" in text


def test_bins_say_which_of_them_has_an_end():
    rng, _, x, curves = noisy()
    count = rng.integers(0, 25, 600)
    table = pa.table({"count": count, "x": x, "y": rng.standard_normal(600)})
    _, evaluation = evaluated(table, curves)
    groups = compute_groups(evaluation, table, ["count", "x"])
    for group in groups[:4]:
        low, high = map(int, group.name.split(" to "))
        assert group.n_rows == np.sum((count >= low) & (count <= high))
    edges = np.quantile(x, [0, 0.25, 0.5, 0.75, 1])
    for k, group in enumerate(groups[4:]):
        np.testing.assert_allclose([float(end) for end in group.name.split(" to ")], edges[k : k + 2], atol=1e-4)
        assert group.n_rows == np.sum((x > edges[k]) & (x <= edges[k + 1])) + (k == 0)


def page_of(table, curves):
    model, evaluation = evaluated(table, curves)
    return read(report_page(model, table, evaluation, data="d.csv", model_file="m.quernel"))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("shift", [0.0, -300.0])
def test_the_groups_with_the_largest_errors_are_named_with_errors_of_the_rows(seed, shift):
    rng, place, x, _ = noisy(1200, seed)
    middle = 100 * (0.1 + 9 * x ** (1 + seed)) + shift  # medians that change sign have no errors relative to them
    noise = np.abs(middle) ** 0.5 * np.where(place == "south", 1.0 + seed, 1.0) + 1
    y = middle + noise * rng.standard_normal(1200)
    y = np.abs(y) if shift == 0 else y
    curves = middle[:, None] + noise[:, None] * ndtri(LEVELS)
    table = pa.table({"place": place, "x": x, "y": y})
    _, evaluation = evaluated(table, curves)
    groups = compute_groups(evaluation, table, ["x", "place"])
    quarter = np.searchsorted(np.quantile(middle, [0.25, 0.5, 0.75]), middle)
    for group, rows in zip(groups[:4], (quarter == k for k in range(4)), strict=True):  # numbers are those of the rows
        assert group.error == pytest.approx(np.median(np.abs(y - middle)[rows]))
        assert group.typical == pytest.approx(np.median(middle[rows]))
    text = page_of(table, curves).texts[""].replace("\N{NO-BREAK SPACE}", " ")
    most = max(groups, key=lambda group: group.error / group.typical)
    said = (
        f"relative to the prediction are largest where {most.describe().replace('`', '')}: half of these rows are off"
    )
    assert (said in text) == (shift == 0)
    assert ("of a typical prediction" in text) == (shift == 0)
    if shift == 0:
        assert f"{100 * most.error / most.typical:.0f} % of a typical prediction there (of all rows: " in text
    loss = evaluation.row_losses()
    everywhere = np.median(np.abs(y - middle)) / np.median(middle)  # errors that only grow with the prediction ...
    others = [
        group for group in groups if shift != 0 or group.error / group.typical > 1.1 * everywhere
    ]  # ... do not count
    large = max(others or groups, key=lambda group: group.loss)
    said = (
        f"The loss is largest where {large.describe().replace('`', '')}: {large.loss / loss.mean():.1f} times the mean"
    )
    assert (said in text) == ("The loss is largest" in text) == bool(others and large.loss > 1.4 * loss.mean())
    worst = np.argsort(-loss)[:10]
    above, below = np.sum(y[worst] > curves[worst, 2]), np.sum(y[worst] < curves[worst, 0])
    found = re.search(
        r"(All|\d+) of the 10 worst-predicted rows lie (above|below)", page_of(table, curves).texts["worst"]
    )
    assert (
        (10 if found[1] == "All" else int(found[1])) == (above if found[2] == "above" else below) == max(above, below)
    )


def test_the_summary_says_that_an_interval_holds_where_the_table_and_the_tile_do():
    rng, _, x, curves = noisy(2000, seed=3)
    table = pa.table({"x": x, "y": rng.standard_normal(2000)})
    for factor in np.linspace(0.9, 1.15, 8):
        page = page_of(table, factor * curves)
        mark = page.row("coverage", "90 %")[3]
        words = {"ok": "within chance", "wide": "wide", "off": "narrow"}[mark]
        assert len(re.findall(rf"(?:: |slightly ){words}(?!er)", page.texts[""])) == 2
        assert ("narrower than stated" in page.texts[""]) >= (mark == "off")
        assert ("wider than stated" in page.texts[""]) <= (mark == "wide")


def test_the_top_names_low_coverage_where_the_table_of_groups_does_and_nowhere_else():
    rng, _, x, curves = noisy(2000, seed=3)
    noise = rng.standard_normal(2000)
    named = []
    for slope in (0.0, 0.1, 0.2, 0.3, 0.5, 0.8):
        page = page_of(pa.table({"x": x, "y": noise * (0.94 - slope / 2 + slope * x)}), curves)
        off = [row for row in page.rows["groups"] if row[5:6] == ["off"]]
        said = re.search(r"Intervals cover too few rows in (\d+) of \d+ groups", page.texts[""])
        assert int(said[1] if said else 0) == len(off)
        named.append(len(off))
    assert named[0] == 0 < named[-1]


def test_places_and_groups_that_held_out_rows_share_with_training_rows_are_named():
    rng, _, x, curves = noisy()
    y, codes = rng.standard_normal(600), [f"c{k % 40}" for k in range(600)]
    many = {"town": pa.array(codes), "Latitude": x, "pickup_lng": rng.random(600), "y": y}
    text = page_of(pa.table(many), curves).texts[""]
    assert "Places not in the data: rows were held out at random" in text
    assert "Values of town not in the data: rows were held out at random" in text
    assert "quernel fit --groups town evaluates on such" in text
    few = {"town": pa.array([code[:2] for code in codes]), "flat": x, "length": rng.random(600), "y": y}
    assert "not in the data" not in page_of(pa.table(few), curves).texts[""]


def test_values_far_from_all_others_are_named():
    rng, _, _, curves = noisy()
    year, size = rng.integers(1997, 2021, 600).astype(float), rng.standard_exponential(600)
    year[7], size[:3] = 1903, 99.5
    columns = {"year": year, "size": size, "flag": (np.arange(600) == 0).astype(float), "y": rng.standard_normal(600)}
    text = page_of(pa.table(columns), curves).texts[""]
    others = size[size < 99]
    assert "far from all others: year is 1903 in 1 row, else 1997 or more; size is 99.5 in 3 rows, else at most" in text
    assert f"at most {others.max():.3f}".rstrip("0") in text
    assert "flag" not in text.split("far from all others")[1].split("Pinball")[0]
    year[7], size[:3] = 2000, 1.0
    assert "far from" not in page_of(pa.table(columns), curves).texts[""]
