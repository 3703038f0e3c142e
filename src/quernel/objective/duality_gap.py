"""The duality gap: how far a fit can be from the best possible one, for any coefficients and any duals.

For duals v in the loss's domain, balanced (mean v = 0) when there is an intercept,

    gap = mean(loss(r) + conjugate(v) - v r) + alpha |u - Phi'(w v) / (2 alpha W)|^2  >=  F(u, b) - min F.

It needs no optimality of anything: a wrong v only makes the bound larger.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quernel.data import Block, BlockState, InMemoryDesign, RowState, total
from quernel.losses import Loss
from quernel.objective import DualSums
from quernel.objective.problem import Problem, require_finite, residuals

Array = NDArray[np.floating]


@dataclass(frozen=True, eq=False)
class FullGradient:
    """Sums at a fit, one entry per column: mean loss, and phi_t_dual (M, q) and size of either sign's duals s v."""

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


def full_gradient(problem: Problem, state: RowState, coef: Array, intercept: Array) -> FullGradient:
    """Set residuals to those of (coef, intercept) and anchors to the slopes there, and sum: one sweep."""
    found = FullGradient(
        *problem.rows.map_reduce(_full_gradient_block, state, (problem.loss, coef, intercept), join=total)
    )
    require_finite(found.loss)
    return found


def _full_gradient_block(block: Block, state: BlockState, args: tuple[Loss, Array, Array]) -> tuple[Array, ...]:
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


def fenchel_gap(problem: Problem, state: RowState, factors: tuple[Array, Array]) -> Array:
    """mean(loss + conjugate(v) - v r) for the anchors, the positive and the negative ones shrunk by these factors."""
    (mean,) = problem.rows.map_rows(_fenchel_gap_block, state, (problem.loss, factors), join=total)
    return mean


def _fenchel_gap_block(block: Block, state: BlockState, args: tuple[Loss, tuple[Array, Array]]) -> tuple[Array]:
    loss, (positive, negative) = args
    residual, anchor = state["residual"], state["anchor"]
    _, sign = loss.margin_transform(block.targets)
    dual = np.where(sign * anchor > 0, positive, negative) * anchor
    return (block.share @ (loss.value(residual) + loss.conjugate(dual) - dual * residual),)


# Rows looked at together where whole columns need not exist at once.
CHUNK_ROWS = 65_536
# Rows that tell the best constant where not all can be looked at.
CONSTANT_SAMPLE = 10_000


@dataclass(frozen=True, eq=False)
class Certificate:
    """One entry per column: objective F, absolute gap, and the gap relative to max(F, F0 / 1000)."""

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
        return NullModel(self.constant[columns], self.objective[columns])


def null_model(problem: Problem) -> NullModel:
    """F0 = F at u = 0 with the best constant: the scale on which gaps are judged."""
    constant = _fit_constant(problem) if problem.fit_intercept else np.zeros(problem.n_columns)
    (objective,) = _mean_over_rows(problem, _constant_loss_block, constant)
    return NullModel(constant, objective)


def dual_variance(problem: Problem) -> Array:
    """mean v^2 of the slopes v at the best constant (at 0, where that fits exactly): duals that explain nothing."""
    constant = _fit_constant(problem)
    (variance,) = _mean_over_rows(problem, _mean_square_slope_block, constant)
    if np.all(variance > 0):
        return variance
    return np.where(
        variance > 0, variance, _mean_over_rows(problem, _mean_square_slope_block, np.zeros_like(constant))[0]
    )


def _fit_constant(problem: Problem) -> Array:
    """The constant with the smallest loss; of rows that are far away, that of a sample."""
    if problem.rows.near:
        return problem.loss.fit_constant(problem.rows.target, problem.rows.share)
    sample = problem.rows.sample(min(CONSTANT_SAMPLE, problem.rows.n_rows), np.random.default_rng(0))
    return problem.run_at(_fit_constant_of_sample, sample)[1]


def _fit_constant_of_sample(problem: Problem, sample: InMemoryDesign) -> tuple[None, Array]:
    return None, _fit_constant(problem.on(sample))


def _mean_over_rows(problem: Problem, step: Callable[..., tuple[Array]], constant: Array) -> tuple[Array]:
    """The weighted mean of something over all rows, at a constant fit."""
    return problem.rows.map_rows(step, problem.rows.new_memory(), (problem.loss, constant), join=total)


def _constant_loss_block(block: Block, state: BlockState, args: tuple[Loss, Array]) -> tuple[Array]:  # noqa: ARG001
    loss, constant = args
    return (np.asarray(sum(block.share[part] @ loss.value(r) for part, r in _residuals(block, loss, constant))),)


def _mean_square_slope_block(block: Block, state: BlockState, args: tuple[Loss, Array]) -> tuple[Array]:  # noqa: ARG001
    loss, constant = args
    return (np.asarray(sum(block.share[part] @ loss.slope(r) ** 2 for part, r in _residuals(block, loss, constant))),)


def _residuals(block: Block, loss: Loss, constant: Array) -> Iterator[tuple[slice, Array]]:
    """The residuals of a constant fit, some rows at a time."""
    for start in range(0, len(block.share), CHUNK_ROWS):
        part = slice(start, start + CHUNK_ROWS)
        offset, sign = loss.margin_transform(block.targets[part])
        yield part, offset - sign * constant


def relative(gap: Array, objective: Array, null_objective: Array) -> Array:
    """gap / max(F, F0 / 1000), and 0 where F0 = 0."""
    scale = np.maximum(objective, null_objective / 1000)
    return np.where(null_objective > 0, gap / np.where(scale > 0, scale, 1), 0.0)


def certify(problem: Problem, state: RowState, coef: Array, intercept: Array, null: NullModel) -> Certificate:
    """The certificate of (coef, intercept), with the remembered residuals and anchors."""
    ones = np.ones(problem.n_columns)
    sums = problem.multiplier_gradient(state, (ones, ones))
    if problem.fit_intercept and np.any(sums.mean_dual != 0):
        sums = problem.multiplier_gradient(state, balance_factors(sums))
    objective = problem.objective(sums, coef, intercept)
    gap = sums.fenchel_gap + dual_residual(problem, coef, sums.phi_t_dual)
    if problem.fit_intercept and problem.screened is not None:
        # ScreenedRows duals cannot be shrunk: where the others did not suffice, nothing is certified.
        gap = np.where(np.abs(sums.mean_dual) <= 1e-12, gap, np.inf)
    return Certificate(objective, gap, relative(gap, objective, null.objective))


def certify_gradient(
    problem: Problem, state: RowState, found: FullGradient, coef: Array, null: NullModel
) -> Certificate:
    """The certificate of the fit that was surveyed, with the slopes there as duals."""
    ones = np.ones(problem.n_columns)
    factors = balance_factors(found) if problem.fit_intercept else (ones, ones)
    objective = found.loss + problem.alpha * np.einsum("ij,ij->j", coef, coef)
    phi_t_dual = factors[0] * found.phi_t_positive + factors[1] * found.phi_t_negative
    gap = fenchel_gap(problem, state, factors) + dual_residual(problem, coef, phi_t_dual)
    return Certificate(objective, gap, relative(gap, objective, null.objective))


def dual_residual(problem: Problem, coef: Array, phi_t_dual: Array) -> Array:
    """alpha |u - phi_t_dual / (2 alpha)|^2, written so that a tiny alpha loses no digits."""
    gradient = 2 * problem.alpha * coef - phi_t_dual
    return np.einsum("ij,ij->j", gradient, gradient) / (4 * problem.alpha)


def balance_factors(sums: DualSums | FullGradient) -> tuple[Array, Array]:
    """Factors for the positive and the negative duals that make their sum zero and keep them in their domain."""
    return _shrink_factor(sums.positive, sums.mean_dual), _shrink_factor(sums.negative, -sums.mean_dual)


def balanced(dual: Array, share: Array, elsewhere: float) -> Array:
    """One column's duals (m,), shrunk where that makes their sum and what is elsewhere zero; shares carry the signs."""
    weighted = share * dual
    positive, mean_dual = np.maximum(weighted, 0).sum(), weighted.sum()
    negative, surplus = positive - mean_dual, mean_dual + elsewhere
    return np.where(weighted > 0, _shrink_factor(positive, surplus), _shrink_factor(negative, -surplus)) * dual


def _shrink_factor(part: Array, surplus: Array) -> Array:
    """The factor that takes the surplus, if it is one, away from its part."""
    return np.divide(part - surplus, part, out=np.ones_like(part), where=(surplus > 0) & (part > 0)).clip(0, 1)


def low_rank_bound(dual: Array, share: Array, left_out: Array, alpha: Array) -> Array:
    """Bound on what features G miss of the kernel K = G G' + E,  from the diagonal `left_out` (n,) of E.

    Minimising over the kernel's whole space can gain at most  v'E v / (4 alpha) <= (sum |v| sqrt(E_ii))^2 / (4 alpha)
    with v = w dual / W, because E is positive semidefinite.
    """
    return ((share * np.sqrt(left_out)) @ np.abs(dual)) ** 2 / (4 * alpha)
