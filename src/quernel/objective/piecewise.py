"""The steps of `sums` for a loss that is two lines meeting at 0, where its columns are long: compiled, one by one."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quernel.data import Block, BlockState
from quernel.losses import Loss

Array = NDArray[np.floating]

# Columns of at least so many rows are worth a compiled step.
COMPILED_ROWS = 2_000
# Rows with new duals are summed by themselves up to this share of all.
FEW_CHANGED = 0.2
# Of a column: the rows that have curvature, their weights h, and their surplus h (r - contact), turned.
Active = tuple[NDArray[np.intp], Array, Array]


def applies(loss: Loss, block: Block) -> bool:
    """Whether columns are long enough, and the loss simple enough, for the compiled steps."""
    return len(block.share) >= COMPILED_ROWS and loss.is_two_piece


def smoothed_gradient(block: Block, memory: BlockState, loss: Loss, width: Array) -> tuple[Array, ...]:
    """What `sums.Pull` holds."""
    from quernel.objective.numba_kernels import pull_column

    residual, anchor, (low, high) = memory["residual"], memory["anchor"], loss.domain
    weighted = np.empty((len(width), len(residual)))
    balance, positive, value, slack, active = np.transpose(
        [
            pull_column(
                _column(residual, k), _column(anchor, k), block.share, _turned(block, loss, k),
                low[k], high[k], width[k], weighted[k],
            )
            for k in range(len(width))
        ]
    )  # fmt: skip
    return _force(block, memory, weighted), balance, positive, positive - balance, value, slack, active


def _force(block: Block, memory: BlockState, weighted: Array) -> Array:
    """Phi' weighted, (M, q): from the last one and the few rows whose duals have changed since, if they are few.

    Between two Newton steps most rows stay clipped at the same end of their box.
    """
    force = None
    if "force" in memory:
        change = weighted - memory["weighted"].T
        changed = np.flatnonzero(change.any(axis=0))
        if len(changed) <= FEW_CHANGED * len(block.share):
            force = memory["force"] + (change[:, changed] @ block.features[changed]).T
    if force is None:
        force = (weighted @ block.features).T
    memory["weighted"], memory["force"] = weighted.T, force
    return force


def eval_along_direction(
    block: Block, memory: BlockState, loss: Loss, width: Array, step: Array
) -> tuple[Array, Array]:
    """Slope and curvature of the smoothed mean loss along the direction."""
    from quernel.objective.numba_kernels import probe_column

    low, high = loss.domain
    slope, bend = np.transpose(
        [
            probe_column(
                _column(memory["residual"], k), _column(memory["anchor"], k), _column(memory["change"], k), block.share,
                low[k], high[k], width[k], step[k],
            )
            for k in range(len(width))
        ]
    )  # fmt: skip
    return slope, bend


def active(block: Block, memory: BlockState, loss: Loss, width: Array, anchored: NDArray[np.bool_]) -> list[Active]:
    """The active rows of every column."""
    from quernel.objective.numba_kernels import active_rows

    answers, (low, high) = [], loss.domain
    for k in range(len(width)):
        residual, anchor = _column(memory["residual"], k), _column(memory["anchor"], k)
        at = np.zeros_like(residual) if anchored[k] else residual  # the contact is the kink
        rows = active_rows(at, anchor, low[k], high[k], width[k])
        rows = rows[block.share[rows] > 0]
        answers.append((rows, block.share[rows] / width[k], _turned(block, loss, k)[rows] * residual[rows] / width[k]))
    return answers


def _column(array: Array, k: int) -> Array:
    return np.ascontiguousarray(array[:, k])  # not a copy: columns are contiguous


def _turned(block: Block, loss: Loss, k: int) -> Array:
    """share x sign of one column."""
    _, sign = loss.margin_transform(block.targets)
    return block.share if np.ndim(sign) == 0 else block.share * sign[:, k % sign.shape[1]]  # type: ignore[index,union-attr]
