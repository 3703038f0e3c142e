"""Training data from a table in memory: encoded inputs, target, weights and groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from quernel.tables.arrow_casts import ArrowColumn, column_kind, decode_dictionary, to_float64
from quernel.tables.encoder import TableEncoder
from quernel.tables.frames import TableError, suggest_name
from quernel.tables.reading import CsvOptions

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
        return CsvOptions(dict.fromkeys(self.categorical, pa.string()), tuple(self.missing))

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
            if kind is not None and column_kind(kind) not in ("number", "boolean", "nothing"):
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


@dataclass(frozen=True, eq=False)
class TrainingData:
    """Training data in memory, encoded as numbers.

    Attributes
    ----------
    encoder : TableEncoder
    X : array (n, d)
    y : array (n,), the target or its logarithm
    weight : array (n,) or None
    dropped : number of rows without a target, or with an infinite one; these are not among the n
    notes : sentences for the user, on columns left out and the like
    groups : integer codes (n,) of the group labels, or None
    infinite : number of the dropped rows that have an infinite target
    """

    encoder: TableEncoder
    X: Array
    y: Array
    weight: Array | None
    dropped: int
    notes: tuple[str, ...]
    groups: NDArray[np.intp] | None = None
    infinite: int = 0

    @property
    def n_rows(self) -> int:
        """Number of rows with a target."""
        return len(self.y)

    @property
    def target_range(self) -> tuple[float, float]:
        """Minimum and maximum of y."""
        return float(self.y.min()), float(self.y.max())


def prepare(table: pa.Table, options: ReadOptions) -> TrainingData:
    """Choose the input columns of an Arrow table, drop rows without a target, fit the encoder and apply it."""
    inputs = options.input_columns(table.schema)
    y = to_float64(table[options.target])
    finite, infinite = np.isfinite(y), int(np.isinf(y).sum())
    check_has_target(options.target, int(finite.sum()), len(y))
    if not finite.all():
        table, y = table.filter(finite), y[finite]
    if options.log_target:
        check_positive(options.target, int(np.sum(y <= 0)), float(y.min()))
    weight = None if options.weights is None else _read_weights(table[options.weights], options.weights)
    kept = [name for name in options.columns or () if name in inputs]
    encoder = TableEncoder(categorical=options.categorical, keep=kept, missing=tuple(options.missing)).fit(
        table.select(inputs)
    )
    X = encoder.transform(table)
    y = np.log(y) if options.log_target else y
    groups = None if options.groups is None else _encode_groups(table[options.groups], options.groups)
    return TrainingData(encoder, X, y, weight, int(np.sum(~finite)), encoder.notes_, groups, infinite)


def check_has_target(target: str, n_finite: int, n_rows: int) -> None:
    """Raise if no row has a target."""
    if n_rows == 0:
        raise TableError("The table has no rows: there is nothing to learn from.")
    if n_finite == 0:
        raise TableError(f"The target {target!r} is missing in all {n_rows:,} rows: there is nothing to learn from.")


def check_positive(target: str, n_not_positive: int, smallest: float) -> None:
    """Raise if a target to be fitted on the log scale is not positive."""
    if n_not_positive:
        raise TableError(
            f"The logarithm needs positive targets, but {n_not_positive:,} values of {target!r} are not (the smallest "
            f"is {smallest:g}). Leave out --log-target, or those rows."
        )


def check_group_labels(name: str, labels: ArrowColumn, place: str = "") -> None:
    """Raise if a row has no group label."""
    labels = decode_dictionary(labels)
    count = labels.null_count
    if pa.types.is_floating(labels.type):
        count += pc.sum(pc.is_nan(labels)).as_py() or 0
    if count:
        of = f" of {place}" if place else ""
        raise TableError(
            f"The group column {name!r} is empty in {count:,} of {len(labels):,} rows{of}. Fill it, or leave those "
            "rows out."
        )


def _read_weights(column: ArrowColumn, name: str) -> Array:
    weight = to_float64(column)
    missing, negative = int(np.sum(~np.isfinite(weight))), int(np.sum(weight < 0))
    if missing or negative:
        what = f"{missing:,} missing or infinite" if missing else f"{negative:,} negative"
        raise TableError(
            f"The weight column {name!r} has {what} entries. Weights must be 0 or more; 0 leaves a row out."
        )
    return weight


def _encode_groups(labels: ArrowColumn, name: str) -> NDArray[np.intp]:
    """Encode group labels as integers."""
    check_group_labels(name, labels)
    return decode_dictionary(labels).combine_chunks().dictionary_encode().indices.to_numpy().astype(np.intp)
