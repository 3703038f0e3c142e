"""Fitted encodings of input columns, one class per column type.

A column has a `kind`, names for the numbers it becomes, `read` (from Arrow to plain values, missing ones included) and
`encode` (from those to a block of the matrix). `persistence` writes the same formulas as ONNX.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from quernel.tables.arrow_casts import as_words, clock, kind_of, numbers, parsed, seconds, undone
from quernel.tables.missing_values import NUMBER, spellings

Array = NDArray[np.floating]

DAY = 86_400.0
# Seconds of the cycles that a date is expanded into; the year is the mean one of the calendar.
CYCLES = {"day": DAY, "week": 7 * DAY, "year": 365.2425 * DAY}


@dataclass(frozen=True)
class NumberColumn:
    """Numbers, with missing values imputed by the training median; `flagged` adds a missing-value indicator column.

    `duration`: the training rows had durations, and x is in seconds.
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

    def read(self, column: Any) -> Array:
        """Numbers, NaN where missing."""
        values = numbers(self._told(column))
        return np.where(np.isfinite(values), values, np.nan)

    def _told(self, column: Any) -> Any:
        """The column itself or, if it is text, what that says: other files may hold the same numbers as text."""
        return parsed(column, self.name, self.kind) if kind_of(column.type) == "text" else column

    def encode(self, values: Array) -> Array:
        """Shape (n, 1), or (n, 2) with a flag."""
        return _filled(values, self.fill, self.flagged)


@dataclass(frozen=True)
class BooleanColumn(NumberColumn):
    """Booleans as 0 and 1."""

    kind: ClassVar[str] = "boolean"


@dataclass(frozen=True)
class TextColumn:
    """One-hot encoding: a column per frequent category, one for all `other` categories, one for missing values.

    The last two exist only if the training rows had such text. A level that they had not is `other`; where there is no
    such column, all are 0. Empty text is missing text.
    """

    name: str
    levels: tuple[str, ...]
    other: bool
    missing: bool
    kind: ClassVar[str] = "text"

    def covers(self, kind: Any) -> bool:
        """Whether values of this Arrow type can be read as these categories: as text they look like some, none differs.

        Those of a zip code such as 01234 do: as a number it has lost its zero.
        """
        if kind_of(kind) == "boolean":
            return {level.lower() for level in self.levels} <= {"true", "false"}
        numeric = [level for level in self.levels if NUMBER.fullmatch(level)]
        return kind_of(kind) == "number" and bool(numeric) and all(_written(level, kind) for level in numeric)

    @property
    def names(self) -> list[str]:
        """Names of the encoded columns."""
        extra = [("(other)", self.other), ("(missing)", self.missing)]
        return [f"{self.name} = {level}" for level in (*self.levels, *(name for name, there in extra if there))]

    @property
    def codes(self) -> Array:
        """One-hot codes of every category, then of other ones and of missing values, shape (levels + 2, width)."""
        n, width = len(self.levels), len(self.names)
        codes = np.zeros((n + 2, width))
        codes[:n, :n] = np.eye(n)
        codes[n, n : n + self.other] = 1
        codes[n + 1, n + self.other :] = 1
        return codes

    @property
    def places(self) -> dict[str, int]:
        """Map every category, and its equivalent spellings, to its row of `codes`."""
        ways = {level: spellings(level) for level in self.levels}
        told = Counter(way for each in ways.values() for way in each)
        other = {way: i for i, each in enumerate(ways.values()) for way in each if told[way] == 1}
        return other | {level: i for i, level in enumerate(self.levels)}

    def read(self, column: Any) -> NDArray[np.intp]:
        """The row of `codes` for every entry."""
        words, index = as_words(column)
        n, place = len(self.levels), self.places
        rows = np.array([n + 1 if not word else place.get(word, n) for word in words] + [n + 1], dtype=np.intp)
        return rows[index]  # a missing entry has index -1, and so the last of the rows

    def encode(self, values: NDArray[np.intp]) -> Array:
        """Shape (n, width)."""
        return self.codes[values]


@dataclass(frozen=True)
class DateColumn:
    """Years since `start`, and the sine and cosine of the time of day, week or year: those that the rows could show.

    Times are seconds since 1970, those with a time zone in UTC. A missing one is the training rows' median.
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

    def read(self, column: Any) -> Array:
        """Seconds since 1970, NaN where missing."""
        return seconds(column, self.name)

    def encode(self, values: Array) -> Array:
        """Shape (n, 1 + 2 cycles), and a flag if there is one."""
        filled = _filled(values, self.fill, self.flagged)
        time = filled[:, 0]
        angles = [2 * np.pi / CYCLES[cycle] * (time - self.start) for cycle in self.cycles]
        waves = [wave(angle) for angle in angles for wave in (np.sin, np.cos)]
        return np.column_stack([(time - self.start) / CYCLES["year"], *waves, filled[:, 1:]])


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

    def read(self, column: Any) -> Array:
        """Seconds since midnight, NaN where missing."""
        return clock(column, self.name)

    def encode(self, values: Array) -> Array:
        """Shape (n, 3), and a flag if there is one."""
        filled = _filled(values, self.fill, self.flagged)
        angle = 2 * np.pi / DAY * filled[:, 0]
        return np.column_stack([filled[:, 0], np.sin(angle), np.cos(angle), filled[:, 1:]])


Column = NumberColumn | TextColumn | DateColumn | TimeColumn


def _filled(values: Array, fill: float, flagged: bool) -> Array:
    missing = np.isnan(values)
    filled = np.where(missing, fill, values)
    return np.column_stack([filled, missing.astype(float)]) if flagged else filled[:, None]


def _written(level: str, kind: Any) -> bool:
    """Whether the number in these words, as one of this type, is written so, or in another spelling of the same."""
    import pyarrow as pa

    ways = spellings(level)
    try:
        return bool(pa.scalar(ways[-1]).cast(undone(kind)).cast(pa.string()).as_py() in ways)
    except pa.ArrowException:
        return False
