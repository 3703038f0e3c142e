"""The objective F, its derivatives and its duality gap, as map-reduce sums over row blocks."""

from quernel.objective.hessian import Curvature
from quernel.objective.problem import DualSums, NotFiniteError, Problem, ScreenedRows, require_finite

__all__ = ["Curvature", "DualSums", "NotFiniteError", "Problem", "ScreenedRows", "require_finite"]
