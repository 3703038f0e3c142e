"""For losses that are curved where most rows lie: no row can be settled, but most directions can be left out.

From the solution on a sample, Newton's method with the curvature of a larger one (see `sampled`) where there are rows
enough, or on all rows within the basis of the directions that matter, at a fraction of the price; then the certificate
over all features. Where what was left out does matter, Newton goes on with all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from quernel.certificate import NullModel, certify, certify_survey, null_model
from quernel.losses import Loss
from quernel.problem import Problem
from quernel.problem.survey import survey
from quernel.solvers import newton, sampled
from quernel.solvers.result import Ledger, Result, after, statuses

Array = NDArray[np.floating]

# The share of curved rows from which screening does not pay.
MOST = 0.25
# Beyond the basis, kinked losses go on with this share of the width they began with.
NEXT_WIDTH = 0.1


def curved(loss: Loss, residual: Array, dual: Array) -> bool:
    """Whether the loss is curved where more than a few rows lie, by their residuals and duals at some fit."""
    if not np.all(loss.own_width > 0):
        return False
    bent = loss.curvature(residual, dual, 0.0) > 0
    return bool(np.max(np.mean(bent, axis=0)) > MOST)


def finish(
    problem: Problem,
    basis: Array | None,
    coef: Array,
    intercept: Array,
    rng: np.random.Generator,
    tol: float,
    max_iter: int,
    keep: Callable[[Array, Array], None] | None = None,
    *,
    solved: bool = False,
) -> Result:
    """All rows, from the solution (coef, intercept) on a sample of them; `keep` is told of every step.

    Where that is thought to be the solution already (`solved`), it is looked at first as it is.
    """
    null, size = null_model(problem), sampled.sample_size(problem)
    work: Result | None = None
    nothing: Array = np.zeros(problem.n_columns)
    anchor = nothing
    if solved:
        work = _surveyed(problem, coef, intercept, null, tol)
        if work.converged:
            return work
    if size is not None:
        work = after(work, sampled.solve(problem, basis, coef, intercept, size, rng, null, tol, max_iter, keep))
        if work.converged:
            return work
        coef, intercept, anchor = work.coef, work.intercept, work.dual if problem.rows.near else nothing
    start = newton.Start(coef, intercept, anchor, nothing, null)
    return after(work, solve_within(problem, basis, start, tol, max_iter, keep))


def _surveyed(problem: Problem, coef: Array, intercept: Array, null: NullModel, tol: float) -> Result:
    """This fit, with the certificate that the slopes of the loss give it: one sweep."""
    memory, ledger = problem.rows.new_memory(), Ledger(problem, null, tol)
    found = certify_survey(problem, memory, survey(problem, memory, coef, intercept), coef, null)
    ledger.enter(np.arange(problem.n_columns), coef, intercept, memory, found, 0)
    return replace(ledger.result(), sweeps=memory.sweeps)


def solve_within(
    problem: Problem,
    basis: Array | None,
    start: newton.Start,
    tol: float,
    max_iter: int,
    keep: Callable[[Array, Array], None] | None = None,
) -> Result:
    """All rows, first within the basis if there is one, and beyond it where that does not suffice."""
    # Where features are recomputed there is no room for others either, and duals of far rows cannot be carried on.
    if basis is None or not problem.rows.cached or not problem.rows.near:
        return newton.solve(problem, tol=tol, max_iter=max_iter, start=start, polish=False, keep=keep)
    inner = problem.within(basis)
    result = newton.solve(inner, tol=tol / 2, max_iter=max_iter, start=start.within(basis), polish=False)
    share, coef = basis.shape[1] / basis.shape[0], basis @ result.coef
    memory = inner.rows.new_memory()
    inner.place(memory, result.coef, result.intercept)  # the same residuals for less
    memory = problem.rows.new_memory(anchor=result.dual, residual=memory.collect("residual"))
    found = certify(problem, memory, coef, result.intercept, start.null)
    whole = replace(
        result, coef=coef, objective=found.objective, gap=found.gap, relative_gap=found.relative,
        status=statuses(found.relative, tol), sweeps=share * result.sweeps + 1 + memory.sweeps,
    )  # fmt: skip
    if whole.converged:
        return whole
    again = newton.Start(coef, result.intercept, result.dual, NEXT_WIDTH * start.width, start.null)
    more = newton.solve(problem, tol=tol, max_iter=max_iter, start=again, polish=False)
    return after(whole, more)
