"""What has been measured so far, on the disk: one line per finished task, so that a killed run loses nothing else."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quernel.paper.experiment import NEWTON, Experiment, Row, Size, Table, Task

STAMP_FILE, TASKS_FILE = "stamp.json", "tasks.jsonl"


@dataclass(frozen=True)
class Finished:
    """One finished task, what it measured, how long it took, and what ADMM, if it was asked for, certified.

    gaps are, by tolerance, the number of fits, of those that stopped short of it, and the largest gap.
    """

    task: Task
    seconds: float
    rows: list[Row]
    gaps: dict[str, tuple[int, int, float]] = field(default_factory=dict)


def key(task: Task) -> str:
    """The task as text, the same whatever the order of its parameters."""
    return json.dumps(task, sort_keys=True)


class Results:
    """The finished tasks of one experiment, in a folder of their own.

    Parameters
    ----------
    folder : made if it does not exist
    stamp : what the results depend on besides their tasks (seed, size, version); a folder with another is refused
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
        write_atomic(folder / STAMP_FILE, json.dumps(stamp, indent=1) + "\n")
        self.finished = self._read()

    def _read(self) -> dict[str, Finished]:
        """All whole lines; a last line that was cut off by a kill is removed, and its task done again."""
        path, finished, whole = self.folder / TASKS_FILE, {}, []
        for line in path.read_text().splitlines() if path.exists() else []:
            try:
                result = Finished(**json.loads(line))
            except (json.JSONDecodeError, TypeError):
                continue
            finished[key(result.task)] = result
            whole.append(line + "\n")
        write_atomic(path, "".join(whole))
        return finished

    def add(self, result: Finished) -> None:
        """Enter a task as soon as it is finished."""
        with (self.folder / TASKS_FILE).open("a") as file:
            gaps = {"gaps": result.gaps} if result.gaps else {}
            file.write(json.dumps({"task": result.task, "seconds": result.seconds, "rows": result.rows, **gaps}) + "\n")
        self.finished[key(result.task)] = result

    def table(self, tasks: list[Task]) -> Table:
        """The rows of these tasks in their order, each with the parameters of its task."""
        return Table([{**task, **row} for task in tasks for row in self.finished[key(task)].rows])

    def seconds(self, tasks: list[Task]) -> float:
        """The sum over these tasks."""
        return sum(self.finished[key(task)].seconds for task in tasks)


def stamp(experiment: Experiment, seed: int, size: Size, data: str | None, solver: str = NEWTON) -> dict[str, Any]:
    """What results depend on besides their tasks; `data` identifies the content of a file."""
    known = {"experiment": experiment.name, "version": experiment.version, "seed": seed, "size": size, "data": data}
    return known if solver == NEWTON else {**known, "solver": solver}


def write_atomic(path: Path, text: str) -> None:
    """Write a file as a whole: the old one stays until the new one is complete."""
    draft = path.with_name(f".{path.name}.draft")
    draft.write_text(text)
    os.replace(draft, path)


def _read_stamp(folder: Path) -> dict[str, Any]:
    try:
        return json.loads((folder / STAMP_FILE).read_text())
    except (OSError, json.JSONDecodeError):
        return {}


def _format_stamp(values: dict[str, Any]) -> str:
    named = {name: value for name, value in values.items() if value is not None and name != "experiment"}
    return ", ".join(f"{name} {value}" for name, value in named.items()) or "an unknown run"
