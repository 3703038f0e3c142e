"""Encodings of input columns, one class per column type, what marks a missing value in them, and how they are chosen.

A column has a `kind`, the `names` of its encoded columns, `read` (from a column of any table to plain values, missing
ones included) and `encode` (from these to a block of the matrix). `persistence` writes the same formulas as ONNX.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property, lru_cache, partial
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from quernel.tables.frames import Entries, TableError, as_entries, factorize, to_numbers, to_seconds

Array = NDArray[np.floating]
# What `read` returns and `encode` takes: numbers, NaN where missing or, for text, rows of `TextColumn.codes`.
Values: TypeAlias = NDArray[Any]
# From text to the number that it stands for, None if it stands for none.
Parser: TypeAlias = Callable[[str], float | None]

# Text that marks a missing value unless it is frequent enough to be a category: Arrow's list for CSV files.
MISSING_MARKERS = (
    "", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "N/A", "NA", "NULL",
    "NaN", "n/a", "nan", "null",
)  # fmt: skip
BOOLEANS = (("true", "True", "TRUE"), ("false", "False", "FALSE"))
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
CLOCK = re.compile(r"\d\d:\d\d(:\d\d(\.\d+)?)?")
# Dates in text by the order of their parts; a time may follow.
YEAR_LAST = r"(?P<{}>\d{{1,2}})(?P<mark>[./-])(?P<{}>\d{{1,2}})(?P=mark)(?P<year>\d{{4}}|\d\d)"
TIME = rf"([ T](?P<time>{CLOCK.pattern}(Z|[+-]\d\d(:?\d\d)?)?))?"
DATE_ORDERS = {
    "year first": re.compile(r"(?P<year>\d{4})-(?P<month>\d\d)-(?P<day>\d\d)" + TIME),
    "day first": re.compile(YEAR_LAST.format("day", "month") + TIME),
    "month first": re.compile(YEAR_LAST.format("month", "day") + TIME),
}
# Periods in seconds of the cycles of a date; a year is the mean year of the calendar.
CYCLES = {"day": 86_400.0, "week": 7 * 86_400.0, "year": 365.2425 * 86_400.0}


def parse_number(text: str) -> float | None:
    """Return the number that text stands for, None if it is none."""
    if NUMBER.fullmatch(text.strip()) or re.fullmatch("[+-]?inf(inity)?", text.strip(), re.IGNORECASE):
        return float(text)
    return float(int(text, 16)) if re.fullmatch("0[xX][0-9a-fA-F]+", text) else None


def parse_date(text: str, order: str = "year first") -> float | None:
    """Return seconds since 1970 of a date such as 2026-11-16 or 2026-11-16 08:30:00, None if text is none.

    With "day first" it may also be written like 16.11.2026 or 16/11/26, with "month first" like 11/16/2026.
    """
    found = DATE_ORDERS[order].fullmatch(text) or DATE_ORDERS["year first"].fullmatch(text)
    if found is None:
        return None
    year = int(found["year"])
    year += (2000 if year < 69 else 1900) if len(found["year"]) == 2 else 0  # as POSIX reads two digits
    iso = f"{year:04}-{int(found['month']):02}-{int(found['day']):02} {found['time'] or '00:00'}"
    try:
        return to_seconds(datetime.fromisoformat(iso))
    except ValueError:  # such as 2026-02-30
        return None


# By kind of a numeric column.
PARSERS: dict[str, Parser] = {
    "number": parse_number,
    "boolean": (dict.fromkeys((*BOOLEANS[0], "1"), 1.0) | dict.fromkeys((*BOOLEANS[1], "0"), 0.0)).get,
    "duration": parse_number,
    "date": parse_date,
    "time": lambda text: parse_date(f"1970-01-01 {text}") if CLOCK.fullmatch(text) else None,
}
EXAMPLES = {"date": " such as 2026-11-16 08:30:00", "time": " such as 08:30:00"}
TEXTS = ("text", "category", "mixed")


def parse_entries(entries: Entries, parse: Parser, markers: frozenset[str], name: str, needed: str) -> Array:
    """Parse a column of text, shape (n,), empty text and missing-value markers as NaN.

    Raise TableError with an example of text that cannot be parsed.
    """
    labels, codes = factorize(entries)
    values = [np.nan if not label or label in markers else parse(label) for label in labels]
    if None in values:
        raise TableError(f"{name} holds strings such as {labels[values.index(None)]!r}, but {needed}.")
    return np.array([*values, np.nan], dtype=float)[codes]


def equivalent_spellings(text: str) -> tuple[str, ...]:
    """Return the equivalent spellings of a boolean or number, or the text alone if it is neither.

    500 and 500.0, or 0.00001 and 1e-05, are the same number in CSV files. 01234 and 1.10 are not what a program writes
    for a number, so they are labels.
    """
    ways: list[tuple[str, ...]] = [*BOOLEANS]
    if NUMBER.fullmatch(text):
        number = float(text)
        positional = np.format_float_positional(number, trim="-") if 1e-6 <= abs(number) < 1e21 else text
        ways.append((repr(number), positional))
    return next((spellings for spellings in ways if text in spellings), (text,))


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


DEFAULT_MARKERS = Markers()


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
        numeric = ("number", "boolean") if self.kind in ("number", "boolean", "duration") else ()
        return entries.kind in (self.kind, *numeric, *TEXTS, "nothing")

    def read(self, entries: Entries, markers: Markers = DEFAULT_MARKERS, *, finite: bool = True) -> Array:
        """Return numbers or seconds, also of text; NaN where missing and, if `finite`, where infinite."""
        entries, parse = as_entries(entries), PARSERS[self.kind]
        if entries.kind in TEXTS:
            parse = partial(parse_date, order=self.order) if self.kind == "date" else parse
            needed = f"the model was fitted to {self.kind}s{EXAMPLES.get(self.kind, '')}"
            values = parse_entries(entries, parse, markers.texts, f"Column {self.name!r}", needed)
        else:
            values = to_numbers(entries)
        if markers.numbers and (entries.kind == "number" or self.kind in ("number", "duration")):
            values = np.where(np.isin(values, markers.numbers), np.nan, values)
        return np.where(np.isfinite(values), values, np.nan) if finite else values

    def encode(self, values: Values, folds: NDArray[np.intp] | None = None) -> Array:  # noqa: ARG002
        """Return shape (n, number of names); folds make no difference to numbers."""
        missing = np.isnan(values)
        filled = np.where(missing, self.fill, values) - self.start
        angles = [2 * np.pi / CYCLES[cycle] * filled for cycle in self.cycles]
        waves = [wave(angle) for angle in angles for wave in (np.sin, np.cos)]
        first = filled / CYCLES["year"] if self.kind == "date" else filled
        return np.column_stack([first, *waves, *([missing] if self.flagged else [])])


@dataclass(frozen=True)
class TextColumn:
    """Categories, one-hot: a column per frequent category, one for all `other` categories, one for missing values.

    The last two exist only if the training rows had such text. A category not seen in training is `other`; without such
    a column, all are 0. Empty text is missing.

    Many categories are encoded by the mean of the target over the rows of each (`with_target`), shrunk towards that of
    all rows (`shrink_means`); categories that were not seen in training have that one, missing values their own.
    Training rows are encoded by the means of the rows of other folds (`row_folds`): a mean that contains the target of
    the row itself would tell it. `means` (T, len(categories) + 2) has, for each target (one, or one per class), the
    mean of every category, of unknown ones and of missing values; `fold_means`, of shape (folds, T,
    len(categories) + 2), the same without the rows of each fold.
    """

    name: str
    categories: tuple[str, ...]
    other: bool
    missing: bool
    means: Array | None = field(default=None, compare=False)
    fold_means: Array | None = field(default=None, compare=False)
    kind: ClassVar[str] = "text"

    def can_read(self, entries: Entries) -> bool:
        """Whether a column can be read as these categories: each of its values is written as some category is.

        Zip codes such as 01234 cannot be read from numbers, which have lost the leading zero.
        """
        if entries.kind == "boolean":
            return {category.lower() for category in self.categories} <= {"true", "false"}
        if entries.kind == "number":
            numeric = [category for category in self.categories if NUMBER.fullmatch(category)]
            exact = hasattr(entries.values.dtype, "scale")  # decimal numbers have all of their digits
            return bool(numeric) and (exact or all(len(equivalent_spellings(category)) > 1 for category in numeric))
        return entries.kind in (*TEXTS, "nothing")

    @property
    def names(self) -> list[str]:
        """Names of the encoded columns."""
        if self.means is not None:
            return [f"{self.name} mean{f' {k}' if len(self.means) > 1 else ''}" for k in range(len(self.means))]
        extra = [*(["(other)"] if self.other else []), *(["(missing)"] if self.missing else [])]
        return [f"{self.name} = {category}" for category in (*self.categories, *extra)]

    @property
    def codes(self) -> Array:
        """Codes of every category, then of other ones and of missing values, shape (categories + 2, width)."""
        if self.means is not None:
            return self.means.T
        n = len(self.categories)
        return np.eye(n + 2)[:, [*range(n), *([n] if self.other else []), *([n + 1] if self.missing else [])]]

    def read(self, entries: Entries, markers: Markers = DEFAULT_MARKERS) -> NDArray[np.intp]:
        """Return the row of `codes` for every entry."""
        labels, index = factorize(as_entries(entries))
        n, places = len(self.categories), find_places(self.categories)
        known = [places.get(label, n + 1 if not label or label in markers.texts else n) for label in labels]
        return np.array([*known, n + 1], dtype=np.intp)[index]  # a missing entry has index -1, hence the last position

    def encode(self, values: Values, folds: NDArray[np.intp] | None = None) -> Array:
        """Return shape (n, width), of training rows in these folds, shape (n,), without the targets of their own."""
        if folds is None or self.fold_means is None:
            return self.codes[values]
        return self.fold_means[folds, :, values]

    def with_target(self, values: Values, y: Array, weight: Array | None, folds: NDArray[np.intp]) -> TextColumn:
        """Return the column with the means of targets, shape (n, T), over training rows."""
        sums = sum_targets(values, len(self.categories) + 2, y, weight, folds)
        total = sums.sum(axis=0)
        return replace(self, means=shrink_means(total), fold_means=np.stack([*map(shrink_means, total - sums)]))


@lru_cache(maxsize=256)
def find_places(categories: tuple[str, ...]) -> dict[str, int]:
    """Map every category, and its equivalent spellings, to its position: its row of `TextColumn.codes`."""
    spellings = {category: equivalent_spellings(category) for category in categories}
    counts = Counter(way for ways in spellings.values() for way in ways)
    other = {way: i for i, ways in enumerate(spellings.values()) for way in ways if counts[way] == 1}
    return other | {category: i for i, category in enumerate(categories)}


Column: TypeAlias = NumericColumn | TextColumn


# Folds of the target statistics: with few, means that leave out a fold are those of clearly fewer rows.
FOLDS = 10


def row_folds(rows: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return the folds of training rows, shape (n,), by a hash of their numbers: the same in whatever batches."""
    state = (rows + 1).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):  # splitmix64
        state = (state ^ (state >> np.uint64(shift))) * np.uint64(factor)
    return ((state ^ (state >> np.uint64(31))) % np.uint64(FOLDS)).astype(np.intp)


def sum_targets(values: Values, n_places: int, y: Array, weight: Array | None, folds: NDArray[np.intp]) -> Array:
    """Return sums of weights, of the targets y (n, T) and of their squares, shape (folds, n_places, 1 + 2 T)."""
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
    n_seen, total = np.sum(weight > 0), weight.sum()
    overall = totals.sum(axis=1, keepdims=True) / total
    own = np.divide(totals, weight, out=overall.repeat(len(weight), axis=1), where=weight > 0)
    spread = np.maximum(squares.sum(axis=1) / total - overall[:, 0] ** 2, 0)
    within = np.maximum((squares - weight * own**2).sum(axis=1), 0) / max(total - n_seen, 1)
    between = (own - overall) ** 2 @ weight / total - within * n_seen / total
    shrinkage = (within / np.maximum(between, np.maximum(1e-6 * spread, 1e-300)))[:, None]
    return np.where(shrinkage > 0, (totals + shrinkage * overall) / np.maximum(weight + shrinkage, 1e-300), own)
