"""Missing-value markers, and equivalent spellings of numbers and booleans in other file formats."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
# Text that always marks a missing value: Arrow's list for CSV files, used for text of all formats.
MISSING_MARKERS = (
    "", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "N/A", "NA", "NULL",
    "NaN", "n/a", "nan", "null",
)  # fmt: skip
BOOLEANS = (("true", "True", "TRUE"), ("false", "False", "FALSE"))


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
        ways = (repr(number), pa.scalar(number).cast(pa.string()).as_py())
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


def markers_to_null(
    column: pa.Array | pa.ChunkedArray, texts: Sequence[str], numbers: Sequence[float]
) -> pa.Array | pa.ChunkedArray:
    """Replace missing-value markers of an Arrow column, text or numbers, by null."""
    kind = column.type
    if texts and (types.is_string(kind) or types.is_large_string(kind)):
        marked = pc.is_in(column, value_set=pa.array(texts, kind))
    elif numbers and (types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind)):
        marked = pc.is_in(column.cast(pa.float64(), safe=False), value_set=pa.array(numbers, pa.float64()))
    else:
        return column
    return pc.if_else(marked, pa.scalar(None, kind), column) if pc.any(marked).as_py() else column
