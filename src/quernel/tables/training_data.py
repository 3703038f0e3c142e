"""Training data from a table: the fitted encoder, and its encoded rows, in memory or read block by block.

Memory makes no difference to what is learnt: of files, the encoder reads one column at a time, and
`StreamedTrainingData.load` collects the encoded rows where they fit in memory. `prepare` does the same for a table that
is in memory already. From very long tables the encoder learns by some of their rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from quernel.data.dask import DaskRows
from quernel.tables.column_stats import LONG_TAIL
from quernel.tables.columns import row_folds
from quernel.tables.encoded_rows import EncodedRows, ReadOptions, encode_rows, join_pieces, read_numbers
from quernel.tables.encoder import TableEncoder
from quernel.tables.formats import ParquetTable, kind_of_type
from quernel.tables.frames import Frame, TableError, as_entries, factorize

Array = NDArray[np.floating]
# All rows of some columns, in batches that are the same for all columns.
Batches: TypeAlias = Callable[[Sequence[str]], Iterable[pa.Table]]

# Rows from which an encoder learns at most, but for a batch: memory for a column, the target and their copies is about
# 75 bytes a row.
MAX_LEARNT_ROWS = 10_000_000


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
    encoder, targets, groups = _learn(table.schema, lambda columns: [table.select(columns)], len(table), options)
    X, y, weight = encode_rows(table.filter(pa.array(targets.finite)), encoder, options)
    assert X is not None
    return TrainingData(encoder, X, y, weight, len(table) - len(y), encoder.notes_, groups, targets.infinite)


def prepare_files(
    table: ParquetTable, options: ReadOptions, make_rows: Callable[..., EncodedRows | DaskRows] = EncodedRows
) -> StreamedTrainingData:
    """Choose the input columns, leave out rows without a target, and fit the encoder, to one column at a time.

    Memory is needed for the target, the weights and one column of at most about `MAX_LEARNT_ROWS` rows, evenly spaced
    batches of longer tables; and for a byte of every row, or nine if there are groups. `make_rows` makes the row
    source; `dask_rows` leaves the rows with the workers of a cluster.
    """

    def batches(columns: Sequence[str]) -> Iterable[pa.Table]:
        return (batch.table for batch in table.iter_batches(columns))

    encoder, targets, groups = _learn(table.schema, batches, table.n_rows, options)
    rows = make_rows(table, encoder, options, targets.finite)
    ends = np.log([targets.low, targets.high]) if options.log_target else (targets.low, targets.high)
    return StreamedTrainingData(
        table, options, encoder, rows, (*table.notes, *encoder.notes_), groups, targets.infinite,
        (float(ends[0]), float(ends[1])),
    )  # fmt: skip


def _learn(
    schema: pa.Schema, batches: Batches, n_rows: int, options: ReadOptions
) -> tuple[TableEncoder, Targets, NDArray[np.uint64] | None]:
    """Fit the encoder to the rows with a target; return it, what is known of the targets, and hashes of groups."""
    inputs = options.input_columns(schema)
    if not inputs:
        raise TableError("The table has no usable input column. There is none besides the target.")
    step = max(-(-n_rows // MAX_LEARNT_ROWS), 1)
    targets = _read_targets(batches, options, step)

    def read_column(name: str, step: int = step) -> Any:
        kind, first, chunks = schema.field(name).type, 0, []
        if kind_of_type(kind) is None:  # which is not encoded: its values are not needed
            return pa.chunked_array([], kind)
        for number, batch in enumerate(batches([name])):
            finite = targets.finite[first : first + len(batch)]
            if number % step == 0:
                chunks += (batch[name] if finite.all() else batch[name].filter(pa.array(finite))).chunks
            first += len(batch)
        return pa.chunked_array(chunks, kind)

    kept = [name for name in options.columns or () if name in inputs]
    encoder = TableEncoder(categorical=options.categorical, keep=kept, missing=tuple(options.missing))
    y = np.log(targets.y) if options.log_target else targets.y
    encoder.fit(
        Frame(inputs, read_column, len(y), stored=False, folds=targets.folds if step > 1 else None), y, targets.weight
    )
    if options.log_target:  # whoever takes the logarithm needs no advice to do so
        encoder.notes_ = tuple(one for one in encoder.notes_ if one != LONG_TAIL)
    if step > 1:
        sentence = f"The encoding of columns was learnt from {len(y):,} rows, evenly spaced among {n_rows:,}."
        encoder.notes_ = (*encoder.notes_, sentence)
    groups = None if options.groups is None else _hash_labels(read_column(options.groups, 1), options.groups)
    return encoder, targets, groups


class Targets(NamedTuple):
    """Which rows have a target, (n,), its range, how many are infinite; and y, weights and folds of the learnt rows."""

    finite: NDArray[np.bool_]
    low: float
    high: float
    infinite: int
    y: Array
    weight: Array | None
    folds: NDArray[np.intp]


def _read_targets(batches: Batches, options: ReadOptions, step: int) -> Targets:
    """Read and check target and weights of all rows; those of every `step`-th batch are learnt from."""
    finite, learnt, low, high, n_used, counts = [], [], np.inf, -np.inf, 0, np.zeros(4, dtype=int)
    for number, batch in enumerate(batches(options.outputs)):
        target = read_numbers(batch, options.target)
        finite.append(np.isfinite(target))
        y = target[finite[-1]]
        weight = np.ones(1) if options.weights is None else read_numbers(batch, options.weights)[finite[-1]]
        low, high = float(y.min(initial=low)), float(y.max(initial=high))
        counts += [np.isinf(target).sum(), (y <= 0).sum(), (~np.isfinite(weight)).sum(), (weight < 0).sum()]
        if number % step == 0:
            learnt.append((y, weight, row_folds(n_used, len(y) if step > 1 else 0)))
        n_used += len(y)
    infinite, not_positive, missing, negative = counts.tolist()
    _check_targets(sum(map(len, finite)), low, not_positive, missing, negative, options)
    y, weight, folds = (np.concatenate(part) for part in zip(*learnt, strict=True))
    return Targets(np.concatenate(finite), low, high, infinite, y, None if options.weights is None else weight, folds)


def _check_targets(
    n_rows: int, low: float, not_positive: int, missing: int, negative: int, options: ReadOptions
) -> None:
    """Raise if there is no target, or one without a logarithm where that is needed, or if a weight is not valid."""
    if n_rows == 0:
        raise TableError("The table has no rows: there is nothing to learn from.")
    if low == np.inf:
        raise TableError(
            f"The target {options.target!r} is missing in all {n_rows:,} rows: there is nothing to learn from."
        )
    if options.log_target and not_positive:
        raise TableError(
            f"The logarithm needs positive targets, but {not_positive:,} values of {options.target!r} are not "
            f"(the smallest is {low:g}). Leave out --log-target, or those rows."
        )
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
