"""Times as seconds, durations as text, tables of series (sorted, regular, no repeated stamps), and rolling origins."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quernel._validation import check_positive
from quernel.tables.columns import parse_date, parse_entries
from quernel.tables.frames import TableError, as_entries, factorize, open_frame, suggest_name, to_numbers

Array = NDArray[np.floating]
Index = NDArray[np.intp]

DAY = 86_400.0
UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": DAY, "w": 7 * DAY}
# Steps of a series that differ by less than this share are equal: stamps are rounded in files.
SAME_STEP = 1e-6


def to_seconds(times: Any, name: str = "times") -> Array:
    """Return dates of any library, or ISO dates in text, as seconds since 1970, shape (n,); numbers stay as they are.

    Raise TableError if some are missing or are no dates.
    """
    values = np.asarray(times) if type(times).__name__.endswith("Index") else times
    if hasattr(values, "ndim") and values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0] if isinstance(values, np.ndarray) else open_frame(values).get(open_frame(values).names[0])
    entries = as_entries(values)
    if entries.kind in ("number", "date"):
        seconds = to_numbers(entries)
    elif entries.kind in ("text", "category"):
        seconds = parse_entries(entries, parse_date, frozenset(), name, "must hold dates such as 2026-11-16 08:00")
    else:
        raise TableError(f"{name} must hold dates or numbers; got a column of kind {entries.kind}.")
    if not np.all(np.isfinite(seconds)):
        raise TableError(f"{name} has {np.sum(~np.isfinite(seconds)):,} missing dates. Leave out these rows.")
    return seconds


def to_duration(value: Any, step: float, name: str = "horizon") -> float:
    """Return a number of steps, or text such as "31d", "24h", "30min", "2w", in the unit of `step`: seconds."""
    if isinstance(value, str):
        found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|min|h|d|w)", value.strip())
        if found:
            return float(found[1]) * UNITS[found[2]]
    elif isinstance(value, int | np.integer | float) and not isinstance(value, bool) and np.isfinite(value):
        return float(value) * step
    raise ValueError(f"{name} must be a number of steps, or a duration such as '31d', '24h', '30min'; got {value!r}.")


def count_steps(value: Any, step: float, name: str = "horizon") -> int:
    """Return a duration as a whole, positive number of steps of `step` seconds."""
    steps = to_duration(value, step, name) / step
    if steps < 1 - SAME_STEP or abs(steps - round(steps)) > SAME_STEP * steps:
        raise ValueError(f"{name}={value!r} is {steps:g} steps of the series; it must be a whole number, at least 1.")
    return round(steps)


def format_time(seconds: float) -> str:
    """Write seconds since 1970 as a date and time."""
    return str(np.datetime64(round(seconds), "s")).replace("T", " ")


@dataclass(frozen=True, eq=False)
class Series:
    """A regular series.

    Attributes
    ----------
    key : its label in the id column, "" without one
    times : ndarray of shape (n,), seconds since 1970, ascending by `step`
    step : seconds from one stamp to the next
    y : ndarray of shape (n,), NaN where the target is missing
    X : ndarray of shape (n, k), exogenous columns
    """

    key: str
    times: Array
    step: float
    y: Array
    X: Array


def infer_step(times: Array, key: str = "") -> float:
    """Return the step of ascending times; raise TableError for repeated stamps and gaps, naming the first."""
    name = f"Series {key!r}" if key else "The series"
    if len(times) < 2:
        raise TableError(f"{name} has {len(times)} rows; at least two are needed to know its step.")
    difference = np.diff(times)
    if not np.all(difference > 0):
        first = times[np.flatnonzero(difference <= 0)[0]]
        raise TableError(
            f"{name} has more than one row at {format_time(first)}. Keep one of them; name the id column if there are "
            "several series; use UTC if clocks were set back."
        )
    step = float(np.median(difference))
    wrong = np.flatnonzero(np.abs(difference - step) > SAME_STEP * step)
    if len(wrong):
        raise TableError(
            f"{name} is not regular: {len(wrong):,} of its steps differ from {step:g} s, the first after "
            f"{format_time(times[wrong[0]])}, of {difference[wrong[0]]:g} s. Add the missing rows, with an empty "
            "target where it is unknown. Of months, which differ in length, give the values as an array without times."
        )
    return step


def _column(frame: Any, name: str) -> Any:
    if name not in frame.names:
        raise TableError(f"There is no column {name!r}.{suggest_name(name, frame.names)}")
    return frame.get(name)


def _numbers(frame: Any, name: str) -> Array:
    entries = _column(frame, name)
    if entries.kind not in ("number", "boolean", "nothing"):
        raise TableError(f"Column {name!r} must hold numbers; it holds {entries.kind}. Encode it first.")
    return to_numbers(entries)


def read_series(table: Any, time: str, target: str | None, columns: Sequence[str], key: str | None) -> list[Series]:
    """Return the series of a table, one for each label of the column `key`; rows may be in any order.

    Without a target (rows of the future), y is NaN. Raise TableError for repeated stamps, gaps, and missing or
    infinite values of `columns`.
    """
    frame = open_frame(table)
    times = to_seconds(_column(frame, time), f"Column {time!r}")
    y = np.full(len(times), np.nan) if target is None else _numbers(frame, target)
    if np.isinf(y).any():
        raise TableError(f"Column {target!r} has {np.isinf(y).sum():,} infinite values.")
    X = np.column_stack([_numbers(frame, name) for name in columns]) if columns else np.empty((len(times), 0))
    for name, values in zip(columns, X.T, strict=True):
        if not np.all(np.isfinite(values)):
            raise TableError(f"Column {name!r} has {np.sum(~np.isfinite(values)):,} missing or infinite values.")
    labels, codes = ([""], np.zeros(len(times), dtype=int)) if key is None else factorize(_column(frame, key))
    if np.any(codes < 0):
        raise TableError(f"The id column {key!r} has {np.sum(codes < 0):,} missing values. Leave out these rows.")
    found = []
    for code in np.unique(codes):
        index = np.flatnonzero(codes == code)
        index = index[np.argsort(times[index], kind="stable")]
        step = infer_step(times[index], labels[code]) if target is not None else np.nan
        found.append(Series(labels[code], times[index], step, y[index], X[index]))
    return found


def as_columns(y: Any, time: str, target: str) -> dict[str, Any]:
    """Columns of a table, or of a series with its index as the time."""
    if hasattr(y, "columns"):
        frame = open_frame(y)
        if time not in frame.names:
            raise TableError(f"There is no time column {time!r}; the columns are {frame.names}. Give time=...")
        return {name: frame.get(name) for name in frame.names}
    values = np.asarray(y, dtype=float)
    if values.ndim != 1:
        raise ValueError(f"y must be a table with a time column, or flat; got shape {values.shape}.")
    index = getattr(y, "index", None)
    dated = index is not None and getattr(index, "dtype", None) is not None and index.dtype.kind == "M"
    return {time: np.asarray(index) if dated else np.arange(len(values), dtype=float), target: values}


def has_numbers(y: Any, column: str | None) -> bool:
    """Whether a column of a table holds numbers; False if there is no table, or no such column."""
    frame = open_frame(y) if hasattr(y, "columns") else None
    return frame is not None and column in frame.names and frame.get(column).kind == "number"


def fill_missing(y: Array, season: int) -> Array:
    """Targets with missing ones replaced by the value of the season before, or the last one, never by a later one."""
    missing = np.flatnonzero(np.isnan(y))
    filled = y.copy() if len(missing) else y
    for k in missing:
        before = filled[k - season] if k >= season else np.nan
        filled[k] = before if np.isfinite(before) else filled[k - 1] if k > 0 else np.nan
    return filled


def time_splits(
    times: Any, n_splits: int = 5, *, horizon: Any, gap: Any = 0, window: Any = None
) -> list[tuple[Index, Index]]:
    """Return (train, test) index arrays of a rolling origin, for the `cv` of scikit-learn's and our searches.

    The last split tests on the last `horizon` of the data, the one before on the `horizon` before it, and so on. Rows
    are divided by their times, not their positions: they may be in any order, and of several series.

    Parameters
    ----------
    times : array-like of shape (n,), dates or numbers
    n_splits : int, default=5
    horizon : duration such as "31d", or number of steps
        Length of each test window. A step is the median time from one distinct stamp to the next.
    gap : duration or number of steps, default=0
        Time between the last training row and the first test row, such as the delay after which targets are known.
    window : duration, number of steps or None, default=None
        Length of the training window that slides along; None trains on everything before (an expanding window).

    Examples
    --------
    >>> import numpy as np
    >>> [(train.tolist(), test.tolist()) for train, test in time_splits(np.arange(6), 2, horizon=2)]
    [([0, 1], [2, 3]), ([0, 1, 2, 3], [4, 5])]
    """
    check_positive("n_splits", n_splits, integer=True)
    seconds = to_seconds(times)
    stamps = np.unique(seconds)
    if len(stamps) < 2:
        raise ValueError(f"time_splits needs at least two different times; got {len(stamps)}.")
    step = float(np.median(np.diff(stamps)))
    ahead, behind = to_duration(horizon, step), to_duration(gap, step, "gap")
    length = np.inf if window is None else to_duration(window, step, "window")
    if ahead <= 0 or behind < 0 or length <= 0:
        raise ValueError(f"horizon and window must be positive, gap 0 or more; got {horizon!r}, {window!r}, {gap!r}.")
    splits = []
    for k in range(n_splits, 0, -1):
        # Half a step after the last training row: no stamp is that near to an edge, whatever the rounding.
        origin = stamps[-1] + step / 2 - k * ahead
        last = origin - behind
        train = np.flatnonzero((seconds <= last) & (seconds > last - length))
        test = np.flatnonzero((seconds > origin) & (seconds <= origin + ahead))
        if not len(train) or not len(test):
            raise ValueError(
                f"{n_splits} splits of {horizon!r} with a gap of {gap!r} leave no rows to "
                f"{'test' if len(train) else 'train'} on. Use fewer splits or a shorter horizon."
            )
        splits.append((train, test))
    return splits


@dataclass(frozen=True, eq=False)
class Backtest:
    """Forecasts from many origins, with the observed values.

    Attributes
    ----------
    times : ndarray of shape (n,), seconds since 1970
    origins : ndarray of shape (n,), number of the first row that was not known
    steps : ndarray of shape (n,), steps ahead
    y : ndarray of shape (n,)
    quantiles : ndarray of shape (n, q)
    levels : ndarray of shape (q,)
    """

    times: Array
    origins: NDArray[np.intp]
    steps: NDArray[np.intp]
    y: Array
    quantiles: Array
    levels: Array
