"""KKT check of a screened solution: one pass over all rows, from which its duality gap follows.

For a screened row the KKT condition is that its residual lies on the linear segment whose slope is its fixed dual v_i:
then loss(r) + conjugate(v) - v r = 0. A row off its segment has a positive Fenchel gap, so violations are not only
found but priced: the mean of these gaps is the first part of the duality gap (`objective.duality_gap`), the distance of
Phi'(w v)/W from 2 alpha u the second.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quernel.data import Block, BlockState, RowStateLike, sum_tuples
from quernel.losses import Loss
from quernel.objective.problem import Problem
from quernel.objective.segments import SegmentedFit, off_segment_rows, signed_targets

Array = NDArray[np.floating]
Index = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class KktCheck:
    """Outcome of a KKT check, one entry per column.

    Attributes
    ----------
    loss : array of shape (q,)
        Mean loss over all rows.
    fenchel_gap : array of shape (q,)
        mean(loss(r) + conjugate(v) - v r) over all rows.
    phi_t_dual, mean_dual : arrays of shape (M, q) and (q,)
        The active rows' part of Phi'(w s v)/W and of sum w s v / W.
    worst_violation : array of shape (q,)
        Largest distance from a kink of a screened row that is off its segment.
    """

    loss: Array
    fenchel_gap: Array
    phi_t_dual: Array
    mean_dual: Array
    worst_violation: Array


def verify(problem: Problem, state: RowStateLike, coef: Array, intercept: Array, duals: Any) -> KktCheck:
    """Check all rows at (coef, intercept), with new duals for the active ones (from `scatter_duals`), in one pass."""
    args = (problem.loss, coef, intercept)
    return KktCheck(*problem.rows.map_reduce(_check_block, state, args, reduce=_reduce, per_block_args=duals))


def _reduce(answers: list[tuple[Array, ...]]) -> tuple[Array, ...]:
    """Reduce step: add up sums, take the maximum of the violations."""
    *sums, worst_violation = zip(*answers, strict=True)
    return *sum_tuples(list(zip(*sums, strict=True))), np.max(worst_violation, axis=0)


def _check_block(
    block: Block, state: BlockState, args: tuple[Loss, Array, Array], duals: list[tuple[int, Index, Array]]
) -> tuple[Array, ...]:
    """Check the rows of one block, after storing its active rows' new duals."""
    from quernel.objective.numba_kernels import verify_rows

    loss, coef, intercept = args
    for k, index, new in duals:
        state["dual"][index - block.start, k] = new
    residual, dual, active, off_segment = (state[name].T for name in ("residual", "dual", "active", "off_segment"))
    phi_t_dual, (mean_dual, on_segment_loss, worst_violation) = np.zeros(coef.T.shape), np.zeros((3, len(dual)))
    fit = SegmentedFit.from_fit(coef, intercept, loss)
    verify_rows(
        np.ascontiguousarray(block.features), *signed_targets(block, loss), block.share, *fit,
        dual, active, residual, off_segment, phi_t_dual, mean_dual, on_segment_loss, worst_violation,
    )  # fmt: skip
    off_segment_loss, fenchel_gap = off_segment_rows(block, loss, residual, dual, off_segment)
    return on_segment_loss + off_segment_loss, fenchel_gap, phi_t_dual.T, mean_dual, worst_violation


def recheck_changed(problem: Problem, state: RowStateLike, before: KktCheck, duals: Any) -> KktCheck:
    """The check of the same fit with other duals for the active rows; only rows whose duals have changed are read."""
    fenchel_gap, phi_t_dual, mean_dual = problem.rows.map_reduce(
        _recheck_block, state, problem.loss, reduce=sum_tuples, per_block_args=duals
    )
    state.sweeps -= 1
    return KktCheck(
        before.loss, fenchel_gap, before.phi_t_dual + phi_t_dual, before.mean_dual + mean_dual, before.worst_violation
    )


def _recheck_block(
    block: Block, state: BlockState, loss: Loss, duals: list[tuple[int, Index, Array]]
) -> tuple[Array, Array, Array]:
    """Fenchel gaps of one block with new duals, and the change of the active rows' sums."""
    residual, dual, active, off_segment = (state[name].T for name in ("residual", "dual", "active", "off_segment"))
    phi_t_dual, mean_dual = np.zeros((block.features.shape[1], len(dual))), np.zeros(len(dual))
    for k, index, new in duals:
        change, rows = new - dual[k, index - block.start], index - block.start
        dual[k, rows] = new
        moved = rows[change != 0]
        _, sign = loss.margin_transform(block.targets[moved, k % block.targets.shape[1]])
        weighted = block.share[moved] * change[change != 0] * sign
        phi_t_dual[:, k] += weighted @ block.features[moved]
        mean_dual[k] += weighted.sum()
    return off_segment_rows(block, loss, residual, dual, active | off_segment)[1], phi_t_dual, mean_dual
