"""Screened continuation: most rows never matter.

At the optimum a row counts only by the side of the fit on which it lies, unless it lies on the fit, and few do. So:

1. solve on a random sample of 8 M rows, only as far as its statistical error is worth;
2. on a sample 8 times larger, doubt only the rows whose residual at that solution is small against its error. The
   others are settled: together they are one linear term. Newton solves for the rows in doubt;
3. verify every row. A settled row that has changed sides costs the certificate what it should; if that is too much,
   doubt the rows near the new fit too, and repeat;
4. go on until the sample is the whole.

The last stage reads the features of each row twice: once to find its residual and add it to the linear term, and once
to verify it. So they need not even be stored.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from quernel.certificate import NullModel, null_model, relative
from quernel.losses import Loss
from quernel.problem import Problem, Settled
from quernel.rows import Block, BlockMemory, Memory
from quernel.solvers import newton
from quernel.solvers.doubt import Doubtful, doubt_more, screen, small_problem, verify
from quernel.solvers.linesearch import exact_step
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
# Screening pays while the share of rows in doubt is below this.
MOST = 0.25
# Doubted are the rows within so many standard errors of the sample's fit, on either side.
DOUBT = 1.2
# A sample is solved to this share of its own statistical error.
STAGE_ACCURACY = 0.02
# Newton starts at this share of the band, or of it after a first solve.
FIRST_WIDTH, NEXT_WIDTH = 0.25, 0.1
MAX_ROUNDS = 5
# A solve for doubtful rows that takes more steps than this has gone astray.
MAX_STEPS = 60


def solve(problem: Problem, *, tol: float = 1e-6, max_iter: int = 1000) -> Result:
    """Minimise F for every column to a relative gap of at most `tol`."""
    n, size = problem.rows.n_rows, FIRST_SAMPLE * problem.rows.n_features
    if n < 2 * size or n * problem.rows.n_features <= SMALL:  # small, or few rows per feature
        return newton.solve(problem, tol=tol, max_iter=max_iter)
    rng = np.random.default_rng(0)
    sample = problem.sample(size, rng)
    result = newton.solve(sample, tol=max(tol, STAGE_ACCURACY / FIRST_SAMPLE), max_iter=max_iter, polish=False)
    work = [(size, result)]
    while size < n:
        part, band = _band(sample, result)
        if not np.all(band > 0):  # a sample that tells nothing, such as one in which y is constant
            return newton.solve(problem, tol=tol, max_iter=max_iter)
        accuracy = STAGE_ACCURACY * float(_parameters(problem.loss, result.dual).max())
        size = n if 2 * GROWTH * size > n else GROWTH * size
        sample = problem if size == n else problem.sample(size, rng)
        goal = tol if size == n else max(tol, accuracy / size)
        if part.max() > MOST:  # too many rows in doubt for screening to pay
            result = newton.solve(
                sample, tol=goal, max_iter=max_iter, start=_warm_start(sample, result, band), polish=False
            )
        else:
            result = _solve_stage(sample, result, band, goal, max_iter)
        work.append((size, result))
    return replace(
        result,
        iterations=sum((stage.iterations for _, stage in work), start=np.zeros_like(result.iterations)),
        sweeps=sum(rows * stage.sweeps for rows, stage in work) / n,
        hessian_rows=sum(stage.hessian_rows for _, stage in work),
    )


def _parameters(loss: Loss, dual: Array) -> Array:
    """How many duals are strictly inside their box: about the number of parameters that the fit really uses."""
    low, high = loss.domain
    margin = 1e-9 * (high - low)
    return np.maximum(np.sum((dual > low + margin) & (dual < high - margin), axis=0), 1)


def _warm_start(problem: Problem, guess: Result, band: Array) -> newton.Start:
    """The solution on fewer rows, as smooth as it is uncertain."""
    low, high = problem.loss.domain
    anchor = np.tile((low + high) / 2, (problem.rows.n_rows, 1))
    return newton.Start(guess.coef, guess.intercept, np.asfortranarray(anchor), FIRST_WIDTH * band, null_model(problem))


def _band(sample: Problem, result: Result) -> tuple[Array, Array]:
    """The share of rows in doubt, and the size of residual below which they are.

    A quantile fitted with p parameters on m rows is off by about sqrt(tau (1 - tau) p / m) / density at a row, and the
    rows within that distance are 2 sqrt(tau (1 - tau) p / m) of all, whatever the density.
    """
    low, high = sample.loss.domain
    error = np.sqrt(-low * high * _parameters(sample.loss, result.dual) / sample.rows.n_rows)
    part = np.minimum(2 * DOUBT * error, 0.5)
    memory = sample.rows.new_memory()
    sample.place(memory, result.coef, result.intercept)
    size = np.abs(memory.collect("residual"))
    return part, np.array([np.quantile(size[:, k], part[k]) for k in range(sample.n_columns)])


def _solve_stage(problem: Problem, guess: Result, band: Array, tol: float, max_iter: int) -> Result:
    """All columns on these rows, from the solution on fewer."""
    q, null = problem.n_columns, null_model(problem)
    memory = problem.rows.new_memory()
    coef, intercept = guess.coef.copy(), guess.intercept.copy()
    before, settled, doubtful = screen(problem, memory, coef, intercept, band)
    width = FIRST_WIDTH * band
    record = _Record(problem, null, tol)
    open_columns = np.arange(q)
    for _ in range(MAX_ROUNDS):
        while (stuck := _unbalanced(problem, settled, doubtful, open_columns)).any() and not _crowded(
            problem, doubtful
        ):
            band = np.where(stuck, 2 * band, band)
            settled, doubtful = doubt_more(problem, memory, settled, doubtful, np.where(stuck, band, -1.0))
        if _crowded(problem, doubtful):
            break
        move, shift, inner = np.zeros_like(coef), np.zeros_like(intercept), np.zeros(q)
        for k in open_columns.tolist():
            column = np.array([k])
            start = newton.Start(
                coef[:, column], intercept[column], doubtful[k].anchor[:, None], width[column], null.take(column)
            )
            small = small_problem(problem, column, settled, doubtful[k])
            answer = newton.solve(small, tol=tol / 2, max_iter=min(MAX_STEPS, max_iter), start=start, polish=False)
            move[:, k], shift[k] = answer.coef[:, 0] - coef[:, k], answer.intercept[0] - intercept[k]
            inner[k] = answer.gap[0]
            doubtful[k] = replace(doubtful[k], anchor=answer.dual[:, 0])
            record.count(k, answer, len(doubtful[k].target))
        loss, slack, farthest = verify(problem, memory, coef + move, intercept + shift)
        after = loss + problem.alpha * np.einsum("ij,ij->j", coef + move, coef + move)
        done = record.enter(open_columns, coef + move, intercept + shift, after, inner + slack, memory, doubtful)
        worse = ~done & (after > before)
        open_columns = np.flatnonzero(~done)
        if len(open_columns) == 0:
            break
        if worse.any():  # settled rows on the wrong side threw the fit away: go back, and doubt twice as many
            band = np.where(done, band, 2 * band)
            step = _step_back(problem, memory, coef, move, shift, worse)
            coef, intercept = coef + step * move, intercept + step * shift
            before, settled, doubtful = screen(problem, memory, coef, intercept, band)
            width = FIRST_WIDTH * band
        else:
            coef, intercept, before = coef + move, intercept + shift, after
            settled, doubtful = doubt_more(
                problem, memory, settled, doubtful, np.where(done, -1.0, np.minimum(2 * farthest, band))
            )
            width = NEXT_WIDTH * band
    if len(open_columns):  # screening does not help here
        start = newton.Start(coef, intercept, record.dual, width, null)
        _solve_plainly(problem, record, open_columns, start, tol, max_iter)
    return record.result(memory.sweeps)


class _Record:
    """What is known of each column of a stage, and the work it took."""

    def __init__(self, problem: Problem, null: NullModel, tol: float) -> None:
        n, M, q = problem.rows.n_rows, problem.rows.n_features, problem.n_columns
        self.null, self.tol, self.n_rows = null, tol, n
        self.coef, self.intercept, self.dual = np.zeros((M, q)), np.zeros(q), np.zeros((n, q), order="F")
        self.objective, self.gap = np.zeros(q), np.full(q, np.inf)
        self.iterations, self.doubtful = np.zeros(q, dtype=np.intp), np.zeros(q, dtype=np.intp)
        self.hessian_rows, self.sweeps = 0, 0.0

    def count(self, k: int, answer: Result, rows: int) -> None:
        """Add the work of one solve of column k."""
        self.iterations[k] += answer.iterations[0]
        self.hessian_rows += answer.hessian_rows
        self.sweeps += answer.sweeps * rows / self.n_rows

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
            self.dual[:, k] = memory.column("dual", k)
            self.dual[doubtful[k].index, k] = doubtful[k].anchor
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
    return max(len(rows.target) for rows in doubtful) > MOST * problem.rows.n_rows


def _unbalanced(problem: Problem, settled: Settled, doubtful: list[Doubtful], columns: Index) -> Mask:
    """Columns whose doubtful rows are too few to balance the settled ones: their intercept would run away."""
    stuck = np.zeros(problem.n_columns, dtype=bool)
    if problem.fit_intercept:
        low, high = problem.loss.domain
        for k in columns.tolist():
            weight = 0.9 * doubtful[k].share.sum()
            stuck[k] = settled.balance[k] + low[k] * weight > 0 or settled.balance[k] + high[k] * weight < 0
    return stuck


def _solve_plainly(
    problem: Problem, record: _Record, columns: Index, start: newton.Start, tol: float, max_iter: int
) -> None:
    """The open columns by Newton over all rows, from where screening left them."""
    begin = newton.Start(
        start.coef[:, columns],
        start.intercept[columns],
        start.anchor[:, columns],
        start.width[columns],
        start.null.take(columns),
    )
    answer = newton.solve(problem.take(columns), tol=tol, max_iter=max_iter, start=begin, polish=False)
    better = answer.gap < record.gap[columns]
    place = columns[better]
    record.coef[:, place], record.intercept[place] = answer.coef[:, better], answer.intercept[better]
    record.dual[:, place], record.gap[place] = answer.dual[:, better], answer.gap[better]
    record.objective[place] = answer.objective[better]
    record.iterations[columns] += answer.iterations
    record.hessian_rows += answer.hessian_rows
    record.sweeps += answer.sweeps


def _step_back(problem: Problem, memory: Memory, coef: Array, move: Array, shift: Array, worse: Mask) -> Array:
    """Where along the step F itself is least; the columns that are not worse take all of it."""
    problem.rows.visit(_restore, memory)
    tiny = np.full(problem.n_columns, np.finfo(float).tiny ** 0.5)
    step = exact_step(problem, memory, tiny, coef, move, shift, np.zeros(problem.n_columns))
    return np.where(worse, np.minimum(step, 1), 1.0)


def _restore(block: Block, memory: BlockMemory, message: None) -> None:  # noqa: ARG001
    """Residuals as before the step, and anchors at zero: a tiny width then makes the smoothed loss the loss itself."""
    memory["residual"] = memory["residual"] + memory["change"]
    memory["anchor"] = np.zeros_like(memory["residual"])
