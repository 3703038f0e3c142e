"""Benchmarks of quernel and other systems: common tasks, one adapter per system, one objective to compare them by.

Whatever objective a system minimizes itself, its answer is scored by

    F = mean pinball loss of y - fitted  +  alpha u'u        (u'u = a'Ka where it works with the kernel itself)

which is computed from its fitted values and its penalty. Differences in scaling are converted in the adapters only;
those without extra dependencies are here: quernel, ridge, linear programs.

Each system runs in its own process, with a time limit and a fixed number of threads. The child process loads the
system, fits the task and writes its `Outcome` as JSON to a file: see `main`.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quernel import __version__
from quernel._machine import count_cores
from quernel.datasets import Simulation, make_homoscedastic
from quernel.estimators import KernelQuantileRegressor
from quernel.features import RandomFeatures
from quernel.kernels import Gaussian
from quernel.metrics import pinball_loss

__all__ = ["Answer", "Outcome", "System", "Task", "compare", "count_cores", "describe_machine", "run", "time_best"]

Array = NDArray[np.floating]

# A fit is not repeated once its runs took this many seconds in total.
LONG = 10.0
# Seconds per fit, data generation and repetitions included.
TIME_LIMIT = 60.0
# Environment variables that set the number of threads of BLAS, OpenMP, numba and polars.
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "POLARS_MAX_THREADS")
# Packages whose versions describe a machine.
PACKAGES = ("quernel", "numpy", "scipy", "scikit-learn", "numba")


# Tasks and systems


@dataclass(frozen=True)
class Task:
    """One fit to time: X uniform on [0,1]^3, the homoscedastic simulation, a Gaussian kernel.

    Parameters
    ----------
    n : int
        Number of rows.
    level, alpha : float
        Quantile level, and ridge weight in quernel's scaling.
    M : int or None
        Number of precomputed random `features`; None for the exact kernel.
    bandwidth : float
        Of the Gaussian kernel.
    fit_intercept : bool
        Whether there is an unpenalized intercept.
    repeats : int
        How often a fit is timed; the best counts.
    """

    n: int
    level: float
    alpha: float
    M: int | None = None
    bandwidth: float = 1.0
    fit_intercept: bool = False
    repeats: int = 3

    def __str__(self) -> str:
        features = "exact kernel" if self.M is None else f"M={self.M}"
        width = "" if self.bandwidth == 1 else f", bandwidth {self.bandwidth:g}"
        intercept = ", intercept" if self.fit_intercept else ""
        return f"n={self.n:,}, {features}, level {self.level:g}, alpha {self.alpha:g}{width}{intercept}"

    @cached_property
    def _data(self) -> Simulation:
        return make_homoscedastic(self.n, random_state=0)

    @property
    def X(self) -> Array:
        """Inputs, (n, 3)."""
        return self._data.X

    @property
    def y(self) -> Array:
        """Target, (n,)."""
        return self._data.y

    @cached_property
    def features(self) -> Array:
        """Random features Phi, (n, M)."""
        assert self.M is not None
        return RandomFeatures(Gaussian(self.bandwidth), self.M, random_state=0).fit(self.X).transform(self.X)

    @cached_property
    def design(self) -> Array:
        """Design matrix: Phi, with a column of ones if there is an intercept."""
        return np.column_stack([self.features, np.ones(self.n)]) if self.fit_intercept else self.features

    def prepare(self) -> None:
        """Generate the data before the clock starts."""
        _ = self.y if self.M is None else self.design

    def gram(self) -> Array:
        """Kernel matrix K, (n, n)."""
        return Gaussian(self.bandwidth).gram(self.X, self.X)

    def objective(self, fitted: Array, penalty: float) -> float:
        """Objective F, from fitted values (n,) and penalty u'u."""
        return float(pinball_loss(self.y, fitted, self.level)) + self.alpha * penalty

    def null_objective(self) -> float:
        """Objective F0 of the null model: the best constant, or 0 without an intercept."""
        constant = np.quantile(self.y, self.level) if self.fit_intercept else 0.0
        return self.objective(np.full(self.n, constant), 0.0)

    def make_answer(self, seconds: float, coef: Array, intercept: float = 0.0, note: str = "") -> Answer:
        """The answer of a system with these coefficients of the features."""
        return Answer(seconds, self.features @ coef + intercept, float(coef @ coef), note=note)


@dataclass(frozen=True, eq=False)
class Answer:
    """The result of one system on a task.

    Attributes
    ----------
    seconds : float
        Time of a fit, the best of several.
    fitted : ndarray of shape (n,) or None
        Fitted values; None for a system with another loss.
    penalty : float or None
        u'u, likewise.
    gap : float or None
        Relative duality gap, from a system that certifies one.
    note, version : str
        A remark for the table, and the version where the package metadata has none.
    """

    seconds: float
    fitted: Array | None = None
    penalty: float | None = None
    gap: float | None = None
    note: str = ""
    version: str = ""


@dataclass(frozen=True)
class System:
    """A system under benchmark: display name, package, and a function that fits a task."""

    name: str
    package: str
    fit: Callable[[Task], Answer]


def time_best(function: Callable[[], Any], repeats: int = 3) -> tuple[float, Any]:
    """Time a function: the shortest of several runs in seconds, and its last result; runs stop after LONG seconds."""
    runs: list[float] = []
    while len(runs) < repeats and sum(runs) < LONG:
        start = time.perf_counter()
        answer = function()
        runs.append(time.perf_counter() - start)
    return min(runs), answer


def _quernel(task: Task) -> Answer:
    params: dict[str, Any] = {"alpha": task.alpha, "fit_intercept": task.fit_intercept, "recalibrate": False}
    params |= {"bandwidth": task.bandwidth, "n_components": "exact"} if task.M is None else {"kernel": "linear"}
    model, X = KernelQuantileRegressor(task.level, **params), task.X if task.M is None else task.features
    seconds, model = time_best(lambda: model.fit(X, task.y), task.repeats)
    penalty = float(np.sum(model.coef_**2))
    return Answer(seconds, model.predict(X), penalty, gap=float(model.duality_gap_[0]), note="certified")


def _ridge(task: Task) -> Answer:
    """Least squares on the same features by the normal equations, as a reference for speed."""

    def solve() -> np.ndarray:
        gram = task.features.T @ task.features / task.n
        gram.flat[:: len(gram) + 1] += task.alpha
        return np.linalg.solve(gram, task.features.T @ task.y / task.n)

    seconds, _ = time_best(solve, task.repeats)
    return Answer(seconds, note="another loss: squares")


def _quantile_regressor(solver: str, task: Task) -> Answer:
    """Solve without a penalty, as scikit-learn's is the L1 norm."""
    from sklearn.linear_model import QuantileRegressor  # here, because importing it takes long

    model = QuantileRegressor(quantile=task.level, alpha=0, solver=solver, fit_intercept=task.fit_intercept)
    seconds, model = time_best(lambda: model.fit(task.features, task.y), task.repeats)
    return task.make_answer(seconds, model.coef_, model.intercept_, "solves alpha = 0")


QUERNEL = System("quernel", "quernel", _quernel)
RIDGE = System("ridge, normal equations", "numpy", _ridge)
HIGHS = System("scikit-learn QuantileRegressor, highs", "scikit-learn", partial(_quantile_regressor, "highs"))
HIGHS_IPM = System(
    "scikit-learn QuantileRegressor, highs-ipm", "scikit-learn", partial(_quantile_regressor, "highs-ipm")
)


# Processes


@dataclass(frozen=True)
class Outcome:
    """The outcome of one system on one task.

    `status` is "done", "not installed", "timed out after 60 s" or "failed: ..."; all numbers are None unless done.
    `objective` is F in quernel's scaling, `loss` its loss term, and `lower_bound` a certified bound on the minimum of
    F, from systems that provide a duality gap.
    """

    system: str
    problem: str
    status: str
    version: str = ""
    seconds: float | None = None
    objective: float | None = None
    loss: float | None = None
    lower_bound: float | None = None
    note: str = ""

    @property
    def done(self) -> bool:
        """Whether the fit succeeded."""
        return self.status == "done"


def run(system: str, task: Task, *, time_limit: float = TIME_LIMIT, threads: int | None = 1) -> Outcome:
    """Run one system, given as "module:NAME", on a task; `threads=None` leaves their number to the system."""
    environment = dict(os.environ) | ({name: str(threads) for name in THREADS} if threads else {})
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        start = "from quernel.bench import main; main()"
        command = [sys.executable, "-c", start, system, json.dumps(asdict(task)), str(answer)]
        code, stderr = _run_process(command, environment, time_limit)
        if code is None:
            return Outcome(_display_name(system), str(task), f"timed out after {time_limit:g} s")
        if not answer.exists():
            last = (stderr.strip().splitlines() or [f"exit code {code}"])[-1]
            return Outcome(_display_name(system), str(task), f"failed: {last}")
        return Outcome(problem=str(task), **json.loads(answer.read_text()))


def _run_process(command: list[str], environment: dict[str, str], time_limit: float) -> tuple[int | None, str]:
    """Return the exit code, None after a timeout, and stderr."""
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        _, stderr = process.communicate(timeout=time_limit)
    except subprocess.TimeoutExpired:
        _kill(process)
        return None, ""
    except BaseException:  # such as KeyboardInterrupt
        _kill(process)
        raise
    return process.returncode, stderr


def _kill(process: subprocess.Popen[str]) -> None:
    """Kill a process and its children, such as R."""
    if hasattr(os, "killpg"):
        os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    process.communicate()


def compare(
    systems: Iterable[str],
    task: Task,
    *,
    time_limit: float = TIME_LIMIT,
    problem: str | None = None,
    callback: Callable[[dict[str, Any]], None] | None = None,
) -> list[dict[str, Any]]:
    """Run several systems on a task, one thread each, and return one row each, with its excess over the lower bound.

    excess = F / lower_bound - 1, where the bound is the first system's, which must provide a duality gap. `problem`
    replaces the description of the task, and `callback` receives each row as soon as it is there.
    """
    rows: list[dict[str, Any]] = []
    for system in systems:
        outcome = run(system, task, time_limit=time_limit)
        rows.append(asdict(outcome) | {"problem": problem or str(task), "excess": None})
        bound = rows[0]["lower_bound"]
        if outcome.objective is not None and bound is not None:
            rows[-1]["excess"] = outcome.objective / bound - 1
        if callback is not None:
            callback(rows[-1])
    return rows


def load_system(name: str) -> System:
    """Import the system given as "module:NAME"."""
    module, attribute = name.split(":")
    return getattr(import_module(module), attribute)


def _display_name(system: str) -> str:
    """Return the display name of a system, or its "module:NAME" if it cannot be imported."""
    try:
        return load_system(system).name
    except Exception:  # an adapter that cannot even be imported
        return system


def main() -> None:
    """In the child process: fit the task of the command line, `module:NAME task answer`, and write the outcome."""
    system, task, answer = sys.argv[1:]
    warnings.simplefilter("ignore")
    Path(answer).write_text(json.dumps(fit_and_score(load_system(system), Task(**json.loads(task)))))


def fit_and_score(system: System, task: Task) -> dict[str, Any]:
    """Fit the task and return the fields of an `Outcome` as plain values; exceptions become a status."""
    task.prepare()
    try:
        answer = system.fit(task)
    except ImportError:
        return {"system": system.name, "status": "not installed"}
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        return {"system": system.name, "status": f"failed: {lines[-1]}"}
    return {
        "system": system.name,
        "status": "done",
        "version": answer.version or get_version(system.package),
        "seconds": answer.seconds,
        "note": answer.note,
    } | _score(task, answer)


def _score(task: Task, answer: Answer) -> dict[str, float]:
    """Return the objective F in quernel's scaling, its loss term and, given a duality gap, a lower bound on F."""
    if answer.fitted is None or answer.penalty is None:
        return {}
    objective, loss = task.objective(answer.fitted, answer.penalty), task.objective(answer.fitted, 0.0)
    if answer.gap is None:
        return {"objective": objective, "loss": loss}
    # A relative gap is one of max(F, F0 / 1000), so that it stays meaningful where the fit is nearly perfect.
    gap = answer.gap * max(objective, task.null_objective() / 1000)
    return {"objective": objective, "loss": loss, "lower_bound": objective - gap}


def describe_machine() -> dict[str, str]:
    """Return processor, memory, Python version and relevant package versions."""
    return {
        "processor": f"{_processor()}, {count_cores()} cores",
        "memory": _memory(),
        "python": platform.python_version(),
        "packages": ", ".join(f"{name} {get_version(name)}" for name in PACKAGES),
    }


def get_version(package: str) -> str:
    """Return the version of an installed package, "?" if there is none."""
    if package == "quernel":  # also when running from source
        return __version__
    try:
        return version(package)
    except PackageNotFoundError:
        return "?"


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    names = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [line.split(":", 1)[1].strip() for line in names if "model name" in line]
    return models[0] if models else platform.processor() or "unknown processor"


def _memory() -> str:
    try:
        return f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.0f} GiB"
    except (AttributeError, ValueError, OSError):
        return "unknown memory"
