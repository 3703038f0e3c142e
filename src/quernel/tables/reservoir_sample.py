"""Reservoir sampling from a table read in batches: a fixed number of rows, or all if there are fewer.

Every row has a random key, and the rows with the smallest keys are kept. Whatever the batches are, and in whatever
order their samples are merged, every set of this many rows is equally likely.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

# Bounds on the sampled rows of a table larger than memory, and the share of memory for their encoded matrix.
MIN_SAMPLE, MAX_SAMPLE, MEMORY_SHARE = 1000, 100_000, 0.25


def choose_sample_size(n_columns: int, memory: float) -> int:
    """Return the number of rows of a sample with this many encoded columns, given the bytes allowed."""
    return min(max(int(MEMORY_SHARE * memory / (8 * n_columns)), MIN_SAMPLE), MAX_SAMPLE)


@dataclass(frozen=True, eq=False)
class RowSample:
    """At most `limit` sampled rows, in their order.

    Attributes
    ----------
    limit : int
    table : Arrow table of the rows
    key : array (m,), the random key of each row
    row : array (m,), its index among all rows, of which there are `n_rows`
    target_row : array (m,), its index among the rows with a target, of which there are `n_counted`
    """

    limit: int
    table: pa.Table
    key: NDArray[np.floating]
    row: NDArray[np.intp]
    target_row: NDArray[np.intp]
    n_rows: int
    n_counted: int

    @property
    def whole(self) -> bool:
        """Whether these are all rows."""
        return len(self.key) == self.n_rows

    def subsample(self, limit: int) -> RowSample:
        """Return a sample of the sample, which is one of all rows, too: the rows with the smallest keys."""
        if len(self.key) <= limit:
            return replace(self, limit=limit)
        kept = np.sort(np.argpartition(self.key, limit)[:limit])
        return RowSample(
            limit, self.table.take(kept), self.key[kept], self.row[kept], self.target_row[kept],
            self.n_rows, self.n_counted,
        )  # fmt: skip


def sample_batch(
    table: pa.Table,
    counts: NDArray[np.bool_] | None = None,
    *,
    limit: int,
    seed: int,
    row: int = 0,
    target_row: int = 0,
) -> RowSample:
    """Sample a batch; `counts` says which rows have a target, `row` and `target_row` are the indices of its first."""
    counts = np.ones(len(table), dtype=bool) if counts is None else counts
    key = np.random.default_rng([seed, row]).random(len(table))
    before = np.cumsum(counts, dtype=np.intp) - counts
    rows = np.arange(row, row + len(table))
    return RowSample(limit, table, key, rows, target_row + before, len(table), int(counts.sum())).subsample(limit)


def merge_samples(parts: Sequence[RowSample]) -> RowSample:
    """Merge samples of consecutive batches into one of all their rows."""
    key, row, target_row = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("key", "row", "target_row")
    )
    table, limit = pa.concat_tables([part.table for part in parts]), parts[0].limit
    n_rows, n_counted = sum(part.n_rows for part in parts), sum(part.n_counted for part in parts)
    return RowSample(limit, table, key, row, target_row, n_rows, n_counted).subsample(limit)
