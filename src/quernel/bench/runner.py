"""Run each system in its own process, with a time limit and a fixed number of threads, and describe the machine.

The child process loads the system, fits the task and writes its `Outcome` as JSON to a file: see `main`.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from quernel import __version__
from quernel.bench.systems import Answer, System, Task

# Seconds per fit, data generation and repetitions included.
TIME_LIMIT = 60.0
# Environment variables that set the number of threads of BLAS, OpenMP, numba and polars.
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "POLARS_MAX_THREADS")
# Packages whose versions describe a machine.
PACKAGES = ("quernel", "numpy", "scipy", "scikit-learn", "numba")


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
        start = "from quernel.bench.runner import main; main()"
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


def count_cores() -> int:
    """Return the number of CPU cores available to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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
