"""Quantile levels under shape constraints (`estimators`' monotone, convex, lower and upper), by constraint generation.

    minimise  sum_k F_k(u_k, b_k)   subject to   C u_k + d b_k >= e   for every level k,

with far more constraints than a solver needs to see: a difference of neighbouring grid values at every training row.
The levels are first fitted without them. Then the worst of the violated constraints join the working set, and the
problem with this set is solved from the last solution (`solve_coupled`), roughly at first, until no constraint
is violated. Those outside of the working set have multiplier 0, so that its certificate is one of the whole problem.

The solution satisfies all constraints exactly, not up to a tolerance: where rounding error, or an early stop, leaves a
violation, curves that satisfy all constraints strictly are mixed in (`Constraints.interior`), as many as it takes. What
that costs is in the duality gap. With `joint` levels that cross are coupled, as in `noncrossing.solve`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from quernel.losses import Pinball
from quernel.objective import Problem
from quernel.objective.duality_gap import null_model
from quernel.solvers import screening as screened
from quernel.solvers.noncrossing import (
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
from quernel.solvers.noncrossing.problem import (
    SHAPE_ROUNDING,
    Array,
    Duals,
    Index,
    NoncrossingProblem,
    Point,
    ShapeRows,
    certify,
    mix,
    share_to_mix,
)
from quernel.solvers.progress import stop_requested
from quernel.solvers.result import Result


class Constraints(Protocol):
    """R linear constraints  C u + d b >= e  on every level, whose rows are computed when they are needed."""

    def slack(self, coef: Array, intercept: Array) -> Array:
        """C u_k + d b_k - e, (R, q), in units of y."""

    def rows(self, index: Index) -> tuple[Array, Array]:
        """(C, d) of shape (c, M + 1) and e (c,) of some of them."""

    def interior(self, constants: Array, scale: float) -> tuple[Array, Array]:
        """Coefficients (M, q) and intercepts (q,) of uncrossed curves with slack, near constants (q,) in this scale."""


@dataclass(frozen=True)
class ShapeOptions:
    """What constraint generation trades."""

    # Relative gap of the first rounds: constraints need not be found on the exact solution.
    first_tol: float = 1e-2
    # Constraints that join per round, for each feature: more make fewer rounds of larger problems.
    joining: float = 2.0
    # Rounds at most: beyond, or after max_iter steps, the best constants are taken.
    max_rounds: int = 60
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
    tol, max_iter, points : as in `noncrossing.solve`
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
    constants = null_model(problem).constant[order]
    search = _Search(whole, constraints, constants, joint, tol, max_iter)
    found = search.run(start)
    return apart if found is start else as_result(apart, search.whole, found, order, rows, problem.rows.share, tol)


class _Search:
    """Rounds of constraint generation: the working set, and which neighbouring levels are coupled."""

    def __init__(
        self,
        whole: NoncrossingProblem,
        constraints: Constraints,
        constants: Array,
        joint: bool,
        tol: float,
        max_iter: int,
    ) -> None:
        self.constraints, self.constants, self.joint, self.tol, self.max_iter = (
            constraints, constants, joint, tol, max_iter,
        )  # fmt: skip
        self.working = np.zeros(0, dtype=np.intp)
        self.linked = np.zeros(len(whole.levels) - 1, dtype=bool)
        y = whole.y[whole.share > 0]
        interior = constraints.interior(constants, float(np.std(y)))
        self.inner = constraints.slack(*interior)
        none, weight = np.zeros((0, len(interior[0]) + 1)), CONSTRAINT_STIFFNESS / max(len(y), 1)
        self.whole = replace(whole, shapes=ShapeRows(none, none[:, 0], weight, interior))

    def run(self, point: Point) -> Point:
        """Solve from separate fits, which are returned as they are if they satisfy all constraints."""
        rough, first = True, int(point.steps.max(initial=0))
        slack = self.constraints.slack(point.coef, point.intercept)
        if len(self._violated(point, slack)[0]) == 0 and not self._crossing(point).any():
            return point
        point = replace(point, duals=replace(point.duals, s=np.zeros((0, len(self.whole.levels)))))
        for _ in range(OPTIONS.max_rounds):
            if stop_requested() or int(point.steps.max()) - first >= self.max_iter:
                break
            joining, worst = self._violated(point, slack)
            crossing = self._crossing(point)
            if not rough:
                found = self._finish(point, slack)
                if self._is_solved(found):
                    return found
            rough = rough and bool(len(joining) or crossing.any())
            self.linked |= crossing
            point = self._extend(point, joining)
            nearby = Nearby(OPTIONS.first_width, OPTIONS.widen * point.width, OPTIONS.reach * worst, rough)
            tol = max(self.tol, OPTIONS.first_tol) if rough else self.tol
            parts = [
                solve_coupled(self.whole.take(run), None, point.take(run), tol, self.max_iter, nearby)
                for run in runs(self.linked)
            ]
            point = concatenate(parts)
            slack = self.constraints.slack(point.coef, point.intercept)
        return self._finish(point, slack)

    def _is_solved(self, point: Point) -> bool:
        """Whether the point's gap is within the tolerance, for every level."""
        return bool(np.all(point.gap <= self.tol * self.whole.scale(point.objective)))

    def _crossing(self, point: Point) -> NDArray[np.bool_]:
        """Mask (q - 1,) of levels that cross the next one, and are not coupled with it yet."""
        if not self.joint:
            return np.zeros_like(self.linked)
        return find_crossings(self.whole, point) & ~self.linked

    def _violated(self, point: Point, slack: Array) -> tuple[Index, float]:
        """Violated constraints that are to join the working set, and by how much the worst is violated.

        They are the worst, and some from among all others: the worst often lie side by side, where one would do.
        """
        reach = np.sqrt(np.sum(point.coef**2, axis=0)) + np.abs(point.intercept)
        worst = np.min(slack - SHAPE_ROUNDING * reach, axis=1)
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
        """Let constraints join the working set, with multipliers 0, which leaves the duals as good as they were."""
        q, known = len(self.whole.levels), self.whole.shapes
        assert known is not None
        rows, target = self.constraints.rows(joining)
        shapes = replace(known, rows=np.vstack([known.rows, rows]), target=np.append(known.target, target))
        self.working = np.append(self.working, joining)
        self.whole = replace(self.whole, shapes=shapes)
        return replace(point, duals=replace(point.duals, s=np.vstack([point.duals.s, np.zeros((len(joining), q))])))

    def _finish(self, point: Point, slack: Array) -> Point:
        """The better of the point, made feasible by mixing in the interior, and the best constants.

        Constants satisfy every shape, so that no fit is ever worse than the null model.
        """
        return concatenate([self._make_feasible(run, point.take(run), slack[:, run]) for run in runs(self.linked)])

    def _make_feasible(self, run: slice, point: Point, slack: Array) -> Point:
        """The same for a run of coupled levels, with its own duals or none, whichever prove more."""
        problem, duals, fit = self.whole.take(run), point.duals, (point.coef, point.intercept)
        assert problem.shapes is not None
        zero = Duals(np.zeros_like(duals.v), np.zeros_like(duals.m), np.zeros_like(duals.s))
        mixed = mix(fit, problem.shapes.interior, share_to_mix(slack, self.inner[:, run], *fit))
        fits = [mixed, (np.zeros_like(point.coef), self.constants[run])]
        tried = [certify(problem, *one, dual, point.steps) for one in fits for dual in (duals, zero)]
        return min(tried, key=lambda one: (not np.isfinite(one.gap).all(), one.objective.sum(), one.gap.sum()))
