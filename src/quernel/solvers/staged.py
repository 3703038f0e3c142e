"""For losses that are curved where most rows lie: no row can be settled, but most directions can be left out.

From the solution on a sample, Newton's method with the curvature of a larger one (see `sampled`) where there are rows
enough, or on all rows within the basis of the directions that matter, at a fraction of the price; then the certificate
over all features. Where what was left out does matter, Newton goes on with all.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from quernel.certificate import certify, null_model
from quernel.problem import Problem
from quernel.solvers import newton, sampled
from quernel.solvers.result import Result, statuses

Array = NDArray[np.floating]

# The share of curved rows from which screening does not pay.
MOST = 0.25
# Beyond the basis, kinked losses go on with this share of the width they began with.
NEXT_WIDTH = 0.1


def curved(sample: Problem, result: Result) -> bool:
    """Whether the loss is curved where more than a few rows lie, at the solution on a sample."""
    loss = sample.loss
    if not np.all(loss.own_width > 0):
        return False
    memory = sample.rows.new_memory()
    sample.place(memory, result.coef, result.intercept)
    bent = loss.curvature(memory.collect("residual"), result.dual, 0.0) > 0
    return bool(np.max(np.mean(bent, axis=0)) > MOST)


def finish(
    problem: Problem, basis: Array | None, guess: Result, rng: np.random.Generator, tol: float, max_iter: int
) -> Result:
    """All rows, from the solution `guess` on a sample of them, which is within the basis."""
    null, size = null_model(problem), sampled.sample_size(problem)
    coef, intercept, work = guess.coef if basis is None else basis @ guess.coef, guess.intercept, None
    anchor: Array = np.zeros((problem.rows.n_rows, problem.n_columns), order="F")
    if size is not None:
        near = sampled.solve(problem, basis, guess, problem.sample(size, rng, basis), null, tol, max_iter)
        if near.converged:
            return near
        coef, intercept, anchor, work = near.coef, near.intercept, near.dual, near
    start = newton.Start(coef, intercept, anchor, np.zeros(problem.n_columns), null)
    return _after(work, solve_within(problem, basis, start, tol, max_iter))


def solve_within(problem: Problem, basis: Array | None, start: newton.Start, tol: float, max_iter: int) -> Result:
    """All rows, first within the basis if there is one, and beyond it where that does not suffice."""
    if basis is None or not problem.rows.cached:  # there is no room for other features either
        return newton.solve(problem, tol=tol, max_iter=max_iter, start=start, polish=False)
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
    return _after(whole, more)


def _after(first: Result | None, then: Result) -> Result:
    """The later result, with the work of both."""
    if first is None:
        return then
    return replace(
        then,
        iterations=then.iterations + first.iterations,
        sweeps=then.sweeps + first.sweeps,
        hessian_rows=then.hessian_rows + first.hessian_rows,
    )
