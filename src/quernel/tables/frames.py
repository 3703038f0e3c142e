"""Columns of pandas, polars, Arrow and NumPy tables as plain arrays, read through narwhals.

`open_frame` gives access to the columns of any table; `Entries.kind` says what a column holds, and `to_numbers` and
`factorize` read it, in the same way whatever library it comes from.
"""

from __future__ import annotations

import difflib
import numbers
from collections import Counter
from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from functools import cache, cached_property
from typing import Any

import narwhals as nw
import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse
from sklearn.utils import check_array

Array = NDArray[np.floating]

# What a column may hold, by types of narwhals, NumPy and Python; the first that fits counts.
KINDS: dict[str, tuple[type, ...]] = {
    "boolean": (nw.Boolean, np.bool_, bool),
    "text": (nw.String, str),
    "category": (nw.Categorical, nw.Enum),
    "duration": (nw.Duration, np.timedelta64, timedelta),
    "date": (nw.Date, nw.Datetime, np.datetime64, date),
    "time": (nw.Time, time),
    "number": (nw.dtypes.NumericType, numbers.Real, Decimal),
}
EPOCH, MICROSECOND = datetime(1970, 1, 1), timedelta(microseconds=1)
# Up to this many entries, a loop over Python objects is faster than a library's own functions.
FEW = 64
# Up to this many rows, all columns of a pandas frame are read at once, as Python objects: the quickest way by far.
FEW_ROWS = 8


class TableError(ValueError):
    """A table that cannot be read, or is not what is needed."""


@dataclass(eq=False)
class Frame:
    """Access to the columns of a table."""

    names: list[str]  # x0, x1, ... if the table has none
    get: Callable[[str], Entries]  # from a name to the column
    n_rows: int
    named: bool = True  # whether the names are the table's own
    folds: NDArray[np.intp] | None = None  # (n,), of training rows; None is those of their positions


def open_frame(table: Any, needed: Sequence[str] = ()) -> Frame:
    """Return access to the columns of any table; a few rows of pandas are read at once, if some are needed by name."""
    if isinstance(table, Frame):
        return table
    if hasattr(table, "collect"):
        raise TableError(f"A table with its rows is needed; got a {type(table).__name__}. Call .collect() first.")
    if isinstance(table, dict) and not issparse(table):  # as some sparse matrices are
        columns = (isinstance(values, Sized) and not isinstance(values, str) for values in table.values())
        if not all(columns) or len(lengths := {len(values) for values in table.values()}) > 1:
            raise TableError("A dict must have columns of one length as its values, like {'size': [1, 2]}.")
        return _keep_columns(table, max(lengths, default=0))
    if not hasattr(table, "columns"):  # columns of arrays have the names that scikit-learn gives them
        matrix = table if hasattr(table, "dtype") else np.array(table, dtype=object)
        sizes = {"ensure_min_samples": 0, "ensure_min_features": 0}
        matrix = check_array(matrix, dtype=None, ensure_all_finite=False, **sizes)
        return _keep_columns({f"x{j}": column for j, column in enumerate(matrix.T)}, len(matrix), named=False)
    labels = list(table.columns) if hasattr(table, "dtypes") else []
    refuse_repeated_names(labels)
    named = all(isinstance(label, str) for label in labels)  # numbers of columns are no names
    if needed and named and hasattr(table, "iloc") and len(table) <= FEW_ROWS:
        return _keep_columns(dict(zip(labels, table.to_numpy(dtype=object).T, strict=True)), len(table))
    batch = type(table).__name__ == "RecordBatch"
    frame = nw.from_arrow(table, backend="pyarrow") if batch else nw.from_native(table, eager_only=True)
    names = frame.columns if named else [f"x{j}" for j in range(len(labels))]
    return _keep_columns(dict(zip(names, frame.iter_columns(), strict=True)), len(frame), named=named)


def _keep_columns(columns: dict[str, Any], n_rows: int, *, named: bool = True) -> Frame:
    """Return access to columns of a table in memory, which are kept once they have been read."""
    return Frame(list(columns), cache(lambda name: as_entries(columns[name])), n_rows, named)


def refuse_repeated_names(names: Sequence[Any]) -> None:
    """Raise TableError if two columns have the same name."""
    repeated = [repr(name) for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise TableError(f"X has several columns of one name: {', '.join(repeated[:5])}. Rename or drop some of them.")


def suggest_name(name: str, known: Sequence[str]) -> str:
    """Return a hint: the closest match among the known names, or the names themselves."""
    lower = {one.lower(): one for one in reversed(known)}
    if close := difflib.get_close_matches(name.lower(), lower, n=1, cutoff=0.5):
        return f"Did you mean {lower[close[0]]!r}?"
    return f"Its columns: {', '.join(known[:12])}{f' and {len(known) - 12} more' if len(known) > 12 else ''}."


# Columns


@dataclass(eq=False)
class Entries:
    """A column of a table."""

    values: Any  # a narwhals series or a one-dimensional array

    def __len__(self) -> int:
        return len(self.values)

    @cached_property
    def array(self) -> NDArray[Any]:
        """The values as a NumPy array."""
        return self.values if isinstance(self.values, np.ndarray) else self.values.to_numpy()

    @cached_property
    def types(self) -> set[type]:
        """The type of narwhals or NumPy, or those of Python objects, but for missing ones."""
        dtype = self.values.dtype
        if not isinstance(dtype, nw.Object) and getattr(dtype, "kind", "") != "O":
            return {getattr(dtype, "type", type(dtype))}
        values = self.array.tolist()
        types = {one for one in {*map(type, values)} if one.__name__ not in MISSING}
        gaps = float in types and all(value != value for value in values if type(value) is float)
        return types - {float} if gaps else types  # NaN marks missing values of any kind

    @cached_property
    def kind(self) -> str | None:
        """What the column holds: one of `KINDS`, mixed (text and other objects), or nothing (all missing).

        None if there is no encoding for it.
        """
        kinds = {next((kind for kind, known in KINDS.items() if issubclass(one, known)), None) for one in self.types}
        if kinds == {"number", "boolean"}:
            return "number"
        if len(kinds) > 1:
            return "mixed" if kinds <= {"text", "number", "boolean", "date"} else None
        return "nothing" if not kinds or self.type_name.startswith("null") else kinds.pop()

    @property
    def type_name(self) -> str:
        """The names of `types`, for messages."""
        if isinstance(self.values.dtype, nw.Unknown):  # to narwhals: the library has a name for it
            native = self.values.to_native()
            return str(native.dtype if hasattr(native, "dtype") else native.type).lower()
        return " and ".join(sorted(one.__name__.lower() for one in self.types)[:3])


# Types of objects that stand for missing values, by name: those of pandas may not be imported.
MISSING = ("NoneType", "NAType", "NaTType")


def is_missing(value: Any) -> bool:
    """Whether a Python object stands for a missing value: None, NaN, pandas.NA or NaT."""
    return type(value).__name__ in MISSING or bool(value != value)


def as_entries(values: Any) -> Entries:
    """Return a column of any library, or a list, as one that the functions below read."""
    if isinstance(values, Entries):
        return values
    if isinstance(values, list | tuple):  # of which NumPy would turn numbers beside text into text
        values = np.fromiter(values, dtype=object, count=len(values))
    if isinstance(values, np.ndarray):
        return Entries(values)
    series = nw.from_native(values, series_only=True)
    if isinstance(series.dtype, nw.Categorical) and series.implementation.is_pyarrow():
        coded = series.to_native().type.value_type
        if "string" not in str(coded):  # a dictionary of other values than text
            series = nw.from_native(series.to_native().cast(coded), series_only=True)
    return Entries(series)


def to_numbers(entries: Entries) -> Array:
    """Return a column as float64, shape (n,), missing values as NaN.

    Booleans are 0 and 1, durations seconds, times seconds since midnight, and dates seconds since 1970, in UTC if they
    have a time zone.
    """
    dtype = entries.values.dtype
    if isinstance(dtype, nw.Time):
        values = np.array(entries.values.to_list(), dtype=object)
    elif isinstance(dtype, nw.Boolean | nw.Decimal):
        values = entries.values.cast(nw.Float64).to_numpy()
    else:
        values = entries.array
    if values.dtype.kind in "mM":
        seconds = values.astype(f"{values.dtype.kind}8[us]", copy=False).view(np.int64) / 1e6
        return np.where(np.isnat(values), np.nan, seconds)
    if values.dtype.kind == "O":
        return np.array([np.nan if is_missing(value) else to_seconds(value) for value in values], dtype=float)
    return values.astype(float, copy=False)


def to_seconds(value: Any) -> float:
    """Return a Python object as `to_numbers` does."""
    if isinstance(value, time):
        value = datetime.combine(EPOCH, value, tzinfo=None)
    if isinstance(value, datetime) and value.tzinfo is not None:
        value = value.astimezone(UTC).replace(tzinfo=None)
    if isinstance(value, date | np.datetime64):
        value = np.asarray(value, dtype="M8[us]").item() - EPOCH
    return (value // MICROSECOND) / 1e6 if isinstance(value, timedelta) else float(value)


def factorize(entries: Entries) -> tuple[list[str], NDArray[np.intp]]:
    """Return the distinct values of a column as text, and the index of each entry among them, -1 if missing."""
    values, distinct = entries.values, dict[Any, int]()
    library = values.implementation if isinstance(values, nw.Series) and len(values) > FEW else None
    if library is not None and library.is_pyarrow() and isinstance(values.dtype, nw.String | nw.Categorical):
        chunks = values.cast(nw.String).to_native().dictionary_encode().chunks  # with one dictionary for all
        distinct = chunks[0].dictionary.to_pylist()
        index = np.concatenate([chunk.indices.fill_null(-1).to_numpy(zero_copy_only=False) for chunk in chunks])
    elif library is not None and library.is_pandas():
        index, distinct = values.to_native().factorize()
    else:
        plain = values.tolist() if isinstance(values, np.ndarray) else values.to_list()
        index = np.array([distinct.setdefault(value, len(distinct)) for value in plain], dtype=np.intp)
    places: dict[str, int] = {}  # values that are equal as text, such as 1 and 1.0, are one
    merged = [-1 if is_missing(value) else places.setdefault(label_text(value), len(places)) for value in distinct]
    return list(places), np.array([*merged, -1], dtype=np.intp)[index]


def label_text(value: Any) -> str:
    """Return a category as text: true and false for booleans, 2 for 2.0."""
    if isinstance(value, bool | np.bool_):
        return str(bool(value)).lower()
    if isinstance(value, float | np.floating) and float(value).is_integer() and abs(float(value)) < 1e15:
        return str(int(value))
    return str(value)
