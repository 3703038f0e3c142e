"""Each system in a process of its own: with a time limit, and with nothing to break but itself."""

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

TIME_LIMIT = 60.0
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "POLARS_MAX_THREADS")


@dataclass(frozen=True)
class Outcome:
    """What became of one system at one task.

    `status` is "done", "not installed", "timed out after 60 s" or "failed: ..."; all figures are None unless done.
    `objective` is F in quernel's convention, `loss` its first term, and `lower_bound` what no F can be below, from a
    system that certifies.
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
        """Whether there are figures."""
        return self.status == "done"


def run(system: str, task: Task, *, time_limit: float = TIME_LIMIT, threads: int | None = 1) -> Outcome:
    """The outcome of one system, given as "module:NAME"; `threads` None leaves their number to the system."""
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
    """Exit code, None if it was stopped, and what it wrote to stderr."""
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        _, said = process.communicate(timeout=time_limit)
    except subprocess.TimeoutExpired:
        _stop(process)
        return None, ""
    except BaseException:  # such as an impatient user
        _stop(process)
        raise
    return process.returncode, said


def _stop(process: subprocess.Popen[str]) -> None:
    """End a process and what it has started, such as R."""
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
    """A row for every system; the first certifies, and the others' objectives are held against its lower bound.

    `problem` says what the task is where its own words would not do, and `told` is called with each row.
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
    """A name for a system that could not tell its own."""
    from quernel.bench.child import load

    try:
        return load(system).name
    except Exception:  # an adapter that cannot even be imported
        return system
