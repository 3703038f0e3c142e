"""Newton steps with the gradient of all rows and the curvature of a sample, for losses with kinks.

A fit u0 to a sample of m rows is off by the noise of its gradient. A sweep over all rows gives theirs, and the
curvature of a mean loss is smooth even where the loss is not, seen from within h,

    H = (1/m) sum_i c_i phi_i phi_i' + 2 alpha I,        c_i = (slope(r_i + h) - slope(r_i - h)) / (2 h),

over the rows of the sample. A step with both leaves two kinds of noise in the gradient: of each row of the sample
c_i phi_i'(u1 - u0), because H is that of a sample, and of each of all n rows that changes sides on the way the change
of its slope. Both are small against the duals, which are the noise of u0: a step takes one digit off the error.

What the fit may still be off by is drawn at random: both kinds of noise, with random signs, through H^-1. Seen through
a few such draws every row has an error of its own, and is in doubt only within a multiple of that. And because rows
far from the fit do not change sides, the next step need look at no others than those that were in doubt.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quernel.data import RowState
from quernel.losses import Loss
from quernel.objective import Curvature, Problem, ScreenedRows
from quernel.objective.duality_gap import Survey, survey
from quernel.solvers.linear_system import NewtonSystem
from quernel.solvers.screening.active_set import ActiveSet, ScreeningBands, narrow

Array = NDArray[np.floating]

# The share of rows within h of a kink; towards the ends of the distribution, so many times that of the rows beyond it.
NEAR, BEYOND = 0.3, 2.0
# So many draws of the error, and rows are in doubt within so many of theirs.
DRAWS, REACH = 12, 5.0
# Of the typical reach, what all rows have: a draw may miss a row.
LEAST = 0.3
# So many rows of a sample tell how far errors reach, and some reach farther than those by a factor.
ROWS, FARTHER = 2048, 1.2
# A sample tells the curvature with so many rows within h for each parameter in use.
ROWS_PER_PARAMETER = 8
# Steps towards the sample's own fit, of which each must be so much shorter than the one before.
STEPS, SHORTER = 2, 0.5


@dataclass(frozen=True, eq=False)
class Step:
    """A fit, how far predictions moved (q,), and within which bands rows are in doubt; `band` (q,) is a typical one."""

    coef: Array
    intercept: Array
    length: Array
    band: Array
    bands: ScreeningBands

    @classmethod
    def none(cls, coef: Array, intercept: Array, band: Array) -> Step:
        """A fit from which no step was taken yet."""
        return cls(coef, intercept, np.zeros_like(band), band, ScreeningBands.alike(band, len(coef), DRAWS))

    def where(self, columns: NDArray[np.bool_], other: Step) -> Step:
        """These columns from the other step, the rest from this one."""
        coef, intercept, length, band = (
            np.where(columns, getattr(other, name), getattr(self, name))
            for name in ("coef", "intercept", "length", "band")
        )
        bands = [np.where(columns, new.T, old.T).T for old, new in zip(self.bands, other.bands, strict=True)]
        return Step(coef, intercept, length, band, ScreeningBands(*map(np.ascontiguousarray, bands)))


class Correction:
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

    def own_fit(self, coef: Array, intercept: Array) -> tuple[Array, Array, Array] | None:
        """The sample's own fit from a guess (within the basis), and its residuals there; None where steps lead nowhere.

        It is solved as far as its statistical error is worth.
        """
        memory, length = self._sample.rows.new_memory(), np.full(self._sample.n_columns, np.inf)
        found, residual = self._surveyed(memory, coef, intercept)
        for _ in range(STEPS):
            if not self._known(residual):
                return None
            move, shift = self._move(coef, found.force, found.balance)
            coef, intercept, before = coef + move, intercept + shift, residual
            found, residual = self._surveyed(memory, coef, intercept)
            last, length = length, self._length(residual - before)
            if not np.all(length <= SHORTER * last):
                return None
        return coef, intercept, residual

    def _surveyed(self, memory: RowState, coef: Array, intercept: Array) -> tuple[Survey, Array]:
        """The sample's sums at a fit, and its residuals there."""
        self.entries += self._features.size
        return survey(self._sample, memory, coef, intercept), memory.collect("residual")

    def step(self, coef: Array, intercept: Array, force: Array, balance: Array, n_rows: int) -> Step | None:
        """From a fit at which the duals of all rows have this force and balance; None where the sample cannot tell."""
        loss, basis = self._sample.loss, self._basis
        inner, pull = (coef, force) if basis is None else (basis.T @ coef, basis.T @ force)
        before = self._residuals(inner, intercept)
        if not self._known(before):
            return None
        move, shift = self._move(inner, pull, balance)
        after = self._residuals(inner + move, intercept + shift)
        changed = loss.slope(after) - loss.slope(before)
        noise = np.hypot(self._curvature * (after - before), changed * np.sqrt(len(after) / n_rows))
        there = coef + (move if basis is None else basis @ move), intercept + shift
        return Step(*there, self._length(after - before), *self._bands(noise))

    def forget(self) -> None:
        """Let go of the sample: there will be no more steps."""
        del self._sample, self._features, self._curvature, self._systems

    def _known(self, residual: Array) -> bool:
        """Whether the curvature is known, or can be told from these residuals of the sample."""
        if not self._systems:
            self._curvature = _curvature(self._sample.loss, residual, self._sample.rows.share)
            rows = np.count_nonzero(self._curvature, axis=0)
            if np.all(np.isfinite(self._curvature)) and rows.min() >= ROWS_PER_PARAMETER * self._parameters:
                self._systems = [self._system(k) for k in range(self._sample.n_columns)]
        return len(self._systems) > 0

    def _move(self, coef: Array, force: Array, balance: Array) -> tuple[Array, Array]:
        """Newton's step."""
        gradient = 2 * self._sample.alpha * coef - force
        steps = [system.direction(gradient[:, k], -balance[k]) for k, system in enumerate(self._systems)]
        return np.column_stack([x for x, _ in steps]), np.array([z for _, z in steps])

    def _length(self, change: Array) -> Array:
        """How much residuals of the sample changed, (q,)."""
        return np.sqrt(self._sample.rows.share @ change**2)

    def _residuals(self, coef: Array, intercept: Array) -> Array:
        """Of the sample, (m, q)."""
        memory = self._sample.rows.new_memory()
        self._sample.set_coefficients(memory, coef, intercept)
        self.entries += self._features.size
        return memory.collect("residual")

    def _system(self, k: int) -> NewtonSystem:
        """The Newton system of a column."""
        near = np.flatnonzero(self._curvature[:, k])
        weight, rows = self._sample.rows.share[near] * self._curvature[near, k], self._features[near]
        self.hessian_rows += len(near)
        cross, total = weight @ rows, float(weight.sum())
        rows *= np.sqrt(weight)[:, None]
        curvature = Curvature(np.empty(0), gram=rows.T @ rows, cross=cross, total=total)
        return NewtonSystem(curvature, self._sample.alpha[k], self._sample.fit_intercept)

    def _bands(self, noise: Array) -> tuple[Array, ScreeningBands]:
        """How far rows are in doubt where each of the sample has this noise (m, q) in its dual: typically, and each."""
        (k, q), share = (self._features.shape[1], noise.shape[1]), self._sample.rows.share
        some = self._features[:: -(-len(noise) // ROWS)]
        errors, shifts, (typical, widest) = np.empty((q, DRAWS, k)), np.empty((q, DRAWS)), np.empty((2, q))
        for column, system in enumerate(self._systems):
            rows = np.flatnonzero(noise[:, column])
            signs = 2.0 * self._rng.integers(2, size=(DRAWS, len(rows)), dtype=np.int8) - 1
            signs *= share[rows] * noise[rows, column] * (REACH / np.sqrt(DRAWS))
            force, balance = signs @ self._features[rows], signs.sum(axis=1)
            drawn = [system.direction(-one, -other) for one, other in zip(force, balance, strict=True)]
            errors[column], shifts[column] = [x for x, _ in drawn], [z for _, z in drawn]
            squares = np.sum((some @ errors[column].T + shifts[column]) ** 2, axis=1)
            typical[column], widest[column] = np.sqrt([squares.mean(), squares.max()])
        errors = errors if self._basis is None else errors @ self._basis.T
        return typical, ScreeningBands(FARTHER * widest, LEAST * typical, np.ascontiguousarray(errors), shifts)


def tells_curvature(sample: Problem, parameters: float) -> bool:
    """Whether a sample is at hand and has the rows to tell the curvature in all directions that matter."""
    return sample.rows.cached and NEAR * sample.rows.n_rows >= ROWS_PER_PARAMETER * parameters


def _curvature(loss: Loss, residual: Array, share: Array) -> Array:
    """c of every row and column; not finite where too many rows lie on a kink to tell."""
    (low, high), slope = loss.domain, loss.slope(residual)
    beyond = np.minimum(share @ (slope == low), share @ (slope == high))
    near = np.minimum(NEAR, BEYOND * beyond)
    h = np.array([np.quantile(one, part) for one, part in zip(loss.distance_to_knot(residual).T, near, strict=True)])
    h[h == 0] = np.nan
    return (loss.slope(residual + h) - loss.slope(residual - h)) / (2 * h)


# A step is taken if it is so much shorter than the last and makes the band so much narrower,
# until this share of rows is in doubt.
NARROWER, FEW, MAX_CORRECTIONS = 0.75, 0.01, 3


@dataclass(frozen=True, eq=False)
class Near:
    """A fit, and all rows sorted by a band around it."""

    coef: Array
    intercept: Array
    band: Array
    settled: ScreenedRows
    doubts: ActiveSet


@dataclass(frozen=True, eq=False)
class Approach:
    """How a guess is brought nearer to the solution: the steps, and the band of rows to look at again after one.

    It is wide, for looking costs little. Unless it is `sure` that it holds all rows that could matter, the first step
    looks at all.
    """

    correction: Correction
    wide: Array
    sure: bool


def nearer(problem: Problem, memory: RowState, near: Near, approach: Approach, basis: Array | None) -> Near:
    """Steps towards the solution: those columns take one for which it is clearly shorter, and its band narrower.

    Rows are sorted by the wide band; in columns that take no step, by that of the guess afterwards.
    """
    n, M, correction, sure = problem.rows.n_rows, problem.rows.n_features, approach.correction, approach.sure
    here = Step.none(near.coef, near.intercept, near.band)
    work, band, length = correction.entries, approach.wide, np.full(problem.n_columns, np.inf)
    for _ in range(MAX_CORRECTIONS):
        force, balance = near.settled.force + near.doubts.force, near.settled.balance + near.doubts.balance
        step = correction.step(here.coef, here.intercept, force, balance, n)
        if step is None:
            break
        taken = (step.length <= NARROWER * length) & (step.band <= NARROWER * band) & (step.band > 0)
        if not taken.any():
            break
        here, band = here.where(taken, step), np.where(taken, step.band, band)
        length = np.where(taken, step.length, length)
        near = _sorted_again(problem, memory, near, here, basis, everyone=not sure)
        sure = True
        if near.doubts.count.max() <= FEW * n:
            break
    if length.min() == np.inf:
        near = _sorted_again(problem, memory, near, here, basis)
    memory.sweeps += (correction.entries - work) / (n * M)
    correction.forget()
    return near


def _sorted_again(
    problem: Problem, memory: RowState, near: Near, step: Step, basis: Array | None, everyone: bool = False
) -> Near:
    """The rows in doubt, or all, sorted by the bands after a step."""
    memory.sweeps += problem.n_columns if everyone else float(near.doubts.count.sum()) / problem.rows.n_rows
    rows = narrow(problem, memory, None if everyone else near.settled, step.coef, step.intercept, step.bands, basis)
    return Near(step.coef, step.intercept, step.band, *rows)
