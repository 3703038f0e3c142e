"""Reading ahead: the next pieces are made in a thread while the present one is worked on."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from queue import SimpleQueue
from typing import Any, TypeVar

Item = TypeVar("Item")

# Pieces that may be made, or being made, before they are asked for.
AHEAD = 2
THREAD_NAME = "quernel-reading-ahead"
_END = object()


def read_ahead(pieces: Generator[Item, None, None], ahead: int = AHEAD) -> Iterator[Item]:
    """The pieces in order, made by one thread, `ahead` of them at most before they are taken.

    What fails in the thread fails here. The thread starts with the first piece that is asked for and has ended, with
    its files closed, when the iterator is exhausted, has failed, or is closed or forgotten by whoever stops early.
    """
    made: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
    room, stop = threading.Semaphore(ahead), threading.Event()
    # A daemon, for one that waits for room must not keep the interpreter from exiting.
    thread = threading.Thread(target=_make, args=(pieces, made, room, stop), name=THREAD_NAME, daemon=True)
    thread.start()
    try:
        while True:
            piece, error = made.get()
            if error is not None:
                raise error
            if piece is _END:
                return
            room.release()
            yield piece
            del piece  # not kept while the next one is waited for
    finally:
        stop.set()
        room.release()
        thread.join()


def _make(
    pieces: Generator[Any, None, None],
    made: SimpleQueue[tuple[Any, BaseException | None]],
    room: threading.Semaphore,
    stop: threading.Event,
) -> None:
    try:
        while True:
            room.acquire()
            if stop.is_set():
                return
            piece = next(pieces, _END)
            made.put((piece, None))
            if piece is _END:
                return
            del piece
    except BaseException as error:
        made.put((None, error))
    finally:
        pieces.close()
