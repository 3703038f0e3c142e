"""Columns of pandas, polars, Arrow and NumPy tables as plain arrays, read through narwhals.

`open_frame` gives access to the columns of any table; `Entries.kind` says what a column holds, and `to_numbers` and
`factorize` read it, in the same way whatever library it comes from.
"""

from __future__ import annotations

import difflib
import numbers
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from functools import cache, cached_property, partial
from typing import Any

import narwhals as nw
import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse

Array = NDArray[np.floating]
# From text to the number that it stands for, None if it stands for none.
Parser = Callable[[str], float | None]

NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
HEXADECIMAL = re.compile(r"0[xX][0-9a-fA-F]+")
DATE = re.compile(r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d(\.\d+)?)?(?P<zone>Z|[+-]\d\d(:?\d\d)?)?)?")
DAY_OR_MONTH_FIRST = re.compile(
    r"(?P<first>\d{1,2})(?P<mark>[./-])(?P<second>\d{1,2})(?P=mark)(?P<year>\d{4}|\d\d)"
    r"([ T](?P<time>\d\d:\d\d(:\d\d)?))?"
)
CLOCK = re.compile(r"\d\d:\d\d(:\d\d(\.\d+)?)?")
BOOLEANS = (("true", "True", "TRUE"), ("false", "False", "FALSE"))
EPOCH, MICROSECOND = datetime(1970, 1, 1), timedelta(microseconds=1)
# Up to this many entries, a loop over Python objects is faster than a library's own functions.
FEW = 64
# Up to this many rows, all columns of a pandas frame are read at once, as Python objects: the quickest way by far.
FEW_ROWS = 8


class TableError(ValueError):
    """A table that cannot be read, or is not what is needed."""


@dataclass(eq=False)
class Entries:
    """A column of a table."""

    values: Any  # a narwhals series or a one-dimensional array

    def __len__(self) -> int:
        return len(self.values)

    def every(self, step: int) -> Entries:
        """Return every `step`-th entry."""
        return Entries(self.values[::step] if self.series is None else self.values.gather_every(step))

    @cached_property
    def dtype(self) -> Any:
        """The type of narwhals or NumPy."""
        return self.values.dtype

    @cached_property
    def kind(self) -> str | None:
        """What the column holds, None if there is no encoding for it.

        One of number, boolean, duration, date, time, text, category (text of a categorical type), mixed (text and other
        objects) and nothing (all missing).
        """
        series, dtype = self.series, self.dtype
        if series is None:
            return _kind_of_objects(self.array) if dtype.kind == "O" else ARRAY_KINDS.get(dtype.kind, "number")
        if dtype.is_numeric():
            return "number"
        if isinstance(dtype, nw.Object):
            return _kind_of_objects(self.array)
        if isinstance(dtype, nw.String) and 0 < series.null_count() == len(series):
            return "nothing"  # pandas' columns of None alone
        if isinstance(dtype, nw.Unknown):
            return "nothing" if type_name(self) in ("null", "unknown") else None
        return next((kind for types, kind in KINDS if isinstance(dtype, types)), None)

    @cached_property
    def array(self) -> NDArray[Any]:
        """The values as a NumPy array."""
        return self.values if isinstance(self.values, np.ndarray) else self.values.to_numpy()

    @property
    def series(self) -> nw.Series[Any] | None:
        """The values as a narwhals series, None for an array."""
        return None if isinstance(self.values, np.ndarray) else self.values


@dataclass(eq=False)
class Frame:
    """Access to the columns of a table."""

    names: list[str]  # x0, x1, ... if the table has none
    get: Callable[[str], Entries]  # from a name to the column
    n_rows: int
    named: bool = True  # whether the names are the table's own
    folds: NDArray[np.intp] | None = None  # (n,), of training rows; None is those of their positions


def _store(names: list[str], read: Callable[[str], Any], n_rows: int, *, named: bool = True) -> Frame:
    """Return access to columns of a table in memory, which are kept once they have been read."""
    return Frame(names, cache(lambda name: as_entries(read(name))), n_rows, named)


def open_frame(table: Any, needed: Sequence[str] = ()) -> Frame:
    """Return access to the columns of any table; if some are named as `needed`, only these must differ in name."""
    if isinstance(table, Frame):
        return table
    if issparse(table):
        raise TypeError("Sparse data was passed for X, but dense data is required. Use X.toarray() to convert it.")
    if isinstance(table, dict):
        return _open_dict(table)
    if isinstance(table, np.ndarray | list | tuple):
        return _open_matrix(table)
    if hasattr(table, "collect") and hasattr(table, "collect_schema"):
        raise TableError(f"A table with its rows is needed; got a {type(table).__name__}. Call .collect() first.")
    if type(table).__name__ == "RecordBatch":
        import pyarrow as pa

        table = pa.Table.from_batches([table])
    labels = list(table.columns) if hasattr(table, "dtypes") else []
    if len({*labels}) < len(labels):
        refuse_repeated_names([label for label in labels if not needed or label in needed])
        table = table[[label for label in labels if label in needed]]
        labels = list(table.columns)
    if needed and hasattr(table, "iloc") and len(table) <= FEW_ROWS and all(isinstance(label, str) for label in labels):
        places, matrix = {label: j for j, label in enumerate(labels)}, table.to_numpy(dtype=object)
        return _store(labels, lambda name: matrix[:, places[name]], len(matrix))
    try:
        frame = nw.from_native(table)
    except TypeError as error:
        matrix = np.asarray(table) if hasattr(table, "__array__") else np.empty(0)
        if matrix.ndim == 2:
            return _open_matrix(matrix)
        raise TableError(
            f"A table is needed: pandas, polars, Arrow, an array or a dict of columns; got {type(table).__name__}."
        ) from error
    if all(isinstance(label, str) for label in labels):
        return _store(frame.columns, frame.get_column, len(frame))
    positions = {f"x{j}": label for j, label in enumerate(labels)}  # numbers of columns are no names
    return _store(list(positions), lambda name: frame.get_column(positions[name]), len(frame), named=False)


def _open_dict(table: dict[str, Any]) -> Frame:
    for name, values in table.items():
        typed = hasattr(values, "dtype") or hasattr(values, "type")
        if not typed and (isinstance(values, str) or np.ndim(values) != 1):
            raise TableError(f"A dict must have columns as its values, such as [1, 2]; got {values!r} for {name!r}.")
    lengths = {len(values) for values in table.values()}
    if len(lengths) > 1:
        raise TableError("The columns of the dict have different lengths. Give one value per row.")
    return _store(list(table), table.__getitem__, max(lengths, default=0))


def as_entries(values: Any) -> Entries:
    """Return a column of any library, or a list, as one that the functions below read."""
    if isinstance(values, Entries):
        return values
    if isinstance(values, list | tuple):
        return Entries(_to_array(values))
    if isinstance(values, np.ndarray):
        return Entries(values)
    if type(values).__module__.startswith("pyarrow") and not hasattr(values, "chunks"):
        import pyarrow as pa

        values = pa.chunked_array([values])
    series = nw.from_native(values, series_only=True)
    if isinstance(series.dtype, nw.Categorical) and series.implementation.is_pyarrow():
        coded = series.to_native().type.value_type
        if "string" not in str(coded):  # a dictionary of other values than text
            series = nw.from_native(series.to_native().cast(coded), series_only=True)
    return Entries(series)


def _to_array(values: Sequence[Any]) -> NDArray[Any]:
    """Return an array, of objects unless all are numbers: NumPy would turn numbers beside text into text."""
    if all(isinstance(value, numbers.Number) for value in values):
        return np.asarray(values)
    objects = np.empty(len(values), dtype=object)
    objects[:] = values
    return objects


def _open_matrix(table: Any) -> Frame:
    matrix = np.asarray(table)
    if not isinstance(table, np.ndarray) and matrix.dtype.kind in "US":
        matrix = np.array(table, dtype=object)  # numbers beside text stay numbers
    if matrix.ndim != 2:
        raise TableError(
            f"Expected 2D array, got {matrix.ndim}D array instead. Reshape your data either using "
            "array.reshape(-1, 1) if it has a single column, or array.reshape(1, -1) if it is a single row."
        )
    if matrix.dtype.kind == "c":
        raise TableError("Complex data not supported: give the real and imaginary parts as columns.")
    names = [f"x{j}" for j in range(matrix.shape[1])]  # scikit-learn's names of columns that have none
    return _store(names, lambda name: matrix[:, int(name[1:])], len(matrix), named=False)


def refuse_repeated_names(names: Sequence[Any]) -> None:
    """Raise TableError if two columns have the same name."""
    repeated = [repr(name) for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise TableError(f"X has several columns of one name: {', '.join(repeated[:5])}. Rename or drop some of them.")


def suggest_name(name: str, known: Sequence[str]) -> str:
    """Return a hint: the closest match among the known names, or the names themselves."""
    close = difflib.get_close_matches(name.lower(), [k.lower() for k in known], n=1, cutoff=0.5)
    if close:
        return f"Did you mean {next(k for k in known if k.lower() == close[0])!r}?"
    shown = ", ".join(known[:12]) + (f" and {len(known) - 12} more" if len(known) > 12 else "")
    return f"Its columns: {shown}."


# Kinds of columns


KINDS: tuple[tuple[Any, str], ...] = (
    (nw.Boolean, "boolean"),
    (nw.String, "text"),
    ((nw.Categorical, nw.Enum), "category"),
    ((nw.Datetime, nw.Date), "date"),
    (nw.Duration, "duration"),
    (nw.Time, "time"),
)
ARRAY_KINDS = {"b": "boolean", "M": "date", "m": "duration", "U": "text", "S": None, "c": None, "V": None}


def type_name(entries: Entries) -> str:
    """Return the type of a column, for messages."""
    dtype = entries.dtype
    if isinstance(dtype, nw.Unknown):  # to narwhals: Arrow has a name for it
        return str(getattr(entries.values.to_native(), "type", "unknown"))
    if getattr(dtype, "kind", "") == "O" or isinstance(dtype, nw.Object):
        kinds = sorted({type(value).__name__ for value in plain_values(entries) if not is_missing(value)})
        return " and ".join(kinds[:3])
    name = str(dtype).lower()
    return name if entries.series is None or dtype.is_nested() else name.split("(")[0]


def _kind_of_objects(values: NDArray[Any]) -> str | None:
    """Return the kind of a column of Python objects."""
    entries = values.tolist()
    types = {one for one in {*map(type, entries)} if one.__name__ not in ("NoneType", "NAType", "NaTType")}
    if float in types and all(value != value for value in entries if type(value) is float):
        types.discard(float)  # NaN marks missing values of any kind
    kinds = {next((kind for family, kind in FAMILIES if issubclass(one, family)), None) for one in types}
    if not kinds:
        return "nothing"
    if kinds <= {"number", "boolean"}:
        return kinds.pop() if len(kinds) == 1 else "number"
    if len(kinds) == 1:
        return kinds.pop()
    return "mixed" if kinds <= {"text", "number", "boolean", "date"} else None


FAMILIES: tuple[tuple[Any, str], ...] = (
    (str, "text"),
    ((bool, np.bool_), "boolean"),
    (timedelta, "duration"),
    ((numbers.Complex, Decimal), "number"),
    ((date, datetime), "date"),
    (time, "time"),
)


def is_missing(value: Any) -> bool:
    """Whether a Python object stands for a missing value: None, NaN, pandas.NA or NaT."""
    return value is None or type(value).__name__ in ("NAType", "NaTType") or bool(value != value)


# Values of columns


def plain_values(entries: Entries) -> list[Any]:
    """Return the entries of a column as Python objects."""
    return list(entries.values.tolist() if entries.series is None else entries.values.to_list())


def to_numbers(entries: Entries) -> Array:
    """Return a column as float64, shape (n,), missing values as NaN.

    Booleans are 0 and 1, durations seconds, times seconds since midnight, and dates seconds since 1970, in UTC if they
    have a time zone.
    """
    if isinstance(entries.dtype, nw.Time):
        values = np.array(plain_values(entries), dtype=object)
    elif isinstance(entries.dtype, nw.Boolean | nw.Decimal):
        values = entries.values.cast(nw.Float64).to_numpy()
    else:
        values = entries.array
    if values.dtype.kind in "mM":
        seconds = values.astype(f"{values.dtype.kind}8[us]", copy=False).view(np.int64) / 1e6
        return np.where(np.isnat(values), np.nan, seconds)
    if values.dtype.kind == "O":
        return np.array([np.nan if is_missing(value) else _to_number(value) for value in values], dtype=float)
    return values.astype(float, copy=False)


def _to_number(value: Any) -> float:
    if isinstance(value, time):
        value = datetime.combine(EPOCH, value, tzinfo=None)
    elif isinstance(value, date) and not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day)
    if isinstance(value, datetime):
        value = (value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)) - EPOCH
    return (value // MICROSECOND) / 1e6 if isinstance(value, timedelta) else float(value)


def factorize(entries: Entries) -> tuple[list[str], NDArray[np.intp]]:
    """Return the distinct values of a column as text, and the index of each entry among them, -1 if missing."""
    series = entries.series
    if series is not None and len(series) > FEW:
        if series.implementation.is_pyarrow() and isinstance(entries.dtype, nw.String | nw.Categorical):
            chunks = series.cast(nw.String).to_native().dictionary_encode().chunks  # with one dictionary for all
            index = [chunk.indices.fill_null(-1).to_numpy(zero_copy_only=False) for chunk in chunks]
            return chunks[0].dictionary.to_pylist(), np.concatenate(index).astype(np.intp)
        if series.implementation.is_pandas():
            index, labels = series.to_native().factorize()
            return _merge_labels([label_text(label) for label in labels], np.asarray(index, dtype=np.intp))
    places: dict[Any, int] = {}
    codes = [-1 if is_missing(value) else places.setdefault(value, len(places)) for value in plain_values(entries)]
    return _merge_labels([label_text(label) for label in places], np.array(codes, dtype=np.intp))


def _merge_labels(labels: list[str], codes: NDArray[np.intp]) -> tuple[list[str], NDArray[np.intp]]:
    """Merge labels that are equal as text, such as 1 and 1.0."""
    places: dict[str, int] = {}
    merged = np.array([places.setdefault(label, len(places)) for label in labels] + [-1], dtype=np.intp)
    return (labels, codes) if len(places) == len(labels) else (list(places), merged[codes])


def label_text(value: Any) -> str:
    """Return a category as text: true and false for booleans, 2 for 2.0."""
    if isinstance(value, bool | np.bool_):
        return BOOLEANS[0 if value else 1][0]
    if isinstance(value, float | np.floating) and float(value).is_integer() and abs(float(value)) < 1e15:
        return str(int(value))
    return str(value)


# Numbers and dates in text


def parse_number(text: str) -> float | None:
    """Return the number that text stands for, None if it is none."""
    if NUMBER.fullmatch(text.strip()) or text.strip("+- ").lower() in ("inf", "infinity"):
        return float(text)
    return float(int(text, 16)) if HEXADECIMAL.fullmatch(text) else None


def parse_boolean(text: str) -> float | None:
    """Return 1 or 0 for text that stands for a boolean, None if it does not."""
    return 1.0 if text in (*BOOLEANS[0], "1") else 0.0 if text in (*BOOLEANS[1], "0") else None


def _parse_iso(pattern: re.Pattern[str], read: Callable[[str], Any], text: str) -> float | None:
    try:
        return _to_number(read(text)) if pattern.fullmatch(text) else None
    except ValueError:
        return None


def _parse_parts(month: str, day: str, text: str) -> float | None:
    found = DAY_OR_MONTH_FIRST.fullmatch(text)
    if found is None:
        return None
    year = int(found["year"])
    year += (2000 if year < 69 else 1900) if len(found["year"]) == 2 else 0  # as POSIX reads two digits
    return parse_date(f"{year:04}-{int(found[month]):02}-{int(found[day]):02} {found['time'] or '00:00'}")


# Seconds since 1970 of dates like 2026-11-16 or 2026-11-16 08:30:00, like 31.12.2020 or 31/12/20 08:30, and like
# 12/31/2020; seconds since midnight of times like 08:30 or 08:30:00; None for other text.
parse_date: Parser = partial(_parse_iso, DATE, datetime.fromisoformat)
parse_day_first: Parser = partial(_parse_parts, "second", "first")
parse_month_first: Parser = partial(_parse_parts, "first", "second")
parse_time: Parser = partial(_parse_iso, CLOCK, time.fromisoformat)


def parse_entries(entries: Entries, parse: Parser, markers: frozenset[str], what: str) -> Array:
    """Parse a column of text, shape (n,), empty text and missing-value markers as NaN.

    Raise TableError with an example of text that cannot be parsed; `what` says what the column holds instead of.
    """
    labels, codes = factorize(entries)
    values = [np.nan if not label or label in markers else parse(label) for label in labels]
    if None in values:
        raise TableError(what.format(text=labels[values.index(None)]))
    return np.array([*values, np.nan], dtype=float)[codes]
