"""Rows of a table, encoded as they are read block by block, and random samples of rows."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from quernel.data.passes import read_ahead
from quernel.data.sources import BLOCK_ROWS, Piece, RowsError, check_piece, split_blocks
from quernel.tables.encoder import TableEncoder
from quernel.tables.parquet_table import ParquetTable, RowBatch, RowGroup
from quernel.tables.read_options import ReadOptions, read_numbers, read_targets

# Number of rows with a target in every strip of every row group, by group and first row of the strip.
StripSizes: TypeAlias = dict[tuple[RowGroup, int], int]
# Rows of a group whose targets are counted together. A block of rows has one or more strips.
STRIP = 4096
# Bounds on the sampled rows of a table larger than memory, and the share of memory for their encoded matrix.
MIN_SAMPLE, MAX_SAMPLE, MEMORY_SHARE = 1000, 100_000, 0.25


@dataclass(frozen=True)
class RowBlock:
    """A block of rows: its start in its row group, rows without a target included, and its rows with a target."""

    group: RowGroup
    start: int
    n_rows: int


class EncodedRows:
    """Rows of a table, encoded as they are read; a `RowSource`. Rows without a target are left out.

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
        return [RowBlock(group, start, size) for (group, start), size in joined.items() if size]

    def stream(self, blocks: range, *, X: bool = True) -> Iterator[Piece]:
        """Iterate over these blocks in order, prefetched by a thread; X=False reads target and weight only."""
        return read_ahead(self._read_blocks(blocks, X))

    def place(self, k: int) -> str:
        """Where block k comes from, for error messages."""
        return str(self.blocks[k].group)

    def _read_blocks(self, numbers: range, X: bool) -> Generator[Piece, None, None]:
        wanted = {(self.blocks[k].group, self.blocks[k].start): self.blocks[k].n_rows for k in numbers}
        firsts = {(self.blocks[k].group, self.blocks[k].start): self.spans[k].start for k in numbers}
        groups = [group for group, _ in groupby(self.blocks[k].group for k in numbers)]
        last = self.blocks[numbers[-1]] if len(numbers) else None
        for batch in self.table.iter_batches(needed_columns(self.encoder, self.options, X), groups, self.size):
            n_rows = wanted.get((batch.group, batch.start))
            if n_rows is not None:
                piece = encode_batch(batch, self.encoder, self.options, firsts[batch.group, batch.start], X)
                if len(piece.y) != n_rows:
                    raise RowsError(f"{batch.group} has other rows than before: the file was changed while in use.")
                yield piece
            if last is not None and (batch.group, batch.start) == (last.group, last.start):
                return


def join_pieces(pieces: Sequence[Piece]) -> Piece:
    """Concatenate pieces."""
    parts: list[Any] = [None if part[0] is None else np.concatenate(part) for part in zip(*pieces, strict=True)]
    return Piece(*parts)


def needed_columns(encoder: TableEncoder, options: ReadOptions, X: bool) -> list[str]:
    """Return the columns to read: target and weights, with X also the inputs."""
    return list(dict.fromkeys([*(encoder.inputs if X else ()), *options.outputs]))


def encode_batch(batch: RowBatch, encoder: TableEncoder, options: ReadOptions, first_row: int, X: bool = True) -> Piece:
    """Encode a batch, without the rows that have no target; `first_row` counts those that have one before it."""
    finite = np.isfinite(read_numbers(batch.table, options.target))
    table = batch.table if finite.all() else batch.table.filter(finite)

    def where(row: int) -> str:
        place = batch.start + int(np.flatnonzero(finite)[row])
        return f"{batch.group}, row {place:,} of the group (counted from 0)"

    return encode_rows(table, encoder, options, first_row, X, where)


def encode_rows(
    table: pa.Table,
    encoder: TableEncoder,
    options: ReadOptions,
    first_row: int = 0,
    X: bool = True,
    where: Callable[[int], str] = "Row {:,} (counted from 0)".format,
) -> Piece:
    """Encode training rows, which have a target, and check them; `where` describes the place of a row."""
    inputs = np.ascontiguousarray(encoder.transform_training(table, first_row)) if X else None
    piece = Piece(inputs, *read_targets(table, options))
    labels = [f"column {name!r}" for name in (*encoder.names, options.target, options.weights)]
    return check_piece(piece, labels, where)


@dataclass(frozen=True, eq=False)
class RowSample:
    """Sampled rows, in their order.

    Attributes
    ----------
    table : Arrow table of the rows
    row : array (m,), the index of each among all rows, of which there are `n_rows`
    target_row : array (m,), its index among the rows with a target, of which there are `n_counted`
    """

    table: pa.Table
    row: NDArray[np.intp]
    target_row: NDArray[np.intp]
    n_rows: int
    n_counted: int

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
    """Return a random sample of at most `limit` rows, those without a target included, in one pass.

    `missing` are markers of missing targets.
    """
    n_rows = table.n_rows
    chosen = np.arange(n_rows)
    if n_rows > limit:
        chosen = np.sort(np.random.default_rng(seed).choice(n_rows, limit, replace=False, shuffle=False))
    names = list(dict.fromkeys([*columns, target]))
    parts, before, first = [pa.schema([table.schema.field(name) for name in names]).empty_table()], [], 0
    n_counted = 0
    for batch in table.iter_batches(names):
        finite = np.isfinite(read_numbers(batch.table, target, missing))
        inside = chosen[np.searchsorted(chosen, first) : np.searchsorted(chosen, first + len(finite))] - first
        parts.append(batch.table.take(inside))
        before.append(n_counted + (np.cumsum(finite) - finite)[inside])
        first, n_counted = first + len(finite), n_counted + int(finite.sum())
    target_row = np.concatenate(before) if before else np.empty(0, dtype=np.intp)
    return RowSample(pa.concat_tables(parts), chosen, target_row, n_rows, n_counted)
