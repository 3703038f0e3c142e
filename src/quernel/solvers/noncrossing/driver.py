"""Quantile levels fitted jointly under non-crossing constraints (`estimators`' noncrossing="joint").

The levels are first fitted separately. Only runs of neighbouring levels that cross somewhere are then solved jointly
(`newton.solve_coupled`); the others are optimal as they are.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from quernel.losses import Pinball
from quernel.objective import InMemoryProblem, Problem
from quernel.objective.duality_gap import relative
from quernel.objective.null_model import null_model
from quernel.solvers.noncrossing.newton import solve_coupled
from quernel.solvers.noncrossing.problem import Array, Duals, Index, NoncrossingProblem, Point, certify, crossing
from quernel.solvers.progress import stop_requested
from quernel.solvers.result import Result, statuses
from quernel.solvers.screening import driver
from quernel.solvers.screening.sampling import principal_basis

# Weight of a row's constraints relative to its loss: crossings are the last to vanish, and a larger weight speeds that.
CONSTRAINT_STIFFNESS = 40.0


def solve(problem: Problem, *, tol: float = 1e-6, max_iter: int = 1000, points: Array | None = None) -> Result:
    """Minimise the sum of F over all levels, with no level crossing the next on any row, to a relative gap of `tol`.

    Parameters
    ----------
    problem : Problem
        With the pinball loss, and features in memory.
    tol : float
    max_iter : int
    points : array of shape (p, M) or None
        Features of further points at which levels must not cross.

    Returns
    -------
    Result
        The gap of the sum is divided among the levels in proportion to their objectives; `dual` holds the e_k of
        `noncrossing.problem`.
    """
    loss = problem.loss
    if not isinstance(loss, Pinball):
        raise ValueError(f"Joint levels need the Pinball loss; got {type(loss).__name__}.")
    reason, instead = "noncrossing='joint' needs all features in memory", "noncrossing='rearrange'"
    problem = problem.in_memory(reason, instead=instead)
    problem.rows.as_array(reason, instead=instead)
    apart = driver.solve(problem, tol=tol, max_iter=max_iter)
    order, rows = np.argsort(loss.levels), np.flatnonzero(problem.rows.share > 0)
    whole = build_problem(problem, apart.null_objective, order, rows, points)
    start = _start(whole, apart.take(order), rows)
    if not np.any(_find_crossings(whole, start)):
        return apart
    basis = principal_basis(problem, len(rows), tol, apart.null_objective)
    found = _solve_runs(whole, basis, start, tol, max_iter)
    if not found.gap.sum() <= tol * whole.scale(found.objective).sum():
        found = _best_of(whole, found, start, null_model(problem).constant[order])
    dual, share = np.zeros_like(apart.dual), problem.rows.share[rows, None]
    dual[np.ix_(rows, order)] = whole.weighted_dual(found.duals)[: len(rows)] / share
    back, rel = np.argsort(order), relative(found.gap, found.objective, whole.null)
    return replace(
        apart, coef=found.coef[:, back], intercept=found.intercept[back], dual=dual, objective=found.objective[back],
        gap=found.gap[back], relative_gap=rel[back], status=statuses(rel[back], tol), iterations=found.steps[back],
    )  # fmt: skip


def build_problem(
    problem: InMemoryProblem, null: Array, order: Index, rows: Index, points: Array | None
) -> NoncrossingProblem:
    """The constrained problem: levels in ascending order, over the rows with positive weight and the further points."""
    features, y, share = problem.rows.as_array("Joint levels"), problem.rows.target, problem.rows.share
    if len(rows) < len(y):
        features, y, share = features[rows], y[rows], share[rows]
    constraint_weight = CONSTRAINT_STIFFNESS * share
    if points is not None and len(points):
        none = np.zeros(len(points))
        features, y, share = np.vstack([features, points]), np.append(y, none), np.append(share, none)
        constraint_weight = np.append(constraint_weight, none + CONSTRAINT_STIFFNESS / len(rows))
    assert isinstance(problem.loss, Pinball)
    levels, alpha = problem.loss.levels[order], problem.alpha[order]
    return NoncrossingProblem(
        features, y, share, constraint_weight, levels, alpha, null[order], problem.fit_intercept,
        centring=problem.centring,
    )  # fmt: skip


def _start(whole: NoncrossingProblem, apart: Result, rows: Index) -> Point:
    """The separate fits as a starting point, with constraint multipliers 0."""
    v = np.zeros((len(whole.y), len(whole.levels)))
    v[: len(rows)] = apart.dual[rows]
    duals = Duals(v, np.zeros((len(v), len(whole.levels) - 1)))
    return Point(apart.coef, apart.intercept, duals, apart.objective, apart.gap, apart.iterations)


def _find_crossings(problem: NoncrossingProblem, point: Point) -> NDArray[np.bool_]:
    """Mask (q - 1,) of levels that cross the next one somewhere."""
    worst = crossing(problem.curves(point.coef, point.intercept)).max(axis=0, initial=-np.inf)
    return worst > problem.crossing_tolerance()


def _solve_runs(whole: NoncrossingProblem, basis: Array | None, start: Point, tol: float, max_iter: int) -> Point:
    """Solve runs of crossing neighbours jointly, and repeat: levels that moved may cross others that did not before."""
    point, linked = start, np.zeros(len(whole.levels) - 1, dtype=bool)
    while not stop_requested() and np.any(new := _find_crossings(whole, point) & ~linked):
        linked |= new
        parts = []
        for run in _runs(linked):
            part, alone = point.take(run), run.stop - run.start == 1
            parts.append(part if alone else solve_coupled(whole.take(run), basis, part, tol, max_iter))
        point = _concatenate(parts)
    return point


def _best_of(whole: NoncrossingProblem, point: Point, start: Point, constants: Array) -> Point:
    """The best of an unfinished fit, the separate ones and the best constants (q,), with the duals that prove most.

    Levels of the first two are moved apart where they cross; constants never do.
    """
    fits = (point.coef, point.intercept), (start.coef, start.intercept), (np.zeros_like(point.coef), constants)
    zero = Duals(np.zeros_like(point.duals.v), np.zeros_like(point.duals.m))
    duals = (point.duals, start.duals, zero)
    found = [certify(whole, *fit, dual, point.steps) for fit in fits for dual in duals]
    feasible = [one for one in found if np.isfinite(one.gap).all()]
    return min(feasible, key=lambda one: (one.objective.sum(), one.gap.sum()))


def _runs(linked: NDArray[np.bool_]) -> list[slice]:
    """Maximal runs of linked neighbours, as slices; a level without links is a run of its own."""
    ends = [0, *(np.flatnonzero(~linked) + 1), len(linked) + 1]
    return [slice(int(first), int(last)) for first, last in pairwise(ends)]


def _concatenate(parts: list[Point]) -> Point:
    """Concatenate runs; the constraint between one run and the next has multiplier 0."""
    free = np.zeros((len(parts[0].duals.v), 1))
    m = [piece for part in parts for piece in (free, part.duals.m)][1:]
    duals = Duals(np.hstack([part.duals.v for part in parts]), np.hstack(m))
    names = ("intercept", "objective", "gap", "steps")
    intercept, objective, gap, steps = (np.concatenate([getattr(part, name) for part in parts]) for name in names)
    return Point(np.hstack([part.coef for part in parts]), intercept, duals, objective, gap, steps)
