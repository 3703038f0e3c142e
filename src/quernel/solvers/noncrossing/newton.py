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
from quernel.solvers.noncrossing.problem import Array, Duals, Index, Ordered, Point, certified, drop
from quernel.solvers.progress import Progress, report

Mask = NDArray[np.bool_]

# One step serves all levels, so widths shrink gently: after a bold cut the most hesitant level holds up the others.
SHRINK = 0.6
# The first width is that of a band around each level with so many rows per feature in it.
BAND = 25.0
NARROW = 1e-3
# A row is in doubt where it is no farther from a kink than so many times what its curves last moved by.
DOUBT = 3.0
# An inner problem is solved well enough when Newton's decrement is this small against the slack.
ENOUGH = 0.1
FLAT, MAX_PROBES = 0.1, 60
# Where the ridge is less than this part of the Hessian, steps are rounding: widths shrink no further.
CONDITION = 1e-13
# A certificate is asked for where the gap looks no larger than so many goals; moving levels apart costs a little, too.
PROMISING = 2.0
# Where more than this share of the rows is in doubt, none is left out.
CROWD = 0.7
ALL: Index | slice = slice(None)


@dataclass(frozen=True, eq=False)
class _Place:
    """Coefficients (M, q), intercepts (q,), and the curves (N, q) that they give the rows of a problem."""

    coef: Array
    intercept: Array
    curves: Array

    def at(self, rows: Index | slice) -> _Place:
        """Seen by some rows."""
        return replace(self, curves=self.curves[rows])

    def moved(self, move: Array, change: Array, length: float) -> _Place:
        """So far along a direction and what it changes curves by."""
        coef, intercept = self.coef + length * move[:-1], self.intercept + length * move[-1]
        return _Place(coef, intercept, self.curves + length * change)


@dataclass(frozen=True, eq=False)
class _View:
    """What a problem looks like from a place: duals, gradient, and the two parts of the gap."""

    duals: Duals
    gradient: Array
    slack: float
    stray: float

    @property
    def gap(self) -> float:
        """About what a certificate would prove."""
        return self.slack + self.stray


def descend(whole: Ordered, basis: Array | None, start: Point, tol: float, max_iter: int) -> Point:
    """From levels fitted apart to levels fitted together, within the basis if there is one."""
    every, coef = whole.within(basis), start.coef if basis is None else basis.T @ start.coef
    place, anchors = _Place(coef, start.intercept, every.curves(coef, start.intercept)), start.duals
    width, goal = _first_width(every, place.curves), tol * whole.scale(start.objective).sum()
    # Levels that cross by rounding only, as where each goes through every row, are as good when they are moved apart.
    best = certified(whole, start.coef, start.intercept, start.duals, start.steps)
    if best.gap.sum() <= goal:
        return best
    floor, steps = min(_least_width(every), 1e-4 * width), 0
    near, rows = every, ALL
    while True:
        here, system, taken = _inner(near, place.at(rows), anchors.at(rows), width, goal, max_iter - steps)
        here, steps = replace(here, curves=every.curves(here.coef, here.intercept)), steps + taken
        view = _look(every, here, anchors, width)
        last = steps >= max_iter or (near is every and system is None)
        if near is every or (system is not None and _settled(view, system, goal)):
            moved, place = np.abs(here.curves - place.curves).max(axis=1), here
            anchors, width = view.duals, max(SHRINK * width, floor)
            report(Progress(steps, len(whole.levels), tol * view.gap / goal))
        elif not last:  # a row that was left out has moved over a kink: the same again, with all rows
            near, rows = every, ALL
            continue
        if last or view.gap <= PROMISING * goal:
            found = certified(whole, _lifted(basis, place.coef), place.intercept, anchors, start.steps + steps)
            best = found if found.gap.sum() <= best.gap.sum() else best
            goal = tol * whole.scale(found.objective).sum()
            if last or best.gap.sum() <= goal:
                return best
            if basis is not None and 4 * _gap_within(every, place, anchors) <= goal < found.gap.sum():
                # What the basis leaves out is too much: go on with all features.
                every, place, basis = whole, replace(place, coef=_lifted(basis, place.coef)), None
                view = replace(view, gradient=every.gradient(place.coef, anchors))
        doubtful = _in_doubt(every, place.curves, anchors, DOUBT * moved)
        crowded = len(doubtful) > CROWD * len(every.y)
        rows, near = (ALL, every) if crowded else (doubtful, _restricted(every, doubtful, place.coef, view))


def _lifted(basis: Array | None, coef: Array) -> Array:
    """Coefficients of all features."""
    return coef if basis is None else basis @ coef


def _gap_within(problem: Ordered, place: _Place, duals: Duals) -> float:
    """What is proved about the features of the basis."""
    return float(certified(problem, place.coef, place.intercept, duals, np.zeros(len(problem.levels), int)).gap.sum())


def _inner(
    problem: Ordered, place: _Place, anchors: Duals, width: float, goal: float, max_steps: int
) -> tuple[_Place, BlockTridiagonal | None, int]:
    """Newton steps until the smoothed problem is solved well enough; the last system, or None where digits ran out.

    The first step starts from the rows whose anchors are inside their box.
    """
    system = None
    for step in range(max_steps):
        if system is None:
            duals, active = _from_anchors(problem, place.curves, anchors, width)
            gradient = problem.gradient(place.coef, duals)
        else:
            view = _look(problem, place, anchors, width)
            if _settled(view, system, goal):
                return place, system, step
            active, gradient = _active(problem, view.duals), view.gradient
        try:
            system = _system(problem, active, width)
        except np.linalg.LinAlgError:  # no digits left: what is reached is all there is
            return place, None, step
        move = -system.solve(gradient)
        change = problem.curves(move[:-1], move[-1])
        length = _exact_step(problem, place, move, change, anchors, width, float(np.sum(gradient * move)))
        place = place.moved(move, change, length)
    return place, system, max_steps


def _look(problem: Ordered, place: _Place, anchors: Duals, width: float) -> _View:
    """The smoothed problem as it is seen from here."""
    duals = problem.duals(place.curves, anchors, width)
    gradient, (fitted, tied) = problem.gradient(place.coef, duals), problem.slack(place.curves, duals)
    return _View(duals, gradient, fitted + abs(tied), problem.stray(gradient))


def _settled(view: _View, system: BlockTridiagonal, goal: float) -> bool:
    """Whether the inner problem is solved: to a share of the slack or, once that is within the goal, to the goal."""
    if view.slack <= 0.3 * goal and view.stray <= 0.2 * goal:
        return True
    decrement = abs(float(np.sum(view.gradient * system.solve(view.gradient)))) / 2  # by the last Hessian, near enough
    if decrement <= 1e-12 * goal:  # nothing left that floating point could improve
        return True
    return view.slack > 0.3 * goal and decrement <= ENOUGH * view.slack


def _in_doubt(problem: Ordered, curves: Array, anchors: Duals, reach: Array) -> Index:
    """Rows whose anchors are on a sloping piece, and those that a move of this reach (N,) could bring onto one."""
    inside, pressed = _active(problem, anchors)
    nearest = np.minimum(np.abs(problem.y[:, None] - curves).min(axis=1), -drop(curves).max(axis=1))
    return np.flatnonzero((nearest <= reach) | inside.any(axis=1) | pressed.any(axis=1))


def _restricted(problem: Ordered, rows: Index, coef: Array, view: _View) -> Ordered:
    """The problem of these rows, the others being settled at the duals of the view."""
    near = problem.at(rows)
    return replace(near, settled=view.gradient - near.gradient(coef, view.duals.at(rows)))


def _active(problem: Ordered, duals: Duals) -> tuple[Mask, Mask]:
    """Rows on the sloping piece of v (N, q) and of m (N, q - 1)."""
    return (duals.v > problem.levels - 1) & (duals.v < problem.levels), duals.m > 0


def _system(problem: Ordered, active: tuple[Mask, Mask], width: float) -> BlockTridiagonal:
    """Second derivatives, when these rows are on sloping pieces."""
    losses, ties = active[0] * (problem.share[:, None] / width), active[1] * (problem.tie[:, None] / width)
    spare = problem.share.max() / width
    return BlockTridiagonal(problem.features, problem.alpha, problem.fit_intercept, losses, ties, spare)


def _from_anchors(problem: Ordered, curves: Array, anchors: Duals, width: float) -> tuple[Duals, tuple[Mask, Mask]]:
    """The linear model in which rows stay on the piece where their anchors are, and which rows that leaves free."""
    inside, pressed = _active(problem, anchors)
    pressed = pressed | (drop(curves) > 0)
    v = anchors.v + inside * (problem.y[:, None] - curves) / width
    return Duals(v, anchors.m + pressed * drop(curves) / width), (inside, pressed)


def _exact_step(
    problem: Ordered, place: _Place, move: Array, change: Array, anchors: Duals, width: float, first_slope: float
) -> float:
    """The length at which the slope of the smoothed sum along the direction vanishes."""
    from quernel.solvers.noncrossing.numba_kernels import probe_levels

    along = float(np.sum(problem.settled * move) + 2 * problem.alpha @ np.sum(place.coef * move[:-1], axis=0))
    square = 2 * problem.alpha @ np.sum(move[:-1] ** 2, axis=0)
    low, high, length = 0.0, np.inf, 1.0
    rows = problem.y, problem.share, problem.tie, problem.levels
    for _ in range(MAX_PROBES):
        slope, bend = probe_levels(*rows, place.curves, change, anchors.v, anchors.m, width, length)
        slope, bend = slope + along + length * square, bend + square
        if abs(slope) <= FLAT * abs(first_slope):
            break
        low, high = (length, high) if slope < 0 else (low, length)
        newton = length - slope / bend if bend > 0 else np.nan
        halfway = (low + high) / 2 if np.isfinite(high) else 2 * length
        length = newton if low < newton < high else halfway
    return length


def _first_width(problem: Ordered, curves: Array) -> float:
    """The median over levels of the residual's size up to which there are BAND rows per feature.

    Not less than NARROW of the spread of y: curves that go through most rows leave residuals of rounding.
    """
    rows = problem.share > 0
    y, size = problem.y[rows], np.abs(problem.y[rows, None] - curves[rows])
    place = min(int(BAND * problem.features.shape[1]), len(size) // 2)
    return max(float(np.median(np.partition(size, place, axis=0)[place])), NARROW * float(np.std(y))) or 1.0


def _least_width(problem: Ordered) -> float:
    """The width at which the ridge is CONDITION of what the ties of one row put beside it."""
    size = float(problem.tie @ np.einsum("ij,ij->i", problem.features, problem.features)) / problem.tie.sum()
    return CONDITION * size * float(problem.tie.max()) / (2 * float(problem.alpha.min()))
