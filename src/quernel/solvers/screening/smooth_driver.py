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

from quernel.data import InMemoryDesign
from quernel.losses import Loss
from quernel.objective import Problem
from quernel.objective.duality_gap import NullModel, certify, certify_survey, null_model, survey
from quernel.solvers import newton
from quernel.solvers.linear_system import NewtonSystem
from quernel.solvers.result import BestIterate, Result, after, statuses
from quernel.solvers.screening import smooth_driver

Array = NDArray[np.floating]

# The sample has so many rows per feature, and at least this share of all; beyond that share, it is no sample.
ROWS_PER_FEATURE, MIN_SAMPLE_SHARE, MAX_SAMPLE_SHARE = 32, 1 / 8, 1 / 4
# It is solved to this share of its own statistical error.
ACCURACY = 0.02
# A step that leaves more than this part of the gap shows that the sample's curvature is not that of all rows.
SLOW = 0.4


def sample_size(problem: Problem) -> int | None:
    """How many rows give the curvature; None where that would be too large a part of all to save much."""
    n = problem.rows.n_rows
    size = max(ROWS_PER_FEATURE * problem.rows.n_features, min(int(MIN_SAMPLE_SHARE * n), problem.rows.most_stored))
    return size if size <= MAX_SAMPLE_SHARE * n else None


def solve(
    problem: Problem,
    basis: Array | None,
    coef: Array,
    intercept: Array,
    size: int,
    rng: np.random.Generator,
    null: NullModel,
    tol: float,
    max_iter: int,
    keep: Callable[[Array, Array], None] | None = None,
) -> Result:
    """All rows from a guess, as far as steps with the curvature of a sample lead; `keep` is told of every step."""
    q, goal = problem.n_columns, max(tol, ACCURACY / size)
    guess = coef if basis is None else basis.T @ coef
    sample = problem.rows.sample(size, rng, basis)
    _, (near, systems) = problem.run_at(_solve_sample, sample, guess, intercept, goal, max_iter)
    coef, intercept = near.coef if basis is None else basis @ near.coef, near.intercept.copy()
    memory, ledger = problem.rows.new_memory(), BestIterate(problem, null, tol)
    share = size * len(guess) / (problem.rows.n_rows * problem.rows.n_features)
    ledger.hessian_rows = near.hessian_rows
    for iteration in range(max_iter):
        found = survey(problem, memory, coef, intercept)
        certificate = certify_survey(problem, memory, found, coef, null)
        before = ledger.relative_gap.copy()
        ledger.enter(np.arange(q), coef, intercept, memory, certificate, int(near.iterations.max()) + iteration)
        if keep is not None:
            keep(coef, intercept)
        if np.all((ledger.relative_gap <= tol) | (ledger.relative_gap > SLOW * before)):
            break
        gradient = 2 * problem.alpha * coef - found.force
        inner = gradient if basis is None else basis.T @ gradient
        steps = [system.direction(inner[:, k], -found.balance[k]) for k, system in enumerate(systems)]
        move = np.column_stack([x for x, _ in steps])
        coef = coef + (move if basis is None else basis @ move)
        intercept = intercept + np.array([z for _, z in steps])
    result = ledger.result()
    return replace(result, sweeps=share * near.sweeps + memory.sweeps)


def _solve_sample(
    problem: Problem, rows: InMemoryDesign, coef: Array, intercept: Array, tol: float, max_iter: int
) -> tuple[None, tuple[Result, list[NewtonSystem]]]:
    """A sample's own solution, and the Newton systems of its columns there: these go to where the rows are."""
    sample, still = problem.on(rows), np.zeros(problem.n_columns)
    start = newton.Start(coef, intercept, still, still, null_model(sample))
    near = newton.solve(sample, tol=tol, max_iter=max_iter, start=start, polish=False)
    return None, (replace(near, dual=near.dual[:0]), _systems(sample, near))


def _systems(sample: Problem, at: Result) -> list[NewtonSystem]:
    """The Newton systems of a sample's columns at a fit."""
    memory, still, no = sample.rows.new_memory(), np.zeros(sample.n_columns), np.zeros(sample.n_columns, dtype=bool)
    sample.set_coefficients(memory, at.coef, at.intercept)
    curvatures = sample.curvature(memory, still, no, no)
    return [
        NewtonSystem(curvature, alpha, sample.fit_intercept)
        for curvature, alpha in zip(curvatures, sample.alpha, strict=True)
    ]


# The share of curved rows from which screening does not pay.
MOST = 0.25
# Beyond the basis, kinked losses go on with this share of the width they began with.
NEXT_WIDTH = 0.1


def curved(loss: Loss, residual: Array, dual: Array) -> bool:
    """Whether the loss is curved where more than a few rows lie, by their residuals and duals at some fit."""
    if not np.all(loss.smoothing_width > 0):
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
    null, size = null_model(problem), smooth_driver.sample_size(problem)
    work: Result | None = None
    nothing: Array = np.zeros(problem.n_columns)
    anchor = nothing
    if solved:
        work = _surveyed(problem, coef, intercept, null, tol)
        if work.converged:
            return work
    if size is not None:
        work = after(work, smooth_driver.solve(problem, basis, coef, intercept, size, rng, null, tol, max_iter, keep))
        if work.converged:
            return work
        coef, intercept, anchor = work.coef, work.intercept, work.dual if problem.rows.near else nothing
    start = newton.Start(coef, intercept, anchor, nothing, null)
    return after(work, solve_within(problem, basis, start, tol, max_iter, keep))


def _surveyed(problem: Problem, coef: Array, intercept: Array, null: NullModel, tol: float) -> Result:
    """This fit, with the certificate that the slopes of the loss give it: one sweep."""
    memory, ledger = problem.rows.new_memory(), BestIterate(problem, null, tol)
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
    inner.set_coefficients(memory, result.coef, result.intercept)  # the same residuals for less
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
