"""Run each system in its own process, with a time limit and a fixed number of threads."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from quernel.bench.task import Task

# Seconds per fit, data generation and repetitions included.
TIME_LIMIT = 60.0
# Environment variables that set the number of threads of BLAS, OpenMP, numba and polars.
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "POLARS_MAX_THREADS")


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
        command = [sys.executable, "-m", "quernel.bench.child", system, json.dumps(asdict(task)), str(answer)]
        code, said = _run(command, environment, time_limit)
        if code is None:
            return Outcome(_name(system), str(task), f"timed out after {time_limit:g} s")
        if not answer.exists():
            last = (said.strip().splitlines() or [f"exit code {code}"])[-1]
            return Outcome(_name(system), str(task), f"failed: {last}")
        return Outcome(problem=str(task), **json.loads(answer.read_text()))


def _run(command: list[str], environment: dict[str, str], time_limit: float) -> tuple[int | None, str]:
    """Return the exit code, None after a timeout, and stderr."""
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        _, said = process.communicate(timeout=time_limit)
    except subprocess.TimeoutExpired:
        _stop(process)
        return None, ""
    except BaseException:  # such as KeyboardInterrupt
        _stop(process)
        raise
    return process.returncode, said


def _stop(process: subprocess.Popen[str]) -> None:
    """Kill a process and its children, such as R."""
    if hasattr(os, "killpg"):
        os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    process.communicate()


def beside(
    systems: Iterable[str],
    task: Task,
    *,
    time_limit: float = TIME_LIMIT,
    threads: int | None = 1,
    problem: str | None = None,
    told: Callable[[dict[str, Any]], None] | None = None,
) -> list[dict[str, Any]]:
    """Run several systems on a task and return one row each, with its excess over the first one's lower bound.

    excess = F / lower_bound - 1; the first system must provide a duality gap. `problem` replaces the description of the
    task, and `told` is a callback that receives each row as soon as it is there.
    """
    rows: list[dict[str, Any]] = []
    for system in systems:
        outcome = run(system, task, time_limit=time_limit, threads=threads)
        rows.append(asdict(outcome) | {"problem": problem or str(task), "excess": None})
        bound = rows[0]["lower_bound"]
        if outcome.objective is not None and bound is not None:
            rows[-1]["excess"] = outcome.objective / bound - 1
        if told is not None:
            told(rows[-1])
    return rows


def _name(system: str) -> str:
    """Return the display name of a system, or its "module:NAME" if it cannot be imported."""
    from quernel.bench.child import load

    try:
        return load(system).name
    except Exception:  # an adapter that cannot even be imported
        return system
