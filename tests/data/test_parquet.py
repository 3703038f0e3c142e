"""Parquet row source: the same numbers for any division into files and row groups; errors name the place."""

import os
import pickle
import threading
import tracemalloc
from itertools import pairwise

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from quernel._machine import READING_THREAD
from quernel.data import MemmapRows, ParquetRows, RowsError, parquet, sources

N = 5000


def make_table(n=N):
    rng = np.random.default_rng(0)
    return pa.table(
        {
            "a": rng.standard_normal(n),
            "whole": rng.integers(-5, 5, n),
            "yes": rng.uniform(size=n) > 0.5,
            "half": rng.standard_normal(n).astype(np.float32),
            "y": rng.standard_normal(n),
            "w": rng.uniform(0, 2, n),
        }
    )


@pytest.fixture
def table():
    return make_table()


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(sources, "BLOCK_ROWS", 300)


def write(folder, table, cuts=(0, N), group=1000, **options):
    """The table in several files, in the order of their names."""
    folder.mkdir(exist_ok=True)
    for k, (start, stop) in enumerate(pairwise(cuts)):
        pq.write_table(table.slice(start, stop - start), folder / f"{k:02d}.parquet", row_group_size=group, **options)
    return folder


def gathered(rows, X=True):
    """All rows, and every promise of a source kept on the way."""
    pieces = list(rows.stream(range(len(rows.spans)), X=X))
    assert [len(piece.y) for piece in pieces] == [span.stop - span.start for span in rows.spans]
    assert [span.start for span in rows.spans] == [0, *(span.stop for span in rows.spans[:-1])]
    assert rows.spans[-1].stop == rows.n_rows
    for piece in pieces:
        assert len(piece.y) <= sources.BLOCK_ROWS
        assert (piece.X is not None) == X
        assert (piece.weight is not None) == rows.weighted
        for array in filter(lambda array: array is not None, piece):
            assert array.dtype == np.float64
        if X:
            assert piece.X.flags.c_contiguous
    return [np.concatenate(parts) if parts[0] is not None else None for parts in zip(*pieces, strict=True)]


def expected(table, columns=("a", "whole", "yes", "half"), weight="w"):
    X = np.column_stack([table[name].to_numpy() for name in columns]).astype(float)
    return X, table["y"].to_numpy(), None if weight is None else table[weight].to_numpy()


def assert_same(found, wanted):
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("cuts", "group"),
    [
        ((0, N), N),
        ((0, N), 70),
        ((0, N), 301),
        ((0, 10, 10, 2000, N), 1000),  # one of the files has no rows
        (tuple(range(0, N + 1, 250)), 99),
    ],
)
def test_rows_are_the_same_however_they_are_cut(tmp_path, table, small_blocks, cuts, group):
    rows = ParquetRows(write(tmp_path / "rows", table, cuts, group), "y", weight="w")
    assert (rows.n_rows, rows.n_columns, rows.names) == (N, 4, ("a", "whole", "yes", "half"))
    assert_same(gathered(rows), expected(table))
    assert_same(gathered(rows, X=False), (None, *expected(table)[1:]))


def test_every_way_to_name_files(tmp_path, table):
    folder = write(tmp_path / "rows", table, (0, 2000, N))
    (folder / "notes.txt").write_text("not data")
    (folder / "_summary.parquet").write_text("not data either")
    files = sorted(folder.glob("0*.parquet"))
    names = ("a", "whole", "yes", "half")
    for paths in (folder, str(folder), str(folder / "0*.parquet"), files):
        assert_same(gathered(ParquetRows(paths, "y", columns=names, weight="w")), expected(table))
    assert ParquetRows(files[1], "y").n_rows == N - 2000
    turned = ParquetRows(files[::-1], "y", columns=names, weight="w")  # a list keeps its order
    assert_same(gathered(turned), expected(pa.concat_tables([table.slice(2000), table.slice(0, 2000)])))
    twice = ParquetRows([files[0], files[0]], "y", columns=names, weight="w")
    assert_same(gathered(twice), expected(pa.concat_tables([table.slice(0, 2000)] * 2)))


def test_columns_are_chosen_and_ordered(tmp_path, table):
    rows = ParquetRows(write(tmp_path / "rows", table), "y", columns=["half", "a"])
    assert_same(gathered(rows), expected(table, ("half", "a"), None))
    assert not rows.weighted


def test_some_of_the_blocks(tmp_path, table, small_blocks):
    rows = ParquetRows(write(tmp_path / "rows", table, (0, 1500, N)), "y")
    whole = list(rows.stream(range(len(rows.spans))))
    for blocks in (range(1), range(2, 7), range(5, len(rows.spans)), range(1, 9, 3), range(3, 3)):
        some = list(rows.stream(blocks))
        assert len(some) == len(blocks)
        for piece, k in zip(some, blocks, strict=True):
            assert_same(piece[:2], whole[k][:2])


def test_two_streams_at_once(tmp_path, table, small_blocks):
    rows = ParquetRows(write(tmp_path / "rows", table, (0, 1500, N)), "y")
    for one, other in zip(rows.stream(range(8)), rows.stream(range(8)), strict=True):
        assert_same(one[:2], other[:2])


def test_whoever_stops_early_leaves_neither_threads_nor_open_files_behind(tmp_path, table, small_blocks):
    rows = ParquetRows(write(tmp_path / "rows", table, (0, 1500, N)), "y")
    stream = rows.stream(range(len(rows.spans)))
    next(stream)
    assert open_rows(tmp_path)
    assert reading()
    stream.close()
    assert not open_rows(tmp_path)
    assert not reading()


def open_rows(folder):
    return [file.path for file in psutil.Process().open_files() if file.path.startswith(str(folder))]


def reading():
    return [thread for thread in threading.enumerate() if thread.name == READING_THREAD]


def test_rows_travel(tmp_path, table, small_blocks):
    folder = write(tmp_path / "rows", table)
    rows = ParquetRows(folder, "y", weight="w")
    assert_same(gathered(pickle.loads(pickle.dumps(rows))), gathered(rows))


def test_a_column_of_text_is_named_with_the_remedy(tmp_path, table):
    folder = write(tmp_path / "rows", table.append_column("carrier", pa.array(["AA"] * N)))
    with pytest.raises(RowsError, match=r"00\.parquet: column 'carrier' holds string values.*columns=.*command line"):
        ParquetRows(folder, "y", weight="w")
    assert ParquetRows(folder, "y", columns=["a"]).n_rows == N


# Faults, before any row is read


def test_arguments_that_cannot_be(tmp_path, table):
    folder = write(tmp_path / "rows", table)
    for arguments, text in (
        ({"target": "z"}, r"00\.parquet has no column 'z'. Its columns: a, whole"),
        ({"target": "y", "columns": ["a", "b"]}, "has no column 'b'"),
        ({"target": "y", "weight": "v"}, "has no column 'v'"),
        ({"target": "y", "columns": ["a", "y"]}, "'y' is named twice"),
        ({"target": "y", "columns": "a"}, "columns must be a list of names"),
        ({"target": "y", "columns": []}, "columns must be a list of names"),
        ({"target": 3}, "has no column 3"),
    ):
        with pytest.raises(RowsError, match=text):
            ParquetRows(folder, **arguments)
    for paths, text in (
        (tmp_path / "nowhere.parquet", r"nowhere\.parquet cannot be read: .*No such file"),
        (str(tmp_path / "x*.parquet"), "No Parquet file was found at"),
        ([], "No Parquet file was found"),
    ):
        with pytest.raises(RowsError, match=text):
            ParquetRows(paths, "y")


@pytest.mark.parametrize("columns", [None, ["a", "half"]])
def test_a_file_with_another_schema_is_named(tmp_path, table, columns):
    folder = write(tmp_path / "rows", table, tuple(range(0, N + 1, 1000)))
    third = pq.read_table(folder / "03.parquet")
    pq.write_table(third.drop_columns("half"), folder / "03.parquet")
    with pytest.raises(RowsError, match=r"03\.parquet has no column 'half'"):
        ParquetRows(folder, "y", columns=columns)
    text = third.set_column(0, "a", third["a"].cast(pa.string()))
    pq.write_table(text, folder / "03.parquet")
    with pytest.raises(RowsError, match=r"03\.parquet cannot be read: .* a has .*: double vs string\. .* in .*00\."):
        ParquetRows(folder, "y", columns=columns)
    pq.write_table(third.set_column(0, "a", pa.array(np.arange(1000))), folder / "03.parquet")  # whole numbers will do
    assert gathered(ParquetRows(folder, "y", columns=columns))[0][3001, 0] == 1
    pq.write_table(third.append_column("new", third["a"]), folder / "03.parquet")
    if columns is None:
        with pytest.raises(RowsError, match=r"00\.parquet has no column 'new', but .*03\.parquet has"):
            ParquetRows(folder, "y")
    else:
        assert ParquetRows(folder, "y", columns=columns).n_rows == N


def test_two_columns_of_one_name(tmp_path, table):
    pq.write_table(table.append_column("a", table["y"]), tmp_path / "twice.parquet")
    with pytest.raises(RowsError, match=r"twice\.parquet has more than one column named 'a'"):
        ParquetRows(tmp_path / "twice.parquet", "y")


def test_files_without_rows(tmp_path, table):
    with pytest.raises(RowsError, match="There are no rows in"):
        ParquetRows(write(tmp_path / "rows", table, (0, 0)), "y")


@pytest.mark.parametrize("damage", ["empty", "cut short", "no footer", "not Parquet"])
def test_a_file_that_cannot_be_opened_is_named(tmp_path, table, damage):
    folder = write(tmp_path / "rows", table, tuple(range(0, N + 1, 250)))
    bad = folder / "13.parquet"
    whole = bad.read_bytes()
    bad.write_bytes(
        {"empty": b"", "cut short": whole[:-100], "no footer": whole[:-8], "not Parquet": b"a,b\n" * 50}[damage]
    )
    with pytest.raises(RowsError, match=r"13\.parquet cannot be read: .*Write the file again, or leave it out"):
        ParquetRows(folder, "y")


# Faults while rows are read


def damaged(path, column, group, how):
    """Spoil the middle of one column of one row group."""
    chunk = pq.ParquetFile(path).metadata.row_group(group).column(column)
    middle = chunk.data_page_offset + chunk.total_compressed_size // 2
    raw = bytearray(path.read_bytes())
    if how == "zeros":
        raw[middle : middle + 200] = bytes(200)
    else:
        del raw[middle : middle + 200]
    path.write_bytes(raw)


# Without checksums bytes that are replaced by others may pass for numbers; those that are lost never do.
@pytest.mark.parametrize(("how", "checksum"), [("zeros", True), ("cut out", True), ("cut out", False)])
def test_a_damaged_file_of_twenty_is_named_with_its_row_group(tmp_path, how, checksum):
    cuts = tuple(range(0, 20_001, 1000))
    folder = write(tmp_path / "rows", make_table(20_000), cuts, 500, write_page_checksum=checksum)
    rows = ParquetRows(folder, "y")
    gathered(rows)
    damaged(folder / "13.parquet", 0, 1, how)
    stream = ParquetRows(folder, "y").stream(range(len(rows.spans)))
    taken = []
    with pytest.raises(RowsError, match=r"13\.parquet, row group 1 cannot be read") as raised:
        taken.extend(iter(stream))
    assert sum(len(piece.y) for piece in taken) == 13_500
    assert "13.parquet, row group 1" in rows.place(27)
    assert len(str(raised.value).splitlines()) == 1
    assert not reading()
    assert not open_rows(tmp_path)


@pytest.mark.parametrize(
    ("column", "value", "text"),
    [
        ("a", None, "missing"),
        ("a", np.nan, "missing"),
        ("half", -np.inf, "infinite"),
        ("whole", None, "missing"),
        ("yes", None, "missing"),
        ("y", np.inf, "infinite"),
        ("y", None, "missing"),
        ("w", np.nan, "missing"),
        ("w", -1.5, r"negative \(-1\.5\). Weights must be >= 0"),
    ],
)
def test_bad_numbers_are_named_by_their_place(tmp_path, table, small_blocks, column, value, text):
    values = table[column].to_pylist()
    for row in (3432, 3433, 4100):
        values[row] = value
    place = table.column_names.index(column)
    table = table.set_column(place, column, pa.array(values, table[column].type))
    rows = ParquetRows(write(tmp_path / "rows", table, (0, 1000, N), 1000), "y", weight="w")
    found = r"01\.parquet, row group 2, row 2,432 of the file \(counted from 0\): column '" + column + f"' is {text}"
    with pytest.raises(RowsError, match=found):
        list(rows.stream(range(len(rows.spans)), X=column not in ("y", "w")))


def test_finite_numbers_of_an_infinite_sum_are_let_through(tmp_path, table):
    a = table["a"].to_numpy().copy()
    a[:3] = 1.7e308
    rows = ParquetRows(write(tmp_path / "rows", table.set_column(0, "a", pa.array(a))), "y", weight="w")
    np.testing.assert_array_equal(gathered(rows)[0][:, 0], a)


@pytest.mark.parametrize("now", [{"group": 700}, {"cuts": (0, 3000)}])
def test_a_file_that_changed_meanwhile(tmp_path, table, now):
    folder = write(tmp_path / "rows", table)
    rows = ParquetRows(folder, "y")
    write(folder, table, **now)
    with pytest.raises(RowsError, match=r"00\.parquet has another size or time than before: the file was changed"):
        list(rows.stream(range(len(rows.spans))))


@pytest.mark.parametrize("how", ["in place", "swapped", "swapped with its time", "during a pass"])
def test_a_file_of_as_many_rows_that_changed_meanwhile(tmp_path, table, how, small_blocks):
    """Other numbers in row groups of the same sizes are other rows, too."""
    folder = write(tmp_path / "rows", table)
    path = sorted(folder.iterdir())[0]
    rows = ParquetRows(folder, "y", columns=["a"])
    before = path.stat()
    other = write(tmp_path / "other", table.set_column(0, "a", pa.array(table["a"].to_numpy() + 1)))
    if how == "swapped with its time":
        os.utime(other / path.name, ns=(before.st_atime_ns, before.st_mtime_ns))
    stream = rows.stream(range(len(rows.spans)))
    if how == "during a pass":
        next(stream)
    if how == "in place":
        path.write_bytes((other / path.name).read_bytes())
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1_000_000))
    else:
        (other / path.name).replace(path)
    with pytest.raises(RowsError, match=rf"{path.name} has another size or time than before: the file was changed"):
        list(stream)


# Cost


@pytest.mark.parametrize("buffered", [True, False])
def test_streaming_takes_a_few_blocks_of_memory(tmp_path, monkeypatch, buffered):
    """Of a row group of 80 blocks only some pages and pieces are in memory; the control reads columns whole."""
    n, d, block = 320_000, 8, 8 * 4000 * 9
    rng = np.random.default_rng(1)
    data = {f"x{j}": rng.standard_normal(n) for j in range(d)}
    pages = {"row_group_size": n, "use_dictionary": False, "data_page_size": 2**15}
    pq.write_table(pa.table({**data, "y": data["x0"]}), tmp_path / "big.parquet", **pages)
    monkeypatch.setattr(sources, "BLOCK_ROWS", 4000)
    monkeypatch.setattr(parquet, "BUFFER", 2**15 if buffered else 0)
    rows = ParquetRows(tmp_path / "big.parquet", "y")
    assert len(rows.spans) == 80
    stream, arrow, numpy = rows.stream(range(80)), pa.total_allocated_bytes(), 0
    tracemalloc.start()
    try:
        held = [pa.total_allocated_bytes() - arrow for _ in stream]
        numpy = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert block < numpy < 6 * block
    assert (max(held) < n * (d + 1) * 8 / 4) == buffered


def test_only_what_is_asked_for_is_read(tmp_path, table, monkeypatch):
    rows = ParquetRows(write(tmp_path / "rows", table), "y", columns=["a"])
    read, plain = [], pq.ParquetFile.iter_batches

    def listening(self, size, groups, columns, **options):
        read.append((tuple(groups), tuple(columns)))
        assert options == {"use_threads": False}
        return plain(self, size, groups, columns, **options)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", listening)
    list(rows.stream(range(2, 3), X=False))
    assert read == [((2,), ("y",))]


# Arrays that are mapped into memory


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.int16, np.uint64, bool])
@pytest.mark.parametrize("given", ["arrays", "maps", "paths"])
def test_mapped_arrays_give_their_rows(tmp_path, small_blocks, kind, given):
    rng = np.random.default_rng(2)
    arrays = [rng.integers(0, 2, shape).astype(kind) for shape in ((1000, 3), 1000, 1000)]
    arrays[0] = np.asfortranarray(arrays[0])
    paths = [tmp_path / f"{name}.npy" for name in "Xyw"]
    for path, array in zip(paths, arrays, strict=True):
        np.save(path, array)
    maps = [np.load(path, mmap_mode="r") for path in paths]
    rows = MemmapRows(*{"arrays": arrays, "maps": maps, "paths": paths}[given])
    assert (rows.n_rows, rows.n_columns, rows.names, len(rows.spans)) == (1000, 3, None, 4)
    assert_same(gathered(rows), arrays)
    assert_same(gathered(rows, X=False), (None, *arrays[1:]))
    assert not MemmapRows(arrays[0], arrays[1]).weighted
    assert rows.place(1) == f"{'X' if given == 'arrays' else paths[0]}, rows 300 to 599"


@pytest.mark.parametrize("which", ["X", "y", "w"])
@pytest.mark.parametrize("how", ["in place", "swapped", "during a pass", "gone"])
@pytest.mark.parametrize("given", ["maps", "paths"])
def test_mapped_files_that_changed_meanwhile(tmp_path, small_blocks, which, how, given):
    paths = {name: tmp_path / f"{name}.npy" for name in "Xyw"}
    for name, path in paths.items():
        np.save(path, np.ones((1000, 2) if name == "X" else 1000))
    rows = MemmapRows(*(np.load(path, mmap_mode="r") if given == "maps" else path for path in paths.values()))
    assert len(list(rows.stream(range(4)))) == 4
    stream = rows.stream(range(4))
    if how == "during a pass":
        next(stream)
    changed = paths[which]
    if how == "gone":
        changed.unlink()
    elif how == "swapped":
        np.save(tmp_path / "other.npy", np.load(changed))
        (tmp_path / "other.npy").replace(changed)
    else:
        before = changed.stat()
        np.lib.format.open_memmap(changed, "r+")[-1] = 2
        os.utime(changed, ns=(before.st_atime_ns, before.st_mtime_ns + 1_000_000))
    text = "cannot be read: .*No such file" if how == "gone" else "has another size or time than before: the file was"
    with pytest.raises(RowsError, match=rf"{which}\.npy {text}"):
        list(stream)


def test_mapped_files_that_were_removed_before_are_read_from_their_maps(tmp_path):
    np.save(tmp_path / "X.npy", np.ones((10, 2)))
    X = np.load(tmp_path / "X.npy", mmap_mode="r")
    (tmp_path / "X.npy").unlink()
    assert len(gathered(MemmapRows(X, np.ones(10)))[0]) == 10


def test_mapped_arrays_that_cannot_be(tmp_path):
    X, y = np.ones((10, 2)), np.ones(10)
    np.save(tmp_path / "short.npy", X)
    (tmp_path / "short.npy").write_bytes((tmp_path / "short.npy").read_bytes()[:-8])
    (tmp_path / "empty.npy").write_bytes(b"")
    for arguments, text in (
        ((X, y[:9]), "X has 10 rows but y has 9 entries"),
        ((X, y, y[:9]), "X has 10 rows but weight has 9 entries"),
        ((X[0], y), r"X must have two axes, rows and columns; its shape is \(2,\)"),
        ((X, X), r"y must have one axis, an entry per row; its shape is \(10, 2\)"),
        ((X.astype(str), y), "X must hold floats, integers or booleans; its type is <U"),
        ((X.tolist(), y), "X must be a numpy array or the path of a .npy file; got list"),
        ((X[:0], y[:0]), "there is nothing to read"),
        ((tmp_path / "none.npy", y), r"none\.npy cannot be read as a \.npy file"),
        ((tmp_path / "short.npy", y), r"short\.npy cannot be read"),
        ((tmp_path / "empty.npy", y), r"empty\.npy cannot be read"),
    ):
        with pytest.raises(RowsError, match=text):
            MemmapRows(*arguments)


def test_bad_numbers_in_mapped_arrays(small_blocks):
    X, y, weight = np.ones((1000, 2)), np.ones(1000), np.ones(1000)
    for values, at, value, text in (
        (X, (640, 1), np.nan, r"Row 640 \(counted from 0\): column 1 of X is missing"),
        (y, 730, np.inf, "Row 730 .*: y is infinite"),
        (weight, 2, -1, "Row 2 .*: weight is negative"),
    ):
        values[at] = value
        rows = MemmapRows(X, y, weight)
        with pytest.raises(RowsError, match=text):
            list(rows.stream(range(len(rows.spans))))
        values[at] = 1
    assert len(list(rows.stream(range(len(rows.spans))))) == 4
