"""The objective as sums over row blocks, and what may be left out of them."""

from quernel.problem.curvature import Curvature
from quernel.problem.sums import NotFiniteError, Problem, Pull, Settled, require_finite

__all__ = ["Curvature", "NotFiniteError", "Problem", "Pull", "Settled", "require_finite"]
