"""Columns that `quernel predict --keep` copies are what they were."""

import csv as plain_csv

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from quernel.data import sources
from support.command_line import run
from support.tables import read_table

QUICK = ("--components", "5", "--quantiles", "0.1,0.9", "--force")
ODD = {
    "zeros": lambda i: f"{i:05}",
    "large": lambda i: str(10**20 + i),
    "truth": lambda i: "True" if i % 2 else "FALSE",
    "hexadecimal": lambda i: f"0x{i:x}",
    "words for gaps": lambda i: "NA" if i % 2 else "null",
    "blanks": lambda i: f" {i} ",
    "quotes": lambda i: f'a "{i}", b',
    "number, then a word": lambda i: str(i) if i < 150 else f"A{i}",
    "nothing, then a word": lambda i: "" if i < 150 else "word",
    "date, then a word": lambda i: f"2020-01-{1 + i % 28:02}" if i < 150 else "never",
    "truth, then a word": lambda i: "true" if i < 150 else "maybe",
}


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sources, "BLOCK_ROWS", 16)
    return tmp_path


def write(path, columns):
    with path.open("w", newline="") as file:
        rows = plain_csv.writer(file)
        rows.writerow(columns)
        rows.writerows(zip(*columns.values(), strict=True))


def column(path, name):
    with path.open(newline="") as file:
        return [row[name] for row in plain_csv.DictReader(file)]


def numbers(n=200):
    rng = np.random.default_rng(0)
    x = rng.standard_normal(n)
    return {"x": [f"{v:.6f}" for v in x], "y": [f"{v:.6f}" for v in x + rng.standard_normal(n)]}


@pytest.mark.parametrize("name", ODD)
def test_text_of_csv_files_stays_what_it_is(here, name):
    kept = [ODD[name](i) for i in range(200)]
    write(here / "t.csv", numbers() | {"id": kept})
    assert run("fit", "t.csv", "--target", "y", "--exclude", "id", "--model", "m", *QUICK).returncode == 0
    for out in ("p.csv", "p.parquet"):
        ran = run("predict", "m", "t.csv", "--out", out, "--keep", "id")
        assert ran.returncode == 0, ran.stderr
    assert column(here / "p.csv", "id") == kept
    assert [word or "" for word in pq.read_table("p.parquet")["id"].to_pylist()] == kept


def test_inputs_that_are_kept_stay_what_they_are_and_are_read_as_before(here):
    """Numbers, truth values, words, dates and times, with gaps of all kinds and an infinite number."""
    gaps = {3: "NA", 5: "", 7: "?"}
    made = {
        "n": lambda i: "inf" if i == 9 else str(9007199254740993 + i) if i % 2 else f" {i}.50 ",
        "b": lambda i: "True" if i % 3 else "false",
        "w": lambda i: "abc"[i % 3],
        "d": lambda i: f"2020-01-{1 + i % 28:02}",
        "t": lambda i: f"{i % 24:02}:30:00",
    }
    inputs = {name: [gaps.get(i, make(i)) for i in range(200)] for name, make in made.items()}
    write(here / "t.csv", numbers() | inputs)
    ran = run("fit", "t.csv", "--target", "y", "--missing", "?", "--model", "m", *QUICK)
    assert ran.returncode == 0, ran.stderr
    printed = [run("predict", "m", "t.csv", "--out", "alone.csv").stderr]
    printed.append(run("predict", "m", "t.csv", "--out", "p.csv", "--keep", ",".join(made)).stderr)
    assert printed[0] == printed[1]
    for name, kept in inputs.items():
        assert column(here / "p.csv", name) == kept
    assert column(here / "p.csv", "q0.1") == column(here / "alone.csv", "q0.1")
    inputs["n"][150] = "many"
    write(here / "bad.csv", numbers() | inputs)
    ran = run("predict", "m", "bad.csv", "--out", "no.csv", "--keep", "n")
    assert ran.returncode == 1
    assert "Column 'n' holds strings such as 'many', but the model was fitted to numbers" in ran.stderr
    assert not (here / "no.csv").exists()


def test_dictionaries_that_differ_from_piece_to_piece_are_kept(here):
    x = np.random.default_rng(0).standard_normal(40)
    texts = pa.chunked_array([pa.array(["a", "b"] * 10).dictionary_encode(), pa.array(["c"] * 20).dictionary_encode()])
    table = pa.table({"x": x, "y": x + 1, "w": texts})
    with pa.ipc.new_stream("t.arrow", table.schema) as file:
        file.write_table(table)
    assert run("fit", "t.arrow", "--target", "y", "--columns", "x", "--model", "m", *QUICK).returncode == 0
    for out in ("p.arrow", "p.csv", "p.parquet"):
        ran = run("predict", "m", "t.arrow", "--out", out, "--keep", "w")
        assert ran.returncode == 0, ran.stderr
        assert read_table(here / out)["w"].to_pylist() == texts.to_pylist()


UNWRITABLE = {
    "lists": (lambda n: pa.array([[i] for i in range(n)]), "csv", "list<"),
    "structs": (lambda n: pa.array([{"a": i} for i in range(n)]), "csv", "struct<"),
    "bytes": (lambda n: pa.array([b"\xff"] * n), "csv", "binary"),
}


@pytest.mark.parametrize("name", UNWRITABLE)
def test_what_cannot_be_written_is_refused_with_its_file_and_column(here, name):
    make, ending, kind = UNWRITABLE[name]
    x = np.random.default_rng(0).standard_normal(40)
    pa.feather.write_feather(pa.table({"x": x, "y": x + 1, "odd": make(40)}), "t.arrow", compression="uncompressed")
    assert run("fit", "t.arrow", "--target", "y", "--columns", "x", "--model", "m", *QUICK).returncode == 0
    ran = run("predict", "m", "t.arrow", "--out", f"p.{ending}", "--keep", "odd")
    assert (ran.returncode, len(ran.stderr.splitlines())) == (1, 1)
    for word in ("'odd'", "t.arrow", kind, ".arrow"):
        assert word in ran.stderr
    assert not (here / f"p.{ending}").exists()
    again = run("predict", "m", "t.arrow", "--out", "p.arrow", "--keep", "odd")
    assert again.returncode == 0
    assert read_table(here / "p.arrow")["odd"].to_pylist() == make(40).to_pylist()


def test_a_type_that_no_copy_of_the_data_holds_is_refused_unless_it_is_not_needed(here):
    x = np.random.default_rng(0).standard_normal(40)
    months = pa.array([pa.MonthDayNano([i, 0, 0]) for i in range(40)])
    pa.feather.write_feather(pa.table({"x": x, "y": x + 1, "odd": months}), "t.arrow", compression="uncompressed")
    assert run("fit", "t.arrow", "--target", "y", "--exclude", "odd", "--model", "m", *QUICK).returncode == 0
    ran = run("predict", "m", "t.arrow", "--out", "p.arrow", "--keep", "odd")
    assert ran.returncode == 1
    assert "t.arrow cannot be read as Arrow: " in ran.stderr
    assert "month_day_nano_interval" in ran.stderr
    assert not (here / "p.arrow").exists()
