"""Prefetching: a thread reads the next blocks while the present one is processed."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from queue import SimpleQueue
from typing import Any, TypeVar

Item = TypeVar("Item")

# Blocks that may be finished or in progress before they are asked for: a bound on memory.
AHEAD = 2
THREAD_NAME = "quernel-reading-ahead"
_END = object()  # marks the end of the queue


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
