"""Screened semismooth Newton: the default solver (`SOLVERS["newton"]`) for problems with many rows.

At the optimum of a piecewise linear loss a row matters only by the linear piece (segment) on which its residual lies,
i.e. by its dual v_i, unless the residual is at a kink, and few are: about as many as the fit has degrees of freedom.
So rows are screened like the features of a lasso by the strong rules (Tibshirani et al. 2012): a heuristic discards
most of them, and a KKT check on all makes the answer exact. Stages:

1. Sample. Solve a random sample of 8 M rows with `solvers.newton`, only as accurately as its sampling error warrants. A
   low-rank basis of the features is taken from it (`sampling`).
2. Larger sample (8 x). Take Newton steps from there with a finite-difference Hessian (`subsampled_newton`), or solve it
   with screening as in 3. Repeat while a larger sample saves more active rows than half its own.
3. All rows. `sampling` gives a band around zero residual outside which rows are unlikely to change segment. Those
   rows are screened: their duals are fixed, and together they are one linear term of the objective. The pass that
   screens them also yields the full gradient, with which a few Newton steps (full gradient, subsampled Hessian) correct
   the fit and shrink the active set (where features are stored). Newton solves for the active rows (`rounds`).
4. KKT check (`active_set.verify`). One pass over all rows. A screened row on another segment than its dual's enlarges
   the duality gap; if the gap exceeds the tolerance, such rows and those near the new fit become active, and 3 is
   repeated. The linear piece of a convex loss lies below the loss, so each active-set problem is a lower model of F
   that the next round tightens.

The final stage reads the features of each row twice, once to screen and once to check, so they need not be stored.
Losses that are curved where most rows lie cannot be screened; `smooth_driver` handles them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from quernel.data import InMemoryDesign
from quernel.losses import Loss
from quernel.objective import InMemoryProblem, Problem, require_finite
from quernel.objective.duality_gap import NullModel, null_model
from quernel.solvers import newton
from quernel.solvers.progress import stop_requested
from quernel.solvers.result import Callback, InitialPoint, Result, certify_point
from quernel.solvers.screening import smooth_driver
from quernel.solvers.screening.rounds import FIRST_WIDTH, RoundCallback, central_duals, solve_in_rounds
from quernel.solvers.screening.sampling import FeatureMoments, SamplingError, principal_basis
from quernel.solvers.screening.subsampled_newton import SAMPLE_STEPS, NewtonSteps, SubsampledNewton, has_enough_rows

Array = NDArray[np.floating]
# Work done: iterations per column (q,), feature entries read, rows summed into Hessians.
_Work = tuple[NDArray[np.intp], float, int]

# Rows per feature of the first sample, and the factor by which each further sample grows.
FIRST_SAMPLE = 8
GROWTH = 8
# Problems up to this size (rows x features) are solved by plain Newton, without samples or screening.
SMALL = 2_000_000
# Screening is tried while the expected share of active rows is at most this.
MAX_ACTIVE_SHARE = 0.25
# Newton steps before screening are taken where the expected active rows exceed this share of the rows of the sample.
CORRECTED = 0.2
# Relative gap to which samples are solved: a share of their sampling error; fixed for the first, whose error is
# unknown.
STAGE_ACCURACY, FIRST_ACCURACY = 0.1, 0.0025


@dataclass(frozen=True, eq=False)
class _Stage:
    """The fit to a sample and its estimated sampling error: all that the next stage starts from.

    Attributes
    ----------
    coef, intercept : arrays of shape (M, q) and (q,)
        In the coordinates of all features, also where a basis is used.
    basis : array of shape (M, k) or None
        Low-rank basis of the features; None uses all of them.
    active_share : array of shape (q,)
        Expected share of rows with a residual within `band` of a kink.
    band, wide_band : arrays of shape (q,)
        Distance from a kink below which rows are active; `wide_band` where active rows are only screened again.
    covers_all : bool
        Whether `wide_band` is wide enough for practically every row that could change segment.
    parameters : float
        Effective degrees of freedom of the fit.
    curved : bool
        Whether the loss is curved where most rows lie, so that no row can be screened.
    newton_steps : SubsampledNewton or None
        The factorized sample, for Newton steps on all rows; only where rows are in memory.
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
        cls, sample: InMemoryProblem, result: Result, basis: Array | None, moments: FeatureMoments, tol: float
    ) -> _Stage:
        """The stage of a sample that was solved."""
        fit = result.coef, result.intercept, _residuals(sample, result.coef, result.intercept)
        return cls._build(sample, fit, result.dual, basis, moments, tol, _work(sample, result))

    @classmethod
    def from_steps(
        cls,
        sample: InMemoryProblem,
        initial: _Stage,
        newton_steps: SubsampledNewton,
        basis: Array | None,
        moments: FeatureMoments,
        tol: float,
    ) -> _Stage | None:
        """The stage of a sample approximately solved by a few Newton steps; None where these do not converge."""
        fit = newton_steps.fit_subsample(initial.coef, initial.intercept)
        if fit is None:
            return None
        dual, steps = sample.loss.slope(fit[2]), np.full(sample.n_columns, SAMPLE_STEPS)
        work = steps, newton_steps.entries, newton_steps.hessian_rows
        stage = cls._build(sample, fit, dual, basis, moments, tol, work)
        return replace(stage, newton_steps=newton_steps)

    @classmethod
    def _build(
        cls,
        sample: InMemoryProblem,
        fit: tuple[Array, Array, Array],
        dual: Array,
        basis: Array | None,
        moments: FeatureMoments,
        tol: float,
        work: _Work,
    ) -> _Stage:
        """The stage of a fit (coef, intercept, residual) with the duals of the sample."""
        (coef, intercept, residual), error = fit, SamplingError.unknown(sample)
        curved = smooth_driver.is_curved(sample.loss, residual, dual)
        if not curved:
            error = SamplingError.estimate(sample, residual, dual, sample.rows.n_rows, moments, tol)
        coef, parameters = coef if basis is None else basis @ coef, float(error.parameters.max())
        bands = error.active_share, error.band, error.wide_band, error.covers_all
        return cls(coef, intercept, basis, *bands, parameters, curved, work)

    @classmethod
    def from_initial(
        cls, sample: InMemoryProblem, initial: InitialPoint, basis: Array | None, moments: FeatureMoments, tol: float
    ) -> _Stage:
        """The stage of a given initial point, whose error is estimated from the residuals of a sample."""
        residual = _residuals(sample, initial.coef, initial.intercept)
        dual = sample.loss.slope(residual)
        curved = smooth_driver.is_curved(sample.loss, residual, dual)
        error = SamplingError.unknown(sample)
        if not curved:
            error = SamplingError.estimate(sample, residual, dual, initial.n_rows, moments, tol)
        bands = error.active_share, error.band, error.wide_band, error.covers_all
        if initial.band is not None:
            active_share = np.mean(sample.loss.distance_to_knot(residual) <= initial.band, axis=0)
            bands = active_share, initial.band, initial.band, False
        work = np.zeros(sample.n_columns, dtype=np.intp), sample.rows.n_rows * sample.rows.n_features, 0
        return cls(initial.coef, initial.intercept, basis, *bands, initial.parameters, curved, work)


def solve(
    problem: Problem,
    *,
    tol: float = 1e-6,
    max_iter: int = 1000,
    initial: InitialPoint | None = None,
    callback: Callback | None = None,
    polish: bool = True,
) -> Result:
    """Minimise F for every column to a relative duality gap of at most `tol`.

    Parameters
    ----------
    problem : Problem
    tol : float
        Relative duality gap at which a column has converged.
    max_iter : int
        Newton steps of each column in each stage.
    initial : InitialPoint or None
        Warm start: only samples larger than its `n_rows` are solved. One that is `solved` may be the solution: no
        Newton steps precede screening and, out of core, its certificate is tried before all rows are read again.
    callback : callable or None
        Called with an `InitialPoint` after every stage and every round of the last one, e.g. to write a checkpoint.
    polish : bool
        Whether small problems continue below `tol` down to rounding error.

    Returns
    -------
    Result
    """
    n, M, size = problem.rows.n_rows, problem.rows.n_features, FIRST_SAMPLE * problem.rows.n_features
    rng = np.random.default_rng(0)
    if is_small(problem):
        _, result = problem.run_at(_solve_all, problem.rows.gather(n, rng), tol, max_iter, initial, polish)
        return replace(result, dual=result.dual[: problem.rows.n_duals])
    # 1. A first sample, or the given point.
    if initial is None:
        moments, stage = problem.run_at(_first_stage, problem.rows.sample(size, rng), n, tol, max_iter)
    else:
        moments, stage = problem.run_at(_initial_stage, problem.rows.sample(size, rng), n, tol, initial)
        size = initial.n_rows
    work, solved = [stage.work], initial is not None and initial.solved
    # In parallel: samples are too small to use all threads.
    null = None if stage.curved else problem.rows.submit(null_model, problem)
    # 2. Larger samples, until all rows are next.
    while not stage.curved and not stop_requested():
        if not np.all(stage.band > 0):  # an uninformative sample, such as one with constant y
            return newton.solve(problem, tol=tol, max_iter=max_iter)
        if size >= n:
            break
        if callback is not None:
            callback(InitialPoint(stage.coef, stage.intercept, size, stage.parameters))
        # Active rows are solved one column at a time. Out of core each column recomputes the features of its own in
        # every step, so their number adds up; in memory gathering a sample costs as much as it saves the other columns.
        active_share = stage.active_share.max() if problem.rows.returns_rows else stage.active_share.sum()
        size = _next_size(size, n, float(active_share), _max_sample_size(problem, stage))
        if size < n:
            goal = max(tol, STAGE_ACCURACY * stage.parameters / size)
            sample = problem.rows.sample(size, rng, stage.basis, stored=size <= problem.rows.most_stored)
            _, stage = problem.run_at(_next_stage, sample, moments, stage, goal, tol, max_iter)
            work.append(stage.work)
            del sample

    def report_round(coef: Array, intercept: Array, band: Array | None = None) -> None:
        if callback is not None:
            callback(InitialPoint(coef, intercept, n, stage.parameters, band))

    # 3. and 4. All rows: screen, solve and check in rounds; without screening where the loss is curved.
    if stop_requested():
        scale = null_model(problem) if null is None else null()
        result = certify_point(problem, stage.coef, stage.intercept, scale, tol)
    elif stage.curved:
        if callback is not None:
            callback(InitialPoint(stage.coef, stage.intercept, size, stage.parameters))
        result = smooth_driver.solve_curved(
            problem, stage.basis, stage.coef, stage.intercept, rng, tol, max_iter, report_round, solved=solved
        )
    else:
        steps = None if solved else _plan_steps(problem, stage, rng)
        stage = replace(stage, newton_steps=None)
        result = _solve_stage(problem, stage.basis, stage, tol, max_iter, report_round, solved, steps, null)
    work.append(_work(problem, result))
    iterations, sweeps, hessian_rows = (sum(parts) for parts in zip(*work, strict=True))
    work_done = {"iterations": iterations, "sweeps": sweeps / (n * M), "hessian_rows": hessian_rows}
    return replace(result, **work_done, parameters=stage.parameters)


# Functions for `Problem.run_at`: they run where the rows live, and return (what stays there, what is sent back).


def _solve_all(
    problem: InMemoryProblem,
    rows: InMemoryDesign,
    tol: float,
    max_iter: int,
    initial: InitialPoint | None,
    polish: bool,
) -> tuple[None, Result]:
    """Plain Newton on all rows of a small problem, from a warm start if one is given."""
    problem, start = problem.on(rows), None
    if initial is not None:
        stage = _Stage.from_initial(problem, initial, None, FeatureMoments.from_sample(problem), tol)
        start = warm_start(problem, initial, np.where(stage.curved, 0.0, stage.band))
    result = newton.solve(problem, tol=tol, max_iter=max_iter, start=start, polish=polish)
    return None, replace(result, parameters=_parameters(problem.loss, result))


def _first_stage(
    problem: InMemoryProblem, rows: InMemoryDesign, n: int, tol: float, max_iter: int
) -> tuple[FeatureMoments, _Stage]:
    """Choose the low-rank basis from the first sample, and solve the sample within it."""
    sample = problem.on(rows)
    require_finite(sample.rows.as_array("A sample is kept"))
    basis = principal_basis(sample, n, tol, null_model(sample).objective)
    sample = sample.project(basis)
    result = newton.solve(sample, tol=max(tol, FIRST_ACCURACY), max_iter=max_iter, polish=False)
    moments = FeatureMoments.from_sample(sample)
    return moments, _Stage.from_solution(sample, result, basis, moments, tol)


def _initial_stage(
    problem: InMemoryProblem, rows: InMemoryDesign, n: int, tol: float, initial: InitialPoint
) -> tuple[FeatureMoments, _Stage]:
    """As `_first_stage`, for a given initial point in place of the sample's solution."""
    sample = problem.on(rows)
    basis = principal_basis(sample, n, tol, null_model(sample).objective)
    moments = FeatureMoments.from_sample(sample.project(basis))
    return moments, _Stage.from_initial(sample, initial, basis, moments, tol)


def _next_stage(
    problem: InMemoryProblem,
    rows: InMemoryDesign,
    moments: FeatureMoments,
    before: _Stage,
    goal: float,
    tol: float,
    max_iter: int,
) -> tuple[None, _Stage]:
    """The stage of a larger sample, whose `rows` already have the features of the basis.

    Newton steps with the sample's own gradient usually suffice; where they do not converge it is solved to `goal`.
    """
    sample, basis = problem.on(rows), before.basis
    initial = before if basis is None else replace(before, coef=basis.T @ before.coef)
    stage = None
    if steps := has_enough_rows(sample, before.parameters):
        newton_steps = SubsampledNewton(sample, basis, before.parameters)
        stage = _Stage.from_steps(sample, initial, newton_steps, basis, moments, tol)
    if stage is None:
        result = _solve_stage(sample, None, initial, goal, max_iter)
        stage = _Stage.from_solution(sample, result, basis, moments, tol)
        if steps:
            iterations, entries, hessian_rows = stage.work
            work = iterations, entries + newton_steps.entries, hessian_rows + newton_steps.hessian_rows
            stage = replace(stage, work=work, newton_steps=SubsampledNewton(sample, basis, stage.parameters))
    return None, stage if problem.rows.returns_rows else replace(stage, newton_steps=None)


def _plan_steps(problem: Problem, stage: _Stage, rng: np.random.Generator) -> NewtonSteps | None:
    """The Newton steps to take on all rows before screening, or None where they would not pay.

    They pay where the active rows cost more than the steps, each of which reads the sample. They need features in
    memory and the full gradient, to which rows on curved pieces do not contribute in `screen`. And the density of
    residuals must be about constant around a kink: for margin losses, whose population minimiser is a step function, it
    is not.
    """
    rows, steps = problem.rows, stage.newton_steps
    if not rows.random_access or problem.loss.margin or np.isnan(problem.loss.segments[1]).any():
        return None
    size = GROWTH * FIRST_SAMPLE * rows.n_features if steps is None else steps.n_rows
    if stage.active_share.max() * rows.n_rows < CORRECTED * size:
        return None
    if steps is None:  # no such sample yet: draw one that is small beside all rows
        sample = problem.on(rows.sample(min(size, rows.n_rows // 4), rng, stage.basis))
        if not has_enough_rows(sample, stage.parameters):
            return None
        steps = SubsampledNewton(sample, stage.basis, stage.parameters)
    return NewtonSteps(steps, stage.wide_band, stage.covers_all)


def is_small(problem: Problem) -> bool:
    """Whether to solve without screening: a small problem, or one with few rows per feature."""
    n, M = problem.rows.n_rows, problem.rows.n_features
    return n < 2 * FIRST_SAMPLE * M or n * M <= SMALL


def _work(sample: Problem, result: Result) -> _Work:
    """The work of a solve, with passes over its rows counted in feature entries."""
    return result.iterations, result.sweeps * sample.rows.n_rows * sample.rows.n_features, result.hessian_rows


def _next_size(size: int, n: int, active_share: float, most: int) -> int:
    """Rows of the next stage: `n`, unless a larger sample pays.

    The band shrinks with the root of the sample size, so a sample `larger` saves this many active rows; it must save at
    least half as many as it has.
    """
    larger = min(GROWTH * size, max(most, size))
    saved = active_share * n * (1 - np.sqrt(size / larger))
    return n if 2 * saved <= larger or 2 * larger > n or larger == size else larger


def _max_sample_size(problem: Problem, stage: _Stage) -> int:
    """Largest sample that fits into memory: its features or, where these are recomputed, those of its active rows."""
    stored, active_share = problem.rows.most_stored, stage.active_share
    if active_share.max() > MAX_ACTIVE_SHARE:
        return stored
    return max(stored, int(min(stored / active_share.sum(), problem.rows.most_sampled)))


def _parameters(loss: Loss, result: Result) -> float:
    """Number of duals strictly inside their box: about the degrees of freedom of a fit to a piecewise linear loss."""
    return float(np.clip(np.sum(loss.strictly_inside(result.dual), axis=0), 1, len(result.coef)).max())


def warm_start(
    problem: Problem, initial: Result | _Stage | InitialPoint, band: Array, null: Callable[[], NullModel] | None = None
) -> newton.Start:
    """Start Newton at a fit to fewer rows, with a smoothing width in proportion to its uncertainty `band` (q,)."""
    scale = null_model(problem) if null is None else null()
    return newton.Start(initial.coef, initial.intercept, central_duals(problem), FIRST_WIDTH * band, scale)


def _residuals(sample: InMemoryProblem, coef: Array, intercept: Array) -> Array:
    """Residuals of rows in memory, (n, q)."""
    state = sample.rows.new_state()
    sample.set_coefficients(state, coef, intercept)
    return state.collect("residual")


def _solve_stage(
    problem: Problem,
    basis: Array | None,
    initial: _Stage,
    tol: float,
    max_iter: int,
    callback: RoundCallback | None = None,
    solved: bool = False,
    steps: NewtonSteps | None = None,
    null: Callable[[], NullModel] | None = None,
) -> Result:
    """Solve all columns on these rows, warm-started from the stage before: by rounds of screening where that pays."""
    small = problem.rows.n_rows * problem.rows.n_features <= SMALL
    if small or initial.active_share.max() > MAX_ACTIVE_SHARE:
        start = warm_start(problem, initial, initial.band, null)
        return smooth_driver.solve_projected(problem, basis, start, tol, max_iter)
    return solve_in_rounds(
        problem,
        initial.coef,
        initial.intercept,
        initial.band,
        basis=basis,
        tol=tol,
        max_iter=max_iter,
        callback=callback,
        solved=solved,
        steps=steps,
        null=null,
    )
