"""From the guess of a sample nearer to the solution, before any row is solved for.

The pass that sorts all rows by the guess has given their gradient there; `correction.py` makes steps of it. After each,
the rows in doubt are looked at again, and most of them are settled.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quernel.problem import Problem, Settled
from quernel.problem.doubt import Doubts, narrow
from quernel.rows import Memory
from quernel.solvers.correction import Correction, Step

Array = NDArray[np.floating]

# A step is taken if it is so much shorter than the last and makes the band so much narrower,
# until this share of rows is in doubt.
NARROWER, FEW, MAX_CORRECTIONS = 0.75, 0.01, 3


@dataclass(frozen=True, eq=False)
class Near:
    """A fit, and all rows sorted by a band around it."""

    coef: Array
    intercept: Array
    band: Array
    settled: Settled
    doubts: Doubts


@dataclass(frozen=True, eq=False)
class Approach:
    """How a guess is brought nearer to the solution: the steps, and the band of rows to look at again after one.

    It is wide, for looking costs little. Unless it is `sure` that it holds all rows that could matter, the first step
    looks at all.
    """

    correction: Correction
    wide: Array
    sure: bool


def nearer(problem: Problem, memory: Memory, near: Near, approach: Approach, basis: Array | None) -> Near:
    """Steps towards the solution: those columns take one for which it is clearly shorter, and its band narrower.

    Rows are sorted by the wide band; in columns that take no step, by that of the guess afterwards.
    """
    n, M, correction, sure = problem.rows.n_rows, problem.rows.n_features, approach.correction, approach.sure
    here = Step.none(near.coef, near.intercept, near.band)
    work, band, length = correction.entries, approach.wide, np.full(problem.n_columns, np.inf)
    for _ in range(MAX_CORRECTIONS):
        force, balance = near.settled.force + near.doubts.force, near.settled.balance + near.doubts.balance
        step = correction.step(here.coef, here.intercept, force, balance, n)
        if step is None:
            break
        taken = (step.length <= NARROWER * length) & (step.band <= NARROWER * band) & (step.band > 0)
        if not taken.any():
            break
        here, band = here.where(taken, step), np.where(taken, step.band, band)
        length = np.where(taken, step.length, length)
        near = _sorted_again(problem, memory, near, here, basis, everyone=not sure)
        sure = True
        if near.doubts.count.max() <= FEW * n:
            break
    if length.min() == np.inf:
        near = _sorted_again(problem, memory, near, here, basis)
    memory.sweeps += (correction.entries - work) / (n * M)
    correction.forget()
    return near


def _sorted_again(
    problem: Problem, memory: Memory, near: Near, step: Step, basis: Array | None, everyone: bool = False
) -> Near:
    """The rows in doubt, or all, sorted by the bands after a step."""
    memory.sweeps += problem.n_columns if everyone else float(near.doubts.count.sum()) / problem.rows.n_rows
    rows = narrow(problem, memory, None if everyone else near.settled, step.coef, step.intercept, step.bands, basis)
    return Near(step.coef, step.intercept, step.band, *rows)
