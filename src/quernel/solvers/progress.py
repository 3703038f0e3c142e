"""How a solver says where it is, to whoever listens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """Where a solve stands: steps taken, columns still being worked on, and the worst relative gap (inf: none yet)."""

    iteration: int
    columns: int
    gap: float


Listener = Callable[[Progress], None]
_listener: ContextVar[Listener | None] = ContextVar("quernel_progress", default=None)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Send the progress of every solve inside this block to `listener`."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def report(progress: Progress) -> None:
    """Tell the listener, if there is one."""
    listener = _listener.get()
    if listener is not None:
        listener(progress)
