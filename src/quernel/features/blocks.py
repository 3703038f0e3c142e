"""Row blocks: slices of rows whose features have a convenient size.

Two sizes are used. *Blocks* are the unit of map-reduce and of threads: large enough that the overhead of a call is
negligible. Features that are recomputed exist one block at a time. *Strips* are parts of a block, small enough that
their features are still in cache when they are used a second time.
"""

from __future__ import annotations

from collections.abc import Iterator

# Size of a block's features as float64, and the smallest number of its rows.
BLOCK_BYTES = 64 * 2**20
BLOCK_ROWS = 4096
# Size of a strip's features as float64: small enough to stay in a core's cache.
STRIP_BYTES = 2**20


def blocks(n_rows: int, n_features: int, at_least: int = 1) -> Iterator[slice]:
    """Consecutive row slices of about BLOCK_BYTES of features, or of BLOCK_ROWS rows if that is more.

    Parameters
    ----------
    n_rows, n_features : int
        Shape of the feature matrix.
    at_least : int, default=1
        Smallest number of slices, if there are rows enough: give the number of threads to occupy all of them.
    """
    size = max(BLOCK_BYTES // (8 * max(n_features, 1)), BLOCK_ROWS)
    return _slices(n_rows, max(min(size, -(-n_rows // at_least)), 1))


def strips(n_rows: int, n_features: int) -> Iterator[slice]:
    """Consecutive row slices of about STRIP_BYTES of features, but of at least 32 rows."""
    return _slices(n_rows, max(STRIP_BYTES // (8 * max(n_features, 1)), 32))


def _slices(n_rows: int, size: int) -> Iterator[slice]:
    """Slices of `size` rows; the last may be shorter."""
    for start in range(0, n_rows, size):
        yield slice(start, min(start + size, n_rows))
