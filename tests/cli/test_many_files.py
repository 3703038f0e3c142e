"""Commands on tables of many files that are read in parts: the answers are those of the table in memory."""

import json
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv

from quernel.cli.console import parse_bytes
from quernel.data.streaming import StreamedDesign
from quernel.datasets import load_wind
from quernel.solvers import screening as driver
from support.command_line import assert_same_model, fit_model, run
from support.tables import read_table, sales, write_files

SHARED = Path(__file__).parents[3] / "shared" / "data"
QUICK = ("--components", "40", "--bandwidth", "auto", "--no-recalibrate", "--quantiles", "0.1,0.5,0.9", "--json")


def wind():
    data = load_wind()
    return pa.table({**{f"x{j}": data.X[:, j] for j in range(data.X.shape[1])}, "power": data.y})


def windmills():
    table = read_shared("wind_la_haute_borne_scada")
    return table.take(np.sort(np.random.default_rng(0).choice(len(table), 6_000, replace=False)))


def flights():
    """All 336,776 rows of them."""
    return read_shared("nycflights13_flights")


def read_shared(name):
    path = SHARED / f"{name}.parquet"
    if not path.exists():
        pytest.skip(f"{path.name} is not here")
    return read_table(path)


@pytest.fixture
def passes(monkeypatch):
    """How often rows of files were swept; tables as small as those here would be gathered instead."""
    monkeypatch.setattr(driver, "OPTIONS", replace(driver.OPTIONS, small=10_000))
    sweeps, map_reduce = [], StreamedDesign.map_reduce

    def counted(self, *args, **more):
        sweeps.append(self.n_rows)
        return map_reduce(self, *args, **more)

    monkeypatch.setattr(StreamedDesign, "map_reduce", counted)
    return sweeps


@pytest.mark.parametrize(
    ("make", "target", "memory", "options"),
    [
        (partial(sales, 1500), "price", "60kB", ["--log-target"]),
        (wind, "power", "400kB", []),
        (windmills, "P_avg", "400kB", []),
        pytest.param(
            *(flights, "arr_delay", "60MB", ["--exclude", "dep_time,arr_time,tailnum", "--weights", "distance"]),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_table_read_in_parts_gives_the_model_of_the_table_in_memory(passes, tmp_path, make, target, memory, options):
    table = make()
    folder, options = write_files(tmp_path / "data", table), [*options, *QUICK]
    whole = fit_model(folder, target, tmp_path / "whole", *options)
    assert (whole[0]["read"], passes) == ("whole", [])
    streamed = fit_model(folder / "*.parquet", target, tmp_path / "m", *options, "--max-memory", memory)
    assert streamed[0]["read"] == "streamed"
    assert len(passes) >= 2
    assert_same_model(whole, streamed, table, target)


def test_files_sorted_by_the_target_give_the_same_model(passes, tmp_path):
    table, little = wind(), ("--max-memory", "200kB")
    order = np.argsort(table["power"].to_numpy(), kind="stable")
    models = []
    for name, rows in (("mixed", table), ("sorted", table.take(order))):
        models.append(fit_model(write_files(tmp_path / name, rows), "power", tmp_path / f"{name}.m", *QUICK, *little))
        models[-1][0]["sweeps"] = len(passes)
    assert_same_model(*models, table, "power")
    assert (
        models[1][0]["sweeps"] <= 2.5 * models[0][0]["sweeps"]
    )  # both, of which the second may have 1.5 times as many


def damaged(path):
    """The bytes in the middle of the last row group of a file are others."""
    last = pq.read_metadata(path)
    column = last.row_group(last.num_row_groups - 1).column(0)
    start = column.dictionary_page_offset or column.data_page_offset
    content = bytearray(path.read_bytes())
    content[start : start + column.total_compressed_size] = b"\xff" * column.total_compressed_size
    path.write_bytes(bytes(content))
    return last.num_row_groups - 1


@pytest.mark.parametrize("memory", ["20kB", "1GB"])
@pytest.mark.parametrize("fault", ["damaged", "cut", "empty"])
def test_the_one_bad_file_of_twenty_is_named(tmp_path, memory, fault):
    folder = write_files(tmp_path / "data", sales(), n_files=20)
    bad = folder / "part13.parquet"
    place = "part13.parquet"
    if fault == "damaged":
        place = f"part13.parquet, row group {damaged(bad)}"
    else:
        bad.write_bytes(bad.read_bytes()[:-200] if fault == "cut" else b"")
    model = tmp_path / "m.quernel"
    ran = run("fit", folder, "--target", "price", "--model", model, *QUICK, "--max-memory", memory)
    assert ran.returncode == 1
    assert place in ran.stderr
    assert "Traceback" not in ran.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_a_bad_file_among_those_to_predict_is_named_and_nothing_is_written(tmp_path):
    folder = write_files(tmp_path / "data", sales(), n_files=3)
    fit_model(folder, "price", tmp_path / "m.quernel", *QUICK)
    ran = run("predict", tmp_path / "m.quernel", folder, "--out", tmp_path / "p.parquet", "--keep", "age")
    assert ran.returncode == 0, ran.stderr
    whole = read_table(tmp_path / "p.parquet")
    np.testing.assert_array_equal(whole["age"].to_numpy(), sales()["age"].to_numpy())
    (tmp_path / "p.parquet").unlink()
    group = damaged(folder / "part01.parquet")
    ran = run("predict", tmp_path / "m.quernel", folder, "--out", tmp_path / "p.parquet")
    assert ran.returncode == 1
    assert f"part01.parquet, row group {group}" in ran.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "m.quernel"]


def test_many_files_of_other_formats_and_commands(tmp_path):
    table = sales()
    for k in range(2):
        csv.write_csv(table.slice(200 * k, 200), tmp_path / f"part{k}.csv")
    both = fit_model(tmp_path / "*.csv", "price", tmp_path / "m.quernel", *QUICK)
    csv.write_csv(table, tmp_path / "whole.csv")
    one = fit_model(tmp_path / "whole.csv", "price", tmp_path / "one.quernel", *QUICK)
    assert both[1].encoder.columns_ == one[1].encoder.columns_
    np.testing.assert_allclose(both[1].predict(table), one[1].predict(table), rtol=1e-6)
    ran = run("report", tmp_path / "m.quernel", tmp_path / "part?.csv", "--out", tmp_path / "r.html", "--json")
    assert json.loads(ran.stdout)["rows_evaluated"] == both[0]["rows"]


def test_tune_on_a_table_read_in_parts(passes, tmp_path):
    folder = write_files(tmp_path / "data", sales(1500))
    options = ("--components", "40", "--quantiles", "0.5", "--validation", "0.3", "--alphas", "1e-6,1e-5", "--json")
    ran = run("tune", folder, "--target", "price", *options, "--max-memory", "20kB")
    assert ran.returncode == 0, ran.stderr
    report = json.loads(ran.stdout)
    assert (report["read"], report["rows"], report["alpha"] in (1e-6, 1e-5)) == (
        "streamed",
        1500 - sales(1500)["price"].null_count,
        True,
    )
    assert passes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--max-memory", "many"], "such as 500MB"),
        (["--checkpoint", "none/c"], "The folder none is missing"),
        (["--checkpoint", "c", "--components", "exact"], "--checkpoint is not for --components"),
        (["--dask", "tcp://127.0.0.1:9"], "No Dask scheduler answers at 'tcp://127.0.0.1:9'"),
        (["--dask", "nonsense"], "No Dask scheduler answers"),
    ],
)
def test_what_cannot_be_is_said_before_any_work(tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    folder = write_files(tmp_path / "data", sales())
    start = time.perf_counter()
    ran = run("fit", folder, "--target", "price", "--model", "m.quernel", *QUICK, *options)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert message in ran.stderr
    assert time.perf_counter() - start < 20
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
    assert pytest.importorskip("dask").config.get("scheduler", None) is None  # Dask still computes without a cluster


def test_intervals_are_calibrated_on_rows_that_pass_by(passes, tmp_path):
    table = sales(1500)
    folder, held_out = write_files(tmp_path / "data", table), sales(1000, seed=1, gaps=False)
    report, model = fit_model(folder, "price", tmp_path / "m", *QUICK, "--conformal", "--max-memory", "20kB")
    assert passes
    assert report["calibration_rows"] == round(0.25 * report["rows"])
    low, high = model.predict_interval(held_out).T
    assert 0.74 < np.mean((low <= held_out["price"].to_numpy()) & (held_out["price"].to_numpy() <= high)) < 0.88


def test_sizes():
    assert [parse_bytes(text) for text in ("500MB", "1.5 GiB", "10", None)] == [500_000_000, 3 * 2**29, 10, None]


def test_a_missing_dask_is_said_with_the_remedy(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    folder = write_files(tmp_path / "data", sales())
    ran = run("fit", folder, "--target", "price", "--model", tmp_path / "m", *QUICK, "--dask", "local")
    assert (ran.returncode, "pip install 'dask[array,distributed]'" in ran.stderr) == (1, True)


def test_a_local_cluster_names_the_file_that_it_cannot_read(tmp_path):
    pytest.importorskip("distributed")
    folder = write_files(tmp_path / "data", sales())
    bad = damaged(folder / "part02.parquet")
    ran = run("fit", folder, "--target", "price", "--model", tmp_path / "n", *QUICK, "--dask", "local")
    assert (ran.returncode, f"part02.parquet, row group {bad}" in ran.stderr) == (1, True)
