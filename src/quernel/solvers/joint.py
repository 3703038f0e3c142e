"""Levels fitted together so that they do not cross: semismooth Newton on the augmented Lagrangian, columns coupled.

    minimise  sum_k F_k(u_k, b_k)   subject to   f_ik <= f_i,k+1   for every row i and neighbouring levels k, k + 1

Each constraint has a multiplier m_ik >= 0 and enters the Lagrangian as  share_i m_ik (f_ik - f_i,k+1).  A level then
feels the duals  e_k = v_k - m_k + m_(k-1)  in place of v_k. For all v in the loss's box and all m >= 0, with the e_k
balanced (mean e_k = 0) where there are intercepts,

    gap = sum_k [mean(loss(r_k) - v_k r_k) + alpha |u_k - Phi'(w e_k) / (2 alpha W)|^2 + mean m_k (f_k+1 - f_k)]

is at least  sum_k F_k - minimum.  Intercepts are first moved apart, by next to nothing, until no levels cross.

With anchors and a width d both kinds of duals are clipped lines, v+ = clip(r / d + v, level - 1, level) and
m+ = max(0, (f_k - f_k+1) / d + m). The rest is as in `newton`: Newton steps with an exact line search, then the duals
become anchors and the width shrinks. The Hessian is block-tridiagonal in the levels. Levels that do not cross by
themselves are left as they are: only runs of neighbours that do are solved together.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from quernel.certificate import relative
from quernel.losses import Pinball
from quernel.problem import Problem
from quernel.solvers import screening
from quernel.solvers.compression import principal_basis
from quernel.solvers.progress import Progress, report
from quernel.solvers.result import Result, statuses
from quernel.solvers.tridiagonal import BlockTridiagonal

Array = NDArray[np.floating]

# One step serves all levels, so widths shrink gently: after a bold cut the most hesitant level holds up the others.
SHRINK = 0.75
# The first width is that of a band around each level with so many rows per feature in it.
BAND = 25.0
# Crossings count so many times as much as residuals, for they are the last to vanish.
STIFF = 40.0
# An inner problem is solved well enough when Newton's decrement is this small against the slack.
ENOUGH = 0.1
FLAT, MAX_PROBES = 0.1, 60
# Where the ridge is less than this part of the Hessian, steps are rounding: widths shrink no further.
CONDITION = 1e-13
# What levels without intercepts, which cannot be moved apart, may cross by, relative to the spread of y.
FORGIVEN = 1e-7
# Curves computed again differ in their last digits: levels are moved so much farther apart, in units of their size.
ROUNDING = 1e-13


@dataclass(frozen=True, eq=False)
class Duals:
    """v (N, q) of the residuals and m (N, q - 1) of the constraints."""

    v: Array
    m: Array

    def take(self, run: slice) -> Duals:
        """Those of some neighbouring levels."""
        return Duals(self.v[:, run], self.m[:, run.start : run.stop - 1])


@dataclass(frozen=True, eq=False)
class Ordered:
    """Levels in ascending order (q,) over N rows: features (N, M), y, share and tie (N,); alpha and null F0 (q,).

    `tie` is the weight of a row's constraints, a multiple of its share. Points without a target have no share, and the
    tie of an average row.
    """

    features: Array
    y: Array
    share: Array
    tie: Array
    levels: Array
    alpha: Array
    null: Array
    fit_intercept: bool

    def take(self, run: slice) -> Ordered:
        """Some neighbouring levels."""
        return replace(self, levels=self.levels[run], alpha=self.alpha[run], null=self.null[run])

    def curves(self, coef: Array, intercept: Array) -> Array:
        """f (N, q)."""
        return self.features @ coef + intercept

    def loss(self, curves: Array) -> Array:
        """Mean pinball loss of every level."""
        residual = self.y[:, None] - curves
        return self.share @ np.maximum(self.levels * residual, (self.levels - 1) * residual)

    def objective(self, coef: Array, curves: Array) -> Array:
        """F of every level."""
        return self.loss(curves) + self.alpha * np.sum(coef**2, axis=0)

    def scale(self, objective: Array) -> Array:
        """max(F, F0 / 1000), by which gaps are judged."""
        return np.maximum(objective, self.null / 1000)

    def duals(self, curves: Array, anchors: Duals, width: float) -> Duals:
        """v+ and m+."""
        v = np.clip((self.y[:, None] - curves) / width + anchors.v, self.levels - 1, self.levels)
        return Duals(v, np.maximum(drop(curves) / width + anchors.m, 0))

    def effect(self, duals: Duals) -> Array:
        """share e_k = share v_k - tie m_k + tie m_(k-1):  what pulls each level up, (N, q)."""
        effect, pushed = self.share[:, None] * duals.v, self.tie[:, None] * duals.m
        effect[:, :-1] -= pushed
        effect[:, 1:] += pushed
        return effect

    def slack(self, curves: Array, duals: Duals) -> tuple[float, float]:
        """sum_k mean(loss(r_k) - v_k r_k)  and  sum_k mean m_k (f_k+1 - f_k),  negative where levels cross."""
        fitted = np.sum(self.share @ (duals.v * (self.y[:, None] - curves)))
        return float(self.loss(curves).sum() - fitted), -float(np.sum(self.tie @ (duals.m * drop(curves))))

    def gradient(self, coef: Array, duals: Duals) -> Array:
        """Of the sum, with the intercepts' part in the last row: (M + 1, q)."""
        effect = self.effect(duals)
        slope = -effect.sum(axis=0) if self.fit_intercept else np.zeros(len(self.levels))
        return np.vstack([2 * self.alpha * coef - self.features.T @ effect, slope])

    def stray(self, gradient: Array) -> float:
        """sum_k alpha |u_k - Phi'(w e_k) / (2 alpha W)|^2."""
        return float(np.sum(gradient[:-1] ** 2 / (4 * self.alpha)))


@dataclass(frozen=True, eq=False)
class Point:
    """Coefficients (M, q), intercepts (q,), duals; F of every level, its part of the gap of their sum, steps (q,)."""

    coef: Array
    intercept: Array
    duals: Duals
    objective: Array
    gap: Array
    steps: NDArray[np.intp]


def solve(problem: Problem, *, tol: float = 1e-6, max_iter: int = 1000, points: Array | None = None) -> Result:
    """Minimise the sum of F over all levels to a relative gap of at most `tol`, none crossing the next on any row.

    `points` (p, M) are features of further places where levels must not cross. The gap of the sum is shared out among
    the levels in proportion to their objectives. `dual` holds the e_k of the rows.
    """
    if not isinstance(problem.loss, Pinball):
        raise ValueError(f"Joint levels need the Pinball loss; got {type(problem.loss).__name__}.")
    problem.rows.resident("noncrossing='joint' needs all features in memory", instead="noncrossing='rearrange'")
    apart = screening.solve(problem, tol=tol, max_iter=max_iter)
    order, rows = np.argsort(problem.loss.levels), np.flatnonzero(problem.rows.share > 0)
    whole = _ordered(problem, apart.null_objective, order, rows, points)
    start = _start(whole, apart.take(order), rows)
    if not np.any(_crossed(whole, start)):
        return apart
    basis = principal_basis(problem, len(rows), tol, apart.null_objective)
    found = _together(whole, basis, start, tol, max_iter)
    dual, share = np.zeros_like(apart.dual), problem.rows.share[rows, None]
    dual[np.ix_(rows, order)] = whole.effect(found.duals)[: len(rows)] / share
    back, rel = np.argsort(order), relative(found.gap, found.objective, whole.null)
    return replace(
        apart, coef=found.coef[:, back], intercept=found.intercept[back], dual=dual, objective=found.objective[back],
        gap=found.gap[back], relative_gap=rel[back], status=statuses(rel[back], tol), iterations=found.steps[back],
    )  # fmt: skip


def _ordered(
    problem: Problem, null: Array, order: NDArray[np.intp], rows: NDArray[np.intp], points: Array | None
) -> Ordered:
    """The levels in order over the rows that have weight, and over the points."""
    features, y, share = problem.rows.resident("Joint levels"), problem.rows.target, problem.rows.share
    if len(rows) < len(y):
        features, y, share = features[rows], y[rows], share[rows]
    tie = STIFF * share
    if points is not None and len(points):
        none = np.zeros(len(points))
        features, y, share = np.vstack([features, points]), np.append(y, none), np.append(share, none)
        tie = np.append(tie, none + STIFF / len(rows))
    assert isinstance(problem.loss, Pinball)
    levels, alpha = problem.loss.levels[order], problem.alpha[order]
    return Ordered(features, y, share, tie, levels, alpha, null[order], problem.fit_intercept)


def _start(whole: Ordered, apart: Result, rows: NDArray[np.intp]) -> Point:
    """Levels fitted apart, with all multipliers 0."""
    v = np.zeros((len(whole.y), len(whole.levels)))
    v[: len(rows)] = apart.dual[rows]
    duals = Duals(v, np.zeros((len(v), len(whole.levels) - 1)))
    return Point(apart.coef, apart.intercept, duals, apart.objective, apart.gap, apart.iterations)


def drop(curves: Array) -> Array:
    """f_k - f_k+1, (N, q - 1): positive where levels cross."""
    return curves[:, :-1] - curves[:, 1:]


def _crossed(problem: Ordered, point: Point) -> NDArray[np.bool_]:
    """Which levels cross the next one somewhere, (q - 1,)."""
    return drop(problem.curves(point.coef, point.intercept)).max(axis=0, initial=-np.inf) > _forgiven(problem)


def _forgiven(problem: Ordered) -> float:
    """By how much levels may cross: not at all, where intercepts can move them apart."""
    if problem.fit_intercept:
        return 0.0
    return FORGIVEN * float(np.sqrt(problem.share @ (problem.y - problem.share @ problem.y) ** 2))


def _together(whole: Ordered, basis: Array | None, start: Point, tol: float, max_iter: int) -> Point:
    """Solve runs of neighbours that cross, until none do: what is moved may cross others that were apart before."""
    point, linked = start, np.zeros(len(whole.levels) - 1, dtype=bool)
    while np.any(new := _crossed(whole, point) & ~linked):
        linked |= new
        parts = []
        for run in _runs(linked):
            part = Point(
                point.coef[:, run], point.intercept[run], point.duals.take(run), point.objective[run], point.gap[run],
                point.steps[run],
            )  # fmt: skip
            alone = run.stop - run.start == 1
            parts.append(part if alone else _descend(whole.take(run), basis, part, tol, max_iter))
        point = _joined(parts)
    return point


def _runs(linked: NDArray[np.bool_]) -> list[slice]:
    """Maximal runs of linked neighbours; a level linked to none is a run of its own."""
    ends = [0, *(np.flatnonzero(~linked) + 1), len(linked) + 1]
    return [slice(int(first), int(last)) for first, last in pairwise(ends)]


def _joined(parts: list[Point]) -> Point:
    """Runs side by side; nothing holds the last level of one and the first of the next apart."""
    free = np.zeros((len(parts[0].duals.v), 1))
    m = [piece for part in parts for piece in (free, part.duals.m)][1:]
    duals = Duals(np.hstack([part.duals.v for part in parts]), np.hstack(m))
    names = ("intercept", "objective", "gap", "steps")
    intercept, objective, gap, steps = (np.concatenate([getattr(part, name) for part in parts]) for name in names)
    return Point(np.hstack([part.coef for part in parts]), intercept, duals, objective, gap, steps)


def _descend(whole: Ordered, basis: Array | None, start: Point, tol: float, max_iter: int) -> Point:
    """Newton steps from levels fitted apart to levels fitted together, within the basis if there is one."""
    problem = whole if basis is None else replace(whole, features=whole.features @ basis)
    coef, intercept, anchors = start.coef if basis is None else basis.T @ start.coef, start.intercept, start.duals
    curves = problem.curves(coef, intercept)
    width, best, system = _first_width(problem, curves), None, None
    floor = min(_least_width(problem), 1e-4 * width)
    goal = tol * problem.scale(start.objective).sum()
    for step in range(max_iter):
        duals = problem.duals(curves, anchors, width)
        gradient = problem.gradient(coef, duals)
        if system is None or _settled(problem, curves, duals, gradient, system, goal):
            if system is not None:
                anchors, width = duals, max(SHRINK * width, floor)
            found = inner = certified(problem, coef, intercept, anchors, start.steps + step)
            goal = tol * problem.scale(inner.objective).sum()
            report(Progress(step, len(whole.levels), tol * inner.gap.sum() / goal))
            if basis is not None:  # what the basis leaves out counts, too
                found = certified(whole, basis @ coef, intercept, anchors, start.steps + step)
                if found.gap.sum() > goal >= 4 * inner.gap.sum():  # and is too much: go on with all features
                    problem, coef, basis, system = whole, basis @ coef, None, None
            if best is None or found.gap.sum() <= best.gap.sum():
                best = found
            if found.gap.sum() <= goal:
                break
            duals, bends = _from_anchors(problem, curves, anchors, width)
            gradient = problem.gradient(coef, duals)
        else:
            bends = _bends(problem, curves, anchors, width)
        try:
            system = BlockTridiagonal(
                problem.features, problem.alpha, problem.fit_intercept, *bends, problem.share.max() / width
            )
        except np.linalg.LinAlgError:  # no digits left: what is certified so far is all there is
            break
        move = -system.solve(gradient)
        change = problem.curves(move[:-1], move[-1])
        length = _exact_step(problem, coef, curves, move, change, anchors, width, float(np.sum(gradient * move)))
        coef, intercept, curves = coef + length * move[:-1], intercept + length * move[-1], curves + length * change
    assert best is not None
    return best


def _settled(
    problem: Ordered, curves: Array, duals: Duals, gradient: Array, system: BlockTridiagonal, goal: float
) -> bool:
    """Whether the inner problem is solved: to a share of the slack or, once that is within the goal, to the goal."""
    fitted, tied = problem.slack(curves, duals)
    slack = fitted + abs(tied)
    decrement = abs(float(np.sum(gradient * system.solve(gradient)))) / 2  # by the last Hessian, which is near enough
    if decrement <= 1e-12 * goal:  # nothing left that floating point could improve
        return True
    return problem.stray(gradient) <= 0.2 * goal if slack <= 0.3 * goal else decrement <= ENOUGH * slack


def _first_width(problem: Ordered, curves: Array) -> float:
    """The median over levels of the residual's size up to which there are BAND rows per feature."""
    rows = problem.share > 0
    size = np.abs(problem.y[rows, None] - curves[rows])
    place = min(int(BAND * problem.features.shape[1]), len(size) // 2)
    return float(np.median(np.partition(size, place, axis=0)[place])) or 1.0


def _least_width(problem: Ordered) -> float:
    """The width at which the ridge is CONDITION of what the ties of one row put beside it."""
    size = float(problem.tie @ np.einsum("ij,ij->i", problem.features, problem.features)) / problem.tie.sum()
    return CONDITION * size * float(problem.tie.max()) / (2 * float(problem.alpha.min()))


def _bends(problem: Ordered, curves: Array, anchors: Duals, width: float) -> tuple[Array, Array]:
    """Second derivatives of the smoothed losses (N, q) and of the smoothed constraints (N, q - 1)."""
    line = (problem.y[:, None] - curves) / width + anchors.v
    inside = (line > problem.levels - 1) & (line < problem.levels)
    pressed = drop(curves) / width + anchors.m > 0
    return inside * (problem.share[:, None] / width), pressed * (problem.tie[:, None] / width)


def _from_anchors(problem: Ordered, curves: Array, anchors: Duals, width: float) -> tuple[Duals, tuple[Array, Array]]:
    """The linear model in which rows stay on the piece where their anchors are, and its second derivatives."""
    inside = (anchors.v > problem.levels - 1) & (anchors.v < problem.levels)
    pressed = (anchors.m > 0) | (drop(curves) > 0)
    v = anchors.v + inside * (problem.y[:, None] - curves) / width
    m = anchors.m + pressed * drop(curves) / width
    return Duals(v, m), (inside * (problem.share[:, None] / width), pressed * (problem.tie[:, None] / width))


def _exact_step(
    problem: Ordered, coef: Array, curves: Array, move: Array, change: Array, anchors: Duals, width: float,
    first_slope: float,
) -> float:  # fmt: skip
    """The length at which the slope of the smoothed sum along the direction vanishes."""
    from quernel.solvers.joint_probe import probe_levels

    along = 2 * problem.alpha @ np.sum(coef * move[:-1], axis=0)
    square = 2 * problem.alpha @ np.sum(move[:-1] ** 2, axis=0)
    low, high, length = 0.0, np.inf, 1.0
    rows = problem.y, problem.share, problem.tie, problem.levels
    for _ in range(MAX_PROBES):
        slope, bend = probe_levels(*rows, curves, change, anchors.v, anchors.m, width, length)
        slope, bend = slope + along + length * square, bend + square
        if abs(slope) <= FLAT * abs(first_slope):
            break
        low, high = (length, high) if slope < 0 else (low, length)
        newton = length - slope / bend if bend > 0 else np.nan
        halfway = (low + high) / 2 if np.isfinite(high) else 2 * length
        length = newton if low < newton < high else halfway
    return length


def certified(problem: Ordered, coef: Array, intercept: Array, duals: Duals, steps: NDArray[np.intp]) -> Point:
    """The point, its levels moved apart where intercepts allow it, with the gap that these duals prove.

    The gap is infinite where duals cannot be balanced, and where levels without intercepts cross noticeably.
    """
    curves = problem.curves(coef, intercept)
    if problem.fit_intercept:
        rounding = ROUNDING * np.abs(curves).max()
        apart = np.append(0, np.cumsum(np.maximum(drop(curves).max(axis=0) + rounding, 0)))
        intercept, curves = intercept + apart - apart.mean(), curves + apart - apart.mean()
        duals = Duals(_balanced(problem, duals), duals.m)
    objective, gradient = problem.objective(coef, curves), problem.gradient(coef, duals)
    gap = max(sum(problem.slack(curves, duals)) + problem.stray(gradient), np.finfo(float).eps * objective.sum())
    if np.any(np.abs(gradient[-1]) > 1e-12) or drop(curves).max() > _forgiven(problem):
        gap = np.inf
    scale = problem.scale(objective)
    return Point(coef, intercept, duals, objective, gap * scale / scale.sum(), steps)


def _balanced(problem: Ordered, duals: Duals) -> Array:
    """v moved towards an end of its box until the mean of each e_k is 0."""
    surplus = problem.effect(duals).sum(axis=0)
    end = np.where(surplus > 0, problem.levels - 1, problem.levels)
    room = problem.share @ duals.v - end * problem.share.sum()
    part = np.divide(surplus, room, out=np.zeros_like(room), where=room != 0)
    return duals.v + np.clip(part, 0, 1) * (end - duals.v)
