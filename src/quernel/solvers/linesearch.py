"""The exact minimum of the smoothed objective along a direction."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quernel.problem import Problem
from quernel.rows import Memory

Array = NDArray[np.floating]

# A slope this much flatter than the model's first one counts as zero; the next Newton step removes the rest.
FLAT = 1e-2
MAX_PROBES = 60


def exact_step(
    problem: Problem, memory: Memory, width: Array, coef: Array, move: Array, shift: Array, first_slope: Array
) -> Array:
    """Step lengths t >= 0, one per column, at which the slope along the remembered change vanishes.

    The slope is increasing and piecewise linear in t, and a probe costs O(n): Newton's method on it, kept inside the
    bracket by doubling and bisection, finds the root in a few probes.
    """
    along, square = np.einsum("ij,ij->j", coef, move), np.einsum("ij,ij->j", move, move)
    settled = problem.settled_slope(move, shift)
    low, high = np.zeros(problem.n_columns), np.full(problem.n_columns, np.inf)
    step = np.ones(problem.n_columns)
    for _ in range(MAX_PROBES):
        slope, bend = problem.probe(memory, width, step)
        slope = slope + settled + 2 * problem.alpha * (along + step * square)
        bend = bend + 2 * problem.alpha * square
        found = np.abs(slope) <= FLAT * first_slope
        if found.all():
            break
        low = np.where(slope < 0, step, low)
        high = np.where(slope < 0, high, step)
        newton = step - np.divide(slope, bend, out=np.full_like(slope, np.nan), where=bend > 0)
        inside = (newton > low) & (newton < high)
        halfway = np.where(np.isfinite(high), (low + high) / 2, 2 * step)
        step = np.where(found, step, np.where(inside, newton, halfway))
    return step
