"""Block functions of the objective: what `problem` maps over the row blocks, and how the answers are reduced.

Each is given a block, its row state and arguments, and is pure but for the state. On long blocks, losses of two lines
(pinball, absolute, hinge) use compiled loops: a loss max(low r, high r) has duals v = clip(r / d + z, low, high) with
multiplier z and width d, and a row is active where v is not clipped. The results are those of the array code, one
column at a time and without temporary arrays.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quernel.data import Block, BlockState, sum_tuples
from quernel.losses import Loss

Array = NDArray[np.floating]

# Blocks of at least this many rows use the compiled functions.
COMPILED_ROWS = 2_000
# If at most this share of rows has new duals, Phi'(w v)/W is updated from those rows alone.
FEW_CHANGED = 0.2
# Active rows of a column, their Hessian weights h, and their surplus h (r - r*) with the row's sign (see `Curvature`).
ActiveColumn = tuple[NDArray[np.intp], Array, Array]


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
        Many: sum h phi phi' / scale, of which solvers read the lower triangle, and sum h phi / scale.
    total : float
        Many: sum h / scale.
    scale : float
    """

    surplus: Array
    rows: Array | None = None
    h: Array | None = None
    gram: Array | None = None
    cross: Array | None = None
    total: float = 0.0
    scale: float = 1.0


def _predict(block: Block, coef: Array, intercept: Array) -> Array:
    """Phi u + b with contiguous columns, because later steps work column by column."""
    prediction = (coef.T @ block.features.T).T
    prediction += intercept
    return prediction


def residuals(block: Block, loss: Loss, coef: Array, intercept: Array) -> Array:
    """offset - sign (Phi u + b), with contiguous columns."""
    prediction = _predict(block, coef, intercept)
    offset, sign = loss.margin_transform(block.targets)
    prediction *= sign
    return np.subtract(offset, prediction, out=prediction)


def set_residuals(block: Block, state: BlockState, args: tuple[Loss, Array, Array]) -> float:
    """Set the residuals; return the largest absolute one, which shows a NaN or infinity."""
    state["residual"] = residuals(block, *args)
    if "anchor" not in state:
        state["anchor"] = np.zeros_like(state["residual"])
    return float(np.abs(state["residual"]).max(initial=0))


def smoothed_gradient(block: Block, state: BlockState, args: tuple[Loss, Array]) -> tuple[Array, ...]:
    """The fields of `DualSums` over one block, for the duals of the smoothed loss."""
    loss, width = args
    if is_compiled(loss, block):
        return _compiled_smoothed_gradient(block, state, loss, width)
    dual, curvature = loss.smooth(state["residual"], state["anchor"], width)
    return (*_dual_sums(block, loss, state["residual"], dual), np.count_nonzero(curvature, axis=0))


def multiplier_gradient(block: Block, state: BlockState, args: tuple[Loss, tuple[Array, Array]]) -> tuple[Array, ...]:
    """The fields of `DualSums` over one block, for the multipliers as duals."""
    loss, (positive, negative) = args
    anchor = state["anchor"]
    _, sign = loss.margin_transform(block.targets)
    dual = np.where(sign * anchor > 0, positive, negative) * anchor
    return (*_dual_sums(block, loss, state["residual"], dual), np.zeros(dual.shape[1]))


def _dual_sums(block: Block, loss: Loss, residual: Array, dual: Array) -> tuple[Array, ...]:
    """The fields of `DualSums` except the last, over one block."""
    value, conjugate = loss.value(residual), loss.conjugate(dual)
    _, sign = loss.margin_transform(block.targets)
    weighted = dual * block.share[:, None] * sign
    mean_dual = weighted.sum(axis=0)
    positive = np.maximum(weighted, 0).sum(axis=0)
    conjugate += value
    conjugate -= dual * residual
    return (
        (weighted.T @ block.features).T,
        mean_dual,
        positive,
        positive - mean_dual,
        block.share @ value,
        block.share @ conjugate,
    )


def curvature(
    block: Block, state: BlockState, args: tuple[Loss, Array, NDArray[np.bool_], NDArray[np.bool_]]
) -> list[Curvature]:
    """Block function: the Hessian of every column over one block."""
    loss, width, few, anchored = args
    answers = []
    for k, (active, weight, surplus) in enumerate(_find_active(block, state, loss, width, anchored)):
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
) -> list[ActiveColumn]:
    """The active rows of each column, their weights h, and their surplus h (r - r*) with the row's sign."""
    if is_compiled(loss, block):
        return _compiled_find_active(block, state, loss, width, anchored)
    residual, anchor = state["residual"], state["anchor"]
    at_multiplier = loss.inverse_subgradient(anchor)
    at = np.where(anchored, at_multiplier, residual) if anchored.any() else residual
    h = loss.curvature(at, anchor, width) * block.share[:, None]
    _, sign = loss.margin_transform(block.targets)
    signed_surplus = sign * (residual - at_multiplier)
    rows = [np.flatnonzero(h[:, k]) for k in range(len(width))]
    return [(active, h[active, k], h[active, k] * signed_surplus[active, k]) for k, active in enumerate(rows)]


def find_active(block: Block, state: BlockState, args: tuple[Loss, Array, NDArray[np.bool_]]) -> list[ActiveColumn]:
    """Block function: the same, by indices among all rows."""
    return [(block.start + active, h, surplus) for active, h, surplus in _find_active(block, state, *args)]


def concatenate_active(answers: list[list[ActiveColumn]]) -> list[ActiveColumn]:
    """Reduce step: the active rows of every column over all blocks."""
    index, h, surplus = (
        [np.concatenate(parts) for parts in zip(*([column[j] for column in answer] for answer in answers), strict=True)]
        for j in range(3)
    )
    return list(zip(index, h, surplus, strict=True))


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
    sums = sum_tuples([(part.surplus, part.gram, part.cross, part.total) for part in parts])
    return Curvature(sums[0], gram=sums[1], cross=sums[2], total=sums[3])


def set_direction(block: Block, state: BlockState, args: tuple[Loss, Array, Array]) -> None:
    """Store s_i (phi_i'x + z) of the direction (x, z): the residual changes by minus this per unit step."""
    loss, coef, intercept = args
    _, sign = loss.margin_transform(block.targets)
    state["change"] = _predict(block, coef, intercept) * sign


def eval_along_direction(block: Block, state: BlockState, args: tuple[Loss, Array, Array]) -> tuple[Array, Array]:
    """First and second derivative of the smoothed mean loss at r - step change."""
    loss, width, step = args
    if is_compiled(loss, block):
        return _compiled_eval_along_direction(block, state, loss, width, step)
    change, residual = state["change"], step * state["change"]
    np.subtract(state["residual"], residual, out=residual)
    dual, curvature = loss.smooth(residual, state["anchor"], width)
    dual *= change
    curvature *= change
    curvature *= change
    return -(block.share @ dual), block.share @ curvature


def step(block: Block, state: BlockState, step: Array) -> None:  # noqa: ARG001
    """r = r - step change."""
    state["residual"] -= step * state["change"]


def set_multipliers(block: Block, state: BlockState, dual: Array) -> None:
    """The same multiplier for all rows of a column."""
    state["anchor"] = np.tile(dual[:, None], len(block.share)).T


def update_multipliers(block: Block, state: BlockState, args: tuple[Loss, Array, Array]) -> None:  # noqa: ARG001
    """z = v, in the given columns."""
    loss, width, columns = args
    dual = loss.dual(state["residual"], state["anchor"], width)
    state["anchor"] = dual if columns.all() else np.where(columns, dual, state["anchor"])


def intercept_interval(block: Block, state: BlockState, loss: Loss) -> tuple[Array, Array]:
    """Range of intercept shifts for which every row's dual stays a subgradient of its loss."""
    low, high = loss.subgradient_interval(state["residual"], state["anchor"])
    _, sign = loss.margin_transform(block.targets)
    has_weight, low, high = (
        block.share[:, None] > 0,
        np.minimum(sign * low, sign * high),
        np.maximum(sign * low, sign * high),
    )
    return np.max(low, axis=0, initial=-np.inf, where=has_weight), np.min(
        high, axis=0, initial=np.inf, where=has_weight
    )


def intersect(answers: list[tuple[Array, Array]]) -> tuple[Array, Array]:
    """Reduce step: the intersection of the blocks' intervals."""
    below, above = zip(*answers, strict=True)
    return np.max(below, axis=0), np.min(above, axis=0)


def shift_intercept(block: Block, state: BlockState, args: tuple[Loss, Array]) -> None:
    """Residuals after the intercepts moved by `shift` (q,)."""
    loss, shift = args
    _, sign = loss.margin_transform(block.targets)
    state["residual"] -= sign * shift


# Losses of two lines on long blocks


def is_compiled(loss: Loss, block: Block) -> bool:
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


def _compiled_smoothed_gradient(block: Block, state: BlockState, loss: Loss, width: Array) -> tuple[Array, ...]:
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


def _compiled_eval_along_direction(
    block: Block, state: BlockState, loss: Loss, width: Array, step: Array
) -> tuple[Array, Array]:
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


def _compiled_find_active(
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
