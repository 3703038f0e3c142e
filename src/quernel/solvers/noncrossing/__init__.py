"""Quantile levels fitted jointly under non-crossing constraints (`estimators`' noncrossing="joint").

The levels are first fitted separately. Only runs of neighbouring levels that cross somewhere are then solved jointly
(`solve_coupled`); the others are optimal as they are.

Coupled levels are solved by semismooth Newton on the augmented Lagrangian. With multipliers (`anchors`) v, m and a
width d both kinds of duals are clipped lines, v+ = clip(r / d + v, tau - 1, tau) and m+ = max(0, (f_k - f_k+1) / d +
m). The rest is as in `solvers.newton`: Newton steps with exact line search, then the duals become multipliers and d
shrinks. The Hessian is block-tridiagonal in the levels (`linear_system.BlockTridiagonal`).

Rows far from every kink have duals at an end of their box, which stay there. They are screened: Newton steps see the
active rows only, and the others as one linear term. When that problem is solved all rows are checked; where a screened
one has moved over a kink, the problem is solved again with all rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from quernel.losses import Pinball
from quernel.objective import InMemoryProblem, Problem
from quernel.objective.duality_gap import null_model, relative
from quernel.solvers import screening
from quernel.solvers.linear_system import BlockTridiagonal
from quernel.solvers.newton import exact_step
from quernel.solvers.noncrossing.problem import Array, Duals, Index, NoncrossingProblem, Point, certify, crossing
from quernel.solvers.progress import Progress, report, stop_requested
from quernel.solvers.result import Result, statuses
from quernel.solvers.screening.sampling import principal_basis

Mask = NDArray[np.bool_]
Active = tuple[Mask, Mask, Mask]
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
    apart = screening.solve(problem, tol=tol, max_iter=max_iter)
    order, rows = np.argsort(loss.levels), np.flatnonzero(problem.rows.share > 0)
    whole = build_problem(problem, apart.null_objective, order, rows, points)
    start = separate_point(whole, apart.take(order), rows)
    if not np.any(find_crossings(whole, start)):
        return apart
    basis = principal_basis(problem, len(rows), tol, apart.null_objective)
    found = _solve_runs(whole, basis, start, tol, max_iter)
    if not found.gap.sum() <= tol * whole.scale(found.objective).sum():
        found = _best_of(whole, found, start, null_model(problem).constant[order])
    return as_result(apart, whole, found, order, rows, problem.rows.share, tol)


def as_result(
    apart: Result, whole: NoncrossingProblem, found: Point, order: Index, rows: Index, share: Array, tol: float
) -> Result:
    """The fit of the levels in ascending `order` as a result, in the order of the separate fits `apart`.

    Its duals are e_k over the rows' shares: u_k = Phi'(w e_k) / (2 alpha W) at the optimum, as for a separate level.
    """
    dual = np.zeros_like(apart.dual)
    dual[np.ix_(rows, order)] = whole.weighted_dual(found.duals)[: len(rows)] / share[rows, None]
    back, rel = np.argsort(order), relative(found.gap, found.objective, whole.null)
    return replace(
        apart, coef=found.coef[:, back], intercept=found.intercept[back], dual=dual, objective=found.objective[back],
        gap=found.gap[back], relative_gap=rel[back], status=statuses(rel[back], tol), iterations=found.steps[back],
    )  # fmt: skip


def build_problem(
    problem: InMemoryProblem, null: Array, order: Index, rows: Index, points: Array | None
) -> NoncrossingProblem:
    """The constrained problem: levels in ascending order, over the rows with positive weight and the further points.

    A further point is a row of share 0, so that its loss counts nothing and its constraints count as an average row's.
    """
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


def separate_point(whole: NoncrossingProblem, apart: Result, rows: Index) -> Point:
    """The separate fits as a starting point, with constraint multipliers 0: optimal wherever they do not cross."""
    v = np.zeros((len(whole.y), len(whole.levels)))
    v[: len(rows)] = apart.dual[rows]
    duals = Duals(v, np.zeros((len(v), len(whole.levels) - 1)))
    return Point(apart.coef, apart.intercept, duals, apart.objective, apart.gap, apart.iterations)


def find_crossings(problem: NoncrossingProblem, point: Point) -> Mask:
    """Mask (q - 1,) of levels that cross the next one somewhere."""
    worst = crossing(problem.curves(point.coef, point.intercept)).max(axis=0, initial=-np.inf)
    return worst > problem.crossing_tolerance()


def _solve_runs(whole: NoncrossingProblem, basis: Array | None, start: Point, tol: float, max_iter: int) -> Point:
    """Solve runs of crossing neighbours jointly, and repeat: levels that moved may cross others that did not before.

    Links are never taken back, so that there are at most q - 1 repetitions.
    """
    point, linked = start, np.zeros(len(whole.levels) - 1, dtype=bool)
    while not stop_requested() and np.any(new := find_crossings(whole, point) & ~linked):
        linked |= new
        parts = []
        for run in runs(linked):
            part, alone = point.take(run), run.stop - run.start == 1
            parts.append(part if alone else solve_coupled(whole.take(run), basis, part, tol, max_iter))
        point = concatenate(parts)
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


def runs(linked: Mask) -> list[slice]:
    """Maximal runs of linked neighbours, as slices; a level without links is a run of its own.

    Constraints between two runs have multiplier 0, so that the gap of the whole is the sum of theirs.
    """
    ends = [0, *(np.flatnonzero(~linked) + 1), len(linked) + 1]
    return [slice(int(first), int(last)) for first, last in pairwise(ends)]


def concatenate(parts: list[Point]) -> Point:
    """Concatenate runs; the constraint between one run and the next has multiplier 0."""
    free = np.zeros((len(parts[0].duals.v), 1))
    m = [piece for part in parts for piece in (free, part.duals.m)][1:]
    v, s = [part.duals.v for part in parts], [part.duals.s for part in parts]
    duals = Duals(np.hstack(v), np.hstack(m), np.hstack(s))
    names = ("intercept", "objective", "gap", "steps")
    intercept, objective, gap, steps = (np.concatenate([getattr(part, name) for part in parts]) for name in names)
    width = max(part.width for part in parts)
    return Point(np.hstack([part.coef for part in parts]), intercept, duals, objective, gap, steps, width)


# Coupled levels


ALL: Index | slice = slice(None)


@dataclass(frozen=True)
class CoupledOptions:
    """What the method trades for coupled levels; the options of `solvers.newton` have other values there."""

    # Factor by which the width shrinks: gently, because one step serves all levels, and the slowest holds up the rest.
    shrink: float = 0.6
    # The first width is that of a band around each curve with so many rows per feature ...
    band_rows_per_feature: float = 25.0
    # ... and at least this share of the standard deviation of y.
    min_first_width: float = 1e-3
    # A row is active within this multiple of its curves' last change from a kink.
    active_moves: float = 3.0
    # The inner problem counts as solved when the Newton decrement is at most this share of the Fenchel gap.
    decrement_tolerance: float = 0.1
    # After so many steps the inner problem is given up, as steps may go back and forth between kinks, and the width is
    # enlarged by this factor.
    inner_steps: int = 100
    widen: float = 10.0
    # The line search ends at this share of the first derivative.
    slope_tolerance: float = 0.1
    # Smallest ratio of ridge to Hessian: widths do not shrink below it, where steps would be rounding error.
    condition: float = 1e-13
    # The gap is certified from this multiple of the goal on; making curves feasible costs a little, too.
    certify_from: float = 2.0
    # With a larger share of active rows than this, none is screened.
    max_active_share: float = 0.7


OPTIONS = CoupledOptions()


@dataclass(frozen=True, eq=False)
class _Iterate:
    """Coefficients (M, q), intercepts (q,), and the curves (N, q) of a problem's rows."""

    coef: Array
    intercept: Array
    curves: Array

    def at(self, rows: Index | slice) -> _Iterate:
        """The iterate with the curves of some rows."""
        return replace(self, curves=self.curves[rows])

    def moved(self, move: Array, change: Array, length: float) -> _Iterate:
        """The iterate after a step of this length along a direction (M + 1, q) that changes the curves by `change`."""
        coef, intercept = self.coef + length * move[:-1], self.intercept + length * move[-1]
        return _Iterate(coef, intercept, self.curves + length * change)


@dataclass(frozen=True, eq=False)
class _Evaluation:
    """The smoothed problem at an iterate: duals, gradient (M + 1, q), and the two parts of the gap."""

    duals: Duals
    gradient: Array
    fenchel_gap: float
    dual_residual: float

    @property
    def gap(self) -> float:
        """Approximately the gap that a certificate would prove."""
        return self.fenchel_gap + self.dual_residual


@dataclass(frozen=True)
class Nearby:
    """What is known of a start near the solution: the first width, as a share of the usual one, or if known the width.

    And how far curves may move at most until the solution: rows that are farther from a kink are screened at once.
    A `rough` solution need not be feasible, and has no certificate: its gap is an estimate.
    """

    width_share: float
    width: float
    reach: float
    rough: bool


def solve_coupled(
    whole: NoncrossingProblem,
    basis: Array | None,
    start: Point,
    tol: float,
    max_iter: int,
    nearby: Nearby | None = None,
) -> Point:
    """Solve the coupled problem from levels fitted separately, in the basis if there is one."""
    all_rows, coef = whole.project(basis), start.coef if basis is None else basis.T @ start.coef
    iterate, anchors = _Iterate(coef, start.intercept, all_rows.curves(coef, start.intercept)), start.duals
    first_width, goal = _first_width(all_rows, iterate.curves), tol * whole.scale(start.objective).sum()
    width, rough = first_width, nearby is not None and nearby.rough
    if nearby is not None:
        width = min(nearby.width or np.inf, nearby.width_share * first_width)
    # Levels that cross by rounding error only, e.g. where all interpolate, are optimal once they are moved apart.
    best = certify(whole, start.coef, start.intercept, start.duals, start.steps)
    if best.gap.sum() <= goal:
        return best
    floor, steps = min(_min_width(all_rows), 1e-4 * first_width), 0
    restricted, rows = all_rows, ALL
    if nearby is not None:
        rows = _find_active_rows(all_rows, iterate.curves, anchors, np.full(len(all_rows.y), nearby.reach))
        restricted = _restrict(all_rows, rows, iterate.coef, _evaluate(all_rows, iterate, anchors, width))
    while True:
        most = min(max_iter - steps, OPTIONS.inner_steps)
        here, system, taken = _inner(restricted, iterate.at(rows), anchors.at(rows), width, goal, most)
        here, steps = replace(here, curves=all_rows.curves(here.coef, here.intercept)), steps + taken
        evaluation = _evaluate(all_rows, here, anchors, width)
        last = steps >= max_iter or stop_requested() or (restricted is all_rows and system is None)
        if restricted is all_rows or (system is not None and _inner_converged(evaluation, system, goal)):
            moved, iterate = np.abs(here.curves - iterate.curves).max(axis=1), here
            anchors = evaluation.duals
            width = OPTIONS.widen * width if taken == OPTIONS.inner_steps else max(OPTIONS.shrink * width, floor)
            report(Progress(steps, len(whole.levels), tol * evaluation.gap / goal))
        elif not last:  # a screened row has moved over a kink: solve again, with all rows
            restricted, rows = all_rows, ALL
            continue
        if rough and (last or evaluation.gap <= goal):
            gap = np.full(len(whole.levels), evaluation.gap / len(whole.levels))
            objective = whole.objective(iterate.coef, iterate.curves)
            return Point(iterate.coef, iterate.intercept, anchors, objective, gap, start.steps + steps, width)
        if last or evaluation.gap <= OPTIONS.certify_from * goal:
            found = certify(whole, _to_features(basis, iterate.coef), iterate.intercept, anchors, start.steps + steps)
            best = found if found.gap.sum() <= best.gap.sum() else best
            goal = tol * whole.scale(found.objective).sum()
            if last or best.gap.sum() <= goal:
                return replace(best, width=width)
            if basis is not None and 4 * _gap_within(all_rows, iterate, anchors) <= goal < found.gap.sum():
                # The basis is too small: continue with all features.
                all_rows, iterate, basis = whole, replace(iterate, coef=_to_features(basis, iterate.coef)), None
                evaluation = replace(evaluation, gradient=all_rows.gradient(iterate.coef, anchors))
        active_rows = _find_active_rows(all_rows, iterate.curves, anchors, OPTIONS.active_moves * moved)
        if len(active_rows) > OPTIONS.max_active_share * len(all_rows.y):
            rows, restricted = ALL, all_rows
        else:
            rows, restricted = active_rows, _restrict(all_rows, active_rows, iterate.coef, evaluation)


def _to_features(basis: Array | None, coef: Array) -> Array:
    """Coefficients of all features, from those in the basis."""
    return coef if basis is None else basis @ coef


def _gap_within(problem: NoncrossingProblem, iterate: _Iterate, duals: Duals) -> float:
    """The gap of the problem within the basis: if it is closed and that of the whole is not, the basis is too small."""
    return float(certify(problem, iterate.coef, iterate.intercept, duals, np.zeros(len(problem.levels), int)).gap.sum())


def _inner(
    problem: NoncrossingProblem, iterate: _Iterate, anchors: Duals, width: float, goal: float, max_steps: int
) -> tuple[_Iterate, BlockTridiagonal | None, int]:
    """Newton steps on the smoothed problem; returns the iterate, the last Newton system and the number of steps.

    The system is None where it could not be factorized any more. The first direction uses the rows whose multipliers
    are strictly inside their box: those active at the new, smaller width would be few, and the step far too long.
    """
    system = None
    for step in range(max_steps):
        if stop_requested():
            return iterate, system, step
        if system is None:
            duals, active = _linear_model(problem, iterate, anchors, width)
            gradient = problem.gradient(iterate.coef, duals)
        else:
            evaluation = _evaluate(problem, iterate, anchors, width)
            if _inner_converged(evaluation, system, goal):
                return iterate, system, step
            active, gradient = _active(problem, evaluation.duals), evaluation.gradient
        try:
            system = _system(problem, active, width)
        except np.linalg.LinAlgError:  # limit of floating point
            return iterate, None, step
        move = -system.solve(gradient)
        change = problem.curves(move[:-1], move[-1])
        length = _exact_step(problem, iterate, move, change, anchors, width, float(np.sum(gradient * move)))
        iterate = iterate.moved(move, change, length)
    return iterate, system, max_steps


def _evaluate(problem: NoncrossingProblem, iterate: _Iterate, anchors: Duals, width: float) -> _Evaluation:
    """Duals, gradient and the two parts of the gap of the smoothed problem at an iterate."""
    slack = problem.slack(iterate.coef, iterate.intercept)
    duals = problem.duals(iterate.curves, slack, anchors, width)
    gradient, (fitted, *tied) = problem.gradient(iterate.coef, duals), problem.fenchel_gap(iterate.curves, slack, duals)
    return _Evaluation(duals, gradient, fitted + sum(map(abs, tied)), problem.dual_residual(gradient))


def _inner_converged(evaluation: _Evaluation, system: BlockTridiagonal, goal: float) -> bool:
    """Whether the inner problem is solved well enough for a multiplier step.

    That is to a share of the Fenchel gap or, once that is within the goal, until the dual residual is, too.
    """
    if evaluation.fenchel_gap <= 0.3 * goal and evaluation.dual_residual <= 0.2 * goal:
        return True
    decrement = abs(float(np.sum(evaluation.gradient * system.solve(evaluation.gradient)))) / 2  # by the last Hessian
    if decrement <= 1e-12 * goal:  # below what floating point can improve
        return True
    return evaluation.fenchel_gap > 0.3 * goal and decrement <= OPTIONS.decrement_tolerance * evaluation.fenchel_gap


def _find_active_rows(problem: NoncrossingProblem, curves: Array, anchors: Duals, reach: Array) -> Index:
    """Rows whose multipliers are not clipped, and those within `reach` (N,) of a kink or a crossing.

    The duals of all others are at an end of their box, and stay there unless a curve moves by more than that.
    """
    inside, pressed, _ = _active(problem, anchors)
    apart = -crossing(curves).max(axis=1, initial=-np.inf)
    nearest = np.minimum(np.abs(problem.y[:, None] - curves).min(axis=1), apart)
    return np.flatnonzero((nearest <= reach) | inside.any(axis=1) | pressed.any(axis=1))


def _restrict(problem: NoncrossingProblem, rows: Index, coef: Array, evaluation: _Evaluation) -> NoncrossingProblem:
    """The problem of these rows, with the gradient of the others fixed at the evaluated duals.

    It is exact while these duals stay clipped: clipped duals do not depend on the curves.
    """
    restricted = problem.at(rows)
    own = restricted.gradient(coef, evaluation.duals.at(rows))
    return replace(restricted, screened_gradient=evaluation.gradient - own)


def _active(problem: NoncrossingProblem, duals: Duals) -> Active:
    """Masks of duals that are not clipped: v (N, q), m (N, q - 1) and s (c, q)."""
    return (duals.v > problem.levels - 1) & (duals.v < problem.levels), duals.m > 0, duals.s > 0


def _system(problem: NoncrossingProblem, active: Active, width: float) -> BlockTridiagonal:
    """The Newton system with these active losses and constraints."""
    losses = active[0] * (problem.share[:, None] / width)
    constraints = active[1] * (problem.constraint_weight[:, None] / width)
    fallback = problem.share.max() / width
    shaped: list[Array] = []
    if (shapes := problem.shapes) is not None:
        scaled = np.sqrt(shapes.weight / width) * shapes.rows
        shaped = [scaled[held] for held in active[2].T]
    return BlockTridiagonal(
        problem.features, problem.alpha, problem.fit_intercept, losses, constraints, fallback, shaped
    )


def _linear_model(problem: NoncrossingProblem, iterate: _Iterate, anchors: Duals, width: float) -> tuple[Duals, Active]:
    """Duals linearised at the multipliers, as if those inside their box were never clipped, and these rows' masks.

    Multipliers near the solution are at an end of the box for the rows that will end there: which rows are active is
    known before the width is small enough for residuals to tell. Crossings join, although their multiplier is still 0.
    """
    inside, pressed, held = _active(problem, anchors)
    curves, s = iterate.curves, anchors.s
    pressed = pressed | (crossing(curves) > 0)
    v = anchors.v + inside * (problem.y[:, None] - curves) / width
    if problem.shapes is not None:
        slack = problem.slack(iterate.coef, iterate.intercept)
        held = held | (slack < 0)
        s = s - held * slack / width
    return Duals(v, anchors.m + pressed * crossing(curves) / width, s), (inside, pressed, held)


def _exact_step(
    problem: NoncrossingProblem,
    iterate: _Iterate,
    move: Array,
    change: Array,
    anchors: Duals,
    width: float,
    first_slope: float,
) -> float:
    """Exact line search: the step length at which the derivative of the smoothed sum vanishes.

    The sum is convex and piecewise quadratic along the direction, and a probe costs no product with the features.
    """
    from quernel.objective.numba_kernels import probe_levels

    ridge = 2 * problem.alpha @ np.sum(iterate.coef * move[:-1], axis=0)
    along = float(np.sum(problem.screened_gradient * move) + ridge)
    square = 2 * problem.alpha @ np.sum(move[:-1] ** 2, axis=0)
    rows, shapes = (problem.y, problem.share, problem.constraint_weight, problem.levels), problem.shapes
    if shapes is not None:
        slack, slack_change = problem.slack(iterate.coef, iterate.intercept), shapes.apply(move[:-1], move[-1])

    def derivatives(length: Array) -> tuple[Array, Array]:
        slope, curvature = probe_levels(*rows, iterate.curves, change, anchors.v, anchors.m, width, float(length[0]))
        if shapes is not None:
            pressure = np.maximum(anchors.s - (slack + length * slack_change) / width, 0)
            slope -= shapes.weight * float(np.sum(pressure * slack_change))
            curvature += shapes.weight / width * float(np.sum(slack_change[pressure > 0] ** 2))
        return slope + along + length * square, np.array([curvature + square])

    return float(exact_step(derivatives, np.array([abs(first_slope)]), OPTIONS.slope_tolerance)[0])


def _first_width(problem: NoncrossingProblem, curves: Array) -> float:
    """Median over levels of the absolute residual below which there are `band_rows_per_feature` rows per feature.

    At least `min_first_width` of the standard deviation of y: interpolating curves have residuals of rounding error.
    With fewer active rows than features a Newton step would be determined by the ridge alone in some directions.
    """
    rows = problem.share > 0
    y, size = problem.y[rows], np.abs(problem.y[rows, None] - curves[rows])
    nth = min(int(OPTIONS.band_rows_per_feature * problem.features.shape[1]), len(size) // 2)
    width = float(np.median(np.partition(size, nth, axis=0)[nth]))
    return max(width, OPTIONS.min_first_width * float(np.std(y))) or 1.0


def _min_width(problem: NoncrossingProblem) -> float:
    """The width at which the ridge is `condition` times the largest contribution of one row's constraints.

    Below, the ridge would be lost beside these in the sums, and Newton directions be rounding error.
    """
    weight, squares = problem.constraint_weight, np.einsum("ij,ij->i", problem.features, problem.features)
    size = float(weight @ squares) / weight.sum()
    return OPTIONS.condition * size * float(weight.max()) / (2 * float(problem.alpha.min()))
