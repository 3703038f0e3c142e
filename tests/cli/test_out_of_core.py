"""Commands on tables that memory does not hold: reports, plans, searches, other formats, and a cluster."""

import json
import re
from importlib import import_module

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from pyarrow import csv
from scipy.stats import chisquare

import quernel
from quernel.conformal import regressor
from quernel.data import SelectedRows, sources
from quernel.estimators import quantile_cv
from quernel.report import evaluation
from quernel.tables import training_data
from support.command_line import assert_same_model, fit_model, run
from support.report_page import read as read_page
from support.tables import sales, write_files

# Rows that are streamed are not recalibrated, and bandwidths are learned from another sample of them.
ALIKE = ("--bandwidth", "auto", "--no-recalibrate")
QUICK = ("--components", "40", *ALIKE, "--quantiles", "0.1,0.5,0.9", "--json")
LITTLE = ("--max-memory", "20kB")


def read_report(ran):
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def nearly_equal(one, other):
    """The same keys and words, and numbers that agree as far as two certified fits do."""
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            nearly_equal(one[key], other[key])
    elif isinstance(one, list):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            nearly_equal(a, b)
    elif isinstance(one, float):
        np.testing.assert_allclose(one, other, rtol=1e-3)
    else:
        assert one == other


@pytest.mark.parametrize(
    ("memory", "read"), [((), "whole"), (("--max-memory", "5kB"), "streamed")], ids=["whole", "streamed"]
)
def test_the_range_of_targets_is_that_of_their_logarithms(tmp_path, memory, read):
    """Targets whose squares overflow, or that are all but equal, are refused unless their logarithms are fitted."""
    x = np.linspace(0, 1, 400)
    for name, y, refused in (
        ("large", 1e160 * np.exp(np.sin(5 * x)), "values as large as 2.72e.160, outside the supported range"),
        ("small", 1e-160 * np.exp(np.sin(5 * x)), "that differ by .*e-160 only"),
    ):
        folder = write_files(tmp_path / name, pa.table({"x": x, "y": y}))
        ran = run("fit", folder, "--target", "y", "--model", tmp_path / "m", *QUICK, *memory)
        assert ran.returncode != 0
        assert re.search(refused, " ".join(ran.stderr.split()))
        made, model = fit_model(folder, "y", tmp_path / f"{name}.m", *QUICK, *memory, "--log-target")
        assert made["read"] == read
        assert np.abs(np.log(model.predict(pa.table({"x": x}))[:, 1] / y)).max() < 0.1


@pytest.mark.parametrize(
    "options", [["--time-ordered"], ["--log-target", "--weights", "age", "--conformal"]], ids=["in time", "calibrated"]
)
def test_a_report_of_a_stream_is_that_of_the_table_in_memory(tmp_path, options):
    """A table small enough that the sample holds all its rows: the same rows are held out, and judge."""
    table = sales(500).append_column("id", pa.array(np.arange(500.0)))
    table = table.set_column(1, "age", pa.array(1 + np.arange(500) % 30))
    folder = write_files(tmp_path / "data", table)
    pages = []
    for name, memory in (("whole", ()), ("streamed", LITTLE)):
        page = tmp_path / f"{name}.html"
        made = fit_model(
            folder, "price", tmp_path / f"{name}.m", *QUICK, *options, *memory, "--report", page, "--seed", "3"
        )[0]
        assert made["read"] == name
        pages.append((made["evaluation"], page.read_text()))
    (one, text), (other, streamed) = pages
    nearly_equal(one, other)
    assert other["sample_of"] is None
    one, other = read_page(text), read_page(streamed)
    assert one.rows["data"] == other.rows["data"]
    places = [[row[0] for row in page.rows["worst"]] for page in (one, other)]
    assert places[0] == places[1]  # the same rows, named by their places in the files
    assert len(places[0]) == 11


def test_a_report_of_a_stream_evaluates_on_a_sample_of_rows_that_the_fit_has_not_seen(tmp_path, monkeypatch):
    monkeypatch.setattr(training_data, "MIN_SAMPLE", 300)
    seen, judges = [], []
    refit, judge = evaluation.subset, evaluation._evaluate

    def selecting(rows, chosen):
        some = refit(rows, chosen)
        assert isinstance(some, SelectedRows)
        seen.append(np.concatenate([piece.y for piece in some.stream(range(len(some.spans)))]))
        return some

    def evaluate(model, X, y, splits, how, **more):
        judges.append((y[splits[0][0]], y[splits[0][1]]))
        return judge(model, X, y, splits, how, **more)

    monkeypatch.setattr(evaluation, "subset", selecting)
    monkeypatch.setattr(evaluation, "_evaluate", evaluate)
    folder = write_files(tmp_path / "data", sales(1000))
    page = tmp_path / "r.html"
    made = fit_model(folder, "price", tmp_path / "m", *QUICK, *LITTLE, "--report", page)[0]
    (fitted_to,), ((baselines, held_out),) = seen, judges
    n = made["rows"]
    assert len(fitted_to) == n - round(0.2 * n)
    assert not np.isin(held_out, fitted_to).any()
    assert np.isin(baselines, fitted_to).all()  # so that the line above could fail
    assert (made["evaluation"]["rows_evaluated"], made["evaluation"]["sample_of"]) == (len(held_out), round(0.2 * n))
    assert 280 <= len(held_out) + len(baselines) <= 300  # some have no target
    text = page.read_text()
    for message in (
        f"evaluated on {len(held_out)} rows, a random sample of the {round(0.2 * n)} held-out rows",
        f"Pinball loss on {len(held_out)} held-out rows, a sample of {round(0.2 * n)}",
        "What follows describes a random sample of 300 rows.",
        "1,000 rows, 5 input columns",
        f"fitted to {len(baselines)} of those {len(fitted_to)} rows",
    ):
        assert message in text, message


def test_report_evaluates_on_all_rows_or_on_a_sample_from_everywhere(tmp_path, monkeypatch):
    table = sales(2000)
    folder = write_files(tmp_path / "data", table, n_files=10)
    model = fit_model(write_files(tmp_path / "old", sales(300, seed=1)), "price", tmp_path / "m", *QUICK)[1]
    arguments = ("report", tmp_path / "m", folder, "--json", "--out")
    n = len(table) - table["price"].null_count
    whole = read_report(run(*arguments, tmp_path / "whole.html"))
    assert (whole["rows_evaluated"], whole["sample_of"]) == (n, None)
    report_command = import_module("quernel.cli.report")
    drawn, draw = [], report_command._read_sample

    def keep(*given):
        drawn.append(draw(*given))
        return drawn[0]

    monkeypatch.setattr(report_command, "_read_sample", keep)
    sampled = read_report(run(*arguments, tmp_path / "sampled.html", *LITTLE))
    (sample,) = drawn
    assert (len(sample.table), sampled["sample_of"]) == (1000, n)
    there = np.isfinite(sample.table["price"].to_numpy(zero_copy_only=False))
    assert sampled["rows_evaluated"] == there.sum()
    assert chisquare(np.histogram(sample.row, 10, (0, 2000))[0]).pvalue > 1e-4
    # The loss of these very rows, by hand; and near that of all rows.
    y, curves = (
        part[sample.row[there]] for part in (table["price"].to_numpy(zero_copy_only=False), model.predict(table))
    )
    residual = y[:, None] - curves
    by_hand = np.maximum(model.quantiles_ * residual, (model.quantiles_ - 1) * residual).mean(axis=0)
    np.testing.assert_allclose(sampled["pinball_loss"], by_hand, rtol=1e-9)
    np.testing.assert_allclose(sampled["pinball_loss"], whole["pinball_loss"], rtol=0.1)
    text = (tmp_path / "sampled.html").read_text()
    assert f"evaluated on {there.sum()} rows, a random sample of all {n:,} rows of the data with a target" in text
    assert "2,000 rows, 5 input columns" in text


def test_samples_with_too_few_targets_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(training_data, "MIN_SAMPLE", 1)
    folder = write_files(tmp_path / "data", sales())
    fit = ("fit", folder, "--target", "price", "--model", tmp_path / "m", *QUICK)
    ran = run(*fit, "--report", tmp_path / "r.html", "--max-memory", "600")
    assert (ran.returncode, "Of 1 rows sampled for the report" in ran.stderr) == (1, True)
    ran = run("report", tmp_path / "m", folder, "--out", tmp_path / "r.html", "--max-memory", "600")
    assert ran.returncode == 1
    assert "data has 1 rows with a target among 1 sampled; at least 20 are needed" in ran.stderr
    assert not (tmp_path / "r.html").exists()


def test_a_plan_from_a_sample_that_holds_all_rows_is_the_plan(tmp_path, monkeypatch):
    folder = write_files(tmp_path / "data", sales(900))
    arguments = ("plan", folder, "--target", "price", "--subsample", "400", "--json")
    whole, streamed = read_report(run(*arguments)), read_report(run(*arguments, *LITTLE))
    for way in streamed["sampling"].values():
        assert " ".join(LITTLE) in way["command"]
        way["command"] = way["command"].replace(f" {' '.join(LITTLE)}", "")
    assert streamed == whole
    assert whole["rows"] < 900
    monkeypatch.setattr(training_data, "MIN_SAMPLE", 500)
    ran = run(*arguments, *LITTLE)
    sampled = read_report(ran)
    assert (sampled["rows"], sampled["columns"]) == (whole["rows"], whole["columns"])
    assert f"400 of {whole['rows']} rows" in ran.stderr
    np.testing.assert_allclose(sampled["alpha"], whole["alpha"], rtol=0.5)
    assert sampled["exponents"] != whole["exponents"]  # from other rows


def written(path, table):
    if path.suffix == ".feather":
        pyarrow.feather.write_feather(table, path)
    else:
        with pa.output_stream(str(path), compression="detect") as stream:
            csv.write_csv(table, stream)
    return path


@pytest.mark.parametrize("name", ["sales.csv", "sales.csv.gz", "sales.feather"])
def test_files_of_other_formats_are_read_in_parts(tmp_path, monkeypatch, name):
    monkeypatch.setattr(sources, "BLOCK_ROWS", 64)
    table = sales(300)
    path = written(tmp_path / name, table)
    whole = fit_model(path, "price", tmp_path / "whole", *QUICK)
    streamed = fit_model(path, "price", tmp_path / "m", *QUICK, "--max-memory", "10kB")
    assert (whole[0]["read"], streamed[0]["read"]) == ("whole", "streamed")
    assert_same_model(whole, streamed, table, "price")


def test_rows_in_order_of_time_and_in_groups_are_searched_in_parts(tmp_path, monkeypatch):
    rng, n = np.random.default_rng(0), 600
    label = rng.integers(0, 12, n)
    table = pa.table({"x": np.arange(n) / n, "label": label + 0.0, "y": rng.normal(size=n) + label})
    table = table.append_column("group", pa.array([f"g{k}" for k in label]))
    folder = write_files(tmp_path / "data", table)
    common = ("--components", "10", "--quantiles", "0.5", "--alphas", "1e-3", "--bandwidths", "1", "--json")
    arguments = ("tune", folder, "--target", "y", *common, "--max-memory", "10kB", "--model")
    splits, search = [], quantile_cv.search

    def keep(source, lifts, loss, alphas, found, **more):
        splits.append([(source.X[train], source.X[test]) for train, test in found])
        return search(source, lifts, loss, alphas, found, **more)

    monkeypatch.setattr(quantile_cv, "search", keep)
    for number, options in enumerate((["--folds", "3"], ["--validation", "0.25"])):
        ran = run(*arguments, tmp_path / f"time{number}", "--time-ordered", "--exclude", "group", *options)
        assert (read_report(ran)["read"], len(splits[-1])) == ("streamed", 3 - 2 * number)
        for earlier, later in splits[-1]:
            assert earlier[:, 0].max() < later[:, 0].min()
        assert quernel.load(tmp_path / f"time{number}").model.cv.get_n_splits() == 3 - 2 * number
    assert len(splits[-1][0][1]) == round(0.25 * sum(len(part) for part in splits[-1][0]))
    read_report(run(*arguments, tmp_path / "grouped", "--groups", "group", "--folds", "4"))
    assert quernel.load(tmp_path / "grouped").encoder.inputs == ["x", "label"]
    for train, test in splits[-1]:
        assert not np.isin(test[:, 1], train[:, 1]).any()
        assert np.isin(np.arange(12), [*train[:, 1], *test[:, 1]]).all()
    ran = run(*arguments, tmp_path / "none", "--groups", "group", "--folds", "13")
    assert (ran.returncode, "has 12 groups, but --folds 13 needs at least 13" in ran.stderr) == (1, True)
    holes = table.set_column(3, "group", pa.array([None, *table["group"].to_pylist()[1:]]))
    write_files(folder, holes)
    ran = run(*arguments, tmp_path / "none", "--groups", "group")
    assert (ran.returncode, "'group' is empty in 1 of" in ran.stderr) == (1, True)


def test_a_running_cluster_fits_evaluates_and_searches(tmp_path):
    distributed = pytest.importorskip("distributed")
    table = sales()
    folder = write_files(tmp_path / "data", table)
    quick = ("--components", "20", "--quantiles", "0.5", "--json")  # a step is some round trips
    whole = fit_model(folder, "price", tmp_path / "whole", *quick, *ALIKE, "--report", tmp_path / "whole.html")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=False, host="tcp://127.0.0.1", dashboard_address=None
    ) as cluster:
        address = cluster.scheduler_address
        assert address.startswith("tcp://127.0.0.1:")
        options = ("--dask", address, "--report", tmp_path / "r.html")
        spread_out = fit_model(folder, "price", tmp_path / "m", *quick, *ALIKE, *options)
        search = ("--alphas", "1e-6,1e-5", "--bandwidths", "auto,1", "--validation", "0.3")
        ran = run("tune", folder, "--target", "price", *quick, *search, "--dask", address)
        assert len(cluster.workers) == 2  # it is left running
    assert spread_out[0]["read"] == read_report(ran)["read"] == "dask"
    assert_same_model(whole, spread_out, table, "price")
    nearly_equal(spread_out[0]["evaluation"], whole[0]["evaluation"])


def test_a_local_cluster_reads_fits_calibrates_and_evaluates(tmp_path):
    pytest.importorskip("distributed")
    table = sales()
    pq.write_table(table, tmp_path / "sales.parquet", row_group_size=len(table) // 4)
    quick = ("--components", "20", *ALIKE, "--quantiles", "0.1,0.9", "--json", "--conformal")
    found = []
    for name, options in (("whole", ()), ("dask", ("--dask", "local"))):
        files = tmp_path / f"{name}.quernel", *quick, *options, "--report", tmp_path / f"{name}.html"
        found.append(fit_model(tmp_path / "sales.parquet", "price", *files))
    whole, spread_out = found
    assert (whole[0]["read"], spread_out[0]["read"]) == ("whole", "dask")
    assert_same_model(whole, spread_out, table, "price")
    assert whole[0]["calibration_rows"] == spread_out[0]["calibration_rows"] > 0
    nearly_equal(spread_out[0]["evaluation"], whole[0]["evaluation"])
    assert spread_out[0]["evaluation"]["intervals"][0]["calibrated"]
    ends = [model.predict_interval(table) for _, model in found]
    assert np.abs(ends[0] - ends[1]).mean() < 1e-3 * np.abs(ends[0][:, 1] - ends[0][:, 0]).mean()
    pages = [(tmp_path / f"{name}.html").read_text() for name in ("whole", "dask")]
    assert all("calibrated" in page and "</html>" in page for page in pages)


def test_checkpoints_are_for_the_fit_of_one_model():
    X, y = np.zeros((50, 1)), np.arange(50.0)
    for kwargs, message in (
        ({"method": "cv+"}, "several models"),
        ({"estimator": object(), "method": "prefit"}, "none"),
    ):
        with pytest.raises(ValueError, match=f"here {message} will be fitted"):
            regressor.ConformalQuantileRegressor(**kwargs).fit(X, y, checkpoint="c")
