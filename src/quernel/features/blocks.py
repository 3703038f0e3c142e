"""Row blocks of a convenient size."""

from __future__ import annotations

from collections.abc import Iterator

# Large enough that a call costs nothing, small enough that a block of features stays in cache for its second use.
BLOCK_BYTES = 2 * 2**20


def blocks(n_rows: int, n_features: int) -> Iterator[slice]:
    """Consecutive slices of rows whose features take about BLOCK_BYTES."""
    size = max(BLOCK_BYTES // (8 * max(n_features, 1)), 64)
    for start in range(0, n_rows, size):
        yield slice(start, min(start + size, n_rows))
