"""Right-sized thread pools: a BLAS pool spinning over small matrices costs more than it gives."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from threadpoolctl import ThreadpoolController

# Entries of Phi below which one thread is faster than several.
SMALL = 3_000_000


@cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()  # looks through all loaded libraries: once is enough


@contextmanager
def right_sized(n_rows: int, n_features: int) -> Iterator[None]:
    """One BLAS thread for a small problem; the user's own setting for a large one."""
    if n_rows * n_features > SMALL:
        yield
        return
    with _controller().limit(limits=1, user_api="blas"):
        yield
