"""The Hessian of each column's smoothed mean loss, as map-reduce sums over row blocks.

With c_i = dv_i/dr_i, the derivative of row i's dual, and h_i = w_i c_i / W, it is sum_i h_i phi_i phi_i' over the
active rows, those with h_i > 0. `NewtonSystem` adds the ridge 2 alpha I and the intercept, and solves.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quernel.data import Block, BlockState
from quernel.losses import Loss
from quernel.objective import piecewise

Array = NDArray[np.floating]


@dataclass(frozen=True, eq=False)
class Curvature:
    """The Hessian sum_i h_i phi_i phi_i' of one column, in whichever form is smaller.

    Attributes
    ----------
    surplus : array
        h_i (r_i - r*_i), where r*_i is the residual at which the multiplier is a subgradient of the loss (0 for
        two-piece losses): the change of the duals, from the multipliers, if the active rows were never clipped. Per row
        (a,) with `rows`; otherwise its sums against (phi, 1), of shape (M + 1,).
    rows, h : arrays of shape (a, M) and (a,), or None
        Few active rows (a <= M): their features and weights.
    gram, cross : arrays of shape (M, M) and (M,), or None
        Many: sum h phi phi' and sum h phi.
    total : float
        Many: sum h.
    """

    surplus: Array
    rows: Array | None = None
    h: Array | None = None
    gram: Array | None = None
    cross: Array | None = None
    total: float = 0.0


def curvature_block(
    block: Block, state: BlockState, args: tuple[Loss, Array, NDArray[np.bool_], NDArray[np.bool_]]
) -> list[Curvature]:
    """Block function: the Hessian of every column over one block."""
    loss, width, few, anchored = args
    find_active = piecewise.find_active if piecewise.applies(loss, block) else _find_active
    answers = []
    for k, (active, weight, surplus) in enumerate(find_active(block, state, loss, width, anchored)):
        rows = block.features[active].astype(float, copy=False)
        if few[k]:
            answers.append(Curvature(surplus, rows=rows, h=weight))
        else:
            cross, surplus = weight @ rows, np.append(surplus @ rows, surplus.sum())
            rows *= np.sqrt(weight)[:, None]
            answers.append(Curvature(surplus, gram=rows.T @ rows, cross=cross, total=float(weight.sum())))
    return answers


def _find_active(
    block: Block, state: BlockState, loss: Loss, width: Array, anchored: NDArray[np.bool_]
) -> list[piecewise.ActiveColumn]:
    """The active rows of each column, their weights h, and their surplus h (r - r*) with the row's sign."""
    residual, anchor = state["residual"], state["anchor"]
    at_multiplier = loss.inverse_subgradient(anchor)
    at = np.where(anchored, at_multiplier, residual) if anchored.any() else residual
    h = loss.curvature(at, anchor, width) * block.share[:, None]
    _, sign = loss.margin_transform(block.targets)
    signed_surplus = sign * (residual - at_multiplier)
    rows = [np.flatnonzero(h[:, k]) for k in range(len(width))]
    return [(active, h[active, k], h[active, k] * signed_surplus[active, k]) for k, active in enumerate(rows)]


def reduce_curvatures(answers: list[list[Curvature]]) -> list[Curvature]:
    """Reduce step: every column's Hessian over all blocks."""
    return [_reduce_column(list(parts)) for parts in zip(*answers, strict=True)]


def _reduce_column(parts: list[Curvature]) -> Curvature:
    """One column's Hessian from those of its blocks: rows concatenated, or Gram matrices added."""
    if parts[0].gram is None:
        return Curvature(
            surplus=np.concatenate([part.surplus for part in parts]),
            rows=np.concatenate([part.rows for part in parts if part.rows is not None]),
            h=np.concatenate([part.h for part in parts if part.h is not None]),
        )
    first = parts[0]
    for part in parts[1:]:
        first = Curvature(
            surplus=first.surplus + part.surplus,
            gram=first.gram + part.gram,  # type: ignore[operator]
            cross=first.cross + part.cross,  # type: ignore[operator]
            total=first.total + part.total,
        )
    return first
