"""The paper's tables and figures, reproduced with this library, and some experiments beyond it.

Every item of the paper is one module that defines an `Experiment`: the tasks (a parameter grid times repetitions), what
one task measures, and how all measurements become figures, tables and verdicts.

    experiment    `Experiment`, `Task`, and the `Table` of measurements
    runner        runs tasks in worker processes, each with its own seed; `results` stores them as they finish
    output        figures, tables and verdicts on disk; `page` puts them on one HTML page
    reproduction  all of this for a set of experiments, in one folder (`quernel reproduce`)
"""

from quernel.paper import (
    cost_accuracy,
    error_decomposition,
    feature_exponents,
    heavy_tails,
    learning_rate,
    leverage_constant,
    lipschitz,
    methods_table,
    prices,
    sample_size,
    sampling,
    spline_curves,
    used_cars,
)
from quernel.paper.experiment import Experiment, Row, Size, Summary, Table, Task, no_rows, no_tasks, repetitions
from quernel.paper.output import Item, OutputFolder, Section, Verdict

__all__ = [
    "EXPERIMENTS",
    "Experiment",
    "Item",
    "OutputFolder",
    "Row",
    "Section",
    "Size",
    "Summary",
    "Table",
    "Task",
    "Verdict",
    "no_rows",
    "no_tasks",
    "repetitions",
]

# Every experiment, in the order in which the page shows them.
EXPERIMENTS: tuple[Experiment, ...] = (
    feature_exponents.FIG1,
    methods_table.TABLE1,
    spline_curves.FIG_FITTED,
    learning_rate.FIG_RATES,
    sampling.FEATURE_COUNT,
    *sample_size.EXPERIMENTS,
    *sampling.EXPERIMENTS,
    leverage_constant.LEVERAGE_CONSTANT,
    prices.PRICES,
    used_cars.USED_CARS,
    spline_curves.FIG_TRUE,
    error_decomposition.ERROR_DECOMPOSITION,
    lipschitz.LIPSCHITZ,
    heavy_tails.HEAVY_TAILS,
    cost_accuracy.COST,
)
