"""The paper's numerical work, run with this library: one module per item, one runner, one page."""

from quernel.paper import prices, sample_size, sampling, used_cars
from quernel.paper.experiment import Experiment, Row, Size, Summary, Table, Task, no_rows, no_tasks, repetitions
from quernel.paper.sheet import Item, Section, Sheet, Verdict

__all__ = [
    "EXPERIMENTS",
    "Experiment",
    "Item",
    "Row",
    "Section",
    "Sheet",
    "Size",
    "Summary",
    "Table",
    "Task",
    "Verdict",
    "no_rows",
    "no_tasks",
    "repetitions",
]

# In the order of the page.
EXPERIMENTS: tuple[Experiment, ...] = (
    sampling.FEATURE_COUNT,
    *sample_size.EXPERIMENTS,
    *sampling.EXPERIMENTS,
    prices.PRICES,
    used_cars.USED_CARS,
)
