"""How a pass over rows of files says how far it has come, to whoever watches."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True)
class Pass:
    """A pass over the rows: how many of them are done, of how many, and for how many seconds it has been at it."""

    done: int
    n_rows: int
    seconds: float


Watcher = Callable[[Pass], None]
_watcher: ContextVar[Watcher | None] = ContextVar("quernel_pass", default=None)


@contextmanager
def watching(watcher: Watcher) -> Iterator[None]:
    """Send the state of every pass inside this block to `watcher`, from whichever thread it is that reads."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


def begin_pass(n_rows: int) -> Callable[[int], None]:
    """A function to call with the number of rows whenever some are done, in any thread."""
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
