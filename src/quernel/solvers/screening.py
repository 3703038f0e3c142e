"""Screened continuation: most rows never matter.

At the optimum a row counts only by the side of the fit on which it lies, unless it lies on the fit, and few do. So:

1. solve on a random sample of 8 M rows, only as far as its statistical error is worth;
2. on a sample 8 times larger, doubt only the rows whose residual at that solution is small against its error. The
   others are settled: together they are one linear term. Newton solves for the rows in doubt;
3. verify every row. A settled row that has changed sides costs the certificate what it should; if that is too much,
   doubt the rows that changed sides and those near the new fit too, and repeat. The lines of settled rows lie below
   their losses: what Newton solves is a model from below, which each round mends where it was wrong;
4. go on until the sample is the whole.

The last stage reads the features of each row twice: once to find its residual and add it to the linear term, and once
to verify it. So they need not even be stored.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from quernel.certificate import NullModel, balanced, null_model, relative, stray
from quernel.losses import Loss
from quernel.problem import Problem, Settled, require_finite
from quernel.problem.doubt import Doubtful, doubt_more, remember, screen, small_problem, verify
from quernel.rows import Memory
from quernel.solvers import newton, staged
from quernel.solvers.compression import principal_basis
from quernel.solvers.progress import Progress, report
from quernel.solvers.result import Result, statuses

Array = NDArray[np.floating]
Index = NDArray[np.intp]
Mask = NDArray[np.bool_]

# The first sample has so many rows per feature, and each next one is so many times larger.
FIRST_SAMPLE = 8
GROWTH = 8
# Problems up to this size (rows x features) are solved at once.
SMALL = 2_000_000
# Screening is begun while the share of rows in doubt is below this, and goes on while it is below that.
MOST, CROWD = 0.25, 0.5
# Doubted are the rows within so many standard errors of the sample's fit, on either side: more where that is still only
# this share of the rows, for they cost little then, and a second round would cost a sweep over all.
DOUBT, DOUBT_MORE, CHEAP = 1.2, 2.0, 0.065
# A sample is solved to this share of its own statistical error.
STAGE_ACCURACY = 0.02
# Newton starts at this share of the band, or of it after a first solve.
FIRST_WIDTH, NEXT_WIDTH = 0.25, 0.1
MAX_ROUNDS = 5
# The first round is solved no farther than this where no basis makes it cheap: another will follow.
FIRST_GOAL = 1e-4
# Duals inside their box, per feature, that are believed of a rough solution.
ROUGH = 3
# A solve for doubtful rows that takes more steps than this has gone astray.
MAX_STEPS = 60
# A band that holds no row but those that changed sides.
TOUCHING = np.finfo(float).tiny
# Duals that sum to less than this are balanced.
ROUNDING = 1e-12


def solve(problem: Problem, *, tol: float = 1e-6, max_iter: int = 1000) -> Result:
    """Minimise F for every column to a relative gap of at most `tol`."""
    if is_small(problem):
        return newton.solve(problem, tol=tol, max_iter=max_iter)
    n, M, size = problem.rows.n_rows, problem.rows.n_features, FIRST_SAMPLE * problem.rows.n_features
    rng = np.random.default_rng(0)
    sample = problem.sample(size, rng)
    require_finite(sample.rows.resident("A sample is kept"))
    basis = principal_basis(sample, n, tol, null_model(sample).objective)
    sample = sample.within(basis)
    result = newton.solve(sample, tol=max(tol, STAGE_ACCURACY / FIRST_SAMPLE), max_iter=max_iter, polish=False)
    work = [_work(sample, result)]
    if staged.curved(sample, result):  # no row can be settled
        result, size = staged.finish(problem, basis, result, rng, tol, max_iter), n
        work.append(_work(problem, result))
    while size < n:
        part, band = _band(sample, result)
        if not np.all(band > 0):  # a sample that tells nothing, such as one in which y is constant
            return newton.solve(problem, tol=tol, max_iter=max_iter)
        accuracy = STAGE_ACCURACY * float(_parameters(problem.loss, result).max())
        size = _next_size(size, n, float(part.max()))
        goal = max(tol, accuracy / size)
        if size < n:
            sample = problem.sample(size, rng, basis)
            result = _solve_stage(sample, None, result, band, part, goal, max_iter)
        else:
            sample = problem
            if basis is not None:
                result = replace(result, coef=basis @ result.coef)
            result = _solve_stage(problem, basis, result, band, part, tol, max_iter)
        work.append(_work(sample, result))
    iterations, sweeps, hessian_rows = (sum(parts) for parts in zip(*work, strict=True))
    return replace(result, iterations=iterations, sweeps=sweeps / (n * M), hessian_rows=hessian_rows)


def is_small(problem: Problem) -> bool:
    """Whether screening would not pay: a small problem, or few rows per feature."""
    n, M = problem.rows.n_rows, problem.rows.n_features
    return n < 2 * FIRST_SAMPLE * M or n * M <= SMALL


def _work(sample: Problem, result: Result) -> tuple[NDArray[np.intp], float, int]:
    """Iterations, entries of features read, and rows of Hessians."""
    return result.iterations, result.sweeps * sample.rows.n_rows * sample.rows.n_features, result.hessian_rows


def _next_size(size: int, n: int, part: float) -> int:
    """The rows of the next stage: all, unless a larger sample would save more doubtful rows than it has itself."""
    saved = part * n * (1 - GROWTH**-0.5)
    return n if 2 * saved <= GROWTH * size or 2 * GROWTH * size > n else GROWTH * size


def _parameters(loss: Loss, result: Result) -> Array:
    """How many duals are strictly inside their box: about the number of parameters that the fit really uses.

    A solution that is only roughly one may have many more of them than features.
    """
    return np.clip(np.sum(loss.interior(result.dual), axis=0), 1, ROUGH * len(result.coef))


def warm_start(problem: Problem, guess: Result, band: Array) -> newton.Start:
    """The solution on fewer rows, as smooth as it is uncertain."""
    low, high = problem.loss.domain
    anchor = np.tile((low + high) / 2, (problem.rows.n_rows, 1))
    return newton.Start(guess.coef, guess.intercept, np.asfortranarray(anchor), FIRST_WIDTH * band, null_model(problem))


def _band(sample: Problem, result: Result) -> tuple[Array, Array]:
    """The share of rows in doubt, and the size of residual below which they are.

    A quantile fitted with p parameters on m rows is off by about sqrt(tau (1 - tau) p / m) / density at a row, and the
    rows within that distance are 2 sqrt(tau (1 - tau) p / m) of all, whatever the density. For another loss the
    variance of its duals takes the place of tau (1 - tau), in units of the jump of its slope.
    """
    (low, high), (knots, _) = sample.loss.domain, sample.loss.lines
    spread = np.sqrt(sample.rows.share @ result.dual**2 * _parameters(sample.loss, result) / sample.rows.n_rows)
    memory = sample.rows.new_memory()
    sample.place(memory, result.coef, result.intercept)
    size = sample.loss.distance(memory.collect("residual"))
    for kinks in (1, knots.shape[1]):  # seen from afar, knots that are close are one
        error = spread * kinks / (high - low)
        part = np.minimum(np.clip(CHEAP, 2 * DOUBT * error, 2 * DOUBT_MORE * error), 0.5)
        band = np.array([np.quantile(size[:, k], part[k]) for k in range(sample.n_columns)])
        if np.all(np.ptp(knots, axis=1) <= band):
            break
    return part, band


def _solve_stage(
    problem: Problem, basis: Array | None, guess: Result, band: Array, part: Array, tol: float, max_iter: int
) -> Result:
    """All columns on these rows, from the solution on fewer that leaves this part of rows in doubt."""
    if part.max() > MOST or problem.rows.n_rows * problem.rows.n_features <= SMALL:  # screening would not pay
        return staged.solve_within(problem, basis, warm_start(problem, guess, band), tol, max_iter)
    return refine(problem, guess, band, basis=basis, tol=tol, max_iter=max_iter)


def refine(
    problem: Problem, guess: Result, band: Array, *, basis: Array | None = None, tol: float, max_iter: int
) -> Result:
    """The solution near a guess: rows whose residuals there are within the band are in doubt, and more if need be."""
    q, null = problem.n_columns, null_model(problem)
    memory = problem.rows.new_memory()
    coef, intercept = guess.coef.copy(), guess.intercept.copy()
    before, settled, doubtful = screen(problem, memory, coef, intercept, band, basis)
    width = FIRST_WIDTH * band
    record = _Record(problem, null, tol)
    open_columns = np.arange(q)
    for turn in range(MAX_ROUNDS):
        goal = max(tol / 2, FIRST_GOAL) if turn == 0 and basis is None else tol / 2
        while (stuck := _unbalanced(problem, settled, doubtful, open_columns)).any() and not _crowded(
            problem, doubtful
        ):
            band = np.where(stuck, 2 * band, band)
            settled, doubtful = doubt_more(problem, memory, settled, doubtful, np.where(stuck, band, -1.0), basis)
        if _crowded(problem, doubtful):
            break
        move, shift = np.zeros_like(coef), np.zeros_like(intercept)
        for k in open_columns.tolist():
            column = np.array([k])
            start = newton.Start(
                coef[:, column], intercept[column], doubtful[k].anchor[:, None], width[column], null.take(column)
            )
            small = small_problem(problem, column, settled, doubtful[k], basis)
            answer = newton.solve(
                small, tol=goal, max_iter=min(MAX_STEPS, max_iter), start=start.within(basis), polish=False
            )
            found = answer.coef if basis is None else basis @ answer.coef
            move[:, k], shift[k] = found[:, 0] - coef[:, k], answer.intercept[0] - intercept[k]
            dual = answer.dual[:, 0]
            if problem.fit_intercept:
                _, sign = problem.loss.frame(doubtful[k].target)
                dual = balanced(dual, doubtful[k].share * sign, settled.balance[k])
            doubtful[k] = replace(doubtful[k], anchor=dual)
            remember(problem, memory, k, doubtful[k].index, dual)
            record.count(k, answer, small)
        verdict = verify(problem, memory, coef + move, intercept + shift)
        after = verdict.loss + problem.alpha * np.einsum("ij,ij->j", coef + move, coef + move)
        astray = stray(problem, coef + move, settled.force + verdict.force)
        gap = verdict.slack + astray
        if problem.fit_intercept:
            gap = np.where(np.abs(settled.balance + verdict.balance) <= ROUNDING, gap, np.inf)
        done = record.enter(open_columns, coef + move, intercept + shift, after, gap, memory, doubtful)
        worse = ~done & (after > before)
        open_columns = np.flatnonzero(~done)
        if len(open_columns) == 0:
            break
        lacking = ~done & ~worse & (relative(astray, after, null.objective) > tol / 4)
        narrow = basis is not None and bool(np.any(lacking))
        # Settled rows on the wrong side threw these fits away: go back, and doubt the rows that changed sides, too.
        coef, intercept = np.where(worse, coef, coef + move), np.where(worse, intercept, intercept + shift)
        before = np.where(worse, before, after)
        if narrow:  # directions were left out that do matter
            basis, band = None, np.where(worse, 2 * band, band)
            before, settled, doubtful = screen(problem, memory, coef, intercept, band, basis)
            width = FIRST_WIDTH * band
        else:
            more = np.where(worse, TOUCHING, np.minimum(2 * verdict.farthest, band))
            settled, doubtful = doubt_more(problem, memory, settled, doubtful, np.where(done, -1.0, more), basis)
            width = np.where(worse, FIRST_WIDTH, NEXT_WIDTH) * band
    if len(open_columns):  # screening does not help here
        start = newton.Start(coef, intercept, record.dual, width, null)
        _solve_plainly(problem, basis, record, open_columns, start, tol, max_iter)
    return record.result(memory.sweeps)


class _Record:
    """What is known of each column of a stage, and the work it took."""

    def __init__(self, problem: Problem, null: NullModel, tol: float) -> None:
        n, M, q = problem.rows.n_rows, problem.rows.n_features, problem.n_columns
        self.null, self.tol = null, tol
        self.coef, self.intercept, self.dual = np.zeros((M, q)), np.zeros(q), np.zeros((n, q), order="F")
        self.objective, self.gap = np.zeros(q), np.full(q, np.inf)
        self.iterations, self.doubtful = np.zeros(q, dtype=np.intp), np.zeros(q, dtype=np.intp)
        self.hessian_rows, self.sweeps = 0, 0.0

    def count(self, k: int, answer: Result, small: Problem) -> None:
        """Add the work of one solve of column k."""
        self.iterations[k] += answer.iterations[0]
        self.hessian_rows += answer.hessian_rows
        self.sweeps += answer.sweeps * small.rows.n_rows * small.rows.n_features / self.dual.shape[0] / len(self.coef)

    def enter(
        self,
        columns: Index,
        coef: Array,
        intercept: Array,
        objective: Array,
        gap: Array,
        memory: Memory,
        doubtful: list[Doubtful],
    ) -> Mask:
        """Write down those of these columns that are better than before; which of all columns are done?"""
        for k in columns[gap[columns] < self.gap[columns]].tolist():
            self.coef[:, k], self.intercept[k] = coef[:, k], intercept[k]
            self.objective[k], self.gap[k] = objective[k], gap[k]
            memory.column("dual", k, out=self.dual[:, k])
            self.doubtful[k] = len(doubtful[k].target)
        rel = relative(self.gap, self.objective, self.null.objective)
        report(Progress(int(self.iterations.max()), len(columns), float(rel.max())))
        return rel <= self.tol

    def result(self, sweeps: float) -> Result:
        """The stage's result; `sweeps` are those over all its rows."""
        rel = relative(self.gap, self.objective, self.null.objective)
        return Result(
            self.coef, self.intercept, self.dual, self.objective, self.gap, rel, self.null.objective,
            statuses(rel, self.tol), self.iterations, self.sweeps + sweeps, self.hessian_rows,
            tuple(self.doubtful.tolist()),
        )  # fmt: skip


def _crowded(problem: Problem, doubtful: list[Doubtful]) -> bool:
    """Whether so many rows are in doubt that screening them costs more than it saves."""
    return max(len(rows.target) for rows in doubtful) > CROWD * problem.rows.n_rows


def _unbalanced(problem: Problem, settled: Settled, doubtful: list[Doubtful], columns: Index) -> Mask:
    """Columns whose doubtful rows are too few to balance the settled ones: their intercept would run away."""
    stuck = np.zeros(problem.n_columns, dtype=bool)
    if problem.fit_intercept:
        low, high = problem.loss.domain
        for k in columns.tolist():
            _, sign = problem.loss.frame(doubtful[k].target)
            ends = 0.9 * doubtful[k].share * np.outer([low[k], high[k]], np.broadcast_to(sign, doubtful[k].share.shape))
            least, most = settled.balance[k] + ends.min(axis=0).sum(), settled.balance[k] + ends.max(axis=0).sum()
            stuck[k] = least > 0 or most < 0
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
        start.anchor[:, columns],
        start.width[columns],
        start.null.take(columns),
    )
    answer = staged.solve_within(problem.take(columns), basis, begin, tol, max_iter)
    better = answer.gap < record.gap[columns]
    place = columns[better]
    record.coef[:, place], record.intercept[place] = answer.coef[:, better], answer.intercept[better]
    record.dual[:, place], record.gap[place] = answer.dual[:, better], answer.gap[better]
    record.objective[place] = answer.objective[better]
    record.iterations[columns] += answer.iterations
    record.hessian_rows += answer.hessian_rows
    record.sweeps += answer.sweeps
