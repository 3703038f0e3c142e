"""What an experiment is: seeded tasks, what is measured in one of them, and how the measurements are shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from quernel.paper.output import OutputFolder, Section

Size = Literal["quick", "full"]
Value = int | float | str
# The parameters of one unit of work, such as {"n": 1000, "repetition": 7}; with the seed they decide its result.
Task = dict[str, Value]
# One measurement: the parameters that name it, and numbers.
Row = dict[str, Value]

# The solver of a run that asks for no other.
NEWTON = "newton"


class Summary(NamedTuple):
    """Mean of n numbers, their standard deviation, and the standard error of the mean (both NaN for one number)."""

    mean: float
    sd: float
    se: float
    n: int


@dataclass(frozen=True)
class Table:
    """Measurements in the order of their tasks, whatever the order in which those were done."""

    rows: list[Row]

    def __len__(self) -> int:
        return len(self.rows)

    def select(self, **where: Value) -> Table:
        """The rows in which these columns have these values."""
        return Table([row for row in self.rows if all(row.get(name) == value for name, value in where.items())])

    def column(self, name: str) -> Any:
        """One column as an array."""
        return np.array([row[name] for row in self.rows])

    def values(self, name: str) -> list[Any]:
        """The different values of a column, in the order of their first appearance."""
        return list(dict.fromkeys(row[name] for row in self.rows))

    def groups(self, *names: str) -> Iterator[tuple[tuple[Any, ...], Table]]:
        """The values of some columns and the rows that have them, in the order of their first appearance."""
        found: dict[tuple[Any, ...], list[Row]] = {}
        for row in self.rows:
            found.setdefault(tuple(row[name] for name in names), []).append(row)
        for key, rows in found.items():
            yield key, Table(rows)

    def summary(self, name: str) -> Summary:
        """Mean, standard deviation and standard error of a column."""
        values = self.column(name).astype(float)
        sd = float(values.std(ddof=1)) if len(values) > 1 else np.nan
        return Summary(float(values.mean()), sd, sd / np.sqrt(len(values)), len(values))


@dataclass(frozen=True)
class Experiment:
    """One item of the paper, or one beyond it.

    Parameters
    ----------
    name : of the item on the command line, and of its folder of results
    label : the paper's label, such as "tab.2", or "beyond the paper"
    title : its heading on the page
    tasks : the units of work of a size; may be empty for an item that measures nothing
    measure : the rows of one task; a function of a module, so that other processes find it. It draws from the generator
        alone, which depends on seed, experiment and task only
    present : figures, tables and verdicts from all rows
    cost : of a task, about so many seconds: the dearest are begun first
    uses : other experiments whose rows it shows after its own
    data : the option that names the file it needs, such as "used_cars"; the runner hands its path over as task[data],
        and the name of a solver other than the default as task["solver"] (see `solver_of`)
    version : raised by whoever changes what is measured: results of another version are not mixed with these
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
    """The same task so many times, told apart by "repetition"."""
    return [{**parameters, "repetition": k} for k in range(count)]


def get_solver(task: Task) -> str:
    """The solver that the runner handed over; without one, Newton's method."""
    return str(task.get("solver", NEWTON))


def no_tasks(size: Size) -> list[Task]:  # noqa: ARG001
    """The tasks of an item that measures nothing itself."""
    return []


def no_rows(task: Task, rng: np.random.Generator) -> list[Row]:  # noqa: ARG001
    """What it would measure."""
    return []
