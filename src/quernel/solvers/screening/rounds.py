"""From a guess to the solution, by rounds of doubt: rows fit the guess are solved for, and then all are verified.

The others are screened, one linear term together. Steps over all rows may bring the guess take_steps first_band, and leave fewer
active rows. Where a screened row turns out to have changed sides, it is doubted in
the next round. A fit that was verified and is is_close good enough may only lack duals that prove it: the next round's
are tried on it first_band, for they cost no sweep.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quernel.data import RowState
from quernel.objective import Problem, ScreenedRows
from quernel.objective.duality_gap import NullModel, balanced, certify, dual_residual, null_model, relative
from quernel.solvers import newton
from quernel.solvers.progress import Progress, report
from quernel.solvers.result import Result, statuses
from quernel.solvers.screening import smooth_driver
from quernel.solvers.screening.active_set import (
    ActiveRows,
    ActiveSet,
    active_problem,
    expand_active,
    scatter_duals,
    screen,
)
from quernel.solvers.screening.kkt_check import KktCheck, recheck_changed, verify
from quernel.solvers.screening.subsampled_newton import NewtonSteps, ScreenedFit, take_steps

Array = NDArray[np.floating]
Index = NDArray[np.intp]
Mask = NDArray[np.bool_]
# Is told coefficients, intercepts and, where it is known, a band.
RoundCallback = Callable[..., None]

# Screening goes on while the share of active rows is below this.
MAX_ACTIVE_SHARE = 0.5
# Newton starts at this share of the band, or of it after a first_band solve.
FIRST_WIDTH, NEXT_WIDTH = 0.25, 0.1
MAX_ROUNDS = 5
# The first_band round is solved no farther than this where no basis makes it cheap: another will follow.
FIRST_GOAL = 1e-4
# A solve for active rows that takes more steps than this has gone dual_residuals.
MAX_STEPS = 60
# A gap of up to so many tolerances may be mostly that of the duals.
NEARLY = 8
# A band that holds no row but those that changed sides.
TOUCHING = np.finfo(float).tiny
# Duals that sum to less than this are balanced.
ROUNDING = 1e-12


def central_duals(problem: Problem) -> Array:
    """Duals that take no side: the central_duals of their box or, where that has no end, the nearest to 0 in it."""
    low, high = problem.loss.domain
    with np.errstate(invalid="ignore"):  # of a line without ends
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
    keep: RoundCallback | None = None,
    solved: bool = False,
    steps: NewtonSteps | None = None,
    null: Callable[[], NullModel] | None = None,
) -> Result:
    """The solution fit a guess: rows whose residuals there are within the band are active, and more if need be.

    A guess that is `solved` may be the solution: the first_band duals are tried on it before all rows are read again. An
    `steps` brings it take_steps to the solution first_band, so that fewer rows remain active. `null` is the null model, if
    someone has begun to compute it.
    """
    q, state = problem.n_columns, problem.rows.new_memory()
    first_band = band if steps is None else steps.wide_band
    before, screened, active_set = screen(problem, state, coef, intercept, first_band, basis)
    fit = ScreenedFit(coef, intercept, band, screened, active_set)
    hessian_rows = 0
    if steps is not None:
        counted = steps.newton.hessian_rows
        fit = take_steps(problem, state, fit, steps, basis)
        screened, active_set, hessian_rows = fit.screened, fit.active_set, steps.newton.hessian_rows - counted
    guess_band, band, stepped = band, fit.band, not np.array_equal(fit.coef, coef)
    width, scale = FIRST_WIDTH * band, null_model(problem) if null is None else null()
    best = _BestRound(problem, scale, tol)
    best.hessian_rows += hessian_rows
    open_columns, last_check = np.arange(q), None
    for turn in range(MAX_ROUNDS):
        rough = turn == 0 and basis is None and not solved and not stepped
        goal = max(tol / 2, FIRST_GOAL) if rough else tol / 2
        while (stuck := _too_few_active(problem, screened, active_set, open_columns)).any() and not _too_many_active(
            problem, active_set
        ):
            band = np.where(stuck, 2 * band, band)
            screened, active_set = expand_active(
                problem, state, screened, active_set, np.where(stuck, band, -1.0), basis
            )
        if _too_many_active(problem, active_set):
            break
        point = _ActiveStart(fit.coef, fit.intercept, width, scale, screened, basis)
        budget = _Budget(goal, min(MAX_STEPS, max_iter))
        rows, answer = problem.run_at(_solve_active, active_set.rows, point, open_columns, budget)
        active_set = replace(active_set, rows=rows)
        move, shift = fit.coef + answer.move - coef, fit.intercept + answer.shift - intercept
        best.count(answer)
        if turn == 0 and solved and not problem.rows.near:
            _, gap = problem.run_at(_proof, rows, point, open_columns)
            best.sweeps += active_set.count[open_columns].sum() / problem.rows.n_rows
            open_columns = np.flatnonzero(~best.update(open_columns, coef, intercept, before, gap, state, active_set))
            if len(open_columns) == 0:
                break
        duals, _ = problem.rows.run_at(_scatter, rows, np.array([span.start for span in problem.rows.spans]))
        if last_check is not None and best.is_close(open_columns):
            gap = _gap(problem, screened, recheck_changed(problem, state, last_check, duals), coef)
            done = best.update(open_columns, coef, intercept, before, gap, state, active_set)
            open_columns = np.flatnonzero(~done)
            if len(open_columns) == 0:
                break
        check = verify(problem, state, coef + move, intercept + shift, duals)
        after = check.loss + problem.alpha * np.einsum("ij,ij->j", coef + move, coef + move)
        dual_residuals = dual_residual(problem, coef + move, screened.phi_t_dual + check.phi_t_dual)
        gap = _gap(problem, screened, check, coef + move)
        done = best.update(open_columns, coef + move, intercept + shift, after, gap, state, active_set)
        worse = ~done & (after > before)
        open_columns = np.flatnonzero(~done)
        if len(open_columns) == 0:
            break
        basis_too_small = ~done & ~worse & (relative(dual_residuals, after, scale.objective) > tol / 4)
        drop_basis = basis is not None and bool(np.any(basis_too_small))
        # ScreenedRows rows on the wrong side threw these fits away: go back, and doubt the rows that changed sides, too. (Of
        # a guess that was brought take_steps F is not known, but that of the guess before bounds it.)
        coef, intercept = np.where(worse, fit.coef, coef + move), np.where(worse, fit.intercept, intercept + shift)
        before = np.where(worse, before, after)
        if keep is not None:
            keep(coef, intercept, np.clip(2 * check.worst_violation, NEXT_WIDTH * band, band))
        # Of fits that went back nothing is remembered, and some rows cannot be read one by one.
        last_check = check if problem.rows.near and problem.rows.cached and not (drop_basis or worse.any()) else None
        if drop_basis:  # directions were left out that do matter
            basis, band = None, np.where(worse, 2, 1) * guess_band
            before, screened, active_set = screen(problem, state, coef, intercept, band, basis)
            width = FIRST_WIDTH * band
        else:
            more = np.where(worse, TOUCHING, np.minimum(2 * check.worst_violation, band))
            screened, active_set = expand_active(
                problem, state, screened, active_set, np.where(done, -1.0, more), basis
            )
            width = np.where(worse, FIRST_WIDTH, NEXT_WIDTH) * band
        fit = ScreenedFit(coef, intercept, band, screened, active_set)
    if len(open_columns):  # screening does not help here
        anchor = best.dual if problem.rows.near else central_duals(problem)
        start = newton.Start(fit.coef, fit.intercept, anchor, width, scale)
        _solve_unscreened(problem, basis, best, open_columns, start, tol, max_iter)
    return best.result(state.sweeps)


def _gap(problem: Problem, screened: ScreenedRows, check: KktCheck, coef: Array) -> Array:
    """What the check certifies; with an intercept nothing, unless the duals mean_dual."""
    gap = check.fenchel_gap + dual_residual(problem, coef, screened.phi_t_dual + check.phi_t_dual)
    even = np.abs(screened.mean_dual + check.mean_dual) <= ROUNDING
    return np.where(even, gap, np.inf) if problem.fit_intercept else gap


@dataclass(frozen=True, eq=False)
class _ActiveStart:
    """Where active rows are solved: from which fit, at which width, beside which screened rows, in which basis."""

    coef: Array
    intercept: Array
    width: Array
    null: NullModel
    screened: ScreenedRows
    basis: Array | None


@dataclass(frozen=True)
class _Budget:
    """How far, and for how many steps."""

    tol: float
    max_iter: int


@dataclass(frozen=True, eq=False)
class _ActiveSolution:
    """What the active rows say: how each column moves, and the work it took."""

    move: Array
    shift: Array
    iterations: NDArray[np.intp]
    entries: float
    hessian_rows: int


def _solve_active(
    problem: Problem, active_rows: list[ActiveRows], point: _ActiveStart, columns: Index, budget: _Budget
) -> tuple[list[ActiveRows], _ActiveSolution]:
    """These columns on their active rows, which get new duals."""
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
        answer = newton.solve(small, tol=budget.tol, max_iter=budget.max_iter, start=start.within(basis), polish=False)
        found = answer.coef if basis is None else basis @ answer.coef
        move[:, k], shift[k] = found[:, 0] - point.coef[:, k], answer.intercept[0] - point.intercept[k]
        dual = answer.dual[:, 0]
        if problem.fit_intercept:
            _, sign = problem.loss.margin_transform(rows.target)
            dual = balanced(dual, rows.share * sign, screened.mean_dual[k])
        kept = [small.rows.as_array("They are fit")] if basis is not None and problem.rows.near else rows.features
        active_rows[k] = replace(rows, anchor=dual, features=kept)
        iterations[k], hessian_rows = answer.iterations[0], hessian_rows + answer.hessian_rows
        entries += answer.sweeps * small.rows.n_rows * small.rows.n_features
    return active_rows, _ActiveSolution(move, shift, iterations, entries, hessian_rows)


def _proof(problem: Problem, active_rows: list[ActiveRows], point: _ActiveStart, columns: Index) -> tuple[None, Array]:
    """The gap of these columns at the point itself, with the duals that the active rows have got.

    ScreenedRows rows are on their lines there: what they add to the certificate is known, and no other row need be read.
    """
    gap: Array = np.full(problem.n_columns, np.inf)
    for k in columns.tolist():
        column, rows = np.array([k]), active_rows[k]
        small = active_problem(problem, column, point.screened, rows, None)
        state = small.rows.new_memory(anchor=rows.anchor[:, None])
        coef, intercept = point.coef[:, column], point.intercept[column]
        small.set_coefficients(state, coef, intercept)
        gap[k] = certify(small, state, coef, intercept, point.null.take(column)).gap[0]
    return None, gap


def _scatter(active_rows: list[ActiveRows], starts: Index) -> tuple[list[Any], None]:
    return scatter_duals(active_rows, starts), None


class _BestRound:
    """What is known of each column of a stage, and the work it took."""

    def __init__(self, problem: Problem, null: NullModel, tol: float) -> None:
        n, M, q = problem.rows.n_rows, problem.rows.n_features, problem.n_columns
        self.null, self.tol = null, tol
        self.coef, self.intercept = np.zeros((M, q)), np.zeros(q)
        self.dual, self.entries = np.zeros((n if problem.rows.near else 0, q), order="F"), n * M
        self.objective, self.gap = np.zeros(q), np.full(q, np.inf)
        self.iterations, self.n_active = np.zeros(q, dtype=np.intp), np.zeros(q, dtype=np.intp)
        self.hessian_rows, self.sweeps = 0, 0.0

    def count(self, answer: _ActiveSolution) -> None:
        """Add the work of one solve for active rows."""
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
        state: RowState,
        active_set: ActiveSet,
    ) -> Mask:
        """Write down those of these columns that are better than before; which of all columns are done?"""
        for k in columns[gap[columns] < self.gap[columns]].tolist():
            self.coef[:, k], self.intercept[k] = coef[:, k], intercept[k]
            self.objective[k], self.gap[k] = objective[k], gap[k]
            if len(self.dual):
                state.column("dual", k, out=self.dual[:, k])
            self.n_active[k] = active_set.count[k]
        rel = relative(self.gap, self.objective, self.null.objective)
        report(Progress(int(self.iterations.max()), len(columns), float(rel.max())))
        return rel <= self.tol

    def is_close(self, columns: Index) -> bool:
        """Whether all of these columns are is_close done."""
        rel = relative(self.gap, self.objective, self.null.objective)
        return bool(np.all(rel[columns] <= NEARLY * self.tol))

    def result(self, sweeps: float) -> Result:
        """The stage's result; `sweeps` are those over all its rows."""
        rel = relative(self.gap, self.objective, self.null.objective)
        return Result(
            self.coef, self.intercept, self.dual, self.objective, self.gap, rel, self.null.objective,
            statuses(rel, self.tol), self.iterations, self.sweeps + sweeps, self.hessian_rows,
            tuple(self.n_active.tolist()),
        )  # fmt: skip


def _too_many_active(problem: Problem, active_set: ActiveSet) -> bool:
    """Whether so many rows are active that screening them costs more than it saves."""
    return bool(active_set.count.max() > MAX_ACTIVE_SHARE * problem.rows.n_rows)


def _too_few_active(problem: Problem, screened: ScreenedRows, active_set: ActiveSet, columns: Index) -> Mask:
    """Columns with no active row to solve for or, with an intercept, too few to mean_dual the screened ones.

    Without an intercept a large ridge weight may leave all rows far on one side of the fit; with one, the intercept
    would run away.
    """
    stuck = np.zeros(problem.n_columns, dtype=bool)
    stuck[columns] = active_set.count[columns] == 0
    if problem.fit_intercept:
        ends = screened.mean_dual + 0.9 * np.array([active_set.min_dual, active_set.max_dual])
        stuck[columns] |= (ends[0] > 0)[columns] | (ends[1] < 0)[columns]
    return stuck


def _solve_unscreened(
    problem: Problem,
    basis: Array | None,
    best: _BestRound,
    columns: Index,
    start: newton.Start,
    tol: float,
    max_iter: int,
) -> None:
    """The open columns by Newton over all rows, from where screening left them."""
    begin = newton.Start(
        start.coef[:, columns],
        start.intercept[columns],
        start.anchor[..., columns],
        start.width[columns],
        start.null.take(columns),
    )
    answer = smooth_driver.solve_projected(problem.take(columns), basis, begin, tol, max_iter)
    better = answer.gap < best.gap[columns]
    place = columns[better]
    best.coef[:, place], best.intercept[place] = answer.coef[:, better], answer.intercept[better]
    best.dual[:, place] = answer.dual[:, better]
    best.gap[place], best.objective[place] = answer.gap[better], answer.objective[better]
    best.iterations[columns] += answer.iterations
    best.hessian_rows += answer.hessian_rows
    best.sweeps += answer.sweeps
