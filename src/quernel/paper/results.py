"""Measurements on disk, one JSON line per finished task: a run that is killed resumes where it stopped.

A folder holds `stamp.json`, which identifies the run (seed, size, version), and `tasks.jsonl`, the finished tasks.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quernel._files import write_text_atomically
from quernel.paper.experiment import NEWTON, Experiment, Row, Size, Table, Task

STAMP_FILE, TASKS_FILE = "stamp.json", "tasks.jsonl"


@dataclass(frozen=True)
class Finished:
    """A finished task: its parameters, CPU time in seconds, and the rows that it measured.

    `gaps` maps a tolerance to (number of ADMM fits, fits that did not reach it, largest relative duality gap); it is
    recorded for ADMM only.
    """

    task: Task
    seconds: float
    rows: list[Row]
    gaps: dict[str, tuple[int, int, float]] = field(default_factory=dict)


def key(task: Task) -> str:
    """Canonical JSON of a task, independent of the order of its parameters: identifies it, and seeds it."""
    return json.dumps(task, sort_keys=True)


class Results:
    """The finished tasks of one experiment, in a folder of their own.

    Parameters
    ----------
    folder : Path
        Created if it does not exist.
    stamp : dict
        What results depend on besides their tasks: see `stamp`. A folder with a different stamp raises ValueError.
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
            finished[key(result.task)] = result
            whole.append(line + "\n")
        write_text_atomically(path, "".join(whole))
        return finished

    def add(self, result: Finished) -> None:
        """Append a finished task to the file at once."""
        with (self.folder / TASKS_FILE).open("a") as file:
            gaps = {"gaps": result.gaps} if result.gaps else {}
            file.write(json.dumps({"task": result.task, "seconds": result.seconds, "rows": result.rows, **gaps}) + "\n")
        self.finished[key(result.task)] = result

    def table(self, tasks: list[Task]) -> Table:
        """Measurements of these tasks in their order; each row also has the parameters of its task."""
        return Table([{**task, **row} for task in tasks for row in self.finished[key(task)].rows])

    def seconds(self, tasks: list[Task]) -> float:
        """Total CPU time of these tasks."""
        return sum(self.finished[key(task)].seconds for task in tasks)


def stamp(experiment: Experiment, seed: int, size: Size, data: str | None, solver: str = NEWTON) -> dict[str, Any]:
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
