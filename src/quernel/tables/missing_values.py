"""Missing-value markers, and equivalent spellings of numbers and booleans in other file formats."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
# What stands for a gap in CSV files by itself; Arrow's list, so that text of any format is read alike.
GAPS = (
    "", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "N/A", "NA", "NULL",
    "NaN", "n/a", "nan", "null",
)  # fmt: skip
TRUTHS = (("true", "True", "TRUE"), ("false", "False", "FALSE"))


def spellings(word: str) -> tuple[str, ...]:
    """Return the equivalent spellings of a boolean or number, or the text alone if it is neither.

    500 and 500.0, or 0.00001 and 1e-05, are the same number for those who write CSV files. 01234 and 1.10 are not
    what a program writes for a number, and so they are names.
    """
    import pyarrow as pa

    for ways in TRUTHS:
        if word in ways:
            return ways
    if NUMBER.fullmatch(word):
        number = float(word)
        ways = (repr(number), pa.scalar(number).cast(pa.string()).as_py())
        if word in ways:
            return ways
    return (word,)


def gap_words(missing: Iterable[str]) -> tuple[str, ...]:
    """Return the user's missing-value markers together with the default ones, each once."""
    return tuple(dict.fromkeys([*GAPS, *(way for word in missing for way in spellings(word))]))


def gap_numbers(missing: Iterable[str]) -> tuple[float, ...]:
    """Return the missing-value markers that are numbers."""
    return tuple(dict.fromkeys(float(word) for word in missing if NUMBER.fullmatch(word)))


def with_gaps(column: Any, words: Sequence[str], numbers: Sequence[float]) -> Any:
    """Replace missing-value markers of an Arrow column, text or numbers, by null."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.types as types

    kind = column.type
    if words and (types.is_string(kind) or types.is_large_string(kind)):
        marked = pc.is_in(column, value_set=pa.array(words, kind))
    elif numbers and (types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind)):
        marked = pc.is_in(column.cast(pa.float64(), safe=False), value_set=pa.array(numbers, pa.float64()))
    else:
        return column
    return pc.if_else(marked, pa.scalar(None, kind), column) if pc.any(marked).as_py() else column
