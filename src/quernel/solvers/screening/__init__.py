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
Losses that are curved where most rows lie cannot be screened; `subsampled_newton` has what is left to save.
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
from quernel.solvers.result import BestIterate, Callback, InitialPoint, Limits, Result, certify_point
from quernel.solvers.screening import rounds, subsampled_newton
from quernel.solvers.screening.rounds import RoundCallback, RoundStart, central_duals, solve_in_rounds
from quernel.solvers.screening.sampling import FeatureMoments, SamplingError, principal_basis
from quernel.solvers.screening.subsampled_newton import (
    NewtonSteps,
    SmoothStart,
    SubsampledNewton,
    has_enough_rows,
    solve_smooth,
)

Array = NDArray[np.floating]
# Work done: iterations per column (q,), feature entries read, rows summed into Hessians.
_Work = tuple[NDArray[np.intp], float, int]


@dataclass(frozen=True)
class StageOptions:
    """Which samples are solved before all rows, how accurately, and when rows are screened."""

    # Rows per feature of the first sample, and the factor by which each further sample grows.
    first_sample: int = 8
    growth: int = 8
    # Problems up to this size (rows x features) are solved by plain Newton, without samples or screening, and so are
    # those with fewer rows per feature than this: in memory, and out of it, where all rows would be gathered.
    small: int = 2_000_000
    few_rows: int = 32
    few_remote_rows: int = 16
    # Screening is tried while the expected share of active rows is at most this ...
    max_active_share: float = 0.25
    # ... and the share of rows on curved pieces of the loss at most this.
    max_curved_share: float = 0.25
    # Newton steps are taken before screening where the expected active rows exceed this share of the sample's rows.
    steps_from: float = 0.2
    # Relative gap to which samples are solved: a share of their sampling error; fixed for the first, whose error is
    # unknown.
    accuracy: float = 0.1
    first_accuracy: float = 0.0025


OPTIONS = StageOptions()


@dataclass(frozen=True, eq=False)
class _Features:
    """What the first sample tells about the features: a low-rank basis (M, k), None to use all, and their moments."""

    basis: Array | None
    moments: FeatureMoments

    @classmethod
    def from_sample(cls, sample: InMemoryProblem, n_rows: int, tol: float) -> _Features:
        """The basis for problems of `n_rows` rows like the sample's, and the moments within it."""
        basis = principal_basis(sample, n_rows, tol, null_model(sample).objective)
        return cls(basis, FeatureMoments.from_sample(sample.project(basis)))


@dataclass(frozen=True, eq=False)
class _Stage:
    """The fit to a sample and its estimated sampling error: all that the next stage starts from.

    Attributes
    ----------
    coef, intercept : arrays of shape (M, q) and (q,)
        In the coordinates of all features, also where a basis is used.
    basis : array of shape (M, k) or None
        Low-rank basis of the features; None uses all of them.
    error : SamplingError
        Bands around kinks within which rows are active, and how many these are.
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
    error: SamplingError
    parameters: float
    curved: bool
    work: _Work
    newton_steps: SubsampledNewton | None = None

    @classmethod
    def from_fit(
        cls,
        sample: InMemoryProblem,
        fit: tuple[Array, Array, Array, Array],
        features: _Features,
        tol: float,
        work: _Work,
    ) -> _Stage:
        """The stage of a fit (coef, intercept, residual, dual) to the sample, whose features are those of the basis."""
        coef, intercept, residual, dual = fit
        error, curved = _estimate_error(sample, residual, dual, sample.rows.n_rows, features.moments, tol)
        coef = coef if features.basis is None else features.basis @ coef
        return cls(coef, intercept, features.basis, error, float(error.parameters.max()), curved, work)

    @classmethod
    def from_solution(cls, sample: InMemoryProblem, result: Result, features: _Features, tol: float) -> _Stage:
        """The stage of a sample that was solved."""
        fit = result.coef, result.intercept, _residuals(sample, result.coef, result.intercept), result.dual
        return cls.from_fit(sample, fit, features, tol, _work(sample, result))

    @classmethod
    def from_steps(
        cls, sample: InMemoryProblem, initial: _Stage, newton_steps: SubsampledNewton, features: _Features, tol: float
    ) -> _Stage | None:
        """The stage of a sample approximately solved by a few Newton steps; None where these do not converge."""
        fit = newton_steps.fit_subsample(initial.coef, initial.intercept)
        if fit is None:
            return None
        steps = np.full(sample.n_columns, subsampled_newton.OPTIONS.sample_steps)
        work = steps, newton_steps.entries, newton_steps.hessian_rows
        stage = cls.from_fit(sample, (*fit, sample.loss.slope(fit[2])), features, tol, work)
        return replace(stage, newton_steps=newton_steps)

    @classmethod
    def from_initial(cls, sample: InMemoryProblem, initial: InitialPoint, features: _Features, tol: float) -> _Stage:
        """The stage of a given initial point, whose error is estimated from the residuals of a sample."""
        residual = _residuals(sample, initial.coef, initial.intercept)
        dual = sample.loss.slope(residual)
        error, curved = _estimate_error(sample, residual, dual, initial.n_rows, features.moments, tol)
        if (band := initial.band) is not None:
            active_share = np.mean(sample.loss.distance_to_knot(residual) <= band, axis=0)
            error = replace(error, active_share=active_share, band=band, wide_band=band, covers_all=False)
        work = np.zeros(sample.n_columns, dtype=np.intp), sample.rows.n_rows * sample.rows.n_features, 0
        return cls(initial.coef, initial.intercept, features.basis, error, initial.parameters, curved, work)

    @property
    def can_screen(self) -> bool:
        """Whether rows can be screened: not by a curved loss, or an uninformative sample (e.g. with constant y)."""
        return not self.curved and bool(np.all(self.error.band > 0))

    def as_initial(self, n_rows: int) -> InitialPoint:
        """The fit, made to `n_rows` rows, as a point from which a solve can be continued."""
        return InitialPoint(self.coef, self.intercept, n_rows, self.parameters)


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
    limits, rng, n, M = Limits(tol, max_iter), np.random.default_rng(0), problem.rows.n_rows, problem.rows.n_features
    if is_small(problem):
        _, small = problem.run_at(_solve_small, problem.rows.gather(n, rng), limits, initial, polish)
        return replace(small, dual=small.dual[: problem.rows.n_duals])
    callback = callback or _ignore
    # 1. A first sample, or the given point.
    size = OPTIONS.first_sample * M
    features, stage = problem.run_at(_first_stage, problem.rows.sample(size, rng), n, limits, initial)
    # In parallel: samples are too small to use all threads.
    null = None if stage.curved else problem.rows.submit(null_model, problem)
    # 2. Larger samples, until all rows are next.
    work, size = [stage.work], size if initial is None else initial.n_rows
    while size < n and stage.can_screen and not stop_requested():
        callback(stage.as_initial(size))
        size = _next_size(problem, stage, size)
        if size < n:
            goal = Limits(max(tol, OPTIONS.accuracy * stage.parameters / size), max_iter)
            stored = size <= problem.rows.most_stored
            sample = problem.rows.sample(size, rng, stage.basis, stored=stored)
            _, stage = problem.run_at(_next_stage, sample, features, stage, goal, tol)
            work.append(stage.work)
            del sample
    if not (stage.curved or stage.can_screen or stop_requested()):
        return newton.solve(problem, tol=tol, max_iter=max_iter)
    # 3. and 4. All rows: screen, solve and check in rounds; without screening where the loss is curved.
    if stage.curved:
        callback(stage.as_initial(size))
    solved = initial is not None and initial.solved
    steps = _plan_steps(problem, stage, rng) if stage.can_screen and not (solved or stop_requested()) else None
    stage = replace(stage, newton_steps=None)
    start = RoundStart(stage.coef, stage.intercept, stage.error.band, stage.basis, solved, steps, null)
    result = _last_stage(problem, start, stage, rng, limits, callback)
    work.append(_work(problem, result))
    iterations, sweeps, hessian_rows = (sum(parts) for parts in zip(*work, strict=True))
    work_done = {"iterations": iterations, "sweeps": sweeps / (n * M), "hessian_rows": hessian_rows}
    return replace(result, **work_done, parameters=stage.parameters)


def _ignore(point: InitialPoint) -> None:
    """The callback of a solve without one."""


def _last_stage(
    problem: Problem, start: RoundStart, stage: _Stage, rng: np.random.Generator, limits: Limits, callback: Callback
) -> Result:
    """Solve all rows from the fit of the last sample; after a request to stop, only certify that."""

    def report_round(coef: Array, intercept: Array, band: Array | None = None) -> None:
        callback(InitialPoint(coef, intercept, problem.rows.n_rows, stage.parameters, band))

    if stop_requested():
        scale = null_model(problem) if start.null is None else start.null()
        return certify_point(problem, start.coef, start.intercept, scale, limits.tol)
    if stage.curved:
        smooth = SmoothStart(start.coef, start.intercept, start.basis, start.solved)
        return solve_smooth(problem, smooth, rng, limits, report_round)
    return _solve_rows(problem, start, stage.error.active_share, limits, report_round)


def _solve_rows(
    problem: Problem, start: RoundStart, active_share: Array, limits: Limits, callback: RoundCallback | None = None
) -> Result:
    """Solve all columns on these rows: by rounds of screening where that pays, else by Newton on all of them."""
    small = problem.rows.n_rows * problem.rows.n_features <= OPTIONS.small
    if small or active_share.max() > OPTIONS.max_active_share:
        warm = warm_start(problem, start, start.band, start.null)
        return newton.solve_in_basis(problem, start.basis, warm, limits, from_null=not start.is_sample)
    return solve_in_rounds(problem, start, limits, callback)


# Functions for `Problem.run_at`: they run where the rows live, and return (what stays there, what is sent back).


def _solve_small(
    problem: InMemoryProblem, rows: InMemoryDesign, limits: Limits, initial: InitialPoint | None, polish: bool
) -> tuple[None, Result]:
    """Plain Newton on all rows of a small problem, from a warm start if one is given."""
    problem = problem.on(rows)
    if initial is None:
        start = newton.ridge_start(problem)
    else:
        features = _Features(None, FeatureMoments.from_sample(problem))
        stage = _Stage.from_initial(problem, initial, features, limits.tol)
        start = warm_start(problem, initial, np.where(stage.curved, 0.0, stage.error.band))
    result = newton.solve(problem, tol=limits.tol, max_iter=limits.max_iter, start=start, polish=polish)
    return None, replace(result, parameters=_parameters(problem.loss, result))


def _first_stage(
    problem: InMemoryProblem, rows: InMemoryDesign, n_rows: int, limits: Limits, initial: InitialPoint | None
) -> tuple[_Features, _Stage]:
    """Choose the low-rank basis from the first sample, and solve the sample within it, unless a point is given."""
    sample, tol = problem.on(rows), limits.tol
    if initial is None:
        require_finite(sample.rows.as_array("A sample is kept"))
    features = _Features.from_sample(sample, n_rows, tol)
    if initial is not None:
        return features, _Stage.from_initial(sample, initial, features, tol)
    sample = sample.project(features.basis)
    tol_of_sample, start = max(tol, OPTIONS.first_accuracy), newton.cold_start(sample)
    best = BestIterate(sample, start.null, tol_of_sample, from_null=False)
    result = newton.solve(sample, tol=tol_of_sample, max_iter=limits.max_iter, start=start, polish=False, best=best)
    return features, _Stage.from_solution(sample, result, features, tol)


def _next_stage(
    problem: InMemoryProblem, rows: InMemoryDesign, features: _Features, before: _Stage, goal: Limits, tol: float
) -> tuple[None, _Stage]:
    """The stage of a larger sample, whose `rows` already have the features of the basis.

    Newton steps with the sample's own gradient usually suffice; where they do not converge it is solved to `goal`.
    """
    sample, basis = problem.on(rows), before.basis
    initial = before if basis is None else replace(before, coef=basis.T @ before.coef)
    stage = None
    if steps := has_enough_rows(sample, before.parameters):
        newton_steps = SubsampledNewton(sample, basis, before.parameters)
        stage = _Stage.from_steps(sample, initial, newton_steps, features, tol)
    if stage is None:
        start = RoundStart(initial.coef, initial.intercept, initial.error.band, is_sample=True)
        stage = _Stage.from_solution(
            sample, _solve_rows(sample, start, initial.error.active_share, goal), features, tol
        )
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
    size = OPTIONS.growth * OPTIONS.first_sample * rows.n_features if steps is None else steps.n_rows
    if stage.error.active_share.max() * rows.n_rows < OPTIONS.steps_from * size:
        return None
    if steps is None:  # no such sample yet: draw one that is small beside all rows
        sample = problem.on(rows.sample(min(size, rows.n_rows // 4), rng, stage.basis))
        if not has_enough_rows(sample, stage.parameters):
            return None
        steps = SubsampledNewton(sample, stage.basis, stage.parameters)
    return NewtonSteps(steps, stage.error.wide_band, stage.error.covers_all)


def is_small(problem: Problem) -> bool:
    """Whether to solve without screening: a small problem, or one with few rows per feature."""
    n, M = problem.rows.n_rows, problem.rows.n_features
    few = OPTIONS.few_rows if problem.rows.random_access else OPTIONS.few_remote_rows
    return n < few * M or n * M <= OPTIONS.small


def is_curved(loss: Loss, residual: Array, dual: Array) -> bool:
    """Whether the loss is curved at more than a few of these residuals and duals (n, q)."""
    if loss.segments[0].shape[1] == 0:  # curved everywhere, even where that is too little to be seen
        return True
    if not np.all(loss.smoothing_width > 0):
        return False
    bent = loss.curvature(residual, dual, 0.0) > 0
    return bool(np.max(np.mean(bent, axis=0)) > OPTIONS.max_curved_share)


def _estimate_error(
    sample: InMemoryProblem, residual: Array, dual: Array, n_rows: int, moments: FeatureMoments, tol: float
) -> tuple[SamplingError, bool]:
    """The error of a fit to `n_rows` rows, and whether the loss is curved at its residuals, where it is unknown."""
    if is_curved(sample.loss, residual, dual):
        return SamplingError.unknown(sample), True
    return SamplingError.estimate(sample, residual, dual, n_rows, moments, tol), False


def _work(sample: Problem, result: Result) -> _Work:
    """The work of a solve, with passes over its rows counted in feature entries."""
    return result.iterations, result.sweeps * sample.rows.n_rows * sample.rows.n_features, result.hessian_rows


def _next_size(problem: Problem, stage: _Stage, size: int) -> int:
    """Rows of the next stage: all, unless a larger sample pays.

    The band shrinks with the root of the sample size, so a sample `larger` saves this many active rows; it must save at
    least half as many as it has.
    """
    # Active rows are solved one column at a time. Out of core each column recomputes the features of its own in every
    # step, so their number adds up; in memory gathering a sample costs as much as it saves the other columns.
    n, shares = problem.rows.n_rows, stage.error.active_share
    active_share = float(shares.max() if problem.rows.returns_rows else shares.sum())
    larger = min(OPTIONS.growth * size, max(_max_sample_size(problem, shares), size))
    saved = active_share * n * (1 - np.sqrt(size / larger))
    return n if 2 * saved <= larger or 2 * larger > n or larger == size else larger


def _max_sample_size(problem: Problem, active_share: Array) -> int:
    """Largest sample that fits into memory: its features or, where these are recomputed, those of its active rows."""
    stored = problem.rows.most_stored
    if active_share.max() > OPTIONS.max_active_share:
        return stored
    return max(stored, int(min(stored / active_share.sum(), problem.rows.most_sampled)))


def _parameters(loss: Loss, result: Result) -> float:
    """Number of duals strictly inside their box: about the degrees of freedom of a fit to a piecewise linear loss."""
    return float(np.clip(np.sum(loss.strictly_inside(result.dual), axis=0), 1, len(result.coef)).max())


def warm_start(
    problem: Problem,
    initial: Result | RoundStart | InitialPoint,
    band: Array,
    null: Callable[[], NullModel] | None = None,
) -> newton.Start:
    """Start Newton at a fit to fewer rows, with a smoothing width in proportion to its uncertainty `band` (q,)."""
    scale, width = null_model(problem) if null is None else null(), rounds.OPTIONS.first_width * band
    return newton.Start(initial.coef, initial.intercept, central_duals(problem), width, scale)


def _residuals(sample: InMemoryProblem, coef: Array, intercept: Array) -> Array:
    """Residuals of rows in memory, (n, q)."""
    state = sample.rows.new_state()
    sample.set_coefficients(state, coef, intercept)
    return state.collect("residual")
