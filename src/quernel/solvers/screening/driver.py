"""Screened continuation: most rows never matter.

At the optimum a row counts only by the side of the fit on which it lies, unless it lies on the fit, and few do. So:

1. solve on a random sample of 8 M rows, only as far as its statistical error is worth;
2. on a sample 8 times larger, take Newton steps from there with the curvature seen from afar, or solve it likewise;
3. of all rows, doubt only those whose residual at that solution is small against its error. The others are settled:
   together they are one linear term. The gradient over all rows, which sorting them has given, corrects the fit, and of
   the rows in doubt few remain (where features are stored). Newton solves for these;
4. verify every row. A settled row that has changed sides costs the certificate what it should; if that is too much,
   doubt the rows that changed sides and those near the new fit too, and repeat. The lines of settled rows lie below
   their losses: what Newton solves is a model from below, which each round mends where it was wrong.

`uncertainty.py` says how large that error is, `correction.py` and `approach.py` have the steps, `refining.py` the
rounds of 3 and 4, which samples go through as well where steps lead nowhere. The last stage reads the features of each
row twice: once to find its residual and add it to the linear term, and once to verify it. So they need not even be
stored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from quernel._threads import ahead
from quernel.data import InMemoryDesign
from quernel.losses import Loss
from quernel.objective import Problem, require_finite
from quernel.objective.duality_gap import NullModel, null_model
from quernel.solvers import newton
from quernel.solvers.result import InitialPoint, Keep, Result
from quernel.solvers.screening import smooth_driver
from quernel.solvers.screening.low_rank import principal_basis
from quernel.solvers.screening.rounds import FIRST_WIDTH, KeepRound, middle, refine
from quernel.solvers.screening.sampling_error import Geometry, Uncertainty
from quernel.solvers.screening.subsampled_newton import STEPS, Approach, Correction, tells_curvature

Array = NDArray[np.floating]
# Iterations of each column, entries of features read, and rows of Hessians.
_Work = tuple[NDArray[np.intp], float, int]

# The first sample has so many rows per feature, and each next one is so many times larger.
FIRST_SAMPLE = 8
GROWTH = 8
# Problems up to this size (rows x features) are solved at once.
SMALL = 2_000_000
# Screening is begun while the share of rows in doubt is below this.
MOST = 0.25
# A guess is corrected where the rows in doubt would be more than this part of those of the sample.
CORRECTED = 0.2
# A sample is solved to this share of its own statistical error; the first, whose is not known yet, so far.
STAGE_ACCURACY, FIRST_ACCURACY = 0.1, 0.0025


@dataclass(frozen=True, eq=False)
class _Stage:
    """What a sample told: a fit, the directions that matter (None: all), and how far it can be trusted.

    part (q,) is the share of rows in doubt, band (q,) the size of residual below which they are, wide (q,) that where
    they cost little, and sure whether that holds all that could matter; parameters is about the number of them that
    the fit really uses; curved, that no row can be settled; correction, of rows that are near, can bring the fit nearer
    to that to all rows.
    """

    coef: Array
    intercept: Array
    basis: Array | None
    part: Array
    band: Array
    wide: Array
    sure: bool
    parameters: float
    curved: bool
    work: _Work
    correction: Correction | None = None

    @classmethod
    def solved(cls, sample: Problem, result: Result, basis: Array | None, geometry: Geometry, tol: float) -> _Stage:
        """What the solution on a sample tells."""
        fit = result.coef, result.intercept, _residuals(sample, result.coef, result.intercept)
        return cls._of(sample, fit, result.dual, basis, geometry, tol, _work(sample, result))

    @classmethod
    def approached(
        cls,
        sample: Problem,
        guess: _Stage,
        correction: Correction,
        basis: Array | None,
        geometry: Geometry,
        tol: float,
    ) -> _Stage | None:
        """What a sample tells whose solution was approached by Newton steps alone; None where they lead nowhere."""
        fit = correction.own_fit(guess.coef, guess.intercept)
        if fit is None:
            return None
        dual, steps = sample.loss.slope(fit[2]), np.full(sample.n_columns, STEPS)
        stage = cls._of(sample, fit, dual, basis, geometry, tol, (steps, correction.entries, correction.hessian_rows))
        return replace(stage, correction=correction)

    @classmethod
    def _of(
        cls,
        sample: Problem,
        fit: tuple[Array, Array, Array],
        dual: Array,
        basis: Array | None,
        geometry: Geometry,
        tol: float,
        work: _Work,
    ) -> _Stage:
        (coef, intercept, residual), known = fit, Uncertainty.not_known(sample)
        curved = smooth_driver.curved(sample.loss, residual, dual)
        if not curved:
            known = Uncertainty.of(sample, residual, dual, sample.rows.n_rows, geometry, tol)
        coef, parameters = coef if basis is None else basis @ coef, float(known.parameters.max())
        return cls(coef, intercept, basis, known.part, known.band, known.wide, known.sure, parameters, curved, work)

    @classmethod
    def at(cls, sample: Problem, guess: InitialPoint, basis: Array | None, geometry: Geometry, tol: float) -> _Stage:
        """What a guess tells, looked at on a sample."""
        residual = _residuals(sample, guess.coef, guess.intercept)
        dual = sample.loss.slope(residual)
        curved = smooth_driver.curved(sample.loss, residual, dual)
        known = Uncertainty.not_known(sample)
        if not curved:
            known = Uncertainty.of(sample, residual, dual, guess.n_rows, geometry, tol)
        part, band, wide, sure = known.part, known.band, known.wide, known.sure
        if guess.band is not None:
            part, band = np.mean(sample.loss.distance_to_knot(residual) <= guess.band, axis=0), guess.band
            wide, sure = band, False
        work = np.zeros(sample.n_columns, dtype=np.intp), sample.rows.n_rows * sample.rows.n_features, 0
        return cls(guess.coef, guess.intercept, basis, part, band, wide, sure, guess.parameters, curved, work)


def solve(
    problem: Problem,
    *,
    tol: float = 1e-6,
    max_iter: int = 1000,
    guess: InitialPoint | None = None,
    keep: Keep | None = None,
    polish: bool = True,
) -> Result:
    """Minimise F for every column to a relative gap of at most `tol`.

    From a `guess`, only samples larger than its own are solved; one that is `solved` is proved, if possible. `keep` is
    told after every stage, and every round of the last, what would be a guess to go on from. `polish` lets small
    problems go on to rounding.
    """
    n, M, size = problem.rows.n_rows, problem.rows.n_features, FIRST_SAMPLE * problem.rows.n_features
    rng = np.random.default_rng(0)
    if is_small(problem):
        if problem.rows.near:
            return _solve_all(problem, problem.rows, tol, max_iter, guess, polish)[1]
        _, result = problem.run_at(_solve_all, problem.rows.sample(n, rng), tol, max_iter, guess, polish)
        return replace(result, dual=result.dual[:0])
    if guess is None:
        geometry, stage = problem.run_at(_first_stage, problem.rows.sample(size, rng), n, tol, max_iter)
    else:
        geometry, stage = problem.run_at(_guessed_stage, problem.rows.sample(size, rng), n, tol, guess)
        size = guess.n_rows
    work, solved, null = [stage.work], guess is not None and guess.solved, None
    if problem.rows.near and not stage.curved:  # the other stages before the last are too small for several threads
        null = ahead(null_model, problem, threads=problem.rows.threads)
    while not stage.curved:
        if not np.all(stage.band > 0):  # a sample that tells nothing, such as one in which y is constant
            return newton.solve(problem, tol=tol, max_iter=max_iter)
        if size >= n:
            break
        if keep is not None:
            keep(InitialPoint(stage.coef, stage.intercept, size, stage.parameters))
        # Rows in doubt are solved a column at a time. Where each column has to lift its own again in every step, that
        # is what they cost; of stored features gathering a sample costs as much as it saves the other columns.
        doubted = stage.part.max() if problem.rows.near else stage.part.sum()
        size = _next_size(size, n, float(doubted), _most_sampled(problem, stage))
        if size < n:
            goal = max(tol, STAGE_ACCURACY * stage.parameters / size)
            sample = problem.rows.sample(size, rng, stage.basis, stored=size <= problem.rows.most_stored)
            _, stage = problem.run_at(_next_stage, sample, geometry, stage, goal, tol, max_iter)
            work.append(stage.work)
            del sample

    def keep_round(coef: Array, intercept: Array, band: Array | None = None) -> None:
        if keep is not None:
            keep(InitialPoint(coef, intercept, n, stage.parameters, band))

    if stage.curved:
        if keep is not None:
            keep(InitialPoint(stage.coef, stage.intercept, size, stage.parameters))
        result = smooth_driver.finish(
            problem, stage.basis, stage.coef, stage.intercept, rng, tol, max_iter, keep_round, solved=solved
        )
    else:
        approach = None if solved else _approach(problem, stage, rng)
        stage = replace(stage, correction=None)
        result = _solve_stage(problem, stage.basis, stage, tol, max_iter, keep_round, solved, approach, null)
    work.append(_work(problem, result))
    iterations, sweeps, hessian_rows = (sum(parts) for parts in zip(*work, strict=True))
    work_done = {"iterations": iterations, "sweeps": sweeps / (n * M), "hessian_rows": hessian_rows}
    return replace(result, **work_done, parameters=stage.parameters)


# These go to where the rows are: they return what stays there, and what comes back.


def _solve_all(
    problem: Problem, rows: InMemoryDesign, tol: float, max_iter: int, guess: InitialPoint | None, polish: bool
) -> tuple[None, Result]:
    """Newton on all rows, which are few, from a guess if there is one."""
    problem, start = problem.on(rows), None
    if guess is not None:
        stage = _Stage.at(problem, guess, None, Geometry.of(problem), tol)
        start = warm_start(problem, guess, np.where(stage.curved, 0.0, stage.band))
    result = newton.solve(problem, tol=tol, max_iter=max_iter, start=start, polish=polish)
    return None, replace(result, parameters=_parameters(problem.loss, result))


def _first_stage(problem: Problem, rows: InMemoryDesign, n: int, tol: float, max_iter: int) -> tuple[Geometry, _Stage]:
    sample = problem.on(rows)
    require_finite(sample.rows.as_array("A sample is kept"))
    basis = principal_basis(sample, n, tol, null_model(sample).objective)
    sample = sample.within(basis)
    result = newton.solve(sample, tol=max(tol, FIRST_ACCURACY), max_iter=max_iter, polish=False)
    geometry = Geometry.of(sample)
    return geometry, _Stage.solved(sample, result, basis, geometry, tol)


def _guessed_stage(
    problem: Problem, rows: InMemoryDesign, n: int, tol: float, guess: InitialPoint
) -> tuple[Geometry, _Stage]:
    sample = problem.on(rows)
    basis = principal_basis(sample, n, tol, null_model(sample).objective)
    geometry = Geometry.of(sample.within(basis))
    return geometry, _Stage.at(sample, guess, basis, geometry, tol)


def _next_stage(
    problem: Problem, rows: InMemoryDesign, geometry: Geometry, before: _Stage, goal: float, tol: float, max_iter: int
) -> tuple[None, _Stage]:
    """The rows have the features within the basis."""
    sample, basis = problem.on(rows), before.basis
    guess = before if basis is None else replace(before, coef=basis.T @ before.coef)
    stage = None
    if steps := tells_curvature(sample, before.parameters):
        correction = Correction(sample, basis, before.parameters)
        stage = _Stage.approached(sample, guess, correction, basis, geometry, tol)
    if stage is None:
        result = _solve_stage(sample, None, guess, goal, max_iter)
        stage = _Stage.solved(sample, result, basis, geometry, tol)
        if steps:
            iterations, entries, hessian_rows = stage.work
            work = iterations, entries + correction.entries, hessian_rows + correction.hessian_rows
            stage = replace(stage, work=work, correction=Correction(sample, basis, stage.parameters))
    return None, stage if problem.rows.near else replace(stage, correction=None)


def _approach(problem: Problem, stage: _Stage, rng: np.random.Generator) -> Approach | None:
    """Steps that bring the fit nearer, if rows in doubt cost more than these, of which each looks at a sample.

    They need features at hand, and the whole gradient: what rows on curved pieces add to it is not summed. And the
    curvature must be much the same around a kink: the best function of a margin loss is a step, where it is not.
    """
    rows, steps = problem.rows, stage.correction
    if not (rows.near and rows.cached) or problem.loss.margin or np.isnan(problem.loss.segments[1]).any():
        return None
    size = GROWTH * FIRST_SAMPLE * rows.n_features if steps is None else steps.n_rows
    if stage.part.max() * rows.n_rows < CORRECTED * size:
        return None
    if steps is None:  # the guess is not that of such a sample, which must not take much beside all rows
        sample = problem.on(rows.sample(min(size, rows.n_rows // 4), rng, stage.basis))
        if not tells_curvature(sample, stage.parameters):
            return None
        steps = Correction(sample, stage.basis, stage.parameters)
    return Approach(steps, stage.wide, stage.sure)


def is_small(problem: Problem) -> bool:
    """Whether screening would not pay: a small problem, or few rows per feature."""
    n, M = problem.rows.n_rows, problem.rows.n_features
    return n < 2 * FIRST_SAMPLE * M or n * M <= SMALL


def _work(sample: Problem, result: Result) -> _Work:
    """Iterations, entries of features read, and rows of Hessians."""
    return result.iterations, result.sweeps * sample.rows.n_rows * sample.rows.n_features, result.hessian_rows


def _next_size(size: int, n: int, part: float, most: int) -> int:
    """The rows of the next stage: all, unless a larger sample would save more doubtful rows than it has itself."""
    larger = min(GROWTH * size, max(most, size))
    saved = part * n * (1 - np.sqrt(size / larger))
    return n if 2 * saved <= larger or 2 * larger > n or larger == size else larger


def _most_sampled(problem: Problem, stage: _Stage) -> int:
    """How many rows the next sample may have: if its features are not stored, those of its rows in doubt are."""
    stored, part = problem.rows.most_stored, stage.part
    return stored if part.max() > MOST else max(stored, int(min(stored / part.sum(), problem.rows.most_sampled)))


def _parameters(loss: Loss, result: Result) -> float:
    """How many duals are strictly inside their box: about the number of parameters that an exact fit really uses."""
    return float(np.clip(np.sum(loss.strictly_inside(result.dual), axis=0), 1, len(result.coef)).max())


def warm_start(
    problem: Problem, guess: Result | _Stage | InitialPoint, band: Array, null: Callable[[], NullModel] | None = None
) -> newton.Start:
    """The solution on fewer rows, as smooth as it is uncertain."""
    scale = null_model(problem) if null is None else null()
    return newton.Start(guess.coef, guess.intercept, middle(problem), FIRST_WIDTH * band, scale)


def _residuals(sample: Problem, coef: Array, intercept: Array) -> Array:
    """Of rows that are near, (n, q)."""
    memory = sample.rows.new_memory()
    sample.set_coefficients(memory, coef, intercept)
    return memory.collect("residual")


def _solve_stage(
    problem: Problem,
    basis: Array | None,
    guess: _Stage,
    tol: float,
    max_iter: int,
    keep: KeepRound | None = None,
    solved: bool = False,
    approach: Approach | None = None,
    null: Callable[[], NullModel] | None = None,
) -> Result:
    """All columns on these rows, from the solution on fewer."""
    if guess.part.max() > MOST or problem.rows.n_rows * problem.rows.n_features <= SMALL:  # screening would not pay
        return smooth_driver.solve_within(problem, basis, warm_start(problem, guess, guess.band, null), tol, max_iter)
    start = guess.coef, guess.intercept, guess.band
    return refine(
        problem,
        *start,
        basis=basis,
        tol=tol,
        max_iter=max_iter,
        keep=keep,
        solved=solved,
        approach=approach,
        null=null,
    )
