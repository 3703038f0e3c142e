"""What all rows say of a fit and their duals: the last pass of screening, from which its certificate follows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quernel.data import Block, BlockState, RowState, total
from quernel.losses import Loss
from quernel.objective.problem import Problem
from quernel.objective.segments import SegmentedFit, off_segment_rows, signed_targets

Array = NDArray[np.floating]
Index = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class KktCheck:
    """What all rows say of a fit and their duals, one entry per column.

    loss is the mean loss; fenchel_gap is mean(loss + conjugate(v) - v r); phi_t_dual (M, q) and mean_dual are the active rows'
    part of Phi'(w v)/W and mean v; worst_violation is how far any screened row is on the wrong side.
    """

    loss: Array
    fenchel_gap: Array
    phi_t_dual: Array
    mean_dual: Array
    worst_violation: Array


def verify(problem: Problem, state: RowState, coef: Array, intercept: Array, duals: Any) -> KktCheck:
    """Look at every row again at (coef, intercept), with new duals for those active (`scatter_duals`): one sweep."""
    args = (problem.loss, coef, intercept)
    return KktCheck(*problem.rows.map_reduce(_check_block, state, args, join=_reduce, each=duals))


def _reduce(answers: list[tuple[Array, ...]]) -> tuple[Array, ...]:
    *sums, worst_violation = zip(*answers, strict=True)
    return *total(list(zip(*sums, strict=True))), np.max(worst_violation, axis=0)


def _check_block(
    block: Block, state: BlockState, args: tuple[Loss, Array, Array], duals: list[tuple[int, Index, Array]]
) -> tuple[Array, ...]:
    from quernel.objective.numba_kernels import verify_rows

    loss, coef, intercept = args
    for k, index, new in duals:
        state["dual"][index - block.start, k] = new
    residual, dual, active, off_segment = (state[name].T for name in ("residual", "dual", "active", "off_segment"))
    phi_t_dual, (mean_dual, on_segment_loss, worst_violation) = np.zeros(coef.T.shape), np.zeros((3, len(dual)))
    verify_rows(
        np.ascontiguousarray(block.features), *signed_targets(block, loss), block.share, *SegmentedFit.from_fit(coef, intercept, loss),
        dual, active, residual, off_segment, phi_t_dual, mean_dual, on_segment_loss, worst_violation,
    )  # fmt: skip
    off_segment_loss, fenchel_gap = off_segment_rows(block, loss, residual, dual, off_segment)
    return on_segment_loss + off_segment_loss, fenchel_gap, phi_t_dual.T, mean_dual, worst_violation


def recheck_changed(problem: Problem, state: RowState, before: KktCheck, duals: Any) -> KktCheck:
    """The verdict on the same fit with other duals for the active rows: only the rows whose duals differ are read."""
    fenchel_gap, phi_t_dual, mean_dual = problem.rows.map_reduce(
        _recheck_block, state, problem.loss, join=total, each=duals
    )
    state.sweeps -= 1
    return KktCheck(
        before.loss, fenchel_gap, before.phi_t_dual + phi_t_dual, before.mean_dual + mean_dual, before.worst_violation
    )


def _recheck_block(
    block: Block, state: BlockState, loss: Loss, duals: list[tuple[int, Index, Array]]
) -> tuple[Array, Array, Array]:
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
