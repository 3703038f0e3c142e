"""TableEncoder: from a table with columns of any kind to a matrix of numbers, the same way every time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quernel.tables.columns import (
    CYCLES,
    DAY,
    BooleanColumn,
    Column,
    DateColumn,
    NumberColumn,
    TextColumn,
    as_words,
    kind_of,
    numbers,
    parsed_dates,
    seconds,
)
from quernel.tables.reading import TableError, nearest

Array = NDArray[np.floating]

# A level of a column of text has a column of its own from so many rows on, and so many levels have one at most.
LEVEL_ROWS, MOST_LEVELS = 5, 50
# What each kind of column can be read from.
FITTING = {
    "number": ("number", "boolean", "nothing"),
    "boolean": ("boolean", "number", "nothing"),
    "text": ("text", "nothing"),
    "date": ("date", "text", "nothing"),
}


@dataclass(frozen=True)
class TableEncoder:
    """The input columns of a model, and what each becomes; `learn_encoder` makes one from a table."""

    columns: tuple[Column, ...]

    @property
    def inputs(self) -> list[str]:
        """The columns that a table must have."""
        return [column.name for column in self.columns]

    @property
    def names(self) -> list[str]:
        """The columns of the matrix."""
        return [name for column in self.columns for name in column.names]

    def check(self, schema: Any, of: str = "The table") -> None:
        """Complain, in one line, if a table of this Arrow schema is not one that the model knows."""
        wrong = []
        for column in self.columns:
            if column.name not in schema.names:
                wrong.append(f"column {column.name!r} is missing. {nearest(column.name, schema.names)}")
            elif kind_of(schema.field(column.name).type) not in FITTING[column.kind]:
                wrong.append(
                    f"column {column.name!r} holds {schema.field(column.name).type}, but the model was fitted to "
                    f"{column.kind}s."
                )
        if wrong:
            more = f" ({len(wrong) - 1} more columns do not fit.)" if len(wrong) > 1 else ""
            raise TableError(f"{of} does not fit the model: {wrong[0]}{more}")

    def encode(self, table: Any) -> Array:
        """The matrix of a table or of a piece of one, shape (n, len(names)); other columns are ignored."""
        table = as_arrow(table)
        self.check(table.schema)
        return np.hstack([column.encode(column.read(table[column.name])) for column in self.columns])

    def csv_types(self) -> dict[str, Any]:
        """What the columns of a CSV file are to be read as: what they were, however they look this time."""
        import pyarrow as pa

        types = {"number": pa.float64(), "boolean": pa.bool_(), "text": pa.string(), "date": pa.string()}
        return {column.name: types[column.kind] for column in self.columns}


@dataclass(frozen=True)
class Learnt:
    """An encoder, and what it left out: sentences for a person."""

    encoder: TableEncoder
    notes: tuple[str, ...]


def learn_encoder(table: Any, inputs: Sequence[str]) -> Learnt:
    """The encoder for these columns of an Arrow table; those that cannot say anything are left out, with a note."""
    columns, notes = [], []
    for name in inputs:
        made = _column(name, table[name])
        if isinstance(made, str):
            notes.append(f"Column {name!r} is left out: {made}.")
        else:
            columns.append(made)
            if isinstance(made, TextColumn) and len(made.levels) == MOST_LEVELS and made.other:
                notes.append(
                    f"Column {name!r} has more than {MOST_LEVELS} different words: all but the {MOST_LEVELS} most "
                    "frequent count as one. If they are dates, write them like 2026-11-16."
                )
    if not columns:
        told = " ".join(notes) if notes else "There is none besides the target."
        raise TableError(f"The table has no usable input column. {told}")
    return Learnt(TableEncoder(tuple(columns)), tuple(notes))


def as_arrow(table: Any) -> Any:
    """An Arrow table of whatever has columns: Arrow itself, pandas, polars, a dict of arrays."""
    import pyarrow as pa

    if isinstance(table, pa.Table | pa.RecordBatch):
        return table
    if hasattr(table, "to_arrow"):  # polars
        return table.to_arrow()
    if hasattr(table, "columns") and hasattr(table, "dtypes"):  # pandas
        return pa.Table.from_pandas(table, preserve_index=False, nthreads=1)
    try:
        return pa.table(table)
    except (TypeError, ValueError, pa.ArrowException) as error:
        raise TableError(
            f"A table is needed: Arrow, pandas, polars or a dict of columns; got {type(table)}."
        ) from error


def _column(name: str, values: Any) -> Column | str:
    """What to keep of a column, or why nothing."""
    kind = kind_of(values.type)
    if kind is None:
        return f"it holds {values.type}, which has no numbers"
    if kind == "nothing" or values.null_count == len(values):
        raise TableError(f"Column {name!r} holds no values at all. Leave it out with --exclude {name}.")
    if kind == "date" or (kind == "text" and parsed_dates(values) is not None):
        return _date(name, seconds(values, name))
    return _text(name, values) if kind == "text" else _number(name, numbers(values), kind)


def _number(name: str, values: Array, kind: str) -> Column | str:
    there = values[np.isfinite(values)]
    if len(there) == 0:
        raise TableError(f"Column {name!r} holds no finite number. Leave it out with --exclude {name}.")
    flagged = len(there) < len(values)
    if there.min() == there.max() and not flagged:
        return f"it is {there[0]:g} everywhere"
    make = BooleanColumn if kind == "boolean" else NumberColumn
    return make(name, float(np.median(there)), flagged)


def _text(name: str, values: Any) -> Column | str:
    words, index = as_words(values)
    missing = int(np.sum(index < 0)) + sum(int(np.sum(index == i)) for i, word in enumerate(words) if not word)
    counts = {
        word: int(n)
        for word, n in zip(words, np.bincount(index[index >= 0], minlength=len(words)), strict=True)
        if word
    }
    if not counts:
        raise TableError(f"Column {name!r} holds no values at all. Leave it out with --exclude {name}.")
    frequent = [word for word, n in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])) if n >= LEVEL_ROWS]
    if len(counts) > MOST_LEVELS and len(counts) > (len(values) - missing) / 2:
        return f"it has {len(counts):,} different words, like a name or a number that identifies the row"
    if len(counts) == 1 and not missing:
        return f"it is {words[0]!r} everywhere"
    if not frequent:
        return f"none of its {len(counts)} words appears in {LEVEL_ROWS} rows"
    levels = tuple(sorted(frequent[:MOST_LEVELS]))
    return TextColumn(name, levels, other=len(levels) < len(counts), missing=missing > 0)


def _date(name: str, values: Array) -> Column | str:
    there = values[np.isfinite(values)]
    if len(there) == 0:
        raise TableError(f"Column {name!r} holds no values at all. Leave it out with --exclude {name}.")
    flagged, span = len(there) < len(values), float(np.ptp(there))
    if span == 0 and not flagged:
        return "it is the same date everywhere"
    shown = {"day": bool(np.ptp(there % DAY) > 0)}
    shown |= {cycle: span >= CYCLES[cycle] for cycle in ("week", "year")}
    cycles = tuple(cycle for cycle in CYCLES if shown[cycle])
    return DateColumn(name, float(np.median(there)), flagged, float(there.min()), cycles)
