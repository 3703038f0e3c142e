"""Large problems with a loss that is curved where most rows lie (squared, Huber, logistic): no row can be screened.

Two savings remain. `subsampled_newton` takes Newton steps with the full gradient and the Hessian of a sample, where
there are rows enough: each step is one pass over all rows. `solve_projected` runs Newton on all rows within the
low-rank basis, at a fraction of the cost. The certificate is always taken over all features; where the basis turns out
too small, Newton continues with all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from quernel.data import InMemoryDesign
from quernel.losses import Loss
from quernel.objective import InMemoryProblem, Problem
from quernel.objective.duality_gap import NullModel, certify, certify_gradient, full_gradient, null_model
from quernel.solvers import newton
from quernel.solvers.linear_system import NewtonSystem
from quernel.solvers.progress import stop_requested
from quernel.solvers.result import BestIterate, Result, after, certify_point, or_null, statuses

Array = NDArray[np.floating]

# Rows per feature of the sample, its smallest share of all rows, and the largest share at which it still pays.
ROWS_PER_FEATURE, MIN_SAMPLE_SHARE, MAX_SAMPLE_SHARE = 32, 1 / 8, 1 / 4
# Relative gap to which the sample is solved, times its number of rows: a share of its sampling error.
SAMPLE_ACCURACY = 0.02
# Steps end where one leaves more than this share of the gap: the Hessian of the sample is then too inaccurate.
MAX_GAP_RATIO = 0.4


def sample_size(problem: Problem) -> int | None:
    """Rows of the sample for the Hessian; None where it would be too large a share of all rows to pay."""
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
    callback: Callable[[Array, Array], None] | None = None,
) -> Result:
    """Newton with the full gradient and the Hessian of a sample of `size` rows, as long as the gap falls fast.

    `callback` is called with (coef, intercept) after every step.
    """
    q, goal = problem.n_columns, max(tol, SAMPLE_ACCURACY / size)
    initial = coef if basis is None else basis.T @ coef
    sample = problem.rows.sample(size, rng, basis)
    # The sample's solution, and its Hessians there, factorized once for all steps.
    _, (sample_fit, systems) = problem.run_at(_solve_sample, sample, initial, intercept, goal, max_iter)
    coef, intercept = sample_fit.coef if basis is None else basis @ sample_fit.coef, sample_fit.intercept.copy()
    state, best = problem.rows.new_state(), BestIterate(problem, null, tol)
    share = size * len(initial) / (problem.rows.n_rows * problem.rows.n_features)
    best.hessian_rows = sample_fit.hessian_rows
    for iteration in range(max_iter):
        # One pass: gradient and certificate, with the slopes of the loss as duals.
        found = full_gradient(problem, state, coef, intercept)
        certificate = certify_gradient(problem, state, found, coef, null)
        before = best.relative_gap.copy()
        best.update(np.arange(q), coef, intercept, state, certificate, int(sample_fit.iterations.max()) + iteration)
        if callback is not None:
            callback(coef, intercept)
        if stop_requested() or np.all((best.relative_gap <= tol) | (best.relative_gap > MAX_GAP_RATIO * before)):
            break
        # Newton step with the sample's Hessian, within the basis.
        gradient = 2 * problem.alpha * coef - found.phi_t_dual
        inner = gradient if basis is None else basis.T @ gradient
        steps = [system.direction(inner[:, k], -found.mean_dual[k]) for k, system in enumerate(systems)]
        move = np.column_stack([x for x, _ in steps])
        coef = coef + (move if basis is None else basis @ move)
        intercept = intercept + np.array([z for _, z in steps])
    result = best.result()
    return replace(result, sweeps=share * sample_fit.sweeps + state.sweeps)


def _solve_sample(
    problem: InMemoryProblem, rows: InMemoryDesign, coef: Array, intercept: Array, tol: float, max_iter: int
) -> tuple[None, tuple[Result, list[NewtonSystem]]]:
    """For `run_at`: solve the sample, and return its solution with the factorized Hessians there."""
    sample, zero = problem.on(rows), np.zeros(problem.n_columns)
    start = newton.Start(coef, intercept, zero, zero, null_model(sample))
    sample_fit = newton.solve(sample, tol=tol, max_iter=max_iter, start=start, polish=False)
    return None, (replace(sample_fit, dual=sample_fit.dual[:0]), _systems(sample, sample_fit))


def _systems(sample: InMemoryProblem, at: Result) -> list[NewtonSystem]:
    """Factorized Newton systems of all columns of a sample, at a fit."""
    state, zero, no = sample.rows.new_state(), np.zeros(sample.n_columns), np.zeros(sample.n_columns, dtype=bool)
    sample.set_coefficients(state, at.coef, at.intercept)
    curvatures = sample.curvature(state, zero, no, no)
    return [
        NewtonSystem(curvature, alpha, sample.fit_intercept)
        for curvature, alpha in zip(curvatures, sample.alpha, strict=True)
    ]


# Share of rows on curved pieces of the loss above which screening does not pay.
MAX_CURVED_SHARE = 0.25
# After the basis was dropped, losses with kinks continue with this share of their first smoothing width.
NEXT_WIDTH = 0.1


def is_curved(loss: Loss, residual: Array, dual: Array) -> bool:
    """Whether the loss is curved at more than a few of these residuals and duals (n, q)."""
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
    callback: Callable[[Array, Array], None] | None = None,
    *,
    solved: bool = False,
) -> Result:
    """Solve on all rows, warm-started from the solution (coef, intercept) on a sample.

    `callback` is called with (coef, intercept) after every step. A start that may be the solution already (`solved`) is
    certified first.
    """
    null, size = null_model(problem), sample_size(problem)
    work: Result | None = None
    nothing: Array = np.zeros(problem.n_columns)
    anchor = nothing
    if solved:
        work = certify_point(problem, coef, intercept, null, tol)
        if work.converged or stop_requested():
            return work
    if size is not None:
        work = after(work, subsampled_newton(problem, basis, coef, intercept, size, rng, null, tol, max_iter, callback))
        if work.converged or stop_requested():
            return work
        coef, intercept, anchor = work.coef, work.intercept, work.dual if len(work.dual) else nothing
    start = newton.Start(coef, intercept, anchor, nothing, null)
    return after(work, solve_projected(problem, basis, start, tol, max_iter, callback))


def solve_projected(
    problem: Problem,
    basis: Array | None,
    start: newton.Start,
    tol: float,
    max_iter: int,
    callback: Callable[[Array, Array], None] | None = None,
) -> Result:
    """Newton on all rows within the basis, certified over all features; continued without basis where needed."""
    # Projected features need memory of their own, and out of core the duals cannot be handed on.
    if basis is None or not problem.rows.random_access:
        return newton.solve(problem, tol=tol, max_iter=max_iter, start=start, polish=False, callback=callback)
    inner = problem.in_memory("Projected features").project(basis)
    result = newton.solve(inner, tol=tol / 2, max_iter=max_iter, start=start.project(basis), polish=False)
    share, coef = basis.shape[1] / basis.shape[0], basis @ result.coef
    state = inner.rows.new_state()
    inner.set_coefficients(state, result.coef, result.intercept)  # residuals are the same, and cheaper in the basis
    state = problem.rows.new_state(anchor=result.dual, residual=state.collect("residual"))
    found = certify(problem, state, coef, result.intercept, start.null)
    whole = replace(
        result, coef=coef, objective=found.objective, gap=found.gap, relative_gap=found.relative,
        status=statuses(found.relative, tol), sweeps=share * result.sweeps + 1 + state.sweeps,
    )  # fmt: skip
    if whole.converged or stop_requested():
        return or_null(whole, start.null, tol)
    again = newton.Start(coef, result.intercept, result.dual, NEXT_WIDTH * start.width, start.null)
    more = newton.solve(problem, tol=tol, max_iter=max_iter, start=again, polish=False)
    return after(whole, more)
