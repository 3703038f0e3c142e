"""Semismooth Newton on the augmented Lagrangian (Li, Sun and Toh 2018), for all columns together.

Each column minimises its smoothed objective F_d (see `objective.problem`) for a decreasing sequence of widths d:

1. Gradient. Sums at the current residuals give the gradient of F_d and, at no extra cost, the two parts of the duality
   gap: Fenchel gap and dual residual.
2. Multiplier step. Where the inner problem is solved well enough, the duals become the multipliers and d shrinks. The
   next direction then uses the Hessian of the rows whose multipliers are strictly inside their box, not of the rows
   active at the new width: those would be few, and the step far too long.
3. Newton step. One direction (`linear_system`), with an exact line search.

The inner problem counts as solved when the Newton decrement is small against the Fenchel gap, which is what the next
multiplier step can gain. Once the Fenchel gap is within the tolerance, d no longer matters, and what remains is to
reduce the dual residual. A column has converged when its certificate says so. Small problems are then polished to
rounding error: the active set is identified by then, and Newton converges in a few steps.

A smooth loss needs no smoothing once d is below its own width: from there on this is Newton's method on F with exact
line search. For least squares the first step is the last.

First point (`ridge_start`) of Newton's method on problems with few rows per feature: ridge regression on a sample. From
the best constant the first steps have nearly all rows active, each as expensive as ridge regression on all of them. The
residuals of ridge regression, even on a sample, show which rows are far from their quantile.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from quernel._machine import parallel_map
from quernel.data import RowStateLike
from quernel.data.design_matrix import stratified_indices
from quernel.losses import weighted_quantiles
from quernel.objective import Curvature, DualSums, InMemoryProblem, Problem, take_columns
from quernel.objective.duality_gap import (
    NullModel,
    certify,
    dual_variance,
    null_model,
    relative,
    residual_bound,
    weak_ridge,
)
from quernel.solvers.linear_system import ActiveGram, NewtonSystem
from quernel.solvers.progress import Progress, report, report_step, stop_requested
from quernel.solvers.result import BestIterate, Limits, Result, after

Array = NDArray[np.floating]

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class NewtonOptions:
    """What the method trades: steps against their cost, and digits against steps."""

    # The line search ends where the derivative is at most this share of the one predicted at step 0 ...
    slope_tolerance: float = 1e-2
    # ... or after so many probes.
    max_probes: int = 60
    # Bisections of the interval from 0 before it is made much shorter.
    bisections: int = 6
    # Factor by which the width shrinks after a multiplier step.
    shrink: float = 0.5
    # The inner problem counts as solved when the Newton decrement is at most this share of the Fenchel gap.
    decrement_tolerance: float = 0.1
    # A smooth loss is not smoothed further once the width is at most this multiple of its own.
    min_width_ratio: float = 10
    # Smallest ratio of the ridge 2 alpha d / share_i in the dual (row-side) system to |phi|^2; below, it loses all
    # digits.
    condition: float = 1e-13
    # Smallest width, as a share of the first, where systems are damped instead.
    min_damped_width: float = 1e-9
    # Smallest ridge 2 alpha of updated (feature-side) systems, as a share of the trace of the rest.
    feature_ridge: float = 1e-11
    # Gram matrices of all columns, at most, in units of the features.
    max_grams: float = 4.0
    # Rows that may change, as a share of the features, before a system is factorized again.
    max_rank: float = 0.1
    # A column is given up after so many multiplier steps that did not bring its gap to this share: rounding is reached.
    max_stalls: int = 60
    improvement: float = 0.9
    # Problems up to this size (rows x features) are polished, for at most so many steps, ...
    small: int = 2_000_000
    polish_steps: int = 12
    # ... the last of which are certified, if no earlier one reached rounding error, ...
    last_steps: int = 2
    # ... to this relative gap.
    rounding: float = 1e-16
    # After a low-rank basis was dropped, losses with kinks continue with this share of their first smoothing width.
    width_after_basis: float = 0.1


OPTIONS = NewtonOptions()


@dataclass(frozen=True)
class RidgeStartOptions:
    """When to start from ridge regression, and how."""

    rows_per_feature: int = 4  # of the sample ...
    share: float = 2 / 3  # ... and of all rows, at most
    min_rows_per_feature: int = 2  # of all rows
    least: int = 2_000_000  # feature entries of all rows: on fewer it saves nothing
    width: float = 0.15  # smoothing width of the first step, as a share of that at the best constant


RIDGE = RidgeStartOptions()


def exact_step(derivatives: Callable[[Array], tuple[Array, Array]], first_slope: Array, tolerance: float) -> Array:
    """Exact line search: step lengths t >= 0 (q,) at which the derivative of a convex function vanishes.

    derivatives(t) gives the first and second derivative (q,); the first is increasing in t. Newton's method on it,
    safeguarded by doubling and bisection, until it is at most `tolerance` times the one predicted at step 0.
    """
    low, high, step = np.zeros_like(first_slope), np.full_like(first_slope, np.inf), np.ones_like(first_slope)
    for probe in range(OPTIONS.max_probes):
        slope, curvature = derivatives(step)
        found = np.abs(slope) <= tolerance * first_slope
        if found.all():
            break
        low = np.where(slope < 0, step, low)
        high = np.where(slope < 0, high, step)
        newton = step - np.divide(slope, curvature, out=np.full_like(slope, np.nan), where=curvature > 0)
        inside = (newton > low) & (newton < high)
        # A direction without active rows can be too long by many powers of ten.
        shorter = (low + high) / 2 if probe < OPTIONS.bisections else np.where(low > 0, (low + high) / 2, 1e-3 * high)
        halfway = np.where(np.isfinite(high), shorter, 2 * step)
        step = np.where(found, step, np.where(inside, newton, halfway))
    return step


@dataclass
class _Columns:
    """Mutable state of the columns that have not converged.

    Attributes
    ----------
    problem, null, state, coef, intercept
        Problem, null model, row state and iterate, restricted to these columns.
    index : array of shape (q,)
        Positions of these columns in the original problem.
    width, floor : arrays of shape (q,)
        Smoothing width d, and its lower bound for the sake of the linear algebra.
    goal : array of shape (q,)
        Relative gap to reach: `tol`, then that of rounding error while polishing.
    polish : array of shape (q,)
        Polishing steps left; negative when the column is finished.
    systems : list
        Factorized Newton system of each column's last step, or None.
    grams : list
        Second moments of each column's active rows, which steps update; None where every step sums them anew.
    least, stalls : arrays of shape (q,)
        Smallest estimate of the relative gap so far, and multiplier steps since.
    """

    problem: Problem
    null: NullModel
    index: NDArray[np.intp]
    state: RowStateLike
    coef: Array
    intercept: Array
    width: Array
    floor: Array
    goal: Array
    polish: NDArray[np.intp]
    systems: list[NewtonSystem | None]
    grams: list[ActiveGram | None]
    least: Array
    stalls: NDArray[np.intp]

    def take(self, columns: NDArray[np.intp]) -> _Columns:
        """Some of the columns, by position."""
        return take_columns(self, columns)


@dataclass(frozen=True, eq=False)
class Start:
    """A warm start: coef (M, q), intercept (q,), multipliers `anchor`, widths (q,), and the null model.

    `anchor` is (n, q), or (q,) if all rows of a column have the same multiplier.
    """

    coef: Array
    intercept: Array
    anchor: Array
    width: Array
    null: NullModel

    def take(self, columns: NDArray[np.intp]) -> Start:
        """The start of some of the columns."""
        return take_columns(self, columns)

    def project(self, basis: Array | None) -> Start:
        """The same start in the coordinates z of u = B z; no basis leaves it as it is."""
        return self if basis is None else replace(self, coef=basis.T @ self.coef)


def solve(
    problem: Problem,
    *,
    tol: float = 1e-6,
    max_iter: int = 1000,
    start: Start | None = None,
    polish: bool = True,
    callback: Callable[[Array, Array], None] | None = None,
    best: BestIterate | None = None,
) -> Result:
    """Minimise F for every column to a relative duality gap of at most `tol`.

    Parameters
    ----------
    problem : Problem
    tol : float
    max_iter : int
        Newton steps of every column.
    start : Start or None
        Warm start; None starts from the best constant.
    polish : bool
        Whether small problems continue below `tol` down to rounding error.
    callback : callable or None
        Called with (coef, intercept) after every step.
    best : BestIterate or None
        What is known of the problem already; None knows the null model only.
    """
    start = start if start is not None else cold_start(problem)
    best = BestIterate(problem, start.null, tol) if best is None else best
    columns, iteration = _initialize(problem, start, tol, polish), 0
    report(Progress(0, len(columns.index), float(np.max(best.relative_gap, initial=0))))
    for iteration in range(max_iter):
        if len(columns.index) == 0 or stop_requested():
            break
        # 1. Gradient.
        sums = columns.problem.smoothed_gradient(columns.state, columns.width)
        inner_done, estimate = _inner_converged(columns, sums)
        # 2. Multiplier step, where the inner problem is solved; certificate, where it looks small enough.
        if inner_done.any():
            columns.problem.update_multipliers(columns.state, columns.width, inner_done)
            _certify(columns, sums, inner_done, estimate, best, iteration)
            columns.width = np.where(inner_done, _next_width(columns), columns.width)
        # Columns that are done leave.
        columns.polish = columns.polish - (columns.goal == OPTIONS.rounding)
        unfinished = np.flatnonzero(columns.polish >= 0)
        if len(unfinished) < len(columns.index):
            best.sweeps += columns.state.sweeps
            columns, sums, inner_done = columns.take(unfinished), sums.take(unfinished), inner_done[unfinished]
            columns.state.sweeps = 0
        # 3. Newton step.
        if len(unfinished):
            _step(columns, sums, inner_done)
            best.hessian_rows += int(sums.active.sum())
            report_step(Progress(iteration + 1, len(columns.index), float(np.max(best.relative_gap))))
            if callback is not None:
                callback(*_all_columns(columns, best))
    if len(columns.index) and stop_requested():  # with as few passes as possible
        _certify_stopped(columns, best, iteration)
    elif len(columns.index):  # out of steps: certify what was reached
        sums = columns.problem.smoothed_gradient(columns.state, columns.width)
        columns.problem.update_multipliers(columns.state, columns.width, np.ones(len(columns.index), dtype=bool))
        _certify_and_record(columns, sums.active == 0, best, max_iter)
    best.sweeps += columns.state.sweeps
    return best.result()


def solve_in_basis(
    problem: Problem,
    basis: Array | None,
    start: Start,
    limits: Limits,
    callback: Callable[[Array, Array], None] | None = None,
    *,
    from_null: bool = True,
) -> Result:
    """Newton on all rows within a basis (M, k), certified over all features; continued without basis where needed.

    `callback` is called with (coef, intercept) after every step over all features; `from_null` as in `BestIterate`.
    """
    tol, max_iter, best = limits.tol, limits.max_iter, BestIterate(problem, start.null, limits.tol, from_null=from_null)
    # Projected features need memory of their own, and out of core the duals cannot be handed on.
    if basis is None or not problem.rows.random_access:
        return solve(problem, tol=tol, max_iter=max_iter, start=start, polish=False, callback=callback, best=best)
    inner = problem.in_memory("Projected features").project(basis)
    result = solve(inner, tol=tol / 2, max_iter=max_iter, start=start.project(basis), polish=False)
    share, coef = basis.shape[1] / basis.shape[0], basis @ result.coef
    state, intercept = inner.rows.new_state(), problem.round_intercept(coef, result.intercept)
    inner.set_coefficients(state, result.coef, intercept)  # residuals are the same, and cheaper in the basis
    state = problem.rows.new_state(anchor=result.dual, residual=state.collect("residual"))
    found = certify(problem, state, coef, intercept, start.null)
    best.update(np.arange(problem.n_columns), coef, intercept, state, found, 0)
    sweeps = share * result.sweeps + 1 + state.sweeps
    whole = replace(best.result(), iterations=result.iterations, sweeps=sweeps, hessian_rows=result.hessian_rows)
    if whole.converged or stop_requested():
        return whole
    width = OPTIONS.width_after_basis * start.width
    again = Start(coef, result.intercept, result.dual, width, start.null)
    return after(whole, solve(problem, tol=tol, max_iter=max_iter, start=again, polish=False, best=best))


def _all_columns(columns: _Columns, best: BestIterate) -> tuple[Array, Array]:
    """Current coefficients and intercepts of all columns: the best of those that have left, the present of others."""
    coef, intercept = best.coef.copy(), best.intercept.copy()
    coef[:, columns.index], intercept[columns.index] = columns.coef, columns.intercept
    return coef, intercept


def cold_start(problem: Problem, null: NullModel | None = None) -> Start:
    """The best constant, multipliers 0, and a width so large that the first step is close to a ridge regression."""
    null = null or null_model(problem)
    coef = np.zeros((problem.rows.n_features, problem.n_columns))
    variance = dual_variance(problem)
    width = np.divide(null.objective, variance, out=np.ones_like(variance), where=variance > 0)
    return Start(coef, null.constant, np.zeros(problem.n_columns), width, null)


def ridge_start(problem: InMemoryProblem) -> Start:
    """The start of a solve: ridge regression on a sample where that pays, else the best constant.

    At a large width the first Newton step of every level is least squares: one system serves all of them, and each
    begins at its own quantile of the residuals.
    """
    start, rows = cold_start(problem), problem.rows
    n, M = rows.n_rows, rows.n_features
    size = int(min(RIDGE.rows_per_feature * M, RIDGE.share * n))
    large = n >= RIDGE.min_rows_per_feature * M and n * M > RIDGE.least
    two_piece = problem.loss.is_two_piece and not problem.loss.margin and rows.target.ndim == 1
    if not (large and two_piece and rows.random_access and np.ptp(problem.alpha) == 0) or weak_ridge(
        problem, start.null
    ):
        return start
    Phi, y = rows.as_array("A sample is kept"), rows.target
    sample, gram = np.sort(stratified_indices(n, size, np.random.default_rng(0))), ActiveGram(rows)
    width = float(start.width.mean()) * float(rows.share[sample].sum())
    system = gram.system(sample, width, float(problem.alpha[0]), problem.fit_intercept, np.empty(0), rows.threads)
    weighted = rows.share[sample] * y[sample] / width
    coef, intercept = system.direction(-(weighted @ Phi[sample]), -float(weighted.sum()))
    residual = y - Phi @ coef - intercept
    low, high = problem.loss.domain
    shift: Array = np.zeros(problem.n_columns)
    if problem.fit_intercept:
        shift = weighted_quantiles(residual, rows.share, high / (high - low))
    widths = RIDGE.width * start.width
    anchor = np.asfortranarray(np.clip((residual[:, None] - shift) / widths, low, high))
    return Start(np.tile(coef[:, None], problem.n_columns), intercept + shift, anchor, widths, start.null)


def _initialize(problem: Problem, start: Start, tol: float, polish: bool) -> _Columns:
    """All columns at the start, except those that the constant fits exactly."""
    q, small = problem.n_columns, problem.rows.n_rows * problem.rows.n_features <= OPTIONS.small
    same = start.anchor.ndim == 1
    state = problem.rows.new_state() if same else problem.rows.new_state(anchor=start.anchor)
    if same:
        problem.set_multipliers(state, start.anchor)
    problem.set_coefficients(state, start.coef, start.intercept)
    floor = OPTIONS.condition * problem.rows.kernel_scale() * problem.rows.largest_share / (2 * problem.alpha)
    width = _drop_if_smooth(problem, start.width)
    floor = np.minimum(floor, (OPTIONS.min_damped_width if weak_ridge(problem, start.null) else 1e-4) * width)
    columns = _Columns(
        problem, start.null, np.arange(q), state, start.coef.copy(), start.intercept.copy(), width,
        np.where(problem.loss.smoothing_width > 0, 0, floor), np.full(q, tol),
        np.full(q, OPTIONS.polish_steps if polish and small else 0), [None] * q,
        _active_grams(problem, start.null), np.full(q, np.inf), np.zeros(q, dtype=np.intp),
    )  # fmt: skip
    # Where the constant fits exactly, F0 = 0 is the minimum.
    return columns.take(np.flatnonzero(start.null.objective > 0))


def _active_grams(problem: Problem, null: NullModel) -> list[ActiveGram | None]:
    """Sums that each column's Hessians are updated from, or None: the first step adds all active rows to empty ones."""
    if not _can_update(problem, null):
        return [None] * problem.n_columns
    rows = problem.rows.in_memory("Active rows are summed")
    return [ActiveGram(rows) for _ in range(problem.n_columns)]


def _can_update(problem: Problem, null: NullModel) -> bool:
    """Whether Hessians can be updated by the rows that change: all have one curvature, and are at hand in memory."""
    rows = problem.rows
    if not (rows.random_access and problem.loss.is_two_piece) or weak_ridge(problem, null):
        return False
    # One Gram matrix per column: not many times the memory of the features.
    return problem.n_columns * rows.n_features <= OPTIONS.max_grams * rows.n_rows


def _drop_if_smooth(problem: Problem, width: Array) -> Array:
    """The width (q,), or 0 where the loss itself is about as smooth.

    Without smoothing, duals are slopes of the loss, the Fenchel gap is 0, and multiplier steps are over.
    """
    return np.where(width > OPTIONS.min_width_ratio * problem.loss.smoothing_width, width, 0.0)


def _next_width(columns: _Columns) -> Array:
    """Widths (q,) after a multiplier step."""
    return np.maximum(_drop_if_smooth(columns.problem, OPTIONS.shrink * columns.width), columns.floor)


def _gradient(columns: _Columns, sums: DualSums) -> tuple[Array, Array]:
    """Gradient of F_d: (M, q) in coef and (q,) in intercept."""
    slope = -sums.mean_dual if columns.problem.fit_intercept else np.zeros_like(sums.mean_dual)
    return 2 * columns.problem.alpha * columns.coef - sums.phi_t_dual, slope


def _duals_balanced(columns: _Columns, sums: DualSums) -> Mask:
    """Columns whose duals are balanced: mean v is small enough not to matter to the gap."""
    heavier = np.maximum(sums.positive, sums.negative)
    return np.abs(sums.mean_dual) <= 0.1 * columns.goal * heavier if columns.problem.fit_intercept else heavier >= 0


def _inner_converged(columns: _Columns, sums: DualSums) -> tuple[Mask, Array]:
    """Columns whose inner problem is solved well enough for a multiplier step, and estimates of relative gaps (q,).

    That is to a share of the Fenchel gap or, once that is within the goal, until the dual residual is, too.
    """
    gradient, slope = _gradient(columns, sums)
    decrement = np.full(len(columns.index), np.inf)
    for k, system in enumerate(columns.systems):
        if system is not None:  # the last Hessian is accurate enough, and factorized
            x, z = system.direction(gradient[:, k], slope[k])
            decrement[k] = -(gradient[:, k] @ x + slope[k] * z) / 2
    objective = columns.problem.objective(sums, columns.coef, columns.intercept)
    goal = columns.goal * np.maximum(objective, columns.null.objective / 1000)
    dual_residuals = residual_bound(columns.problem, columns.null, columns.coef, sums.phi_t_dual, objective)
    within_goal = (dual_residuals <= 0.4 * goal) & _duals_balanced(columns, sums)
    at_rounding = np.abs(decrement) <= 1e-18 * objective  # below what floating point can improve
    done = np.where(
        sums.fenchel_gap <= 0.5 * goal,
        within_goal | at_rounding,
        (decrement <= OPTIONS.decrement_tolerance * sums.fenchel_gap) | at_rounding,
    )
    return done, relative(sums.fenchel_gap + dual_residuals, objective, columns.null.objective)


def _certify(
    columns: _Columns, sums: DualSums, inner_done: Mask, estimate: Array, best: BestIterate, iteration: int
) -> None:
    """Certify the columns if one of them seems to have converged.

    Those that have are polished from then on; those that were polished to rounding, or no longer improve, get a
    negative `polish`.
    """
    polishing = columns.goal == OPTIONS.rounding
    better = estimate <= OPTIONS.improvement * columns.least
    columns.least = np.where(inner_done & better, estimate, columns.least)
    columns.stalls = np.where(inner_done, np.where(better, 0, columns.stalls + 1), columns.stalls)
    stalled = inner_done & (columns.stalls >= OPTIONS.max_stalls)
    # While a column is polished, only its last fits are worth a certificate.
    last = (estimate <= OPTIONS.rounding) | (columns.polish <= OPTIONS.last_steps)
    close = np.where(polishing, last & (estimate <= best.relative_gap[columns.index]), estimate <= 2 * columns.goal)
    if (inner_done & close | stalled).any():
        reached = _certify_and_record(columns, inner_done & (sums.active == 0), best, iteration) <= columns.goal
        # Certificates contain bounds of rounding errors, which polishing cannot lower: the estimate does not.
        polished = polishing & inner_done & (reached | (estimate <= OPTIONS.rounding))
        columns.polish = np.where(polished | stalled, -1, columns.polish)
        columns.goal = np.where(reached, OPTIONS.rounding, columns.goal)


def _certify_and_record(columns: _Columns, free_intercept: Mask, best: BestIterate, iteration: int) -> Array:
    """Certify all columns, record those that have improved, and return relative gaps (q,).

    Where `free_intercept`, no row being active, a whole interval of intercepts is optimal: its midpoint is taken.
    """
    # Residuals were updated step by step: recompute them, without the accumulated rounding.
    columns.problem.set_coefficients(columns.state, columns.coef, columns.intercept)
    if columns.problem.fit_intercept:
        intercept = columns.intercept + columns.problem.center_intercept(columns.state, free_intercept)
        columns.intercept = columns.problem.round_intercept(columns.coef, intercept)
        if np.any(columns.intercept != intercept):
            columns.problem.shift_intercept(columns.state, columns.intercept - intercept)
    certificate = certify(columns.problem, columns.state, columns.coef, columns.intercept, columns.null)
    best.update(columns.index, columns.coef, columns.intercept, columns.state, certificate, iteration)
    return relative(certificate.gap, certificate.objective, columns.null.objective)


def _certify_stopped(columns: _Columns, best: BestIterate, iteration: int) -> None:
    """Certify the columns as they are, with the duals of their smoothed losses."""
    columns.problem.update_multipliers(columns.state, columns.width, np.ones(len(columns.index), dtype=bool))
    intercept = columns.problem.round_intercept(columns.coef, columns.intercept)
    if np.any(columns.intercept != intercept):
        columns.problem.shift_intercept(columns.state, intercept - columns.intercept)
    certificate = certify(columns.problem, columns.state, columns.coef, intercept, columns.null)
    best.update(columns.index, columns.coef, intercept, columns.state, certificate, iteration)


def _updated_systems(columns: _Columns, grams: list[ActiveGram], anchored: Mask) -> list[NewtonSystem]:
    """The factorized Newton system of each column, from the one before where that is less work.

    As long as the width stays the same, few rows that changed are a correction of low rank. After that the Gram matrix
    of the active rows is updated, and factorized again.
    """
    problem, width = columns.problem, columns.width
    found, threads = problem.find_active(columns.state, width, anchored), problem.rows.threads
    M, scale = problem.rows.n_features, problem.rows.kernel_scale()

    def build(k: int) -> NewtonSystem:
        (active, h, surplus), gram, before = found[k], grams[k], columns.systems[k]
        (changed, share), a = gram.changes(active), len(active)
        small_ridge = 2 * problem.alpha[k] < OPTIONS.feature_ridge * scale * h.sum()
        sums = np.append(surplus @ gram.take(active), surplus.sum()) if anchored[k] else np.zeros(M + 1)
        if before is not None and before.factored_at == 1 / width[k] and len(changed) <= OPTIONS.max_rank * M:
            return before.corrected(gram.take(changed), share / width[k], sums)
        # Multiplications of the row side, and of the feature side, which loses digits if the ridge is small.
        updated = M * M * (min(a, len(changed)) + M / 3)
        if a <= M and (a * a * (M + a) < updated or small_ridge):
            curvature = Curvature(surplus, rows=gram.take(active), h=h)
            return NewtonSystem(curvature, problem.alpha[k], problem.fit_intercept)
        share_of_threads = 1 if len(found) > 1 else threads
        return gram.system(active, width[k], problem.alpha[k], problem.fit_intercept, sums, share_of_threads)

    return parallel_map(build, range(len(found)), threads)


def _step(columns: _Columns, sums: DualSums, inner_done: Mask) -> None:
    """One Newton step of every column."""
    problem, state = columns.problem, columns.state
    gradient, slope = _gradient(columns, sums)
    anchored = inner_done & (columns.width > 0)
    damped = weak_ridge(problem, columns.null)
    few = (sums.active <= problem.rows.n_features) & (not damped)
    if grams := [gram for gram in columns.grams if gram is not None]:
        systems = _updated_systems(columns, grams, anchored)
    else:
        systems = [
            NewtonSystem(curvature, problem.alpha[k], problem.fit_intercept, damped=damped)
            for k, curvature in enumerate(problem.curvature(state, columns.width, few, anchored))
        ]
    move, shift = np.zeros_like(columns.coef), np.zeros_like(columns.intercept)
    no_active = (sums.active == 0) & ~_duals_balanced(columns, sums)
    for k, system in enumerate(systems):
        if no_active[k]:  # singular in the intercept: move it alone, until a row is active
            columns.systems[k], gradient[:, k] = None, 0
            shift[k] = -np.sign(slope[k]) * max(columns.width[k], problem.loss.smoothing_width[k])
            continue
        columns.systems[k] = system
        if anchored[k]:  # linearise at the multipliers, where these rows are not clipped
            phi_t_dual, mean_dual = system.surplus()
            gradient[:, k] -= phi_t_dual
            slope[k] -= mean_dual if problem.fit_intercept else 0
        move[:, k], shift[k] = system.direction(gradient[:, k], slope[k])
    problem.set_direction(state, move, shift)
    first_slope = np.abs(np.einsum("ij,ij->j", gradient, move) + slope * shift)
    along, square = np.einsum("ij,ij->j", columns.coef, move), np.einsum("ij,ij->j", move, move)
    screened_slope = problem.screened_slope(move, shift)

    def derivatives(step: Array) -> tuple[Array, Array]:
        """Of F_d along the direction: piecewise linear in the step, and O(n) for each."""
        slope, curvature = problem.eval_along_direction(state, columns.width, step)
        slope = slope + screened_slope + 2 * problem.alpha * (along + step * square)
        return slope, curvature + 2 * problem.alpha * square

    step = exact_step(derivatives, first_slope, OPTIONS.slope_tolerance)
    problem.step(state, step)
    columns.coef += step * move
    columns.intercept += step * shift
