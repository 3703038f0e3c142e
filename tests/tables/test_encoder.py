"""Columns of every kind become numbers, the same way every time."""

from datetime import date, datetime, time, timedelta
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from quernel import TableEncoder
from quernel.tables import TableError, TextColumn
from quernel.tables.frames import as_entries
from quernel.tables.training_data import ReadOptions
from support.tables import fit_encoder, prepare, sales


def learnt(**columns):
    return fit_encoder(pa.table(columns), list(columns))


def matrix(encoder, **columns):
    return encoder.transform(pa.table(columns))


def test_numbers_are_themselves_and_missing_ones_the_median_with_a_flag():
    encoder = learnt(x=[1.0, None, 5.0, 2.0], k=[3, 1, 2, 2])
    assert encoder.names == ["x", "x missing", "k"]
    np.testing.assert_array_equal(
        matrix(encoder, x=[7.0, None, float("nan"), float("inf")], k=[1, 2, 3, None]),
        [[7, 0, 1], [2, 1, 2], [2, 1, 3], [2, 1, 2]],
    )


def test_text_has_a_column_for_every_category_and_unknown_ones_have_none():
    texts = ["a"] * 6 + ["b"] * 7
    encoder = learnt(w=texts)
    assert encoder.names == ["w = a", "w = b"]
    np.testing.assert_array_equal(
        matrix(encoder, w=["b", "a", "new", None, ""]), [[0, 1], [1, 0], [0, 0], [0, 0], [0, 0]]
    )


def test_rare_and_missing_categories_have_columns_if_there_were_any():
    encoder = learnt(w=["a"] * 6 + ["b"] * 7 + ["rare", None, ""])
    assert encoder.names == ["w = a", "w = b", "w = (other)", "w = (missing)"]
    np.testing.assert_array_equal(
        matrix(encoder, w=["b", "rare", "new", None, ""]),
        [[0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 0], [0, 0, 0, 1], [0, 0, 0, 1]],
    )


def test_the_most_frequent_categories_are_kept():
    texts = [f"w{i:03d}" for i in range(80) for _ in range(5 + i)]
    made = learnt(w=texts)
    (column,), (note,) = made.columns_, made.notes_
    assert column.categories == tuple(f"w{i:03d}" for i in range(30, 80))
    assert "'w' has more than 50 categories" in note
    assert column.other


def test_dictionaries_and_long_text_are_text():
    plain = ["a", "b"] * 10
    for values in (pa.array(plain).dictionary_encode(), pa.array(plain, pa.large_string())):
        (column,) = learnt(w=values).columns_
        assert column == TextColumn("w", ("a", "b"), other=False, missing=False)


@pytest.mark.skipif(not hasattr(pa, "string_view"), reason="this Arrow has no views")
def test_views_of_text_are_text():
    texts = pa.array(["a", "b", None] * 10).cast(pa.string_view())
    coded = pa.DictionaryArray.from_arrays(pa.array([0, 1, None] * 10), texts[:2])
    encoder = learnt(w=["a", "b", None] * 10, c=["a", "b", None] * 10)
    expected = matrix(encoder, w=["a", "b", None] * 10, c=["a", "b", None] * 10)
    table = pa.table({"w": texts, "c": coded})
    for each in (table, table.to_batches()[0]):
        np.testing.assert_array_equal(encoder.transform(each), expected)


def test_a_date_is_a_trend_and_the_cycles_that_its_rows_could_show():
    hours = [datetime(2024, 1, 1) + timedelta(hours=h) for h in range(0, 24 * 400, 7)]
    encoder = learnt(t=hours)
    cycles = [f"t {wave} of {cycle}" for cycle in ("day", "week", "year") for wave in ("sine", "cosine")]
    assert encoder.names == ["t trend", *cycles]
    start, half_day, half_week = matrix(
        encoder, t=[hours[0], hours[0] + timedelta(hours=12), hours[0] + timedelta(days=3.5)]
    )
    np.testing.assert_allclose(start, [0, 0, 1, 0, 1, 0, 1], atol=1e-9)
    np.testing.assert_allclose(half_day[1:3], [0, -1], atol=1e-9)
    np.testing.assert_allclose(half_week[3:5], [0, -1], atol=1e-9)
    np.testing.assert_allclose(half_week[0], 3.5 / 365.2425)
    (days,) = learnt(t=[date(2024, 1, 1) + timedelta(days=d) for d in range(5)]).columns_
    assert days.cycles == ()


def test_dates_in_text_and_in_other_units_are_the_same_dates():
    stamps = [datetime(2024, 1, 1) + timedelta(days=d, hours=d % 5) for d in range(30)]
    columns = [
        pa.array(stamps, pa.timestamp("s")),
        pa.array(stamps, pa.timestamp("ns")),
        pa.array([str(stamp) for stamp in stamps]),
        pa.array([f"{stamp.isoformat()}Z" for stamp in stamps], pa.large_string()),
        pa.array([f"{(stamp + timedelta(hours=2)).isoformat()}+02:00" for stamp in stamps]),
    ]
    first = learnt(t=columns[0])
    assert first.columns_[0].kind == "date"
    for column in columns[1:]:
        assert learnt(t=column).columns_ == first.columns_
        np.testing.assert_array_equal(matrix(first, t=column), matrix(first, t=columns[0]))


@pytest.mark.parametrize("zone", ["", "Z"])
def test_dates_in_text_may_have_nanoseconds(zone):
    texts = [f"2024-01-{day:02} 12:00:00.123456789{zone}" for day in range(1, 20)]
    stamps = pa.array([datetime(2024, 1, day, 12, 0, 0, 123456) for day in range(1, 20)])
    encoder = learnt(t=texts)
    assert encoder.columns_ == learnt(t=stamps).columns_
    np.testing.assert_array_equal(matrix(encoder, t=texts), matrix(encoder, t=stamps))


def test_times_in_text_are_times():
    """As polars writes them to CSV files, and where some have parts of seconds."""
    times = [time(6), None, time(18, 0, 30), time(0), time(12)]
    encoder = learnt(t=times)
    for texts in (
        ["06:00:00.000000000", None, "18:00:30.000000000", "00:00:00.000000000", "12:00:00.000000000"],
        ["06:00", "", "18:00:30.000", "00:00:00", "12:00"],
    ):
        assert learnt(t=texts).columns_ == encoder.columns_
        np.testing.assert_array_equal(matrix(encoder, t=texts), matrix(encoder, t=times))
    for texts in (["06", "12"], ["06:00", "12:00 sharp"], ["06:00", "noon"], ["06:00", "25:00"]):
        assert isinstance(learnt(t=texts * 6).columns_[0], TextColumn)
    (column,) = fit_encoder(pa.table({"t": ["06:00", "07:00"] * 6}), ["t"], categorical=["t"]).columns_
    assert isinstance(column, TextColumn)


def test_a_time_of_day_is_seconds_and_their_cycle():
    times = [time(6), None, time(18, 0, 30), time(0), time(12)]
    encoder = learnt(t=times)
    assert encoder.names == ["t", "t sine of day", "t cosine of day", "t missing"]
    assert encoder.cyclic.tolist() == [False, True, True, False]
    found = matrix(encoder, t=times)
    np.testing.assert_array_equal(found[:, 0], [21_600, 32_400, 64_830, 0, 43_200])
    np.testing.assert_allclose(found[[0, 3, 4], 1:], [[1, 0, 0], [0, 1, 0], [0, -1, 0]], atol=1e-9)
    assert found[1, 3] == 1
    texts = pa.array(["06:00", "", "18:00:30", "00:00:00.0", "12:00"])
    for other in (pa.array(times, pa.time64("ns")), pa.array(times, pa.time32("ms")), texts):
        np.testing.assert_array_equal(matrix(encoder, t=other), found)
    with pytest.raises(TableError, match=r"'t' holds strings such as 'noon'.*fitted to times such as 08:30"):
        matrix(encoder, t=["noon"])


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_durations_are_seconds(unit):
    values = pa.array([90, None, 3600], pa.duration("s")).cast(pa.duration(unit))
    encoder = learnt(d=values)
    np.testing.assert_array_equal(matrix(encoder, d=values), [[90, 0], [1845, 1], [3600, 0]])
    made = prepare(pa.table({"x": range(3), "d": values}), ReadOptions("d"))
    assert made.rows.y.tolist() == [90, 3600]


def test_durations_are_not_read_as_numbers_without_a_unit():
    minutes, lasting = [30, 60, 90], [timedelta(minutes=m) for m in (30, 60, 90)]
    plain, timed = learnt(d=minutes), learnt(d=lasting)
    with pytest.raises(TableError, match=r"'d' holds duration.*fitted to numbers"):
        matrix(plain, d=lasting)
    np.testing.assert_array_equal(matrix(timed, d=[1800, 3600, 5400]), matrix(timed, d=lasting))
    with pytest.raises(TableError, match=r"'d' holds duration.*fitted to texts"):
        matrix(learnt(d=["long", "short"] * 6), d=lasting)


def test_durations_are_no_names():
    lasting = pa.array([timedelta(minutes=m) for m in (30, 60)] * 6)
    for values in (lasting, pa.DictionaryArray.from_arrays([0, 1] * 6, lasting[:2])):
        table = pa.table({"d": values})
        with pytest.raises(TableError, match=r"'d' holds .*duration.*categorical is for"):
            fit_encoder(table, ["d"], categorical=["d"])
        assert fit_encoder(table, ["d"]).columns_[0].kind == "duration"


def test_numbers_that_are_names_are_text():
    codes, flags = [7, 12, None] * 6, [True, False, True] * 6
    table = pa.table({"code": codes, "flag": flags, "part": [1.5, 2.0, np.nan] * 6})
    encoder = fit_encoder(table, table.column_names, categorical=table.column_names)
    assert encoder.names[:5] == ["code = 12", "code = 7", "code = (missing)", "flag = false", "flag = true"]
    assert encoder.names[5:] == ["part = 1.5", "part = 2", "part = (missing)"]
    found = encoder.transform(table)
    text = {
        "code": ["7", "12", None] * 6,
        "flag": ["true", "false", "true"] * 6,
        "part": ["1.5", "2", ""] * 6,
    }
    np.testing.assert_array_equal(encoder.transform(text), found)
    assert found.sum(axis=0).tolist() == [6, 6, 6, 6, 12, 6, 6, 6]
    with pytest.raises(TableError, match=r"'when' holds datetime.*categorical is for"):
        fit_encoder(pa.table({"when": [datetime(2024, 1, 1)] * 9}), ["when"], categorical=["when"])


def test_dates_that_are_names_are_text():
    days = ["2024-01-01", "2024-01-02"] * 6
    (column,) = fit_encoder(pa.table({"day": days}), ["day"], categorical=["day"]).columns_
    assert column == TextColumn("day", ("2024-01-01", "2024-01-02"), other=False, missing=False)


def test_text_that_says_the_same_is_read_as_what_it_was():
    """A CSV file has types by its looks, a Parquet file those that it was written with."""
    encoder = learnt(n=[1.0, 12.0, None, 3.5], flag=[True, False, True, False])
    found = matrix(encoder, n=[1.0, 12.0, None, 3.5], flag=[True, False, None, True])
    np.testing.assert_array_equal(matrix(encoder, n=["1", "12.0", "", "3.5"], flag=["true", "False", None, "1"]), found)
    np.testing.assert_array_equal(matrix(encoder, n=["1", "0xC"], flag=["true", "0"]), found[:2])
    with pytest.raises(TableError, match=r"'n' holds strings such as 'x', but the model was fitted to numbers"):
        matrix(encoder, n=["1", "x"], flag=["true", "false"])
    with pytest.raises(TableError, match=r"'flag' holds strings such as 'maybe'.*booleans"):
        matrix(encoder, n=["1", "2"], flag=["true", "maybe"])


def test_numbers_are_not_read_as_categories_that_they_cannot_be():
    (zips,) = learnt(zip=["01234", "99999", "a"] * 6).columns_
    (texts,) = learnt(w=["a", "b", "c"] * 6).columns_
    (codes,) = learnt(c=["1", "20", "c"] * 6).columns_
    (truths,) = learnt(c=["true", "false"] * 6).columns_
    for values, can in ((np.array([1]), [False, False, True, False]), (np.array([True]), [False, False, False, True])):
        entries = as_entries(values)
        assert [column.can_read(entries) for column in (zips, texts, codes, truths)] == can


def test_numbers_are_read_as_categories_that_are_written_like_them_whatever_their_type():
    sizes = fit_encoder(pa.table({"s": ["2.5", "3", "a"] * 6}), ["s"])
    found = [[0, 1, 0], [0, 0, 0]]  # 3, and 4, which was not seen
    for values in ([3, 4], [3.0, 4.0], pa.array([Decimal(3), Decimal(4)])):
        np.testing.assert_array_equal(matrix(sizes, s=values), found)
    versions = fit_encoder(pa.table({"v": ["1.10", "1.1", "a"] * 6}), ["v"])
    np.testing.assert_array_equal(matrix(versions, v=pa.array([Decimal("1.10")])), matrix(versions, v=["1.10"]))
    with pytest.raises(TableError, match=r"'v' holds float64.*fitted to texts"):
        matrix(versions, v=[1.1])  # which of the two it is nobody knows


def test_missing_markers_are_missing_in_any_table():
    encoder = fit_encoder(pa.table({"n": [1.0, None, 3.0] * 4, "w": ["a", "b", None] * 4}), ["n", "w"], ["?"])
    found = matrix(encoder, n=["1", "?", "3"], w=pa.array(["a", "b", "?"]).dictionary_encode())
    np.testing.assert_array_equal(found, matrix(encoder, n=[1.0, None, 3.0], w=["a", "b", None]))


def test_pandas_polars_and_arrow_are_read_alike():
    table = sales()
    encoder = fit_encoder(table, ["size", "age", "place", "garden", "sold"])
    expected = encoder.transform(table)
    assert expected.shape == (400, len(encoder.names))
    assert np.isfinite(expected).all()
    for other in (table.to_pandas(), pl.from_arrow(table), table.to_batches()[0]):
        np.testing.assert_array_equal(encoder.transform(other), expected)
    with pytest.raises(ValueError, match="Expected 2D array, got scalar array"):
        encoder.transform(3)
    with pytest.raises(TableError, match="A dict must have columns of one length as its values"):
        encoder.transform({"a": 1})


def test_one_row_at_a_time_is_the_same():
    table = sales(50)
    encoder = fit_encoder(table, ["size", "place", "garden", "sold"])
    np.testing.assert_array_equal(
        np.vstack([encoder.transform(table.slice(i, 1)) for i in range(50)]), encoder.transform(table)
    )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([3.0] * 9, "3 everywhere"),
        (["same"] * 9, "'same' everywhere"),
        ([f"id{i}" for i in range(90)], "identifier of the row"),
        (["a", "b", "c"] * 2, "none of its 3 categories appears in 5 rows"),
        ([[1, 2]] * 9, "list"),
        ([datetime(2024, 1, 1)] * 9, "same date"),
        ([time(8, 30)] * 9, "same time"),
    ],
)
def test_columns_that_say_nothing_are_left_out_and_named(values, message):
    made = fit_encoder(pa.table({"bad": values, "x": np.arange(len(values)) / 2}), ["bad", "x"])
    assert made.inputs == ["x"]
    (note,) = made.notes_
    assert "'bad'" in note
    assert message in note
    with pytest.raises(TableError, match="no usable input column"):
        fit_encoder(pa.table({"bad": values}), ["bad"])


@pytest.mark.parametrize("values", [pa.nulls(9), pa.array([None] * 9, pa.float64()), pa.array([""] * 9), [np.nan] * 9])
def test_a_column_without_values_is_left_out(values):
    encoder = fit_encoder(pa.table({"bad": values, "x": np.arange(9)}), ["bad", "x"])
    assert encoder.inputs == ["x"]
    assert encoder.notes_ == ("Column 'bad' is left out: it holds no values at all.",)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.rename_columns(["Size", *t.column_names[1:]]), "'size' is missing. Did you mean 'Size'"),
        (lambda t: t.set_column(0, "size", pa.array(["big"] * len(t))), "'size' holds string.*fitted to numbers"),
        (lambda t: t.set_column(2, "place", pa.array(range(len(t)))), "'place' holds int64.*fitted to texts"),
        (
            lambda t: t.set_column(4, "sold", pa.array(["soon"] * len(t))),
            "'sold' holds strings such as 'soon'.*fitted to dates such as 2026",
        ),
        (lambda t: t.select(["age"]), "'size' is missing. Its columns: age"),
    ],
)
def test_a_table_of_another_schema_is_refused(change, message):
    table = sales(60)
    encoder = fit_encoder(table, ["size", "place", "garden", "sold"])
    with pytest.raises(TableError, match=message):
        encoder.transform(change(table))


def test_a_schema_that_differs_harmlessly_is_accepted():
    """Other order, more columns, integers for numbers, a column that is empty this time."""
    table = sales(60)
    encoder = fit_encoder(table, ["age", "place"])
    changed = pa.table({"more": range(60), "place": pa.nulls(60), "age": table["age"].cast(pa.int32())})
    np.testing.assert_array_equal(encoder.transform(changed)[:, 0], encoder.transform(table)[:, 0])


def test_prepare_drops_and_counts_rows_without_target():
    table = sales()
    made = prepare(table, ReadOptions("price", exclude=["age"], weights="age"))
    assert made.dropped == table["price"].null_count > 0
    assert len(made.rows.X) == len(made.rows.y) == len(made.rows.weight) == 400 - made.dropped
    assert "age" not in made.encoder.inputs
    np.testing.assert_array_equal(prepare(table, ReadOptions("price", log_target=True)).rows.y, np.log(made.rows.y))
    assert prepare(table, ReadOptions("price", columns=["sold", "size"])).encoder.inputs == ["sold", "size"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"target": "age", "log_target": True},
            "needs positive targets, but 'age' is 0 in a row. Leave out --log-target",
        ),
        (
            {"target": "size", "weights": "loss"},
            "The weight column 'loss' has entries that are missing, infinite or neg",
        ),
        ({"target": "size", "weights": "place"}, "The column of weights 'place' holds string, not numbers"),
        ({"target": "size", "groups": "place"}, r"The group column 'place' is empty in \d+ of \d+ rows. Fill it, or"),
        ({"target": "size", "categorical": ["Place"]}, "There is no column 'Place' for categorical. Did you mean 'pl"),
        ({"target": "size", "categorical": ["size"]}, "There is no column 'size' for categorical. Its colu"),
        ({"target": "size", "exclude": ["pool"]}, "There is no column 'pool'. Did you mean 'sold'"),
    ],
)
def test_training_data_that_cannot_be_are_refused_with_the_remedy(options, message):
    table = sales().append_column("loss", pa.array([-1.0] * 400))
    with pytest.raises(TableError, match=message):
        prepare(table, ReadOptions(**options))


def test_boolean_targets_are_numbers():
    assert set(prepare(sales(), ReadOptions("garden")).rows.y) == {0.0, 1.0}


def test_pandas_categories():
    frame = pd.DataFrame({"w": pd.Categorical(["a", "b"] * 9), "x": range(18)})
    assert fit_encoder(pa.Table.from_pandas(frame), ["w", "x"]).names == ["w = a", "w = b", "x"]


def test_categories_that_are_large_numbers_or_decimals():
    table = pa.table({
        "id": pa.array([10_000_000_001, 10_000_000_002] * 10),
        "size": pa.array([Decimal("1.10"), Decimal("1.25")] * 10),
        "code": pa.array([1.0, 2.5] * 10),
    })  # fmt: skip
    encoder = fit_encoder(table, table.column_names, categorical=table.column_names)
    assert encoder.transform(table).shape == (20, 6)
    assert [column.categories for column in encoder.columns_] == [
        ("10000000001", "10000000002"),
        ("1.10", "1.25"),
        ("1", "2.5"),
    ]
    as_text = pa.table({name: table[name].cast(pa.string()) for name in table.column_names})
    np.testing.assert_array_equal(encoder.transform(as_text), encoder.transform(table))


def test_dates_in_parts_and_text_that_a_reader_took_for_gaps_are_called_out():
    rng = np.random.default_rng(0)
    alley = np.where(np.arange(200) % 3, "None", "gravel")
    frame = pd.DataFrame({"Year": 2020.0, "month": rng.integers(1, 13, 200), "day": rng.integers(1, 29, 200)})
    y = rng.random(200)
    given = TableEncoder().fit(frame.assign(alley=alley), y)
    read = TableEncoder().fit(frame.assign(alley=np.where(alley == "None", None, alley)), y)
    assert any("'Year', 'month', 'day' stand for one date" in note for note in given.notes_)
    assert not any("took it for a gap" in note for note in given.notes_)
    assert any("'alley' is empty in 66%" in note and "took it for a gap" in note for note in read.notes_)
    assert not any("one date" in note for note in TableEncoder().fit(frame.drop(columns="day"), y).notes_)


def test_columns_of_mixed_types_and_without_a_name_are_called_out():
    frame = pd.DataFrame({"code": ["a", 1, 2.5] * 6, "": range(18), "x": np.arange(18) / 2})
    encoder = TableEncoder().fit(frame)
    assert encoder.names == ["code = 1", "code = 2.5", "code = a", "x"]
    mixed, nameless = encoder.notes_
    assert mixed == "Column 'code' mixes text with numbers or other values, and is read as categories."
    assert nameless.startswith(
        "Column '' is left out: it has no name, like the row numbers that pandas writes. Give it"
    )
