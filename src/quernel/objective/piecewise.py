"""Losses of two lines (pinball, absolute, hinge) on long blocks: block functions of `problem`, by compiled loops.

A loss max(low r, high r) has duals v = clip(r / d + z, low, high) with multiplier z and width d, and a row is active
where v is not clipped. Same results as the array code, one column at a time and without temporary arrays.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quernel.data import Block, BlockState
from quernel.losses import Loss

Array = NDArray[np.floating]

# Blocks of at least this many rows use the compiled functions.
COMPILED_ROWS = 2_000
# If at most this share of rows has new duals, Phi'(w v)/W is updated from those rows alone.
FEW_CHANGED = 0.2
# Active rows of a column, their Hessian weights h, and their surplus h (r - r*) with the row's sign (see `Curvature`).
ActiveColumn = tuple[NDArray[np.intp], Array, Array]


def applies(loss: Loss, block: Block) -> bool:
    """Whether the block is long enough, and the loss two-piece, so that the compiled functions apply.

    On short blocks the calls, one per column, cost more than the temporary arrays that they save.
    """
    return len(block.share) >= COMPILED_ROWS and loss.is_two_piece


def constant_loss(block: Block, loss: Loss, constant: Array) -> tuple[Array, Array]:
    """Mean loss of constants (q,), and mean of |y| (q,), over one block; for losses of y - f."""
    from quernel.objective.numba_kernels import constant_loss_column

    (low, high), several = loss.domain, block.targets.shape[1] > 1
    sums = [
        constant_loss_column(_column(block.targets, k if several else 0), block.share, constant[k], low[k], high[k])
        for k in range(len(constant))
    ]
    losses, sizes = np.array(sums).T
    return losses, sizes


def smoothed_gradient(block: Block, state: BlockState, loss: Loss, width: Array) -> tuple[Array, ...]:
    """The fields of `DualSums`, as `Problem.smoothed_gradient`."""
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
    """Phi' weighted (M, q), updated from the last one where only a few rows have new duals.

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
    """First and second derivative of the smoothed mean loss along the direction, as `Problem.eval_along_direction`."""
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
    """The active rows of every column, as in `problem`.

    All have the curvature 1 / width, which is what lets Hessians be updated by the rows that come and go. `anchored`
    columns take the rows whose multipliers are strictly inside their box, as if residuals were 0.
    """
    from quernel.objective.numba_kernels import active_rows

    answers, (low, high) = [], loss.domain
    for k in range(len(width)):
        residual, anchor = _column(state["residual"], k), _column(state["anchor"], k)
        at = np.zeros_like(residual) if anchored[k] else residual  # the multiplier is a subgradient at the kink
        rows = active_rows(at, anchor, low[k], high[k], width[k])
        rows = rows[block.share[rows] > 0]
        answers.append(
            (rows, block.share[rows] / width[k], _signed_share(block, loss, k)[rows] * residual[rows] / width[k])
        )
    return answers


def _column(array: Array, k: int) -> Array:
    """One column as the compiled loops take it; row state is in Fortran order, so that nothing is copied."""
    return np.ascontiguousarray(array[:, k])


def _signed_share(block: Block, loss: Loss, k: int) -> Array:
    """share times sign, for one column: a residual falls by sign df where f rises by df."""
    _, sign = loss.margin_transform(block.targets)
    if np.ndim(sign) == 0:
        return block.share
    return block.share * sign[:, k % sign.shape[1]]  # type: ignore[index,union-attr]
