"""Semismooth Newton on the augmented Lagrangian, for all columns together.

Each column follows its smoothed objective F_d (see `problem`) as the width d shrinks:

1. pull     the gradient at the current residuals, and with it the two parts of the gap: slack and stray;
2. settle   where the inner problem is solved well enough, its duals become the anchors and the width shrinks; the next
            direction then starts from the rows whose anchors are inside their box, not from the rows active at the new
            width: those would be few, and the step wild;
3. step     one Newton direction, and the exact minimum along it.

A loss that is smooth by itself needs no width once the width is below its own: from there on this is Newton's method on
F, damped by the exact step. For least squares the first step is the last.

A column whose slack is within its goal stops shrinking and only removes what strays. It is finished when its
certificate says so. Small problems then go on to rounding: by then the set of active rows is right, and every step
gains digits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from quernel.data import RowState
from quernel.objective import DualSums, Problem
from quernel.objective.duality_gap import NullModel, certify, dual_variance, null_model, relative, stray
from quernel.solvers.linear_system import NewtonSystem
from quernel.solvers.result import BestIterate, Result

Array = NDArray[np.floating]

# A slope this much flatter than the model's first one counts as zero; the next Newton step removes the rest.
FLAT = 1e-2
MAX_PROBES = 60


def exact_step(
    problem: Problem, memory: RowState, width: Array, coef: Array, move: Array, shift: Array, first_slope: Array
) -> Array:
    """Step lengths t >= 0, one per column, at which the slope along the remembered change vanishes.

    The slope is increasing and piecewise linear in t, and a probe costs O(n): Newton's method on it, kept inside the
    bracket by doubling and bisection, finds the root in a few probes.
    """
    along, square = np.einsum("ij,ij->j", coef, move), np.einsum("ij,ij->j", move, move)
    settled = problem.settled_slope(move, shift)
    low, high = np.zeros(problem.n_columns), np.full(problem.n_columns, np.inf)
    step = np.ones(problem.n_columns)
    for _ in range(MAX_PROBES):
        slope, bend = problem.eval_along_direction(memory, width, step)
        slope = slope + settled + 2 * problem.alpha * (along + step * square)
        bend = bend + 2 * problem.alpha * square
        found = np.abs(slope) <= FLAT * first_slope
        if found.all():
            break
        low = np.where(slope < 0, step, low)
        high = np.where(slope < 0, high, step)
        newton = step - np.divide(slope, bend, out=np.full_like(slope, np.nan), where=bend > 0)
        inside = (newton > low) & (newton < high)
        halfway = np.where(np.isfinite(high), (low + high) / 2, 2 * step)
        step = np.where(found, step, np.where(inside, newton, halfway))
    return step


Mask = NDArray[np.bool_]

SHRINK = 0.5
# An inner problem is solved well enough when Newton's decrement is this small against the slack.
ENOUGH = 0.1
# Of a smooth loss, a width up to so many of its own is not worth having.
OWN_WIDTHS = 10
# The ridge 2 alpha d / share_i of the row-side system stays this large against |phi|^2, or its solution is rounding.
CONDITION = 1e-13
# Problems up to this size (rows x features) are polished to rounding, for at most so many steps.
SMALL = 2_000_000
POLISH_STEPS = 12
ROUNDING = 1e-16


@dataclass
class _Columns:
    """The columns still being worked on, and all that changes while they are."""

    problem: Problem
    null: NullModel
    index: NDArray[np.intp]
    memory: RowState
    coef: Array
    intercept: Array
    width: Array
    floor: Array
    goal: Array
    polish: NDArray[np.intp]
    systems: list[NewtonSystem | None]

    def take(self, keep: NDArray[np.intp]) -> _Columns:
        """The columns at these places."""
        return _Columns(
            self.problem.take(keep),
            self.null.take(keep),
            self.index[keep],
            self.memory.take(keep),
            self.coef[:, keep],
            self.intercept[keep],
            self.width[keep],
            self.floor[keep],
            self.goal[keep],
            self.polish[keep],
            [self.systems[k] for k in keep],
        )


@dataclass(frozen=True, eq=False)
class Start:
    """Where to begin: coefficients, intercepts, anchors, widths, and the null model that sets the scale.

    Anchors are (n, q), or (q,) where all rows of a column have the same.
    """

    coef: Array
    intercept: Array
    anchor: Array
    width: Array
    null: NullModel

    def within(self, basis: Array | None) -> Start:
        """The same start in the coordinates z of u = B z."""
        return self if basis is None else replace(self, coef=basis.T @ self.coef)


def solve(
    problem: Problem,
    *,
    tol: float = 1e-6,
    max_iter: int = 1000,
    start: Start | None = None,
    polish: bool = True,
    keep: Callable[[Array, Array], None] | None = None,
) -> Result:
    """Minimise F for every column to a relative gap of at most `tol`, in at most `max_iter` Newton steps each.

    `polish` lets small problems go on to rounding; `keep` is told coefficients and intercepts after every step.
    """
    start = start if start is not None else _cold_start(problem)
    null = start.null
    ledger = BestIterate(problem, null, tol)
    columns = _begin(problem, start, tol, polish)
    for iteration in range(max_iter):
        if len(columns.index) == 0:
            break
        pull = columns.problem.smoothed_gradient(columns.memory, columns.width)
        settled = _settled(columns, pull)
        if settled.any():
            columns.problem.update_multipliers(columns.memory, columns.width, settled)
            _certify(columns, pull, settled, ledger, iteration)
            columns.width = np.where(settled, _next_width(columns), columns.width)
        columns.polish = columns.polish - (columns.goal == ROUNDING)
        working = np.flatnonzero(columns.polish >= 0)
        if len(working) < len(columns.index):
            ledger.sweeps += columns.memory.sweeps
            columns, pull, settled = columns.take(working), pull.take(working), settled[working]
            columns.memory.sweeps = 0
        if len(working):
            _step(columns, pull, settled)
            ledger.hessian_rows += int(pull.active.sum())
            if keep is not None:
                keep(*_all_columns(columns, ledger))
    if len(columns.index):  # out of steps: say how far it got
        pull = columns.problem.smoothed_gradient(columns.memory, columns.width)
        columns.problem.update_multipliers(columns.memory, columns.width, np.ones(len(columns.index), dtype=bool))
        _record(columns, pull.active == 0, ledger, max_iter)
    ledger.sweeps += columns.memory.sweeps
    return ledger.result()


def _all_columns(columns: _Columns, ledger: BestIterate) -> tuple[Array, Array]:
    """Where all columns are: those at work, and those that are finished."""
    coef, intercept = ledger.coef.copy(), ledger.intercept.copy()
    coef[:, columns.index], intercept[columns.index] = columns.coef, columns.intercept
    return coef, intercept


def _cold_start(problem: Problem) -> Start:
    """The best constant, anchors at zero, and a width so wide that the first step is close to a ridge regression."""
    null = null_model(problem)
    coef = np.zeros((problem.rows.n_features, problem.n_columns))
    variance = dual_variance(problem)
    width = np.divide(null.objective, variance, out=np.ones_like(variance), where=variance > 0)
    return Start(coef, null.constant, np.zeros(problem.n_columns), width, null)


def _begin(problem: Problem, start: Start, tol: float, polish: bool) -> _Columns:
    q, small = problem.n_columns, problem.rows.n_rows * problem.rows.n_features <= SMALL
    same = start.anchor.ndim == 1
    memory = problem.rows.new_memory() if same else problem.rows.new_memory(anchor=start.anchor)
    if same:
        problem.set_multipliers(memory, start.anchor)
    problem.set_coefficients(memory, start.coef, start.intercept)
    floor = CONDITION * problem.size() * problem.rows.largest_share / (2 * problem.alpha)
    width = _needed(problem, start.width)
    columns = _Columns(
        problem, start.null, np.arange(q), memory, start.coef.copy(), start.intercept.copy(), width,
        np.where(problem.loss.smoothing_width > 0, 0, np.minimum(floor, 1e-4 * width)), np.full(q, tol),
        np.full(q, POLISH_STEPS if polish and small else 0), [None] * q,
    )  # fmt: skip
    # Where the best constant fits exactly there is nothing to do: F0 = 0 is the minimum.
    return columns.take(np.flatnonzero(start.null.objective > 0))


def _needed(problem: Problem, width: Array) -> Array:
    """The width, or 0 where the loss is about as smooth by itself."""
    return np.where(width > OWN_WIDTHS * problem.loss.smoothing_width, width, 0.0)


def _next_width(columns: _Columns) -> Array:
    return np.maximum(_needed(columns.problem, SHRINK * columns.width), columns.floor)


def _gradient(columns: _Columns, pull: DualSums) -> tuple[Array, Array]:
    """Of the smoothed objective, in (coef, intercept)."""
    slope = -pull.balance if columns.problem.fit_intercept else np.zeros_like(pull.balance)
    return 2 * columns.problem.alpha * columns.coef - pull.force, slope


def _even(columns: _Columns, pull: DualSums) -> Mask:
    """Columns whose duals balance well enough for the intercept."""
    heavier = np.maximum(pull.positive, pull.negative)
    return np.abs(pull.balance) <= 0.1 * columns.goal * heavier if columns.problem.fit_intercept else heavier >= 0


def _settled(columns: _Columns, pull: DualSums) -> Mask:
    """Columns whose inner problem is solved: to a share of the slack or, once that is within the goal, to the goal."""
    gradient, slope = _gradient(columns, pull)
    decrement = np.full(len(columns.index), np.inf)
    for k, system in enumerate(columns.systems):
        if system is not None:  # the last Hessian is near enough to judge by, and it is at hand
            x, z = system.direction(gradient[:, k], slope[k])
            decrement[k] = -(gradient[:, k] @ x + slope[k] * z) / 2
    objective = columns.problem.objective(pull, columns.coef, columns.intercept)
    goal = columns.goal * np.maximum(objective, columns.null.objective / 1000)
    strays = stray(columns.problem, columns.coef, pull.force)
    close = (strays <= 0.4 * goal) & _even(columns, pull)
    lost = np.abs(decrement) <= 1e-18 * objective  # nothing left that floating point could improve
    return np.where(pull.slack <= 0.5 * goal, close | lost, (decrement <= ENOUGH * pull.slack) | lost)


def _certify(columns: _Columns, pull: DualSums, settled: Mask, ledger: BestIterate, iteration: int) -> None:
    """Certify the columns that look finished; those that are get a negative `polish`."""
    objective = columns.problem.objective(pull, columns.coef, columns.intercept)
    guess = relative(pull.slack + stray(columns.problem, columns.coef, pull.force), objective, columns.null.objective)
    polishing = columns.goal == ROUNDING
    if (settled & (guess <= np.where(polishing, ledger.relative_gap[columns.index], 2 * columns.goal))).any():
        reached = _record(columns, settled & (pull.active == 0), ledger, iteration) <= columns.goal
        columns.polish = np.where(reached & polishing, -1, columns.polish)
        columns.goal = np.where(reached, ROUNDING, columns.goal)


def _record(columns: _Columns, loose: Mask, ledger: BestIterate, iteration: int) -> Array:
    """Certify all columns as they are, and enter those that are better than what the ledger has.

    Where the intercept is loose, no row being at the kink, a whole interval of intercepts is optimal: take its middle.
    """
    # Residuals were updated step by step; what is certified are those of the coefficients.
    columns.problem.set_coefficients(columns.memory, columns.coef, columns.intercept)
    if columns.problem.fit_intercept:
        columns.intercept = columns.intercept + columns.problem.center_intercept(columns.memory, loose)
    certificate = certify(columns.problem, columns.memory, columns.coef, columns.intercept, columns.null)
    ledger.enter(columns.index, columns.coef, columns.intercept, columns.memory, certificate, iteration)
    return certificate.relative


def _step(columns: _Columns, pull: DualSums, settled: Mask) -> None:
    """One Newton step of every column."""
    problem, memory = columns.problem, columns.memory
    gradient, slope = _gradient(columns, pull)
    anchored = settled & (columns.width > 0)
    curvatures = problem.curvature(memory, columns.width, pull.active <= problem.rows.n_features, anchored)
    move, shift = np.zeros_like(columns.coef), np.zeros_like(columns.intercept)
    stuck = (pull.active == 0) & ~_even(columns, pull)
    for k, curvature in enumerate(curvatures):
        if stuck[k]:  # no row holds the intercept: move it alone, until one does
            columns.systems[k], gradient[:, k] = None, 0
            shift[k] = -np.sign(slope[k]) * max(columns.width[k], problem.loss.smoothing_width[k])
            continue
        columns.systems[k] = system = NewtonSystem(curvature, problem.alpha[k], problem.fit_intercept)
        if anchored[k]:
            force, balance = system.surplus()
            gradient[:, k] -= force
            slope[k] -= balance if problem.fit_intercept else 0
        move[:, k], shift[k] = system.direction(gradient[:, k], slope[k])
    problem.set_direction(memory, move, shift)
    first_slope = np.abs(np.einsum("ij,ij->j", gradient, move) + slope * shift)
    step = exact_step(problem, memory, columns.width, columns.coef, move, shift, first_slope)
    problem.step(memory, step)
    columns.coef += step * move
    columns.intercept += step * shift
