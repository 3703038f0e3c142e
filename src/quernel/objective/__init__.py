"""The objective as sums over row blocks, and what may be left out of them."""

from quernel.objective.hessian import Curvature
from quernel.objective.problem import DualSums, NotFiniteError, Problem, ScreenedRows, require_finite

__all__ = ["Curvature", "DualSums", "NotFiniteError", "Problem", "ScreenedRows", "require_finite"]
