"""Missing-value markers, and equivalent spellings of numbers and booleans in other file formats."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from quernel.tables.frames import BOOLEANS, NUMBER

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


def text_markers(missing: Iterable[str]) -> tuple[str, ...]:
    """Return the user's missing-value markers together with the default ones, each once."""
    return tuple(
        dict.fromkeys([*MISSING_MARKERS, *(way for marker in missing for way in equivalent_spellings(marker))])
    )


def number_markers(missing: Iterable[str]) -> tuple[float, ...]:
    """Return the missing-value markers that are numbers."""
    return tuple(dict.fromkeys(float(marker) for marker in missing if NUMBER.fullmatch(marker)))


@dataclass(frozen=True)
class Markers:
    """Missing-value markers of a column: text, and numbers."""

    texts: frozenset[str] = frozenset(MISSING_MARKERS)
    numbers: tuple[float, ...] = ()

    @classmethod
    def from_given(cls, missing: Iterable[str]) -> Markers:
        """Return the user's markers with the default ones."""
        missing = tuple(missing)
        return cls(frozenset(text_markers(missing)), number_markers(missing))
