"""Fitted encodings of input columns, one class per column type.

A column has a `kind`, the `names` of its encoded columns, `read` (from Arrow to plain values, missing ones included)
and `encode` (from these to a block of the matrix). `persistence` writes the same formulas as ONNX.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from quernel.tables.arrow_casts import (
    ArrowColumn,
    column_kind,
    factorize,
    parse_text,
    to_epoch_seconds,
    to_float64,
    to_seconds_of_day,
    value_type,
)
from quernel.tables.missing_values import NUMBER, equivalent_spellings

Array = NDArray[np.floating]
# What `read` returns and `encode` takes: numbers, NaN where missing or, for text, rows of `TextColumn.codes`.
Values: TypeAlias = NDArray[Any]

DAY = 86_400.0
# Periods in seconds of the cycles of a date; a year is the mean year of the calendar.
CYCLES = {"day": DAY, "week": 7 * DAY, "year": 365.2425 * DAY}


@dataclass(frozen=True)
class NumberColumn:
    """Numbers, with missing values imputed by the training median.

    Parameters
    ----------
    name : str
    fill : float
        The training median.
    flagged : bool
        Whether a missing-value indicator is added: the training rows had missing values.
    duration : bool
        Whether the training rows had durations, which are encoded in seconds.
    """

    name: str
    fill: float
    flagged: bool
    duration: bool = False
    kind: ClassVar[str] = "number"

    @property
    def names(self) -> list[str]:
        """Names of the encoded columns."""
        return [self.name, *([f"{self.name} missing"] if self.flagged else [])]

    def read(self, column: ArrowColumn) -> Array:
        """Return the numbers, also those written as text; NaN where missing or infinite."""
        if column_kind(column.type) == "text":
            column = parse_text(column, self.name, self.kind)
        values = to_float64(column)
        return np.where(np.isfinite(values), values, np.nan)

    def encode(self, values: Values) -> Array:
        """Return shape (n, 1), or (n, 2) with a missing-value indicator."""
        return _impute(values, self.fill, self.flagged)


@dataclass(frozen=True)
class BooleanColumn(NumberColumn):
    """Booleans as 0 and 1."""

    kind: ClassVar[str] = "boolean"


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

    def covers(self, arrow_type: pa.DataType) -> bool:
        """Whether values of this Arrow type can be read as these categories: each is written as some category is.

        Zip codes such as 01234 cannot be read from numbers, which have lost the leading zero.
        """
        if column_kind(arrow_type) == "boolean":
            return {category.lower() for category in self.categories} <= {"true", "false"}
        numeric = [category for category in self.categories if NUMBER.fullmatch(category)]
        if column_kind(arrow_type) != "number" or not numeric:
            return False
        return all(_is_written_so(category, arrow_type) for category in numeric)

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

    @property
    def places(self) -> dict[str, int]:
        """Map every category, and its equivalent spellings, to its row of `codes`."""
        spellings = {category: equivalent_spellings(category) for category in self.categories}
        counts = Counter(way for ways in spellings.values() for way in ways)
        other = {way: i for i, ways in enumerate(spellings.values()) for way in ways if counts[way] == 1}
        return other | {category: i for i, category in enumerate(self.categories)}

    def read(self, column: ArrowColumn) -> NDArray[np.intp]:
        """Return the row of `codes` for every entry."""
        labels, index = factorize(column)
        n, places = len(self.categories), self.places
        rows = np.array([n + 1 if not label else places.get(label, n) for label in labels] + [n + 1], dtype=np.intp)
        return rows[index]  # a missing entry has index -1, hence the last row

    def encode(self, values: Values) -> Array:
        """Return shape (n, width)."""
        return self.codes[values]


@dataclass(frozen=True)
class DateColumn:
    """Years since `start`, and sine and cosine of those cycles (day, week, year) that the training rows span.

    Times are seconds since 1970, in UTC if they have a time zone. Missing values are imputed by the training median.
    """

    name: str
    fill: float
    flagged: bool
    start: float
    cycles: tuple[str, ...]
    kind: ClassVar[str] = "date"

    @property
    def names(self) -> list[str]:
        """Names of the encoded columns."""
        return [f"{self.name} trend", *self.waves, *([f"{self.name} missing"] if self.flagged else [])]

    @property
    def waves(self) -> list[str]:
        """Names of the cyclic (sine and cosine) columns."""
        return [f"{self.name} {wave} of {cycle}" for cycle in self.cycles for wave in ("sine", "cosine")]

    def read(self, column: ArrowColumn) -> Array:
        """Return seconds since 1970, NaN where missing."""
        return to_epoch_seconds(column, self.name)

    def encode(self, values: Values) -> Array:
        """Return shape (n, 1 + 2 cycles), and one more column with a missing-value indicator."""
        imputed = _impute(values, self.fill, self.flagged)
        time = imputed[:, 0]
        angles = [2 * np.pi / CYCLES[cycle] * (time - self.start) for cycle in self.cycles]
        waves = [wave(angle) for angle in angles for wave in (np.sin, np.cos)]
        return np.column_stack([(time - self.start) / CYCLES["year"], *waves, imputed[:, 1:]])


@dataclass(frozen=True)
class TimeColumn:
    """Times of day: seconds since midnight, with sine and cosine; missing values are imputed by the training median."""

    name: str
    fill: float
    flagged: bool
    kind: ClassVar[str] = "time"

    @property
    def names(self) -> list[str]:
        """Names of the encoded columns."""
        return [self.name, *self.waves, *([f"{self.name} missing"] if self.flagged else [])]

    @property
    def waves(self) -> list[str]:
        """Names of the cyclic (sine and cosine) columns."""
        return [f"{self.name} {wave} of day" for wave in ("sine", "cosine")]

    def read(self, column: ArrowColumn) -> Array:
        """Return seconds since midnight, NaN where missing."""
        return to_seconds_of_day(column, self.name)

    def encode(self, values: Values) -> Array:
        """Return shape (n, 3), or (n, 4) with a missing-value indicator."""
        imputed = _impute(values, self.fill, self.flagged)
        angle = 2 * np.pi / DAY * imputed[:, 0]
        return np.column_stack([imputed[:, 0], np.sin(angle), np.cos(angle), imputed[:, 1:]])


NumericColumn: TypeAlias = NumberColumn | DateColumn | TimeColumn
Column: TypeAlias = NumericColumn | TextColumn


def _impute(values: Values, fill: float, flagged: bool) -> Array:
    missing = np.isnan(values)
    imputed = np.where(missing, fill, values)
    return np.column_stack([imputed, missing.astype(float)]) if flagged else imputed[:, None]


def _is_written_so(category: str, arrow_type: pa.DataType) -> bool:
    """Whether this number, stored with this type, is written like the category, or in an equivalent spelling."""
    ways = equivalent_spellings(category)
    try:
        return bool(pa.scalar(ways[-1]).cast(value_type(arrow_type)).cast(pa.string()).as_py() in ways)
    except pa.ArrowException:
        return False
