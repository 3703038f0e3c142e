"""Progress of passes over out-of-core rows, reported to a callback set by `watching`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True)
class Pass:
    """State of a pass over the rows."""

    done: int  # rows processed so far
    n_rows: int  # of so many
    seconds: float  # since the pass began


Watcher = Callable[[Pass], None]
_watcher: ContextVar[Watcher | None] = ContextVar("quernel_pass", default=None)


@contextmanager
def watching(watcher: Watcher) -> Iterator[None]:
    """Context manager: every pass begun inside calls watcher(Pass) as it proceeds, from the threads that read."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


def begin_pass(n_rows: int) -> Callable[[int], None]:
    """Start a pass: returns a thread-safe function to call with the number of rows whenever some are done."""
    watcher = _watcher.get()
    if watcher is None:
        return lambda _: None
    lock, start, done = threading.Lock(), time.perf_counter(), 0

    def count(rows: int) -> None:
        nonlocal done
        with lock:
            done += rows
            watcher(Pass(done, n_rows, time.perf_counter() - start))

    return count
