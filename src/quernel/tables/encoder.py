"""TableEncoder: encode a table of mixed columns as a numeric matrix, consistently between fit and predict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from quernel.tables.arrow_casts import ArrowColumn, column_kind, decode_dictionary, is_duration, to_float64
from quernel.tables.column_stats import MAX_CATEGORIES, choose_encoding, compute_stats, encodable_kind, list_remarks
from quernel.tables.columns import Column, NumberColumn, TextColumn
from quernel.tables.missing_values import markers_to_null, number_markers, text_markers
from quernel.tables.reading import CsvOptions, TableError, suggest_name, without_views

Array = NDArray[np.floating]

# Types of columns in CSV files, text if not named here.
CSV_TYPES = {"number": pa.float64(), "boolean": pa.bool_()}
# The kinds that each kind of column can be read from.
READABLE_FROM = {
    "number": ("number", "boolean", "text", "nothing"),
    "boolean": ("boolean", "number", "text", "nothing"),
    "text": ("text", "nothing"),
    "date": ("date", "text", "nothing"),
    "time": ("time", "text", "nothing"),
}


@dataclass(frozen=True)
class TableEncoder:
    """Fitted encoding of a table's input columns as a numeric matrix; `fit_encoder` fits one to a table.

    Parameters
    ----------
    columns : tuple of Column
        The encoding of every input column, in the order of the encoded matrix.
    missing : tuple of str
        Missing-value markers besides NA and the like. Those that are numbers also mark numeric columns.
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

    def check(self, schema: pa.Schema, of: str = "The table") -> None:
        """Raise TableError if a table of this Arrow schema does not have the columns and types of the model."""
        wrong = []
        for column in self.columns:
            if column.name not in schema.names:
                wrong.append(_describe_missing_column(column.name, schema.names))
            elif not _can_read(column, schema.field(column.name).type):
                wrong.append(
                    f"column {column.name!r} holds {schema.field(column.name).type}, but the model was fitted to "
                    f"{column.kind}s{_unit_advice(schema.field(column.name).type)}."
                )
        if wrong:
            more = f" ({len(wrong) - 1} more columns do not fit.)" if len(wrong) > 1 else ""
            raise TableError(f"{of} does not fit the model: {wrong[0]}{more}")

    def encode(self, table: Any) -> Array:
        """Encode a table or a batch, shape (n, len(names)); other columns are ignored."""
        table = self.replace_missing_markers(as_arrow(table, self.inputs))
        self.check(table.schema)
        return np.hstack([column.encode(column.read(table[column.name])) for column in self.columns])

    def replace_missing_markers(self, table: pa.Table | pa.RecordBatch, *others: str) -> pa.Table:
        """Return a table or batch with missing-value markers replaced by null, as in a CSV file.

        `others` are numeric columns, besides the inputs, that are treated in the same way.
        """
        table = pa.Table.from_batches([table]) if isinstance(table, pa.RecordBatch) else table
        numbers = number_markers(self.missing)
        texts = {column.name: self.missing_markers(column) for column in self.columns} | dict.fromkeys(others, ())
        for name in [name for name in texts if name in table.schema.names]:
            column = markers_to_null(decode_dictionary(table[name]), texts[name], numbers)
            table = table.set_column(table.schema.get_field_index(name), name, column)
        return table

    def missing_markers(self, column: Column) -> tuple[str, ...]:
        """Return the text that marks missing values of a column, without text that was a category in training."""
        return tuple(text for text in text_markers(self.missing) if text not in _categories(column))

    def has_infinite(self, table: pa.Table | pa.RecordBatch) -> NDArray[np.bool_]:
        """Which rows of a table or batch have an infinite input, treated as missing; shape (n,)."""
        found = np.zeros(len(table), dtype=bool)
        for column in self.columns:
            if isinstance(column, NumberColumn) and column_kind(table[column.name].type) == "number":
                found |= np.isinf(to_float64(table[column.name]))
        return found

    def csv_options(self) -> CsvOptions:
        """Return how to read a CSV file: every column with its type in the training data."""
        types = {column.name: CSV_TYPES.get(column.kind, pa.string()) for column in self.columns}
        markers = {*text_markers(self.missing)}
        categories = {column.name: tuple({*_categories(column)} & markers) for column in self.columns}
        return CsvOptions(types, self.missing, {name: those for name, those in categories.items() if those})


@dataclass(frozen=True)
class EncoderFit:
    """A fitted encoder, and notes on the columns that it left out."""

    encoder: TableEncoder
    notes: tuple[str, ...]


def fit_encoder(
    table: pa.Table, inputs: Sequence[str], missing: Sequence[str] = (), categorical: Sequence[str] = ()
) -> EncoderFit:
    """Fit an encoder to these columns of an Arrow table; uninformative ones are left out, with a note.

    Parameters
    ----------
    table : Arrow table, without rows that have no target
    inputs : names of the input columns
    missing : missing-value markers, which the encoder will know
    categorical : inputs whose numbers or booleans are categories
    """
    encodings, remarks = {}, {}
    for name in inputs:
        encodings[name], remarks[name] = _fit_column(name, table[name], name in categorical)
    return assemble_encoder(encodings, remarks, missing)


def assemble_encoder(
    encodings: dict[str, Column | str], remarks: dict[str, list[str]], missing: Sequence[str] = ()
) -> EncoderFit:
    """Assemble the encoder of these columns, with a note for each one that is left out.

    `encodings` has, by column, the encoding or the reason to leave it out, `remarks` what to tell the user.
    """
    notes = []
    for name, column in encodings.items():
        if isinstance(column, str):
            notes.append(f"Column {name!r} is left out: {'. It '.join([column, *remarks[name]])}.")
            continue
        notes += [f"Column {name!r} {remark}." for remark in remarks[name]]
        if isinstance(column, TextColumn) and len(column.categories) == MAX_CATEGORIES and column.other:
            notes.append(
                f"Column {name!r} has more than {MAX_CATEGORIES} categories: all but the {MAX_CATEGORIES} most "
                "frequent count as one."
            )
    columns = tuple(column for column in encodings.values() if not isinstance(column, str))
    if not columns:
        reason = " ".join(notes) if notes else "There is none besides the target."
        raise TableError(f"The table has no usable input column. {reason}")
    return EncoderFit(TableEncoder(columns, tuple(missing)), tuple(notes))


def as_arrow(table: Any, needed: Sequence[str] = ()) -> pa.Table | pa.RecordBatch:
    """Convert Arrow, pandas or polars tables, or a dict of arrays, to an Arrow table.

    Of a data frame only the `needed` columns are converted, if some are named: Arrow may not support others.
    """
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
            f"got {_describe_input(table)}."
        ) from error


def _from_frame(frame: Any, needed: Sequence[str]) -> pa.Table:
    """Convert a pandas or polars data frame, or the needed columns of it."""
    names = list(frame.columns)
    for name in needed:
        if name not in names:
            raise TableError(f"The table does not fit the model: {_describe_missing_column(name, [*map(str, names)])}")
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


def _describe_missing_column(name: str, names: Sequence[str]) -> str:
    return f"column {name!r} is missing. {suggest_name(name, names)}"


def _describe_input(table: Any) -> str:
    """Describe what was given instead of a table: of a dict, the first entry that is no column."""
    if isinstance(table, dict):
        for name, values in table.items():
            if np.ndim(values) != 1:
                return f"{values!r} for {name!r}"
        return "columns of different lengths or mixed types"
    return type(table).__name__


def _categories(column: Column) -> tuple[str, ...]:
    return column.categories if isinstance(column, TextColumn) else ()


def _unit_advice(kind: pa.DataType) -> str:
    return ", without a unit. Turn it into numbers in the unit of those" if is_duration(kind) else ""


def _can_read(column: Column, kind: pa.DataType) -> bool:
    """Whether values of this Arrow type can be encoded by a column.

    Durations, in seconds, are not read as numbers, which had an unknown unit in training.
    """
    if is_duration(kind):
        return isinstance(column, NumberColumn) and column.duration
    return column_kind(kind) in READABLE_FROM[column.kind] or (isinstance(column, TextColumn) and column.covers(kind))


def _fit_column(name: str, values: ArrowColumn, categorical: bool) -> tuple[Column | str, list[str]]:
    """Return the encoding of a column, or the reason to leave it out, and remarks."""
    kind, reason = encodable_kind(name, values.type, categorical)
    if kind is None:
        return reason, []
    stats = compute_stats(name, values, kind)
    column = choose_encoding(name, kind, stats)
    if isinstance(column, str | TextColumn):
        return column, list_remarks(stats)
    read = column.read(values)
    return replace(column, fill=float(np.median(read[np.isfinite(read)]))), list_remarks(stats)
