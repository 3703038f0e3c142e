"""Fitted encodings of input columns, one class per column type, and what marks a missing value in them.

A column has a `kind`, the `names` of its encoded columns, `read` (from a column of any table to plain values, missing
ones included) and `encode` (from these to a block of the matrix). `persistence` writes the same formulas as ONNX.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from quernel.tables.frames import (
    BOOLEANS,
    NUMBER,
    Entries,
    Parser,
    as_entries,
    factorize,
    parse_boolean,
    parse_date,
    parse_day_first,
    parse_entries,
    parse_month_first,
    parse_number,
    parse_time,
    to_numbers,
)

Array = NDArray[np.floating]
# What `read` returns and `encode` takes: numbers, NaN where missing or, for text, rows of `TextColumn.codes`.
Values: TypeAlias = NDArray[Any]

# Text that marks a missing value unless it is frequent enough to be a category: Arrow's list for CSV files.
MISSING_MARKERS = (
    "", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "N/A", "NA", "NULL",
    "NaN", "n/a", "nan", "null",
)  # fmt: skip


def equivalent_spellings(text: str) -> tuple[str, ...]:
    """Return the equivalent spellings of a boolean or number, or the text alone if it is neither.

    500 and 500.0, or 0.00001 and 1e-05, are the same number in CSV files. 01234 and 1.10 are not what a program writes
    for a number, so they are labels.
    """
    for spellings in BOOLEANS:
        if text in spellings:
            return spellings
    if NUMBER.fullmatch(text):
        number = float(text)
        ways = (repr(number), np.format_float_positional(number, trim="-") if 1e-6 <= abs(number) < 1e21 else text)
        if text in ways:
            return ways
    return (text,)


@dataclass(frozen=True)
class Markers:
    """Missing-value markers: those of the user, `missing`, and of text the default ones besides."""

    missing: tuple[str, ...] = ()

    @cached_property
    def texts(self) -> frozenset[str]:
        """Text that marks a missing value."""
        return frozenset(MISSING_MARKERS).union(*map(equivalent_spellings, self.missing))

    @cached_property
    def numbers(self) -> tuple[float, ...]:
        """Numbers that mark a missing value."""
        return tuple(float(marker) for marker in self.missing if NUMBER.fullmatch(marker))


DAY = 86_400.0
# Periods in seconds of the cycles of a date; a year is the mean year of the calendar.
CYCLES = {"day": DAY, "week": 7 * DAY, "year": 365.2425 * DAY}
# How dates in text are read, by the order of their parts.
DATE_ORDERS = {"year first": parse_date, "day first": parse_day_first, "month first": parse_month_first}
DEFAULT_MARKERS = Markers()
TEXTS = ("text", "category", "mixed")
STRINGS = "strings such as {text!r}, but the model was fitted to "
# By kind of a numeric column: kinds besides text that it is read from, how text is parsed, what is said of other text.
READERS: dict[str, tuple[tuple[str, ...], Parser, str]] = {
    "number": (("number", "boolean"), parse_number, f"{STRINGS}numbers."),
    "boolean": (("number", "boolean"), parse_boolean, f"{STRINGS}booleans."),
    "duration": (("number", "boolean", "duration"), parse_number, f"{STRINGS}durations."),
    "date": (("date",), parse_date, "text that is not a date ({text!r}). Write dates like 2026-11-16 08:30:00."),
    "time": (("time",), parse_time, "text that is not a time ({text!r}). Write times like 08:30:00."),
}


@dataclass(frozen=True)
class NumericColumn:
    """Numbers, booleans as 0 and 1, durations, dates and times, with missing values imputed by the training median.

    Durations are in seconds, times of day in seconds since midnight. Dates are seconds since 1970, in UTC if they have
    a time zone, and encoded as years since `start`. Times and dates have sine and cosine of `cycles`: of dates, those
    (day, week, year) that the training rows span. `order` is that of dates in text: 2020-12-31 is "year first".
    """

    name: str
    kind: str  # number, boolean, duration, date or time
    fill: float  # the training median
    flagged: bool  # whether a missing-value indicator is added: the training rows had missing values
    start: float = 0.0
    cycles: tuple[str, ...] = ()
    order: str = "year first"

    @property
    def names(self) -> list[str]:
        """Names of the encoded columns."""
        first = f"{self.name} trend" if self.kind == "date" else self.name
        return [first, *self.waves, *([f"{self.name} missing"] if self.flagged else [])]

    @property
    def waves(self) -> list[str]:
        """Names of the cyclic (sine and cosine) columns."""
        return [f"{self.name} {wave} of {cycle}" for cycle in self.cycles for wave in ("sine", "cosine")]

    def can_read(self, entries: Entries) -> bool:
        """Whether a column can be encoded. Numbers without a unit are not read from durations."""
        return entries.kind in (*READERS[self.kind][0], *TEXTS, "nothing")

    def read(self, entries: Entries, markers: Markers = DEFAULT_MARKERS, *, finite: bool = True) -> Array:
        """Return numbers or seconds, also of text; NaN where missing and, if `finite`, where infinite."""
        entries, (_, parse, needed), order = as_entries(entries), READERS[self.kind], DATE_ORDERS[self.order]
        if entries.kind in TEXTS:
            if self.kind == "date" and order is not parse:  # a year that comes first is never mistaken
                parse = lambda text: parse_date(text) if order(text) is None else order(text)  # noqa: E731
            values = parse_entries(entries, parse, markers.texts, f"Column {self.name!r} holds {needed}")
        else:
            values = np.full(len(entries), np.nan) if entries.kind == "nothing" else to_numbers(entries)
        if markers.numbers and (entries.kind == "number" or self.kind in ("number", "duration")):
            values = np.where(np.isin(values, markers.numbers), np.nan, values)
        return np.where(np.isfinite(values), values, np.nan) if finite else values

    def encode(self, values: Values) -> Array:
        """Return shape (n, number of names)."""
        missing = np.isnan(values)
        filled = np.where(missing, self.fill, values)
        if self.start:
            filled = filled - self.start
        angles = [2 * np.pi / CYCLES[cycle] * filled for cycle in self.cycles]
        waves = [wave(angle) for angle in angles for wave in (np.sin, np.cos)]
        first = filled / CYCLES["year"] if self.kind == "date" else filled
        return np.column_stack([first, *waves, *([missing] if self.flagged else [])])


@dataclass(frozen=True)
class TextColumn:
    """One-hot encoding: a column per frequent category, one for all `other` categories, one for missing values.

    The last two exist only if the training rows had such text. A category not seen in training is `other`; without such
    a column, all are 0. Empty text is missing.
    """

    name: str
    categories: tuple[str, ...]
    other: bool
    missing: bool
    kind: ClassVar[str] = "text"

    def can_read(self, entries: Entries) -> bool:
        """Whether a column can be read as these categories: each of its values is written as some category is.

        Zip codes such as 01234 cannot be read from numbers, which have lost the leading zero.
        """
        if entries.kind in (*TEXTS, "nothing"):
            return True
        if entries.kind == "boolean":
            return {category.lower() for category in self.categories} <= {"true", "false"}
        numeric = [category for category in self.categories if NUMBER.fullmatch(category)]
        if entries.kind != "number" or not numeric:
            return False
        exact = hasattr(entries.dtype, "scale")  # decimal numbers have all of their digits
        return exact or all(len(equivalent_spellings(category)) > 1 for category in numeric)

    @property
    def names(self) -> list[str]:
        """Names of the encoded columns."""
        extra = [*(["(other)"] if self.other else []), *(["(missing)"] if self.missing else [])]
        return [f"{self.name} = {category}" for category in (*self.categories, *extra)]

    @property
    def codes(self) -> Array:
        """One-hot codes of every category, then of other ones and of missing values, shape (categories + 2, width)."""
        n, width = len(self.categories), len(self.names)
        codes = np.zeros((n + 2, width))
        codes[:n, :n] = np.eye(n)
        codes[n, n : n + self.other] = 1
        codes[n + 1, n + self.other :] = 1
        return codes

    def read(self, entries: Entries, markers: Markers = DEFAULT_MARKERS) -> NDArray[np.intp]:
        """Return the row of `codes` for every entry."""
        labels, index = factorize(as_entries(entries))
        n, places = len(self.categories), find_places(self.categories)
        known = [places.get(label, n + 1 if not label or label in markers.texts else n) for label in labels]
        return np.array([*known, n + 1], dtype=np.intp)[index]  # a missing entry has index -1, hence the last position

    def encode(self, values: Values) -> Array:
        """Return shape (n, width)."""
        return self.codes[values]


@dataclass(frozen=True, eq=False)
class TargetColumn(TextColumn):
    """Many categories, each by the mean of the target over its rows.

    Means are shrunk towards that of all rows (`shrink_means`); categories that were not seen in training have that one,
    missing values their own. Training rows are encoded by the means of the rows of other folds (`row_folds`): a mean
    that contains the target of the row itself would tell it. `means` (T, len(categories) + 2) has, for each target
    (one, or one per class), the mean of every category, of unknown ones and of missing values; `fold_means`, of shape
    (folds, T, len(categories) + 2), the same without the rows of each fold.
    """

    means: Array | None = None
    fold_means: Array | None = None

    def __post_init__(self) -> None:
        if self.means is None or self.fold_means is None:
            return
        n_places = len(self.categories) + 2
        if self.means.ndim != 2 or self.means.shape[1] != n_places or self.fold_means.shape[1:] != self.means.shape:
            raise ValueError(f"{self.name!r} has {n_places} places, but means of shape {self.means.shape}.")

    @property
    def names(self) -> list[str]:
        """Names of the encoded columns."""
        n_targets = 1 if self.means is None else len(self.means)
        return [f"{self.name} mean" if n_targets == 1 else f"{self.name} mean {k}" for k in range(n_targets)]

    @property
    def codes(self) -> Array:
        """Means of every category, then of unknown ones and of missing values, shape (categories + 2, T)."""
        assert self.means is not None
        return self.means.T

    def encode_training(self, values: Values, folds: NDArray[np.intp]) -> Array:
        """Return shape (n, T) for training rows in these folds, shape (n,)."""
        assert self.fold_means is not None
        return self.fold_means[folds, :, values]


Column: TypeAlias = NumericColumn | TextColumn


# Folds of the target statistics: with few, means that leave out a fold are those of clearly fewer rows.
FOLDS = 10


def row_folds(first_row: int, n_rows: int) -> NDArray[np.intp]:
    """Return the fold of training rows, shape (n,), by a hash of their number: the same in whatever batches they come.

    `first_row` is the number of the first one among all training rows.
    """
    state = np.arange(first_row + 1, first_row + n_rows + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):  # splitmix64
        state = (state ^ (state >> np.uint64(shift))) * np.uint64(factor)
    return ((state ^ (state >> np.uint64(31))) % np.uint64(FOLDS)).astype(np.intp)


def sum_targets(values: Values, n_places: int, y: Array, weight: Array | None, folds: NDArray[np.intp]) -> Array:
    """Return sums of weights, of the targets y (n, T) and of their squares, shape (folds, n_places, 1 + 2 T).

    Sums of batches of rows add up.
    """
    weight = np.ones(len(values)) if weight is None else weight
    parts = [weight, *(weight * column for column in y.T), *(weight * column**2 for column in y.T)]
    places = folds * n_places + values
    sums: list[Any] = [np.bincount(places, part, minlength=FOLDS * n_places) for part in parts]
    return np.stack(sums, axis=-1).reshape(FOLDS, n_places, len(parts))


def shrink_means(sums: Array) -> Array:
    """Return the means of every category, shape (T, n_places), from sums of shape (n_places, 1 + 2 T).

    A mean over weight w is shrunk towards that of all rows by w / (w + s), where s is the variance within categories
    over the variance between them (empirical Bayes, with moment estimates of both).
    """
    weight, totals, squares = sums[:, 0], *np.split(sums[:, 1:].T, 2)
    seen, total = weight > 0, weight.sum()
    means = np.empty(totals.shape)
    for k, (by_category, square) in enumerate(zip(totals, squares, strict=True)):
        overall = by_category.sum() / total
        own = by_category[seen] / weight[seen]
        spread = max(square.sum() / total - overall**2, 0.0)
        within = max((square[seen] - weight[seen] * own**2).sum(), 0.0) / max(total - seen.sum(), 1.0)
        between = weight[seen] @ (own - overall) ** 2 / total - within * seen.sum() / total
        shrinkage = within / max(between, 1e-6 * spread, 1e-300)
        means[k] = (by_category + shrinkage * overall) / (weight + shrinkage) if within else overall
        means[k, seen] = means[k, seen] if within else own
    return means


def with_target(column: TargetColumn, sums: Array) -> TargetColumn:
    """Return the column with the means of the target, from sums of shape (folds, categories + 2, 1 + 2 T)."""
    others = sums.sum(axis=0) - sums
    fold_means = np.stack([shrink_means(part) for part in others])
    return replace(column, means=shrink_means(sums.sum(axis=0)), fold_means=fold_means)


@lru_cache(maxsize=256)
def find_places(categories: tuple[str, ...]) -> dict[str, int]:
    """Map every category, and its equivalent spellings, to its position: its row of `TextColumn.codes`."""
    spellings = {category: equivalent_spellings(category) for category in categories}
    counts = Counter(way for ways in spellings.values() for way in ways)
    other = {way: i for i, ways in enumerate(spellings.values()) for way in ways if counts[way] == 1}
    return other | {category: i for i, category in enumerate(categories)}
