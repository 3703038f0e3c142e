"""Passes over out-of-core rows: their progress, reported to a callback set by `watching`, and prefetching.

While one block is processed, a thread reads the next ones (`read_ahead`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, TypeVar

Item = TypeVar("Item")
# Blocks that may be finished or in progress before they are asked for: a bound on memory.
AHEAD = 2
THREAD_NAME = "quernel-reading-ahead"
_END = object()  # marks the end of the queue


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


def read_ahead(pieces: Generator[Item, None, None], ahead: int = AHEAD) -> Iterator[Item]:
    """Iterate over a generator that runs in a thread, at most `ahead` items in front of the consumer.

    Exceptions of the generator are raised here. The thread starts when the first item is asked for. It has ended, and
    the generator is closed with its files, once the iterator is exhausted, has raised, or is closed or collected as
    garbage where a consumer stops early.
    """
    queue: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
    room, stop = threading.Semaphore(ahead), threading.Event()
    # A daemon: a thread that waits for room must not keep the interpreter from exiting.
    thread = threading.Thread(target=_produce, args=(pieces, queue, room, stop), name=THREAD_NAME, daemon=True)
    thread.start()
    try:
        while True:
            piece, error = queue.get()
            if error is not None:
                raise error
            if piece is _END:
                return
            room.release()
            yield piece
            del piece  # so that its memory is free while the next one is awaited
    finally:
        stop.set()
        room.release()
        thread.join()


def _produce(
    pieces: Generator[Any, None, None],
    queue: SimpleQueue[tuple[Any, BaseException | None]],
    room: threading.Semaphore,
    stop: threading.Event,
) -> None:
    """Body of the thread: put (item, None) into the queue, then (_END, None), or (None, error) after an exception."""
    try:
        while True:
            room.acquire()
            if stop.is_set():
                return
            piece = next(pieces, _END)
            queue.put((piece, None))
            if piece is _END:
                return
            del piece
    except BaseException as error:
        queue.put((None, error))
    finally:
        pieces.close()
