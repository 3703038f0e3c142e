"""Row blocks of a convenient size."""

from __future__ import annotations

from collections.abc import Iterator

# A block: large enough that a call costs nothing beside its work. Features that are recomputed exist a block at a time.
BLOCK_BYTES = 64 * 2**20
BLOCK_ROWS = 4096
# A strip: small enough that its features are still in cache when they are used a second time.
STRIP_BYTES = 2**20


def blocks(n_rows: int, n_features: int, at_least: int = 1) -> Iterator[slice]:
    """Consecutive slices of rows whose features take about BLOCK_BYTES, but at least BLOCK_ROWS of them.

    There are at least so many slices, if there are rows for them.
    """
    size = max(BLOCK_BYTES // (8 * max(n_features, 1)), BLOCK_ROWS)
    return _slices(n_rows, max(min(size, -(-n_rows // at_least)), 1))


def strips(n_rows: int, n_features: int) -> Iterator[slice]:
    """Consecutive slices of rows whose features take about STRIP_BYTES."""
    return _slices(n_rows, max(STRIP_BYTES // (8 * max(n_features, 1)), 32))


def _slices(n_rows: int, size: int) -> Iterator[slice]:
    for start in range(0, n_rows, size):
        yield slice(start, min(start + size, n_rows))
