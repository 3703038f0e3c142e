"""What an experiment is: tasks with their own random numbers, what one task measures, how measurements are presented.

Tasks and measurements are plain dictionaries of numbers and strings, so that they can be stored as JSON and compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from quernel.paper.output import OutputFolder, Section

Size = Literal["quick", "full"]
Value = int | float | str
# Parameters of one unit of work, such as {"n": 1000, "repetition": 7}. With the seed they determine its result.
Task = dict[str, Value]
# One measurement: column name to value. The task's parameters are joined to it when results are read.
Row = dict[str, Value]

# Default solver: semismooth Newton with screening, see `quernel.solvers`. The alternative is "admm".
NEWTON = "newton"


class Summary(NamedTuple):
    """Mean of n numbers, their standard deviation, and the standard error of the mean, sd / sqrt(n).

    The standard deviation has n - 1 in its denominator; it and the standard error are NaN for a single number.
    """

    mean: float
    sd: float
    se: float
    n: int


@dataclass(frozen=True)
class Table:
    """Measurements, one dictionary per row: a small data frame.

    Rows are in the order of their tasks, whatever the order in which the tasks finished, so that columns of two methods
    that ran on the same tasks can be subtracted row by row.
    """

    rows: list[Row]

    def __len__(self) -> int:
        return len(self.rows)

    def select(self, **where: Value) -> Table:
        """Rows in which these columns have these values."""
        return Table([row for row in self.rows if all(row.get(name) == value for name, value in where.items())])

    def column(self, name: str) -> Any:
        """One column as an array of shape (n_rows,)."""
        return np.array([row[name] for row in self.rows])

    def values(self, name: str) -> list[Any]:
        """Distinct values of a column, in the order of their first appearance."""
        return list(dict.fromkeys(row[name] for row in self.rows))

    def groups(self, *names: str) -> Iterator[tuple[tuple[Any, ...], Table]]:
        """Iterate over groups of rows with equal values in these columns, like `DataFrame.groupby(names, sort=False)`.

        Yields the tuple of values and the rows that have them, in the order of their first appearance.
        """
        grouped: dict[tuple[Any, ...], list[Row]] = {}
        for row in self.rows:
            grouped.setdefault(tuple(row[name] for name in names), []).append(row)
        for key, rows in grouped.items():
            yield key, Table(rows)

    def summary(self, name: str) -> Summary:
        """Mean, standard deviation and standard error of a column."""
        values = self.column(name).astype(float)
        sd = float(values.std(ddof=1)) if len(values) > 1 else np.nan
        return Summary(float(values.mean()), sd, sd / np.sqrt(len(values)), len(values))


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
    tasks : callable
        Size ("quick" or "full") to the list of tasks; empty for an item that measures nothing itself.
    measure : callable
        (task, rng) to the rows that this task measures. Must be a module-level function, so that worker processes can
        unpickle it, and must draw from `rng` alone, which is seeded by (seed, experiment, task).
    present : callable
        (table of all rows, output folder) to the section of the page: figures, tables and verdicts.
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
    tasks: Callable[[Size], list[Task]]
    measure: Callable[[Task, np.random.Generator], list[Row]]
    present: Callable[[Table, OutputFolder], Section]
    cost: Callable[[Task], float] = lambda task: 1.0  # noqa: ARG005
    uses: tuple[str, ...] = ()
    data: str | None = None
    version: int = 1


def repetitions(count: int, **parameters: Value) -> list[Task]:
    """The same task `count` times, numbered by the key "repetition"."""
    return [{**parameters, "repetition": k} for k in range(count)]


def get_solver(task: Task) -> str:
    """The solver that the runner put into the task; Newton's method, the default, if it put none."""
    return str(task.get("solver", NEWTON))


def no_tasks(size: Size) -> list[Task]:  # noqa: ARG001
    """The `tasks` of an item that measures nothing itself."""
    return []


def no_rows(task: Task, rng: np.random.Generator) -> list[Row]:  # noqa: ARG001
    """The `measure` of an item that measures nothing itself."""
    return []
