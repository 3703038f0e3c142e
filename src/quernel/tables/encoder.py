"""TableEncoder: encode a table of mixed columns as a numeric matrix, consistently between fit and predict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quernel.tables.arrow_casts import is_duration, kind_of, numbers, plain
from quernel.tables.column_stats import MOST_LEVELS, column_from, facts_of, kind_or_reason, remarks
from quernel.tables.columns import Column, NumberColumn, TextColumn
from quernel.tables.missing_values import gap_numbers, gap_words, with_gaps
from quernel.tables.reading import CsvReading, TableError, nearest, without_views

Array = NDArray[np.floating]

# What each kind of column can be read from.
FITTING = {
    "number": ("number", "boolean", "text", "nothing"),
    "boolean": ("boolean", "number", "text", "nothing"),
    "text": ("text", "nothing"),
    "date": ("date", "text", "nothing"),
    "time": ("time", "text", "nothing"),
}


@dataclass(frozen=True)
class TableEncoder:
    """Fitted encoding of a table's input columns as a numeric matrix; `learn_encoder` fits one to a table.

    `missing` are words that stand for gaps, besides `words.GAPS`; those that are numbers are gaps as numbers, too.
    """

    columns: tuple[Column, ...]
    missing: tuple[str, ...] = ()

    @property
    def inputs(self) -> list[str]:
        """Names of the columns that a table must have."""
        return [column.name for column in self.columns]

    @property
    def names(self) -> list[str]:
        """Names of the encoded columns."""
        return [name for column in self.columns for name in column.names]

    @property
    def cyclic(self) -> NDArray[np.bool_]:
        """Which encoded columns are cyclic (sines and cosines of times), so that no value is an extrapolation."""
        waves = [wave for column in self.columns for wave in getattr(column, "waves", ())]
        return np.isin(self.names, waves)

    def check(self, schema: Any, of: str = "The table") -> None:
        """Raise TableError if a table of this Arrow schema does not have the columns and types of the model."""
        wrong = []
        for column in self.columns:
            if column.name not in schema.names:
                wrong.append(_absent(column.name, schema.names))
            elif not _fits(column, schema.field(column.name).type):
                wrong.append(
                    f"column {column.name!r} holds {schema.field(column.name).type}, but the model was fitted to "
                    f"{column.kind}s{_unit(schema.field(column.name).type)}."
                )
        if wrong:
            more = f" ({len(wrong) - 1} more columns do not fit.)" if len(wrong) > 1 else ""
            raise TableError(f"{of} does not fit the model: {wrong[0]}{more}")

    def encode(self, table: Any) -> Array:
        """Encode a table or a batch, shape (n, len(names)); other columns are ignored."""
        table = self.without_marks(as_arrow(table, self.inputs))
        self.check(table.schema)
        return np.hstack([column.encode(column.read(table[column.name])) for column in self.columns])

    def without_marks(self, table: Any, *others: str) -> Any:
        """Return an Arrow table or batch with missing-value markers replaced by null, as a CSV file is read.

        `others` are columns of numbers, besides the inputs, of which the same holds.
        """
        import pyarrow as pa

        table = pa.Table.from_batches([table]) if isinstance(table, pa.RecordBatch) else table
        values = gap_numbers(self.missing)
        words = {column.name: self.gaps(column) for column in self.columns} | dict.fromkeys(others, ())
        for name in [name for name in words if name in table.schema.names]:
            told = with_gaps(plain(table[name]), words[name], values)
            table = table.set_column(table.schema.get_field_index(name), name, told)
        return table

    def gaps(self, column: Column) -> tuple[str, ...]:
        """Missing-value markers of a column; NA is none where it was a category of the training data."""
        return tuple(word for word in gap_words(self.missing) if word not in _levels(column))

    def infinite(self, table: Any) -> NDArray[np.bool_]:
        """Which rows of a table or batch have an infinite input, which is treated as missing."""
        found = np.zeros(len(table), dtype=bool)
        for column in self.columns:
            if isinstance(column, NumberColumn) and kind_of(table[column.name].type) == "number":
                found |= np.isinf(numbers(table[column.name]))
        return found

    def csv_reading(self) -> CsvReading:
        """Return how to read a CSV file: every column with its type in the training data."""
        import pyarrow as pa

        types = {"number": pa.float64(), "boolean": pa.bool_(), "text": pa.string(), "date": pa.string()}
        types["time"] = pa.string()
        told = {column.name: tuple({*_levels(column)} & {*gap_words(self.missing)}) for column in self.columns}
        words = {name: levels for name, levels in told.items() if levels}
        return CsvReading({column.name: types[column.kind] for column in self.columns}, self.missing, words)


@dataclass(frozen=True)
class Learnt:
    """A fitted encoder, and notes on the columns that it left out."""

    encoder: TableEncoder
    notes: tuple[str, ...]


def learn_encoder(
    table: Any, inputs: Sequence[str], missing: Sequence[str] = (), categorical: Sequence[str] = ()
) -> Learnt:
    """Fit an encoder to these columns of an Arrow table; uninformative ones are left out, with a note.

    `missing` are words that stand for gaps, `categorical` columns whose numbers are words.
    """
    made, told = {}, {}
    for name in inputs:
        made[name], told[name] = _column(name, table[name], name in categorical)
    return learnt_from(made, told, missing)


def learnt_from(made: dict[str, Column | str], told: dict[str, list[str]], missing: Sequence[str] = ()) -> Learnt:
    """Assemble the encoder of these columns, with a note for each one that is left out.

    `told` are the remarks on every column, and `missing` words that stand for gaps.
    """
    notes = []
    for name, column in made.items():
        if isinstance(column, str):
            notes.append(f"Column {name!r} is left out: {'. It '.join([column, *told[name]])}.")
            continue
        notes += [f"Column {name!r} {remark}." for remark in told[name]]
        if isinstance(column, TextColumn) and len(column.levels) == MOST_LEVELS and column.other:
            notes.append(
                f"Column {name!r} has more than {MOST_LEVELS} categories: all but the {MOST_LEVELS} most "
                "frequent count as one."
            )
    columns = tuple(column for column in made.values() if not isinstance(column, str))
    if not columns:
        told = " ".join(notes) if notes else "There is none besides the target."
        raise TableError(f"The table has no usable input column. {told}")
    return Learnt(TableEncoder(columns, tuple(missing)), tuple(notes))


def as_arrow(table: Any, needed: Sequence[str] = ()) -> Any:
    """Convert Arrow, pandas or polars tables, or a dict of arrays, to an Arrow table.

    `needed` are the columns that matter, if only some do: others, which Arrow may not take, are left out then.
    """
    import pyarrow as pa

    if isinstance(table, pa.Table | pa.RecordBatch):
        return without_views(table)
    if hasattr(table, "collect") and hasattr(table, "collect_schema"):
        raise TableError(f"A table with its rows is needed; got a {type(table).__name__}. Call .collect() first.")
    if hasattr(table, "columns") and hasattr(table, "dtypes"):  # pandas, polars
        return _from_frame(table, needed)
    try:
        return without_views(pa.table(table))
    except (TypeError, ValueError, AttributeError, pa.ArrowException) as error:
        raise TableError(
            "A table is needed: Arrow, pandas, polars or a dict whose values are columns, such as {'size': [1, 2]}; "
            f"got {_described(table)}."
        ) from error


def _from_frame(frame: Any, needed: Sequence[str]) -> Any:
    """That of a data frame, with the needed columns only, if some are named."""
    import pyarrow as pa

    names = list(frame.columns)
    for name in needed:
        if name not in names:
            raise TableError(f"The table does not fit the model: {_absent(name, [*map(str, names)])}")
        if names.count(name) > 1:
            raise TableError(f"The table has more than one column named {name!r}. Rename them, so that each is known.")
    frame = frame[[*needed]] if needed else frame
    try:
        if hasattr(frame, "to_arrow"):  # polars
            return frame.to_arrow()
        return pa.Table.from_pandas(frame, preserve_index=False, nthreads=1)
    except (TypeError, ValueError, AttributeError, pa.ArrowException) as error:
        reason = "; ".join(map(str, error.args)).strip().rstrip(".")
        raise TableError(f"The data frame cannot be read: {reason}. Give every column values of one kind.") from error


def _absent(name: str, names: Sequence[str]) -> str:
    return f"column {name!r} is missing. {nearest(name, names)}"


def _described(table: Any) -> str:
    """What was given instead of a table: of a dict, the first entry that is no column."""
    if isinstance(table, dict):
        for name, values in table.items():
            if np.ndim(values) != 1:
                return f"{values!r} for {name!r}"
        return "columns of different lengths or mixed types"
    return type(table).__name__


def _levels(column: Column) -> tuple[str, ...]:
    return column.levels if isinstance(column, TextColumn) else ()


def _unit(kind: Any) -> str:
    return ", without a unit. Turn it into numbers in the unit of those" if is_duration(kind) else ""


def _fits(column: Column, kind: Any) -> bool:
    """Whether a column can be read from one of this Arrow type.

    Durations are not read as numbers that had no unit: they would become seconds, which those may not be.
    """
    if is_duration(kind):
        return isinstance(column, NumberColumn) and column.duration
    return kind_of(kind) in FITTING[column.kind] or (isinstance(column, TextColumn) and column.covers(kind))


def _column(name: str, values: Any, categorical: bool) -> tuple[Column | str, list[str]]:
    """Return the encoding of a column, or the reason to leave it out, and remarks."""
    kind, reason = kind_or_reason(name, values.type, categorical)
    if kind is None:
        return reason, []
    facts = facts_of(name, values, kind)
    made = column_from(name, kind, facts)
    if isinstance(made, str | TextColumn):
        return made, remarks(facts)
    read = made.read(values)
    return replace(made, fill=float(np.median(read[np.isfinite(read)]))), remarks(facts)
