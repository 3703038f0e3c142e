"""What a solve tells its caller, and how the caller stops it: progress reports, time limits and Ctrl-C.

- `listening`       sends the progress of every solve inside it to a listener, such as a progress bar;
- `staged`          says of which stages a fit consists: reports then have the share that is done and the time left;
- `stopping`        limits the time of every solve inside it, or lets Ctrl-C end it;
- `stop_requested`  is what solvers ask between steps. Once it is true, they return their best certified iterate.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, replace
from math import exp
from types import FrameType

from quernel.data.sources import Pass, watching

# Typical number of passes over rows of files: to summarise them, to draw a sample, and to screen and check all of them
# once or twice.
USUAL_PASSES = 5
# Steps of a solver that bring nothing new are reported if nothing else was for so many seconds.
SILENCE = 2.0
# The stage in which the solver reports of its own; solves in others, such as of a search, are only signs of life.
SOLVING = "solving"
# How little the first stages say about the pace of the rest: as if this share of all had taken what was expected.
PRIOR_SHARE = 0.25


@dataclass(frozen=True)
class Progress:
    """Progress of a solve: iterations, unconverged columns, and the worst relative gap (inf before the first).

    While rows are read from files, `sweep` is the number of the present pass over them (otherwise 0), `done` the share
    of its rows that were read, and `left` the estimated seconds until the typical number of passes is complete.

    A fit of several stages says what it is doing, `stage`; `done` is the share of its time that has usually passed
    then, which only increases, and `left` the estimated seconds until its end. `columns` is 0 where no solver reports.
    """

    iteration: int
    columns: int
    gap: float
    sweep: int = 0
    done: float = 0.0
    left: float | None = None
    stage: str = ""


class Stop:
    """Whether the solves of a `stopping` block shall end, and why.

    Parameters
    ----------
    max_seconds : float or None
        Time limit, counted from now.
    outer : Stop or None
        That of the enclosing block: its request is also one to this block.

    Attributes
    ----------
    reason : "time limit", "interrupt" (Ctrl-C), "callback" (a listener returned True) or None
        Why a stop was requested; None as long as none was.
    """

    def __init__(self, max_seconds: float | None = None, outer: Stop | None = None) -> None:
        self._deadline = float("inf") if max_seconds is None else time.monotonic() + max_seconds
        self._reason: str | None = None
        self._outer = outer
        self.interruptible: bool = outer is not None and outer.interruptible

    def request(self, reason: str) -> None:
        """Ask for a stop; the first reason stays."""
        self._reason = self._reason or reason

    @property
    def reason(self) -> str | None:
        """Why a stop was requested; a time limit that passes is noted here, when somebody asks."""
        if self._reason is None and time.monotonic() >= self._deadline:
            self._reason = "time limit"
        return self._reason or (None if self._outer is None else self._outer.reason)

    def close(self) -> None:
        """End the block: what happens later changes the reason no more."""
        self._reason, self._deadline, self._outer = self.reason, float("inf"), None


# Of this thread; `_machine` hands it on to the pool's.
_stop: ContextVar[Stop | None] = ContextVar("quernel_stop", default=None)


def stop_requested() -> bool:
    """Whether an enclosing `stopping` block is out of time or was interrupted, or a listener has asked for a stop."""
    stop = _stop.get()
    return stop is not None and stop.reason is not None


@contextmanager
def stopping(max_seconds: float | None = None, *, interruptible: bool = False) -> Iterator[Stop]:
    """End the solves inside this block after a time limit or on Ctrl-C, at their best certified iterates.

    Parameters
    ----------
    max_seconds : float or None
        Seconds from the beginning of the block after which `stop_requested()` is true.
    interruptible : bool
        Whether the first SIGINT (Ctrl-C) requests a stop; the second raises KeyboardInterrupt. Only the main thread
        receives signals: in other threads this has no effect.

    Yields
    ------
    Stop
        Its `reason` tells afterwards whether, and why, a stop was requested.
    """
    stop = Stop(max_seconds, _stop.get())
    token = _stop.set(stop)
    try:
        with _interrupts(stop) if interruptible and not stop.interruptible else nullcontext():
            yield stop
    finally:
        try:  # an interrupt in between must not leave this block in force for later fits
            stop.close()
        finally:
            _stop.reset(token)


@contextmanager
def _interrupts(stop: Stop) -> Iterator[None]:
    """Turn the first SIGINT of this block into a request to stop."""

    interrupted = False

    def handle(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        nonlocal interrupted
        if interrupted:
            raise KeyboardInterrupt
        interrupted = True
        stop.request("interrupt")

    previous = signal.getsignal(signal.SIGINT) if threading.current_thread() is threading.main_thread() else None
    if previous in (None, signal.SIG_IGN):  # set outside Python, so that it could not be restored; or ignored
        yield
        return
    stop.interruptible = True
    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


# Returns True to ask for a stop.
Listener = Callable[[Progress], bool | None]
_listener: ContextVar[_Sweeps | None] = ContextVar("quernel_progress", default=None)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Send the progress of every solve inside this block to `listener`, which may return True to stop them.

    The request is to the enclosing `stopping` block or, where there is none, to this one.
    """
    stop = _stop.get() or Stop()
    sweeps = _Sweeps(listener, stop)
    token, stop_token = _listener.set(sweeps), _stop.set(stop)
    try:
        with watching(sweeps.see):
            yield
    finally:
        _listener.reset(token)
        _stop.reset(stop_token)


def report(progress: Progress) -> None:
    """Send a report to the listener, if there is one."""
    listener, stages = _listener.get(), _stages.get()
    if listener is None:
        return
    if stages is None:
        listener.hear(progress)
    elif stages.is_solving or listener.silence() >= SILENCE:
        listener.hear(stages.locate(progress))


def report_step(progress: Progress) -> None:
    """Send a report that brings nothing new, if there was none for a while: a sign of life."""
    listener = _listener.get()
    if listener is not None and listener.silence() >= SILENCE:
        report(progress)


def share_done(elapsed: float, expected: float) -> float:
    """Share that is done of work that was expected to take so long; increases, and never reaches 1.

    The first half is taken at its word. After that the rest shrinks exponentially, as the work may well take longer.
    """
    part = elapsed / expected if expected > 0 else float("inf")
    return part if part <= 0.5 else 1 - 0.5 * exp(1 - 2 * part)


class Stages:
    """Where a fit of several stages is; `seconds` are those that each is expected to take, in this order."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self.seconds, self._total = seconds, sum(seconds.values())
        self._stage, self._pace = "", 1.0
        self._start = self._entered = time.monotonic()

    def enter(self, stage: str) -> None:
        """Begin with this stage. Its pace is how much longer than expected those before it took."""
        self._stage, self._entered = stage, time.monotonic()
        prior = PRIOR_SHARE * self._total
        self._pace = (self._entered - self._start + prior) / (self._before() + prior) if prior > 0 else 1.0

    @property
    def is_solving(self) -> bool:
        """Whether the solver's reports are those of the fit, not of a search."""
        return self._stage == SOLVING

    def locate(self, progress: Progress) -> Progress:
        """The report with the present stage, the share that is done and the seconds left."""
        if not self._stage:
            return progress
        own = self.seconds[self._stage]
        part = share_done(time.monotonic() - self._entered, self._pace * own)
        rest = self._total - self._before() - part * own
        shown = progress if self.is_solving else Progress(0, 0, float("inf"))
        return replace(shown, stage=self._stage, done=1 - rest / (self._total or 1.0), left=self._pace * rest)

    def _before(self) -> float:
        """Seconds that the stages before the present one were expected to take."""
        order = list(self.seconds)
        return sum(self.seconds[one] for one in order[: order.index(self._stage)])


_stages: ContextVar[Stages | None] = ContextVar("quernel_stages", default=None)


@contextmanager
def staged(estimate: Callable[[], dict[str, float]]) -> Iterator[None]:
    """Have all reports inside this block say how far a fit of these stages is; they begin by `enter_stage`.

    `estimate` gives the stages in their order, with the seconds each is expected to take. It is asked only if somebody
    listens and no stages are known yet: a fit inside another one is a part of its stage.
    """
    if _listener.get() is None or _stages.get() is not None:
        yield
        return
    token = _stages.set(Stages(estimate()))
    try:
        yield
    finally:
        _stages.reset(token)


def enter_stage(stage: str) -> None:
    """Begin with a stage of the enclosing `staged` block, if it has one of this name."""
    stages, listener = _stages.get(), _listener.get()
    if stages is not None and listener is not None and stage in stages.seconds:
        stages.enter(stage)
        listener.hear(stages.locate(Progress(0, 0, float("inf"))))


class _Sweeps:
    """Adds the state of the present pass over the rows to the solver's last report."""

    def __init__(self, listener: Listener, stop: Stop) -> None:
        self._listener, self._stop, self._last = listener, stop, Progress(0, 0, float("inf"))
        self._sweep, self._over, self._longest = 0, True, 0.0
        self._heard = time.monotonic()

    def silence(self) -> float:
        """Seconds since the last report."""
        return time.monotonic() - self._heard

    def hear(self, progress: Progress) -> None:
        """A report of the solver."""
        self._last = progress
        self._send(progress)

    def see(self, state: Pass) -> None:
        """A report of the present pass over the rows."""
        self._sweep += self._over
        self._over = state.done >= state.n_rows
        whole = state.seconds * state.n_rows / state.done
        self._longest = max(self._longest, whole)
        left = whole - state.seconds + self._longest * max(USUAL_PASSES - self._sweep, 0)
        share = state.done / state.n_rows
        self._send(replace(self._last, sweep=self._sweep, done=share, left=left))

    def _send(self, progress: Progress) -> None:
        """Call the listener, and pass on its request to stop."""
        self._heard = time.monotonic()
        if self._listener(progress) is True:
            self._stop.request("callback")
