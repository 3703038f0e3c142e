"""Training data from a table: how it is read, the fitted encoder, and its encoded rows; and samples of rows.

Memory makes no difference to what is learnt: of files, the encoder reads one column at a time, and `TrainingData.load`
collects the encoded rows where they fit in memory. From very long tables the encoder learns by some of their rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from quernel.data.dask import DaskRows
from quernel.data.parquet import ParquetTable, TableRows
from quernel.data.sources import ArrayRows, Mask, Piece, read_all
from quernel.tables.column_stats import LONG_TAIL
from quernel.tables.columns import Markers, row_folds
from quernel.tables.csv_files import CsvOptions
from quernel.tables.encoder import TableEncoder
from quernel.tables.frames import Entries, Frame, TableError, as_entries, factorize, suggest_name, to_numbers

Array = NDArray[np.floating]
# Rows from which an encoder learns at most, but for a batch: memory for a column, the target and their copies is about
# 75 bytes a row.
MAX_LEARNT_ROWS = 10_000_000
# Bounds on the sampled rows of a table larger than memory, and the share of memory for their encoded matrix.
MIN_SAMPLE, MAX_SAMPLE, MEMORY_SHARE = 1000, 100_000, 0.25


@dataclass(frozen=True)
class ReadOptions:
    """How a table is read as training data."""

    target: str  # the numeric column to predict
    columns: Sequence[str] | None = None  # the input columns; None is all but the target, the weights and the groups
    exclude: Sequence[str] = ()  # columns that are not to be used
    weights: str | None = None  # the column of sample weights
    groups: str | None = None  # that of group labels; rows of one are never split between training and validation
    log_target: bool = False  # whether to fit the logarithm of the target
    missing: Sequence[str] = ()  # missing-value markers besides NA, NULL and the like; also those of new data
    categorical: Sequence[str] = ()  # input columns whose numbers or booleans are categories

    @property
    def outputs(self) -> list[str]:
        """Names of the target and of the weights, if there are any."""
        return [self.target, *([] if self.weights is None else [self.weights])]

    def csv_options(self) -> CsvOptions:
        """Return how CSV files are read: categorical columns as text, with these missing-value markers."""
        return CsvOptions(tuple(self.missing), tuple(self.categorical))

    def uses(self, name: str) -> bool:
        """Whether a column is used, be it as input, target, weights or groups."""
        named = (*(self.columns or ()), self.target, self.weights, self.groups)
        return name not in self.exclude and (self.columns is None or name in named)

    def input_columns(self, schema: pa.Schema) -> list[str]:
        """Return the names of the input columns; raise if a column is missing, or target or weights are not numeric."""
        left_out = (self.target, self.weights, self.groups, *self.exclude)
        for name in (*left_out, *(self.columns or ())):
            if name is not None and name not in schema.names:
                raise TableError(f"There is no column {name!r}. {suggest_name(name, schema.names)}")
        for name, role in ((self.target, "target"), (self.weights, "column of weights")):
            if name is not None and not is_numeric(kind := schema.field(name).type):
                raise TableError(
                    f"The {role} {name!r} holds {kind}, not numbers. Choose another column, or declare missing-value "
                    "markers of a CSV file by --missing."
                )
        if not (inputs := [name for name in self.columns or schema.names if name not in left_out]):
            raise TableError("The table has no usable input column. There is none besides the target.")
        return inputs


def is_numeric(arrow_type: pa.DataType) -> bool:
    """Whether a column of this Arrow type can be a target: numbers, booleans, or nothing at all."""
    return as_entries(pa.chunked_array([], arrow_type)).kind in ("number", "boolean", "duration", "nothing")


def read_numbers(table: pa.Table, name: str, missing: Sequence[str] = ()) -> Array:
    """Return a column of an Arrow table as numbers, shape (n,), missing values and their markers as NaN."""
    values = np.ascontiguousarray(to_numbers(as_entries(table[name])))
    return np.where(np.isin(values, Markers(tuple(missing)).numbers), np.nan, values) if missing else values


def read_outputs(table: pa.Table, options: ReadOptions) -> tuple[Array, Array | None]:
    """Return the target, or its logarithm, and the weights of rows that have a target."""
    y = read_numbers(table, options.target)
    weight = None if options.weights is None else read_numbers(table, options.weights)
    if options.log_target and np.any(y <= 0):
        raise TableError(
            f"The logarithm needs positive targets, but {options.target!r} is {y[np.argmax(y <= 0)]:g} in a row. Leave "
            "out --log-target, or those rows."
        )
    if weight is not None and not np.all(np.isfinite(weight) & (weight >= 0)):
        raise TableError(
            f"The weight column {options.weights!r} has entries that are missing, infinite or negative. Weights must "
            "be 0 or more; 0 leaves a row out."
        )
    return np.log(y) if options.log_target else y, weight


class EncodedRows(TableRows):
    """Rows of a table with a target, encoded as they are read; a `RowSource`.

    The table may be some row groups of one whose rows with a target are those of the mask `used`.
    """

    names = None  # table models have column names in the encoder: as with data in memory, the estimator gets none

    def __init__(self, table: ParquetTable, encoder: TableEncoder, options: ReadOptions, used: Mask) -> None:
        self.encoder, self.options = encoder, options
        self.first_row = int(np.count_nonzero(used[: table.groups[0].first]))  # among all training rows
        super().__init__(table, used, encoder.inputs, encoder.names, options.target, options.weights)

    def _encode(self, table: pa.Table, k: int, X: bool) -> Piece:
        """Return the encoded rows of block k, which have a target."""
        inputs = np.ascontiguousarray(self.encoder.encode(table, self.first_row + self.spans[k].start)) if X else None
        return Piece(inputs, *read_outputs(table, self.options))


def dask_rows(table: ParquetTable, encoder: TableEncoder, options: ReadOptions, used: Mask) -> DaskRows:
    """Return the encoded rows as Dask arrays, a chunk for every row group, read and encoded by workers of a cluster.

    None is sent to this process, and every worker must see the files under the same paths.
    """
    import dask.array as da
    from dask import delayed

    parts = [EncodedRows(replace(table, groups=(group,)), encoder, options, used) for group in table.groups]
    chunks = [(delayed(read_all)(part), part.n_rows) for part in parts if part.n_rows]

    def concatenate(name: str, *shape: int) -> Any:
        return da.concatenate([da.from_delayed(getattr(rows, name), (n, *shape), dtype=float) for rows, n in chunks])

    weight = None if options.weights is None else concatenate("weight")
    return DaskRows(concatenate("X", len(encoder.names)), concatenate("y"), weight)


# Training data


@dataclass(frozen=True, eq=False)
class TrainingData:
    """Training data, encoded as numbers."""

    table: ParquetTable
    options: ReadOptions
    encoder: TableEncoder
    rows: ArrayRows | EncodedRows | DaskRows  # of the rows with a target: inputs, target (or its logarithm), weights
    groups: NDArray[np.intp] | None  # the number (n,) of the group of each
    target_range: tuple[float, float]

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences for the user, on columns left out and the like."""
        return (*self.table.notes, *self.encoder.notes_)

    @property
    def n_rows(self) -> int:
        """Number of rows with a target."""
        return self.rows.n_rows

    @property
    def dropped(self) -> int:
        """Number of rows whose target is missing or infinite."""
        return self.table.n_rows - self.n_rows

    @property
    def n_bytes(self) -> int:
        """Memory that the table and its encoded rows would take."""
        return self.table.n_bytes + 8 * self.n_rows * (len(self.encoder.names) + 2)

    def load(self) -> TrainingData:
        """Return the same training data in memory."""
        assert isinstance(self.rows, EncodedRows)
        return replace(self, rows=read_all(self.rows))


def prepare(
    table: ParquetTable, options: ReadOptions, make_rows: Callable[..., EncodedRows | DaskRows] = EncodedRows
) -> TrainingData:
    """Choose the input columns, leave out rows without a target, and fit the encoder, to one column at a time.

    Memory is needed for the target, the weights and one column of at most about `MAX_LEARNT_ROWS` rows, evenly spaced
    batches of longer tables; and for two bytes of every row, or nine if there are groups. `make_rows` makes the source
    of the rows; `dask_rows` leaves them with the workers of a cluster.
    """
    inputs, step = options.input_columns(table.schema), -(-table.n_rows // MAX_LEARNT_ROWS)
    used, learnt = np.zeros((2, table.n_rows), dtype=bool)
    low, high = np.inf, -np.inf
    for number, (place, batch) in enumerate(table.iter_batches(options.outputs)):
        used[place.rows] = known = np.isfinite(read_numbers(batch, options.target, options.missing))
        learnt[place.rows] = known & (number % step == 0)
        y, _ = read_outputs(batch.filter(pa.array(known)), options)  # which checks all rows
        low, high = float(y.min(initial=low)), float(y.max(initial=high))
    if not used.any():
        raise TableError(f"The target {options.target!r} is missing in all rows: there is nothing to learn from.")
    y, weight = read_outputs(table.read(options.outputs, learnt), options)

    def read_column(name: str, chosen: Mask = learnt) -> Entries:
        empty = as_entries(pa.chunked_array([], table.schema.field(name).type))
        # Values of a kind that is not encoded are not needed.
        return empty if empty.kind is None else as_entries(table.read([name], chosen)[name])

    kept = [name for name in options.columns or () if name in inputs]
    encoder = TableEncoder(categorical=options.categorical, keep=kept, missing=tuple(options.missing))
    encoder.fit(Frame(inputs, read_column, len(y), folds=row_folds(np.flatnonzero(learnt[used]))), y, weight)
    if options.log_target:  # whoever takes the logarithm needs no advice to do so
        encoder.notes_ = tuple(one for one in encoder.notes_ if one != LONG_TAIL)
    if step > 1:
        rows = f"{len(y):,} rows, evenly spaced among {table.n_rows:,}."
        encoder.notes_ = (*encoder.notes_, f"The encoding of columns was learnt from {rows}")
    groups = None if options.groups is None else factorize(read_column(options.groups, used))[1]
    if groups is not None and (groups < 0).any():
        empty = f"{options.groups!r} is empty in {np.sum(groups < 0):,} of {len(groups):,} rows"
        raise TableError(f"The group column {empty}. Fill it, or leave those rows out.")
    return TrainingData(table, options, encoder, make_rows(table, encoder, options, used), groups, (low, high))


# Samples


@dataclass(frozen=True, eq=False)
class RowSample:
    """Sampled rows, in their order."""

    table: pa.Table
    row: NDArray[np.intp]  # (m,), the index of each among all rows
    target_row: NDArray[np.intp]  # (m,), its index among the rows with a target
    n_rows: int  # number of all rows
    n_counted: int  # of those with a target

    @property
    def whole(self) -> bool:
        """Whether these are all rows."""
        return len(self.row) == self.n_rows


def choose_sample_size(n_columns: int, memory: float) -> int:
    """Return the number of rows of a sample with this many encoded columns, given the bytes allowed."""
    return min(max(int(MEMORY_SHARE * memory / (8 * n_columns)), MIN_SAMPLE), MAX_SAMPLE)


def sample_rows(
    table: ParquetTable, columns: Sequence[str], target: str, limit: int, seed: int, missing: Sequence[str] = ()
) -> RowSample:
    """Return a random sample of at most `limit` rows, those without a target included.

    `missing` are markers of missing targets.
    """
    chosen = np.zeros(table.n_rows, dtype=bool)
    rng = np.random.default_rng(seed)
    chosen[rng.choice(table.n_rows, min(limit, table.n_rows), replace=False, shuffle=False)] = True
    parts = [np.isfinite(read_numbers(batch, target, missing)) for _, batch in table.iter_batches([target])]
    counted = np.concatenate([np.empty(0, dtype=bool), *parts])
    row, sample = np.flatnonzero(chosen), table.read(list(dict.fromkeys([*columns, target])), chosen)
    return RowSample(sample, row, (np.cumsum(counted) - counted)[row], table.n_rows, int(counted.sum()))
