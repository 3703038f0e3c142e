"""Quantile levels under shape constraints (`estimators`' monotone, convex, lower and upper), by constraint generation.

    minimise  sum_k F_k(u_k, b_k)   subject to   C u_k + d b_k >= e   for every level k,

with far more constraints than a solver needs to see: a difference of neighbouring grid values at every training row.
The levels are first fitted without them. Then the worst of the violated constraints join the working set, and the
problem with this set is solved from the last solution (`driver.solve_coupled`), roughly at first, until no constraint
is violated. Those outside of the working set have multiplier 0, so that its certificate is one of the whole problem.

The working set is tightened by a small margin, whose cost is in the duality gap: the solution satisfies all constraints
exactly, not up to a tolerance. With `joint` levels that cross are coupled, as in `driver.solve`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from quernel.losses import Pinball
from quernel.objective import InMemoryProblem, Problem
from quernel.objective.null_model import null_model
from quernel.solvers.noncrossing.driver import (
    CONSTRAINT_STIFFNESS,
    Nearby,
    as_result,
    build_problem,
    concatenate,
    find_crossings,
    runs,
    separate_point,
    solve_coupled,
)
from quernel.solvers.noncrossing.problem import Array, Duals, Index, NoncrossingProblem, Point, ShapeRows, certify
from quernel.solvers.progress import stop_requested
from quernel.solvers.result import Result
from quernel.solvers.screening import driver as screened


class Constraints(Protocol):
    """R linear constraints  C u + d b >= e  on every level, whose rows are computed when they are needed."""

    def slack(self, coef: Array, intercept: Array) -> Array:
        """C u_k + d b_k - e, (R, q), in units of y."""

    def rows(self, index: Index) -> tuple[Array, Array]:
        """(C, d) of shape (c, M + 1) and e (c,) of some of them."""


@dataclass(frozen=True)
class ShapeOptions:
    """What constraint generation trades."""

    # Relative gap of the first rounds: constraints need not be found on the exact solution.
    first_tol: float = 1e-2
    # Constraints that join per round, for each feature: more make fewer rounds of larger problems.
    joining: float = 2.0
    # Rounds at most: beyond, or after max_iter steps, the best constants are taken.
    max_rounds: int = 60
    # Slack below this, relative to |u| + |b|, may be rounding error of predictions, and counts as a violation.
    rounding: float = 1e-14
    # The first width, as a share of the usual one: the fits without constraints are near.
    first_width: float = 0.3
    # A round begins with this multiple of the width at which the one before ended ...
    widen: float = 10.0
    # ... and expects curves to move by this multiple of the worst violation; all rows are checked afterwards.
    reach: float = 0.5


OPTIONS = ShapeOptions()


def solve(
    problem: Problem,
    *,
    constraints: Constraints,
    joint: bool,
    tol: float = 1e-6,
    max_iter: int = 1000,
    points: Array | None = None,
) -> Result:
    """Minimise F of every level under the constraints, to a relative gap of `tol`.

    Parameters
    ----------
    problem : Problem
        With the pinball loss, an intercept, and features in memory.
    constraints : Constraints
        Constant curves that are quantiles of y must satisfy them.
    joint : bool
        Whether levels must not cross on the rows and at `points` either; if not, each level is a problem of its own.
    tol, max_iter, points : as in `driver.solve`
    """
    loss = problem.loss
    assert isinstance(loss, Pinball)
    reason, instead = "Shape constraints need all features in memory", "fewer components or no constraints"
    problem = problem.in_memory(reason, instead=instead)
    problem.rows.as_array(reason, instead=instead)
    apart = screened.solve(problem, tol=tol, max_iter=max_iter)
    order, rows = np.argsort(loss.levels), np.flatnonzero(problem.rows.share > 0)
    whole = build_problem(problem, apart.null_objective, order, rows, points)
    start = separate_point(whole, apart.take(order), rows)
    search = _Search(whole, constraints, joint, tol, max_iter)
    found = search.run(start)
    if found is start:
        return apart
    if not search.is_solved(found):
        found = _feasible(search, found, problem, order)
    return as_result(apart, search.whole, found, order, rows, problem.rows.share, tol)


class _Search:
    """Rounds of constraint generation: the working set, and which neighbouring levels are coupled."""

    def __init__(
        self, whole: NoncrossingProblem, constraints: Constraints, joint: bool, tol: float, max_iter: int
    ) -> None:
        self.whole, self.constraints, self.joint, self.tol, self.max_iter = whole, constraints, joint, tol, max_iter
        self.working = np.zeros(0, dtype=np.intp)
        self._last: tuple[Point, Index, float] | None = None
        self.linked = np.zeros(len(whole.levels) - 1, dtype=bool)
        self.weight = CONSTRAINT_STIFFNESS / max(int(np.count_nonzero(whole.share)), 1)

    def run(self, point: Point) -> Point:
        """Solve from separate fits, which are returned as they are if they satisfy all constraints."""
        tol, first = max(self.tol, OPTIONS.first_tol), int(point.steps.max(initial=0))
        for _ in range(OPTIONS.max_rounds):
            if stop_requested() or int(point.steps.max()) - first >= self.max_iter:
                break
            joining, worst = self._violated(point)
            crossing = self._crossing(point)
            if len(joining) == 0 and not crossing.any():
                if len(self.working) == 0 or tol == self.tol:
                    break
                tol = self.tol
            self.linked |= crossing
            point = self._extend(point, joining)
            nearby = Nearby(OPTIONS.first_width, OPTIONS.widen * point.width, OPTIONS.reach * worst)
            parts = [
                solve_coupled(self.whole.take(run), None, point.take(run), tol, self.max_iter, nearby)
                for run in runs(self.linked)
            ]
            point = concatenate(parts)
        return point

    def is_solved(self, point: Point) -> bool:
        """Whether the gap is within the tolerance and no constraint is violated."""
        solved = bool(np.all(point.gap <= self.tol * self.whole.scale(point.objective)))
        return solved and len(self._violated(point)[0]) == 0 and not self._crossing(point).any()

    def _crossing(self, point: Point) -> NDArray[np.bool_]:
        """Mask (q - 1,) of levels that cross the next one, and are not coupled with it yet."""
        if not self.joint:
            return np.zeros_like(self.linked)
        return find_crossings(self.whole, point) & ~self.linked

    def _violated(self, point: Point) -> tuple[Index, float]:
        """Violated constraints that are to join the working set, and by how much the worst is violated.

        They are the worst, and some from among all others. The last point's are remembered.
        """
        if self._last is None or self._last[0] is not point:
            self._last = point, *self._find_violated(point)
        return self._last[1], self._last[2]

    def _find_violated(self, point: Point) -> tuple[Index, float]:
        slack = self.constraints.slack(point.coef, point.intercept)
        reach = np.sqrt(np.sum(point.coef**2, axis=0)) + np.abs(point.intercept)
        worst = np.min(slack - OPTIONS.rounding * reach, axis=1)
        worst[self.working] = np.inf
        violated = np.flatnonzero(worst < 0)
        most = max(int(OPTIONS.joining * len(point.coef)), 50)
        if len(violated) <= most:
            return violated, max(-float(worst.min(initial=0.0)), 0.0)
        ranked = violated[np.argsort(worst[violated], kind="stable")]
        half = most // 2
        some = np.concatenate([ranked[:half], ranked[half :: -(-(len(ranked) - half) // half)]])
        return np.sort(some), -float(worst[ranked[0]])

    def _extend(self, point: Point, joining: Index) -> Point:
        """Let constraints join the working set, with multipliers 0."""
        q = len(self.whole.levels)
        rows, target = self.constraints.rows(joining)
        if (known := self.whole.shapes) is not None:
            rows, target = np.vstack([known.rows, rows]), np.append(known.target, target)
        self.working = np.append(self.working, joining)
        self.whole = replace(self.whole, shapes=ShapeRows(rows, target, self.weight))
        known_s = point.duals.s if point.duals.s.size else np.zeros((0, q))
        s = np.vstack([known_s, np.zeros((len(joining), q))])
        return replace(point, duals=replace(point.duals, s=s))


def _feasible(search: _Search, found: Point, problem: InMemoryProblem, order: Index) -> Point:
    """The better of an unfinished fit, if it satisfies all constraints, and the best constants."""
    whole, duals = search.whole, found.duals
    zero = Duals(np.zeros_like(duals.v), np.zeros_like(duals.m), np.zeros_like(duals.s))
    fits = [(np.zeros_like(found.coef), null_model(problem).constant[order])]
    if len(search._violated(found)[0]) == 0 and not search._crossing(found).any():
        fits.append((found.coef, found.intercept))
    tried = [certify(whole, *fit, dual, found.steps) for fit in fits for dual in (duals, zero)]
    return min(tried, key=lambda one: (not np.isfinite(one.gap).all(), one.objective.sum(), one.gap.sum()))
