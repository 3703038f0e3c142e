"""A solve that is stopped, at whatever step, returns a certified fit that is no worse than the best constant."""

import os
import signal
import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest

from quernel import paths
from quernel._machine import parallel_map, submit
from quernel.data import ArrayRows, InMemoryDesign
from quernel.data.sources import MemmapRows
from quernel.data.streaming import StreamedDesign
from quernel.features import RandomFeatures
from quernel.kernels import Gaussian
from quernel.losses import Hinge, Logistic, Pinball, Squared
from quernel.objective import Problem
from quernel.solvers import Status, admm, multinomial, newton, noncrossing, progress
from quernel.solvers import screening as driver
from quernel.solvers.progress import Progress, Stop, listening, report, stop_requested, stopping

LEVELS, TWO = Pinball(np.array([0.1, 0.5, 0.9])), Pinball(np.array([0.1, 0.5]))
EPS = 1e-11


class StopAtCheck(Stop):
    """Requests a stop when it is asked for the k-th time."""

    def __init__(self, k):
        super().__init__()
        self.k, self.checks = k, 0

    @property
    def reason(self):
        self.checks += 1
        return "callback" if self.checks >= self.k else None


@contextmanager
def stopped_at(k):
    stop = StopAtCheck(k)
    token = progress._stop.set(stop)
    try:
        yield stop
    finally:
        progress._stop.reset(token)


def data(n, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(size=(n, 2))
    return X, np.sin(4 * X.sum(axis=1)) + (0.3 + X[:, 0]) * rng.standard_normal(n)


def feature_map(M):
    return RandomFeatures(kernel=Gaussian(0.8), n_components=M, random_state=0).fit(np.zeros((1, 2)))


def in_memory(n, M, loss, alpha, target=None, **kwargs):
    X, y = data(n)
    rows = InMemoryDesign(ArrayRows(X, y if target is None else target(y)), feature_map(M))
    return Problem(rows, loss, alpha, **kwargs)


def streamed(n, M, loss, alpha):
    X, y = data(n)
    rows = StreamedDesign(MemmapRows(X, y), feature_map(M), total=n, largest=1.0, max_memory=5_000_000)
    return Problem(rows, loss, alpha)


def three_classes(y):
    return np.where(np.digitize(y, [-0.5, 0.7])[:, None] == np.arange(3), 1.0, -1.0)


def solve_path(problem, *, tol):
    """A path, as one result with a column per pair; its null model is that of the problem itself."""
    grid = paths.solve(problem, [1e-2, 1e-4], tol=tol)
    null = np.broadcast_to(driver.null_model(problem).objective, grid.objective.shape)
    return _Grid(grid.objective, grid.gap, grid.relative_gap, null)


class _Grid:
    def __init__(self, objective, gap, relative_gap, null_objective):
        self.objective, self.gap = objective.ravel(), gap.ravel()
        self.relative_gap, self.null_objective = relative_gap.ravel(), null_objective.ravel()
        self.status = [None] * len(self.gap)


BIG, SMALL = (40_000, 60), (400, 30)
CASES = {
    "newton": (newton.solve, lambda: in_memory(*SMALL, LEVELS, 1e-4)),
    "newton, no intercept": (newton.solve, lambda: in_memory(*SMALL, LEVELS, 1e-4, fit_intercept=False)),
    "newton, logistic": (newton.solve, lambda: in_memory(*SMALL, Logistic(), 1e-3, np.sign)),
    "small": (driver.solve, lambda: in_memory(*SMALL, LEVELS, 1e-4)),
    "screened": (driver.solve, lambda: in_memory(*BIG, TWO, 1e-4)),
    "screened, interpolating": (driver.solve, lambda: in_memory(*BIG, TWO, 1e-9, fit_intercept=False)),
    "screened hinge": (driver.solve, lambda: in_memory(*BIG, Hinge(), 1e-4, np.sign)),
    "squared": (driver.solve, lambda: in_memory(*BIG, Squared(), 1e-4)),
    "logistic": (driver.solve, lambda: in_memory(*BIG, Logistic(), 1e-4, np.sign)),
    "joint levels": (noncrossing.solve, lambda: in_memory(200, 30, Pinball(np.arange(1, 6) / 6), 1e-6)),
    "multinomial": (
        multinomial.solve, lambda: in_memory(*SMALL, Logistic().take(np.zeros(3, dtype=int)), 1e-3, three_classes),
    ),
    "admm": (admm.solve, lambda: in_memory(*SMALL, LEVELS, 1e-2)),
    "streamed": (driver.solve, lambda: streamed(*BIG, Pinball(np.array([0.2])), 1e-4)),
    "streamed squared": (driver.solve, lambda: streamed(*BIG, Squared(), 1e-4)),
    "path": (solve_path, lambda: in_memory(*SMALL, LEVELS, 1.0)),
    "path, screened": (solve_path, lambda: in_memory(*BIG, Pinball(np.array([0.3])), 1.0)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_whenever_it_is_stopped_the_gap_is_true_and_the_constant_is_not_better(name):
    solve, problem = CASES[name][0], CASES[name][1]()
    tol = 1e-3 if name == "admm" else 1e-6
    with stopped_at(np.inf) as never:
        whole = solve(problem, tol=tol)
    assert never.checks > 2
    assert np.all(whole.relative_gap <= tol)
    stopped, scale = [], whole.null_objective
    for k in range(1, never.checks + 1):
        with stopped_at(k):
            result = solve(problem, tol=tol)
        if name == "joint levels":  # one problem, whose objective is the sum
            short, gap = np.sum(result.objective - whole.objective), result.gap.sum() + whole.gap.sum()
            assert result.objective.sum() <= scale.sum() * (1 + EPS)
        else:
            short, gap = result.objective - whole.objective, result.gap
            assert np.all(result.objective <= scale * (1 + EPS))
        assert np.all(short <= gap + EPS * scale.sum())  # objective - min F <= gap
        assert np.all(np.isfinite(result.gap))
        for gap, status in zip(result.relative_gap, result.status, strict=True):
            assert status in (None, Status.CONVERGED if gap <= tol else Status.STOPPED)
        stopped.append(float(result.relative_gap.max()))
    assert max(stopped) > tol, "no stop came before the end"
    assert stopped[-1] <= max(stopped)


@pytest.mark.parametrize("name", ["newton", "screened", "squared"])
def test_a_later_stop_is_nearer_to_the_optimum(name):
    """Not step by step, but a stop after half of the checks is better than one at the first."""
    solve, problem = CASES[name][0], CASES[name][1]()
    with stopped_at(np.inf) as never:
        solve(problem)
    results = []
    for k in (1, never.checks // 2, never.checks - 2):
        with stopped_at(k):
            results.append(solve(problem))
    assert results[0].objective.sum() > results[1].objective.sum() >= results[2].objective.sum() * (1 - 1e-9)


def test_a_listener_stops_the_solve():
    heard = []

    def second(state):
        heard.append(state)
        return len(heard) == 2

    problem = in_memory(*BIG, LEVELS, 1e-4)
    with listening(second):
        assert driver.solve(problem).status == (Status.STOPPED,) * 3
    assert driver.solve(problem).converged
    with stopping() as stop, listening(lambda _: True):
        newton.solve(in_memory(*SMALL, LEVELS, 1e-4))
    assert stop.reason == "callback"


def test_the_time_limit():
    assert not stop_requested()
    with stopping(0.05) as stop:
        assert not stop_requested()
        assert stop.reason is None
        time.sleep(0.06)
        assert stop_requested()
        assert stop_requested()
    assert stop.reason == "time limit"
    assert not stop_requested()
    with stopping(0.05) as stop:
        pass
    time.sleep(0.06)
    assert stop.reason is None, "a limit that passes after the block is none"


def test_an_inner_block_stops_with_the_outer_one():
    with stopping(0.0) as outer, stopping(100.0) as inner:
        assert stop_requested()
    assert outer.reason == inner.reason == "time limit"
    with stopping(100.0) as outer:
        with stopping(0.0):
            assert stop_requested()
        assert not stop_requested()
    assert outer.reason is None


def test_the_first_interrupt_stops_and_the_second_raises():
    before = signal.getsignal(signal.SIGINT)
    with stopping(interruptible=True) as outer:
        with stopping(interruptible=True) as inner:
            os.kill(os.getpid(), signal.SIGINT)
            assert stop_requested()
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)
        assert stop_requested()
    assert outer.reason == inner.reason == "interrupt"
    assert signal.getsignal(signal.SIGINT) is before
    with pytest.raises(ZeroDivisionError), stopping(interruptible=True):
        _ = 1 / 0
    assert signal.getsignal(signal.SIGINT) is before
    with pytest.raises(KeyboardInterrupt), stopping(10.0):  # not interruptible
        os.kill(os.getpid(), signal.SIGINT)


def test_other_threads_are_not_interruptible_and_not_stopped():
    seen = []

    def other():
        with stopping(interruptible=True) as stop:
            seen.append((stop_requested(), stop.reason))

    with stopping(0.0):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert seen == [(False, None)]


def test_the_pool_sees_the_request_of_its_caller():
    with stopping(0.0):
        assert parallel_map(lambda _: (time.sleep(0.01), stop_requested())[1], range(8), 2) == [True] * 8
        assert submit(stop_requested, threads=2)()
    assert parallel_map(lambda _: (time.sleep(0.01), stop_requested())[1], range(8), 2) == [False] * 8


def test_nobody_listens():
    report(Progress(1, 1, 0.1))
    assert not stop_requested()
