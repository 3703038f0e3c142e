"""The objective F, its derivatives and its duality gap, as map-reduce sums over row blocks."""

from quernel.objective.blocks import Curvature
from quernel.objective.problem import (
    DualSums,
    InMemoryProblem,
    NotFiniteError,
    Problem,
    ScreenedRows,
    require_finite,
    take_columns,
)

__all__ = [
    "Curvature",
    "DualSums",
    "InMemoryProblem",
    "NotFiniteError",
    "Problem",
    "ScreenedRows",
    "require_finite",
    "take_columns",
]
