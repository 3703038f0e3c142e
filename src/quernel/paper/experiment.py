"""What an experiment is: tasks with their own random numbers, what one task measures, how measurements are presented.

Tasks and measurements are plain dictionaries of numbers and strings, so that they can be stored as JSON and compared.
Measurements become a `Table`, with inference on it: means with intervals, and slopes on log-log axes. A claim is judged
by a 95 % Student t interval, which can support it, refute it, or leave it undecided.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from scipy.stats import t as student

if TYPE_CHECKING:
    from quernel.paper.output import OutputFolder, Section

Value = int | float | str
# One measurement: column name to value. The task's parameters are joined to it when results are read.
Row = dict[str, Value]
# A claim is supported, refuted, or not decided by the measurements.
Judgement = bool | Literal["undecided"]
# Of the intervals by which claims are judged.
CONFIDENCE = 0.95
# Slopes lie between 0 and -1 or so: a wider interval than this confirms nothing.
MAX_WIDTH = 0.5


class Summary(NamedTuple):
    """Mean of n numbers, their standard deviation, and the standard error of the mean, sd / sqrt(n).

    The standard deviation has n - 1 in its denominator; it and the standard error are NaN for a single number.
    """

    mean: float
    sd: float
    se: float
    n: int

    @property
    def half_width(self) -> float:
        """Half the width of the 95 % Student t interval around the mean; NaN for a single number."""
        return float(student.ppf((1 + CONFIDENCE) / 2, self.n - 1) * self.se)

    def is_below_zero(self) -> Judgement:
        """True (False) if the 95 % interval lies entirely below (above) 0, "undecided" if it contains 0."""
        if self.mean < -self.half_width:
            return True
        return False if self.mean > self.half_width else "undecided"

    def __sub__(self, other: Summary) -> Summary:
        """Difference of two independent means.

        Its standard error is sqrt(se1^2 + se2^2); its n is the smaller of the two, a conservative choice of the degrees
        of freedom. The standard deviation is not defined (NaN).
        """
        return Summary(self.mean - other.mean, math.nan, math.hypot(self.se, other.se), min(self.n, other.n))

    def __str__(self) -> str:
        """The mean with its sign, and its standard error."""
        return f"{self.mean:+.4f} (s.e. {self.se:.4f})"


def summarize(values: Iterable[Any]) -> Summary:
    """Mean, standard deviation and standard error of these numbers."""
    array = np.array([float(value) for value in values])
    sd = float(array.std(ddof=1)) if len(array) > 1 else np.nan
    return Summary(float(array.mean()), sd, sd / np.sqrt(len(array)), len(array))


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
        return summarize(self.column(name))

    def paired_difference(self, name: str, method: str, other: str) -> Summary:
        """Summary of column `name` under `method` minus that under `other`, row by row.

        Both methods must have run on the same tasks, in the same order: the data they share then cancels.
        """
        return summarize(self.select(method=method).column(name) - self.select(method=other).column(name))

    def geometric_mean(self, name: str) -> float:
        """Geometric mean of a column."""
        return float(np.exp(np.mean(np.log(self.column(name)))))

    def geometric_means(self, error: str, *, against: str = "n") -> tuple[list[float], np.ndarray, np.ndarray]:
        """Geometric mean of the error at each size, for a log-log plot.

        Returns the sizes, the means (k,) and error bars (2, k): the distances to exp(mean of logs -+ its standard
        error).
        """
        sizes, centre, lower, upper = [], [], [], []
        for (size,), points in self.groups(against):
            logs = np.log(points.column(error))
            middle, se = logs.mean(), (logs.std(ddof=1) if len(logs) > 1 else 0.0) / np.sqrt(len(logs))
            sizes.append(float(size))
            centre.append(np.exp(middle))
            lower.append(np.exp(middle) - np.exp(middle - se))
            upper.append(np.exp(middle + se) - np.exp(middle))
        return sizes, np.array(centre), np.array([lower, upper])


@dataclass(frozen=True)
class Slope:
    """A mean slope over independent repetitions, and its Student t interval."""

    value: float
    low: float
    high: float

    def lies_above(self, bound: float) -> bool:
        """Whether the whole interval lies above the bound: the error falls too slowly."""
        return self.low > bound

    @property
    def is_wide(self) -> bool:
        """Whether the interval is wider than `MAX_WIDTH`: it may refute a claim, but confirms none."""
        return self.high - self.low > MAX_WIDTH

    def meets_bound(self, bound: float) -> Judgement:
        """One-sided: whether the error falls at least as fast as n^bound.

        True if the whole interval lies at or below the bound (steeper is allowed), False if wholly above, otherwise
        undecided.
        """
        if self.lies_above(bound):
            return False
        return "undecided" if self.is_wide or self.high > bound else True

    def meets_value(self, value: float) -> Judgement:
        """Two-sided: whether the interval contains this slope; undecided if it does but is wide."""
        if not self.low <= value <= self.high:
            return False
        return "undecided" if self.is_wide else True

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]".replace("-", "\u2212")


def all_hold(judgements: Iterable[Judgement]) -> Judgement:
    """Combine judgements like `all`: False if any is, otherwise "undecided" if any is."""
    found = list(judgements)
    if False in found:
        return False
    return "undecided" if "undecided" in found else True


def allowed_slope(rate: float, sizes: Sequence[float], *, power: int) -> float:
    """Log-log slope of n^rate (log n)^power between the first and the last size.

    A bound with a logarithmic factor allows an error to fall more slowly than its rate over a finite range of n.
    """
    first, last = np.log(sizes[0]), np.log(sizes[-1])
    return rate + power * float(np.log(last / first) / (last - first))


def fit_slope(table: Table, error: str) -> Slope:
    """Slope of log error against log n: one least-squares line per repetition, and a t interval for their mean.

    Repetitions are independent, while the points of one need not be. Logarithms are taken before averaging: the
    theorems bound the error with high probability, and a rare bad draw of the features must not dominate the mean.

    Parameters
    ----------
    table : Table with columns "n" and "repetition"
    error : name of the error's column
    """
    slopes = [
        np.polyfit(np.log(points.column("n").astype(float)), np.log(points.column(error)), 1)[0]
        for _, points in table.groups("repetition")
    ]
    if len(slopes) < 2:
        raise ValueError(f"A slope's interval needs at least 2 repetitions; got {len(slopes)}.")
    half = student.ppf((1 + CONFIDENCE) / 2, len(slopes) - 1) * np.std(slopes, ddof=1) / np.sqrt(len(slopes))
    value = float(np.mean(slopes))
    return Slope(value, value - float(half), value + float(half))


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
