"""The multinomial logistic objective as map-reduce sums over row blocks: all K columns are one problem.

    F(U, b) = (1/W) sum_i w_i [log sum_k exp f_ik - f_i,class(i)] + alpha |U|^2,      f_i = U'phi_i + b,  K classes

The gradient of a row's loss in f_i is -v_i, with v_i = e_class(i) - p_i and p = softmax(f). Every p in the simplex
gives a bound, because  log sum exp f + sum p log p - p'f >= 0  (Fenchel-Young, with equality at the softmax).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp, softmax, xlogy

from quernel.data import Block, BlockState, InMemoryDesign, RowState, discard, sum_tuples

Array = NDArray[np.floating]


@dataclass(frozen=True, eq=False)
class MultinomialSums:
    """Sums at the current scores f and probabilities p.

    phi_t_dual (M, K) is Phi'(w v)/W, mean_dual (K,) the mean of v, loss the mean loss, and fenchel_gap the mean of
    log sum exp f + sum p log p - p'f.
    """

    phi_t_dual: Array
    mean_dual: Array
    loss: float
    fenchel_gap: float


@dataclass(frozen=True, eq=False)
class MultinomialProblem:
    """The multinomial problem of rows with targets (n, K): +1 at the row's class, -1 elsewhere."""

    rows: InMemoryDesign
    alpha: float
    fit_intercept: bool

    def set_coefficients(self, state: RowState, coef: Array, intercept: Array) -> None:
        """Set scores and probabilities of all rows to those of (coef, intercept)."""
        self.rows.map_reduce(_set_scores, state, (coef, intercept), reduce=discard)

    def shares(self) -> Array:
        """Weighted class frequencies, (K,)."""
        (shares,) = self.rows.map_rows(_class_shares_block, self.rows.new_state(), reduce=sum_tuples)
        return shares

    def gradient_sums(self, state: RowState, mix: tuple[float, Array] | None = None) -> MultinomialSums:
        """Sums at p or, with mix = (e, g), at (1 - e) p + e g for a constant distribution g (K,)."""
        phi_t_dual, mean_dual, loss, fenchel_gap = self.rows.map_reduce(_gradient_block, state, mix, reduce=sum_tuples)
        return MultinomialSums(phi_t_dual, mean_dual, float(loss), float(fenchel_gap))

    def objective(self, sums: MultinomialSums, coef: Array) -> float:
        """F at coef, from the sums of `gradient_sums` there."""
        return sums.loss + self.alpha * float(np.sum(coef**2))

    def curvature(self, state: RowState) -> tuple[Array, float]:
        """Gram matrix of (phi, 1), shape (M + 1, M + 1), and mean p (1 - p).

        Their product approximates the Hessian of every class.
        """
        gram, curvature = self.rows.map_reduce(_gram_block, state, reduce=sum_tuples)
        return gram, float(curvature)

    def product(self, state: RowState, coef: Array, intercept: Array) -> tuple[Array, Array]:
        """Hessian-vector product of F with a direction."""
        phi_t_dual, mean_dual = self.rows.map_reduce(
            _hessian_product_block, state, (coef, intercept), reduce=sum_tuples
        )
        return 2 * self.alpha * coef + phi_t_dual, mean_dual

    def set_direction(self, state: RowState, coef: Array, intercept: Array) -> None:
        """Store the change of each row's scores along a direction, for the line search."""
        self.rows.map_reduce(_set_direction_block, state, (coef, intercept), reduce=discard)

    def eval_along_direction(self, state: RowState, step: float) -> tuple[float, float]:
        """First and second derivative of the mean loss along the direction."""
        slope, curvature = self.rows.map_rows(_eval_along_direction_block, state, step, reduce=sum_tuples)
        return float(slope), float(curvature)


def _class_shares_block(block: Block, state: BlockState, args: None) -> tuple[Array]:  # noqa: ARG001
    """Weight of each class in one block."""
    return (block.share @ (block.target > 0),)


def _scores(block: Block, args: tuple[Array, Array]) -> Array:
    """f = Phi U + b, (m, K)."""
    coef, intercept = args
    return block.features @ coef + intercept


def _set_scores(block: Block, state: BlockState, args: tuple[Array, Array]) -> None:
    """Store scores and their softmax."""
    state["score"] = _scores(block, args)
    state["probability"] = softmax(state["score"], axis=1)


def _gradient_block(
    block: Block, state: BlockState, mix: tuple[float, Array] | None
) -> tuple[Array, Array, float, float]:
    """The fields of `MultinomialSums` over one block."""
    score, probability = state["score"], state["probability"]
    if mix is not None:
        part, constant = mix
        probability = (1 - part) * probability + part * constant
    own = block.target > 0
    height = logsumexp(score, axis=1)
    state["dual"] = own - probability
    weighted = state["dual"] * block.share[:, None]
    fenchel_gap = height + np.sum(xlogy(probability, probability) - probability * score, axis=1)
    return (
        (weighted.T @ block.features).T,
        weighted.sum(axis=0),
        block.share @ (height - score[own]),
        block.share @ fenchel_gap,
    )


def _gram_block(block: Block, state: BlockState, args: None) -> tuple[Array, float]:  # noqa: ARG001
    """Weighted Gram matrix of (phi, 1), and the sum of mean p (1 - p)."""
    weighted, probability = block.features * block.share[:, None], state["probability"]
    M = block.features.shape[1]
    gram = np.empty((M + 1, M + 1))
    gram[:M, :M] = weighted.T @ block.features
    gram[:M, M] = gram[M, :M] = weighted.sum(axis=0)
    gram[M, M] = block.share.sum()
    return gram, block.share @ np.mean(probability * (1 - probability), axis=1)


def _hessian_product_block(block: Block, state: BlockState, args: tuple[Array, Array]) -> tuple[Array, Array]:
    """Hessian of the mean loss times (X, z): rows contribute w_i (diag(p) - p p') (X'phi_i + z)."""
    change, probability = _scores(block, args), state["probability"]
    bent = probability * (change - np.sum(probability * change, axis=1, keepdims=True)) * block.share[:, None]
    return (bent.T @ block.features).T, bent.sum(axis=0)


def _set_direction_block(block: Block, state: BlockState, args: tuple[Array, Array]) -> None:
    """Store the change of scores per unit step."""
    state["change"] = _scores(block, args)


def _eval_along_direction_block(block: Block, state: BlockState, step: float) -> tuple[float, float]:
    """First and second derivative of the mean loss at scores f + step change."""
    change = state["change"]
    probability = softmax(state["score"] + step * change, axis=1)
    mean = np.sum(probability * change, axis=1)
    slope = block.share @ (mean - change[block.target > 0])
    return slope, block.share @ (np.sum(probability * change**2, axis=1) - mean**2)
