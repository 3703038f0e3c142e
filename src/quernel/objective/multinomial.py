"""The multinomial logistic objective as sums over row blocks: all columns are one problem.

    F(U, b) = (1/W) sum_i w_i [log sum_k exp f_ik - f_i,class(i)] + alpha |U|^2,      f_i = U'phi_i + b,  K classes

The slope of a row's loss in f_i is -(v_i), v_i = e_class(i) - p_i with p = softmax(f). Every p in the simplex gives a
bound, for  log sum exp f + sum p log p - p'f >= 0  (Fenchel-Young, with equality at the softmax).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp, softmax, xlogy

from quernel.data import Block, BlockState, InMemoryDesign, RowState, nothing, total

Array = NDArray[np.floating]


@dataclass(frozen=True, eq=False)
class ClassPull:
    """Sums at the current scores f and probabilities p: force Phi'(w v)/W (M, K), balance mean v (K,), loss, slack."""

    force: Array
    balance: Array
    loss: float
    slack: float


@dataclass(frozen=True, eq=False)
class ClassProblem:
    """Rows whose targets (n, K) are +1 at their class and -1 elsewhere."""

    rows: InMemoryDesign
    alpha: float
    fit_intercept: bool

    def set_coefficients(self, memory: RowState, coef: Array, intercept: Array) -> None:
        """Set scores and probabilities to those of (coef, intercept)."""
        self.rows.map_reduce(_place, memory, (coef, intercept), join=nothing)

    def shares(self) -> Array:
        """Each class's part of the weight, shape (K,)."""
        (shares,) = self.rows.map_rows(_shares, self.rows.new_memory(), join=total)
        return shares

    def smoothed_gradient(self, memory: RowState, mix: tuple[float, Array] | None = None) -> ClassPull:
        """The sums at p or, with mix = (e, g), at (1 - e) p + e g."""
        force, balance, loss, slack = self.rows.map_reduce(_pull, memory, mix, join=total)
        return ClassPull(force, balance, float(loss), float(slack))

    def objective(self, pull: ClassPull, coef: Array) -> float:
        """F where `smoothed_gradient` was taken."""
        return pull.loss + self.alpha * float(np.sum(coef**2))

    def curvature(self, memory: RowState) -> tuple[Array, float]:
        """The Gram matrix of (phi, 1), shape (M + 1, M + 1), and the mean p (1 - p): a rough Hessian of every class."""
        gram, bend = self.rows.map_reduce(_gram, memory, join=total)
        return gram, float(bend)

    def product(self, memory: RowState, coef: Array, intercept: Array) -> tuple[Array, Array]:
        """The Hessian of F applied to a direction."""
        force, balance = self.rows.map_reduce(_product, memory, (coef, intercept), join=total)
        return 2 * self.alpha * coef + force, balance

    def set_direction(self, memory: RowState, coef: Array, intercept: Array) -> None:
        """Remember how the scores change along a direction."""
        self.rows.map_reduce(_aim, memory, (coef, intercept), join=nothing)

    def eval_along_direction(self, memory: RowState, step: float) -> tuple[float, float]:
        """Slope and curvature of the mean loss along the direction."""
        slope, bend = self.rows.map_rows(_probe, memory, step, join=total)
        return float(slope), float(bend)


def _shares(block: Block, memory: BlockState, message: None) -> tuple[Array]:  # noqa: ARG001
    return (block.share @ (block.target > 0),)


def _scores(block: Block, message: tuple[Array, Array]) -> Array:
    coef, intercept = message
    return block.features @ coef + intercept


def _place(block: Block, memory: BlockState, message: tuple[Array, Array]) -> None:
    memory["score"] = _scores(block, message)
    memory["chance"] = softmax(memory["score"], axis=1)


def _pull(block: Block, memory: BlockState, mix: tuple[float, Array] | None) -> tuple[Array, Array, float, float]:
    score, chance = memory["score"], memory["chance"]
    if mix is not None:
        part, constant = mix
        chance = (1 - part) * chance + part * constant
    own = block.target > 0
    height = logsumexp(score, axis=1)
    memory["dual"] = own - chance
    weighted = memory["dual"] * block.share[:, None]
    slack = height + np.sum(xlogy(chance, chance) - chance * score, axis=1)
    return (
        (weighted.T @ block.features).T,
        weighted.sum(axis=0),
        block.share @ (height - score[own]),
        block.share @ slack,
    )


def _gram(block: Block, memory: BlockState, message: None) -> tuple[Array, float]:  # noqa: ARG001
    weighted, chance = block.features * block.share[:, None], memory["chance"]
    M = block.features.shape[1]
    gram = np.empty((M + 1, M + 1))
    gram[:M, :M] = weighted.T @ block.features
    gram[:M, M] = gram[M, :M] = weighted.sum(axis=0)
    gram[M, M] = block.share.sum()
    return gram, block.share @ np.mean(chance * (1 - chance), axis=1)


def _product(block: Block, memory: BlockState, message: tuple[Array, Array]) -> tuple[Array, Array]:
    change, chance = _scores(block, message), memory["chance"]
    bent = chance * (change - np.sum(chance * change, axis=1, keepdims=True)) * block.share[:, None]
    return (bent.T @ block.features).T, bent.sum(axis=0)


def _aim(block: Block, memory: BlockState, message: tuple[Array, Array]) -> None:
    memory["change"] = _scores(block, message)


def _probe(block: Block, memory: BlockState, step: float) -> tuple[float, float]:
    change = memory["change"]
    chance = softmax(memory["score"] + step * change, axis=1)
    mean = np.sum(chance * change, axis=1)
    slope = block.share @ (mean - change[block.target > 0])
    return slope, block.share @ (np.sum(chance * change**2, axis=1) - mean**2)
