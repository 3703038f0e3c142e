"""Large problems with a loss that is curved where most rows lie (squared, Huber, logistic): no row can be screened.

Two savings remain. Where there are rows enough, Newton steps with the full gradient and the Hessian of a sample: each
is one pass over all rows. Otherwise, and where these do not get there, Newton on all rows within the low-rank basis, at
a fraction of the cost (`newton.solve_in_basis`). The certificate is always taken over all features.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quernel.data import InMemoryDesign
from quernel.objective import InMemoryProblem, Problem
from quernel.objective.duality_gap import certify_gradient, full_gradient
from quernel.objective.null_model import NullModel, null_model
from quernel.solvers import newton
from quernel.solvers.linear_system import NewtonSystem
from quernel.solvers.progress import stop_requested
from quernel.solvers.result import BestIterate, Limits, Result, after, certify_point

Array = NDArray[np.floating]
PointCallback = Callable[[Array, Array], None]


@dataclass(frozen=True)
class SmoothOptions:
    """When a sample's Hessian is used in place of that of all rows."""

    # Rows per feature of the sample, its smallest share of all rows, and the largest share at which it still pays.
    rows_per_feature: int = 32
    min_sample_share: float = 1 / 8
    max_sample_share: float = 1 / 4
    # Relative gap to which the sample is solved, times its number of rows: a share of its sampling error.
    sample_accuracy: float = 0.02
    # Steps end where one leaves more than this share of the gap: the Hessian of the sample is then too inaccurate.
    max_gap_ratio: float = 0.4


OPTIONS = SmoothOptions()


@dataclass(frozen=True, eq=False)
class SmoothStart:
    """The fit to a sample, from which all rows are solved: coef (M, q), intercept (q,), and a basis (M, k) or None.

    Where it may be the solution already (`solved`), it is certified first.
    """

    coef: Array
    intercept: Array
    basis: Array | None
    solved: bool = False


def solve_smooth(
    problem: Problem, start: SmoothStart, rng: np.random.Generator, limits: Limits, callback: PointCallback
) -> Result:
    """Solve on all rows; `callback` is called with (coef, intercept) after every step."""
    null, size, work = null_model(problem), sample_size(problem), None
    zero: Array = np.zeros(problem.n_columns)
    coef, intercept, anchor = start.coef, start.intercept, zero
    if start.solved:
        work = certify_point(problem, coef, intercept, null, limits.tol)
        if work.converged or stop_requested():
            return work
    if size is not None:
        sample = problem.rows.sample(size, rng, start.basis)
        steps = _subsampled_newton(problem, start, sample, size, null, limits, callback)
        del sample
        work = after(work, steps)
        if work.converged or stop_requested():
            return work
        coef, intercept, anchor = work.coef, work.intercept, work.dual if len(work.dual) else zero
    again = newton.Start(coef, intercept, anchor, zero, null)
    return after(work, newton.solve_in_basis(problem, start.basis, again, limits, callback))


def sample_size(problem: Problem) -> int | None:
    """Rows of the sample for the Hessian; None where it would be too large a share of all rows to pay."""
    n = problem.rows.n_rows
    least = min(int(OPTIONS.min_sample_share * n), problem.rows.most_stored)
    size = max(OPTIONS.rows_per_feature * problem.rows.n_features, least)
    return size if size <= OPTIONS.max_sample_share * n else None


def _subsampled_newton(
    problem: Problem,
    start: SmoothStart,
    sample: Any,
    size: int,
    null: NullModel,
    limits: Limits,
    callback: PointCallback,
) -> Result:
    """Newton with the full gradient and the Hessian of a sample of `size` rows, as long as the gap falls fast."""
    q, tol, basis = problem.n_columns, limits.tol, start.basis
    initial = start.coef if basis is None else basis.T @ start.coef
    # The sample's solution, and its Hessians there, factorized once for all steps.
    goal = Limits(max(tol, OPTIONS.sample_accuracy / size), limits.max_iter)
    _, (sample_fit, systems) = problem.run_at(_solve_sample, sample, initial, start.intercept, goal)
    coef, intercept = sample_fit.coef if basis is None else basis @ sample_fit.coef, sample_fit.intercept.copy()
    state, best = problem.rows.new_state(), BestIterate(problem, null, tol)
    share = size * len(initial) / (problem.rows.n_rows * problem.rows.n_features)
    best.hessian_rows, before = sample_fit.hessian_rows, np.full(q, np.inf)
    for iteration in range(limits.max_iter):
        # One pass: gradient and certificate, with the slopes of the loss as duals.
        intercept = problem.round_intercept(coef, intercept)
        found = full_gradient(problem, state, coef, intercept)
        certificate = certify_gradient(problem, state, found, coef, intercept, null)
        best.update(np.arange(q), coef, intercept, state, certificate, int(sample_fit.iterations.max()) + iteration)
        callback(coef, intercept)
        slow, before = best.relative_gap > OPTIONS.max_gap_ratio * before, best.relative_gap
        if stop_requested() or np.all((best.relative_gap <= tol) | slow):
            break
        # Newton step with the sample's Hessian, within the basis.
        gradient = 2 * problem.alpha * coef - found.phi_t_dual
        inner = gradient if basis is None else basis.T @ gradient
        steps = [system.direction(inner[:, k], -found.mean_dual[k]) for k, system in enumerate(systems)]
        move = np.column_stack([x for x, _ in steps])
        coef = coef + (move if basis is None else basis @ move)
        intercept = intercept + np.array([z for _, z in steps])
    return replace(best.result(), sweeps=share * sample_fit.sweeps + state.sweeps)


def _solve_sample(
    problem: InMemoryProblem, rows: InMemoryDesign, coef: Array, intercept: Array, limits: Limits
) -> tuple[None, tuple[Result, list[NewtonSystem]]]:
    """For `run_at`: solve the sample, and return its solution with the factorized Hessians there."""
    sample, zero = problem.on(rows), np.zeros(problem.n_columns)
    start = newton.Start(coef, intercept, zero, zero, null_model(sample))
    sample_fit = newton.solve(sample, tol=limits.tol, max_iter=limits.max_iter, start=start, polish=False)
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
