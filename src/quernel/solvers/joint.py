"""Levels fitted together so that they do not cross: semismooth Newton on the augmented Lagrangian, columns coupled.

    minimise  sum_k F_k(u_k, b_k)   subject to   f_ik <= f_i,k+1   for every row i and neighbouring levels k, k + 1

Every constraint gets a multiplier m_ik >= 0, and enters the Lagrangian as  share_i m_ik (f_ik - f_i,k+1). A column then
feels the duals  e_k = v_k - m_k + m_(k-1)  in place of v_k, so that for all v in the loss's box and all m >= 0, with the
e_k balanced (mean e_k = 0) where there are intercepts,

    gap = sum_k [mean(loss(r_k) - v_k r_k) + alpha |u_k - Phi'(w e_k) / (2 alpha W)|^2] + sum_k mean m_k (f_k+1 - f_k)

is at least  sum F_k - minimum,  whether or not the point is feasible. Intercepts are moved apart until it is.

With anchors and a width d both kinds of dual are clipped lines, v+ = clip(r / d + v, level - 1, level) and
m+ = max(0, (f_k - f_k+1) / d + m), and the rest is as in `newton`: Newton steps with an exact line search, then the duals
become anchors and the width shrinks. The Hessian is block-tridiagonal in the levels. Where levels do not cross by
themselves nothing couples them: only runs of levels that do are solved together.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

from quernel.certificate import relative
from quernel.losses import Pinball
from quernel.problem import Problem
from quernel.solvers import screening
from quernel.solvers.progress import Progress, report
from quernel.solvers.result import Result, statuses

Array = NDArray[np.floating]

SHRINK = 0.3
# An inner problem is solved well enough when Newton's decrement is this small against the slack.
ENOUGH = 0.1
FLAT, MAX_PROBES = 1e-2, 60
# The first width is that of a band around each level with so many rows per feature in it.
BAND = 2.0


@dataclass(frozen=True, eq=False)
class Ordered:
    """Levels in ascending order (q,) over N rows: features (N, M), y and share (N,), and tie (N,).

    `tie` is the weight of a row's constraints: its share, or that of an average row at points that have no target,
    whose share is 0. alpha (q,).
    """

    features: Array
    y: Array
    share: Array
    tie: Array
    levels: Array
    alpha: Array
    fit_intercept: bool

    def take(self, levels: slice) -> Ordered:
        """Some neighbouring levels."""
        return replace(self, levels=self.levels[levels], alpha=self.alpha[levels])

    def curves(self, coef: Array, intercept: Array) -> Array:
        """f (N, q)."""
        return self.features @ coef + intercept

    def loss(self, curves: Array) -> Array:
        """Mean pinball loss of every level."""
        residual = self.y[:, None] - curves
        return self.share @ np.maximum(self.levels * residual, (self.levels - 1) * residual)

    def duals(self, curves: Array, anchors: Duals, width: float) -> Duals:
        """v+ and m+."""
        v = np.clip((self.y[:, None] - curves) / width + anchors.v, self.levels - 1, self.levels)
        return Duals(v, np.maximum(_rise(curves) / width + anchors.m, 0))

    def effect(self, duals: Duals) -> Array:
        """share e_k = share v_k - tie (m_k - m_(k-1)):  what pulls each level up, (N, q)."""
        effect = self.share[:, None] * duals.v
        pushed = self.tie[:, None] * duals.m
        effect[:, :-1] -= pushed
        effect[:, 1:] += pushed
        return effect

    def slack(self, curves: Array, duals: Duals) -> float:
        """sum_k mean(loss(r_k) - v_k r_k) + mean m_k (f_k+1 - f_k)."""
        residual = self.y[:, None] - curves
        lost = np.sum(self.loss(curves)) - np.sum(self.share @ (duals.v * residual))
        return float(lost - np.sum(self.tie @ (duals.m * _rise(curves))))

    def gradient(self, coef: Array, duals: Duals) -> Array:
        """Of the smoothed sum, the intercepts' part in the last row: (M + 1, q)."""
        effect = self.effect(duals)
        slope = -effect.sum(axis=0) if self.fit_intercept else np.zeros(len(self.levels))
        return np.vstack([2 * self.alpha * coef - self.features.T @ effect, slope])


@dataclass(frozen=True, eq=False)
class Duals:
    """v (N, q) of the residuals and m (N, q - 1) of the constraints."""

    v: Array
    m: Array


@dataclass(frozen=True, eq=False)
class Point:
    """Coefficients (M, q), intercepts (q,), duals, F of every level (q,), and the gap of their sum."""

    coef: Array
    intercept: Array
    duals: Duals
    objective: Array
    gap: float
    steps: int = 0


def solve(problem: Problem, *, tol: float = 1e-6, max_iter: int = 1000, points: Array | None = None) -> Result:
    """Minimise the sum of F over all levels to a relative gap of at most `tol`, none crossing the next on any row.

    `points` (p, M) are features of further places where levels must not cross. The gap of the sum is shared out among
    the levels in proportion to their objectives. `dual` holds the e_k.
    """
    if not isinstance(problem.loss, Pinball):
        raise ValueError(f"Joint levels need the Pinball loss; got {type(problem.loss).__name__}.")
    problem.rows.resident("noncrossing='joint' needs all features in memory")
    apart = screening.solve(problem, tol=tol, max_iter=max_iter)
    order = np.argsort(problem.loss.levels)
    ordered, sorted_apart = _ordered(problem, order, points), apart.take(order)
    null = sorted_apart.null_objective
    extra = np.zeros((len(ordered.y) - problem.rows.n_rows, len(order)))
    start = Duals(np.vstack([sorted_apart.dual, extra]), np.zeros((len(ordered.y), len(order) - 1)))
    coef, intercept, objective = sorted_apart.coef, sorted_apart.intercept, sorted_apart.objective
    gap, steps, duals = sorted_apart.gap.copy(), sorted_apart.iterations.copy(), start
    linked = np.zeros(len(order) - 1, dtype=bool)
    while True:
        crossed = _rise(ordered.curves(coef, intercept)).max(axis=0, initial=-np.inf) > 0
        if not np.any(crossed & ~linked):
            break
        linked |= crossed
        for run in _runs(linked):
            part = ordered.take(run)
            found = _descend(
                part, coef[:, run], intercept[run], Duals(duals.v[:, run], duals.m[:, run.start : run.stop - 1]),
                null[run], tol, max_iter,
            )  # fmt: skip
            coef[:, run], intercept[run], objective[run] = found.coef, found.intercept, found.objective
            duals.v[:, run], duals.m[:, run.start : run.stop - 1] = found.duals.v, found.duals.m
            scale = np.maximum(found.objective, null[run] / 1000)
            gap[run] = found.gap * scale / scale.sum()
            steps[run] += found.steps
    effect = ordered.effect(duals)[: problem.rows.n_rows]
    share = problem.rows.share[:, None]
    dual = np.divide(effect, share, out=np.zeros_like(effect), where=share > 0)
    rel = relative(gap, objective, null)
    back = np.argsort(order)
    return replace(
        apart, coef=coef[:, back], intercept=intercept[back], dual=dual[:, back], objective=objective[back],
        gap=gap[back], relative_gap=rel[back], status=statuses(rel[back], tol), iterations=steps[back],
    )  # fmt: skip


def _ordered(problem: Problem, order: NDArray[np.intp], points: Array | None) -> Ordered:
    rows = problem.rows
    features, share = rows.resident("noncrossing='joint' needs all features in memory"), rows.share
    y, tie = rows.target, share
    if points is not None and len(points):
        p = len(points)
        features, y, share = np.vstack([features, points]), np.append(y, np.zeros(p)), np.append(share, np.zeros(p))
        tie = np.append(tie, np.full(p, 1 / rows.n_rows))
    return Ordered(features, y, share, tie, problem.loss.levels[order], problem.alpha[order], problem.fit_intercept)


def _rise(curves: Array) -> Array:
    """f_k - f_k+1: positive where levels cross."""
    return curves[:, :-1] - curves[:, 1:]


def _descend(
    problem: Ordered, coef: Array, intercept: Array, anchors: Duals, null: Array, tol: float, max_iter: int
) -> Point:
    """From levels fitted apart to levels fitted together."""
    curves = problem.curves(coef, intercept)
    width = _first_width(problem, curves)
    best: Point | None = None
    system: BlockTridiagonal | None = None
    for step in range(max_iter):
        duals = problem.duals(curves, anchors, width)
        gradient = problem.gradient(coef, duals)
        settled = step == 0
        if system is not None:
            slack = abs(problem.slack(curves, duals))
            objective = np.sum(problem.loss(curves) + problem.alpha * np.sum(coef**2, axis=0))
            goal = tol * max(objective, null.sum() / 1000)
            decrement = abs(float(np.sum(gradient * system.solve(gradient)))) / 2
            stray = float(np.sum(gradient[:-1] ** 2 / (4 * problem.alpha)))
            enough = stray <= 0.2 * goal if slack <= 0.3 * goal else decrement <= ENOUGH * slack
            settled = bool(enough or decrement <= 1e-18 * objective)
        if settled:
            if step > 0:
                anchors, width = duals, SHRINK * width
            found = certified(problem, coef, intercept, anchors, step)
            if best is None or found.gap < best.gap:
                best = found
                report(Progress(step, len(problem.levels), found.gap / max(found.objective.sum(), null.sum() / 1000)))
            if best.gap <= tol * max(best.objective.sum(), null.sum() / 1000):
                break
            duals, bend = _from_anchors(problem, curves, anchors, width)
            gradient = problem.gradient(coef, duals)
        else:
            bend = _bend(problem, curves, anchors, width)
        system = BlockTridiagonal(problem, *bend, 1 / width)
        move = -system.solve(gradient)
        change = problem.features @ move[:-1] + move[-1]
        length = _exact_step(problem, coef, curves, move, change, anchors, width, float(np.sum(gradient * move)))
        coef, intercept, curves = coef + length * move[:-1], intercept + length * move[-1], curves + length * change
    assert best is not None
    return replace(best, steps=step)


def _first_width(problem: Ordered, curves: Array) -> float:
    """The median over levels of the residual's size up to which there are BAND rows per feature."""
    rows = problem.share > 0
    size = np.sort(np.abs(problem.y[rows, None] - curves[rows]), axis=0)
    place = min(int(BAND * problem.features.shape[1]), len(size) - 1)
    return float(np.median(size[place])) or 1.0


def _bend(problem: Ordered, curves: Array, anchors: Duals, width: float) -> tuple[Array, Array]:
    """Second derivatives of the smoothed loss (N, q) and of the smoothed constraints (N, q - 1)."""
    line = (problem.y[:, None] - curves) / width + anchors.v
    inside = (line > problem.levels - 1) & (line < problem.levels)
    pressed = _rise(curves) / width + anchors.m > 0
    return inside * (problem.share[:, None] / width), pressed * (problem.tie[:, None] / width)


def _from_anchors(problem: Ordered, curves: Array, anchors: Duals, width: float) -> tuple[Duals, tuple[Array, Array]]:
    """The linear model in which rows stay on the piece on which their anchors are."""
    inside = (anchors.v > problem.levels - 1) & (anchors.v < problem.levels)
    pressed = (anchors.m > 0) | (_rise(curves) > 0)
    v = anchors.v + inside * (problem.y[:, None] - curves) / width
    m = anchors.m + pressed * _rise(curves) / width
    bend = inside * (problem.share[:, None] / width), pressed * (problem.tie[:, None] / width)
    return Duals(v, m), bend


def _exact_step(
    problem: Ordered, coef: Array, curves: Array, move: Array, change: Array, anchors: Duals, width: float,
    first_slope: float,
) -> float:  # fmt: skip
    """The length t at which the slope of the smoothed sum along the direction vanishes."""
    along, square = (
        2 * problem.alpha @ np.sum(coef * move[:-1], axis=0),
        2 * problem.alpha @ np.sum(move[:-1] ** 2, axis=0),
    )
    low, high, length = 0.0, np.inf, 1.0
    for _ in range(MAX_PROBES):
        at = curves + length * change
        slope = along + length * square - np.sum(problem.effect(problem.duals(at, anchors, width)) * change)
        if abs(slope) <= FLAT * abs(first_slope):
            break
        inside, pressed = _bend(problem, at, anchors, width)
        bend = square + np.sum(inside * change**2) + np.sum(pressed * _rise(change) ** 2)
        low, high = (length, high) if slope < 0 else (low, length)
        newton = length - slope / bend if bend > 0 else np.nan
        halfway = (low + high) / 2 if np.isfinite(high) else 2 * length
        length = newton if low < newton < high else halfway
    return length


def certified(problem: Ordered, coef: Array, intercept: Array, duals: Duals, steps: int) -> Point:
    """The point, moved so that no levels cross where intercepts allow it, and the gap that these duals prove."""
    curves = problem.curves(coef, intercept)
    if problem.fit_intercept:
        rounding = 16 * np.finfo(float).eps * np.abs(curves).max(initial=1)
        apart = np.append(0, np.cumsum(np.maximum(_rise(curves).max(axis=0) + rounding, 0)))
        intercept, curves = intercept + apart - apart.mean(), curves + apart - apart.mean()
        duals = Duals(_balanced(problem, duals), duals.m)
    objective = problem.loss(curves) + problem.alpha * np.sum(coef**2, axis=0)
    gradient = problem.gradient(coef, duals)
    gap = problem.slack(curves, duals) + float(np.sum(gradient[:-1] ** 2 / (4 * problem.alpha)))
    if not np.all(np.abs(gradient[-1]) <= 1e-12):
        gap = np.inf
    return Point(coef, intercept, duals, objective, max(gap, np.finfo(float).eps * objective.sum()), steps)


def _balanced(problem: Ordered, duals: Duals) -> Array:
    """v moved towards an end of its box until the mean of each e_k is 0."""
    surplus = problem.effect(duals).sum(axis=0)
    mean, total = problem.share @ duals.v, problem.share.sum()
    end = np.where(surplus > 0, problem.levels - 1, problem.levels)
    room = mean - end * total
    part = np.divide(surplus, room, out=np.zeros_like(room), where=room != 0)
    return duals.v + np.clip(part, 0, 1) * (end - duals.v)


class BlockTridiagonal:
    """The Hessian in the coordinates (u_k, b_k) of the levels, factored: one Cholesky factor per level."""

    def __init__(self, problem: Ordered, loss: Array, ties: Array, spare: float) -> None:
        M, q = problem.features.shape[1], len(problem.levels)
        diagonal = loss.copy()
        diagonal[:, :-1] += ties
        diagonal[:, 1:] += ties
        self._factors, self._sides = [], []
        for k in range(q):
            block = _gram(problem.features, diagonal[:, k])
            block.flat[: M * (M + 1) : M + 2] += 2 * problem.alpha[k]
            if not problem.fit_intercept:
                block[M, :], block[:, M], block[M, M] = 0, 0, 1
            elif block[M, M] == 0:  # no row holds the intercept: as if one did
                block[M, M] = problem.share.max() * spare
            if k > 0 and self._sides[-1] is not None:
                side = self._sides[-1]
                block -= side.T @ cho_solve(self._factors[-1], side, check_finite=False)
            self._factors.append(_factored(block))
            if k < q - 1:
                side = -_gram(problem.features, ties[:, k]) if ties[:, k].any() else None
                if side is not None and not problem.fit_intercept:
                    side[M, :], side[:, M] = 0, 0
                self._sides.append(side)

    def solve(self, right: Array) -> Array:
        """Hessian^-1 right, (M + 1, q)."""
        q = right.shape[1]
        z = right.copy()
        for k in range(q):
            if k > 0 and self._sides[k - 1] is not None:
                z[:, k] -= self._sides[k - 1].T @ z[:, k - 1]
            z[:, k] = cho_solve(self._factors[k], z[:, k], check_finite=False)
        for k in range(q - 2, -1, -1):
            if self._sides[k] is not None:
                z[:, k] -= cho_solve(self._factors[k], self._sides[k] @ z[:, k + 1], check_finite=False)
        return z


def _gram(features: Array, weight: Array) -> Array:
    """sum_i weight_i (phi_i, 1)(phi_i, 1)'."""
    rows = np.flatnonzero(weight)
    A = np.column_stack([features[rows], np.ones(len(rows))])
    A *= np.sqrt(weight[rows])[:, None]
    return A.T @ A


def _factored(block: Array) -> tuple[Array, bool]:
    """Cholesky factor; where rounding has made the block indefinite, of one with a little more on its diagonal."""
    more = 0.0
    for _ in range(20):
        try:
            return cho_factor(block + more * np.eye(len(block)), lower=True, check_finite=False)
        except np.linalg.LinAlgError:
            more = max(10 * more, 1e-15 * np.trace(block) / len(block))
    raise np.linalg.LinAlgError("The Newton system of the joint levels cannot be factored.")


def _runs(linked: NDArray[np.bool_]) -> list[slice]:
    """Maximal runs of linked neighbours, two or more of them."""
    ends = [0, *(np.flatnonzero(~linked) + 1), len(linked) + 1]
    return [slice(int(a), int(b)) for a, b in zip(ends[:-1], ends[1:], strict=True) if b - a > 1]
