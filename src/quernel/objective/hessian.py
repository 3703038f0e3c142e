"""Second derivatives: the Hessian of each column, as sums over row blocks."""

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
    """The Hessian sum_i h_i phi_i phi_i' of one column's smoothed mean loss, on whichever side is smaller.

    Few active rows: `rows` (a, M) and their weights `h` (a,). Many: `gram` (M, M), `cross` (M,) = sum h phi and `total`
    = sum h. `surplus` is what the duals would gain if the active rows were never clipped, seen from their anchors:
    h (r - contact) per row where there are few, summed against (phi, 1) where there are many.
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
    """The curvature of every column over one block."""
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
    """Of each column: the rows that have curvature, their weights h, and their surplus h (r - contact), signed_surplus."""
    residual, anchor = state["residual"], state["anchor"]
    contact = loss.inverse_subgradient(anchor)
    at = np.where(anchored, contact, residual) if anchored.any() else residual
    h = loss.curvature(at, anchor, width) * block.share[:, None]
    _, sign = loss.margin_transform(block.targets)
    signed_surplus = sign * (residual - contact)
    rows = [np.flatnonzero(h[:, k]) for k in range(len(width))]
    return [(active, h[active, k], h[active, k] * signed_surplus[active, k]) for k, active in enumerate(rows)]


def reduce_curvatures(answers: list[list[Curvature]]) -> list[Curvature]:
    """Every column's curvature over all blocks."""
    return [_reduce_column(list(parts)) for parts in zip(*answers, strict=True)]


def _reduce_column(parts: list[Curvature]) -> Curvature:
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
