"""The objective, written once, as sums over row blocks.

    F(u, b) = (1/W) sum_i w_i loss(y_i - phi_i'u - b) + alpha u'u            one fit per column: u (M, q), b (q,)

or, for a loss of the margin, loss(1 - y_i (phi_i'u + b)). Both are residuals r_i = offset_i - s_i (phi_i'u + b) with a
sign s_i (`Loss.margin_transform`), and such a row enters the sums below as s_i phi_i. With a dual variable v per row (the anchor)
and a width d, the smoothed objective

    F_d(u, b) = (1/W) sum_i w_i max_v [v r_i - conjugate(v) - d (v - anchor_i)^2 / 2] + alpha u'u

has the gradient  2 alpha u - Phi'(w v+)/W  and the Hessian  2 alpha I + Phi' diag(w c / W) Phi,  where v+ is the
maximiser and c its derivative in r, zero on most rows. A solver asks for these sums and never sees a row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quernel.data import Block, BlockState, InMemoryDesign, RowState, nothing, total
from quernel.losses import Loss
from quernel.objective import piecewise
from quernel.objective.hessian import Curvature, curvature_block, reduce_curvatures

Array = NDArray[np.floating]


@dataclass(frozen=True, eq=False)
class DualSums:
    """Sums at the current residuals and duals v, one entry per column (v stands for s v where rows have signs).

    phi_t_dual (M, q) is Phi'(w v)/W; mean_dual is mean v; positive and negative are the sizes of its two parts; loss is the
    mean loss; fenchel_gap is mean(loss + conjugate(v) - v r) >= 0; active counts the rows with curvature.
    """

    phi_t_dual: Array
    mean_dual: Array
    positive: Array
    negative: Array
    loss: Array
    fenchel_gap: Array
    active: Array

    def take(self, columns: NDArray[np.intp]) -> DualSums:
        """The sums of some of the columns."""
        return DualSums(*(getattr(self, field.name)[..., columns] for field in fields(self)))


@dataclass(frozen=True, eq=False)
class ScreenedRows:
    """Rows left out of a problem because their duals v are known: to the others they are one linear term.

    phi_t_dual (M, q) is Phi'(w s v)/W, mean_dual (q,) is sum w s v / W and constant (q,) is sum w (v offset - conjugate(v)) / W,
    over those rows; their loss is constant - phi_t_dual'u - mean_dual b.
    """

    phi_t_dual: Array
    mean_dual: Array
    constant: Array

    def take(self, columns: NDArray[np.intp]) -> ScreenedRows:
        """The terms of some of the columns."""
        return ScreenedRows(self.phi_t_dual[:, columns], self.mean_dual[columns], self.constant[columns])

    def within(self, basis: Array) -> ScreenedRows:
        """The terms for the features Phi B."""
        return ScreenedRows(basis.T @ self.phi_t_dual, self.mean_dual, self.constant)


class NotFiniteError(ValueError):
    """Some row has a residual that is no finite number."""


def require_finite(numbers: ArrayLike) -> None:
    """Numbers, or sums or maxima of them in which one NaN or infinity shows, must be finite."""
    if not np.isfinite(numbers).all():
        raise NotFiniteError(
            "Some rows have residuals that are not finite: their features or targets hold NaN, infinity or numbers so "
            "large that they overflow. Leave those rows out, or rescale their columns."
        )


class Problem:
    """One fit per column over the same lifted rows.

    Parameters
    ----------
    rows : LiftedRows
    loss : Loss with q columns
    alpha : float or array of shape (q,)
    fit_intercept : bool
    screened : ScreenedRows or None
        What rows contribute that were screened out.
    """

    def __init__(
        self,
        rows: InMemoryDesign,
        loss: Loss,
        alpha: Array | float,
        *,
        fit_intercept: bool = True,
        screened: ScreenedRows | None = None,
    ) -> None:
        self.rows = rows
        self.loss = loss
        self.n_columns = len(loss.domain[0])
        self.alpha = np.broadcast_to(np.asarray(alpha, dtype=float), (self.n_columns,))
        self.fit_intercept = fit_intercept
        self.screened = screened

    def take(self, columns: NDArray[np.intp]) -> Problem:
        """The problem of some of the columns."""
        screened = self.screened.take(columns) if self.screened is not None else None
        return self._replace(self.rows, columns, screened)

    def on(self, rows: InMemoryDesign) -> Problem:
        """The problem of other rows."""
        return self._replace(rows, np.arange(self.n_columns), None)

    def run_at(self, function: Callable[..., tuple[Any, Any]], *args: Any) -> tuple[Any, Any]:
        """function(problem, *args), called where those of its arguments are that stayed with the rows.

        It returns what stays there and what comes back. Where the rows are far away, the problem goes there without.
        """
        problem = self if self.rows.near else self.on(self.rows.elsewhere())  # type: ignore[attr-defined]
        return self.rows.run_at(function, problem, *args)

    def within(self, basis: Array | None) -> Problem:
        """The problem of the coefficients u = B z, in z; B has orthonormal columns, so that the penalty is z'z."""
        if basis is None:
            return self
        screened = self.screened.within(basis) if self.screened is not None else None
        return self._replace(self.rows.within(basis), np.arange(self.n_columns), screened)

    def _replace(self, rows: InMemoryDesign, columns: NDArray[np.intp], screened: ScreenedRows | None) -> Problem:
        alpha = self.alpha[columns]
        return Problem(
            rows.take(columns), self.loss.take(columns), alpha, fit_intercept=self.fit_intercept, screened=screened
        )

    def objective(self, sums: DualSums, coef: Array, intercept: Array) -> Array:
        """F at (coef, intercept), where `smoothed_gradient` was taken."""
        value = sums.loss + self.alpha * np.einsum("ij,ij->j", coef, coef)
        if self.screened is None:
            return value
        linear = np.einsum("ij,ij->j", self.screened.phi_t_dual, coef) + self.screened.mean_dual * intercept
        return value + self.screened.constant - linear

    # Each method sends one of the steps below to every block and adds up the answers.

    def set_coefficients(self, state: RowState, coef: Array, intercept: Array) -> None:
        """Set the residuals to those of (coef, intercept); anchors start at zero unless they are remembered."""
        require_finite(self.rows.map_reduce(_set_residuals, state, (self.loss, coef, intercept), join=np.max))

    def smoothed_gradient(self, state: RowState, width: Array) -> DualSums:
        """The sums for the duals that maximise the smoothed loss."""
        return self._add_screened(self.rows.map_reduce(_smoothed_gradient_block, state, (self.loss, width), join=total))

    def multiplier_gradient(self, state: RowState, shrink: tuple[Array, Array]) -> DualSums:
        """The sums for the anchors themselves, their positive and negative parts shrunk by these factors."""
        return self._add_screened(
            self.rows.map_reduce(_multiplier_gradient_block, state, (self.loss, shrink), join=total)
        )

    def _add_screened(self, sums: tuple[Array, ...]) -> DualSums:
        """The sums over these rows, with the screened ones' part of phi_t_dual and mean_dual."""
        if self.screened is None:
            return DualSums(*sums)
        phi_t_dual, mean_dual, *rest = sums
        return DualSums(phi_t_dual + self.screened.phi_t_dual, mean_dual + self.screened.mean_dual, *rest)

    def curvature(
        self, state: RowState, width: Array, few: NDArray[np.bool_], anchored: NDArray[np.bool_]
    ) -> list[Curvature]:
        """The Hessian of each column: of the rows active now or, where `anchored`, of those whose anchor is inside."""
        few = few & self.rows.near  # rows that are far away stay there
        return self.rows.map_reduce(curvature_block, state, (self.loss, width, few, anchored), join=reduce_curvatures)

    def set_direction(self, state: RowState, coef: Array, intercept: Array) -> None:
        """Remember how the predictions change along a direction."""
        self.rows.map_reduce(_set_direction_block, state, (self.loss, coef, intercept), join=nothing)

    def eval_along_direction(self, state: RowState, width: Array, step: Array) -> tuple[Array, Array]:
        """Slope and curvature of the smoothed mean loss along the direction, at one step length per column."""
        slope, bend = self.rows.map_rows(_eval_along_direction_block, state, (self.loss, width, step), join=total)
        return slope, bend

    def screened_slope(self, coef: Array, intercept: Array) -> Array:
        """Slope of the screened rows' loss along a direction."""
        if self.screened is None:
            return np.zeros(self.n_columns)
        return -np.einsum("ij,ij->j", self.screened.phi_t_dual, coef) - self.screened.mean_dual * intercept

    def step(self, state: RowState, step: Array) -> None:
        """Move the residuals along the direction."""
        self.rows.map_rows(_step_block, state, step, join=nothing)

    def update_multipliers(self, state: RowState, width: Array, columns: NDArray[np.bool_]) -> None:
        """Let the duals of these columns become the new anchors."""
        self.rows.map_rows(_update_multipliers_block, state, (self.loss, width, columns), join=nothing)

    def center_intercept(self, state: RowState, columns: NDArray[np.bool_]) -> Array:
        """Move these intercepts to the middle between the rows above and below; return by how much."""
        below, above = self.rows.map_rows(_intercept_interval_block, state, self.loss, join=_intersect)
        free = columns & np.isfinite(below) & np.isfinite(above)
        shift = np.where(free, np.where(free, below, 0) + np.where(free, above, 0), 0) / 2
        self.rows.map_rows(_shift_intercept_block, state, (self.loss, shift), join=nothing)
        return shift

    def set_multipliers(self, state: RowState, dual: Array) -> None:
        """Set the anchors of all rows of a column to the same dual."""
        self.rows.map_rows(_set_multipliers_block, state, dual, join=nothing)

    def size(self) -> float:
        """mean |phi|^2, roughly: the scale of the kernel."""
        return self.rows.size()


def _predict(block: Block, coef: Array, intercept: Array) -> Array:
    """Phi u + b with contiguous columns: every later step works column by column."""
    prediction = (coef.T @ block.features.T).T
    prediction += intercept
    return prediction


def residuals(block: Block, loss: Loss, coef: Array, intercept: Array) -> Array:
    """offset - sign (Phi u + b), with contiguous columns."""
    prediction = _predict(block, coef, intercept)
    offset, sign = loss.margin_transform(block.targets)
    prediction *= sign
    return np.subtract(offset, prediction, out=prediction)


def _set_residuals(block: Block, state: BlockState, args: tuple[Loss, Array, Array]) -> float:
    state["residual"] = residuals(block, *args)
    if "anchor" not in state:
        state["anchor"] = np.zeros_like(state["residual"])
    return float(np.abs(state["residual"]).max(initial=0))


def _smoothed_gradient_block(block: Block, state: BlockState, args: tuple[Loss, Array]) -> tuple[Array, ...]:
    loss, width = args
    if piecewise.applies(loss, block):
        return piecewise.smoothed_gradient(block, state, loss, width)
    dual, curvature = loss.smooth(state["residual"], state["anchor"], width)
    return (*_dual_sums(block, loss, state["residual"], dual), np.count_nonzero(curvature, axis=0))


def _multiplier_gradient_block(
    block: Block, state: BlockState, args: tuple[Loss, tuple[Array, Array]]
) -> tuple[Array, ...]:
    loss, (positive, negative) = args
    anchor = state["anchor"]
    _, sign = loss.margin_transform(block.targets)
    dual = np.where(sign * anchor > 0, positive, negative) * anchor
    return (*_dual_sums(block, loss, state["residual"], dual), np.zeros(dual.shape[1]))


def _dual_sums(block: Block, loss: Loss, residual: Array, dual: Array) -> tuple[Array, ...]:
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


def _set_direction_block(block: Block, state: BlockState, args: tuple[Loss, Array, Array]) -> None:
    loss, coef, intercept = args
    _, sign = loss.margin_transform(block.targets)
    state["change"] = _predict(block, coef, intercept) * sign


def _eval_along_direction_block(
    block: Block, state: BlockState, args: tuple[Loss, Array, Array]
) -> tuple[Array, Array]:
    loss, width, step = args
    if piecewise.applies(loss, block):
        return piecewise.eval_along_direction(block, state, loss, width, step)
    change, residual = state["change"], step * state["change"]
    np.subtract(state["residual"], residual, out=residual)
    dual, curvature = loss.smooth(residual, state["anchor"], width)
    dual *= change
    curvature *= change
    curvature *= change
    return -(block.share @ dual), block.share @ curvature


def _step_block(block: Block, state: BlockState, step: Array) -> None:  # noqa: ARG001
    state["residual"] -= step * state["change"]


def _set_multipliers_block(block: Block, state: BlockState, dual: Array) -> None:
    state["anchor"] = np.tile(dual[:, None], len(block.share)).T


def _update_multipliers_block(block: Block, state: BlockState, args: tuple[Loss, Array, Array]) -> None:  # noqa: ARG001
    loss, width, columns = args
    dual = loss.dual(state["residual"], state["anchor"], width)
    state["anchor"] = dual if columns.all() else np.where(columns, dual, state["anchor"])


def _intercept_interval_block(block: Block, state: BlockState, loss: Loss) -> tuple[Array, Array]:
    """How far the intercept can go up and down before a row leaves its line of the loss."""
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


def _intersect(answers: list[tuple[Array, Array]]) -> tuple[Array, Array]:
    below, above = zip(*answers, strict=True)
    return np.max(below, axis=0), np.min(above, axis=0)


def _shift_intercept_block(block: Block, state: BlockState, args: tuple[Loss, Array]) -> None:
    loss, shift = args
    _, sign = loss.margin_transform(block.targets)
    state["residual"] -= sign * shift
