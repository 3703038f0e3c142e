"""The paper's numerical work, run with this library: one module per item, one runner, one page."""

from quernel.paper.experiment import Experiment, Row, Size, Summary, Table, Task, repetitions
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
    "repetitions",
]

# In the order of the page.
EXPERIMENTS: tuple[Experiment, ...] = ()
