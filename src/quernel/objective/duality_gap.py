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
class Survey:
    """Sums at a fit, one entry per column: mean loss, and force (M, q) and size of either sign's duals s v."""

    loss: Array
    upward: Array
    downward: Array
    positive: Array
    negative: Array

    @property
    def force(self) -> Array:
        """Phi'(w v)/W."""
        return self.upward + self.downward

    @property
    def balance(self) -> Array:
        """mean v."""
        return self.positive - self.negative


def survey(problem: Problem, memory: RowState, coef: Array, intercept: Array) -> Survey:
    """Set residuals to those of (coef, intercept) and anchors to the slopes there, and sum: one sweep."""
    found = Survey(*problem.rows.map_reduce(_survey_block, memory, (problem.loss, coef, intercept), join=total))
    require_finite(found.loss)
    return found


def _survey_block(block: Block, memory: BlockState, message: tuple[Loss, Array, Array]) -> tuple[Array, ...]:
    from quernel.objective.numba_kernels import force_by_sign

    loss, coef, intercept = message
    residual = residuals(block, loss, coef, intercept)
    memory["residual"], memory["anchor"] = residual, loss.slope(residual)
    _, sign = loss.margin_transform(block.targets)
    weighted = (memory["anchor"] * sign * block.share[:, None]).T
    upward, downward = np.zeros((2, *coef.T.shape))
    force_by_sign(np.ascontiguousarray(block.features), weighted, upward, downward)
    positive = np.maximum(weighted, 0).sum(axis=1)
    return block.share @ loss.value(residual), upward.T, downward.T, positive, positive - weighted.sum(axis=1)


def slack(problem: Problem, memory: RowState, factors: tuple[Array, Array]) -> Array:
    """mean(loss + conjugate(v) - v r) for the anchors, the positive and the negative ones shrunk by these factors."""
    (mean,) = problem.rows.map_rows(_slack_block, memory, (problem.loss, factors), join=total)
    return mean


def _slack_block(block: Block, memory: BlockState, message: tuple[Loss, tuple[Array, Array]]) -> tuple[Array]:
    loss, (positive, negative) = message
    residual, anchor = memory["residual"], memory["anchor"]
    _, sign = loss.margin_transform(block.targets)
    dual = np.where(sign * anchor > 0, positive, negative) * anchor
    return (block.share @ (loss.value(residual) + loss.conjugate(dual) - dual * residual),)


# Rows looked at together where whole columns need not exist at once.
PART = 65_536
# Rows that tell the best constant where not all can be looked at.
SAMPLE = 10_000


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
    constant = _best_constant(problem) if problem.fit_intercept else np.zeros(problem.n_columns)
    (objective,) = _mean(problem, _loss_of_constant, constant)
    return NullModel(constant, objective)


def dual_variance(problem: Problem) -> Array:
    """mean v^2 of the slopes v at the best constant (at 0, where that fits exactly): duals that explain nothing."""
    constant = _best_constant(problem)
    (variance,) = _mean(problem, _square_of_slope, constant)
    if np.all(variance > 0):
        return variance
    return np.where(variance > 0, variance, _mean(problem, _square_of_slope, np.zeros_like(constant))[0])


def _best_constant(problem: Problem) -> Array:
    """The constant with the smallest loss; of rows that are far away, that of a sample."""
    if problem.rows.near:
        return problem.loss.fit_constant(problem.rows.target, problem.rows.share)
    sample = problem.rows.sample(min(SAMPLE, problem.rows.n_rows), np.random.default_rng(0))
    return problem.run_at(_best_constant_of, sample)[1]


def _best_constant_of(problem: Problem, sample: InMemoryDesign) -> tuple[None, Array]:
    return None, _best_constant(problem.on(sample))


def _mean(problem: Problem, step: Callable[..., tuple[Array]], constant: Array) -> tuple[Array]:
    """The weighted mean of something over all rows, at a constant fit."""
    return problem.rows.map_rows(step, problem.rows.new_memory(), (problem.loss, constant), join=total)


def _loss_of_constant(block: Block, memory: BlockState, message: tuple[Loss, Array]) -> tuple[Array]:  # noqa: ARG001
    loss, constant = message
    return (np.asarray(sum(block.share[part] @ loss.value(r) for part, r in _residuals(block, loss, constant))),)


def _square_of_slope(block: Block, memory: BlockState, message: tuple[Loss, Array]) -> tuple[Array]:  # noqa: ARG001
    loss, constant = message
    return (np.asarray(sum(block.share[part] @ loss.slope(r) ** 2 for part, r in _residuals(block, loss, constant))),)


def _residuals(block: Block, loss: Loss, constant: Array) -> Iterator[tuple[slice, Array]]:
    """The residuals of a constant fit, some rows at a time."""
    for start in range(0, len(block.share), PART):
        part = slice(start, start + PART)
        offset, sign = loss.margin_transform(block.targets[part])
        yield part, offset - sign * constant


def relative(gap: Array, objective: Array, null_objective: Array) -> Array:
    """gap / max(F, F0 / 1000), and 0 where F0 = 0."""
    scale = np.maximum(objective, null_objective / 1000)
    return np.where(null_objective > 0, gap / np.where(scale > 0, scale, 1), 0.0)


def certify(problem: Problem, memory: RowState, coef: Array, intercept: Array, null: NullModel) -> Certificate:
    """The certificate of (coef, intercept), with the remembered residuals and anchors."""
    ones = np.ones(problem.n_columns)
    pull = problem.multiplier_gradient(memory, (ones, ones))
    if problem.fit_intercept and np.any(pull.balance != 0):
        pull = problem.multiplier_gradient(memory, balance_factors(pull))
    objective = problem.objective(pull, coef, intercept)
    gap = pull.slack + stray(problem, coef, pull.force)
    if problem.fit_intercept and problem.settled is not None:
        # Settled duals cannot be shrunk: where the others did not suffice, nothing is certified.
        gap = np.where(np.abs(pull.balance) <= 1e-12, gap, np.inf)
    return Certificate(objective, gap, relative(gap, objective, null.objective))


def certify_survey(problem: Problem, memory: RowState, found: Survey, coef: Array, null: NullModel) -> Certificate:
    """The certificate of the fit that was surveyed, with the slopes there as duals."""
    ones = np.ones(problem.n_columns)
    factors = balance_factors(found) if problem.fit_intercept else (ones, ones)
    objective = found.loss + problem.alpha * np.einsum("ij,ij->j", coef, coef)
    force = factors[0] * found.upward + factors[1] * found.downward
    gap = slack(problem, memory, factors) + stray(problem, coef, force)
    return Certificate(objective, gap, relative(gap, objective, null.objective))


def stray(problem: Problem, coef: Array, force: Array) -> Array:
    """alpha |u - force / (2 alpha)|^2, written so that a tiny alpha loses no digits."""
    gradient = 2 * problem.alpha * coef - force
    return np.einsum("ij,ij->j", gradient, gradient) / (4 * problem.alpha)


def balance_factors(pull: DualSums | Survey) -> tuple[Array, Array]:
    """Factors for the positive and the negative duals that make their sum zero and keep them in their domain."""
    return _less(pull.positive, pull.balance), _less(pull.negative, -pull.balance)


def balanced(dual: Array, share: Array, elsewhere: float) -> Array:
    """One column's duals (m,), shrunk where that makes their sum and what is elsewhere zero; shares carry the signs."""
    weighted = share * dual
    positive, balance = np.maximum(weighted, 0).sum(), weighted.sum()
    negative, surplus = positive - balance, balance + elsewhere
    return np.where(weighted > 0, _less(positive, surplus), _less(negative, -surplus)) * dual


def _less(part: Array, surplus: Array) -> Array:
    """The factor that takes the surplus, if it is one, away from its part."""
    return np.divide(part - surplus, part, out=np.ones_like(part), where=(surplus > 0) & (part > 0)).clip(0, 1)


def low_rank_bound(dual: Array, share: Array, left_out: Array, alpha: Array) -> Array:
    """Bound on what features G miss of the kernel K = G G' + E,  from the diagonal `left_out` (n,) of E.

    Minimising over the kernel's whole space can gain at most  v'E v / (4 alpha) <= (sum |v| sqrt(E_ii))^2 / (4 alpha)
    with v = w dual / W, because E is positive semidefinite.
    """
    return ((share * np.sqrt(left_out)) @ np.abs(dual)) ** 2 / (4 * alpha)
