"""What has been measured so far, on the disk: one line per finished task, so that a killed run loses nothing else."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quernel.paper.experiment import NEWTON, Experiment, Row, Size, Table, Task

STAMP, LINES = "stamp.json", "tasks.jsonl"


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
        if discard and folder.exists() and _stamp_of(folder) != stamp:
            shutil.rmtree(folder)
        if folder.exists() and _stamp_of(folder) != stamp:
            raise ValueError(
                f"{folder} holds results of {_words(_stamp_of(folder))}; this run is {_words(stamp)}. "
                "Choose another --out, or add --force to discard them."
            )
        folder.mkdir(parents=True, exist_ok=True)
        replace_text(folder / STAMP, json.dumps(stamp, indent=1) + "\n")
        self.finished = self._read()

    def _read(self) -> dict[str, Finished]:
        """All whole lines; a last line that was cut off by a kill is removed, and its task done again."""
        path, found, whole = self.folder / LINES, {}, []
        for line in path.read_text().splitlines() if path.exists() else []:
            try:
                done = Finished(**json.loads(line))
            except (json.JSONDecodeError, TypeError):
                continue
            found[key(done.task)] = done
            whole.append(line + "\n")
        replace_text(path, "".join(whole))
        return found

    def add(self, done: Finished) -> None:
        """Enter a task as soon as it is finished."""
        with (self.folder / LINES).open("a") as file:
            gaps = {"gaps": done.gaps} if done.gaps else {}
            file.write(json.dumps({"task": done.task, "seconds": done.seconds, "rows": done.rows, **gaps}) + "\n")
        self.finished[key(done.task)] = done

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


def replace_text(path: Path, text: str) -> None:
    """Write a file as a whole: the old one stays until the new one is complete."""
    draft = path.with_name(f".{path.name}.draft")
    draft.write_text(text)
    os.replace(draft, path)


def _stamp_of(folder: Path) -> dict[str, Any]:
    try:
        return json.loads((folder / STAMP).read_text())
    except (OSError, json.JSONDecodeError):
        return {}


def _words(values: dict[str, Any]) -> str:
    named = {name: value for name, value in values.items() if value is not None and name != "experiment"}
    return ", ".join(f"{name} {value}" for name, value in named.items()) or "an unknown run"
