"""The objective as sums over row blocks, and what may be left out of them."""

from quernel.problem.sums import Curvature, Problem, Pull, Settled

__all__ = ["Curvature", "Problem", "Pull", "Settled"]
