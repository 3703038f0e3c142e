"""What guards cost: the share of a fit's time spent in each, for the fits of the speed table.

    python -m benchmarks.guards

A guard is code that no good fit would need: it keeps a bad one from being returned or believed. Fits of two versions of
the code, in processes of their own, differ by more than a guard costs: up to 20 % for fits of 20 ms, from one start of
the same code to the next. So the functions of each guard are timed inside the fits, in one process: exclusive of one
another, everything else that they call included. What runs in a second thread beside the solver (the null model of
large fits) counts with the processor time that it takes there: its time on the clock is mostly waiting for the solver.
"""

import importlib
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from unittest import mock

import numpy as np
from sklearn.model_selection import KFold

from benchmarks.goals import LEVELS, Row
from benchmarks.speed import lifted, on_ready_features
from quernel import KernelQuantileRegressor, KernelQuantileRegressorCV, paths
from quernel.data import ArrayRows, InMemoryDesign
from quernel.datasets import make_heteroscedastic, make_homoscedastic
from quernel.losses import Pinball
from quernel.objective import Problem

# Most of a fit that a guard may cost, and how often fits are repeated: for at least so many seconds.
GOAL = 0.02
SECONDS = 3.0

# Functions of each guard, by module. The null model also gives the scale of relative gaps, which every fit needs: all
# of its time counts here.
GUARDS = {
    "no fit worse than the null model": [
        ("quernel.objective.duality_gap", "null_model"),
        ("quernel.solvers.result", "or_null"),
    ],
    "rounding errors in the certificate": [
        ("quernel.objective.duality_gap", "_row_sizes"),
        ("quernel.objective.duality_gap", "bound_slopes"),
        ("quernel.objective.duality_gap", "bound_errors"),
    ],
    "centred targets and features": [
        ("quernel.estimators.solve", "_choose_centring"),
        ("quernel.estimators.solve", "_restore"),
        ("quernel.objective.problem", "Problem.storable_constants"),
        ("quernel.objective.problem", "Centring.round_intercept"),
    ],
    "finite numbers": [("quernel.objective.problem", "require_finite")],
    "predictions of a low-rank kernel recomputed": [("quernel.estimators.solve", "_prediction_error")],
    "threads of BLAS restored": [
        ("quernel._machine", "_BlasLimit.acquire"),
        ("quernel._machine", "_BlasLimit.release"),
    ],
}


class Stopwatch:
    """Seconds spent in each guard while its functions are replaced by timed ones (`with`)."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._inner: dict[int, list[float]] = defaultdict(lambda: [0.0])  # of each thread
        self._patches = ExitStack()

    def __enter__(self) -> "Stopwatch":
        for guard, functions in GUARDS.items():
            for module, name in functions:
                self._replace(guard, importlib.import_module(module), name)
        return self

    def __exit__(self, *error: object) -> None:
        self._patches.close()

    def _replace(self, guard: str, module: object, name: str) -> None:
        """Time a function wherever a module of the library has imported it, or a method."""
        owner, _, method = name.rpartition(".")
        if owner:
            holder = getattr(module, owner)
            self._patches.enter_context(mock.patch.object(holder, method, self._timed(guard, getattr(holder, method))))
            return
        function = getattr(module, name)
        timed = self._timed(guard, function)
        for other in _modules():
            if vars(other).get(name) is function:
                self._patches.enter_context(mock.patch.object(other, name, timed))

    def _timed(self, guard: str, function: Callable[..., object]) -> Callable[..., object]:
        def timed(*args: object, **kwargs: object) -> object:
            inner = self._inner[threading.get_ident()]
            clock = time.perf_counter if threading.current_thread() is threading.main_thread() else time.thread_time
            inner.append(0.0)
            start = clock()
            try:
                return function(*args, **kwargs)
            finally:
                whole = clock() - start
                self.seconds[guard] += whole - inner.pop()
                inner[-1] += whole

        return timed


def _modules() -> list:
    """All modules of the library that are loaded."""
    return [module for name, module in list(sys.modules.items()) if name.startswith("quernel")]


def _fits() -> Iterator[tuple[str, Callable[[], object]]]:
    """The fits of the speed table, each with its name, ready to run."""
    for n, M, alphas in ((200_000, 300, (1e-2, 1e-4, 1e-6)), (200_000, 1000, (1e-4,)), (2_000_000, 100, (1e-4,))):
        Phi, y = lifted(n, M)
        for alpha in alphas:
            yield f"n={n:,}, M={M}, level 0.1, alpha {alpha:g}", partial(on_ready_features, Phi, y, 0.1, alpha)
        del Phi
    Phi, y = lifted(10_000, 100)
    rows = InMemoryDesign(ArrayRows(Phi, y), features=Phi)
    problem = Problem(rows, Pinball(LEVELS), 1.0, fit_intercept=False)
    yield "23 alphas x 5 levels, n=10,000, M=100", partial(paths.solve, problem, 10.0 ** (np.arange(-20, 3) / 2))
    for n in (500, 5_000):
        X, y, _ = make_heteroscedastic(n, random_state=0)
        search = KernelQuantileRegressorCV(
            LEVELS, alphas=10.0 ** np.arange(-8, 0), bandwidths=[0.5, 1.0, 2.0], n_components=200, random_state=0,
            cv=list(KFold(5, shuffle=True, random_state=0).split(X)), recalibrate=False,
        )  # fmt: skip
        yield f"search, n={n:,}, M=200", partial(search.fit, X, y)
    for n in (2_000, 20_000):
        X, y, _ = make_homoscedastic(n, random_state=0)
        exact = KernelQuantileRegressor(0.5, bandwidth=1.0, n_components="exact", alpha=1e-4, recalibrate=False)
        yield f"exact kernel, n={n:,}", partial(exact.fit, X, y)
    for n, M in ((2_000, 500), (500_000, 100)):
        X, y, _ = make_homoscedastic(n, random_state=0)
        model = KernelQuantileRegressor(0.5, bandwidth="auto", n_components=M, random_state=0, recalibrate=False)
        yield f"automatic bandwidth and alpha, n={n:,}, M={M}", partial(model.fit, X, y)


def guard_shares() -> Iterator[Row]:
    """For each fit the guard that costs most, as a share of the fit's time."""
    for name, fit in _fits():
        fit()
        with Stopwatch() as stopwatch:
            start, repeats = time.perf_counter(), 0
            while repeats < 3 or time.perf_counter() - start < SECONDS:
                fit()
                repeats += 1
            whole = time.perf_counter() - start
        guard, seconds = max(stopwatch.seconds.items(), key=lambda item: item[1])
        share = seconds / whole
        yield {
            "what": f"costliest guard ({guard}), {name}", "ratio": share, "unit": "x the time",
            "goal": f"<= {GOAL:g}", "met": share <= GOAL, "ours": seconds / repeats, "baseline": whole / repeats,
        }  # fmt: skip


LINES = [guard_shares]


if __name__ == "__main__":
    for line in guard_shares():
        print(f"{line['what']:<100} {100 * line['ratio']:6.2f} %  goal {line['goal']}", flush=True)
