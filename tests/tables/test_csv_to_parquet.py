"""CSV and Arrow files that are copied piece by piece: the table is the one that is read whole."""

import gzip
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import namedtuple
from pathlib import Path

import pyarrow as pa
import pyarrow.feather
import pytest
from pyarrow import csv

from quernel.tables import TableError, parquet_table, reading
from quernel.tables.multi_file import find_files, read
from quernel.tables.parquet_table import copy_to_parquet
from quernel.tables.reading import CsvOptions
from support.tables import sales

# Columns that look otherwise at the beginning, in the middle and at the end; some take more than one guess.
ROWS = 900
PARTS = {
    "whole then broken": ("12", "7", "1.5"),
    "nothing then dates": ("", "2024-05-01", "2024-05-02"),
    "dates then times": ("2024-05-01", "2024-05-01 12:00:00", "2024-05-01 12:00:00.25"),
    "zoned": ("2024-05-01T12:00:00Z", "", "2024-05-01T12:00:00.5Z"),
    "dates, some zoned": ("2024-05-01", "2024-05-02", "2024-05-01T12:00:00Z"),
    "0 and 1 then words": ("0", "1", "true"),
    "7, too, then words": ("1", "7", "false"),
    "numbers then text": ("1.5", "12", "it's, well, none"),
    "nothing then truth": ("", "", "true"),
    "times of day": ("12:30:00", "", "08:15:00"),
    "nothing": ("", "", ""),
    "text": ("a", 'b "b"', "c\nc"),
}


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr(reading, "BLOCK_BYTES", 4000)


def hard(path):
    """A CSV file of these columns, in which each part has a third of the rows."""

    def quoted(text):
        doubled = text.replace('"', '""')
        return f'"{doubled}"' if any(c in text for c in ',"\n') else text

    lines = [",".join(f'"{name}"' for name in PARTS)]
    lines += [",".join(quoted(parts[3 * i // ROWS]) for parts in PARTS.values()) for i in range(ROWS)]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("packed", [False, True])
def test_columns_of_csv_have_the_types_of_the_whole_file(tmp_path, small_pieces, packed):
    path = hard(tmp_path / "hard.csv")
    whole = read(path)
    if packed:
        (tmp_path / "hard.csv.gz").write_bytes(gzip.compress(path.read_bytes()))
        path = tmp_path / "hard.csv.gz"
    with reading.in_batches(path) as batches:
        assert batches.schema != whole.schema  # a glance at the beginning would be wrong
    with copy_to_parquet([path]) as table:
        assert len(table.groups) > 3
        pieces = [slab.table for slab in table.iter_batches(table.schema.names)]
        folder = Path(table.groups[0].path).parent
    # Parquet has no seconds, only finer units.
    found = pa.concat_tables(pieces)
    for name in PARTS:
        assert type(found.schema.field(name).type) is type(whole.schema.field(name).type), name
        assert found[name].cast(whole.schema.field(name).type).equals(whole[name]), name
    assert not folder.exists()


@pytest.mark.parametrize("name", ["table.feather", "table.arrow"])
def test_arrow_files_are_copied_as_they_are(tmp_path, name):
    table = sales()
    if name.endswith("feather"):
        pyarrow.feather.write_feather(table, tmp_path / name, chunksize=150)
    else:
        with pa.ipc.new_stream(str(tmp_path / name), table.schema) as writer:
            writer.write_table(table, max_chunksize=150)
    with copy_to_parquet([tmp_path / name]) as found:
        assert [group.n_rows for group in found.groups] == [150, 150, 100]
        assert pa.concat_tables([slab.table for slab in found.iter_batches(table.column_names)]).equals(table)


def test_what_is_wrong_is_said_of_the_file_that_was_given(tmp_path, small_pieces):
    table = sales()
    for k in range(2):
        csv.write_csv(table.slice(200 * k, 200).drop(["age"] if k else ["size"]), tmp_path / f"part{k}.csv")
    with (
        pytest.raises(TableError, match=r"part1.csv has no column 'age', but .*part0.csv has"),
        copy_to_parquet(find_files(tmp_path)),
    ):
        pass
    path = hard(tmp_path / "late.csv")
    path.write_text(path.read_text() + "1,2,3\n")
    with pytest.raises(TableError, match=r"late.csv cannot be read as CSV: .*columns"), copy_to_parquet([path]):
        pass


def test_a_category_that_is_no_text_is_said_to_be_none(tmp_path):
    path = tmp_path / "latin.csv"
    path.write_bytes("name,y\ncaf\xe9,1\ntea,2\n".encode("latin-1"))
    how = CsvOptions({"name": pa.string()})
    with pytest.raises(TableError, match=r"latin.csv cannot be read as CSV: .*UTF8"), copy_to_parquet([path], how):
        pass


def test_a_disk_that_is_too_small_is_noticed_before_any_work(tmp_path, monkeypatch):
    csv.write_csv(sales(), tmp_path / "sales.csv")
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(100, 99, 1))
    with (
        pytest.raises(TableError, match=r"sales.csv is larger than memory .* TMPDIR"),
        copy_to_parquet([tmp_path / "sales.csv"]),
    ):
        pass


KILLED = """
import sys, tempfile
from pathlib import Path
from quernel.tables.parquet_table import copy_to_parquet
tempfile.tempdir = sys.argv[1]
with copy_to_parquet([Path(sys.argv[2])]):
    print("copied", flush=True)
    sys.stdin.read()
"""


@pytest.mark.skipif(parquet_table.flock is None, reason="the system has no such locks")
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
        with copy_to_parquet([path]):
            assert len(list(folder.rglob("*.parquet"))) == 2, "what a living process has is left alone"
        process.send_signal(signal.SIGKILL)
    assert {file.name for file in folder.rglob("*.parquet")} == before, "control: killing leaves it behind"
    with copy_to_parquet([path]):
        assert len(list(folder.rglob("*.parquet"))) == 1
    assert [one.name for one in folder.iterdir()] == ["quernel-copy-of-mine"], (
        "no lock in it, so whose it is is unknown"
    )


def test_without_locks_nothing_is_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left = tmp_path / "quernel-copy-left"
    left.mkdir()
    (left / parquet_table.LOCK).touch()
    with monkeypatch.context() as patch:
        patch.setattr(parquet_table, "flock", None)
        parquet_table.remove_leftovers()
        with parquet_table.temporary_folder() as folder:
            assert list(folder.iterdir()) == []
    assert list(tmp_path.iterdir()) == [left]
    parquet_table.remove_leftovers()
    assert list(tmp_path.iterdir()) == ([] if parquet_table.flock else [left])
