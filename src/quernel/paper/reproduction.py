"""A whole reproduction in one folder: stored results, tidy tables, figures, the HTML page, and a summary to commit.

results/<experiment>/   finished tasks as JSON lines (`tasks.jsonl`), and what identifies the run (`stamp.json`)
rows/<experiment>.parquet   all measurements as one tidy table
figures/, tables/, index.html   what the experiments present

Tasks run in worker processes, each with its own seed, the longest first, and each result is stored at once, so that a
run that is killed resumes where it stopped.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from quernel import __version__
from quernel._files import write_text_atomically
from quernel.paper.experiment import NEWTON, Experiment, Row, Size, Table, Task
from quernel.paper.holdout_fit import OPTIONS, GapStats, merge_gap_stats, record_gaps
from quernel.paper.output import Chapter, OutputFolder, render_page

STAMP_FILE, TASKS_FILE = "stamp.json", "tasks.jsonl"
# Tasks submitted per worker at a time: enough that no worker idles, few enough that Ctrl-C stops a run soon.
QUEUED_PER_WORKER = 2


@dataclass(frozen=True)
class Finished:
    """A finished task: its parameters, CPU time in seconds, and the rows that it measured.

    `gaps` maps a tolerance to (number of ADMM fits, fits that did not reach it, largest relative duality gap); it is
    recorded for ADMM only.
    """

    task: Task
    seconds: float
    rows: list[Row]
    gaps: GapStats = field(default_factory=dict)


# Callback after every task: the experiment, the finished task, and its expected cost in seconds.
Listener = Callable[[Experiment, Finished, float], None]


def task_key(task: Task) -> str:
    """Canonical JSON of a task, independent of the order of its parameters: identifies it, and seeds it."""
    return json.dumps(task, sort_keys=True)


def task_rng(seed: int, experiment: str, task: Task) -> np.random.Generator:
    """The random generator of one task, a function of (seed, experiment, task) alone.

    Results therefore depend neither on the number of workers nor on the order in which tasks run.
    """
    digest = hashlib.sha256(f"{experiment} {task_key(task)}".encode()).digest()
    return np.random.default_rng([seed, *np.frombuffer(digest[:16], dtype=np.uint32).tolist()])


class Results:
    """The finished tasks of one experiment, in a folder of their own.

    Parameters
    ----------
    folder : Path
        Created if it does not exist.
    stamp : dict
        What results depend on besides their tasks: see `make_stamp`. A folder with a different stamp raises ValueError.
    discard : bool
        Delete a folder with a different stamp instead.
    """

    def __init__(self, folder: Path, stamp: dict[str, Any], *, discard: bool = False) -> None:
        self.folder = folder
        if discard and folder.exists() and _read_stamp(folder) != stamp:
            shutil.rmtree(folder)
        if folder.exists() and _read_stamp(folder) != stamp:
            raise ValueError(
                f"{folder} holds results of {_format_stamp(_read_stamp(folder))}; this run is {_format_stamp(stamp)}. "
                "Choose another --out, or add --force to discard them."
            )
        folder.mkdir(parents=True, exist_ok=True)
        write_text_atomically(folder / STAMP_FILE, json.dumps(stamp, indent=1) + "\n")
        self.finished = self._read()

    def _read(self) -> dict[str, Finished]:
        """Read all complete lines. A line cut off by a kill is dropped from the file, and its task runs again."""
        path, finished, whole = self.folder / TASKS_FILE, {}, []
        for line in path.read_text().splitlines() if path.exists() else []:
            try:
                result = Finished(**json.loads(line))
            except (json.JSONDecodeError, TypeError):
                continue
            finished[task_key(result.task)] = result
            whole.append(line + "\n")
        write_text_atomically(path, "".join(whole))
        return finished

    def add(self, result: Finished) -> None:
        """Append a finished task to the file at once."""
        with (self.folder / TASKS_FILE).open("a") as file:
            gaps = {"gaps": result.gaps} if result.gaps else {}
            file.write(json.dumps({"task": result.task, "seconds": result.seconds, "rows": result.rows, **gaps}) + "\n")
        self.finished[task_key(result.task)] = result

    def select(self, tasks: list[Task]) -> list[Finished]:
        """Those of these tasks, in their order."""
        return [self.finished[task_key(task)] for task in tasks]

    def table(self, tasks: list[Task]) -> Table:
        """Measurements of these tasks in their order; each row also has the parameters of its task."""
        return Table([{**done.task, **row} for done in self.select(tasks) for row in done.rows])


def make_stamp(experiment: Experiment, seed: int, size: Size, data: str | None, solver: str = NEWTON) -> dict[str, Any]:
    """What results depend on besides their tasks. `data` is a hash of the file's content, not its path."""
    known = {"experiment": experiment.name, "version": experiment.version, "seed": seed, "size": size, "data": data}
    return known if solver == NEWTON else {**known, "solver": solver}


def _read_stamp(folder: Path) -> dict[str, Any]:
    """The stamp of a folder, empty if there is none or it cannot be read."""
    try:
        return json.loads((folder / STAMP_FILE).read_text())
    except (OSError, json.JSONDecodeError):
        return {}


def _format_stamp(values: dict[str, Any]) -> str:
    """A stamp as text for an error message."""
    named = {name: value for name, value in values.items() if value is not None and name != "experiment"}
    return ", ".join(f"{name} {value}" for name, value in named.items()) or "an unknown run"


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
        if task_key(task) not in results.finished
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
    name: str, measure: Callable[[Task, np.random.Generator], list[Row]], seed: int, task: Task, extra: dict[str, str]
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


# All experiments in one folder


# Name of an experiment to the experiment, its results and its tasks.
Work = dict[str, tuple[Experiment, Results, list[Task]]]
# Marker file: a folder without it, unless empty, is not written into.
MARKER = "reproduction.json"


@dataclass(frozen=True)
class Reproduction:
    """A set of experiments at one size and seed.

    Parameters
    ----------
    folder : Path
    chosen : sequence of Experiment
        Those to show on the page, in this order.
    known : sequence of Experiment
        All that exist, among them those whose rows a chosen one `uses`.
    size : "quick" or "full"
    seed : int
    data : dict
        Option name to path, for experiments that need a file.
    solver : str
        "newton" or "admm", for all fits except those whose running time is measured.
    """

    folder: Path
    chosen: Sequence[Experiment]
    known: Sequence[Experiment]
    size: Size
    seed: int
    data: dict[str, str] = field(default_factory=dict)
    solver: str = NEWTON

    def has_data(self, experiment: Experiment) -> bool:
        """Whether the data file that the experiment needs, if any, was given."""
        return experiment.data is None or experiment.data in self.data

    def open(self, *, discard: bool = False) -> Work:
        """Open the results of every experiment whose rows are needed.

        Returns name to (experiment, results, tasks). Results of another seed, size or version raise ValueError, or are
        deleted with `discard`.
        """
        write_text_atomically(self.folder / MARKER, json.dumps(self.describe(), indent=1) + "\n")
        hashes = {name: _hash_content(Path(path)) for name, path in self.data.items()}
        needed = {name for one in self.chosen if self.has_data(one) for name in (one.name, *one.uses)}
        work = {}
        for one in self.known:
            if one.name in needed and (tasks := one.tasks(self.size)):
                stamp = make_stamp(one, self.seed, self.size, hashes.get(one.data or ""), self.solver)
                work[one.name] = (one, Results(self.folder / "results" / one.name, stamp, discard=discard), tasks)
        return work

    def describe(self) -> dict[str, Any]:
        """What made this folder, as written to its marker file."""
        about = {"made by": f"quernel reproduce {__version__}", "size": self.size, "seed": self.seed}
        return about if self.solver == NEWTON else {**about, "solver": self.solver}

    def measure(self, work: Work, *, jobs: int, listener: Listener) -> None:
        """Run all tasks without a stored result."""
        run(list(work.values()), seed=self.seed, jobs=jobs, data=self.data, solver=self.solver, listener=listener)

    def present(self, work: Work, heading: Sequence[str]) -> list[Chapter]:
        """Write tidy tables, figures and the page from the stored results; returns the page's chapters."""
        for name, (_, results, tasks) in work.items():
            _write_tidy(results.table(tasks), self.folder / "rows" / f"{name}.parquet")
        chapters = [self._chapter(one, work) for one in self.chosen]
        write_text_atomically(self.folder / "index.html", render_page(chapters, heading))
        return chapters

    def describe_gaps(self, work: Work) -> list[str]:
        """Paragraph on a solver other than the default for the page's heading: its name, and the gaps it certified."""
        if self.solver == NEWTON:
            return []
        gaps: GapStats = {}
        for _, results, tasks in work.values():
            for tol, more in (item for done in results.select(tasks) for item in done.gaps.items()):
                gaps[tol] = merge_gap_stats(gaps.get(tol), more)
        reached = [
            f"Of {fits:,} fits that were to have a relative duality gap of at most {tol}, {fits - short:,} came to it "
            f"in at most {OPTIONS.admm_max_iter:,} rounds; the largest certified gap among all of them is "
            f"{largest:.1e}."
            for tol, (fits, short, largest) in sorted(gaps.items(), key=lambda item: -float(item[0]))
        ]
        first = "Solver: ADMM, the algorithm of the paper, on the same random numbers as Newton's method, the default."
        last = (
            "Ridge weights are chosen among such fits: where validation hardly tells two of them apart, another solver "
            "may choose another. Where the time of a fit is measured, it is that of the default."
        )
        return [" ".join([first, *reached, last])]

    def _chapter(self, one: Experiment, work: Work) -> Chapter:
        """Present one experiment from its own rows and those of the experiments it uses."""
        if not self.has_data(one):
            option = f"--{(one.data or '').replace('_', '-')}"
            return Chapter(one, None, left_out=f"Left out: it needs a file, which {option} names.")
        sources = [work[name] for name in (one.name, *one.uses) if name in work]
        rows = [row for _, results, tasks in sources for row in results.table(tasks).rows]
        own = [results.select(tasks) for source, results, tasks in sources if source is one]
        seconds = sum(done.seconds for finished in own for done in finished)
        return Chapter(one, one.present(Table(rows), OutputFolder(self.folder)), seconds)


def summarise(folder: Path, target: Path, readme: str) -> None:
    """Copy the tables (CSV, Markdown) and PNG figures, which are small, to `target`, with a README."""
    for part, endings in (("tables", (".csv", ".md")), ("figures", (".png",))):
        (target / part).mkdir(parents=True, exist_ok=True)
        for path in sorted((folder / part).glob("*")):
            if path.suffix in endings:
                shutil.copyfile(path, target / part / path.name)
    write_text_atomically(target / "README.md", readme)


def _write_tidy(table: Table, path: Path) -> None:
    """Write all measurements of an experiment as one Parquet table; columns missing in a row are null."""
    path.parent.mkdir(parents=True, exist_ok=True)
    names = list(dict.fromkeys(name for row in table.rows for name in row))
    columns = {name: [row.get(name) for row in table.rows] for name in names}
    pq.write_table(pa.table(columns), str(path))


def _hash_content(path: Path) -> str:
    """Short hash of a file's content, or of all CSV files of a folder."""
    digest = hashlib.sha256()
    for file in sorted(path.glob("*.csv")) if path.is_dir() else [path]:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]
