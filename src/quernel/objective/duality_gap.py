"""The duality gap: how far a fit can be from the optimum, for any coefficients and any duals.

For duals v in the domain of the conjugate, with mean v = 0 (balanced) if there is an intercept,

    gap = mean(loss(r) + conjugate(v) - v r) + alpha |u - Phi'(w v) / (2 alpha W)|^2  >=  F(u, b) - min F.

The first part is the Fenchel gap, the second the dual residual: how far v is from u = Phi'(w v) / (2 alpha W), the
stationarity condition. Neither u nor v need be optimal; a bad v only makes the bound larger. `certify` takes the
multipliers of the state as v, `certify_gradient` the slopes of the loss at the residuals.

Computed in floating point, the gap must hold for the numbers that are stored, in exact arithmetic: `bound_gap` adds
what rounding can have hidden in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quernel.data import Block, BlockState, RowStateLike, sum_tuples
from quernel.losses import Loss
from quernel.objective import DualSums
from quernel.objective.null_model import NullModel, bound_errors, bound_slopes, weak_ridge
from quernel.objective.problem import Problem, require_finite, residuals

Array = NDArray[np.floating]


@dataclass(frozen=True, eq=False)
class FullGradient:
    """Sums over all rows at a fit with the slopes of the loss as duals v, one entry per column.

    phi_t_positive and phi_t_negative (M, q) are the parts of Phi'(w s v)/W from positive and from negative s v, and
    positive and negative (q,) the absolute sums of these duals; kept apart, so that either part can be shrunk.
    """

    loss: Array
    phi_t_positive: Array
    phi_t_negative: Array
    positive: Array
    negative: Array

    @property
    def phi_t_dual(self) -> Array:
        """Phi'(w v)/W."""
        return self.phi_t_positive + self.phi_t_negative

    @property
    def mean_dual(self) -> Array:
        """mean v."""
        return self.positive - self.negative


def full_gradient(problem: Problem, state: RowStateLike, coef: Array, intercept: Array) -> FullGradient:
    """Set residuals to those of (coef, intercept), multipliers to the slopes there, and sum, in one pass."""
    found = FullGradient(
        *problem.rows.map_reduce(_full_gradient_block, state, (problem.loss, coef, intercept), reduce=sum_tuples)
    )
    require_finite(found.loss)
    return found


def _full_gradient_block(block: Block, state: BlockState, args: tuple[Loss, Array, Array]) -> tuple[Array, ...]:
    """The fields of `FullGradient` over one block; sets residuals and multipliers."""
    from quernel.objective.numba_kernels import phi_t_dual_by_sign

    loss, coef, intercept = args
    residual = residuals(block, loss, coef, intercept)
    state["residual"], state["anchor"] = residual, loss.slope(residual)
    _, sign = loss.margin_transform(block.targets)
    weighted = (state["anchor"] * sign * block.share[:, None]).T
    phi_t_positive, phi_t_negative = np.zeros((2, *coef.T.shape))
    phi_t_dual_by_sign(np.ascontiguousarray(block.features), weighted, phi_t_positive, phi_t_negative)
    positive = np.maximum(weighted, 0).sum(axis=1)
    return (
        block.share @ loss.value(residual),
        phi_t_positive.T,
        phi_t_negative.T,
        positive,
        positive - weighted.sum(axis=1),
    )


def fenchel_gap(problem: Problem, state: RowStateLike, factors: tuple[Array, Array]) -> Array:
    """mean(loss + conjugate(v) - v r) (q,) for the multipliers, positive and negative ones times these factors."""
    (mean,) = problem.rows.map_rows(_fenchel_gap_block, state, (problem.loss, factors), reduce=sum_tuples)
    return mean


def _fenchel_gap_block(block: Block, state: BlockState, args: tuple[Loss, tuple[Array, Array]]) -> tuple[Array]:
    """Sum of Fenchel gaps over one block."""
    loss, (positive, negative) = args
    residual, anchor = state["residual"], state["anchor"]
    _, sign = loss.margin_transform(block.targets)
    dual = np.where(sign * anchor > 0, positive, negative) * anchor
    return (block.share @ (loss.value(residual) + loss.conjugate(dual) - dual * residual),)


def dual_sides(problem: Problem, state: RowStateLike, name: str) -> tuple[Array, Array]:
    """Sums (q,) of the positive and of the negative w s v / W, for the duals v of this name in the row state."""
    positive, negative = problem.rows.map_rows(_dual_sides_block, state, (problem.loss, name), reduce=sum_tuples)
    return positive, negative


def _dual_sides_block(block: Block, state: BlockState, args: tuple[Loss, str]) -> tuple[Array, Array]:
    """The two sums over one block."""
    loss, name = args
    _, sign = loss.margin_transform(block.targets)
    signed = sign * state[name]
    positive = block.share @ np.maximum(signed, 0)
    return positive, positive - block.share @ signed


@dataclass(frozen=True, eq=False)
class Certificate:
    """Objective F, duality gap, and a bound of the rounding error of F (contained in the gap), each (q,)."""

    objective: Array
    gap: Array
    error: Array


def relative(gap: Array, objective: Array, null_objective: Array) -> Array:
    """gap / max(F, F0 / 1000), and 0 where F0 = 0."""
    scale = np.maximum(objective, null_objective / 1000)
    return np.where(null_objective > 0, gap / np.where(scale > 0, scale, 1), 0.0)


def certify(problem: Problem, state: RowStateLike, coef: Array, intercept: Array, null: NullModel) -> Certificate:
    """The duality gap of (coef, intercept), with the residuals and multipliers of the state.

    With an intercept, the multipliers are first shrunk on one side until they are balanced.
    """
    ones = np.ones(problem.n_columns)
    sums = problem.multiplier_gradient(state, (ones, ones))
    if problem.fit_intercept and np.any(sums.mean_dual != 0):
        sums = problem.multiplier_gradient(state, balance_factors(sums))
    objective = problem.objective(sums, coef, intercept)
    positive, negative = sums.positive, sums.negative
    if problem.screened is not None:
        positive = positive + np.maximum(problem.screened.mean_dual, 0)
        negative = negative + np.maximum(-problem.screened.mean_dual, 0)
    gap, error = bound_gap(problem, null, (coef, intercept), objective, sums, (positive, negative))
    if problem.fit_intercept and problem.screened is not None:
        # The duals of screened rows are fixed: where shrinking the others did not balance them, nothing is proved.
        gap = np.where(np.abs(sums.mean_dual) <= 1e-12, gap, np.inf)
    return Certificate(objective, gap, error)


def certify_gradient(
    problem: Problem, state: RowStateLike, found: FullGradient, coef: Array, intercept: Array, null: NullModel
) -> Certificate:
    """The duality gap of the fit (coef, intercept) at which `found` was summed, with the slopes there as duals."""
    ones = np.ones(problem.n_columns)
    factors = balance_factors(found) if problem.fit_intercept else (ones, ones)
    objective = found.loss + problem.alpha * np.einsum("ij,ij->j", coef, coef)
    positive, negative = factors[0] * found.positive, factors[1] * found.negative
    sums = GapSums(
        fenchel_gap(problem, state, factors),
        factors[0] * found.phi_t_positive + factors[1] * found.phi_t_negative,
        positive - negative,
    )
    return Certificate(objective, *bound_gap(problem, null, (coef, intercept), objective, sums, (positive, negative)))


class GapSums(NamedTuple):
    """What the duality gap is made of: Fenchel gap (q,), Phi'(w v)/W (M, q) and mean v (q,)."""

    fenchel_gap: Array
    phi_t_dual: Array
    mean_dual: Array


def bound_gap(
    problem: Problem,
    null: NullModel,
    fit: tuple[Array, Array],
    objective: Array,
    sums: GapSums | DualSums,
    sides: tuple[Array, Array],
) -> tuple[Array, Array]:
    """The duality gap (q,) of a fit (coef, intercept), with all that rounding can have hidden in it; and that of F.

    The sums were computed with rounding errors. What they mean for the gap:

    - A residual has errors of the sizes of what it is the difference of, offset, Phi u and b; they change the Fenchel
      gap by at most their product with |slope - v|. The sum over rows has errors of the size of mean |v r|.
    - Phi'(w v)/W is a sum over rows, whose error is added to the norm of the dual residual.
    - Duals that are balanced up to rounding become exactly so if one side is multiplied by 1 - t, with t = |mean v| /
      side. That changes the Fenchel gap by at most t mean |v r|, and Phi'(w v)/W by t times itself.

    |slope| and |v| are at most the ends of the domain or, in the mean square, for a loss with second derivatives up to
    1 / w, sqrt(2 F / w) and sqrt(2 Fenchel gap / w) more. `sides` are the sums of positive and of negative duals, or
    lower bounds of them.
    """
    (coef, intercept), sizes = fit, null.sizes
    fenchel = np.maximum(sums.fenchel_gap, 0)
    norm = np.sqrt(np.einsum("ij,ij->j", coef, coef))
    prediction = sizes.rms_feature * norm
    if weak_ridge(problem, null):
        prediction = np.einsum("ij,ij->j", sizes.column_scale, np.abs(coef))
    slopes = bound_slopes(problem.loss, objective, fenchel)
    hidden, products = bound_errors(problem.loss, sizes, (objective, fenchel), slopes, (prediction, np.abs(intercept)))
    slope = np.minimum(*slopes)
    unbalanced = np.zeros_like(norm)
    if problem.fit_intercept:
        mean_dual = np.abs(sums.mean_dual)
        with np.errstate(divide="ignore"):
            unbalanced = np.divide(mean_dual, np.maximum(*sides), out=np.zeros_like(norm), where=mean_dual > 0)
        unbalanced = np.minimum(unbalanced + 2 * sizes.row_sum, 1)
    error = slope * sizes.rms_feature * (sizes.row_sum + unbalanced)
    error = error + np.finfo(float).eps * problem.alpha * norm
    relative_error = slope * np.sqrt(len(coef)) * (sizes.row_sum + unbalanced)
    residual = residual_bound(problem, null, coef, sums.phi_t_dual, objective, (error, relative_error))
    return fenchel + hidden + unbalanced * products + residual, hidden


def residual_bound(
    problem: Problem,
    null: NullModel,
    coef: Array,
    phi_t_dual: Array,
    objective: Array,
    errors: tuple[Array | float, Array | float] = (0.0, 0.0),
) -> Array:
    """The dual residual's part of the gap (q,): a bound of  g'(u - u*) - alpha |u - u*|^2,  g = 2 alpha u - phi_t_dual.

    For the minimiser u*, of which only F(u*) <= F(u) is known. In general that is |g|^2 / (4 alpha), but where the
    ridge is so weak that g would have to be smaller than its rounding error, the data bound the distance: both fits
    have a mean |r| of at most (F + conjugate(k)) / k, for any slope k, so that their predictions are at most twice that
    apart, and coefficients that far times `RowSizes.reach`. `errors` are those of |g| and of |g / column_scale|.
    """
    gradient, sizes = 2 * problem.alpha * coef - phi_t_dual, null.sizes
    ridge = (np.sqrt(np.einsum("ij,ij->j", gradient, gradient)) + errors[0]) ** 2 / (4 * problem.alpha)
    if problem.loss.margin or not weak_ridge(problem, null):
        return ridge
    scaled = gradient / sizes.column_scale
    norm = np.sqrt(np.einsum("ij,ij->j", scaled, scaled)) + errors[1]
    low, high = problem.loss.domain
    with np.errstate(divide="ignore", invalid="ignore"):
        slope = np.minimum(np.minimum(high, -low), np.sqrt(2 * objective / problem.loss.smoothing_width))
        conjugate = np.max(problem.loss.conjugate(np.array([slope, -slope])), axis=0)
        apart = norm * sizes.reach * 2 * (objective + conjugate) / slope
    return np.fmin(ridge, np.where(objective > 0, apart, np.inf))


def balance_factors(sums: DualSums | FullGradient) -> tuple[Array, Array]:
    """Factors in [0, 1] for the positive and the negative duals that make mean v = 0 and keep v in its domain."""
    return _shrink_factor(sums.positive, sums.mean_dual), _shrink_factor(sums.negative, -sums.mean_dual)


def balanced(dual: Array, share: Array, elsewhere: float) -> Array:
    """One column's duals (m,), shrunk on one side such that their weighted sum plus `elsewhere` is zero.

    share (m,) carries the signs of the rows; `elsewhere` is the sum of other rows' weighted duals.
    """
    weighted = share * dual
    positive, mean_dual = np.maximum(weighted, 0).sum(), weighted.sum()
    negative, surplus = positive - mean_dual, mean_dual + elsewhere
    return np.where(weighted > 0, _shrink_factor(positive, surplus), _shrink_factor(negative, -surplus)) * dual


def _shrink_factor(part: Array, surplus: Array) -> Array:
    """The factor (part - surplus) / part in [0, 1], or 1 where there is no surplus."""
    return np.divide(part - surplus, part, out=np.ones_like(part), where=(surplus > 0) & (part > 0)).clip(0, 1)


def low_rank_bound(dual: Array, share: Array, left_out: Array, alpha: Array) -> Array:
    """Bound on what features G miss of the kernel K = G G' + E,  from the diagonal `left_out` (n,) of E.

    Minimising over the kernel's whole space can gain at most  v'E v / (4 alpha) <= (sum |v| sqrt(E_ii))^2 / (4 alpha)
    with v = w dual / W, because E is positive semidefinite.
    """
    return ((share * np.sqrt(left_out)) @ np.abs(dual)) ** 2 / (4 * alpha)
