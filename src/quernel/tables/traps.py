"""Traps in training data, called out before any work: columns that tell the target, long tails, dates in parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quernel.tables.column_stats import Alarm, is_identifier
from quernel.tables.frames import Frame

Array = NDArray[np.floating]


class TableWarning(UserWarning):
    """Training data have a column that tells the target, or one that identifies rows."""


@dataclass(frozen=True)
class TrapOptions:
    """Constants of the search for traps."""

    max_rows: int = 5000  # rows that are looked at for columns that tell the target
    min_rows: int = 50  # with fewer, nothing is said
    explained: float = 0.999  # share of the variance of the target from which a column tells it
    tail: float = 1.6  # upper part of the target's range over the lower one, medians to outer quantiles
    spread: float = 3.0  # upper over lower outer quantile


OPTIONS = TrapOptions()
LONG_TAIL = (
    "The target is positive and has a long right tail: its logarithm may be easier to predict, and quantiles of a "
    "logarithm are logarithms of quantiles: try --log-target, or in Python scikit-learn's "
    "TransformedTargetRegressor(model, func=np.log, inverse_func=np.exp)."
)
# Names of the parts of a date.
PARTS = {"year": ("year", "yr", "yyyy"), "month": ("month", "mnth", "mon", "mm"), "day": ("day", "dd", "mday"),
         "hour": ("hour", "hr", "hh")}  # fmt: skip


def sampling_step(n_rows: int) -> int:
    """Return how many rows there are for each one that is looked at for columns that tell the target."""
    return max(-(-n_rows // OPTIONS.max_rows), 1)


def describe_leak(name: str, values: NDArray[np.generic], y: Array) -> list[Alarm]:
    """Return a sentence if a column equals the target, or predicts it alone.

    Values are numbers, or integer codes of categories, of every `sampling_step`-th row, as is y, shape (m,).
    """
    if len(y) < OPTIONS.min_rows or not np.ptp(y) > 0:
        return []
    if values.dtype.kind == "f" and np.array_equal(values, y):
        return [Alarm(f"Column {name!r} equals the target. Leave it out, unless new rows have it, too.")]
    if explained_share(values, y) <= OPTIONS.explained:
        return []
    remark = "predicts the target almost alone: is it known before the target is? If not, leave it out."
    return [Alarm(f"Column {name!r} {remark}")]


def explained_share(values: NDArray[np.generic], y: Array) -> float:
    """Return the share of the variance of y that a column explains: numbers, or integer codes of categories.

    A row is predicted by its two neighbours in the order of the numbers, or by the other rows of its category.
    """
    if values.dtype.kind == "f":
        known = np.isfinite(values)
        order = np.argsort(values[known], kind="stable")
        target = y[known][order]
        if len(target) < OPTIONS.min_rows:
            return 0.0
        target, predicted = target[1:-1], (target[:-2] + target[2:]) / 2
    else:
        count, total = (np.bincount(values, weights)[values] for weights in (None, y))
        several = count > 1
        if several.sum() < OPTIONS.min_rows:
            return 0.0
        target, predicted = y[several], (total[several] - y[several]) / (count[several] - 1)
    spread = np.var(target)
    return float(1 - np.mean((target - predicted) ** 2) / spread) if spread > 0 else 0.0


def describe_tail(y: Array) -> str | None:
    """Return advice if a target is positive and has a long right tail."""
    if len(y) < OPTIONS.min_rows or not y.min() > 0:
        return None
    low, middle, high = np.quantile(y, [0.05, 0.5, 0.95])
    if high < OPTIONS.spread * low or high - middle < OPTIONS.tail * (middle - low):
        return None
    return LONG_TAIL


def find_date_parts(names: Sequence[str]) -> str | None:
    """Return advice if a table has year, month and day in columns of their own."""
    lower = {name.lower(): name for name in names}
    found = {part: next((lower[way] for way in ways if way in lower), None) for part, ways in PARTS.items()}
    if None in (found["year"], found["month"], found["day"]):
        return None
    named = ", ".join(repr(name) for name in found.values() if name is not None)
    return (
        f"The columns {named} stand for one date. As one column, as pandas.to_datetime makes it of them, it has a "
        "trend and cycles."
    )


def find_numeric_traps(frame: Frame, y: Array) -> list[Alarm]:
    """Return sentences on columns of a table of numbers that identify rows or tell the target; all are still used."""
    values = {name: frame.get(name).array for name in frame.names}
    numbers = {name: column.astype(float) for name, column in values.items() if column.dtype.kind in "iuf"}
    counting = [name for name, column in values.items() if column.dtype.kind in "iu"]
    notes = [
        Alarm(
            f"Column {name!r} looks like an identifier of the row: no number is repeated in it. Leave it out, unless "
            "new rows continue it."
        )
        for name in counting
        if len(np.unique(numbers[name][:1000])) == min(len(y), 1000) and is_identifier(name, numbers[name])
    ]
    step = sampling_step(len(y))
    return notes + [note for name, column in numbers.items() for note in describe_leak(name, column[::step], y[::step])]
