"""Tables of files larger than memory: what is learnt of them, and their rows, are those of the table in memory."""

from dataclasses import replace
from datetime import datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from pyarrow import csv

from quernel.data import RowsError, sources
from quernel.data.parquet import open_parquet
from quernel.tables import TableEncoder, TableError, column_stats, training_data
from quernel.tables.files import find_files, open_table
from quernel.tables.training_data import ReadOptions, prepare
from support.tables import collect_rows, read_table, sales, write_files
from support.tables import prepare as prepare_table

WRITERS = {"parquet": pq.write_table, "arrow": pyarrow.feather.write_feather, "csv": csv.write_csv}


def many_kinds(n=700, seed=1):
    """Columns that are hard to learn piece by piece."""
    rng = np.random.default_rng(seed)
    start = np.datetime64("2024-03-01T00:00:00")
    days = start + rng.integers(0, 500, n).astype("timedelta64[D]")
    hours = start + rng.integers(0, 5000, n).astype("timedelta64[h]")
    gap = rng.random(n) < 0.2
    return pa.table(
        {
            "y": np.where(rng.random(n) < 0.05, np.nan, rng.normal(size=n) * 10),
            "w": rng.random(n),
            "even": rng.integers(-3, 3, n).astype(np.int32),
            "wild": np.where(gap, np.inf, rng.standard_cauchy(n)),
            "tiny": rng.normal(size=n) * 1e-300,
            "same": np.full(n, 7.0),
            "words": rng.choice([*"abcdefgh", ""], n),
            "rare": [f"w{int(i)}" for i in rng.zipf(1.4, n)],
            "name": [f"row {i}" for i in range(n)],
            "written": [None if g else str(d) for g, d in zip(gap, days, strict=True)],
            "zoned": [f"{d}Z" for d in hours],
            "mixed": [str(d) if i < 600 else "never" for i, d in enumerate(days)],
            "hour": pa.array(hours),
            "day": pa.array(days.astype("datetime64[D]")),
            "clock": pa.array(rng.integers(0, 86_400, n, dtype=np.int32), mask=gap).cast(pa.time32("s")),
            "spent": pa.array(rng.integers(0, 500, n), mask=gap).cast(pa.duration("s")),
            "code": rng.integers(0, 9, n),
            "almost": ["?" if g else f"{x:.5f}" for g, x in zip(gap, rng.normal(size=n), strict=True)],
            "list": [[1]] * n,
            "late": pa.array([None if i < 400 else float(i) for i in range(n)]),
        }
    )


def open_parquet_files(path):
    return open_parquet(find_files(path))


def test_an_encoder_learns_from_some_rows_of_a_very_long_table(tmp_path, monkeypatch):
    """Memory stays bounded, and no training row is encoded by means that contain its own target."""
    rng, n, learnt, fit = np.random.default_rng(0), 6000, [], TableEncoder.fit
    monkeypatch.setattr(sources, "BLOCK_ROWS", 100)
    monkeypatch.setattr(training_data, "MAX_LEARNT_ROWS", 1500)
    monkeypatch.setattr(TableEncoder, "fit", lambda self, X, *args: (learnt.append(X.n_rows), fit(self, X, *args))[1])
    size, y = (
        np.where(rng.random(n) < 0.1, np.nan, rng.normal(size=n)),
        np.where(rng.random(n) < 0.05, np.nan, rng.normal(size=n)),
    )
    shop = [f"shop {k}" for k in rng.integers(0, 60, n)]
    encoded = []
    for shift in (0, 1e6):  # of the target of row 800, which is in one of the batches
        target = y + shift * (np.arange(n) == 800)
        pq.write_table(
            pa.table({"size": size, "shop": shop, "y": target}), tmp_path / "rows.parquet", row_group_size=2500
        )
        found = prepare(open_parquet_files(tmp_path / "rows.parquet"), ReadOptions("y"))
        rows = found.load().rows
        row = int(np.isfinite(target[:800]).sum())
        assert rows.y[row] == target[800]
        encoded.append(rows.X[row])
        assert len(rows.y) == found.n_rows == np.isfinite(target).sum()
        assert f"learnt from {learnt[-1]:,} rows, evenly spaced among 6,000" in found.notes[-1]
    assert 0.9 * 1500 <= learnt[0] <= 1500
    np.testing.assert_allclose(*encoded, rtol=1e-9)
    number, category = found.encoder.columns_
    assert abs(number.fill - np.nanmedian(size)) < 0.1
    assert len(category.categories) == 60
    assert np.ptp(category.means) > 0, "control: the shifted target shows in the means of new rows"


@pytest.mark.parametrize("make", [sales, many_kinds])
def test_the_encoder_learnt_column_by_column_is_that_of_the_whole_table(tmp_path, make):
    table = make()
    target, more = (
        ("price", {}) if make is sales else ("y", {"weights": "w", "categorical": ["code"], "missing": ["?"]})
    )
    folder = write_files(tmp_path, table, 4, 37)
    whole = prepare_table(read_table(folder), ReadOptions(target, **more))
    streamed = prepare(open_parquet_files(folder), ReadOptions(target, **more))
    for found, expected in zip(streamed.encoder.columns_, whole.encoder.columns_, strict=True):
        assert type(found) is type(expected)
        np.testing.assert_equal(vars(found), vars(expected))
    assert streamed.notes == whole.notes
    known = table.filter(pc.is_finite(table[target]))
    y, weight = known[target].to_numpy(), known["w"].to_numpy() if "weights" in more else None
    inputs = [name for name in table.column_names if name not in (target, more.get("weights"))]
    in_memory = TableEncoder(categorical=more.get("categorical", ()), missing=more.get("missing", ()))
    X = in_memory.fit(known.select(inputs), y, weight).encode(known.select(inputs), 0)
    assert in_memory.notes_ == whole.notes
    np.testing.assert_allclose(whole.rows.X, X, rtol=1e-12)
    np.testing.assert_array_equal(whole.rows.y, y)
    if make is many_kinds:
        assert any("'almost' is text that holds numbers" in note for note in whole.notes)
        assert any("'wild' is infinite in" in note for note in whole.notes)
    assert (streamed.dropped, streamed.rows.n_rows) == (whole.dropped, len(whole.rows.y))
    loaded = streamed.load()
    for found in (collect_rows(streamed.rows), (loaded.rows.X, loaded.rows.y, loaded.rows.weight)):
        for one, expected in zip(found, (whole.rows.X, whole.rows.y, whole.rows.weight), strict=True):
            if expected is None:
                assert one is None
            else:
                np.testing.assert_allclose(one, expected, rtol=1e-12)


def test_blocks_are_the_same_whoever_asks_for_them(tmp_path, monkeypatch):
    """A stream may begin in the middle of a row group, and a group may have several blocks."""
    monkeypatch.setattr(sources, "BLOCK_ROWS", 32)
    table = sales()
    files = open_parquet_files(write_files(tmp_path, table, 3, 100))
    rows = prepare(files, ReadOptions("price", log_target=True)).rows
    X, y, _ = collect_rows(rows)
    assert len(rows.spans) > 6
    np.testing.assert_array_equal(y, prepare_table(table, ReadOptions("price", log_target=True)).rows.y)
    for k in range(0, len(rows.spans), 3):
        for piece, span in zip(rows.stream(range(k, k + 2)), rows.spans[k : k + 2], strict=False):
            np.testing.assert_array_equal(piece.X, X[span])
    assert next(rows.stream(range(2, 3), X=False)).X is None
    assert rows.place(len(rows.spans) - 1).endswith("part02.parquet, row group 1")


@pytest.mark.parametrize("most", [100, 500])  # seen in the first rows, or once all are counted
def test_a_column_of_very_many_words_is_left_out(tmp_path, monkeypatch, most):
    monkeypatch.setattr(column_stats, "OPTIONS", replace(column_stats.OPTIONS, max_distinct=most))
    files = open_parquet_files(write_files(tmp_path, many_kinds(), 4, 37))
    streamed = prepare(files, ReadOptions("y", columns=["even", "name"]))
    assert streamed.encoder.inputs == ["even"]
    assert f"more than {most} different values" in streamed.notes[0]


@pytest.mark.parametrize(
    ("change", "options"),
    [
        ({}, {"target": "nowhere"}),
        ({}, {"target": "words"}),
        ({}, {"target": "y", "weights": "words"}),
        ({}, {"target": "y", "log_target": True}),
        ({}, {"target": "y", "columns": ["same"]}),
        ({"gone": pa.nulls(700)}, {"target": "y", "columns": ["gone"]}),
        ({"gone": pa.array([""] * 700)}, {"target": "y", "columns": ["gone"]}),
        ({"gone": pa.array([np.nan] * 700)}, {"target": "y", "columns": ["gone"]}),
        ({"y": pa.array([None] * 700, pa.float64())}, {"target": "y"}),
    ],
)
def test_errors_are_those_of_the_table_in_memory(tmp_path, change, options):
    table = many_kinds()
    for name, values in change.items():
        table = table.drop(name) if name in table.column_names else table
        table = table.append_column(name, values)
    with pytest.raises(TableError) as expected:
        prepare_table(read_table(write_files(tmp_path, table, 4, 37)), ReadOptions(**options))
    with pytest.raises(TableError) as found:
        prepare(open_parquet_files(tmp_path), ReadOptions(**options))
    assert str(found.value) == str(expected.value)


@pytest.mark.parametrize("gap", [np.nan, None])
def test_rows_without_a_group_are_refused(tmp_path, gap):
    """NaN, too, which no label is equal to."""
    labels = pa.array([gap if i in (3, 5) else float(i % 9) for i in range(700)], from_pandas=False)
    table = many_kinds().append_column("group", labels)
    with pytest.raises(TableError, match="'group' is empty in 2 of"):
        prepare_table(table, ReadOptions("y", groups="group"))
    with pytest.raises(TableError, match="'group' is empty in 2 of"):
        prepare(open_parquet_files(write_files(tmp_path, table, 4, 37)), ReadOptions("y", groups="group"))


def test_files_with_other_columns_are_named(tmp_path):
    table = sales()
    write_files(tmp_path, table, 4, 37)
    pq.write_table(table.drop("age"), tmp_path / "part04.parquet")
    with pytest.raises(RowsError, match=r"part04.parquet has no column 'age'"):
        open_parquet_files(tmp_path)
    text = pa.array(["old"] * len(table))
    pq.write_table(table.set_column(1, "age", text), tmp_path / "part04.parquet")
    with pytest.raises(RowsError, match=r"part04.parquet .* age has .*: double vs string\. .* in .*part00"):
        open_parquet_files(tmp_path / "*.parquet")


@pytest.mark.parametrize("ending", ["parquet", "arrow", "csv"])
def test_files_need_not_agree_on_columns_that_are_not_needed(tmp_path, ending):
    x = np.arange(30.0)
    others = ({"more": range(30)}, {"more": ["a"] * 30}, {"more": ["b"] * 30, "most": [1] * 30}, {})
    for k, other in enumerate(others):
        table = pa.table({**other, "x": x + k, "y": x})
        WRITERS[ending](table, str(tmp_path / f"{k}.{ending}"))
    with pytest.raises(RowsError, match=r"1\..* more has .*: (int64|double) vs string\. .* in .*0\."):
        read_table(tmp_path)
    needed = {"x", "y"}.__contains__
    whole = read_table(tmp_path, needed=needed)
    assert whole["x"].to_pylist() == [*x, *(x + 1), *(x + 2), *(x + 3)]
    assert whole["more"].null_count == whole["most"].null_count == 120
    with open_table(tmp_path, needed=needed) as table:
        X, _, _ = collect_rows(prepare(table, ReadOptions("y", columns=["x"])).rows)
    np.testing.assert_array_equal(X[:, 0], whole["x"])


def test_large_whole_numbers_agree_with_other_numbers(tmp_path):
    large = 2**60 + 1
    pq.write_table(pa.table({"x": pa.array([large, 1])}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"x": pa.array([0.5, 2.0])}), tmp_path / "b.parquet")
    assert read_table(tmp_path)["x"].to_pylist() == [float(large), 1, 0.5, 2]
    pq.write_table(pa.table({"x": pa.array([datetime(1, 1, 1)], pa.timestamp("s"))}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"x": pa.array([datetime(2024, 1, 1)], pa.timestamp("ns"))}), tmp_path / "b.parquet")
    with pytest.raises(RowsError, match=r"a.parquet.* cannot be read: .* to timestamp\[ns\]"):
        read_table(tmp_path)


def test_numbers_of_other_types_agree(tmp_path):
    table = pa.table({"x": np.arange(100), "y": np.arange(100.0)})
    pq.write_table(table, tmp_path / "a.parquet")
    pq.write_table(pa.table({"y": table["y"].cast("int16"), "x": pa.nulls(100)}), tmp_path / "b.parquet")
    both = pa.concat_tables([table, pa.table({"x": pa.nulls(100, pa.int64()), "y": table["y"]})])
    streamed = prepare(open_parquet_files(tmp_path), ReadOptions("y"))
    assert streamed.encoder.columns_ == prepare_table(both, ReadOptions("y")).encoder.columns_
    np.testing.assert_array_equal(collect_rows(streamed.rows)[0], prepare_table(both, ReadOptions("y")).rows.X)


def test_a_file_of_as_many_rows_that_is_swapped_between_passes_is_noticed(tmp_path):
    for name, value in (("a", 1.0), ("b", 2.0)):
        pq.write_table(pa.table({"x": np.full(100, value)}), tmp_path / f"{name}.parquet")
    table = open_parquet_files(tmp_path / "a.parquet")
    assert sum(len(batch) for *_, batch in table.iter_batches(["x"])) == 100
    (tmp_path / "b.parquet").replace(tmp_path / "a.parquet")
    with pytest.raises(RowsError, match=r"a\.parquet has another size or time than before"):
        list(table.iter_batches(["x"]))
