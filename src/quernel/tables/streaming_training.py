"""Training data from files larger than memory: the same encoding as `training_data`, streamed in batches.

A table is a `ParquetTable`, or a `DaskTable` whose workers read the files. It is summarised by `map_reduce`: a function
of one batch of rows, which may run on a worker, and one that merges the results of several.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from itertools import groupby, pairwise
from typing import TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from quernel.data.dask import DaskRows
from quernel.data.passes import read_ahead
from quernel.data.sources import BLOCK_ROWS, Piece, RowsError, check_piece, split_blocks
from quernel.data.streaming_quantiles import (
    RadixSearch,
    candidates,
    count_next_digits,
    n_candidates,
    quantile_values,
    refine,
    select,
    start_search,
    sum_counts,
)
from quernel.tables.arrow_casts import factorize, to_float64
from quernel.tables.column_stats import (
    ColumnStats,
    NumberStats,
    choose_encoding,
    compute_stats,
    encodable_kind,
    list_remarks,
    merge_stats,
    parse_counts,
)
from quernel.tables.columns import Column, NumericColumn, TextColumn
from quernel.tables.encoder import TableEncoder
from quernel.tables.frames import as_entries
from quernel.tables.missing_values import Markers
from quernel.tables.parquet_table import MapReduceTable, ParquetTable, RowBatch, RowGroup
from quernel.tables.reservoir_sample import RowSample, merge_samples, sample_batch
from quernel.tables.training_data import ReadOptions, TrainingData, check_group_labels, check_has_target, check_positive

Array = NDArray[np.floating]
# Number of rows with a target in every strip of every row group, by group and first row of the strip.
StripSizes: TypeAlias = dict[tuple[RowGroup, int], int]

# Rows of a group whose targets are counted together. A block of rows has one or more strips.
STRIP = 4096
# With fewer candidates for a column's median, these are gathered and sorted instead of counted further.
MAX_GATHERED = 2**16


@dataclass(frozen=True, eq=False)
class StreamedTrainingData:
    """Training data in files, encoded as they are read; as `TrainingData`, but for the rows.

    Attributes
    ----------
    table : MapReduceTable, the files
    options : ReadOptions
    sizes : rows with a target in every strip, as in `TargetCounts`
    target_range : minimum and maximum of the target, or of its logarithm
    encoder : TableEncoder
    rows : a row source of X, y and weights, for estimators
    dropped, notes, infinite : as in `TrainingData`
    groups : hashes (n,) of the group labels, or None
    """

    table: MapReduceTable
    options: ReadOptions
    sizes: StripSizes
    target_range: tuple[float, float]
    encoder: TableEncoder
    rows: TableRows | DaskRows
    dropped: int
    notes: tuple[str, ...]
    groups: NDArray[np.uint64] | None = None
    infinite: int = 0

    @property
    def n_rows(self) -> int:
        """Number of rows with a target."""
        return self.rows.n_rows


# Encoded training data, wherever the rows are.
AnyTrainingData: TypeAlias = TrainingData | StreamedTrainingData


def prepare_streamed(
    table: MapReduceTable, options: ReadOptions, make_rows: Callable[..., TableRows | DaskRows] | None = None
) -> StreamedTrainingData:
    """Do as `training_data.prepare`, with the same result, for files read in a few passes; no row is kept in memory.

    Parameters
    ----------
    table : ParquetTable or DaskTable
    options : ReadOptions
        With groups, a hash of every label is kept, 8 bytes a row.
    make_rows : callable or None
        Makes the row source; None is `TableRows`, and for a `DaskTable` it is `dask_rows`.
    """
    inputs, target = options.input_columns(table.schema), options.target
    found = table.map_reduce(partial(count_targets, target), merge_target_counts, [target])
    check_has_target(target, sum(found.sizes.values()), table.n_rows)
    low, high = found.low, found.high
    if options.log_target:
        check_positive(target, found.not_positive, found.low)
        low, high = math.log(low), math.log(high)
    encoder = TableEncoder.from_encodings(*fit_columns(table, options, inputs), options.missing)
    build: Callable[..., TableRows | DaskRows] = make_rows or TableRows
    rows = build(table, encoder, options, found.sizes)
    labels = None
    if options.groups is not None:
        needed = [*dict.fromkeys([target, options.groups])]
        labels = table.map_reduce(partial(group_labels, target, options.groups), np.concatenate, needed)
    dropped = table.n_rows - rows.n_rows
    return StreamedTrainingData(
        table, options, found.sizes, (low, high), encoder, rows, dropped, encoder.notes_, labels,
        found.infinite,
    )  # fmt: skip


# The target


@dataclass(frozen=True, eq=False)
class TargetCounts:
    """Rows with a target per strip, the target's range, and how many targets are not positive or are infinite."""

    sizes: StripSizes
    low: float
    high: float
    not_positive: int
    infinite: int


def count_targets(target: str, batch: RowBatch) -> TargetCounts:
    """Count the targets of a batch."""
    y = to_float64(batch.table[target])
    finite = np.isfinite(y)
    starts = range(0, len(y), STRIP)
    sizes = {(batch.group, batch.start + start): int(finite[start : start + STRIP].sum()) for start in starts}
    low, high = y[finite].min(initial=np.inf), y[finite].max(initial=-np.inf)
    return TargetCounts(sizes, float(low), float(high), int(np.sum(y[finite] <= 0)), int(np.isinf(y).sum()))


def merge_target_counts(parts: Sequence[TargetCounts]) -> TargetCounts:
    """Merge the counts of batches."""
    sizes = {key: size for part in parts for key, size in part.sizes.items()}
    low, high = min(part.low for part in parts), max(part.high for part in parts)
    not_positive, infinite = (sum(getattr(part, name) for part in parts) for name in ("not_positive", "infinite"))
    return TargetCounts(sizes, low, high, not_positive, infinite)


def drop_missing_target(table: pa.Table, target: str) -> pa.Table:
    """Return the rows of a table that have a target."""
    finite = np.isfinite(to_float64(table[target]))
    return table if finite.all() else table.filter(finite)


def group_labels(target: str, name: str, batch: RowBatch) -> NDArray[np.uint64]:
    """Return a hash of the group label of every row with a target, equal for equal labels in all batches."""
    column = drop_missing_target(batch.table, target)[name]
    check_group_labels(name, column, str(batch.group))
    labels, index = factorize(column)
    codes = [int.from_bytes(blake2b(label.encode(), digest_size=8).digest()) for label in labels]
    return np.array(codes, dtype=np.uint64)[index]


# A random sample


def sample_rows(training: StreamedTrainingData, limit: int, seed: int) -> RowSample:
    """Return a random sample of all rows, those without a target included, with the columns used, in one pass.

    `target_row` of the sample is the index among the rows with a target, as in `training.rows`.
    """
    columns = needed_columns(training.encoder, training.options, X=True)
    step = partial(sample_row_batch, training.options.target, limit, seed)
    found = training.table.map_reduce(step, merge_samples, columns)
    # Batches count their rows with a target from 0: add those of the batches before.
    starts, before, count = [], [], 0
    for group in training.table.groups:
        for start in range(0, group.n_rows, STRIP):
            if start % BLOCK_ROWS == 0:  # the start of a batch
                starts.append(group.first + start)
                before.append(count)
            count += training.sizes[group, start]
    batch = np.searchsorted(starts, found.row, side="right") - 1
    return replace(found, target_row=found.target_row + np.array(before)[batch])


def sample_row_batch(target: str, limit: int, seed: int, batch: RowBatch) -> RowSample:
    """Sample a batch; `target_row` starts at 0 in each."""
    finite = np.isfinite(to_float64(batch.table[target]))
    return sample_batch(batch.table, finite, limit=limit, seed=seed, row=batch.group.first + batch.start)


# The encoder


def fit_columns(
    table: MapReduceTable, options: ReadOptions, inputs: Sequence[str]
) -> tuple[dict[str, Column | str], dict[str, list[str]]]:
    """Fit the encoding of every input to the rows with a target, in three or four passes.

    Returns, by column, the encoding or the reason to leave the column out, and remarks for the user.
    """
    empty = table.schema.empty_table()
    kinds = {name: encodable_kind(name, as_entries(empty[name]), name in options.categorical) for name in inputs}
    known = {name: kind for name, (kind, _) in kinds.items() if kind is not None}
    needed = list(dict.fromkeys([*known, options.target]))
    step = partial(batch_stats, options.target, known, Markers.from_given(options.missing))
    stats = table.map_reduce(step, merge_batch_stats, needed) if known else {}
    encodings: dict[str, Column | str] = {
        name: reason if kind is None else choose_encoding(name, kind, stats[name], keep=options.columns is not None)
        for name, (kind, reason) in kinds.items()
    }
    columns = {name: column for name, column in encodings.items() if not isinstance(column, str | TextColumn)}
    numeric = {name: column for name, column in columns.items() if np.isnan(column.fill)}
    medians = compute_medians(table, options.target, numeric, {name: _count_finite(stats[name]) for name in numeric})
    encodings |= {name: replace(column, fill=medians[name]) for name, column in numeric.items()}
    return encodings, {name: list_remarks(stats[name]) if name in stats else [] for name in encodings}


def batch_stats(target: str, kinds: dict[str, str], markers: Markers, batch: RowBatch) -> dict[str, ColumnStats]:
    """Return the statistics of every column in a batch."""
    table = drop_missing_target(batch.table, target)
    return {name: compute_stats(as_entries(table[name]), kind, markers) for name, kind in kinds.items()}


def merge_batch_stats(parts: Sequence[dict[str, ColumnStats]]) -> dict[str, ColumnStats]:
    """Merge the statistics of batches."""
    return {name: merge_stats([part[name] for part in parts]) for name in parts[0]}


def _count_finite(stats: ColumnStats) -> int:
    """Return how many numbers, or dates in text, a column has."""
    if isinstance(stats, NumberStats):
        return stats.n_finite
    found = parse_counts(stats)
    return 0 if found is None else found[1].n_finite


def compute_medians(
    table: MapReduceTable, target: str, columns: dict[str, NumericColumn], n_finite: dict[str, int]
) -> dict[str, float]:
    """Return the median of every column, in two or three passes by radix selection (`data.streaming_quantiles`).

    `n_finite` has the number of finite values of every column. Medians are exact: those of the table in memory.
    """
    if not columns:
        return {}
    needed = list(dict.fromkeys([*columns, target]))
    states = {name: start_search(np.array([0.5]), float(count)) for name, count in n_finite.items()}
    remaining = dict(n_finite)
    while max(remaining.values()) > MAX_GATHERED:
        step = partial(count_digits, target, columns, states)
        found = table.map_reduce(step, merge_digits, needed)
        for name, state in states.items():
            if state.done:
                continue
            states[name] = refine(state, found[name])
            remaining[name] = 0 if states[name].done else n_candidates(state, states[name], found[name])
    step = partial(gather_candidates, target, columns, states)
    gathered = table.map_reduce(step, merge_candidates, needed)
    return {
        name: float(quantile_values(state)[0] if state.done else select(state, gathered[name])[0])
        for name, state in states.items()
    }


def count_digits(
    target: str, columns: dict[str, NumericColumn], states: dict[str, RadixSearch], batch: RowBatch
) -> dict[str, Array]:
    """Return, by column, the histogram of the next digit of the numbers in a batch."""
    finite = finite_values(target, columns, batch)
    return {name: count_next_digits(y, None, states[name]) for name, y in finite.items() if not states[name].done}


def merge_digits(parts: Sequence[dict[str, Array]]) -> dict[str, Array]:
    """Sum the histograms of batches."""
    return {name: sum_counts([part[name] for part in parts]) for name in parts[0]}


def gather_candidates(
    target: str, columns: dict[str, NumericColumn], states: dict[str, RadixSearch], batch: RowBatch
) -> dict[str, Array]:
    """Return, by column, the numbers in a batch that may be the median."""
    finite = finite_values(target, columns, batch)
    return {name: candidates(y, states[name]) for name, y in finite.items() if not states[name].done}


def merge_candidates(parts: Sequence[dict[str, Array]]) -> dict[str, Array]:
    """Concatenate the candidates of batches."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def finite_values(target: str, columns: dict[str, NumericColumn], batch: RowBatch) -> dict[str, Array]:
    """Return, by column, the numbers and dates of a batch, without missing ones and rows without a target."""
    table = drop_missing_target(batch.table, target)
    read = {name: column.read(table[name]) for name, column in columns.items()}
    return {name: found[np.isfinite(found)] for name, found in read.items()}


# The rows


@dataclass(frozen=True)
class RowBlock:
    """A block of rows: its start in its row group, rows without a target included, and its rows with a target."""

    group: RowGroup
    start: int
    n_rows: int


class TableRows:
    """Rows of Parquet files, encoded as they are read; a `RowSource`. Rows without a target are dropped.

    Parameters
    ----------
    table : ParquetTable
    encoder : TableEncoder
    options : ReadOptions
    sizes : dict
        Number of rows with a target in every strip, as in `TargetCounts`.
    """

    def __init__(self, table: ParquetTable, encoder: TableEncoder, options: ReadOptions, sizes: StripSizes) -> None:
        self.table, self.encoder, self.options = table, encoder, options
        # Table models have column names in the encoder: as with data in memory, the estimator gets none.
        self.names, self.n_columns = None, len(encoder.names)
        self.weighted = options.weights is not None
        self.size = max(split_blocks(BLOCK_ROWS, self.n_columns)[0].stop // STRIP, 1) * STRIP
        self.blocks = self._make_blocks(sizes)
        ends = np.cumsum([0, *(block.n_rows for block in self.blocks)]).tolist()
        self.spans = [slice(start, stop) for start, stop in pairwise(ends)]
        self.n_rows = ends[-1]

    def _make_blocks(self, sizes: StripSizes) -> list[RowBlock]:
        """Join strips to blocks of `size` rows; those without a target are left out."""
        joined: StripSizes = {}
        for (group, start), size in sizes.items():
            first = start - start % self.size
            joined[group, first] = joined.get((group, first), 0) + size
        order = {group: place for place, group in enumerate(self.table.groups)}
        blocks = [RowBlock(group, start, size) for (group, start), size in joined.items() if size]
        return sorted(blocks, key=lambda block: (order[block.group], block.start))

    def stream(self, blocks: range, *, X: bool = True) -> Iterator[Piece]:
        """Iterate over these blocks in order, prefetched by a thread; X=False reads target and weight only."""
        return read_ahead(self._read_blocks(blocks, X))

    def place(self, k: int) -> str:
        """Where block k comes from, for error messages."""
        return str(self.blocks[k].group)

    def _read_blocks(self, numbers: range, X: bool) -> Generator[Piece, None, None]:
        wanted = {(self.blocks[k].group, self.blocks[k].start): self.blocks[k].n_rows for k in numbers}
        groups = [group for group, _ in groupby(self.blocks[k].group for k in numbers)]
        last = self.blocks[numbers[-1]] if len(numbers) else None
        for batch in self.table.iter_batches(needed_columns(self.encoder, self.options, X), groups, self.size):
            n_rows = wanted.get((batch.group, batch.start))
            if n_rows is not None:
                piece = encode_batch(batch, self.encoder, self.options, X)
                if len(piece.y) != n_rows:
                    raise RowsError(f"{batch.group} has other rows than before: the file was changed while in use.")
                yield piece
            if last is not None and (batch.group, batch.start) == (last.group, last.start):
                return


def needed_columns(encoder: TableEncoder, options: ReadOptions, X: bool) -> list[str]:
    """Return the columns to read: target and weights, with X also the inputs."""
    return list(dict.fromkeys([*(encoder.inputs if X else ()), *options.outputs]))


def encode_batch(batch: RowBatch, encoder: TableEncoder, options: ReadOptions, X: bool = True) -> Piece:
    """Encode a batch, without the rows that have no target."""
    y = to_float64(batch.table[options.target])
    finite = np.isfinite(y)
    table = batch.table if finite.all() else batch.table.filter(finite)
    y = np.log(y[finite]) if options.log_target else y[finite]
    weight = None if options.weights is None else np.ascontiguousarray(to_float64(table[options.weights]))
    piece = Piece(np.ascontiguousarray(encoder.transform(table)) if X else None, np.ascontiguousarray(y), weight)
    labels = [f"column {name!r}" for name in (*encoder.names, options.target, options.weights)]

    def where(row: int) -> str:
        return f"{batch.group}, row {batch.start + int(np.flatnonzero(finite)[row]):,} of the group (counted from 0)"

    return check_piece(piece, labels, where)
