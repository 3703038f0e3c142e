"""Semismooth Newton on the augmented Lagrangian of levels that must not cross, columns coupled.

With anchors and a width d both kinds of duals are clipped lines, v+ = clip(r / d + v, level - 1, level) and
m+ = max(0, (f_k - f_k+1) / d + m). The rest is as in `newton`: Newton steps with an exact line search, then the duals
become anchors and the width shrinks. The Hessian is block-tridiagonal in the levels.

Most rows are far from every kink: their duals are at an end of their box and stay there. Newton steps see the rows in
doubt only, and the others as one linear term. When that problem is solved all rows are looked at; where one of those
left out has moved over a kink, the problem is solved again with all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from quernel.solvers.noncrossing.block_tridiagonal import BlockTridiagonal
from quernel.solvers.noncrossing.problem import Array, Duals, Index, NoncrossingProblem, Point, certify, crossing
from quernel.solvers.progress import Progress, report

Mask = NDArray[np.bool_]

# One step serves all levels, so widths shrink gently: after a bold cut the most hesitant level holds up the others.
SHRINK = 0.6
# The first width is that of a band around each level with so many rows per feature in it.
BAND_ROWS_PER_FEATURE = 25.0
MIN_FIRST_WIDTH = 1e-3
# A row is active where it is no farther from a kink than so many times what its curves last moved by.
ACTIVE_MOVES = 3.0
# An inner problem is solved well enough when Newton's decrement is this small against the fenchel_gap.
DECREMENT_TOLERANCE = 0.1
SLOPE_TOLERANCE, MAX_PROBES = 0.1, 60
# Where the ridge is less than this part of the Hessian, steps are rounding: widths shrink no further.
CONDITION = 1e-13
# A certificate is asked for where the gap looks no larger than so many goals; moving levels apart costs a little, too.
CERTIFY_FROM = 2.0
# Where more than this share of the rows is active, none is left out.
MAX_ACTIVE_SHARE = 0.7
ALL: Index | slice = slice(None)


@dataclass(frozen=True, eq=False)
class _Iterate:
    """Coefficients (M, q), intercepts (q,), and the curves (N, q) that they give the rows of a problem."""

    coef: Array
    intercept: Array
    curves: Array

    def at(self, rows: Index | slice) -> _Iterate:
        """Seen by some rows."""
        return replace(self, curves=self.curves[rows])

    def moved(self, move: Array, change: Array, length: float) -> _Iterate:
        """So far along a direction and what it changes curves by."""
        coef, intercept = self.coef + length * move[:-1], self.intercept + length * move[-1]
        return _Iterate(coef, intercept, self.curves + length * change)


@dataclass(frozen=True, eq=False)
class _Evaluation:
    """What a problem looks like from a iterate: duals, gradient, and the two parts of the gap."""

    duals: Duals
    gradient: Array
    fenchel_gap: float
    dual_residual: float

    @property
    def gap(self) -> float:
        """About what a certificate would prove."""
        return self.fenchel_gap + self.dual_residual


def solve_coupled(whole: NoncrossingProblem, basis: Array | None, start: Point, tol: float, max_iter: int) -> Point:
    """From levels fitted apart to levels fitted together, within the basis if there is one."""
    every, coef = whole.within(basis), start.coef if basis is None else basis.T @ start.coef
    iterate, anchors = _Iterate(coef, start.intercept, every.curves(coef, start.intercept)), start.duals
    width, goal = _first_width(every, iterate.curves), tol * whole.scale(start.objective).sum()
    # Levels that cross by rounding only, as where each goes through every row, are as good when they are moved apart.
    best = certify(whole, start.coef, start.intercept, start.duals, start.steps)
    if best.gap.sum() <= goal:
        return best
    floor, steps = min(_min_width(every), 1e-4 * width), 0
    near, rows = every, ALL
    while True:
        here, system, taken = _inner(near, iterate.at(rows), anchors.at(rows), width, goal, max_iter - steps)
        here, steps = replace(here, curves=every.curves(here.coef, here.intercept)), steps + taken
        evaluation = _evaluate(every, here, anchors, width)
        last = steps >= max_iter or (near is every and system is None)
        if near is every or (system is not None and _inner_converged(evaluation, system, goal)):
            moved, iterate = np.abs(here.curves - iterate.curves).max(axis=1), here
            anchors, width = evaluation.duals, max(SHRINK * width, floor)
            report(Progress(steps, len(whole.levels), tol * evaluation.gap / goal))
        elif not last:  # a row that was left out has moved over a kink: the same again, with all rows
            near, rows = every, ALL
            continue
        if last or evaluation.gap <= CERTIFY_FROM * goal:
            found = certify(whole, _to_features(basis, iterate.coef), iterate.intercept, anchors, start.steps + steps)
            best = found if found.gap.sum() <= best.gap.sum() else best
            goal = tol * whole.scale(found.objective).sum()
            if last or best.gap.sum() <= goal:
                return best
            if basis is not None and 4 * _gap_within(every, iterate, anchors) <= goal < found.gap.sum():
                # What the basis leaves out is too much: go on with all features.
                every, iterate, basis = whole, replace(iterate, coef=_to_features(basis, iterate.coef)), None
                evaluation = replace(evaluation, gradient=every.gradient(iterate.coef, anchors))
        active_rows = _find_active_rows(every, iterate.curves, anchors, ACTIVE_MOVES * moved)
        too_many_active = len(active_rows) > MAX_ACTIVE_SHARE * len(every.y)
        rows, near = (
            (ALL, every) if too_many_active else (active_rows, _restrict(every, active_rows, iterate.coef, evaluation))
        )


def _to_features(basis: Array | None, coef: Array) -> Array:
    """Coefficients of all features."""
    return coef if basis is None else basis @ coef


def _gap_within(problem: NoncrossingProblem, iterate: _Iterate, duals: Duals) -> float:
    """What is proved about the features of the basis."""
    return float(certify(problem, iterate.coef, iterate.intercept, duals, np.zeros(len(problem.levels), int)).gap.sum())


def _inner(
    problem: NoncrossingProblem, iterate: _Iterate, anchors: Duals, width: float, goal: float, max_steps: int
) -> tuple[_Iterate, BlockTridiagonal | None, int]:
    """Newton steps until the smoothed problem is solved well enough; the last system, or None where digits ran out.

    The first step starts from the rows whose anchors are inside their box.
    """
    system = None
    for step in range(max_steps):
        if system is None:
            duals, active = _linear_model(problem, iterate.curves, anchors, width)
            gradient = problem.gradient(iterate.coef, duals)
        else:
            evaluation = _evaluate(problem, iterate, anchors, width)
            if _inner_converged(evaluation, system, goal):
                return iterate, system, step
            active, gradient = _active(problem, evaluation.duals), evaluation.gradient
        try:
            system = _system(problem, active, width)
        except np.linalg.LinAlgError:  # no digits left: what is reached is all there is
            return iterate, None, step
        move = -system.solve(gradient)
        change = problem.curves(move[:-1], move[-1])
        length = _exact_step(problem, iterate, move, change, anchors, width, float(np.sum(gradient * move)))
        iterate = iterate.moved(move, change, length)
    return iterate, system, max_steps


def _evaluate(problem: NoncrossingProblem, iterate: _Iterate, anchors: Duals, width: float) -> _Evaluation:
    """The smoothed problem as it is seen from evaluation."""
    duals = problem.duals(iterate.curves, anchors, width)
    gradient, (fitted, tied) = problem.gradient(iterate.coef, duals), problem.fenchel_gap(iterate.curves, duals)
    return _Evaluation(duals, gradient, fitted + abs(tied), problem.dual_residual(gradient))


def _inner_converged(evaluation: _Evaluation, system: BlockTridiagonal, goal: float) -> bool:
    """Whether the inner problem is solved: to a share of the fenchel_gap or, once that is within the goal, to the goal."""
    if evaluation.fenchel_gap <= 0.3 * goal and evaluation.dual_residual <= 0.2 * goal:
        return True
    decrement = (
        abs(float(np.sum(evaluation.gradient * system.solve(evaluation.gradient)))) / 2
    )  # by the last Hessian, near enough
    if decrement <= 1e-12 * goal:  # nothing left that floating point could improve
        return True
    return evaluation.fenchel_gap > 0.3 * goal and decrement <= DECREMENT_TOLERANCE * evaluation.fenchel_gap


def _find_active_rows(problem: NoncrossingProblem, curves: Array, anchors: Duals, reach: Array) -> Index:
    """Rows whose anchors are on a sloping piece, and those that a move of this reach (N,) could bring onto one."""
    inside, pressed = _active(problem, anchors)
    nearest = np.minimum(np.abs(problem.y[:, None] - curves).min(axis=1), -crossing(curves).max(axis=1))
    return np.flatnonzero((nearest <= reach) | inside.any(axis=1) | pressed.any(axis=1))


def _restrict(problem: NoncrossingProblem, rows: Index, coef: Array, evaluation: _Evaluation) -> NoncrossingProblem:
    """The problem of these rows, the others being screened_gradient at the duals of the evaluation."""
    near = problem.at(rows)
    return replace(near, screened_gradient=evaluation.gradient - near.gradient(coef, evaluation.duals.at(rows)))


def _active(problem: NoncrossingProblem, duals: Duals) -> tuple[Mask, Mask]:
    """Rows on the sloping piece of v (N, q) and of m (N, q - 1)."""
    return (duals.v > problem.levels - 1) & (duals.v < problem.levels), duals.m > 0


def _system(problem: NoncrossingProblem, active: tuple[Mask, Mask], width: float) -> BlockTridiagonal:
    """Second derivatives, when these rows are on sloping pieces."""
    losses, constraints = (
        active[0] * (problem.share[:, None] / width),
        active[1] * (problem.constraint_weight[:, None] / width),
    )
    fallback = problem.share.max() / width
    return BlockTridiagonal(problem.features, problem.alpha, problem.fit_intercept, losses, constraints, fallback)


def _linear_model(
    problem: NoncrossingProblem, curves: Array, anchors: Duals, width: float
) -> tuple[Duals, tuple[Mask, Mask]]:
    """The linear model in which rows stay on the piece where their anchors are, and which rows that leaves free."""
    inside, pressed = _active(problem, anchors)
    pressed = pressed | (crossing(curves) > 0)
    v = anchors.v + inside * (problem.y[:, None] - curves) / width
    return Duals(v, anchors.m + pressed * crossing(curves) / width), (inside, pressed)


def _exact_step(
    problem: NoncrossingProblem,
    iterate: _Iterate,
    move: Array,
    change: Array,
    anchors: Duals,
    width: float,
    first_slope: float,
) -> float:
    """The length at which the slope of the smoothed sum along the direction vanishes."""
    from quernel.solvers.noncrossing.numba_kernels import probe_levels

    along = float(
        np.sum(problem.screened_gradient * move) + 2 * problem.alpha @ np.sum(iterate.coef * move[:-1], axis=0)
    )
    square = 2 * problem.alpha @ np.sum(move[:-1] ** 2, axis=0)
    low, high, length = 0.0, np.inf, 1.0
    rows = problem.y, problem.share, problem.constraint_weight, problem.levels
    for _ in range(MAX_PROBES):
        slope, curvature = probe_levels(*rows, iterate.curves, change, anchors.v, anchors.m, width, length)
        slope, curvature = slope + along + length * square, curvature + square
        if abs(slope) <= SLOPE_TOLERANCE * abs(first_slope):
            break
        low, high = (length, high) if slope < 0 else (low, length)
        newton = length - slope / curvature if curvature > 0 else np.nan
        halfway = (low + high) / 2 if np.isfinite(high) else 2 * length
        length = newton if low < newton < high else halfway
    return length


def _first_width(problem: NoncrossingProblem, curves: Array) -> float:
    """The median over levels of the residual's size up to which there are BAND_ROWS_PER_FEATURE rows per feature.

    Not less than MIN_FIRST_WIDTH of the spread of y: curves that go through most rows leave residuals of rounding.
    """
    rows = problem.share > 0
    y, size = problem.y[rows], np.abs(problem.y[rows, None] - curves[rows])
    nth = min(int(BAND_ROWS_PER_FEATURE * problem.features.shape[1]), len(size) // 2)
    return max(float(np.median(np.partition(size, nth, axis=0)[nth])), MIN_FIRST_WIDTH * float(np.std(y))) or 1.0


def _min_width(problem: NoncrossingProblem) -> float:
    """The width at which the ridge is CONDITION of what the constraints of one row put beside it."""
    size = (
        float(problem.constraint_weight @ np.einsum("ij,ij->i", problem.features, problem.features))
        / problem.constraint_weight.sum()
    )
    return CONDITION * size * float(problem.constraint_weight.max()) / (2 * float(problem.alpha.min()))
