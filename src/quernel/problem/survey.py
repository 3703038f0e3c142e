"""All rows at a fit, with the loss's own slopes there as their duals: one pass over the features.

With an intercept the certificate asks for duals that balance, and which of them have to shrink for that is known only
when all are summed. So the positive and the negative ones are summed apart.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quernel.losses import Loss
from quernel.problem.sums import Problem, require_finite, residuals
from quernel.rows import Block, BlockMemory, Memory, total

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


def survey(problem: Problem, memory: Memory, coef: Array, intercept: Array) -> Survey:
    """Set residuals to those of (coef, intercept) and anchors to the slopes there, and sum: one sweep."""
    found = Survey(*problem.rows.fold(_survey_block, memory, (problem.loss, coef, intercept), join=total))
    require_finite(found.loss)
    return found


def _survey_block(block: Block, memory: BlockMemory, message: tuple[Loss, Array, Array]) -> tuple[Array, ...]:
    from quernel.problem.sweeps import force_by_sign

    loss, coef, intercept = message
    residual = residuals(block, loss, coef, intercept)
    memory["residual"], memory["anchor"] = residual, loss.slope(residual)
    _, sign = loss.frame(block.targets)
    weighted = (memory["anchor"] * sign * block.share[:, None]).T
    upward, downward = np.zeros((2, *coef.T.shape))
    force_by_sign(np.ascontiguousarray(block.features), weighted, upward, downward)
    positive = np.maximum(weighted, 0).sum(axis=1)
    return block.share @ loss.value(residual), upward.T, downward.T, positive, positive - weighted.sum(axis=1)


def slack(problem: Problem, memory: Memory, factors: tuple[Array, Array]) -> Array:
    """mean(loss + conjugate(v) - v r) for the anchors, the positive and the negative ones shrunk by these factors."""
    (mean,) = problem.rows.visit(_slack_block, memory, (problem.loss, factors), join=total)
    return mean


def _slack_block(block: Block, memory: BlockMemory, message: tuple[Loss, tuple[Array, Array]]) -> tuple[Array]:
    loss, (positive, negative) = message
    residual, anchor = memory["residual"], memory["anchor"]
    _, sign = loss.frame(block.targets)
    dual = np.where(sign * anchor > 0, positive, negative) * anchor
    return (block.share @ (loss.value(residual) + loss.conjugate(dual) - dual * residual),)
