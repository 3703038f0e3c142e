"""Casts of Arrow columns to plain values: numbers, category labels, timestamps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types
from numpy.typing import NDArray

from quernel.tables.columns import NumberColumn
from quernel.tables.encoder import TableEncoder
from quernel.tables.frames import TableError, refuse_repeated_names, suggest_name
from quernel.tables.missing_values import number_markers

Array = NDArray[np.floating]
ArrowColumn: TypeAlias = pa.Array | pa.ChunkedArray

# Arrow's units of durations.
PER_SECOND = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}
# Beginning of text that holds a time of day.
TIME_OF_DAY = r"^\d\d:\d\d"


def decode_dictionary(column: ArrowColumn) -> ArrowColumn:
    """Return the column without dictionary encoding."""
    return column.cast(value_type(column.type)) if types.is_dictionary(column.type) else column


def value_type(arrow_type: pa.DataType) -> pa.DataType:
    """Return the type of a dictionary's values, any other type as it is."""
    return arrow_type.value_type if types.is_dictionary(arrow_type) else arrow_type


def is_duration(arrow_type: pa.DataType) -> bool:
    """Whether an Arrow type, or that of a dictionary's values, is a duration."""
    return bool(types.is_duration(value_type(arrow_type)))


def column_kind(arrow_type: pa.DataType) -> str | None:
    """Return number, boolean, text, date, time, "nothing" (all missing), or None for types without an encoding.

    Durations are numbers, in seconds.
    """
    arrow_type = value_type(arrow_type)
    if types.is_null(arrow_type):
        return "nothing"
    if types.is_boolean(arrow_type):
        return "boolean"
    if types.is_integer(arrow_type) or types.is_floating(arrow_type) or types.is_decimal(arrow_type):
        return "number"
    if types.is_duration(arrow_type):
        return "number"
    if types.is_time(arrow_type):
        return "time"
    if types.is_timestamp(arrow_type) or types.is_date(arrow_type):
        return "date"
    if types.is_string(arrow_type) or types.is_large_string(arrow_type):
        return "text"
    return None


def to_float64(column: ArrowColumn) -> Array:
    """Cast a column to float64, shape (n,), missing values as NaN and durations in seconds."""
    column = decode_dictionary(column)
    if types.is_duration(column.type):
        return to_float64(column.cast(pa.int64())) / PER_SECOND[column.type.unit]
    return np.asarray(column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False), dtype=float)


def factorize(column: ArrowColumn) -> tuple[list[str], NDArray[np.intp]]:
    """Return the distinct values of a column as text, and the index of each entry among them, -1 if missing."""
    column = decode_dictionary(column)
    if types.is_floating(column.type):
        column = pc.if_else(pc.is_nan(column), None, column)
    text = column.cast(pa.large_string())
    text = text.combine_chunks() if isinstance(text, pa.ChunkedArray) else text
    encoded = text.dictionary_encode()
    codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.intp)
    return encoded.dictionary.to_pylist(), codes


def parse_text(column: ArrowColumn, name: str, kind: str) -> ArrowColumn:
    """Parse text as numbers or booleans; raise with an example of text that is neither."""
    text = _nonempty_text(column)
    # Integers may be hexadecimal, which Arrow does not read as float64.
    targets = (pa.bool_(),) if kind == "boolean" else (pa.float64(), pa.int64())
    for target in targets:
        values = _cast_or_none(text, target)
        if values is not None:
            return values
    wrong = next(value for value in text.unique().drop_null() if _cast_or_none(value, targets[0]) is None)
    raise TableError(f"Column {name!r} holds strings such as {wrong.as_py()!r}, but the model was fitted to {kind}s.")


def _cast_or_none(text: ArrowColumn | pa.Scalar, target: pa.DataType) -> ArrowColumn | pa.Scalar | None:
    """Cast text; None if it cannot be parsed as this type."""
    try:
        return text.cast(target)
    except pa.ArrowInvalid:
        return None


def to_epoch_seconds(column: ArrowColumn, name: str) -> Array:
    """Cast dates, or text that holds dates, to seconds since 1970, shape (n,), missing values as NaN."""
    column = decode_dictionary(column)
    if column_kind(column.type) == "text":
        column = parse_dates(column)
        if column is None:
            raise TableError(f"Column {name!r} holds text that is not a date. Write dates like 2026-11-16 08:30:00.")
    if column_kind(column.type) == "nothing":
        return np.full(len(column), np.nan)
    zone = getattr(column.type, "tz", None)
    microseconds = column.cast(pa.timestamp("us", zone), safe=False).cast(pa.int64())
    return to_float64(microseconds) / 1e6


def to_seconds_of_day(column: ArrowColumn, name: str) -> Array:
    """Cast times of day, or text that holds them, to seconds since midnight, shape (n,), missing values as NaN."""
    column = decode_dictionary(column)
    if column_kind(column.type) == "text":
        times = parse_times(column)
        if times is None:
            raise TableError(f"Column {name!r} holds text that is not a time. Write times like 08:30:00.")
        return to_epoch_seconds(times, name)
    if column_kind(column.type) == "nothing":
        return np.full(len(column), np.nan)
    return to_float64(column.cast(pa.time64("us"), safe=False).cast(pa.int64())) / 1e6


def parse_dates(column: ArrowColumn) -> ArrowColumn | None:
    """Parse text as timestamps, local or in UTC; None if some of it is not a date."""
    text = _nonempty_text(column)
    local = _parse_timestamps(text, None)
    return _parse_timestamps(text, "UTC") if local is None else local


def parse_times(column: ArrowColumn) -> ArrowColumn | None:
    """Parse text as times of day, timestamps on the first day of 1970; None if some of it is not a time."""
    text = _nonempty_text(column)
    if not pc.all(pc.match_substring_regex(text, TIME_OF_DAY), min_count=0).as_py():
        return None
    day, blank = (pa.scalar(part, text.type) for part in ("1970-01-01", " "))  # Arrow does not parse times alone
    return _parse_timestamps(pc.binary_join_element_wise(day, text, blank), None)


def _nonempty_text(column: ArrowColumn) -> ArrowColumn:
    """Return the text of a column, empty text as null."""
    text = decode_dictionary(column).cast(pa.large_string())
    return pc.if_else(pc.equal(text, ""), None, text)


def _parse_timestamps(text: ArrowColumn, zone: str | None) -> ArrowColumn | None:
    """Parse timestamps in microseconds or, if they have more digits, nanoseconds; None if some text is not one."""
    coarse = _cast_or_none(text, pa.timestamp("us", zone))
    return _cast_or_none(text, pa.timestamp("ns", zone)) if coarse is None else coarse


# Tables


def as_arrow(table: Any, needed: Sequence[str] = ()) -> pa.Table | pa.RecordBatch:
    """Convert Arrow, pandas or polars tables, or a dict of arrays, to an Arrow table.

    Of a data frame only the `needed` columns are converted, if some are named: Arrow may not support others.
    """
    from quernel.tables.reading import without_views

    if isinstance(table, pa.Table | pa.RecordBatch):
        return without_views(table)
    try:
        if not (hasattr(table, "columns") and hasattr(table, "dtypes")):
            return without_views(pa.table(table))
        names = [str(name) for name in table.columns]
        refuse_repeated_names(names)
        for name in needed:
            if name not in names:
                raise TableError(
                    f"The table does not fit the model: column {name!r} is missing. {suggest_name(name, names)}"
                )
        frame = table[[*needed]] if needed else table
        return (
            frame.to_arrow()
            if hasattr(frame, "to_arrow")
            else pa.Table.from_pandas(frame, preserve_index=False, nthreads=1)
        )
    except (TypeError, AttributeError, pa.ArrowException) as error:
        reason = "; ".join(map(str, error.args)).strip().rstrip(".")
        raise TableError(f"The table cannot be read: {reason}. Give every column values of one kind.") from error


def replace_missing_markers(encoder: TableEncoder, table: pa.Table | pa.RecordBatch, *others: str) -> pa.Table:
    """Return a table or batch with an encoder's missing-value markers replaced by null, as in a CSV file.

    `others` are numeric columns, besides the inputs, that are treated in the same way.
    """
    table = pa.Table.from_batches([table]) if isinstance(table, pa.RecordBatch) else table
    numbers = number_markers(encoder.missing)
    texts = {column.name: encoder.missing_markers(column) for column in encoder.columns_} | dict.fromkeys(others, ())
    for name in [name for name in texts if name in table.schema.names]:
        column = markers_to_null(decode_dictionary(table[name]), texts[name], numbers)
        table = table.set_column(table.schema.get_field_index(name), name, column)
    return table


def markers_to_null(column: ArrowColumn, texts: Sequence[str], numbers: Sequence[float]) -> ArrowColumn:
    """Replace missing-value markers of an Arrow column, text or numbers, by null."""
    kind = column.type
    if texts and (types.is_string(kind) or types.is_large_string(kind)):
        marked = pc.is_in(column, value_set=pa.array(texts, kind))
    elif numbers and (types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind)):
        marked = pc.is_in(column.cast(pa.float64(), safe=False), value_set=pa.array(numbers, pa.float64()))
    else:
        return column
    return pc.if_else(marked, pa.scalar(None, kind), column) if pc.any(marked).as_py() else column


def has_infinite(encoder: TableEncoder, table: pa.Table | pa.RecordBatch) -> NDArray[np.bool_]:
    """Which rows of a table or batch have an infinite input, treated as missing; shape (n,)."""
    found = np.zeros(len(table), dtype=bool)
    for column in encoder.columns_:
        if isinstance(column, NumberColumn) and column_kind(table[column.name].type) == "number":
            found |= np.isinf(to_float64(table[column.name]))
    return found
