"""How rows of files that pass by are told to whoever shows progress."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

# Streams run in threads, which do not inherit context variables: one listener for all of them.
_listeners: list[Callable[[float], None]] = []


@contextmanager
def watching(listener: Callable[[float], None]) -> Iterator[None]:
    """Tell `listener` how many rows have passed by, whenever some have, inside this block."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def passed(rows: float) -> None:
    """So many rows have passed by; targets alone count for a part of a row."""
    for listener in _listeners:
        listener(rows)
