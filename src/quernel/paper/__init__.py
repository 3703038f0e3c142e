"""The paper's tables and figures, reproduced with this library, and some experiments beyond it.

Every item of the paper is an `Experiment`, and related ones share a module: the tasks (a parameter grid times
repetitions), what one task measures, and how all measurements become figures, tables and verdicts.

    experiment    `Experiment` and `Task`, and the `Table` of results with its means, intervals and slopes
    output        figures, their parts, tables and verdicts on disk, and on one HTML page
    reproduction  runs the tasks of a set of experiments, stores and shows all in one folder (`quernel reproduce`)

What experiments share: `holdout_fit` is the paper's tuning, `simulated` its simulations with their true risks,
`paper_numbers` what it prints.
"""

from quernel.paper.experiment import Experiment, Row, Size, Summary, Table, Task, repetitions
from quernel.paper.learning_rate import LEARNING_RATE
from quernel.paper.motivation import COST, HEAVY_TAILS, PRICES
from quernel.paper.output import Item, OutputFolder, Section, Verdict
from quernel.paper.sample_size import SAMPLE_SIZE
from quernel.paper.sampling import FEATURE_COUNT, LEVERAGE_CONSTANT, SAMPLING
from quernel.paper.spline_curves import FITTED_CURVES, TRUE_CURVES
from quernel.paper.stated_formulas import EXPONENTS, METHODS_TABLE
from quernel.paper.theorems import DECOMPOSITION, LIPSCHITZ
from quernel.paper.used_cars import USED_CARS

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
    "repetitions",
]

# Every experiment, in the order in which the page shows them.
EXPERIMENTS: tuple[Experiment, ...] = (
    EXPONENTS,
    METHODS_TABLE,
    FITTED_CURVES,
    LEARNING_RATE,
    FEATURE_COUNT,
    *SAMPLE_SIZE,
    *SAMPLING,
    LEVERAGE_CONSTANT,
    PRICES,
    USED_CARS,
    TRUE_CURVES,
    DECOMPOSITION,
    LIPSCHITZ,
    HEAVY_TAILS,
    COST,
)
