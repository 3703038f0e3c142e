"""What an experiment is: tasks with their own random numbers, what one task measures, how measurements are presented.

Tasks and measurements are plain dictionaries of numbers and strings, so that they can be stored as JSON and compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import product
from typing import Literal

import numpy as np

from quernel.paper.measurements import Row, Table, Value
from quernel.paper.output import OutputFolder, Section

Size = Literal["quick", "full"]
# Parameters of one unit of work, such as {"n": 1000, "repetition": 7}. With the seed they determine its result.
Task = dict[str, Value]

# Default solver: semismooth Newton with screening, see `quernel.solvers`. The alternative is "admm".
NEWTON = "newton"


@dataclass(frozen=True)
class Experiment:
    """One table or figure of the paper, or one experiment beyond it.

    Parameters
    ----------
    name : str
        The item on the command line, and its folder of results.
    label : str
        The paper's LaTeX label, such as "tab.2", or "beyond the paper".
    title : str
        Heading on the page.
    present : callable
        (table of all rows, output folder) to the section of the page: figures, tables and verdicts.
    tasks : callable
        Size ("quick" or "full") to the list of tasks. An item that measures nothing itself has none.
    measure : callable
        (task, rng) to the rows that this task measures. Must be a module-level function, so that worker processes can
        unpickle it, and must draw from `rng` alone, which is seeded by (seed, experiment, task).
    cost : callable
        Task to its rough running time in seconds; the longest tasks start first.
    uses : tuple of str
        Names of other experiments whose rows are appended to its own before `present`.
    data : str or None
        The command-line option that names a file it needs, such as "used_cars". The runner passes the path as
        task[data], and the name of a solver other than the default as task["solver"] (see `get_solver`).
    version : int
        Raised whenever what is measured changes: stored results of another version are refused.
    """

    name: str
    label: str
    title: str
    present: Callable[[Table, OutputFolder], Section]
    tasks: Callable[[Size], list[Task]] = lambda size: []  # noqa: ARG005
    measure: Callable[[Task, np.random.Generator], list[Row]] = lambda task, rng: []  # noqa: ARG005
    cost: Callable[[Task], float] = lambda task: 1.0  # noqa: ARG005
    uses: tuple[str, ...] = ()
    data: str | None = None
    version: int = 1


def repetitions(count: int, **parameters: Value | Iterable[Value]) -> list[Task]:
    """Every combination of the parameters `count` times, numbered by the key "repetition".

    A parameter is one value, or an iterable of values; the last one varies fastest.
    """
    axes = [[value] if isinstance(value, Value) else list(value) for value in parameters.values()]
    combinations = [dict(zip(parameters, values, strict=True)) for values in product(*axes)]
    return [{**combination, "repetition": k} for combination in combinations for k in range(count)]


def get_solver(task: Task) -> str:
    """The solver that the runner put into the task; Newton's method, the default, if it put none."""
    return str(task.get("solver", NEWTON))
