"""Files of every format as tables: types, separators, encodings, queries, and copies that leave nothing behind."""

import bz2
import gzip
import signal
import sqlite3
import subprocess
import sys
import tempfile
from datetime import UTC, date, datetime, time

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from pyarrow import csv

from quernel import _files
from quernel.data import RowsError
from quernel.tables import TableError, csv_files
from quernel.tables.csv_files import CsvOptions
from quernel.tables.files import open_table
from support.tables import read_table, sales

ROWS = 900
# Columns that look otherwise at the beginning, in the middle and at the end, and what they are in all.
PARTS = {
    "whole then broken": ("12", "7", "1.5", [12, 7, 1.5]),
    "nothing then dates": ("", "2024-05-01", "2024-05-02", [None, date(2024, 5, 1), date(2024, 5, 2)]),
    "dates then times": (
        "2024-05-01", "2024-05-01 12:00:00", "2024-05-01 12:00:00.25",
        [datetime(2024, 5, 1), datetime(2024, 5, 1, 12), datetime(2024, 5, 1, 12, 0, 0, 250_000)],
    ),
    "zoned": (
        "2024-05-01T12:00:00Z", "", "2024-05-01T14:00:00+02:00",
        [datetime(2024, 5, 1, 12, tzinfo=UTC), None, datetime(2024, 5, 1, 12, tzinfo=UTC)],
    ),
    "0 and 1 then words": ("0", "1", "true", [False, True, True]),
    "7, too, then words": ("1", "7", "false", ["1", "7", "false"]),
    "numbers then text": ("1.5", "12", "it's, well, none", ["1.5", "12", "it's, well, none"]),
    "nothing then truth": ("", "", "true", [None, None, True]),
    "times of day": ("12:30:00", "", "08:15", [time(12, 30), None, time(8, 15)]),
    "letters": ("T", "F", "T", ["T", "F", "T"]),
    "days first": ("1/12/2020", "2/12/2020", "3/12/2020", ["1/12/2020", "2/12/2020", "3/12/2020"]),
    "blanks": (" 1.5", "2 ", "-inf", [1.5, 2, -np.inf]),
    "nothing": ("", "NA", "null", [None, None, None]),
    "text": ("a", 'b "b"', "c\nc", ["a", 'b "b"', "c\nc"]),
}  # fmt: skip


def write_hard(path, separator=","):
    """A CSV file of these columns, in which each part has a third of the rows."""

    def quoted(text):
        doubled = text.replace('"', '""')
        return f'"{doubled}"' if any(c in text for c in f'{separator}"\n') else text

    lines = [separator.join(f'"{name}"' for name in PARTS)]
    lines += [separator.join(quoted(parts[3 * i // ROWS]) for parts in PARTS.values()) for i in range(ROWS)]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("block", [2**24, 2**12])
@pytest.mark.parametrize("ending", ["csv", "csv.gz", "csv.bz2", "tsv", "txt"])
def test_columns_of_csv_have_the_types_of_the_whole_file(tmp_path, monkeypatch, ending, block):
    monkeypatch.setattr(csv_files, "BLOCK", block)
    path = write_hard(tmp_path / "hard.csv", {"tsv": "\t", "txt": ";"}.get(ending, ","))
    packed = {"csv.gz": gzip.compress, "csv.bz2": bz2.compress}.get(ending, bytes)(path.read_bytes())
    (tmp_path / f"t.{ending}").write_bytes(packed)
    found = read_table(tmp_path / f"t.{ending}")
    for name, parts in PARTS.items():
        assert [found[name][k].as_py() for k in (0, ROWS // 2, ROWS - 1)] == parts[3], name


def test_rows_stay_in_their_order(tmp_path, monkeypatch):
    """Also those of a large file, which several threads read."""
    n = 400_000
    csv.write_csv(pa.table({"row": np.arange(n), "word": np.arange(n).astype(str)}), tmp_path / "t.csv")
    for options in (CsvOptions(("?",)), CsvOptions(("?",), ("word",), literal=True)):
        np.testing.assert_array_equal(read_table(tmp_path / "t.csv", options)["row"], np.arange(n))


@pytest.mark.parametrize("encoding", ["cp1252", "utf-16", "utf-8-sig"])
def test_other_encodings_are_read_with_a_note(tmp_path, encoding):
    (tmp_path / "t.csv").write_bytes("größe,y\ncafé,1\nth\u00e9,2\n".encode(encoding))
    with open_table(tmp_path / "t.csv") as table:
        assert table.read().to_pydict() == {"größe": ["café", "thé"], "y": [1, 2]}
        notes = [] if encoding == "utf-8-sig" else [f"was read as {encoding}"]
        assert len(table.notes) == len(notes)
        assert all(expected in note for expected, note in zip(notes, table.notes, strict=True))


def test_dates_may_have_nanoseconds(tmp_path):
    """As polars writes them."""
    lines = [f"2024-05-01T12:00:0{i}.123456000,2024-05-01 12:00:0{i}.123456000Z" for i in range(3)]
    (tmp_path / "t.csv").write_text("\n".join(["when,zoned", *lines]) + "\n")
    table = read_table(tmp_path / "t.csv")
    assert table.schema.types == [pa.timestamp("ns"), pa.timestamp("ns", "UTC")]
    assert table["when"].cast(pa.timestamp("us"))[2].as_py() == datetime(2024, 5, 1, 12, 0, 2, 123456)


def test_decimal_commas_are_read_where_semicolons_separate(tmp_path):
    (tmp_path / "t.csv").write_text("x;y;z\n1,5;2;a,b\n-0,25;3;c\n")
    assert read_table(tmp_path / "t.csv").to_pydict() == {"x": [1.5, -0.25], "y": [2, 3], "z": ["a,b", "c"]}


def test_a_column_without_a_name_is_left_out(tmp_path):
    (tmp_path / "t.csv").write_text(",x\n0,1.5\n1,2.5\n")
    with open_table(tmp_path / "t.csv") as table:
        assert table.schema.names == ["x"]
        assert "without a name, which is left out" in table.notes[0]


@pytest.mark.parametrize("name", ["table.feather", "table.arrow"])
def test_arrow_files_are_copied_as_they_are(tmp_path, name):
    table = sales()
    if name.endswith("feather"):
        pyarrow.feather.write_feather(table, tmp_path / name, chunksize=150)
    else:
        with pa.ipc.new_stream(str(tmp_path / name), table.schema) as writer:
            writer.write_table(table, max_chunksize=150)
    with open_table(tmp_path / name) as found:
        assert [group.n_rows for group in found.groups] == [150, 150, 100]
        assert found.read().equals(table)


# Databases and queries


@pytest.fixture
def databases(tmp_path):
    rows = [(i, i / 2, None if i == 3 else f"w{i}") for i in range(30)]
    with sqlite3.connect(tmp_path / "d.sqlite") as database:
        database.execute("create table trips (n, x, word)")
        database.executemany("insert into trips values (?, ?, ?)", rows)
    database.close()
    with duckdb.connect(str(tmp_path / "d.duckdb")) as database:
        database.execute("create table trips (n bigint, x double, word varchar)")
        database.executemany("insert into trips values (?, ?, ?)", rows)
    return tmp_path


@pytest.mark.parametrize("ending", ["sqlite", "duckdb"])
def test_databases_are_read_and_not_written(databases, monkeypatch, ending):
    monkeypatch.chdir(databases)
    path = databases / f"d.{ending}"
    before = path.read_bytes()
    whole = read_table(path)
    assert whole["n"].to_pylist() == list(range(30))
    assert whole["word"][3].as_py() is None
    with open_table(path, query="select n, 2 * x as double_x from trips where n < 5 order by n desc;") as table:
        assert table.read().to_pydict() == {"n": [4, 3, 2, 1, 0], "double_x": [4, 3, 2, 1, 0]}
    writing = ("drop table trips", "insert into trips values (1, 2, 'x')", "delete from trips", "vacuum into 'new.db'")
    for query in (
        *writing,
        "attach 'new.db' as new",
        "select 1 as n) ; drop table trips; --",
        "pragma user_version = 3",
    ):
        with pytest.raises(TableError), open_table(path, query=query):
            pass
    assert path.read_bytes() == before
    assert sorted(found.name for found in databases.iterdir()) == ["d.duckdb", "d.sqlite"]


def test_columns_of_sqlite_have_the_types_of_all_their_values(tmp_path):
    with sqlite3.connect(tmp_path / "d.db") as database:
        database.execute('create table "a ""b""" (whole, mixed, image, void)')
        rows = [(1, 1, b"\xff\x00", None), (2.5, "two", None, None), (None, None, b"", None)]
        database.executemany('insert into "a ""b""" values (?, ?, ?, ?)', rows)
    database.close()
    found = read_table(tmp_path / "d.db")
    assert found.schema.types == [pa.float64(), pa.string(), pa.binary(), pa.float64()]
    assert found["whole"].to_pylist() == [1, 2.5, None]
    assert found["mixed"].to_pylist() == ["1", "two", None]
    assert found["image"].to_pylist() == [b"\xff\x00", None, b""]
    assert found["void"].null_count == 3


@pytest.mark.parametrize("ending", ["sqlite", "duckdb"])
def test_one_of_several_tables_is_chosen_by_a_query(databases, ending):
    path = databases / f"d.{ending}"
    with sqlite3.connect(path) if ending == "sqlite" else duckdb.connect(str(path)) as database:
        database.execute("create table other (z integer)")
    with pytest.raises(TableError, match=r"has the tables (trips, other|other, trips)\. Choose by --query"):
        read_table(path)


def test_queries_join_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pq.write_table(pa.table({"k": [1, 2, 3], "x": [0.5, 1.5, 2.5]}), "a.parquet")
    csv.write_csv(pa.table({"k": [3, 2], "y": [30, 20]}), "b.csv")
    query = "select a.k, x, y from 'a.parquet' a join 'b.csv' b on a.k = b.k order by a.k"
    with open_table(None, query=query) as table:
        assert table.read().to_pydict() == {"k": [2, 3], "x": [1.5, 2.5], "y": [20, 30]}
    with open_table(tmp_path / "b.csv", query="select y + 1 as z from data order by z") as table:
        assert table.read().to_pydict() == {"z": [21, 31]}
    with open_table(None, query="select count(*) as n from '*.parquet'") as table:
        assert table.read().to_pydict() == {"n": [3]}


WRONG = {
    "selec 1": "The query cannot be read as SQL: syntax error at or near",
    "select nope from 'a.parquet'": "The query cannot be read as SQL: .*nope",
    "select 1 as a; select 2 as a": "one SELECT, which reads and writes nothing; got 2 statements",
    "": "one SELECT, .*; got 0 statements",
    "copy (select 1) to 'evil.csv'": "one SELECT, .*; got COPY",
    "create table t as select 1": "one SELECT, .*; got CREATE",
    "attach 'evil.duckdb'": "one SELECT, .*; got ATTACH",
    "pragma database_list": "one SELECT, .*; got PRAGMA",
    "install httpfs": "one SELECT",
    "select * from 'nowhere.csv'": "names a file that does not exist.*nowhere.csv",
    "select * from read_text('/etc/' || 'hostname')": "names a file that does not exist, or not in single quotes",
    "select * from 'https://example.org/a.parquet'": "names a file that does not exist|cannot be read as SQL",
}


@pytest.mark.parametrize("query", WRONG)
def test_wrong_queries_give_one_line_and_write_nothing(tmp_path, monkeypatch, query):
    monkeypatch.chdir(tmp_path)
    pq.write_table(pa.table({"k": [1, 2, 3]}), "a.parquet")
    with pytest.raises(TableError, match=WRONG[query]) as found, open_table(None, query=query):
        pass
    assert "\n" not in str(found.value)
    assert [path.name for path in tmp_path.iterdir()] == ["a.parquet"]


# What is wrong with files


def test_what_is_wrong_is_said_of_the_file_that_was_given(tmp_path):
    table = sales()
    for k in range(2):
        csv.write_csv(table.slice(200 * k, 200).drop(["age"] if k else ["size"]), tmp_path / f"part{k}.csv")
    with pytest.raises(RowsError, match=r"part1.csv has no column 'age', but .*part0.csv has"):
        read_table(tmp_path)
    path = write_hard(tmp_path / "late.csv")
    path.write_text(path.read_text() + "1,2,3\n")
    with pytest.raises(TableError, match=r"late.csv cannot be read as CSV: .*Row #902: Expected 14 columns, got 3"):
        read_table(path)


NO_TABLES = {
    "noise.csv": (bytes(range(256)), "cannot be read as CSV: it has bytes that text has not"),
    "torn.csv.gz": (gzip.compress(b"x,y\n" + b"1,2\n" * 9999)[:-9], "torn.csv.gz cannot be read as CSV: "),
    "quote.csv": (b'x,y\n1,"2\n3,4\n', "it has a quote that does not end"),
    "twice.csv": (b"x,x\n1,2\n", "more than one column named 'x'"),
    "noise.duckdb": (b"x" * 5000, "cannot be read as a database: .*not a valid DuckDB database file"),
    "noise.sqlite": (b"SQLite format 3\0" + b"x" * 5000, "cannot be read as a database: .*not a database"),
    "noise.arrow": (b"x" * 500, "cannot be read as Arrow"),
}


@pytest.mark.parametrize("name", NO_TABLES)
def test_files_that_are_no_tables_are_named_in_one_line(tmp_path, name):
    content, message = NO_TABLES[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TableError, match=message) as found:
        read_table(tmp_path / name)
    assert "\n" not in str(found.value)
    assert name in str(found.value)


NO_DATA = {
    "no header": ({"a.csv": ",,\n1,2,3\n"}, "a.csv", "a.csv has no header: the first line must name the columns"),
    "no rows, no header": ({"a.csv": ""}, "a.csv", "a.csv cannot be read as CSV: it is empty"),
    "nothing to read": ({"notes.md": "x", "_a.csv": "x\n1\n"}, ".", "The folder .* has no CSV, Parquet or Arrow files"),
    "no such pattern": ({}, "*.csv", r"The pattern .*\*.csv finds no CSV, Parquet or Arrow files"),
    "two formats": (
        {"a.csv": "x\n1\n", "b.arrow": "x"},
        ".",
        "different formats, such as .*[ab].* Choose some by a pattern",
    ),
    "no such file": ({}, "a.csv", "a.csv is not a file. Give a CSV, Parquet or Arrow file, a database, or a folder"),
    "no format": (
        {"a.xlsx": "x"},
        "a.xlsx",
        r"a.xlsx must end in one of \.csv, .*\.sqlite3, so that its format is known",
    ),
    "compressed Parquet": (
        {"a.parquet.gz": "x"},
        "a.parquet.gz",
        r"CSV files may be compressed \(\.gz, \.bz2, \.zst\)",
    ),
}


@pytest.mark.parametrize("name", NO_DATA)
def test_data_that_are_not_there_are_named_with_the_remedy(tmp_path, name):
    files, data, message = NO_DATA[name]
    for file, text in files.items():
        (tmp_path / file).write_text(text)
    with pytest.raises(TableError, match=message):
        read_table(tmp_path / data)


def test_a_disk_that_is_too_small_is_named_with_the_remedy(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    csv.write_csv(sales(), tmp_path / "sales.csv")
    monkeypatch.setattr(pq.ParquetWriter, "write_table", full)
    with pytest.raises(TableError, match=r"sales.csv cannot be read as CSV: .*No space left.* TMPDIR"):
        read_table(tmp_path / "sales.csv")


def test_copies_are_gone_afterwards(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    csv.write_csv(sales(), tmp_path / "sales.csv")
    with open_table(tmp_path / "sales.csv") as table:
        assert len(list((tmp_path / "temporary").rglob("*.parquet"))) == 1
        assert table.n_rows == 400
    assert list((tmp_path / "temporary").iterdir()) == []


KILLED = """
import sys, tempfile
from pathlib import Path
from quernel.tables.files import open_table
tempfile.tempdir = sys.argv[1]
with open_table(Path(sys.argv[2])):
    print("copied", flush=True)
    sys.stdin.read()
"""


@pytest.mark.skipif(_files.fcntl is None, reason="the system has no such locks")
def test_the_copy_of_a_process_that_was_killed_is_removed_by_the_next(tmp_path, monkeypatch):
    path, folder = tmp_path / "sales.csv", tmp_path / "temporary"
    folder.mkdir()
    (folder / "quernel-copy-of-mine").mkdir()
    csv.write_csv(sales(), path)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", KILLED, folder, path], **pipes) as process:
        assert process.stdout.readline() == "copied\n"
        before = {file.name for file in folder.rglob("*.parquet")}
        with open_table(path):
            assert len(list(folder.rglob("*.parquet"))) == 2, "what a living process has is left alone"
        process.send_signal(signal.SIGKILL)
    assert {file.name for file in folder.rglob("*.parquet")} == before, "control: killing leaves it behind"
    with open_table(path):
        assert len(list(folder.rglob("*.parquet"))) == 1
    assert [one.name for one in folder.iterdir()] == ["quernel-copy-of-mine"], (
        "no lock in it, so whose it is is unknown"
    )


def test_without_locks_nothing_is_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left = tmp_path / "quernel-copy-left"
    left.mkdir()
    (left / _files.FOLDER_LOCK).touch()
    with monkeypatch.context() as patch:
        patch.setattr(_files, "fcntl", None)
        _files.remove_leftovers()
        with _files.temporary_folder() as folder:
            assert list(folder.iterdir()) == []
    assert list(tmp_path.iterdir()) == [left]
    _files.remove_leftovers()
    assert list(tmp_path.iterdir()) == ([] if _files.fcntl else [left])


@pytest.mark.parametrize(
    ("header", "line", "names"),
    [
        ("a;b", "1,5;2", ["a", "b"]),
        ('"price, EUR";size', "1;2", ["price, EUR", "size"]),
        ("price, EUR;size", "1;2", ["price, EUR", "size"]),
        ("a\tb", "x|y\tz", ["a", "b"]),
        ("a|b|c", "1|2|3", ["a", "b", "c"]),
        ("a", "1", ["a"]),
    ],
)
def test_the_separator_is_the_one_that_both_lines_have(tmp_path, header, line, names):
    (tmp_path / "t.csv").write_text(f"{header}\n{line}\n")
    assert read_table(tmp_path / "t.csv").column_names == names
