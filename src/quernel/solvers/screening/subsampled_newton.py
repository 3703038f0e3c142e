"""Newton steps with the gradient of all rows and the curvature of a sample, for losses with kinks.

A fit u0 to a sample of m rows is off by the noise of its gradient. A sweep over all rows gives theirs, and the
curvature of a mean loss is smooth even where the loss is not, seen from within h,

    H = (1/m) sum_i c_i phi_i phi_i' + 2 alpha I,        c_i = (slope(r_i + h) - slope(r_i - h)) / (2 h),

over the rows of the sample. A step with both leaves two kinds of noise in the gradient: of each row of the sample
c_i phi_i'(u1 - u0), because H is that of a sample, and of each of all n rows that changes sides on the way the change
of its slope. Both are small against the duals, which are the noise of u0: a step takes one digit off the error.

What the fit may still be off by is drawn at random: both kinds of noise, with random signs, through H^-1. Seen through
a few such draws every row has an error of its own, and is active only within a multiple of that. And because rows
far from the fit do not change sides, the next step need look at no others than those that were active.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quernel.data import RowState
from quernel.losses import Loss
from quernel.objective import Curvature, Problem, ScreenedRows
from quernel.objective.duality_gap import FullGradient, full_gradient
from quernel.solvers.linear_system import NewtonSystem
from quernel.solvers.screening.active_set import ActiveSet, ScreeningBands, tighten

Array = NDArray[np.floating]

# The share of rows within h of a kink; towards the ends of the distribution, so many times that of the rows beyond it.
NEAR_SHARE, TAIL_FACTOR = 0.3, 2.0
# So many draws of the error, and rows are active within so many of theirs.
DRAWS, N_ERRORS = 12, 5.0
# Of the typical reach, what all rows have: a draw may miss a row.
MIN_BAND = 0.3
# So many rows of a sample tell how far errors reach, and some reach farther than those by a factor.
BAND_ROWS, MAX_BAND_FACTOR = 2048, 1.2
# A sample tells the curvature with so many rows within h for each parameter in use.
ROWS_PER_PARAMETER = 8
# Steps towards the sample's own fit, of which each must be so much shorter than the one before.
SAMPLE_STEPS, CONTRACTION = 2, 0.5


@dataclass(frozen=True, eq=False)
class Step:
    """A fit, how far predictions moved (q,), and within which bands rows are active; `band` (q,) is a typical one."""

    coef: Array
    intercept: Array
    length: Array
    band: Array
    bands: ScreeningBands

    @classmethod
    def zero(cls, coef: Array, intercept: Array, band: Array) -> Step:
        """A fit from which no step was taken yet."""
        return cls(coef, intercept, np.zeros_like(band), band, ScreeningBands.uniform(band, len(coef), DRAWS))

    def where(self, columns: NDArray[np.bool_], other: Step) -> Step:
        """These columns from the other step, the rest from this one."""
        coef, intercept, length, band = (
            np.where(columns, getattr(other, name), getattr(self, name))
            for name in ("coef", "intercept", "length", "band")
        )
        bands = [np.where(columns, new.T, old.T).T for old, new in zip(self.bands, other.bands, strict=True)]
        return Step(coef, intercept, length, band, ScreeningBands(*map(np.ascontiguousarray, bands)))


class SubsampledNewton:
    """Steps from the fit to fewer rows towards that to a sample, and from there to that to all rows.

    The sample's features are those within the basis. entries and hessian_rows count the work.
    """

    def __init__(self, sample: Problem, basis: Array | None, parameters: float) -> None:
        self.n_rows, self.entries, self.hessian_rows = sample.rows.n_rows, 0, 0
        self._sample, self._basis, self._parameters = sample, basis, parameters
        self._features = sample.rows.as_array("A sample is kept")
        self._rng = np.random.default_rng(0)
        self._curvature: Array = np.empty(0)
        self._systems: list[NewtonSystem] = []

    def fit_subsample(self, coef: Array, intercept: Array) -> tuple[Array, Array, Array] | None:
        """The sample's own fit from a guess (within the basis), and its residuals there; None where steps lead nowhere.

        It is solved as far as its statistical error is worth.
        """
        state, length = self._sample.rows.new_memory(), np.full(self._sample.n_columns, np.inf)
        found, residual = self._sample_gradient(state, coef, intercept)
        for _ in range(SAMPLE_STEPS):
            if not self._factorize(residual):
                return None
            move, shift = self._newton_direction(coef, found.phi_t_dual, found.mean_dual)
            coef, intercept, before = coef + move, intercept + shift, residual
            found, residual = self._sample_gradient(state, coef, intercept)
            last, length = length, self._rms(residual - before)
            if not np.all(length <= CONTRACTION * last):
                return None
        return coef, intercept, residual

    def _sample_gradient(self, state: RowState, coef: Array, intercept: Array) -> tuple[FullGradient, Array]:
        """The sample's sums at a fit, and its residuals there."""
        self.entries += self._features.size
        return full_gradient(self._sample, state, coef, intercept), state.collect("residual")

    def step(self, coef: Array, intercept: Array, phi_t_dual: Array, mean_dual: Array, n_rows: int) -> Step | None:
        """From a fit at which the duals of all rows have this phi_t_dual and mean_dual; None where the sample cannot tell."""
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
        """Let go of the sample: there will be no more steps."""
        del self._sample, self._features, self._curvature, self._systems

    def _factorize(self, residual: Array) -> bool:
        """Whether the curvature is known, or can be told from these residuals of the sample."""
        if not self._systems:
            self._curvature = _curvature(self._sample.loss, residual, self._sample.rows.share)
            rows = np.count_nonzero(self._curvature, axis=0)
            if np.all(np.isfinite(self._curvature)) and rows.min() >= ROWS_PER_PARAMETER * self._parameters:
                self._systems = [self._system(k) for k in range(self._sample.n_columns)]
        return len(self._systems) > 0

    def _newton_direction(self, coef: Array, phi_t_dual: Array, mean_dual: Array) -> tuple[Array, Array]:
        """Newton's step."""
        gradient = 2 * self._sample.alpha * coef - phi_t_dual
        steps = [system.direction(gradient[:, k], -mean_dual[k]) for k, system in enumerate(self._systems)]
        return np.column_stack([x for x, _ in steps]), np.array([z for _, z in steps])

    def _rms(self, change: Array) -> Array:
        """How much residuals of the sample changed, (q,)."""
        return np.sqrt(self._sample.rows.share @ change**2)

    def _residuals(self, coef: Array, intercept: Array) -> Array:
        """Of the sample, (m, q)."""
        state = self._sample.rows.new_memory()
        self._sample.set_coefficients(state, coef, intercept)
        self.entries += self._features.size
        return state.collect("residual")

    def _system(self, k: int) -> NewtonSystem:
        """The Newton system of a column."""
        curved = np.flatnonzero(self._curvature[:, k])
        weight, rows = self._sample.rows.share[curved] * self._curvature[curved, k], self._features[curved]
        self.hessian_rows += len(curved)
        cross, total = weight @ rows, float(weight.sum())
        rows *= np.sqrt(weight)[:, None]
        curvature = Curvature(np.empty(0), gram=rows.T @ rows, cross=cross, total=total)
        return NewtonSystem(curvature, self._sample.alpha[k], self._sample.fit_intercept)

    def _bands(self, noise: Array) -> tuple[Array, ScreeningBands]:
        """How far rows are active where each of the sample has this noise (m, q) in its dual: typically, and each."""
        (k, q), share = (self._features.shape[1], noise.shape[1]), self._sample.rows.share
        some = self._features[:: -(-len(noise) // BAND_ROWS)]
        errors, shifts, (typical, widest) = np.empty((q, DRAWS, k)), np.empty((q, DRAWS)), np.empty((2, q))
        for column, system in enumerate(self._systems):
            rows = np.flatnonzero(noise[:, column])
            signs = 2.0 * self._rng.integers(2, size=(DRAWS, len(rows)), dtype=np.int8) - 1
            signs *= share[rows] * noise[rows, column] * (N_ERRORS / np.sqrt(DRAWS))
            phi_t_dual, mean_dual = signs @ self._features[rows], signs.sum(axis=1)
            drawn = [system.direction(-one, -other) for one, other in zip(phi_t_dual, mean_dual, strict=True)]
            errors[column], shifts[column] = [x for x, _ in drawn], [z for _, z in drawn]
            squares = np.sum((some @ errors[column].T + shifts[column]) ** 2, axis=1)
            typical[column], widest[column] = np.sqrt([squares.mean(), squares.max()])
        errors = errors if self._basis is None else errors @ self._basis.T
        return typical, ScreeningBands(
            MAX_BAND_FACTOR * widest, MIN_BAND * typical, np.ascontiguousarray(errors), shifts
        )


def has_enough_rows(sample: Problem, parameters: float) -> bool:
    """Whether a sample is at hand and has the rows to tell the curvature in all directions that matter."""
    return sample.rows.cached and NEAR_SHARE * sample.rows.n_rows >= ROWS_PER_PARAMETER * parameters


def _curvature(loss: Loss, residual: Array, share: Array) -> Array:
    """c of every row and column; not finite where too many rows lie on a kink to tell."""
    (low, high), slope = loss.domain, loss.slope(residual)
    beyond = np.minimum(share @ (slope == low), share @ (slope == high))
    near = np.minimum(NEAR_SHARE, TAIL_FACTOR * beyond)
    h = np.array([np.quantile(one, part) for one, part in zip(loss.distance_to_knot(residual).T, near, strict=True)])
    h[h == 0] = np.nan
    return (loss.slope(residual + h) - loss.slope(residual - h)) / (2 * h)


# A step is taken if it is so much shorter than the last and makes the band so much narrower,
# until this share of rows is active.
IMPROVEMENT, ENOUGH_SCREENED, MAX_STEPS = 0.75, 0.01, 3


@dataclass(frozen=True, eq=False)
class ScreenedFit:
    """A fit, and all rows sorted by a band around it."""

    coef: Array
    intercept: Array
    band: Array
    screened: ScreenedRows
    active_set: ActiveSet


@dataclass(frozen=True, eq=False)
class NewtonSteps:
    """How a guess is brought take_steps to the solution: the steps, and the band of rows to look at again after one.

    It is wide_band, for looking costs little. Unless it is `covers_all` that it holds all rows that could matter, the first step
    looks at all.
    """

    newton: SubsampledNewton
    wide_band: Array
    covers_all: bool


def take_steps(
    problem: Problem, state: RowState, fit: ScreenedFit, steps: NewtonSteps, basis: Array | None
) -> ScreenedFit:
    """Steps towards the solution: those columns take one for which it is clearly shorter, and its band narrower.

    Rows are sorted by the wide_band band; in columns that take no step, by that of the guess afterwards.
    """
    n, M, newton, covers_all = problem.rows.n_rows, problem.rows.n_features, steps.newton, steps.covers_all
    here = Step.zero(fit.coef, fit.intercept, fit.band)
    work, band, length = newton.entries, steps.wide_band, np.full(problem.n_columns, np.inf)
    for _ in range(MAX_STEPS):
        phi_t_dual, mean_dual = (
            fit.screened.phi_t_dual + fit.active_set.phi_t_dual,
            fit.screened.mean_dual + fit.active_set.mean_dual,
        )
        step = newton.step(here.coef, here.intercept, phi_t_dual, mean_dual, n)
        if step is None:
            break
        taken = (step.length <= IMPROVEMENT * length) & (step.band <= IMPROVEMENT * band) & (step.band > 0)
        if not taken.any():
            break
        here, band = here.where(taken, step), np.where(taken, step.band, band)
        length = np.where(taken, step.length, length)
        fit = _rescreen(problem, state, fit, here, basis, all_rows=not covers_all)
        covers_all = True
        if fit.active_set.count.max() <= ENOUGH_SCREENED * n:
            break
    if length.min() == np.inf:
        fit = _rescreen(problem, state, fit, here, basis)
    state.sweeps += (newton.entries - work) / (n * M)
    newton.release()
    return fit


def _rescreen(
    problem: Problem, state: RowState, fit: ScreenedFit, step: Step, basis: Array | None, all_rows: bool = False
) -> ScreenedFit:
    """The active rows, or all, sorted by the bands after a step."""
    state.sweeps += problem.n_columns if all_rows else float(fit.active_set.count.sum()) / problem.rows.n_rows
    rows = tighten(problem, state, None if all_rows else fit.screened, step.coef, step.intercept, step.bands, basis)
    return ScreenedFit(step.coef, step.intercept, step.band, *rows)
