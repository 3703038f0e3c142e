"""Training data from a table: the fitted encoder, and its encoded rows, in memory or read block by block.

Memory makes no difference to what is learnt: of files, the encoder reads one column at a time, and
`StreamedTrainingData.load` collects the encoded rows where they fit in memory. `prepare` does the same for a table that
is in memory already.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from quernel.data.dask import DaskRows
from quernel.tables.column_stats import LONG_TAIL
from quernel.tables.encoded_rows import EncodedRows, encode_rows, join_pieces
from quernel.tables.encoder import TableEncoder
from quernel.tables.frames import Frame, TableError, as_entries, factorize
from quernel.tables.parquet_table import ParquetTable, kind_of_type
from quernel.tables.read_options import ReadOptions, read_numbers, read_targets

Array = NDArray[np.floating]


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
    groups : hashes (n,) of the group labels, or None
    infinite : number of the dropped rows that have an infinite target
    """

    encoder: TableEncoder
    X: Array
    y: Array
    weight: Array | None
    dropped: int
    notes: tuple[str, ...]
    groups: NDArray[np.uint64] | None = None
    infinite: int = 0

    @property
    def n_rows(self) -> int:
        """Number of rows with a target."""
        return len(self.y)

    @property
    def target_range(self) -> tuple[float, float]:
        """Minimum and maximum of y."""
        return float(self.y.min()), float(self.y.max())


@dataclass(frozen=True, eq=False)
class StreamedTrainingData:
    """Training data in files, encoded as they are read; as `TrainingData`, but for the rows.

    Attributes
    ----------
    table : ParquetTable, the files
    options : ReadOptions
    encoder : TableEncoder
    rows : a row source of X, y and weights, for estimators
    notes, groups, infinite, target_range : as in `TrainingData`
    """

    table: ParquetTable
    options: ReadOptions
    encoder: TableEncoder
    rows: EncodedRows | DaskRows
    notes: tuple[str, ...]
    groups: NDArray[np.uint64] | None
    infinite: int
    target_range: tuple[float, float]

    @property
    def n_rows(self) -> int:
        """Number of rows with a target."""
        return self.rows.n_rows

    @property
    def dropped(self) -> int:
        """Number of rows without a target, or with an infinite one."""
        return self.table.n_rows - self.n_rows

    @property
    def n_bytes(self) -> int:
        """Memory that the table and its encoded rows would take."""
        return self.table.n_bytes + 8 * self.n_rows * (len(self.encoder.names) + 2)

    def load(self) -> TrainingData:
        """Return the same training data in memory."""
        assert isinstance(self.rows, EncodedRows)
        piece = join_pieces(self.rows.stream(range(len(self.rows.spans))))
        assert piece.X is not None
        return TrainingData(
            self.encoder, piece.X, piece.y, piece.weight, self.dropped, self.notes, self.groups, self.infinite
        )


# Encoded training data, in memory or out of core.
AnyTrainingData: TypeAlias = TrainingData | StreamedTrainingData


def prepare(table: pa.Table, options: ReadOptions) -> TrainingData:
    """Choose the input columns of an Arrow table, leave out rows without a target, fit the encoder and apply it."""
    encoder, target, groups = _learn(table.schema, table.select, options)
    finite = np.isfinite(target)
    X, y, weight = encode_rows(table.filter(finite), encoder, options)
    assert X is not None
    infinite = int(np.isinf(target).sum())
    return TrainingData(encoder, X, y, weight, len(target) - len(y), encoder.notes_, groups, infinite)


def prepare_files(
    table: ParquetTable, options: ReadOptions, make_rows: Callable[..., EncodedRows | DaskRows] = EncodedRows
) -> StreamedTrainingData:
    """Choose the input columns, leave out rows without a target, and fit the encoder, to one column at a time.

    Memory is needed for some columns: those of the target, the weights and a hash of the groups, and the one that is
    read. `make_rows` makes the row source; `dask_rows` leaves the rows with the workers of a cluster.
    """
    encoder, target, groups = _learn(table.schema, table.read, options)
    finite = np.isfinite(target)
    rows, y = make_rows(table, encoder, options, finite), target[finite]
    ends = np.log([y.min(), y.max()]) if options.log_target else (y.min(), y.max())
    notes, infinite = (*table.notes, *encoder.notes_), int(np.isinf(target).sum())
    return StreamedTrainingData(
        table, options, encoder, rows, notes, groups, infinite, (float(ends[0]), float(ends[1]))
    )


def _learn(
    schema: pa.Schema, read: Callable[[Sequence[str]], pa.Table], options: ReadOptions
) -> tuple[TableEncoder, Array, NDArray[np.uint64] | None]:
    """Fit the encoder to the rows with a target; return it, the target of all rows, and hashes of groups, if any.

    `read` returns all rows of some columns.
    """
    inputs = options.input_columns(schema)
    if not inputs:
        raise TableError("The table has no usable input column. There is none besides the target.")
    outputs = read(options.outputs)
    target = read_numbers(outputs, options.target)
    _check_target(target, options)
    finite = np.isfinite(target)
    some = None if finite.all() else pa.array(finite)
    outputs = outputs if some is None else outputs.filter(some)
    _check_weights(outputs, options)
    y, weight = read_targets(outputs, options)
    del outputs  # whose memory the columns need

    def read_column(name: str) -> Any:
        kind = schema.field(name).type
        if kind_of_type(kind) is None:  # which is not encoded: its values are not needed
            return pa.chunked_array([], kind)
        return read([name])[name] if some is None else read([name])[name].filter(some)

    kept = [name for name in options.columns or () if name in inputs]
    encoder = TableEncoder(categorical=options.categorical, keep=kept, missing=tuple(options.missing))
    encoder.fit(Frame(inputs, read_column, len(y), stored=False), y, weight)
    if options.log_target:  # whoever takes the logarithm needs no advice to do so
        encoder.notes_ = tuple(one for one in encoder.notes_ if one != LONG_TAIL)
    groups = None if options.groups is None else _hash_labels(read_column(options.groups), options.groups)
    return encoder, target, groups


def _check_target(y: Array, options: ReadOptions) -> None:
    """Raise if there is no target, or one that has no logarithm where that is needed."""
    finite = y[np.isfinite(y)]
    if len(y) == 0:
        raise TableError("The table has no rows: there is nothing to learn from.")
    if len(finite) == 0:
        raise TableError(
            f"The target {options.target!r} is missing in all {len(y):,} rows: there is nothing to learn from."
        )
    if options.log_target and finite.min() <= 0:
        raise TableError(
            f"The logarithm needs positive targets, but {np.sum(finite <= 0):,} values of {options.target!r} are not "
            f"(the smallest is {finite.min():g}). Leave out --log-target, or those rows."
        )


def _check_weights(outputs: pa.Table, options: ReadOptions) -> None:
    """Raise if a row with a target has a weight that is missing or negative."""
    if options.weights is None:
        return
    weight = read_numbers(outputs, options.weights)
    missing, negative = int(np.sum(~np.isfinite(weight))), int(np.sum(weight < 0))
    if missing or negative:
        what = f"{missing:,} missing or infinite" if missing else f"{negative:,} negative"
        raise TableError(
            f"The weight column {options.weights!r} has {what} entries. Weights must be 0 or more; 0 leaves a row out."
        )


def _hash_labels(column: pa.ChunkedArray, name: str) -> NDArray[np.uint64]:
    """Return a hash of every group label, equal for equal labels; raise if a row has none."""
    labels, index = factorize(as_entries(column))
    empty = int(np.sum(index < 0))
    if empty:
        raise TableError(
            f"The group column {name!r} is empty in {empty:,} of {len(index):,} rows. Fill it, or leave those rows out."
        )
    codes = [int.from_bytes(blake2b(label.encode(), digest_size=8).digest()) for label in labels]
    return np.array(codes, dtype=np.uint64)[index]
