"""Newton steps with the full gradient and a subsampled Hessian: before screening, and for losses that are curved.

*Piecewise linear losses, before screening.*
A fit u0 to a sample of m rows is off by the sampling noise of its gradient. A pass over all rows gives the full
gradient, and the curvature of the mean loss, which is smooth although the loss is not, is estimated by finite
differences,

    H = (1/m) sum_i c_i phi_i phi_i' + 2 alpha I,        c_i = (slope(r_i + h) - slope(r_i - h)) / (2 h),

over the rows of the sample. A step u1 - u0 = -H^-1 gradient leaves two kinds of noise in the gradient: c_i phi_i'(u1 -
u0) of each row of the sample, because H is estimated from it; and the change of slope of each of the n rows that
changes segment on the way. Both are small against the duals, which are the noise of u0, so that a step gains about one
digit.

The remaining error is simulated: both kinds of noise with random signs, mapped through H^-1. A few such draws give
every row an error of its own, and rows are active only within a multiple of it (`ScreeningBands`). Since rows far from
a kink do not change segment, the next step need only screen the rows that were active before.

*Losses that are curved where most rows lie* (squared, Huber, logistic): no row can be screened (`solve_smooth`). Two
savings remain on large problems. Where there are rows enough, such Newton steps: each is one pass over all rows.
Otherwise, and where these do not get there, Newton on all rows within the low-rank basis, at a fraction of the cost
(`newton.solve_in_basis`). The certificate is always taken over all features.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quernel.data import InMemoryDesign, RowState, RowStateLike
from quernel.losses import Loss
from quernel.objective import Curvature, InMemoryProblem, Problem, ScreenedRows
from quernel.objective.duality_gap import FullGradient, NullModel, certify_gradient, full_gradient, null_model
from quernel.solvers import newton
from quernel.solvers.linear_system import NewtonSystem
from quernel.solvers.progress import stop_requested
from quernel.solvers.result import BestIterate, Limits, Result, after, certify_point
from quernel.solvers.screening.active_set import ActiveSet, ScreeningBands, tighten

Array = NDArray[np.floating]
PointCallback = Callable[[Array, Array], None]


@dataclass(frozen=True)
class StepOptions:
    """How the Hessian and the error of a step are estimated, and which steps are taken."""

    # h contains this share of the rows; in the tails, at most this multiple of the share of rows beyond the fit.
    near_share: float = 0.3
    tail_factor: float = 2.0
    # Draws of the error, and the number of (root mean square) errors within which a row is active.
    draws: int = 12
    n_errors: float = 5.0
    # Smallest band of a row, as a share of the typical band: few draws may underestimate the error of a row.
    min_band: float = 0.3
    # Rows of the sample from which the typical and the widest band are computed, and a margin on the widest.
    band_rows: int = 2048
    max_band_factor: float = 1.2
    # Rows within h, per effective degree of freedom, that a Hessian estimate needs.
    rows_per_parameter: int = 8
    # Newton steps towards the fit of the sample, and the factor by which each must be shorter than the one before.
    sample_steps: int = 2
    contraction: float = 0.5
    # A step on all rows is accepted if its length and its band are at most this share of those before.
    improvement: float = 0.75
    # These steps end where at most this share of rows is active, or after so many.
    enough_screened: float = 0.01
    max_steps: int = 3


OPTIONS = StepOptions()


@dataclass(frozen=True, eq=False)
class Step:
    """The fit after a Newton step.

    length (q,) is the root mean square change of predictions, `bands` hold each row's own band, `band` (q,) a typical
    one.
    """

    coef: Array
    intercept: Array
    length: Array
    band: Array
    bands: ScreeningBands

    @classmethod
    def zero(cls, coef: Array, intercept: Array, band: Array) -> Step:
        """The fit before the first step, with the same band for all rows."""
        return cls(coef, intercept, np.zeros_like(band), band, ScreeningBands.uniform(band, len(coef), OPTIONS.draws))

    def where(self, columns: NDArray[np.bool_], other: Step) -> Step:
        """The other step in these columns, this one in the rest."""
        coef, intercept, length, band = (
            np.where(columns, getattr(other, name), getattr(self, name))
            for name in ("coef", "intercept", "length", "band")
        )
        bands = [np.where(columns, new.T, old.T).T for old, new in zip(self.bands, other.bands, strict=True)]
        return Step(coef, intercept, length, band, ScreeningBands(*map(np.ascontiguousarray, bands)))


class SubsampledNewton:
    """Newton steps with the Hessian of a sample, factorized once.

    `fit_subsample` steps with the sample's own gradient, towards its fit; `step` with the gradient of all rows, towards
    theirs. entries and hessian_rows count the work: feature entries read, and rows summed into Hessians.

    Parameters
    ----------
    sample : InMemoryProblem
        The rows of the sample, with the features of the basis if there is one.
    basis : array of shape (M, k) or None
    parameters : float
        Effective degrees of freedom of the fit, which the sample must resolve.
    """

    def __init__(self, sample: InMemoryProblem, basis: Array | None, parameters: float) -> None:
        self.n_rows, self.entries, self.hessian_rows = sample.rows.n_rows, 0, 0
        self._sample, self._basis, self._parameters = sample, basis, parameters
        self._features = sample.rows.as_array("A sample is kept")
        self._rng = np.random.default_rng(0)
        self._curvature: Array = np.empty(0)
        self._systems: list[NewtonSystem] = []

    def fit_subsample(self, coef: Array, intercept: Array) -> tuple[Array, Array, Array] | None:
        """Approximate the fit of the sample by a few Newton steps from (coef, intercept), given in the basis.

        Returns (coef, intercept, residual), accurate to a share of the sampling error, or None where steps do not
        contract.
        """
        state, length = self._sample.rows.new_state(), np.full(self._sample.n_columns, np.inf)
        found, residual = self._sample_gradient(state, coef, intercept)
        for _ in range(OPTIONS.sample_steps):
            if not self._factorize(residual):
                return None
            move, shift = self._newton_direction(coef, found.phi_t_dual, found.mean_dual)
            coef, intercept, before = coef + move, intercept + shift, residual
            found, residual = self._sample_gradient(state, coef, intercept)
            last, length = length, self._rms(residual - before)
            if not np.all(length <= OPTIONS.contraction * last):
                return None
        return coef, intercept, residual

    def _sample_gradient(self, state: RowState, coef: Array, intercept: Array) -> tuple[FullGradient, Array]:
        """Gradient sums and residuals of the sample at a fit."""
        self.entries += self._features.size
        return full_gradient(self._sample, state, coef, intercept), state.collect("residual")

    def step(self, coef: Array, intercept: Array, phi_t_dual: Array, mean_dual: Array, n_rows: int) -> Step | None:
        """One Newton step from a fit at which all rows have these sums; None where the Hessian cannot be estimated.

        Parameters
        ----------
        coef, intercept : arrays of shape (M, q) and (q,)
        phi_t_dual, mean_dual : arrays of shape (M, q) and (q,)
            Phi'(w s v)/W and sum w s v / W over all rows, with v the slopes of the loss at the fit.
        n_rows : int
            Number of all rows.
        """
        loss, basis = self._sample.loss, self._basis
        inner, phi_t_dual = (coef, phi_t_dual) if basis is None else (basis.T @ coef, basis.T @ phi_t_dual)
        before = self._residuals(inner, intercept)
        if not self._factorize(before):
            return None
        move, shift = self._newton_direction(inner, phi_t_dual, mean_dual)
        after = self._residuals(inner + move, intercept + shift)
        changed = loss.slope(after) - loss.slope(before)
        noise = np.hypot(self._curvature * (after - before), changed * np.sqrt(len(after) / n_rows))
        there = coef + (move if basis is None else basis @ move), intercept + shift
        return Step(*there, self._rms(after - before), *self._bands(noise))

    def release(self) -> None:
        """Free the sample after the last step."""
        del self._sample, self._features, self._curvature, self._systems

    def _factorize(self, residual: Array) -> bool:
        """Estimate and factorize the Hessian, at the first call; return whether the sample had enough rows for it.

        Later steps keep it, as in the chord method: they are few, and it is an estimate in any case.
        """
        if not self._systems:
            self._curvature = _curvature(self._sample.loss, residual, self._sample.rows.share)
            rows = np.count_nonzero(self._curvature, axis=0)
            if np.all(np.isfinite(self._curvature)) and rows.min() >= OPTIONS.rows_per_parameter * self._parameters:
                self._systems = [self._system(k) for k in range(self._sample.n_columns)]
        return len(self._systems) > 0

    def _newton_direction(self, coef: Array, phi_t_dual: Array, mean_dual: Array) -> tuple[Array, Array]:
        """-H^-1 gradient of every column: (k, q) for the coefficients and (q,) for the intercepts.

        Without line search: whether a step was good is judged by its length against that of the one before.
        """
        gradient = 2 * self._sample.alpha * coef - phi_t_dual
        steps = [system.direction(gradient[:, k], -mean_dual[k]) for k, system in enumerate(self._systems)]
        return np.column_stack([x for x, _ in steps]), np.array([z for _, z in steps])

    def _rms(self, change: Array) -> Array:
        """Root mean square over the sample, (q,)."""
        return np.sqrt(self._sample.rows.share @ change**2)

    def _residuals(self, coef: Array, intercept: Array) -> Array:
        """Residuals of the sample, (m, q)."""
        state = self._sample.rows.new_state()
        self._sample.set_coefficients(state, coef, intercept)
        self.entries += self._features.size
        return state.collect("residual")

    def _system(self, k: int) -> NewtonSystem:
        """The factorized Newton system of column k."""
        curved = np.flatnonzero(self._curvature[:, k])
        weight, rows = self._sample.rows.share[curved] * self._curvature[curved, k], self._features[curved]
        self.hessian_rows += len(curved)
        cross, total = weight @ rows, float(weight.sum())
        rows *= np.sqrt(weight)[:, None]
        curvature = Curvature(np.empty(0), gram=rows.T @ rows, cross=cross, total=total)
        return NewtonSystem(curvature, self._sample.alpha[k], self._sample.fit_intercept)

    def _bands(self, noise: Array) -> tuple[Array, ScreeningBands]:
        """Simulate the remaining error of a step, given the noise (m, q) of each row of the sample in the gradient.

        Returns the typical band (q,) and the bands of all rows, from random signs on the noise, mapped through H^-1.
        """
        (k, q), share = (self._features.shape[1], noise.shape[1]), self._sample.rows.share
        some = self._features[:: -(-len(noise) // OPTIONS.band_rows)]
        J = OPTIONS.draws
        errors, shifts, (typical, widest) = np.empty((q, J, k)), np.empty((q, J)), np.empty((2, q))
        for column, system in enumerate(self._systems):
            rows = np.flatnonzero(noise[:, column])
            signs = 2.0 * self._rng.integers(2, size=(J, len(rows)), dtype=np.int8) - 1
            signs *= share[rows] * noise[rows, column] * (OPTIONS.n_errors / np.sqrt(J))
            phi_t_dual, mean_dual = signs @ self._features[rows], signs.sum(axis=1)
            drawn = [system.direction(-one, -other) for one, other in zip(phi_t_dual, mean_dual, strict=True)]
            errors[column], shifts[column] = [x for x, _ in drawn], [z for _, z in drawn]
            squares = np.sum((some @ errors[column].T + shifts[column]) ** 2, axis=1)
            typical[column], widest[column] = np.sqrt([squares.mean(), squares.max()])
        errors = errors if self._basis is None else errors @ self._basis.T
        limits = OPTIONS.max_band_factor * widest, OPTIONS.min_band * typical
        return typical, ScreeningBands(*limits, np.ascontiguousarray(errors), shifts)


def has_enough_rows(sample: InMemoryProblem, parameters: float) -> bool:
    """Whether the sample is stored and large enough for a Hessian estimate with this many degrees of freedom."""
    return sample.rows.cached and OPTIONS.near_share * sample.rows.n_rows >= OPTIONS.rows_per_parameter * parameters


def _curvature(loss: Loss, residual: Array, share: Array) -> Array:
    """Finite-difference curvature c_i (m, q); not finite where so many rows lie on a kink that h would be 0.

    For the pinball loss this is 1 / (2 h) within h of the curve: the kernel estimate of the density of y there, which
    the asymptotic covariance of quantile regression needs as well (Powell 1991). In the tails h holds fewer rows, lest
    it reach over to where the density is another.
    """
    (low, high), slope = loss.domain, loss.slope(residual)
    beyond = np.minimum(share @ (slope == low), share @ (slope == high))
    near = np.minimum(OPTIONS.near_share, OPTIONS.tail_factor * beyond)
    h = np.array([np.quantile(one, part) for one, part in zip(loss.distance_to_knot(residual).T, near, strict=True)])
    h[h == 0] = np.nan
    return (loss.slope(residual + h) - loss.slope(residual - h)) / (2 * h)


@dataclass(frozen=True, eq=False)
class ScreenedFit:
    """A fit with the rows screened at it: the linear term of the screened rows, and the active set."""

    coef: Array
    intercept: Array
    band: Array
    screened: ScreenedRows
    active_set: ActiveSet


@dataclass(frozen=True, eq=False)
class NewtonSteps:
    """Settings of the Newton steps before the first round of screening.

    Attributes
    ----------
    newton : SubsampledNewton
    wide_band : array of shape (q,)
        Band of the first screening: rows outside are not read again, so it is generous.
    covers_all : bool
        Whether `wide_band` holds practically every row that could change segment; if not, the first step reads all
        rows.
    """

    newton: SubsampledNewton
    wide_band: Array
    covers_all: bool


def take_steps(
    problem: Problem, state: RowStateLike, fit: ScreenedFit, steps: NewtonSteps, basis: Array | None
) -> ScreenedFit:
    """Newton steps before screening: full gradient, subsampled Hessian; rows are screened again after each.

    A column accepts a step if it is clearly shorter than the one before and narrows the band. `fit` was screened with
    the wide band; where no column accepts a step, rows are screened again with the original one.
    """
    n, M, newton, covers_all = problem.rows.n_rows, problem.rows.n_features, steps.newton, steps.covers_all
    here = Step.zero(fit.coef, fit.intercept, fit.band)
    work, band, length = newton.entries, steps.wide_band, np.full(problem.n_columns, np.inf)
    for _ in range(OPTIONS.max_steps):
        phi_t_dual = fit.screened.phi_t_dual + fit.active_set.phi_t_dual
        mean_dual = fit.screened.mean_dual + fit.active_set.mean_dual
        step = None if stop_requested() else newton.step(here.coef, here.intercept, phi_t_dual, mean_dual, n)
        if step is None:
            break
        shorter, narrower = step.length <= OPTIONS.improvement * length, step.band <= OPTIONS.improvement * band
        taken = shorter & narrower & (step.band > 0)
        if not taken.any():
            break
        here, band = here.where(taken, step), np.where(taken, step.band, band)
        length = np.where(taken, step.length, length)
        fit = _rescreen(problem, state, fit, here, basis, all_rows=not covers_all)
        covers_all = True
        if fit.active_set.count.max() <= OPTIONS.enough_screened * n:
            break
    if length.min() == np.inf:  # no column took a step
        fit = _rescreen(problem, state, fit, here, basis)
    state.sweeps += (newton.entries - work) / (n * M)
    newton.release()
    return fit


def _rescreen(
    problem: Problem, state: RowStateLike, fit: ScreenedFit, step: Step, basis: Array | None, all_rows: bool = False
) -> ScreenedFit:
    """Screen the active rows, or all, with the bands after a step."""
    state.sweeps += problem.n_columns if all_rows else float(fit.active_set.count.sum()) / problem.rows.n_rows
    rows = tighten(problem, state, None if all_rows else fit.screened, step.coef, step.intercept, step.bands, basis)
    return ScreenedFit(step.coef, step.intercept, step.band, *rows)


@dataclass(frozen=True)
class SmoothOptions:
    """When a sample's Hessian is used in place of that of all rows."""

    # Rows per feature of the sample, its smallest share of all rows, and the largest share at which it still pays.
    rows_per_feature: int = 32
    min_sample_share: float = 1 / 8
    max_sample_share: float = 1 / 4
    # Relative gap to which the sample is solved, times its number of rows: a share of its sampling error.
    sample_accuracy: float = 0.02
    # Steps end where one leaves more than this share of the gap: the Hessian of the sample is then too inaccurate.
    max_gap_ratio: float = 0.4


SMOOTH = SmoothOptions()


@dataclass(frozen=True, eq=False)
class SmoothStart:
    """The fit to a sample, from which all rows are solved: coef (M, q), intercept (q,), and a basis (M, k) or None.

    Where it may be the solution already (`solved`), it is certified first.
    """

    coef: Array
    intercept: Array
    basis: Array | None
    solved: bool = False


def solve_smooth(
    problem: Problem, start: SmoothStart, rng: np.random.Generator, limits: Limits, callback: PointCallback
) -> Result:
    """Solve on all rows; `callback` is called with (coef, intercept) after every step."""
    null, size, work = null_model(problem), sample_size(problem), None
    zero: Array = np.zeros(problem.n_columns)
    coef, intercept, anchor = start.coef, start.intercept, zero
    if start.solved:
        work = certify_point(problem, coef, intercept, null, limits.tol)
        if work.converged or stop_requested():
            return work
    if size is not None:
        sample = problem.rows.sample(size, rng, start.basis)
        steps = _subsampled_newton(problem, start, sample, size, null, limits, callback)
        del sample
        work = after(work, steps)
        if work.converged or stop_requested():
            return work
        coef, intercept, anchor = work.coef, work.intercept, work.dual if len(work.dual) else zero
    again = newton.Start(coef, intercept, anchor, zero, null)
    return after(work, newton.solve_in_basis(problem, start.basis, again, limits, callback))


def sample_size(problem: Problem) -> int | None:
    """Rows of the sample for the Hessian; None where it would be too large a share of all rows to pay."""
    n = problem.rows.n_rows
    least = min(int(SMOOTH.min_sample_share * n), problem.rows.most_stored)
    size = max(SMOOTH.rows_per_feature * problem.rows.n_features, least)
    return size if size <= SMOOTH.max_sample_share * n else None


def _subsampled_newton(
    problem: Problem,
    start: SmoothStart,
    sample: Any,
    size: int,
    null: NullModel,
    limits: Limits,
    callback: PointCallback,
) -> Result:
    """Newton with the full gradient and the Hessian of a sample of `size` rows, as long as the gap falls fast."""
    q, tol, basis = problem.n_columns, limits.tol, start.basis
    initial = start.coef if basis is None else basis.T @ start.coef
    # The sample's solution, and its Hessians there, factorized once for all steps.
    goal = Limits(max(tol, SMOOTH.sample_accuracy / size), limits.max_iter)
    _, (sample_fit, systems) = problem.run_at(_solve_sample, sample, initial, start.intercept, goal)
    coef, intercept = sample_fit.coef if basis is None else basis @ sample_fit.coef, sample_fit.intercept.copy()
    state, best = problem.rows.new_state(), BestIterate(problem, null, tol)
    share = size * len(initial) / (problem.rows.n_rows * problem.rows.n_features)
    best.hessian_rows, before = sample_fit.hessian_rows, np.full(q, np.inf)
    for iteration in range(limits.max_iter):
        # One pass: gradient and certificate, with the slopes of the loss as duals.
        intercept = problem.round_intercept(coef, intercept)
        found = full_gradient(problem, state, coef, intercept)
        certificate = certify_gradient(problem, state, found, coef, intercept, null)
        best.update(np.arange(q), coef, intercept, state, certificate, int(sample_fit.iterations.max()) + iteration)
        callback(coef, intercept)
        slow, before = best.relative_gap > SMOOTH.max_gap_ratio * before, best.relative_gap
        if stop_requested() or np.all((best.relative_gap <= tol) | slow):
            break
        # Newton step with the sample's Hessian, within the basis.
        gradient = 2 * problem.alpha * coef - found.phi_t_dual
        inner = gradient if basis is None else basis.T @ gradient
        steps = [system.direction(inner[:, k], -found.mean_dual[k]) for k, system in enumerate(systems)]
        move = np.column_stack([x for x, _ in steps])
        coef = coef + (move if basis is None else basis @ move)
        intercept = intercept + np.array([z for _, z in steps])
    return replace(best.result(), sweeps=share * sample_fit.sweeps + state.sweeps)


def _solve_sample(
    problem: InMemoryProblem, rows: InMemoryDesign, coef: Array, intercept: Array, limits: Limits
) -> tuple[None, tuple[Result, list[NewtonSystem]]]:
    """For `run_at`: solve the sample, and return its solution with the factorized Hessians there."""
    sample, zero = problem.on(rows), np.zeros(problem.n_columns)
    start = newton.Start(coef, intercept, zero, zero, null_model(sample))
    sample_fit = newton.solve(sample, tol=limits.tol, max_iter=limits.max_iter, start=start, polish=False)
    return None, (replace(sample_fit, dual=sample_fit.dual[:0]), _systems(sample, sample_fit))


def _systems(sample: InMemoryProblem, at: Result) -> list[NewtonSystem]:
    """Factorized Newton systems of all columns of a sample, at a fit."""
    state, zero, no = sample.rows.new_state(), np.zeros(sample.n_columns), np.zeros(sample.n_columns, dtype=bool)
    sample.set_coefficients(state, at.coef, at.intercept)
    curvatures = sample.curvature(state, zero, no, no)
    return [
        NewtonSystem(curvature, alpha, sample.fit_intercept)
        for curvature, alpha in zip(curvatures, sample.alpha, strict=True)
    ]
