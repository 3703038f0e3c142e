"""Rounds of screening, active-set solve and KKT check, from an approximate fit to a certified solution.

Each round

1. splits the rows by their residuals: rows within `band` of a kink are active, the duals of the others are fixed;
2. solves the active-set problem of each column by semismooth Newton (`solvers.newton`), in which the screened rows are
   one linear term;
3. checks all rows at the new fit (`active_set.verify`), which gives F and the duality gap;
4. makes the rows that violate their assumed segment active, with those near the new fit, and repeats if the gap is too
   large.

Subsampled Newton steps may improve the fit before the first round, which leaves fewer rows active. A checked fit whose
gap is only slightly too large may merely lack good duals: those of the next active-set solve are tried on it first,
which costs no pass over the rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quernel.data import RowStateLike
from quernel.objective import InMemoryProblem, Problem, ScreenedRows
from quernel.objective.duality_gap import NullModel, balanced, certify, dual_residual, null_model, relative
from quernel.solvers import newton
from quernel.solvers.progress import Progress, report, stop_requested
from quernel.solvers.result import Result, certify_point, or_null, statuses
from quernel.solvers.screening import smooth_driver
from quernel.solvers.screening.active_set import (
    ActiveRows,
    ActiveSet,
    KktCheck,
    active_problem,
    expand_active,
    recheck_changed,
    scatter_duals,
    screen,
    verify,
)
from quernel.solvers.screening.subsampled_newton import NewtonSteps, ScreenedFit, take_steps

Array = NDArray[np.floating]
Index = NDArray[np.intp]
Mask = NDArray[np.bool_]
# Called with coefficients, intercepts and, where it is known, a band for a warm start.
RoundCallback = Callable[..., None]

# With a larger share of active rows than this, plain Newton on all rows is cheaper.
MAX_ACTIVE_SHARE = 0.5
# Smoothing width at which Newton starts, as a share of the band: in the first round, and in later ones.
FIRST_WIDTH, NEXT_WIDTH = 0.25, 0.1
# Rounds before falling back to plain Newton on all rows.
MAX_ROUNDS = 5
# Relative gap of the first active-set solve where no low-rank basis makes it cheap: another round follows anyway.
FIRST_GOAL = 1e-4
# Newton steps of an active-set solve; more would mean that it does not converge.
MAX_STEPS = 60
# Up to this multiple of the tolerance the gap may be due to the duals alone, so better duals are tried first.
RECHECK_FACTOR = 8
# A band that contains no row except those that violate their segment.
TOUCHING = np.finfo(float).tiny
# Duals with a weighted mean below this count as balanced.
ROUNDING = 1e-12


def central_duals(problem: Problem) -> Array:
    """Initial duals (q,) of active rows: the midpoint of the box or, where it is unbounded, its point nearest to 0."""
    low, high = problem.loss.domain
    with np.errstate(invalid="ignore"):  # inf - inf of an unbounded box
        half = (low + high) / 2
    return np.where(np.isfinite(half), half, np.clip(0.0, low, high))


def solve_in_rounds(
    problem: Problem,
    coef: Array,
    intercept: Array,
    band: Array,
    *,
    basis: Array | None = None,
    tol: float,
    max_iter: int,
    callback: RoundCallback | None = None,
    solved: bool = False,
    steps: NewtonSteps | None = None,
    null: Callable[[], NullModel] | None = None,
) -> Result:
    """Solve all columns from an approximate fit, by rounds of screening.

    Parameters
    ----------
    problem : Problem
    coef, intercept : arrays of shape (M, q) and (q,)
        The approximate fit.
    band : array of shape (q,)
        Rows with a residual within this distance of a kink are active at first.
    basis : array of shape (M, k) or None
        Low-rank basis in which active-set problems are solved; dropped where the certificate shows that it is too
        small.
    tol : float
        Relative duality gap.
    max_iter : int
        Newton steps of each solve.
    callback : callable or None
        Called with (coef, intercept, band) after every round.
    solved : bool
        Whether the fit may already be the solution: out of core the first duals are tried on it before all rows are
        read again.
    steps : NewtonSteps or None
        Newton steps to take before the first round.
    null : callable or None
        Returns the null model, if its computation has been started.
    """
    q, state = problem.n_columns, problem.rows.new_state()
    first_band = band if steps is None else steps.wide_band
    before, screened, active_set = screen(problem, state, coef, intercept, first_band, basis)
    fit = ScreenedFit(coef, intercept, band, screened, active_set)
    hessian_rows = 0
    if steps is not None:
        counted = steps.newton.hessian_rows
        fit = take_steps(problem, state, fit, steps, basis)
        screened, active_set, hessian_rows = fit.screened, fit.active_set, steps.newton.hessian_rows - counted
    given_band, band, stepped = band, fit.band, not np.array_equal(fit.coef, coef)
    width, scale = FIRST_WIDTH * band, null_model(problem) if null is None else null()
    best = _BestRound(problem, scale, tol)
    best.hessian_rows += hessian_rows
    unfinished, last_check = np.arange(q), None
    for round_ in range(MAX_ROUNDS):
        if stop_requested():
            break
        # 1. The active set, which must contain enough rows for the problem to have a solution.
        rough = round_ == 0 and basis is None and not solved and not stepped
        goal = max(tol / 2, FIRST_GOAL) if rough else tol / 2
        while (too_few := _too_few_active(problem, screened, active_set, unfinished)).any():
            if _too_many_active(problem, active_set):
                break
            band = np.where(too_few, 2 * band, band)
            more = np.where(too_few, band, -1.0)
            screened, active_set = expand_active(problem, state, screened, active_set, more, basis)
        if _too_many_active(problem, active_set):
            break
        # 2. Newton on the active rows.
        point = _ActiveStart(fit.coef, fit.intercept, width, scale, screened, basis)
        budget = _Budget(goal, min(MAX_STEPS, max_iter))
        rows, answer = problem.run_at(_solve_active, active_set.rows, point, unfinished, budget)
        active_set = replace(active_set, rows=rows)
        move, shift = fit.coef + answer.move - coef, fit.intercept + answer.shift - intercept
        best.count(answer)
        if round_ == 0 and solved and not problem.rows.returns_rows:  # try the new duals on the fit as it was given
            _, gap = problem.run_at(_proof, rows, point, unfinished)
            best.sweeps += active_set.count[unfinished].sum() / problem.rows.n_rows
            unfinished = np.flatnonzero(~best.update(unfinished, coef, intercept, before, gap, state, active_set))
            if len(unfinished) == 0:
                break
        duals, _ = problem.rows.run_at(_scatter, rows, np.array([span.start for span in problem.rows.spans]))
        if last_check is not None and best.is_close(unfinished):  # try the new duals on the last fit
            gap = _gap(problem, screened, recheck_changed(problem, state, last_check, duals), coef)
            done = best.update(unfinished, coef, intercept, before, gap, state, active_set)
            unfinished = np.flatnonzero(~done)
            if len(unfinished) == 0:
                break
        # 3. KKT check over all rows.
        check = verify(problem, state, coef + move, intercept + shift, duals)
        after = check.loss + problem.alpha * np.einsum("ij,ij->j", coef + move, coef + move)
        dual_residuals = dual_residual(problem, coef + move, screened.phi_t_dual + check.phi_t_dual)
        gap = _gap(problem, screened, check, coef + move)
        done = best.update(unfinished, coef + move, intercept + shift, after, gap, state, active_set)
        worse = ~done & (after > before)
        unfinished = np.flatnonzero(~done)
        if len(unfinished) == 0 or stop_requested():
            break
        basis_too_small = ~done & ~worse & (relative(dual_residuals, after, scale.objective) > tol / 4)
        drop_basis = basis is not None and bool(np.any(basis_too_small))
        # 4. Where F has increased, wrongly screened rows led the step astray: return to the fit before, with those rows
        # active. (After Newton steps F at that fit is not known, but F at the initial fit serves in its place.)
        coef, intercept = np.where(worse, fit.coef, coef + move), np.where(worse, fit.intercept, intercept + shift)
        before = np.where(worse, before, after)
        if callback is not None:
            callback(coef, intercept, np.clip(2 * check.worst_violation, NEXT_WIDTH * band, band))
        # Duals can be rechecked only at the fit that was checked, and where single rows can be read.
        last_check = check if problem.rows.random_access and not (drop_basis or worse.any()) else None
        if drop_basis:  # the low-rank basis is too small: screen again, with all features
            basis, band = None, np.where(worse, 2, 1) * given_band
            before, screened, active_set = screen(problem, state, coef, intercept, band, basis)
            width = FIRST_WIDTH * band
        else:
            more = np.where(worse, TOUCHING, np.minimum(2 * check.worst_violation, band))
            more = np.where(done, -1.0, more)
            screened, active_set = expand_active(problem, state, screened, active_set, more, basis)
            width = np.where(worse, FIRST_WIDTH, NEXT_WIDTH) * band
        fit = ScreenedFit(coef, intercept, band, screened, active_set)
    if stop_requested():
        unknown = np.flatnonzero(~np.isfinite(best.gap))
        if len(unknown):  # nothing of these columns is certified yet
            at = fit.coef[:, unknown], fit.intercept[unknown]
            best.merge(unknown, certify_point(problem.take(unknown), *at, scale.take(unknown), tol))
    elif len(unfinished):  # fall back to Newton on all rows
        anchor = best.dual if len(best.dual) else central_duals(problem)
        start = newton.Start(fit.coef, fit.intercept, anchor, width, scale)
        _solve_unscreened(problem, basis, best, unfinished, start, tol, max_iter)
    return best.result(state.sweeps)


def _gap(problem: Problem, screened: ScreenedRows, check: KktCheck, coef: Array) -> Array:
    """The duality gap (q,) that the check proves; infinite where an intercept needs balanced duals and they are not."""
    gap = check.fenchel_gap + dual_residual(problem, coef, screened.phi_t_dual + check.phi_t_dual)
    is_balanced = np.abs(screened.mean_dual + check.mean_dual) <= ROUNDING
    return np.where(is_balanced, gap, np.inf) if problem.fit_intercept else gap


@dataclass(frozen=True, eq=False)
class _ActiveStart:
    """Where an active-set solve starts: a fit, smoothing widths, the screened rows' linear term and the basis."""

    coef: Array
    intercept: Array
    width: Array
    null: NullModel
    screened: ScreenedRows
    basis: Array | None


@dataclass(frozen=True)
class _Budget:
    """Relative gap and Newton steps of an active-set solve."""

    tol: float
    max_iter: int


@dataclass(frozen=True, eq=False)
class _ActiveSolution:
    """Solution of the active-set problems: changes of coef (M, q) and intercept (q,), and the work done."""

    move: Array
    shift: Array
    iterations: NDArray[np.intp]
    entries: float
    hessian_rows: int


def _solve_active(
    problem: InMemoryProblem, active_rows: list[ActiveRows], point: _ActiveStart, columns: Index, budget: _Budget
) -> tuple[list[ActiveRows], _ActiveSolution]:
    """Solve the active-set problem of each of these columns by Newton, and store the new duals with the active rows.

    With an intercept the duals are shrunk such that they balance those of the screened rows.
    """
    active_rows, basis, screened = list(active_rows), point.basis, point.screened
    move, shift = np.zeros_like(point.coef), np.zeros_like(point.intercept)
    iterations, entries, hessian_rows = np.zeros(problem.n_columns, dtype=np.intp), 0.0, 0
    for k in columns.tolist():
        column, rows = np.array([k]), active_rows[k]
        start = newton.Start(
            point.coef[:, column], point.intercept[column], rows.anchor[:, None], point.width[column],
            point.null.take(column),
        )  # fmt: skip
        small = active_problem(problem, column, screened, rows, basis)
        answer = newton.solve(small, tol=budget.tol, max_iter=budget.max_iter, start=start.project(basis), polish=False)
        found = answer.coef if basis is None else basis @ answer.coef
        move[:, k], shift[k] = found[:, 0] - point.coef[:, k], answer.intercept[0] - point.intercept[k]
        dual = answer.dual[:, 0]
        if problem.fit_intercept:
            _, sign = problem.loss.margin_transform(rows.target)
            dual = balanced(dual, rows.share * sign, screened.mean_dual[k])
        kept = rows.features
        if (
            basis is not None and problem.rows.returns_rows
        ):  # features in the basis are worth keeping for the next round
            kept = [small.rows.as_array("Active rows are in memory")]
        active_rows[k] = replace(rows, anchor=dual, features=kept)
        iterations[k], hessian_rows = answer.iterations[0], hessian_rows + answer.hessian_rows
        entries += answer.sweeps * small.rows.n_rows * small.rows.n_features
    return active_rows, _ActiveSolution(move, shift, iterations, entries, hessian_rows)


def _proof(
    problem: InMemoryProblem, active_rows: list[ActiveRows], point: _ActiveStart, columns: Index
) -> tuple[None, Array]:
    """The duality gap of these columns at the starting point, with the new duals of the active rows.

    The screened rows are on their segments there and add nothing to the gap, so no other row need be read.
    """
    gap: Array = np.full(problem.n_columns, np.inf)
    for k in columns.tolist():
        column, rows = np.array([k]), active_rows[k]
        small = active_problem(problem, column, point.screened, rows, None)
        state = small.rows.new_state(anchor=rows.anchor[:, None])
        coef, intercept = point.coef[:, column], point.intercept[column]
        small.set_coefficients(state, coef, intercept)
        gap[k] = certify(small, state, coef, intercept, point.null.take(column)).gap[0]
    return None, gap


def _scatter(active_rows: list[ActiveRows], starts: Index) -> tuple[list[Any], None]:
    """`scatter_duals` for `run_at`: the duals stay where the rows are."""
    return scatter_duals(active_rows, starts), None


class _BestRound:
    """The best certified fit of every column over all rounds, and the work done."""

    def __init__(self, problem: Problem, null: NullModel, tol: float) -> None:
        n, M, q = problem.rows.n_rows, problem.rows.n_features, problem.n_columns
        self.null, self.tol = null, tol
        self.coef, self.intercept = np.zeros((M, q)), np.zeros(q)
        self.dual, self.entries = np.zeros((problem.rows.n_duals, q), order="F"), n * M
        self.objective, self.gap = np.zeros(q), np.full(q, np.inf)
        self.iterations, self.n_active = np.zeros(q, dtype=np.intp), np.zeros(q, dtype=np.intp)
        self.hessian_rows, self.sweeps = 0, 0.0

    def count(self, answer: _ActiveSolution) -> None:
        """Add the work of one active-set solve."""
        self.iterations += answer.iterations
        self.hessian_rows += answer.hessian_rows
        self.sweeps += answer.entries / self.entries

    def update(
        self,
        columns: Index,
        coef: Array,
        intercept: Array,
        objective: Array,
        gap: Array,
        state: RowStateLike,
        active_set: ActiveSet,
    ) -> Mask:
        """Record those of these columns whose gap has improved; return which of all columns have converged."""
        for k in columns[gap[columns] < self.gap[columns]].tolist():
            self.coef[:, k], self.intercept[k] = coef[:, k], intercept[k]
            self.objective[k], self.gap[k] = objective[k], gap[k]
            state.copy_columns("dual", np.array([k]), self.dual, np.array([k]))
            self.n_active[k] = active_set.count[k]
        rel = relative(self.gap, self.objective, self.null.objective)
        report(Progress(int(self.iterations.max()), len(columns), float(rel.max())))
        return rel <= self.tol

    def merge(self, columns: Index, answer: Result) -> None:
        """Record a result on all rows for those of these columns whose gap has improved, and add its work."""
        better = answer.gap < self.gap[columns]
        place = columns[better]
        self.coef[:, place], self.intercept[place] = answer.coef[:, better], answer.intercept[better]
        self.dual[:, place] = answer.dual[:, better]
        self.gap[place], self.objective[place] = answer.gap[better], answer.objective[better]
        self.iterations[columns] += answer.iterations
        self.hessian_rows += answer.hessian_rows
        self.sweeps += answer.sweeps

    def is_close(self, columns: Index) -> bool:
        """Whether the gaps of all of these columns are within a small multiple of the tolerance."""
        rel = relative(self.gap, self.objective, self.null.objective)
        return bool(np.all(rel[columns] <= RECHECK_FACTOR * self.tol))

    def result(self, sweeps: float) -> Result:
        """The result; `sweeps` counts the passes over all rows, to which those of active-set solves are added."""
        rel = relative(self.gap, self.objective, self.null.objective)
        result = Result(
            self.coef, self.intercept, self.dual, self.objective, self.gap, rel, self.null.objective,
            statuses(rel, self.tol), self.iterations, self.sweeps + sweeps, self.hessian_rows,
            tuple(self.n_active.tolist()),
        )  # fmt: skip
        return or_null(result, self.null, self.tol)


def _too_many_active(problem: Problem, active_set: ActiveSet) -> bool:
    """Whether so many rows are active that screening costs more than it saves."""
    return bool(active_set.count.max() > MAX_ACTIVE_SHARE * problem.rows.n_rows)


def _too_few_active(problem: Problem, screened: ScreenedRows, active_set: ActiveSet, columns: Index) -> Mask:
    """Columns without active rows or, with an intercept, with too few to balance the duals of the screened ones.

    With an intercept mean v = 0 must be reachable: otherwise the active-set problem is unbounded below in the
    intercept. Without one a large alpha may leave all rows far on one side of the fit.
    """
    too_few = np.zeros(problem.n_columns, dtype=bool)
    too_few[columns] = active_set.count[columns] == 0
    if problem.fit_intercept:
        ends = screened.mean_dual + 0.9 * np.array([active_set.min_dual, active_set.max_dual])
        too_few[columns] |= (ends[0] > 0)[columns] | (ends[1] < 0)[columns]
    return too_few


def _solve_unscreened(
    problem: Problem,
    basis: Array | None,
    best: _BestRound,
    columns: Index,
    start: newton.Start,
    tol: float,
    max_iter: int,
) -> None:
    """Solve these columns by Newton over all rows, from where the rounds left them."""
    begin = newton.Start(
        start.coef[:, columns],
        start.intercept[columns],
        start.anchor[..., columns],
        start.width[columns],
        start.null.take(columns),
    )
    best.merge(columns, smooth_driver.solve_projected(problem.take(columns), basis, begin, tol, max_iter))
