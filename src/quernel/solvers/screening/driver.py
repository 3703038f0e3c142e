"""Screened continuation: most rows never matter.

At the optimum a row counts only by the side of the fit on which it lies, unless it lies on the fit, and few do. So:

1. solve on a random sample of 8 M rows, only as far as its statistical error is worth;
2. on a sample 8 times larger, take Newton steps from there with the curvature seen from afar, or solve it likewise;
3. of all rows, doubt only those whose residual at that solution is small against its error. The others are settled:
   together they are one linear term. The gradient over all rows, which sorting them has given, corrects the fit, and of
   the active rows few remain (where features are stored). Newton solves for these;
4. verify every row. A settled row that has changed sides costs the certificate what it should; if that is too much,
   doubt the rows that changed sides and those near the new fit too, and repeat. The lines of settled rows lie below
   their losses: what Newton solves is a model from below, which each round mends where it was wrong.

`uncertainty.py` says how large that error is, `newton_steps.py` and `steps.py` have the steps, `refining.py` the
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
from quernel.solvers.result import Callback, InitialPoint, Result
from quernel.solvers.screening import smooth_driver
from quernel.solvers.screening.low_rank import principal_basis
from quernel.solvers.screening.rounds import FIRST_WIDTH, RoundCallback, central_duals, solve_in_rounds
from quernel.solvers.screening.sampling_error import FeatureMoments, SamplingError
from quernel.solvers.screening.subsampled_newton import SAMPLE_STEPS, NewtonSteps, SubsampledNewton, has_enough_rows

Array = NDArray[np.floating]
# Iterations of each column, entries of features read, and rows of Hessians.
_Work = tuple[NDArray[np.intp], float, int]

# The first sample has so many rows per feature, and each next one is so many times larger.
FIRST_SAMPLE = 8
GROWTH = 8
# Problems up to this size (rows x features) are solved at once.
SMALL = 2_000_000
# Screening is begun while the share of active rows is below this.
MAX_ACTIVE_SHARE = 0.25
# A guess is corrected where the active rows would be more than this active_share of those of the sample.
CORRECTED = 0.2
# A sample is solved to this share of its own statistical error; the first, whose is not error yet, so far.
STAGE_ACCURACY, FIRST_ACCURACY = 0.1, 0.0025


@dataclass(frozen=True, eq=False)
class _Stage:
    """What a sample told: a fit, the directions that matter (None: all), and how far it can be trusted.

    active_share (q,) is the share of active rows, band (q,) the size of residual below which they are, wide_band (q,) that where
    they cost little, and covers_all whether that holds all that could matter; parameters is about the number of them that
    the fit really uses; curved, that no row can be settled; newton_steps, of rows that are near, can bring the fit take_steps
    to that to all rows.
    """

    coef: Array
    intercept: Array
    basis: Array | None
    active_share: Array
    band: Array
    wide_band: Array
    covers_all: bool
    parameters: float
    curved: bool
    work: _Work
    newton_steps: SubsampledNewton | None = None

    @classmethod
    def from_solution(
        cls, sample: Problem, result: Result, basis: Array | None, moments: FeatureMoments, tol: float
    ) -> _Stage:
        """What the solution on a sample tells."""
        fit = result.coef, result.intercept, _residuals(sample, result.coef, result.intercept)
        return cls._build(sample, fit, result.dual, basis, moments, tol, _work(sample, result))

    @classmethod
    def from_steps(
        cls,
        sample: Problem,
        guess: _Stage,
        newton_steps: SubsampledNewton,
        basis: Array | None,
        moments: FeatureMoments,
        tol: float,
    ) -> _Stage | None:
        """What a sample tells whose solution was from_steps by Newton steps alone; None where they lead nowhere."""
        fit = newton_steps.fit_subsample(guess.coef, guess.intercept)
        if fit is None:
            return None
        dual, steps = sample.loss.slope(fit[2]), np.full(sample.n_columns, SAMPLE_STEPS)
        stage = cls._build(
            sample, fit, dual, basis, moments, tol, (steps, newton_steps.entries, newton_steps.hessian_rows)
        )
        return replace(stage, newton_steps=newton_steps)

    @classmethod
    def _build(
        cls,
        sample: Problem,
        fit: tuple[Array, Array, Array],
        dual: Array,
        basis: Array | None,
        moments: FeatureMoments,
        tol: float,
        work: _Work,
    ) -> _Stage:
        (coef, intercept, residual), error = fit, SamplingError.unknown(sample)
        curved = smooth_driver.is_curved(sample.loss, residual, dual)
        if not curved:
            error = SamplingError.estimate(sample, residual, dual, sample.rows.n_rows, moments, tol)
        coef, parameters = coef if basis is None else basis @ coef, float(error.parameters.max())
        return cls(
            coef,
            intercept,
            basis,
            error.active_share,
            error.band,
            error.wide_band,
            error.covers_all,
            parameters,
            curved,
            work,
        )

    @classmethod
    def from_guess(
        cls, sample: Problem, guess: InitialPoint, basis: Array | None, moments: FeatureMoments, tol: float
    ) -> _Stage:
        """What a guess tells, looked at on a sample."""
        residual = _residuals(sample, guess.coef, guess.intercept)
        dual = sample.loss.slope(residual)
        curved = smooth_driver.is_curved(sample.loss, residual, dual)
        error = SamplingError.unknown(sample)
        if not curved:
            error = SamplingError.estimate(sample, residual, dual, guess.n_rows, moments, tol)
        active_share, band, wide_band, covers_all = error.active_share, error.band, error.wide_band, error.covers_all
        if guess.band is not None:
            active_share, band = np.mean(sample.loss.distance_to_knot(residual) <= guess.band, axis=0), guess.band
            wide_band, covers_all = band, False
        work = np.zeros(sample.n_columns, dtype=np.intp), sample.rows.n_rows * sample.rows.n_features, 0
        return cls(
            guess.coef,
            guess.intercept,
            basis,
            active_share,
            band,
            wide_band,
            covers_all,
            guess.parameters,
            curved,
            work,
        )


def solve(
    problem: Problem,
    *,
    tol: float = 1e-6,
    max_iter: int = 1000,
    guess: InitialPoint | None = None,
    keep: Callback | None = None,
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
        moments, stage = problem.run_at(_first_stage, problem.rows.sample(size, rng), n, tol, max_iter)
    else:
        moments, stage = problem.run_at(_guessed_stage, problem.rows.sample(size, rng), n, tol, guess)
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
        # Active rows are solved a column at a time. Where each column has to lift its own again in every step, that
        # is what they cost; of stored features gathering a sample costs as much as it saves the other columns.
        active_rows = stage.active_share.max() if problem.rows.near else stage.active_share.sum()
        size = _next_size(size, n, float(active_rows), _max_sample_size(problem, stage))
        if size < n:
            goal = max(tol, STAGE_ACCURACY * stage.parameters / size)
            sample = problem.rows.sample(size, rng, stage.basis, stored=size <= problem.rows.most_stored)
            _, stage = problem.run_at(_next_stage, sample, moments, stage, goal, tol, max_iter)
            work.append(stage.work)
            del sample

    def keep_round(coef: Array, intercept: Array, band: Array | None = None) -> None:
        if keep is not None:
            keep(InitialPoint(coef, intercept, n, stage.parameters, band))

    if stage.curved:
        if keep is not None:
            keep(InitialPoint(stage.coef, stage.intercept, size, stage.parameters))
        result = smooth_driver.solve_curved(
            problem, stage.basis, stage.coef, stage.intercept, rng, tol, max_iter, keep_round, solved=solved
        )
    else:
        steps = None if solved else _plan_steps(problem, stage, rng)
        stage = replace(stage, newton_steps=None)
        result = _solve_stage(problem, stage.basis, stage, tol, max_iter, keep_round, solved, steps, null)
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
        stage = _Stage.from_guess(problem, guess, None, FeatureMoments.from_sample(problem), tol)
        start = warm_start(problem, guess, np.where(stage.curved, 0.0, stage.band))
    result = newton.solve(problem, tol=tol, max_iter=max_iter, start=start, polish=polish)
    return None, replace(result, parameters=_parameters(problem.loss, result))


def _first_stage(
    problem: Problem, rows: InMemoryDesign, n: int, tol: float, max_iter: int
) -> tuple[FeatureMoments, _Stage]:
    sample = problem.on(rows)
    require_finite(sample.rows.as_array("A sample is kept"))
    basis = principal_basis(sample, n, tol, null_model(sample).objective)
    sample = sample.within(basis)
    result = newton.solve(sample, tol=max(tol, FIRST_ACCURACY), max_iter=max_iter, polish=False)
    moments = FeatureMoments.from_sample(sample)
    return moments, _Stage.from_solution(sample, result, basis, moments, tol)


def _guessed_stage(
    problem: Problem, rows: InMemoryDesign, n: int, tol: float, guess: InitialPoint
) -> tuple[FeatureMoments, _Stage]:
    sample = problem.on(rows)
    basis = principal_basis(sample, n, tol, null_model(sample).objective)
    moments = FeatureMoments.from_sample(sample.within(basis))
    return moments, _Stage.from_guess(sample, guess, basis, moments, tol)


def _next_stage(
    problem: Problem,
    rows: InMemoryDesign,
    moments: FeatureMoments,
    before: _Stage,
    goal: float,
    tol: float,
    max_iter: int,
) -> tuple[None, _Stage]:
    """The rows have the features within the basis."""
    sample, basis = problem.on(rows), before.basis
    guess = before if basis is None else replace(before, coef=basis.T @ before.coef)
    stage = None
    if steps := has_enough_rows(sample, before.parameters):
        newton_steps = SubsampledNewton(sample, basis, before.parameters)
        stage = _Stage.from_steps(sample, guess, newton_steps, basis, moments, tol)
    if stage is None:
        result = _solve_stage(sample, None, guess, goal, max_iter)
        stage = _Stage.from_solution(sample, result, basis, moments, tol)
        if steps:
            iterations, entries, hessian_rows = stage.work
            work = iterations, entries + newton_steps.entries, hessian_rows + newton_steps.hessian_rows
            stage = replace(stage, work=work, newton_steps=SubsampledNewton(sample, basis, stage.parameters))
    return None, stage if problem.rows.near else replace(stage, newton_steps=None)


def _plan_steps(problem: Problem, stage: _Stage, rng: np.random.Generator) -> NewtonSteps | None:
    """Steps that bring the fit take_steps, if active rows cost more than these, of which each looks at a sample.

    They need features at hand, and the whole gradient: what rows on curved pieces add to it is not summed. And the
    curvature must be much the same around a kink: the best function of a margin loss is a step, where it is not.
    """
    rows, steps = problem.rows, stage.newton_steps
    if not (rows.near and rows.cached) or problem.loss.margin or np.isnan(problem.loss.segments[1]).any():
        return None
    size = GROWTH * FIRST_SAMPLE * rows.n_features if steps is None else steps.n_rows
    if stage.active_share.max() * rows.n_rows < CORRECTED * size:
        return None
    if steps is None:  # the guess is not that of such a sample, which must not take much beside all rows
        sample = problem.on(rows.sample(min(size, rows.n_rows // 4), rng, stage.basis))
        if not has_enough_rows(sample, stage.parameters):
            return None
        steps = SubsampledNewton(sample, stage.basis, stage.parameters)
    return NewtonSteps(steps, stage.wide_band, stage.covers_all)


def is_small(problem: Problem) -> bool:
    """Whether screening would not pay: a small problem, or few rows per feature."""
    n, M = problem.rows.n_rows, problem.rows.n_features
    return n < 2 * FIRST_SAMPLE * M or n * M <= SMALL


def _work(sample: Problem, result: Result) -> _Work:
    """Iterations, entries of features read, and rows of Hessians."""
    return result.iterations, result.sweeps * sample.rows.n_rows * sample.rows.n_features, result.hessian_rows


def _next_size(size: int, n: int, active_share: float, most: int) -> int:
    """The rows of the next stage: all, unless a larger sample would save more active rows than it has itself."""
    larger = min(GROWTH * size, max(most, size))
    saved = active_share * n * (1 - np.sqrt(size / larger))
    return n if 2 * saved <= larger or 2 * larger > n or larger == size else larger


def _max_sample_size(problem: Problem, stage: _Stage) -> int:
    """How many rows the next sample may have: if its features are not stored, those of its active rows are."""
    stored, active_share = problem.rows.most_stored, stage.active_share
    return (
        stored
        if active_share.max() > MAX_ACTIVE_SHARE
        else max(stored, int(min(stored / active_share.sum(), problem.rows.most_sampled)))
    )


def _parameters(loss: Loss, result: Result) -> float:
    """How many duals are strictly inside their box: about the number of parameters that an exact fit really uses."""
    return float(np.clip(np.sum(loss.strictly_inside(result.dual), axis=0), 1, len(result.coef)).max())


def warm_start(
    problem: Problem, guess: Result | _Stage | InitialPoint, band: Array, null: Callable[[], NullModel] | None = None
) -> newton.Start:
    """The solution on fewer rows, as smooth as it is uncertain."""
    scale = null_model(problem) if null is None else null()
    return newton.Start(guess.coef, guess.intercept, central_duals(problem), FIRST_WIDTH * band, scale)


def _residuals(sample: Problem, coef: Array, intercept: Array) -> Array:
    """Of rows that are near, (n, q)."""
    state = sample.rows.new_memory()
    sample.set_coefficients(state, coef, intercept)
    return state.collect("residual")


def _solve_stage(
    problem: Problem,
    basis: Array | None,
    guess: _Stage,
    tol: float,
    max_iter: int,
    keep: RoundCallback | None = None,
    solved: bool = False,
    steps: NewtonSteps | None = None,
    null: Callable[[], NullModel] | None = None,
) -> Result:
    """All columns on these rows, from the solution on fewer."""
    if (
        guess.active_share.max() > MAX_ACTIVE_SHARE or problem.rows.n_rows * problem.rows.n_features <= SMALL
    ):  # screening would not pay
        return smooth_driver.solve_projected(
            problem, basis, warm_start(problem, guess, guess.band, null), tol, max_iter
        )
    start = guess.coef, guess.intercept, guess.band
    return solve_in_rounds(
        problem,
        *start,
        basis=basis,
        tol=tol,
        max_iter=max_iter,
        keep=keep,
        solved=solved,
        steps=steps,
        null=null,
    )
