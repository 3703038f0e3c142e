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
from quernel.objective.hessian import Curvature, curvature_of, joined

Array = NDArray[np.floating]


@dataclass(frozen=True, eq=False)
class DualSums:
    """Sums at the current residuals and duals v, one entry per column (v stands for s v where rows have signs).

    force (M, q) is Phi'(w v)/W; balance is mean v; positive and negative are the sizes of its two parts; loss is the
    mean loss; slack is mean(loss + conjugate(v) - v r) >= 0; active counts the rows with curvature.
    """

    force: Array
    balance: Array
    positive: Array
    negative: Array
    loss: Array
    slack: Array
    active: Array

    def take(self, columns: NDArray[np.intp]) -> DualSums:
        """The sums of some of the columns."""
        return DualSums(*(getattr(self, field.name)[..., columns] for field in fields(self)))


@dataclass(frozen=True, eq=False)
class ScreenedRows:
    """Rows left out of a problem because their duals v are known: to the others they are one linear term.

    force (M, q) is Phi'(w s v)/W, balance (q,) is sum w s v / W and level (q,) is sum w (v offset - conjugate(v)) / W,
    over those rows; their loss is level - force'u - balance b.
    """

    force: Array
    balance: Array
    level: Array

    def take(self, columns: NDArray[np.intp]) -> ScreenedRows:
        """The terms of some of the columns."""
        return ScreenedRows(self.force[:, columns], self.balance[columns], self.level[columns])

    def within(self, basis: Array) -> ScreenedRows:
        """The terms for the features Phi B."""
        return ScreenedRows(basis.T @ self.force, self.balance, self.level)


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
    settled : Settled or None
        What rows contribute that were screened out.
    """

    def __init__(
        self,
        rows: InMemoryDesign,
        loss: Loss,
        alpha: Array | float,
        *,
        fit_intercept: bool = True,
        settled: ScreenedRows | None = None,
    ) -> None:
        self.rows = rows
        self.loss = loss
        self.n_columns = len(loss.domain[0])
        self.alpha = np.broadcast_to(np.asarray(alpha, dtype=float), (self.n_columns,))
        self.fit_intercept = fit_intercept
        self.settled = settled

    def take(self, columns: NDArray[np.intp]) -> Problem:
        """The problem of some of the columns."""
        settled = self.settled.take(columns) if self.settled is not None else None
        return self._like(self.rows, columns, settled)

    def on(self, rows: InMemoryDesign) -> Problem:
        """The problem of other rows."""
        return self._like(rows, np.arange(self.n_columns), None)

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
        settled = self.settled.within(basis) if self.settled is not None else None
        return self._like(self.rows.within(basis), np.arange(self.n_columns), settled)

    def _like(self, rows: InMemoryDesign, columns: NDArray[np.intp], settled: ScreenedRows | None) -> Problem:
        alpha = self.alpha[columns]
        return Problem(
            rows.take(columns), self.loss.take(columns), alpha, fit_intercept=self.fit_intercept, settled=settled
        )

    def objective(self, pull: DualSums, coef: Array, intercept: Array) -> Array:
        """F at (coef, intercept), where `smoothed_gradient` was taken."""
        value = pull.loss + self.alpha * np.einsum("ij,ij->j", coef, coef)
        if self.settled is None:
            return value
        linear = np.einsum("ij,ij->j", self.settled.force, coef) + self.settled.balance * intercept
        return value + self.settled.level - linear

    # Each method sends one of the steps below to every block and adds up the answers.

    def set_coefficients(self, memory: RowState, coef: Array, intercept: Array) -> None:
        """Set the residuals to those of (coef, intercept); anchors start at zero unless they are remembered."""
        require_finite(self.rows.map_reduce(_place, memory, (self.loss, coef, intercept), join=np.max))

    def smoothed_gradient(self, memory: RowState, width: Array) -> DualSums:
        """The sums for the duals that maximise the smoothed loss."""
        return self._whole(self.rows.map_reduce(_pull, memory, (self.loss, width), join=total))

    def multiplier_gradient(self, memory: RowState, shrink: tuple[Array, Array]) -> DualSums:
        """The sums for the anchors themselves, their positive and negative parts shrunk by these factors."""
        return self._whole(self.rows.map_reduce(_anchored_pull, memory, (self.loss, shrink), join=total))

    def _whole(self, sums: tuple[Array, ...]) -> DualSums:
        """The sums over these rows, with the settled ones' part of force and balance."""
        if self.settled is None:
            return DualSums(*sums)
        force, balance, *rest = sums
        return DualSums(force + self.settled.force, balance + self.settled.balance, *rest)

    def curvature(
        self, memory: RowState, width: Array, few: NDArray[np.bool_], anchored: NDArray[np.bool_]
    ) -> list[Curvature]:
        """The Hessian of each column: of the rows active now or, where `anchored`, of those whose anchor is inside."""
        few = few & self.rows.near  # rows that are far away stay there
        return self.rows.map_reduce(curvature_of, memory, (self.loss, width, few, anchored), join=joined)

    def set_direction(self, memory: RowState, coef: Array, intercept: Array) -> None:
        """Remember how the predictions change along a direction."""
        self.rows.map_reduce(_aim, memory, (self.loss, coef, intercept), join=nothing)

    def eval_along_direction(self, memory: RowState, width: Array, step: Array) -> tuple[Array, Array]:
        """Slope and curvature of the smoothed mean loss along the direction, at one step length per column."""
        slope, bend = self.rows.map_rows(_probe, memory, (self.loss, width, step), join=total)
        return slope, bend

    def settled_slope(self, coef: Array, intercept: Array) -> Array:
        """Slope of the settled rows' loss along a direction."""
        if self.settled is None:
            return np.zeros(self.n_columns)
        return -np.einsum("ij,ij->j", self.settled.force, coef) - self.settled.balance * intercept

    def step(self, memory: RowState, step: Array) -> None:
        """Move the residuals along the direction."""
        self.rows.map_rows(_advance, memory, step, join=nothing)

    def update_multipliers(self, memory: RowState, width: Array, columns: NDArray[np.bool_]) -> None:
        """Let the duals of these columns become the new anchors."""
        self.rows.map_rows(_settle, memory, (self.loss, width, columns), join=nothing)

    def center_intercept(self, memory: RowState, columns: NDArray[np.bool_]) -> Array:
        """Move these intercepts to the middle between the rows above and below; return by how much."""
        below, above = self.rows.map_rows(_neighbours, memory, self.loss, join=_nearest)
        free = columns & np.isfinite(below) & np.isfinite(above)
        shift = np.where(free, np.where(free, below, 0) + np.where(free, above, 0), 0) / 2
        self.rows.map_rows(_shift, memory, (self.loss, shift), join=nothing)
        return shift

    def set_multipliers(self, memory: RowState, dual: Array) -> None:
        """Set the anchors of all rows of a column to the same dual."""
        self.rows.map_rows(_anchor, memory, dual, join=nothing)

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


def _place(block: Block, memory: BlockState, message: tuple[Loss, Array, Array]) -> float:
    memory["residual"] = residuals(block, *message)
    if "anchor" not in memory:
        memory["anchor"] = np.zeros_like(memory["residual"])
    return float(np.abs(memory["residual"]).max(initial=0))


def _pull(block: Block, memory: BlockState, message: tuple[Loss, Array]) -> tuple[Array, ...]:
    loss, width = message
    if piecewise.applies(loss, block):
        return piecewise.smoothed_gradient(block, memory, loss, width)
    dual, curvature = loss.smooth(memory["residual"], memory["anchor"], width)
    return (*_sums(block, loss, memory["residual"], dual), np.count_nonzero(curvature, axis=0))


def _anchored_pull(block: Block, memory: BlockState, message: tuple[Loss, tuple[Array, Array]]) -> tuple[Array, ...]:
    loss, (positive, negative) = message
    anchor = memory["anchor"]
    _, sign = loss.margin_transform(block.targets)
    dual = np.where(sign * anchor > 0, positive, negative) * anchor
    return (*_sums(block, loss, memory["residual"], dual), np.zeros(dual.shape[1]))


def _sums(block: Block, loss: Loss, residual: Array, dual: Array) -> tuple[Array, ...]:
    value, conjugate = loss.value(residual), loss.conjugate(dual)
    _, sign = loss.margin_transform(block.targets)
    weighted = dual * block.share[:, None] * sign
    balance = weighted.sum(axis=0)
    positive = np.maximum(weighted, 0).sum(axis=0)
    conjugate += value
    conjugate -= dual * residual
    return (
        (weighted.T @ block.features).T,
        balance,
        positive,
        positive - balance,
        block.share @ value,
        block.share @ conjugate,
    )


def _aim(block: Block, memory: BlockState, message: tuple[Loss, Array, Array]) -> None:
    loss, coef, intercept = message
    _, sign = loss.margin_transform(block.targets)
    memory["change"] = _predict(block, coef, intercept) * sign


def _probe(block: Block, memory: BlockState, message: tuple[Loss, Array, Array]) -> tuple[Array, Array]:
    loss, width, step = message
    if piecewise.applies(loss, block):
        return piecewise.eval_along_direction(block, memory, loss, width, step)
    change, residual = memory["change"], step * memory["change"]
    np.subtract(memory["residual"], residual, out=residual)
    dual, curvature = loss.smooth(residual, memory["anchor"], width)
    dual *= change
    curvature *= change
    curvature *= change
    return -(block.share @ dual), block.share @ curvature


def _advance(block: Block, memory: BlockState, step: Array) -> None:  # noqa: ARG001
    memory["residual"] -= step * memory["change"]


def _anchor(block: Block, memory: BlockState, dual: Array) -> None:
    memory["anchor"] = np.tile(dual[:, None], len(block.share)).T


def _settle(block: Block, memory: BlockState, message: tuple[Loss, Array, Array]) -> None:  # noqa: ARG001
    loss, width, columns = message
    dual = loss.dual(memory["residual"], memory["anchor"], width)
    memory["anchor"] = dual if columns.all() else np.where(columns, dual, memory["anchor"])


def _neighbours(block: Block, memory: BlockState, loss: Loss) -> tuple[Array, Array]:
    """How far the intercept can go up and down before a row leaves its line of the loss."""
    low, high = loss.subgradient_interval(memory["residual"], memory["anchor"])
    _, sign = loss.margin_transform(block.targets)
    weighty, low, high = (
        block.share[:, None] > 0,
        np.minimum(sign * low, sign * high),
        np.maximum(sign * low, sign * high),
    )
    return np.max(low, axis=0, initial=-np.inf, where=weighty), np.min(high, axis=0, initial=np.inf, where=weighty)


def _nearest(answers: list[tuple[Array, Array]]) -> tuple[Array, Array]:
    below, above = zip(*answers, strict=True)
    return np.max(below, axis=0), np.min(above, axis=0)


def _shift(block: Block, memory: BlockState, message: tuple[Loss, Array]) -> None:
    loss, shift = message
    _, sign = loss.margin_transform(block.targets)
    memory["residual"] -= sign * shift
