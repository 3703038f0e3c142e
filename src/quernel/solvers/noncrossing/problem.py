"""Non-crossing quantile levels as one convex problem: objective, duals and duality gap.

    minimise  sum_k F_k(u_k, b_k)   subject to   f_ik <= f_i,k+1   for every row i and neighbouring levels k, k + 1

Each constraint has a multiplier m_ik >= 0 and enters the Lagrangian as  share_i m_ik (f_ik - f_i,k+1).  In the
stationarity condition of level k the duals v_k of its loss are then replaced by  e_k = v_k - m_k + m_(k-1).  For all v
in the box of the loss and all m >= 0, with the e_k balanced (mean e_k = 0) if there are intercepts,

    gap = sum_k [mean(loss(r_k) - v_k r_k) + alpha |u_k - Phi'(w e_k) / (2 alpha W)|^2 + mean m_k (f_k+1 - f_k)]

is at least  sum_k F_k - minimum.  It holds for feasible curves: intercepts are first moved apart, by next to nothing,
until no levels cross. In the code a constraint has a weight of its own (`constraint_weight`) in place of share_i.

Shapes (`ShapeRows`) are further linear constraints on every level,  C u_k + d b_k >= e,  with multipliers s_k >= 0.
They add  -weight (C, d)'s_k  to the gradient of level k and  weight s_k'(C u_k + d b_k - e)  to the gap, which holds
where they are satisfied. What is left of a violation is mended by mixing in curves that satisfy them strictly.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from quernel.objective.problem import Centring

Array = NDArray[np.floating]
Index = NDArray[np.intp]

# Crossing that is tolerated without intercepts, which could move levels apart, relative to the standard deviation of y.
CROSSING_TOLERANCE = 1e-7
# Extra distance, relative to the largest curve value, so that curves recomputed with rounding error do not cross.
ROUNDING = 1e-13
# Slack of shapes below this, relative to |u| + |b|, may be rounding error of predictions, and counts as a violation.
SHAPE_ROUNDING = 1e-14


def crossing_tolerance(y: Array, share: Array) -> float:
    """By how much curves without intercepts may cross: nothing could move them apart by what rounding leaves."""
    return CROSSING_TOLERANCE * float(np.sqrt(share @ (y - share @ y) ** 2))


def _no_multipliers() -> Array:
    """The multipliers of no shapes."""
    return np.zeros((0, 0))


@dataclass(frozen=True, eq=False)
class Duals:
    """Duals v (N, q) of the losses, multipliers m (N, q - 1) >= 0 of non-crossing and s (c, q) >= 0 of shapes."""

    v: Array
    m: Array
    s: Array = field(default_factory=_no_multipliers)

    def take(self, run: slice) -> Duals:
        """The duals of a run of neighbouring levels."""
        return Duals(self.v[:, run], self.m[:, run.start : run.stop - 1], self.s[:, run])

    def at(self, rows: Index | slice) -> Duals:
        """The duals of some rows, and of all shapes."""
        return Duals(self.v[rows], self.m[rows], self.s)


@dataclass(frozen=True, eq=False)
class ShapeRows:
    """Constraints  C u_k + d b_k >= e  on every level.

    Attributes
    ----------
    rows : array of shape (c, M + 1), (C, d)
    target : array of shape (c,), e
    weight : float, of each constraint in the Lagrangian
    interior : tuple of arrays of shapes (M, q) and (q,)
        Curves that satisfy the constraints strictly, and do not cross.
    """

    rows: Array
    target: Array
    weight: float
    interior: tuple[Array, Array]

    def take(self, run: slice) -> ShapeRows:
        """The constraints on a run of neighbouring levels."""
        return replace(self, interior=(self.interior[0][:, run], self.interior[1][run]))

    def slack(self, coef: Array, intercept: Array) -> Array:
        """C u_k + d b_k - e, (c, q)."""
        return self.apply(coef, intercept) - self.target[:, None]

    def apply(self, coef: Array, intercept: Array) -> Array:
        """C u_k + d b_k, (c, q)."""
        return self.rows[:, :-1] @ coef + np.outer(self.rows[:, -1], intercept)

    def apply_transpose(self, multipliers: Array) -> Array:
        """weight (C, d)'s, (M + 1, q): what multipliers take from the gradient in coefficients and intercepts."""
        return self.weight * (self.rows.T @ multipliers)


@dataclass(frozen=True, eq=False)
class NoncrossingProblem:
    """q quantile levels over N rows, with the constraint that neighbouring levels do not cross.

    Attributes
    ----------
    features : array of shape (N, M)
    y, share : arrays of shape (N,)
        Targets, and weights w_i / W. Further points where levels must not cross have no target, and share 0.
    constraint_weight : array of shape (N,)
        Weight of a row's constraints, a multiple of its share; for points without a target, that of an average row.
    levels, alpha, null : arrays of shape (q,)
        Quantile levels in ascending order, ridge weights, and objectives F0 of the best constants.
    fit_intercept : bool
    screened_gradient : array of shape (M + 1, q), or 0
        What rows that are left out add to the gradient.
    centring : Centring or None
        The coordinates of features and targets, where they are not the original ones.
    shapes : ShapeRows or None
        Further constraints on every level; they need intercepts.
    """

    features: Array
    y: Array
    share: Array
    constraint_weight: Array
    levels: Array
    alpha: Array
    null: Array
    fit_intercept: bool
    screened_gradient: Array | float = 0.0
    centring: Centring | None = None
    shapes: ShapeRows | None = None

    def take(self, run: slice) -> NoncrossingProblem:
        """The problem of a run of neighbouring levels."""
        shapes = None if self.shapes is None else self.shapes.take(run)
        return replace(self, levels=self.levels[run], alpha=self.alpha[run], null=self.null[run], shapes=shapes)

    def project(self, basis: Array | None) -> NoncrossingProblem:
        """The problem in the coordinates z of u = B z; no basis leaves it as it is.

        B has orthonormal columns, so that |u| = |z|: the penalty is the same.
        """
        if basis is None:
            return self
        assert self.shapes is None
        return replace(self, features=self.features @ basis, centring=None)

    def at(self, rows: Index) -> NoncrossingProblem:
        """The problem of some rows, as if there were no others."""
        return replace(
            self,
            features=self.features[rows],
            y=self.y[rows],
            share=self.share[rows],
            constraint_weight=self.constraint_weight[rows],
            screened_gradient=0.0,
        )

    def curves(self, coef: Array, intercept: Array) -> Array:
        """Curves f = Phi u + b, (N, q)."""
        return self.features @ coef + intercept

    def loss(self, curves: Array) -> Array:
        """Mean pinball loss of every level, (q,)."""
        residual = self.y[:, None] - curves
        return self.share @ np.maximum(self.levels * residual, (self.levels - 1) * residual)

    def objective(self, coef: Array, curves: Array) -> Array:
        """F of every level, (q,)."""
        return self.loss(curves) + self.alpha * np.sum(coef**2, axis=0)

    def scale(self, objective: Array) -> Array:
        """max(F, F0 / 1000) (q,), the scale of relative gaps: where F is tiny beside F0, its digits do not count."""
        return np.maximum(objective, self.null / 1000)

    def slack(self, coef: Array, intercept: Array) -> Array:
        """Slack of the shapes, (c, q)."""
        return np.zeros((0, len(self.levels))) if self.shapes is None else self.shapes.slack(coef, intercept)

    def duals(self, curves: Array, slack: Array, anchors: Duals, width: float) -> Duals:
        """Duals of the smoothed problem: v = clip(r / d + v, tau - 1, tau),  m = max((f_k - f_k+1) / d + m, 0).

        And  s = max(s - slack / d, 0).
        """
        v = np.clip((self.y[:, None] - curves) / width + anchors.v, self.levels - 1, self.levels)
        s = anchors.s if self.shapes is None else np.maximum(anchors.s - slack / width, 0)
        return Duals(v, np.maximum(crossing(curves) / width + anchors.m, 0), s)

    def weighted_dual(self, duals: Duals) -> Array:
        """share e_k = share v_k - c m_k + c m_(k-1) with the constraint weights c, (N, q)."""
        weighted_dual, pushed = self.share[:, None] * duals.v, self.constraint_weight[:, None] * duals.m
        weighted_dual[:, :-1] -= pushed
        weighted_dual[:, 1:] += pushed
        return weighted_dual

    def fenchel_gap(self, curves: Array, slack: Array, duals: Duals) -> tuple[float, float, float]:
        """sum_k mean(loss(r_k) - v_k r_k),  sum_k mean m_k (f_k+1 - f_k)  and  weight sum_k s_k'slack_k.

        The second is negative where levels cross, the third where shapes are violated. The last two vanish at the
        solution (complementary slackness): a constraint is tight, or its multiplier is 0.
        """
        fitted = np.sum(self.share @ (duals.v * (self.y[:, None] - curves)))
        complementarity = np.sum(self.constraint_weight @ (duals.m * crossing(curves)))
        shaped = 0.0 if self.shapes is None else self.shapes.weight * float(np.sum(duals.s * slack))
        return float(self.loss(curves).sum() - fitted), -float(complementarity), shaped

    def apply_phi_t(self, weighted_dual: Array) -> Array:
        """(Phi, 1)'weighted_dual, (M + 1, q): the last row, of the intercepts, is 0 where there are none."""
        mean_dual = weighted_dual.sum(axis=0) if self.fit_intercept else np.zeros(len(self.levels))
        return np.vstack([self.features.T @ weighted_dual, mean_dual])

    def gradient(self, coef: Array, duals: Duals) -> Array:
        """Gradient of the sum over levels in (u_k, b_k), (M + 1, q)."""
        gradient = self.screened_gradient - self.apply_phi_t(self.weighted_dual(duals))
        gradient[:-1] += 2 * self.alpha * coef
        return gradient if self.shapes is None else gradient - self.shapes.apply_transpose(duals.s)

    def dual_residual(self, gradient: Array) -> float:
        """sum_k alpha |u_k - Phi'(w e_k) / (2 alpha W)|^2."""
        return float(np.sum(gradient[:-1] ** 2 / (4 * self.alpha)))

    def crossing_tolerance(self) -> float:
        """By how much levels may cross: not at all with intercepts, which can be moved apart."""
        return 0.0 if self.fit_intercept else crossing_tolerance(self.y, self.share)


@dataclass(frozen=True, eq=False)
class Point:
    """A certified fit: coef (M, q), intercept (q,), duals, F (q,), each level's share of the gap (q,), steps (q,).

    `width` is that of the smoothing at which it was found, 0 if that is unknown.
    """

    coef: Array
    intercept: Array
    duals: Duals
    objective: Array
    gap: Array
    steps: Index
    width: float = 0.0

    def take(self, run: slice) -> Point:
        """The fit of a run of neighbouring levels."""
        coef, intercept, duals = self.coef[:, run], self.intercept[run], self.duals.take(run)
        return Point(coef, intercept, duals, self.objective[run], self.gap[run], self.steps[run], self.width)


def crossing(curves: Array) -> Array:
    """f_k - f_k+1 (N, q - 1), positive where levels cross."""
    return curves[:, :-1] - curves[:, 1:]


def certify(problem: NoncrossingProblem, coef: Array, intercept: Array, duals: Duals, steps: Index) -> Point:
    """Make a fit feasible, by moving intercepts apart and towards the shapes' interior, and compute its duality gap.

    The gap is infinite where the duals cannot be balanced, and where levels without intercepts cross by more than is
    tolerated, and where a shape is violated. Intercepts are those that will be stored: far from zero their rounding may
    let levels cross again, by that much and no more.
    """
    curves, tolerance = problem.curves(coef, intercept), problem.crossing_tolerance()
    if problem.fit_intercept:
        rounding = ROUNDING * np.abs(curves).max()
        apart = np.append(0, np.cumsum(np.maximum(crossing(curves).max(axis=0) + rounding, 0)))
        feasible = intercept = intercept + apart - apart.mean()
        curves = curves + (apart - apart.mean())
        if problem.shapes is not None and (part := share_of_interior(problem.shapes, coef, intercept)) > 0:
            coef, feasible = mix((coef, intercept), problem.shapes.interior, part)
            intercept, curves = feasible, problem.curves(coef, feasible)
        if problem.centring is not None:
            intercept = problem.centring.round_intercept(coef, feasible)
        curves, tolerance = curves + (intercept - feasible), np.ptp(intercept - feasible)
        duals = replace(duals, v=_balance_duals(problem, duals))
    objective, gradient = problem.objective(coef, curves), problem.gradient(coef, duals)
    slack = problem.slack(coef, intercept)
    fenchel = max(sum(problem.fenchel_gap(curves, slack, duals)), 0.0)
    hidden, gradient_error = _rounding_errors(problem, (coef, intercept), duals, gradient, objective.sum() + fenchel)
    residual = np.sqrt(np.sum(gradient[:-1] ** 2, axis=0)) + gradient_error
    gap = fenchel + hidden + float(np.sum(residual**2 / (4 * problem.alpha)))
    crosses = crossing(curves).max(initial=-np.inf) > tolerance
    if np.any(np.abs(gradient[-1]) > 1e-12) or crosses or slack.min(initial=0.0) < 0:
        gap = np.inf
    scale = problem.scale(objective)
    return Point(coef, intercept, duals, objective, gap * scale / scale.sum(), steps)


def share_of_interior(shapes: ShapeRows, coef: Array, intercept: Array) -> float:
    """The part t in [0, 1] of the interior's curves with which  (1 - t) f + t interior  satisfies all constraints.

    The constraints are linear, so that the slack of the mixture is the mixture of the slacks.
    """
    own, inner = shapes.slack(coef, intercept), shapes.slack(*shapes.interior)
    return share_to_mix(own, inner, coef, intercept)


def share_to_mix(own: Array, inner: Array, coef: Array, intercept: Array) -> float:
    """The least t in [0, 1] with  (1 - t) own + t inner >= 0  up to rounding, for slacks (c, q); 1 if there is none.

    A slack that is short by s asks for  t = s / (s + inner).
    """
    reach = np.sqrt(np.sum(coef**2, axis=0)) + np.abs(intercept)
    short = np.maximum(SHAPE_ROUNDING * reach - own, 0)
    held = short > 0
    return float(np.max((short / (short + np.maximum(inner, 0) + (short == 0)))[held], initial=0.0))


def mix(fit: tuple[Array, Array], other: tuple[Array, Array], part: float) -> tuple[Array, Array]:
    """Coefficients and intercepts of  (1 - part) fit + part other."""
    coef, intercept = ((1 - part) * one + part * two for one, two in zip(fit, other, strict=True))
    return coef, intercept


def _rounding_errors(
    problem: NoncrossingProblem, fit: tuple[Array, Array], duals: Duals, gradient: Array, products: float
) -> tuple[float, Array]:
    """What rounding can hide in the Fenchel gap, and in the norm of every level's gradient (q,).

    As in `objective.duality_gap.bound_gap`, with the sizes of all rows at hand; `products` bounds the sum over levels
    of mean |v r|.
    """
    (coef, intercept), eps, (n, m) = fit, np.finfo(float).eps, problem.features.shape
    rows, features = eps * (np.sqrt(n) + 2), eps * (np.sqrt(m) + 2)
    norms = np.sqrt(np.einsum("ij,ij->i", problem.features, problem.features))
    linear = np.outer(norms, np.sqrt(np.sum(coef**2, axis=0)))
    reach = linear + np.abs(intercept)
    errors = features * linear + 2 * eps * (reach + np.abs(problem.y)[:, None])
    pushed = problem.constraint_weight[:, None] * duals.m
    tied = np.sum(pushed * (errors[:, :-1] + errors[:, 1:] + rows * (reach[:, :-1] + reach[:, 1:])))
    size = problem.share[:, None] * np.abs(duals.v)
    size[:, :-1] += pushed
    size[:, 1:] += pushed
    unbalanced = np.zeros(len(problem.levels))
    if problem.fit_intercept:  # exactly balanced duals are v moved by this share towards an end of the box
        mean = problem.share @ duals.v
        room = np.minimum(mean - (problem.levels - 1), problem.levels - mean)
        surplus = np.abs(gradient[-1]) + rows * size.sum(axis=0)
        unbalanced = np.clip(np.divide(surplus, room, out=np.ones_like(room), where=room > 0), 0, 1)
    moved = problem.share @ (np.abs(problem.y)[:, None] + reach)
    hidden = np.sum(problem.share @ errors) + tied + 2 * rows * products + unbalanced @ moved
    gradient_error = rows * (norms @ size) + unbalanced * (problem.share @ norms)
    if (shapes := problem.shapes) is not None:
        lengths = np.sqrt(np.einsum("ij,ij->i", shapes.rows, shapes.rows))
        held = shapes.weight * (lengths @ duals.s)
        hidden += 2 * (rows + features) * float(held @ (np.sqrt(np.sum(coef**2, axis=0)) + np.abs(intercept)))
        gradient_error = gradient_error + (rows + features) * held
    return float(hidden), gradient_error


def _balance_duals(problem: NoncrossingProblem, duals: Duals) -> Array:
    """v moved towards an end of its box, all rows of a level by the same share, until mean e_k = 0.

    A convex combination with the end keeps every v in its box, wherever it is; the multipliers stay as they are.
    """
    surplus = problem.weighted_dual(duals).sum(axis=0)
    if problem.shapes is not None:
        surplus = surplus + problem.shapes.apply_transpose(duals.s)[-1]
    end = np.where(surplus > 0, problem.levels - 1, problem.levels)
    room = problem.share @ duals.v - end * problem.share.sum()
    part = np.divide(surplus, room, out=np.zeros_like(room), where=room != 0)
    return duals.v + np.clip(part, 0, 1) * (end - duals.v)
