"""For losses that are is_curved where most rows lie: no row can be settled, but most directions can be left out.

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
from quernel.objective.duality_gap import NullModel, certify, certify_gradient, full_gradient, null_model
from quernel.solvers import newton
from quernel.solvers.linear_system import NewtonSystem
from quernel.solvers.result import BestIterate, Result, after, statuses

Array = NDArray[np.floating]

# The sample has so many rows per feature, and at least this share of all; beyond that share, it is no sample.
ROWS_PER_FEATURE, MIN_SAMPLE_SHARE, MAX_SAMPLE_SHARE = 32, 1 / 8, 1 / 4
# It is solved to this share of its own statistical error.
SAMPLE_ACCURACY = 0.02
# A step that leaves more than this part of the gap shows that the sample's curvature is not that of all rows.
SLOW = 0.4


def sample_size(problem: Problem) -> int | None:
    """How many rows give the curvature; None where that would be too large a part of all to save much."""
    n = problem.rows.n_rows
    size = max(ROWS_PER_FEATURE * problem.rows.n_features, min(int(MIN_SAMPLE_SHARE * n), problem.rows.most_stored))
    return size if size <= MAX_SAMPLE_SHARE * n else None


def subsampled_newton(
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
    q, goal = problem.n_columns, max(tol, SAMPLE_ACCURACY / size)
    guess = coef if basis is None else basis.T @ coef
    sample = problem.rows.sample(size, rng, basis)
    _, (sample_fit, systems) = problem.run_at(_solve_sample, sample, guess, intercept, goal, max_iter)
    coef, intercept = sample_fit.coef if basis is None else basis @ sample_fit.coef, sample_fit.intercept.copy()
    state, best = problem.rows.new_memory(), BestIterate(problem, null, tol)
    share = size * len(guess) / (problem.rows.n_rows * problem.rows.n_features)
    best.hessian_rows = sample_fit.hessian_rows
    for iteration in range(max_iter):
        found = full_gradient(problem, state, coef, intercept)
        certificate = certify_gradient(problem, state, found, coef, null)
        before = best.relative_gap.copy()
        best.update(np.arange(q), coef, intercept, state, certificate, int(sample_fit.iterations.max()) + iteration)
        if keep is not None:
            keep(coef, intercept)
        if np.all((best.relative_gap <= tol) | (best.relative_gap > SLOW * before)):
            break
        gradient = 2 * problem.alpha * coef - found.phi_t_dual
        inner = gradient if basis is None else basis.T @ gradient
        steps = [system.direction(inner[:, k], -found.mean_dual[k]) for k, system in enumerate(systems)]
        move = np.column_stack([x for x, _ in steps])
        coef = coef + (move if basis is None else basis @ move)
        intercept = intercept + np.array([z for _, z in steps])
    result = best.result()
    return replace(result, sweeps=share * sample_fit.sweeps + state.sweeps)


def _solve_sample(
    problem: Problem, rows: InMemoryDesign, coef: Array, intercept: Array, tol: float, max_iter: int
) -> tuple[None, tuple[Result, list[NewtonSystem]]]:
    """A sample's own solution, and the Newton systems of its columns there: these go to where the rows are."""
    sample, zero = problem.on(rows), np.zeros(problem.n_columns)
    start = newton.Start(coef, intercept, zero, zero, null_model(sample))
    sample_fit = newton.solve(sample, tol=tol, max_iter=max_iter, start=start, polish=False)
    return None, (replace(sample_fit, dual=sample_fit.dual[:0]), _systems(sample, sample_fit))


def _systems(sample: Problem, at: Result) -> list[NewtonSystem]:
    """The Newton systems of a sample's columns at a fit."""
    state, zero, no = sample.rows.new_memory(), np.zeros(sample.n_columns), np.zeros(sample.n_columns, dtype=bool)
    sample.set_coefficients(state, at.coef, at.intercept)
    curvatures = sample.curvature(state, zero, no, no)
    return [
        NewtonSystem(curvature, alpha, sample.fit_intercept)
        for curvature, alpha in zip(curvatures, sample.alpha, strict=True)
    ]


# The share of is_curved rows from which screening does not pay.
MAX_CURVED_SHARE = 0.25
# Beyond the basis, kinked losses go on with this share of the width they began with.
NEXT_WIDTH = 0.1


def is_curved(loss: Loss, residual: Array, dual: Array) -> bool:
    """Whether the loss is is_curved where more than a few rows lie, by their residuals and duals at some fit."""
    if not np.all(loss.smoothing_width > 0):
        return False
    bent = loss.curvature(residual, dual, 0.0) > 0
    return bool(np.max(np.mean(bent, axis=0)) > MAX_CURVED_SHARE)


def solve_curved(
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
    null, size = null_model(problem), sample_size(problem)
    work: Result | None = None
    nothing: Array = np.zeros(problem.n_columns)
    anchor = nothing
    if solved:
        work = _certify_guess(problem, coef, intercept, null, tol)
        if work.converged:
            return work
    if size is not None:
        work = after(work, subsampled_newton(problem, basis, coef, intercept, size, rng, null, tol, max_iter, keep))
        if work.converged:
            return work
        coef, intercept, anchor = work.coef, work.intercept, work.dual if problem.rows.near else nothing
    start = newton.Start(coef, intercept, anchor, nothing, null)
    return after(work, solve_projected(problem, basis, start, tol, max_iter, keep))


def _certify_guess(problem: Problem, coef: Array, intercept: Array, null: NullModel, tol: float) -> Result:
    """This fit, with the certificate that the slopes of the loss give it: one sweep."""
    state, best = problem.rows.new_memory(), BestIterate(problem, null, tol)
    found = certify_gradient(problem, state, full_gradient(problem, state, coef, intercept), coef, null)
    best.update(np.arange(problem.n_columns), coef, intercept, state, found, 0)
    return replace(best.result(), sweeps=state.sweeps)


def solve_projected(
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
    state = inner.rows.new_memory()
    inner.set_coefficients(state, result.coef, result.intercept)  # the same residuals for less
    state = problem.rows.new_memory(anchor=result.dual, residual=state.collect("residual"))
    found = certify(problem, state, coef, result.intercept, start.null)
    whole = replace(
        result, coef=coef, objective=found.objective, gap=found.gap, relative_gap=found.relative,
        status=statuses(found.relative, tol), sweeps=share * result.sweeps + 1 + state.sweeps,
    )  # fmt: skip
    if whole.converged:
        return whole
    again = newton.Start(coef, result.intercept, result.dual, NEXT_WIDTH * start.width, start.null)
    more = newton.solve(problem, tol=tol, max_iter=max_iter, start=again, polish=False)
    return after(whole, more)
