"""What all rows say of a fit and their duals: the last pass of screening, from which its certificate follows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quernel.data import Block, BlockState, RowState, total
from quernel.losses import Loss
from quernel.objective.problem import Problem
from quernel.objective.segments import Fit, framed, off_segment_rows

Array = NDArray[np.floating]
Index = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Verdict:
    """What all rows say of a fit and their duals, one entry per column.

    loss is the mean loss; slack is mean(loss + conjugate(v) - v r); force (M, q) and balance are the doubtful rows'
    part of Phi'(w v)/W and mean v; farthest is how far any settled row is on the wrong side.
    """

    loss: Array
    slack: Array
    force: Array
    balance: Array
    farthest: Array


def verify(problem: Problem, memory: RowState, coef: Array, intercept: Array, duals: Any) -> Verdict:
    """Look at every row again at (coef, intercept), with new duals for those in doubt (`scatter_duals`): one sweep."""
    message = (problem.loss, coef, intercept)
    return Verdict(*problem.rows.map_reduce(_verify_block, memory, message, join=_worst, each=duals))


def _worst(answers: list[tuple[Array, ...]]) -> tuple[Array, ...]:
    *sums, farthest = zip(*answers, strict=True)
    return *total(list(zip(*sums, strict=True))), np.max(farthest, axis=0)


def _verify_block(
    block: Block, memory: BlockState, message: tuple[Loss, Array, Array], duals: list[tuple[int, Index, Array]]
) -> tuple[Array, ...]:
    from quernel.objective.numba_kernels import check_rows

    loss, coef, intercept = message
    for k, index, new in duals:
        memory["dual"][index - block.start, k] = new
    residual, dual, doubt, odd = (memory[name].T for name in ("residual", "dual", "doubt", "odd"))
    force, (balance, lines, farthest) = np.zeros(coef.T.shape), np.zeros((3, len(dual)))
    check_rows(
        np.ascontiguousarray(block.features), *framed(block, loss), block.share, *Fit.of(coef, intercept, loss),
        dual, doubt, residual, odd, force, balance, lines, farthest,
    )  # fmt: skip
    off_line, slack = off_segment_rows(block, loss, residual, dual, odd)
    return lines + off_line, slack, force.T, balance, farthest


def recheck_changed(problem: Problem, memory: RowState, before: Verdict, duals: Any) -> Verdict:
    """The verdict on the same fit with other duals for the rows in doubt: only the rows whose duals differ are read."""
    slack, force, balance = problem.rows.map_reduce(_reassess_block, memory, problem.loss, join=total, each=duals)
    memory.sweeps -= 1
    return Verdict(before.loss, slack, before.force + force, before.balance + balance, before.farthest)


def _reassess_block(
    block: Block, memory: BlockState, loss: Loss, duals: list[tuple[int, Index, Array]]
) -> tuple[Array, Array, Array]:
    residual, dual, doubt, odd = (memory[name].T for name in ("residual", "dual", "doubt", "odd"))
    force, balance = np.zeros((block.features.shape[1], len(dual))), np.zeros(len(dual))
    for k, index, new in duals:
        change, rows = new - dual[k, index - block.start], index - block.start
        dual[k, rows] = new
        moved = rows[change != 0]
        _, sign = loss.margin_transform(block.targets[moved, k % block.targets.shape[1]])
        weighted = block.share[moved] * change[change != 0] * sign
        force[:, k] += weighted @ block.features[moved]
        balance[k] += weighted.sum()
    return off_segment_rows(block, loss, residual, dual, doubt | odd)[1], force, balance
