"""Runs tasks in worker processes, each with its own seed, the longest first, and stores each result at once."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any

import numpy as np

from quernel.paper.experiment import NEWTON, Experiment, Row, Task
from quernel.paper.holdout_fit import record_gaps
from quernel.paper.results import Finished, Results, key

# Callback after every task: the experiment, the finished task, and its expected cost in seconds.
Listener = Callable[[Experiment, Finished, float], None]
# Tasks submitted per worker at a time: enough that no worker idles, few enough that Ctrl-C stops a run soon.
QUEUED_PER_WORKER = 2


def task_rng(seed: int, experiment: str, task: Task) -> np.random.Generator:
    """The random generator of one task, a function of (seed, experiment, task) alone.

    Results therefore depend neither on the number of workers nor on the order in which tasks run.
    """
    digest = hashlib.sha256(f"{experiment} {key(task)}".encode()).digest()
    return np.random.default_rng([seed, *np.frombuffer(digest[:16], dtype=np.uint32).tolist()])


def run(
    work: Sequence[tuple[Experiment, Results, list[Task]]],
    *,
    seed: int,
    jobs: int,
    data: dict[str, str],
    solver: str = NEWTON,
    listener: Listener = lambda experiment, done, cost: None,  # noqa: ARG005
) -> None:
    """Run all tasks that have no stored result, those of all experiments in one pool of worker processes.

    Parameters
    ----------
    work : sequence of (experiment, results, tasks)
    seed : int
    jobs : int
        Number of worker processes.
    data : dict
        Option name to path, for experiments that need a file.
    solver : str
        "newton" or "admm". The random numbers of a task do not depend on it, so that solvers see the same data.
    listener : callable
        Called after every task, in this process: see `Listener`.
    """
    pending = [
        (experiment, results, task)
        for experiment, results, tasks in work
        for task in tasks
        if key(task) not in results.finished
    ]
    # Longest first, so that no long task is left over at the end while other workers idle.
    pending.sort(key=lambda one: -one[0].cost(one[2]))
    if not pending:
        return
    workers = min(jobs, len(pending))
    context = multiprocessing.get_context("spawn")  # a fork would copy locks that other threads hold
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_init_worker) as pool:
        running: dict[Future[Finished], tuple[Experiment, Results]] = {}
        try:
            while pending or running:
                while pending and len(running) < QUEUED_PER_WORKER * workers:
                    experiment, results, task = pending.pop(0)
                    extra = {experiment.data: data[experiment.data]} if experiment.data else {}
                    extra |= {} if solver == NEWTON else {"solver": solver}
                    future = pool.submit(run_task, experiment.name, experiment.measure, seed, task, extra)
                    running[future] = (experiment, results)
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    experiment, results = running.pop(future)
                    finished = future.result()
                    results.add(finished)
                    listener(experiment, finished, experiment.cost(finished.task))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def run_task(
    name: str,
    measure: Callable[[Task, np.random.Generator], list[Row]],
    seed: int,
    task: Task,
    extra: dict[str, str],
) -> Finished:
    """Run one task in a worker: its rows as plain Python numbers (JSON keeps all digits) and its CPU time."""
    start = time.process_time()
    with record_gaps() as gaps:
        rows = measure({**task, **extra}, task_rng(seed, name, task))
    builtin_rows = [{column: _to_builtin(value) for column, value in row.items()} for row in rows]
    return Finished(task, time.process_time() - start, builtin_rows, gaps)


def _to_builtin(value: Any) -> Any:
    """NumPy scalar to Python number."""
    return value.item() if isinstance(value, np.generic) else value


def hash_content(path: Path) -> str:
    """Short hash of a file's content, or of all CSV files of a folder."""
    files = sorted(path.glob("*.csv")) if path.is_dir() else [path]
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _init_worker() -> None:
    """Limit BLAS to one thread, and make the worker exit when its parent dies."""
    import scipy.linalg  # noqa: F401  so that its BLAS is there to be limited
    from threadpoolctl import threadpool_limits

    threadpool_limits(1)
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    """Wait for the parent process to end, then exit: a parent that was killed cannot stop its workers."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
