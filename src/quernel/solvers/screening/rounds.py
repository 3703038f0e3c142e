"""From a guess to the solution, by rounds of doubt: rows near the guess are solved for, and then all are verified.

The others are settled, one linear term together. Steps over all rows may bring the guess nearer first, and leave fewer
rows in doubt. Where a settled row turns out to have changed sides, it is doubted in
the next round. A fit that was verified and is nearly good enough may only lack duals that prove it: the next round's
are tried on it first, for they cost no sweep.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quernel.data import RowState
from quernel.objective import Problem, ScreenedRows
from quernel.objective.duality_gap import NullModel, balanced, certify, null_model, relative, stray
from quernel.solvers import newton
from quernel.solvers.progress import Progress, report
from quernel.solvers.result import Result, statuses
from quernel.solvers.screening import smooth_driver
from quernel.solvers.screening.active_set import (
    ActiveRows,
    ActiveSet,
    expand_active,
    scatter_duals,
    screen,
    small_problem,
)
from quernel.solvers.screening.kkt_check import Verdict, recheck_changed, verify
from quernel.solvers.screening.subsampled_newton import Approach, Near, nearer

Array = NDArray[np.floating]
Index = NDArray[np.intp]
Mask = NDArray[np.bool_]
# Is told coefficients, intercepts and, where it is known, a band.
KeepRound = Callable[..., None]

# Screening goes on while the share of rows in doubt is below this.
CROWD = 0.5
# Newton starts at this share of the band, or of it after a first solve.
FIRST_WIDTH, NEXT_WIDTH = 0.25, 0.1
MAX_ROUNDS = 5
# The first round is solved no farther than this where no basis makes it cheap: another will follow.
FIRST_GOAL = 1e-4
# A solve for doubtful rows that takes more steps than this has gone astray.
MAX_STEPS = 60
# A gap of up to so many tolerances may be mostly that of the duals.
NEARLY = 8
# A band that holds no row but those that changed sides.
TOUCHING = np.finfo(float).tiny
# Duals that sum to less than this are balanced.
ROUNDING = 1e-12


def middle(problem: Problem) -> Array:
    """Duals that take no side: the middle of their box or, where that has no end, the nearest to 0 in it."""
    low, high = problem.loss.domain
    with np.errstate(invalid="ignore"):  # of a line without ends
        half = (low + high) / 2
    return np.where(np.isfinite(half), half, np.clip(0.0, low, high))


def refine(
    problem: Problem,
    coef: Array,
    intercept: Array,
    band: Array,
    *,
    basis: Array | None = None,
    tol: float,
    max_iter: int,
    keep: KeepRound | None = None,
    solved: bool = False,
    approach: Approach | None = None,
    null: Callable[[], NullModel] | None = None,
) -> Result:
    """The solution near a guess: rows whose residuals there are within the band are in doubt, and more if need be.

    A guess that is `solved` may be the solution: the first duals are tried on it before all rows are read again. An
    `approach` brings it nearer to the solution first, so that fewer rows remain in doubt. `null` is the null model, if
    someone has begun to compute it.
    """
    q, memory = problem.n_columns, problem.rows.new_memory()
    first = band if approach is None else approach.wide
    before, settled, doubts = screen(problem, memory, coef, intercept, first, basis)
    near = Near(coef, intercept, band, settled, doubts)
    hessian_rows = 0
    if approach is not None:
        counted = approach.correction.hessian_rows
        near = nearer(problem, memory, near, approach, basis)
        settled, doubts, hessian_rows = near.settled, near.doubts, approach.correction.hessian_rows - counted
    plain, band, approached = band, near.band, not np.array_equal(near.coef, coef)
    width, scale = FIRST_WIDTH * band, null_model(problem) if null is None else null()
    record = _Record(problem, scale, tol)
    record.hessian_rows += hessian_rows
    open_columns, last = np.arange(q), None
    for turn in range(MAX_ROUNDS):
        rough = turn == 0 and basis is None and not solved and not approached
        goal = max(tol / 2, FIRST_GOAL) if rough else tol / 2
        while (stuck := _too_few_active(problem, settled, doubts, open_columns)).any() and not _crowded(
            problem, doubts
        ):
            band = np.where(stuck, 2 * band, band)
            settled, doubts = expand_active(problem, memory, settled, doubts, np.where(stuck, band, -1.0), basis)
        if _crowded(problem, doubts):
            break
        point = _Point(near.coef, near.intercept, width, scale, settled, basis)
        effort = _Effort(goal, min(MAX_STEPS, max_iter))
        rows, answer = problem.run_at(_solve_doubtful, doubts.rows, point, open_columns, effort)
        doubts = replace(doubts, rows=rows)
        move, shift = near.coef + answer.move - coef, near.intercept + answer.shift - intercept
        record.count(answer)
        if turn == 0 and solved and not problem.rows.near:
            _, gap = problem.run_at(_proof, rows, point, open_columns)
            record.sweeps += doubts.count[open_columns].sum() / problem.rows.n_rows
            open_columns = np.flatnonzero(~record.enter(open_columns, coef, intercept, before, gap, memory, doubts))
            if len(open_columns) == 0:
                break
        duals, _ = problem.rows.run_at(_write_back, rows, np.array([span.start for span in problem.rows.spans]))
        if last is not None and record.nearly(open_columns):
            gap = _gap(problem, settled, recheck_changed(problem, memory, last, duals), coef)
            done = record.enter(open_columns, coef, intercept, before, gap, memory, doubts)
            open_columns = np.flatnonzero(~done)
            if len(open_columns) == 0:
                break
        verdict = verify(problem, memory, coef + move, intercept + shift, duals)
        after = verdict.loss + problem.alpha * np.einsum("ij,ij->j", coef + move, coef + move)
        astray = stray(problem, coef + move, settled.force + verdict.force)
        gap = _gap(problem, settled, verdict, coef + move)
        done = record.enter(open_columns, coef + move, intercept + shift, after, gap, memory, doubts)
        worse = ~done & (after > before)
        open_columns = np.flatnonzero(~done)
        if len(open_columns) == 0:
            break
        lacking = ~done & ~worse & (relative(astray, after, scale.objective) > tol / 4)
        too_narrow = basis is not None and bool(np.any(lacking))
        # Settled rows on the wrong side threw these fits away: go back, and doubt the rows that changed sides, too. (Of
        # a guess that was brought nearer F is not known, but that of the guess before bounds it.)
        coef, intercept = np.where(worse, near.coef, coef + move), np.where(worse, near.intercept, intercept + shift)
        before = np.where(worse, before, after)
        if keep is not None:
            keep(coef, intercept, np.clip(2 * verdict.farthest, NEXT_WIDTH * band, band))
        # Of fits that went back nothing is remembered, and some rows cannot be read one by one.
        last = verdict if problem.rows.near and problem.rows.cached and not (too_narrow or worse.any()) else None
        if too_narrow:  # directions were left out that do matter
            basis, band = None, np.where(worse, 2, 1) * plain
            before, settled, doubts = screen(problem, memory, coef, intercept, band, basis)
            width = FIRST_WIDTH * band
        else:
            more = np.where(worse, TOUCHING, np.minimum(2 * verdict.farthest, band))
            settled, doubts = expand_active(problem, memory, settled, doubts, np.where(done, -1.0, more), basis)
            width = np.where(worse, FIRST_WIDTH, NEXT_WIDTH) * band
        near = Near(coef, intercept, band, settled, doubts)
    if len(open_columns):  # screening does not help here
        anchor = record.dual if problem.rows.near else middle(problem)
        start = newton.Start(near.coef, near.intercept, anchor, width, scale)
        _solve_plainly(problem, basis, record, open_columns, start, tol, max_iter)
    return record.result(memory.sweeps)


def _gap(problem: Problem, settled: ScreenedRows, verdict: Verdict, coef: Array) -> Array:
    """What the verdict certifies; with an intercept nothing, unless the duals balance."""
    gap = verdict.slack + stray(problem, coef, settled.force + verdict.force)
    even = np.abs(settled.balance + verdict.balance) <= ROUNDING
    return np.where(even, gap, np.inf) if problem.fit_intercept else gap


@dataclass(frozen=True, eq=False)
class _Point:
    """Where rows in doubt are solved: from which fit, at which width, beside which settled rows, in which basis."""

    coef: Array
    intercept: Array
    width: Array
    null: NullModel
    settled: ScreenedRows
    basis: Array | None


@dataclass(frozen=True)
class _Effort:
    """How far, and for how many steps."""

    tol: float
    max_iter: int


@dataclass(frozen=True, eq=False)
class _Answer:
    """What the rows in doubt say: how each column moves, and the work it took."""

    move: Array
    shift: Array
    iterations: NDArray[np.intp]
    entries: float
    hessian_rows: int


def _solve_doubtful(
    problem: Problem, doubtful: list[ActiveRows], point: _Point, columns: Index, effort: _Effort
) -> tuple[list[ActiveRows], _Answer]:
    """These columns on their rows in doubt, which get new duals."""
    doubtful, basis, settled = list(doubtful), point.basis, point.settled
    move, shift = np.zeros_like(point.coef), np.zeros_like(point.intercept)
    iterations, entries, hessian_rows = np.zeros(problem.n_columns, dtype=np.intp), 0.0, 0
    for k in columns.tolist():
        column, rows = np.array([k]), doubtful[k]
        start = newton.Start(
            point.coef[:, column], point.intercept[column], rows.anchor[:, None], point.width[column],
            point.null.take(column),
        )  # fmt: skip
        small = small_problem(problem, column, settled, rows, basis)
        answer = newton.solve(small, tol=effort.tol, max_iter=effort.max_iter, start=start.within(basis), polish=False)
        found = answer.coef if basis is None else basis @ answer.coef
        move[:, k], shift[k] = found[:, 0] - point.coef[:, k], answer.intercept[0] - point.intercept[k]
        dual = answer.dual[:, 0]
        if problem.fit_intercept:
            _, sign = problem.loss.margin_transform(rows.target)
            dual = balanced(dual, rows.share * sign, settled.balance[k])
        kept = [small.rows.as_array("They are near")] if basis is not None and problem.rows.near else rows.features
        doubtful[k] = replace(rows, anchor=dual, features=kept)
        iterations[k], hessian_rows = answer.iterations[0], hessian_rows + answer.hessian_rows
        entries += answer.sweeps * small.rows.n_rows * small.rows.n_features
    return doubtful, _Answer(move, shift, iterations, entries, hessian_rows)


def _proof(problem: Problem, doubtful: list[ActiveRows], point: _Point, columns: Index) -> tuple[None, Array]:
    """The gap of these columns at the point itself, with the duals that the rows in doubt have got.

    Settled rows are on their lines there: what they add to the certificate is known, and no other row need be read.
    """
    gap: Array = np.full(problem.n_columns, np.inf)
    for k in columns.tolist():
        column, rows = np.array([k]), doubtful[k]
        small = small_problem(problem, column, point.settled, rows, None)
        memory = small.rows.new_memory(anchor=rows.anchor[:, None])
        coef, intercept = point.coef[:, column], point.intercept[column]
        small.set_coefficients(memory, coef, intercept)
        gap[k] = certify(small, memory, coef, intercept, point.null.take(column)).gap[0]
    return None, gap


def _write_back(doubtful: list[ActiveRows], starts: Index) -> tuple[list[Any], None]:
    return scatter_duals(doubtful, starts), None


class _Record:
    """What is known of each column of a stage, and the work it took."""

    def __init__(self, problem: Problem, null: NullModel, tol: float) -> None:
        n, M, q = problem.rows.n_rows, problem.rows.n_features, problem.n_columns
        self.null, self.tol = null, tol
        self.coef, self.intercept = np.zeros((M, q)), np.zeros(q)
        self.dual, self.entries = np.zeros((n if problem.rows.near else 0, q), order="F"), n * M
        self.objective, self.gap = np.zeros(q), np.full(q, np.inf)
        self.iterations, self.doubtful = np.zeros(q, dtype=np.intp), np.zeros(q, dtype=np.intp)
        self.hessian_rows, self.sweeps = 0, 0.0

    def count(self, answer: _Answer) -> None:
        """Add the work of one solve for rows in doubt."""
        self.iterations += answer.iterations
        self.hessian_rows += answer.hessian_rows
        self.sweeps += answer.entries / self.entries

    def enter(
        self,
        columns: Index,
        coef: Array,
        intercept: Array,
        objective: Array,
        gap: Array,
        memory: RowState,
        doubts: ActiveSet,
    ) -> Mask:
        """Write down those of these columns that are better than before; which of all columns are done?"""
        for k in columns[gap[columns] < self.gap[columns]].tolist():
            self.coef[:, k], self.intercept[k] = coef[:, k], intercept[k]
            self.objective[k], self.gap[k] = objective[k], gap[k]
            if len(self.dual):
                memory.column("dual", k, out=self.dual[:, k])
            self.doubtful[k] = doubts.count[k]
        rel = relative(self.gap, self.objective, self.null.objective)
        report(Progress(int(self.iterations.max()), len(columns), float(rel.max())))
        return rel <= self.tol

    def nearly(self, columns: Index) -> bool:
        """Whether all of these columns are nearly done."""
        rel = relative(self.gap, self.objective, self.null.objective)
        return bool(np.all(rel[columns] <= NEARLY * self.tol))

    def result(self, sweeps: float) -> Result:
        """The stage's result; `sweeps` are those over all its rows."""
        rel = relative(self.gap, self.objective, self.null.objective)
        return Result(
            self.coef, self.intercept, self.dual, self.objective, self.gap, rel, self.null.objective,
            statuses(rel, self.tol), self.iterations, self.sweeps + sweeps, self.hessian_rows,
            tuple(self.doubtful.tolist()),
        )  # fmt: skip


def _crowded(problem: Problem, doubts: ActiveSet) -> bool:
    """Whether so many rows are in doubt that screening them costs more than it saves."""
    return bool(doubts.count.max() > CROWD * problem.rows.n_rows)


def _too_few_active(problem: Problem, settled: ScreenedRows, doubts: ActiveSet, columns: Index) -> Mask:
    """Columns with no active row to solve for or, with an intercept, too few to balance the screened ones.

    Without an intercept a large ridge weight may leave all rows far on one side of the fit; with one, the intercept
    would run away.
    """
    stuck = np.zeros(problem.n_columns, dtype=bool)
    stuck[columns] = doubts.count[columns] == 0
    if problem.fit_intercept:
        ends = settled.balance + 0.9 * np.array([doubts.least, doubts.most])
        stuck[columns] |= (ends[0] > 0)[columns] | (ends[1] < 0)[columns]
    return stuck


def _solve_plainly(
    problem: Problem,
    basis: Array | None,
    record: _Record,
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
    answer = smooth_driver.solve_within(problem.take(columns), basis, begin, tol, max_iter)
    better = answer.gap < record.gap[columns]
    place = columns[better]
    record.coef[:, place], record.intercept[place] = answer.coef[:, better], answer.intercept[better]
    record.dual[:, place] = answer.dual[:, better]
    record.gap[place], record.objective[place] = answer.gap[better], answer.objective[better]
    record.iterations[columns] += answer.iterations
    record.hessian_rows += answer.hessian_rows
    record.sweeps += answer.sweeps
