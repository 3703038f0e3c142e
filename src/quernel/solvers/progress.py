"""Progress reports of solvers to a listener, such as a progress bar."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace

from quernel.data.progress import Pass, watching

# Typical number of passes over rows of files: to summarise them, to draw a sample, and to screen and check all of them
# once or twice.
USUAL_PASSES = 5


@dataclass(frozen=True)
class Progress:
    """Progress of a solve: iterations, unconverged columns, and the worst relative gap (inf before the first).

    While rows are read from files, `sweep` is the number of the present pass over them (otherwise 0), `done` the share
    of its rows that were read, and `left` the estimated seconds until the typical number of passes is complete.
    """

    iteration: int
    columns: int
    gap: float
    sweep: int = 0
    done: float = 0.0
    left: float | None = None


Listener = Callable[[Progress], None]
_listener: ContextVar[Listener | None] = ContextVar("quernel_progress", default=None)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Send the progress of every solve inside this block to `listener`."""
    sweeps = _Sweeps(listener)
    token = _listener.set(sweeps.hear)
    try:
        with watching(sweeps.see):
            yield
    finally:
        _listener.reset(token)


def report(progress: Progress) -> None:
    """Send a report to the listener, if there is one."""
    listener = _listener.get()
    if listener is not None:
        listener(progress)


class _Sweeps:
    """Adds the state of the present pass over the rows to the solver's last report."""

    def __init__(self, listener: Listener) -> None:
        self._listener, self._last = listener, Progress(0, 0, float("inf"))
        self._sweep, self._over, self._longest = 0, True, 0.0

    def hear(self, progress: Progress) -> None:
        """A report of the solver."""
        self._last = progress
        self._listener(progress)

    def see(self, state: Pass) -> None:
        """A report of the present pass over the rows."""
        self._sweep += self._over
        self._over = state.done >= state.n_rows
        whole = state.seconds * state.n_rows / state.done
        self._longest = max(self._longest, whole)
        left = whole - state.seconds + self._longest * max(USUAL_PASSES - self._sweep, 0)
        share = state.done / state.n_rows
        self._listener(replace(self._last, sweep=self._sweep, done=share, left=left))
