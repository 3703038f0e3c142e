"""Casts of Arrow columns to plain values: numbers, category labels, timestamps."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from quernel.tables.reading import TableError

Array = NDArray[np.floating]

# Arrow's units of durations.
PER_SECOND = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}
# How text begins that holds a time of day.
CLOCK = r"^\d\d:\d\d"


def plain(column: Any) -> Any:
    """The column without Arrow's dictionaries."""
    import pyarrow as pa

    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def undone(kind: Any) -> Any:
    """An Arrow type without a dictionary."""
    import pyarrow.types as types

    return kind.value_type if types.is_dictionary(kind) else kind


def is_duration(kind: Any) -> bool:
    """Whether an Arrow type, or that of a dictionary's values, is one of durations."""
    import pyarrow.types as types

    return bool(types.is_duration(undone(kind)))


def kind_of(kind: Any) -> str | None:
    """Which kind of column an Arrow type makes: number, boolean, text, date, time, nothing (all missing), or None.

    Durations are numbers, of seconds.
    """
    import pyarrow.types as types

    kind = undone(kind)
    if types.is_null(kind):
        return "nothing"
    if types.is_boolean(kind):
        return "boolean"
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind) or types.is_duration(kind):
        return "number"
    if types.is_time(kind):
        return "time"
    if types.is_timestamp(kind) or types.is_date(kind):
        return "date"
    if types.is_string(kind) or types.is_large_string(kind):
        return "text"
    return None


def numbers(column: Any) -> Array:
    """A column as float64, missing entries as NaN; durations in seconds."""
    import pyarrow as pa

    column = plain(column)
    if pa.types.is_duration(column.type):
        return numbers(column.cast(pa.int64())) / PER_SECOND[column.type.unit]
    return np.asarray(column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False), dtype=float)


def as_words(column: Any) -> tuple[list[str], NDArray[np.intp]]:
    """Return the distinct values of a text column, and the index of each entry among them, -1 if missing.

    Numbers and truth values are words, too, where they stand for categories.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    column = plain(column)
    if pa.types.is_floating(column.type):
        column = pc.if_else(pc.is_nan(column), None, column)
    text = column.cast(pa.large_string())
    text = text.combine_chunks() if isinstance(text, pa.ChunkedArray) else text
    coded = text.dictionary_encode()
    return coded.dictionary.to_pylist(), coded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.intp)


def parsed(column: Any, name: str, kind: str) -> Any:
    """Parse text as numbers or booleans; raise with an example of text that is neither."""
    import pyarrow as pa

    text = _told(column)
    # Whole numbers may be hexadecimal.
    types = (pa.bool_(),) if kind == "boolean" else (pa.float64(), pa.int64())
    for meant in types:
        found = _cast_or_none(text, meant)
        if found is not None:
            return found
    word = next(word for word in text.unique().drop_null() if _cast_or_none(word, types[0]) is None)
    raise TableError(f"Column {name!r} holds strings such as {word.as_py()!r}, but the model was fitted to {kind}s.")


def _cast_or_none(text: Any, meant: Any) -> Any:
    """Text, a column or a word, as another type; None if it cannot be read as that."""
    import pyarrow as pa

    try:
        return text.cast(meant)
    except pa.ArrowInvalid:
        return None


def seconds(column: Any, name: str) -> Array:
    """A column of dates, or of text that holds dates, as seconds since 1970, missing entries as NaN."""
    import pyarrow as pa

    column = plain(column)
    if kind_of(column.type) == "text":
        parsed = parsed_dates(column)
        if parsed is None:
            raise TableError(f"Column {name!r} holds text that is not a date. Write dates like 2026-11-16 08:30:00.")
        column = parsed
    if kind_of(column.type) == "nothing":
        return np.full(len(column), np.nan)
    zone = getattr(column.type, "tz", None)
    count = column.cast(pa.timestamp("us", zone), safe=False).cast(pa.int64())
    return numbers(count) / 1e6


def clock(column: Any, name: str) -> Array:
    """A column of times of day, or of text that holds them, as seconds since midnight, missing entries as NaN."""
    import pyarrow as pa

    column = plain(column)
    if kind_of(column.type) == "text":
        times = parsed_times(column)
        if times is None:
            raise TableError(f"Column {name!r} holds text that is not a time. Write times like 08:30:00.")
        return seconds(times, name)
    if kind_of(column.type) == "nothing":
        return np.full(len(column), np.nan)
    return numbers(column.cast(pa.time64("us"), safe=False).cast(pa.int64())) / 1e6


def parsed_dates(column: Any) -> Any:
    """Text as points in time, or None if some of it is no date."""
    text = _told(column)
    local = _stamps(text, None)
    return _stamps(text, "UTC") if local is None else local


def parsed_times(column: Any) -> Any:
    """Text that holds times of day as such points of the first day of 1970, or None if some of it is no time."""
    import pyarrow as pa
    import pyarrow.compute as pc

    text = _told(column)
    if not pc.all(pc.match_substring_regex(text, CLOCK), min_count=0).as_py():
        return None
    day, between = (pa.scalar(part, text.type) for part in ("1970-01-01", " "))  # times alone Arrow does not read
    return _stamps(pc.binary_join_element_wise(day, text, between), None)


def _told(column: Any) -> Any:
    """The text of a column, without that which is empty."""
    import pyarrow as pa
    import pyarrow.compute as pc

    text = plain(column).cast(pa.large_string())
    return pc.if_else(pc.equal(text, ""), None, text)


def _stamps(text: Any, zone: str | None) -> Any:
    """Points in time with up to six or, if that does not do, nine digits after the second; None if text is no date."""
    import pyarrow as pa

    coarse = _cast_or_none(text, pa.timestamp("us", zone))
    return _cast_or_none(text, pa.timestamp("ns", zone)) if coarse is None else coarse
