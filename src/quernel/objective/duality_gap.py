"""The duality gap: how far a fit can be from the optimum, for any coefficients and any duals.

For duals v in the domain of the conjugate, with mean v = 0 (balanced) if there is an intercept,

    gap = mean(loss(r) + conjugate(v) - v r) + alpha |u - Phi'(w v) / (2 alpha W)|^2  >=  F(u, b) - min F.

The first part is the Fenchel gap, the second the dual residual: how far v is from u = Phi'(w v) / (2 alpha W), the
stationarity condition. Neither u nor v need be optimal; a bad v only makes the bound larger. `certify` takes the
multipliers of the state as v, `certify_gradient` the slopes of the loss at the residuals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quernel.data import Block, BlockState, InMemoryDesign, RowStateLike, sum_tuples
from quernel.losses import Loss
from quernel.objective import DualSums
from quernel.objective.problem import Problem, require_finite, residuals, take_columns

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


# Rows per chunk where residuals of a constant fit are computed, to bound memory.
CHUNK_ROWS = 65_536
# Rows of the sample from which the best constant is computed out of core.
CONSTANT_SAMPLE = 10_000


@dataclass(frozen=True, eq=False)
class Certificate:
    """Objective F, duality gap, and the gap relative to max(F, F0 / 1000), each (q,); F0 is that of the null model."""

    objective: Array
    gap: Array
    relative: Array


@dataclass(frozen=True, eq=False)
class NullModel:
    """The best constant (0 without intercept) and its objective F0, one entry per column."""

    constant: Array
    objective: Array

    def take(self, columns: NDArray[np.intp]) -> NullModel:
        """The null models of some of the columns."""
        return take_columns(self, columns)


def null_model(problem: Problem) -> NullModel:
    """F0 = F at u = 0 with the best constant: the scale of relative gaps."""
    constant = _fit_constant(problem) if problem.fit_intercept else np.zeros(problem.n_columns)
    (objective,) = _mean_over_rows(problem, _constant_loss_block, constant)
    return NullModel(constant, objective)


def dual_variance(problem: Problem) -> Array:
    """mean v^2 (q,) of the slopes v at the best constant, or at 0 where that fits exactly: duals before any fit."""
    constant = _fit_constant(problem)
    (variance,) = _mean_over_rows(problem, _mean_square_slope_block, constant)
    if np.all(variance > 0):
        return variance
    return np.where(
        variance > 0, variance, _mean_over_rows(problem, _mean_square_slope_block, np.zeros_like(constant))[0]
    )


def _fit_constant(problem: Problem) -> Array:
    """The constant with the smallest mean loss; out of core, that of a sample."""
    rows = problem.rows.gather(min(CONSTANT_SAMPLE, problem.rows.n_rows), np.random.default_rng(0))
    return problem.rows.run_at(_fit_constant_to, problem.loss, rows)[1]


def _fit_constant_to(loss: Loss, rows: InMemoryDesign) -> tuple[None, Array]:
    """For `run_at`: the best constant of rows in memory."""
    return None, loss.fit_constant(rows.target, rows.share)


def _mean_over_rows(problem: Problem, step: Callable[..., tuple[Array]], constant: Array) -> tuple[Array]:
    """Map-reduce of a block function over all rows, at a constant fit."""
    return problem.rows.map_rows(step, problem.rows.new_state(), (problem.loss, constant), reduce=sum_tuples)


def _constant_loss_block(block: Block, state: BlockState, args: tuple[Loss, Array]) -> tuple[Array]:  # noqa: ARG001
    """Mean loss of a constant over one block."""
    loss, constant = args
    return (np.asarray(sum(block.share[part] @ loss.value(r) for part, r in _residuals(block, loss, constant))),)


def _mean_square_slope_block(block: Block, state: BlockState, args: tuple[Loss, Array]) -> tuple[Array]:  # noqa: ARG001
    """Mean squared slope at a constant over one block."""
    loss, constant = args
    return (np.asarray(sum(block.share[part] @ loss.slope(r) ** 2 for part, r in _residuals(block, loss, constant))),)


def _residuals(block: Block, loss: Loss, constant: Array) -> Iterator[tuple[slice, Array]]:
    """Residuals of a constant fit, in chunks of rows."""
    for start in range(0, len(block.share), CHUNK_ROWS):
        part = slice(start, start + CHUNK_ROWS)
        offset, sign = loss.margin_transform(block.targets[part])
        yield part, offset - sign * constant


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
    gap = sums.fenchel_gap + dual_residual(problem, coef, sums.phi_t_dual)
    if problem.fit_intercept and problem.screened is not None:
        # The duals of screened rows are fixed: where shrinking the others did not balance them, nothing is proved.
        gap = np.where(np.abs(sums.mean_dual) <= 1e-12, gap, np.inf)
    return Certificate(objective, gap, relative(gap, objective, null.objective))


def certify_gradient(
    problem: Problem, state: RowStateLike, found: FullGradient, coef: Array, null: NullModel
) -> Certificate:
    """The duality gap of the fit at which `found` was summed, with the slopes there as duals."""
    ones = np.ones(problem.n_columns)
    factors = balance_factors(found) if problem.fit_intercept else (ones, ones)
    objective = found.loss + problem.alpha * np.einsum("ij,ij->j", coef, coef)
    phi_t_dual = factors[0] * found.phi_t_positive + factors[1] * found.phi_t_negative
    gap = fenchel_gap(problem, state, factors) + dual_residual(problem, coef, phi_t_dual)
    return Certificate(objective, gap, relative(gap, objective, null.objective))


def dual_residual(problem: Problem, coef: Array, phi_t_dual: Array) -> Array:
    """alpha |u - phi_t_dual / (2 alpha)|^2 (q,), written so that a tiny alpha loses no digits."""
    gradient = 2 * problem.alpha * coef - phi_t_dual
    return np.einsum("ij,ij->j", gradient, gradient) / (4 * problem.alpha)


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
