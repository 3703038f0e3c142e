"""ReadOptions: which columns of a table are inputs, target, weights and groups; and reading them as numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from quernel.tables.columns import NumberColumn, number_markers
from quernel.tables.csv_files import CsvOptions
from quernel.tables.encoder import TableEncoder
from quernel.tables.frames import TableError, as_entries, suggest_name, to_numbers
from quernel.tables.parquet_table import kind_of_type

Array = NDArray[np.floating]


@dataclass(frozen=True)
class ReadOptions:
    """How a table is read as training data.

    Parameters
    ----------
    target : str
        The numeric column to predict.
    columns : sequence of str or None
        The input columns; None is all but the target, the weights and the groups.
    exclude : sequence of str
        Columns that are not to be used.
    weights : str or None
        The column of sample weights.
    groups : str or None
        The column of group labels; rows of one group are never split between training and validation.
    log_target : bool
        Whether to fit the logarithm of the target.
    missing : sequence of str
        Missing-value markers besides NA, NULL and the like; the model treats new data in the same way.
    categorical : sequence of str
        Input columns whose numbers or booleans are categories.
    """

    target: str
    columns: Sequence[str] | None = None
    exclude: Sequence[str] = ()
    weights: str | None = None
    groups: str | None = None
    log_target: bool = False
    missing: Sequence[str] = ()
    categorical: Sequence[str] = ()

    @property
    def outputs(self) -> list[str]:
        """Names of the target and of the weights, if there are any."""
        return [self.target, *([] if self.weights is None else [self.weights])]

    def csv_options(self) -> CsvOptions:
        """Return how CSV files are read: categorical columns as text, with these missing-value markers."""
        return CsvOptions(tuple(self.missing), tuple(self.categorical))

    def uses(self, name: str) -> bool:
        """Whether a column is used, be it as input, target, weights or groups."""
        if name in self.exclude:
            return False
        return self.columns is None or name in (*self.columns, self.target, self.weights, self.groups)

    def input_columns(self, schema: pa.Schema) -> list[str]:
        """Return the names of the input columns, after checking every named column.

        Raise if one is missing, if target or weights are not numeric, or if a categorical column is not an input.
        """
        named = (self.target, self.weights, self.groups, *(self.columns or ()), *self.exclude)
        for name in named:
            if name is not None and name not in schema.names:
                raise TableError(f"There is no column {name!r}. {suggest_name(name, schema.names)}")
        for name, role in ((self.target, "target"), (self.weights, "column of weights")):
            kind = None if name is None else schema.field(name).type
            if kind is not None and not is_numeric(kind):
                raise TableError(
                    f"The {role} {name!r} holds {kind}, not numbers. Choose another column, or write 1234.5 for a "
                    "number; in a CSV file, --missing declares missing-value markers."
                )
        left_out = (self.target, self.weights, self.groups, *self.exclude)
        inputs = [name for name in self.columns or schema.names if name not in left_out]
        for name in self.categorical:
            if name not in schema.names:
                raise TableError(f"There is no column {name!r} for --categorical. {suggest_name(name, schema.names)}")
            if name not in inputs:
                raise TableError(
                    f"Column {name!r} is named by --categorical, but is no input column. Remove it from --categorical."
                )
        return inputs


def is_numeric(arrow_type: pa.DataType) -> bool:
    """Whether a column of this Arrow type can be a target: numbers, booleans, or nothing at all."""
    return pa.types.is_null(arrow_type) or kind_of_type(arrow_type) in ("number", "boolean", "duration")


def read_numbers(table: pa.Table | pa.RecordBatch, name: str, missing: Sequence[str] = ()) -> Array:
    """Return a column of an Arrow table as numbers, shape (n,), missing values and their markers as NaN."""
    if pa.types.is_null(table.schema.field(name).type):
        return np.full(len(table), np.nan)
    values = np.ascontiguousarray(to_numbers(as_entries(table[name])))
    return np.where(np.isin(values, number_markers(missing)), np.nan, values) if missing else values


def has_infinite(encoder: TableEncoder, table: pa.Table) -> NDArray[np.bool_]:
    """Which rows of a table have an infinite input, treated as missing; shape (n,)."""
    found = np.zeros(len(table), dtype=bool)
    for column in encoder.columns_:
        if isinstance(column, NumberColumn) and is_numeric(table.schema.field(column.name).type):
            found |= np.isinf(read_numbers(table, column.name))
    return found


def read_targets(table: pa.Table, options: ReadOptions) -> tuple[Array, Array | None]:
    """Return the target, or its logarithm, and the weights of rows that have a target."""
    y = read_numbers(table, options.target)
    weight = None if options.weights is None else read_numbers(table, options.weights)
    return np.log(y) if options.log_target else y, weight
