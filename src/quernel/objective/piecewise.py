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
# Of a column: the rows that have curvature, their weights h, and their surplus h (r - contact), signed_share.
ActiveColumn = tuple[NDArray[np.intp], Array, Array]


def applies(loss: Loss, block: Block) -> bool:
    """Whether columns are long enough, and the loss simple enough, for the compiled steps."""
    return len(block.share) >= COMPILED_ROWS and loss.is_two_piece


def smoothed_gradient(block: Block, state: BlockState, loss: Loss, width: Array) -> tuple[Array, ...]:
    """What `sums.Pull` holds."""
    from quernel.objective.numba_kernels import smoothed_gradient_column

    residual, anchor, (low, high) = state["residual"], state["anchor"], loss.domain
    weighted = np.empty((len(width), len(residual)))
    mean_dual, positive, value, fenchel_gap, active = np.transpose(
        [
            smoothed_gradient_column(
                _column(residual, k), _column(anchor, k), block.share, _signed_share(block, loss, k),
                low[k], high[k], width[k], weighted[k],
            )
            for k in range(len(width))
        ]
    )  # fmt: skip
    return _phi_t_dual(block, state, weighted), mean_dual, positive, positive - mean_dual, value, fenchel_gap, active


def _phi_t_dual(block: Block, state: BlockState, weighted: Array) -> Array:
    """Phi' weighted, (M, q): from the last one and the few rows whose duals have changed since, if they are few.

    Between two Newton steps most rows stay clipped at the same end of their box.
    """
    phi_t_dual = None
    if "phi_t_dual" in state:
        change = weighted - state["weighted"].T
        changed = np.flatnonzero(change.any(axis=0))
        if len(changed) <= FEW_CHANGED * len(block.share):
            phi_t_dual = state["phi_t_dual"] + (change[:, changed] @ block.features[changed]).T
    if phi_t_dual is None:
        phi_t_dual = (weighted @ block.features).T
    state["weighted"], state["phi_t_dual"] = weighted.T, phi_t_dual
    return phi_t_dual


def eval_along_direction(block: Block, state: BlockState, loss: Loss, width: Array, step: Array) -> tuple[Array, Array]:
    """Slope and curvature of the smoothed mean loss along the direction."""
    from quernel.objective.numba_kernels import eval_along_direction_column

    low, high = loss.domain
    slope, bend = np.transpose(
        [
            eval_along_direction_column(
                _column(state["residual"], k), _column(state["anchor"], k), _column(state["change"], k), block.share,
                low[k], high[k], width[k], step[k],
            )
            for k in range(len(width))
        ]
    )  # fmt: skip
    return slope, bend


def find_active(
    block: Block, state: BlockState, loss: Loss, width: Array, anchored: NDArray[np.bool_]
) -> list[ActiveColumn]:
    """The active rows of every column."""
    from quernel.objective.numba_kernels import active_rows

    answers, (low, high) = [], loss.domain
    for k in range(len(width)):
        residual, anchor = _column(state["residual"], k), _column(state["anchor"], k)
        at = np.zeros_like(residual) if anchored[k] else residual  # the contact is the kink
        rows = active_rows(at, anchor, low[k], high[k], width[k])
        rows = rows[block.share[rows] > 0]
        answers.append(
            (rows, block.share[rows] / width[k], _signed_share(block, loss, k)[rows] * residual[rows] / width[k])
        )
    return answers


def _column(array: Array, k: int) -> Array:
    return np.ascontiguousarray(array[:, k])  # not a copy: columns are contiguous


def _signed_share(block: Block, loss: Loss, k: int) -> Array:
    """share x sign of one column."""
    _, sign = loss.margin_transform(block.targets)
    return block.share if np.ndim(sign) == 0 else block.share * sign[:, k % sign.shape[1]]  # type: ignore[index,union-attr]
