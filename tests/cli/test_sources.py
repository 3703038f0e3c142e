"""The same rows give the same predictions, from every kind of file, from a query and from data frames in Python."""

import gzip
import sqlite3

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.feather
import pytest
from pyarrow import csv

import quernel
from quernel import KernelQuantileRegressor, TabularQuantileRegressor
from quernel.tables import TableWarning
from support.command_line import run

QUICK = ("--target", "price", "--components", "40", "--quantiles", "0.1,0.5,0.9", "--force")


def houses(n=300):
    """A made table of houses: text, dates, gaps, an identifier, and a long right tail."""
    rng = np.random.default_rng(7)
    size, place = rng.gamma(4, 30, n).round(1), rng.choice(["north", "south", "old town", None], n)
    sold = pd.Timestamp("2021-03-01") + pd.to_timedelta(rng.integers(0, 900, n), unit="D")
    frame = pd.DataFrame(
        {
            "id": np.arange(1, n + 1),
            "size": np.where(rng.random(n) < 0.1, np.nan, size),
            "rooms": rng.integers(1, 8, n),
            "place": place,
            "sold": sold.astype("datetime64[us]"),
            "garden": rng.random(n) < 0.4,
            "street": [f"street {k}" for k in rng.integers(0, 60, n)],
        }
    )
    price = 1e3 * np.exp(0.01 * size + 0.3 * (place == "north") + 0.4 * rng.standard_normal(n)).round(3)
    return frame.assign(price=price)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder, frame = tmp_path_factory.mktemp("sources"), houses()
    frame.to_csv(folder / "h.csv", index=False)
    frame.to_csv(folder / "semicolons.csv", index=False, sep=";", decimal=",")
    frame.to_csv(folder / "tabs.tsv", index=False, sep="\t")
    frame.to_csv(folder / "latin.csv", index=False, encoding="cp1252")
    (folder / "h.csv.gz").write_bytes(gzip.compress((folder / "h.csv").read_bytes()))
    frame.to_parquet(folder / "h.parquet", index=False)
    pyarrow.feather.write_feather(pa.Table.from_pandas(frame, preserve_index=False), folder / "h.feather")
    with duckdb.connect(str(folder / "h.duckdb")) as database:
        database.execute(f"create table houses as select * from '{folder / 'h.parquet'}'")
    with sqlite3.connect(folder / "h.sqlite") as database:
        frame.assign(sold=frame["sold"].astype(str)).to_sql("houses", database, index=False)
    database.close()
    (folder / "parts").mkdir()
    for k in range(3):
        frame[100 * k : 100 * (k + 1)].to_csv(folder / "parts" / f"{k}.csv.gz", index=False)
    return folder


@pytest.fixture(scope="module")
def expected(folder):
    """Predictions in Python, of pandas and of polars."""
    found = []
    for frame in (houses(), pl.from_pandas(houses())):
        inputs = frame.drop(columns="price") if isinstance(frame, pd.DataFrame) else frame.drop("price")
        model = KernelQuantileRegressor([0.1, 0.5, 0.9], n_components=40, random_state=0)
        with pytest.warns(TableWarning, match="'id' is left out"):
            model.fit(inputs, np.asarray(frame["price"]))
        found.append(np.asarray(model.predict(inputs)))
    np.testing.assert_allclose(found[0], found[1], rtol=1e-12)
    return found[0]


SOURCES = {
    "h.csv": ("h.csv",),
    "semicolons": ("semicolons.csv",),
    "tabs": ("tabs.tsv",),
    "another encoding": ("latin.csv",),
    "gzip": ("h.csv.gz",),
    "Parquet": ("h.parquet",),
    "Arrow": ("h.feather",),
    "DuckDB": ("h.duckdb",),
    "SQLite": ("h.sqlite",),
    "pattern": ("parts/*.csv.gz",),
    "query": ("--query", "select * from 'h.parquet' order by id"),
    "query of CSV": ("h.csv", "--query", "select * from data order by id"),
    "query of a database": ("h.duckdb", "--query", "select * from houses order by id"),
}


@pytest.mark.parametrize("name", SOURCES)
def test_every_source_gives_the_predictions_of_python(folder, expected, tmp_path, monkeypatch, name):
    monkeypatch.chdir(folder)
    source = SOURCES[name]
    made = run("fit", *source, "--model", tmp_path / "m", *QUICK)
    assert made.returncode == 0, made.stderr
    assert "'id' is left out: it counts the rows from 1 to 300" in " ".join(made.stderr.split())
    assert run("predict", tmp_path / "m", *source, "--out", tmp_path / "p.parquet").returncode == 0
    found = pa.parquet.read_table(tmp_path / "p.parquet")
    np.testing.assert_allclose(np.column_stack(found.columns), expected, rtol=1e-12)
    # The model takes the rows of any other source, too.
    assert run("predict", tmp_path / "m", "h.csv", "--out", tmp_path / "q.csv").returncode == 0
    np.testing.assert_allclose(np.column_stack(csv.read_csv(tmp_path / "q.csv").columns), expected, rtol=1e-12)
    np.testing.assert_allclose(quernel.load(tmp_path / "m").predict(houses()), expected, rtol=1e-12)


@pytest.fixture(scope="module")
def expected_by_default(folder):
    """Predictions in Python of the estimator that `quernel fit` takes by default."""
    model, inputs = TabularQuantileRegressor([0.1, 0.5, 0.9], random_state=0), houses().drop(columns="price")
    with pytest.warns(TableWarning, match="'id' is left out"):
        model.fit(inputs, houses()["price"])
    return model.predict(inputs), model.predict_interval(inputs, 0.98)


@pytest.mark.parametrize("name", ["h.csv", "Parquet", "query of a database"])
def test_the_default_estimator_gives_the_predictions_of_python(
    folder, expected_by_default, tmp_path, monkeypatch, name
):
    monkeypatch.chdir(folder)
    options = [option for option in QUICK if option not in ("--components", "40")]
    made = run("fit", *SOURCES[name], "--model", tmp_path / "m", *options)
    assert made.returncode == 0, made.stderr
    ran = run("predict", tmp_path / "m", *SOURCES[name], "--out", tmp_path / "p.parquet", "--interval", 0.98)
    assert ran.returncode == 0, ran.stderr
    found = np.column_stack(pa.parquet.read_table(tmp_path / "p.parquet").columns)
    np.testing.assert_allclose(found, np.hstack(expected_by_default), rtol=1e-12)
    np.testing.assert_allclose(quernel.load(tmp_path / "m").predict(houses()), expected_by_default[0], rtol=1e-12)


@pytest.mark.parametrize("command", ["tune", "plan", "report"])
def test_all_commands_take_queries(folder, tmp_path, monkeypatch, command):
    monkeypatch.chdir(folder)
    query = "--query", "select * exclude (id) from 'h.parquet'"
    if command == "report":
        assert run("fit", "h.csv", "--model", tmp_path / "m", *QUICK).returncode == 0
        arguments = "report", tmp_path / "m", *query, "--out", tmp_path / "r.html"
    elif command == "tune":
        arguments = "tune", *query, "--model", tmp_path / "m", *QUICK, "--folds", "2", "--alphas", "1e-5,1e-4"
    else:
        arguments = "plan", *query, "--target", "price", "--subsample", "200"
    ran = run(*arguments)
    assert ran.returncode == 0, ran.stderr


WRONG = {
    "wrong SQL": (("--query", "select price frm 'h.csv'"), "The query cannot be read as SQL: syntax error"),
    "a write": (("--query", "copy (select 1) to 'new.csv'"), "one SELECT, which reads and writes nothing; got COPY"),
    "two statements": (("--query", "select 1 as price; select 2"), "got 2 statements"),
    "no data at all": ((), "Name a data file, or give a --query"),
    "an output that the query reads": (("--query", "select * from 'old.quernel'"), "is the input data"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_query_gives_one_line_and_writes_nothing(folder, monkeypatch, name):
    monkeypatch.chdir(folder)
    arguments, message = WRONG[name]
    (folder / "old.quernel").write_text("x")
    before = sorted(path.name for path in folder.iterdir())
    model = "old.quernel" if "output" in name else "new.quernel"
    ran = run("fit", *arguments, "--model", model, *QUICK)
    assert ran.returncode == 1
    assert len(ran.stderr.strip().splitlines()) == 1
    assert message in ran.stderr
    assert sorted(path.name for path in folder.iterdir()) == before


def test_a_schema_that_changed_is_refused_with_the_remedy(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(folder)
    assert run("fit", "h.csv", "--model", tmp_path / "m", *QUICK).returncode == 0
    houses().rename(columns={"size": "area"}).to_csv(tmp_path / "new.csv", index=False)
    ran = run("predict", tmp_path / "m", tmp_path / "new.csv", "--out", tmp_path / "p.csv")
    assert ran.returncode == 1
    assert "column 'size' is missing. Its columns: " in ran.stderr
    assert not (tmp_path / "p.csv").exists()
