"""The objective, written once, as map-reduce sums over row blocks.

    F(u, b) = (1/W) sum_i w_i loss(y_i - phi_i'u - b) + alpha u'u            one fit per column: u (M, q), b (q,)

or, for a margin loss, loss(1 - y_i (phi_i'u + b)). Both are residuals r_i = offset_i - s_i (phi_i'u + b) with a sign
s_i (`Loss.margin_transform`), and such a row enters the sums below as s_i phi_i.

Kinks are smoothed by the augmented Lagrangian. With a multiplier z_i per row (called `anchor` in the code, the centre
of the proximal term) and a smoothing width d, the inner problem of a proximal multiplier step is to minimise

    F_d(u, b) = (1/W) sum_i w_i max_v [v r_i - conjugate(v) - d (v - z_i)^2 / 2] + alpha u'u.

Its gradient and a generalised Hessian are

    2 alpha u - Phi'(w v)/W        and        2 alpha I + Phi' diag(w c / W) Phi,

where v is the maximiser, for the pinball loss v = clip(r/d + z, tau - 1, tau), and c = dv/dr is zero on the rows whose
v is clipped: most of them. The rows with c > 0 are called active. The multiplier step then sets z = v. This is
semismooth Newton on the augmented Lagrangian, in the manner of Li, Sun and Toh (2018).

A solver asks for these sums and never sees a row; the residuals, multipliers and so on of single rows stay with the
blocks, in its row state.

A problem may be solved in other coordinates (`Centring`), with centred targets, and centred and scaled features:

    y' = y - c,        phi' = s (phi - m),        s a power of two

F is the same function: u = s u' with the ridge weight alpha s^2, and b = b' + c - m'u. Differences of y and c are exact
where y is near c, so that targets far from zero lose no digits; columns far from zero no longer look like a constant.

What is stored is b as a floating point number. Far from zero such numbers are far apart, and rounding b changes F:
therefore fits are certified at the b' that the stored number stands for (`round_intercept`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from math import fsum
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quernel.data import Block, BlockState, DesignMatrix, InMemoryDesign, RowStateLike, discard, sum_tuples
from quernel.losses import Loss
from quernel.objective import piecewise

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Array = NDArray[np.floating]


Record = TypeVar("Record", bound="DataclassInstance")


def take_columns(record: Record, columns: NDArray[np.intp]) -> Record:
    """A dataclass with an entry per column in each of its fields, for some of the columns.

    Fields are arrays whose last axis is that of the columns, lists with an entry per column, or objects with `take`.
    """

    def take(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return value[..., columns]
        return [value[k] for k in columns] if isinstance(value, list) else value.take(columns)

    return replace(record, **{field.name: take(getattr(record, field.name)) for field in fields(record)})


@dataclass(frozen=True, eq=False)
class DualSums:
    """Sums over rows at the current residuals r and duals v, one entry per column.

    Where rows have signs s (margin losses), s v stands for v in the first four.

    Attributes
    ----------
    phi_t_dual : array of shape (M, q)
        Phi'(w v)/W: minus the gradient of the mean loss in u.
    mean_dual : array of shape (q,)
        sum w v / W: minus its derivative in b. Duals are balanced where it is 0.
    positive, negative : arrays of shape (q,)
        Absolute values of the positive and of the negative part of `mean_dual`.
    loss : array of shape (q,)
        Mean loss.
    fenchel_gap : array of shape (q,)
        mean(loss(r) + conjugate(v) - v r) >= 0, zero where every v is a subgradient of the loss at r.
    active : array of shape (q,)
        Number of rows whose v is not clipped: those that enter the Hessian.
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
        return take_columns(self, columns)


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


@dataclass(frozen=True, eq=False)
class ScreenedRows:
    """The linear term of rows that are left out of a problem because their duals v are fixed.

    On the segment of the loss with slope v, loss(r) = v r - conjugate(v), so that the mean loss of these rows is
    constant - phi_t_dual'u - mean_dual b.

    Attributes
    ----------
    phi_t_dual : array of shape (M, q)
        Phi'(w s v)/W over these rows.
    mean_dual : array of shape (q,)
        sum w s v / W.
    constant : array of shape (q,)
        sum w (v offset - conjugate(v)) / W.
    """

    phi_t_dual: Array
    mean_dual: Array
    constant: Array

    def take(self, columns: NDArray[np.intp]) -> ScreenedRows:
        """The terms of some of the columns."""
        return take_columns(self, columns)

    def project(self, basis: Array) -> ScreenedRows:
        """The terms for the projected features Phi B."""
        return ScreenedRows(basis.T @ self.phi_t_dual, self.mean_dual, self.constant)


class NotFiniteError(ValueError):
    """Raised where a row has a residual that is NaN or infinite."""


def require_finite(numbers: ArrayLike) -> None:
    """Raise NotFiniteError unless all numbers (or sums and maxima, which a NaN or infinity would spoil) are finite."""
    if not np.isfinite(numbers).all():
        raise NotFiniteError(
            "Some rows have residuals that are not finite: their features or targets hold NaN, infinity or numbers so "
            "large that they overflow. Leave those rows out, or rescale their columns."
        )


class Problem:
    """The objective F: q fits, one per column, that share the rows of a design matrix.

    Parameters
    ----------
    rows : DesignMatrix
        Features, targets and weights: in memory, in files or on workers.
    loss : Loss
        With q columns.
    alpha : float or array of shape (q,)
        Ridge weights.
    fit_intercept : bool
    screened : ScreenedRows or None
        Linear term of rows that were screened out.
    centring : Centring or None
        The coordinates of features and targets, where they are not the original ones.
    """

    def __init__(
        self,
        rows: DesignMatrix[Any],
        loss: Loss,
        alpha: Array | float,
        *,
        fit_intercept: bool = True,
        screened: ScreenedRows | None = None,
        centring: Centring | None = None,
    ) -> None:
        self.rows = rows
        self.loss = loss
        self.n_columns = len(loss.domain[0])
        self.alpha = np.broadcast_to(np.asarray(alpha, dtype=float), (self.n_columns,))
        self.fit_intercept = fit_intercept
        self.screened = screened
        self.centring = centring

    def take(self, columns: NDArray[np.intp]) -> Self:
        """The problem of some of the columns, on the same rows."""
        screened = self.screened.take(columns) if self.screened is not None else None
        rows, loss, alpha = self.rows.take(columns), self.loss.take(columns), self.alpha[columns]
        intercept, centring = self.fit_intercept, self.centring
        return type(self)(rows, loss, alpha, fit_intercept=intercept, screened=screened, centring=centring)

    def on(self, rows: InMemoryDesign) -> InMemoryProblem:
        """The same columns on other rows, such as a sample of these, without a linear term."""
        return InMemoryProblem(rows, self.loss, self.alpha, fit_intercept=self.fit_intercept, centring=self.centring)

    def in_memory(self, reason: str, *, instead: str = "solver='newton'") -> InMemoryProblem:
        """The problem with its rows as arrays; raises the ValueError of `DesignMatrix.in_memory` if they are not."""
        return self.on(self.rows.in_memory(reason, instead=instead))

    def run_at(self, function: Callable[..., tuple[Any, Any]], *args: object) -> tuple[Any, Any]:
        """Call function(problem, *args) where the rows live: here, or on the worker that holds its arguments.

        The function gets an `InMemoryProblem`, of these rows if they are in memory and of a stub without rows if not.
        It returns a pair, what stays there (as a handle) and what is sent back.
        """
        return self.rows.run_at(function, self.on(self.rows.remote()), *args)

    def project(self, basis: Array | None) -> Self:
        """The problem in z, where u = B z; B (M, k) has orthonormal columns, so that the penalty is alpha z'z.

        Its intercepts are not rounded like those that are stored: a fit is certified over all features.
        """
        if basis is None:
            return self
        screened = self.screened.project(basis) if self.screened is not None else None
        rows = self.rows.project(basis)
        return type(self)(rows, self.loss, self.alpha, fit_intercept=self.fit_intercept, screened=screened)

    def objective(self, sums: DualSums, coef: Array, intercept: Array) -> Array:
        """F (q,) at (coef, intercept), from the sums of `smoothed_gradient` there."""
        value = sums.loss + self.alpha * np.einsum("ij,ij->j", coef, coef)
        if self.screened is None:
            return value
        linear = np.einsum("ij,ij->j", self.screened.phi_t_dual, coef) + self.screened.mean_dual * intercept
        return value + self.screened.constant - linear

    # Each of the following maps one of the block functions below over the row blocks, and reduces the answers. Those
    # that need the features use `map_reduce`, a pass over them; the others use `map_rows`, which reads row state only.

    def set_coefficients(self, state: RowStateLike, coef: Array, intercept: Array) -> None:
        """Set the residuals to those of (coef, intercept); multipliers start at zero unless the state has some."""
        require_finite(self.rows.map_reduce(_set_residuals, state, (self.loss, coef, intercept), reduce=np.max))

    def smoothed_gradient(self, state: RowStateLike, width: Array) -> DualSums:
        """Sums for the duals v that maximise the smoothed loss of width (q,): all that the gradient of F_d needs."""
        return self._add_screened(
            self.rows.map_reduce(_smoothed_gradient_block, state, (self.loss, width), reduce=sum_tuples)
        )

    def multiplier_gradient(self, state: RowStateLike, shrink: tuple[Array, Array]) -> DualSums:
        """Sums for the multipliers as duals, the positive and the negative ones multiplied by these factors (q,)."""
        return self._add_screened(
            self.rows.map_reduce(_multiplier_gradient_block, state, (self.loss, shrink), reduce=sum_tuples)
        )

    def _add_screened(self, sums: tuple[Array, ...]) -> DualSums:
        """The sums over these rows, plus phi_t_dual and mean_dual of the screened ones."""
        if self.screened is None:
            return DualSums(*sums)
        phi_t_dual, mean_dual, *rest = sums
        return DualSums(phi_t_dual + self.screened.phi_t_dual, mean_dual + self.screened.mean_dual, *rest)

    def curvature(
        self, state: RowStateLike, width: Array, few: NDArray[np.bool_], anchored: NDArray[np.bool_]
    ) -> list[Curvature]:
        """The Hessian of each column's smoothed mean loss, from its active rows.

        Where `anchored` (q,), the active rows are those whose multiplier is strictly inside its box, in place of those
        whose dual is not clipped at the current residual. Where `few` (q,), the rows themselves are returned instead of
        their Gram matrix.
        """
        args = self.loss, width, few & self.rows.returns_rows, anchored
        return self.rows.map_reduce(_curvature_block, state, args, reduce=_reduce_curvatures)

    def find_active(
        self, state: RowStateLike, width: Array, anchored: NDArray[np.bool_]
    ) -> list[piecewise.ActiveColumn]:
        """The active rows of each column, as in `curvature`, among all rows: indices, weights h, and surplus."""
        return self.rows.map_rows(_find_active_block, state, (self.loss, width, anchored), reduce=_concatenate_columns)

    def set_direction(self, state: RowStateLike, coef: Array, intercept: Array) -> None:
        """Store the change of each row along the direction (coef, intercept), for the line search."""
        self.rows.map_reduce(_set_direction_block, state, (self.loss, coef, intercept), reduce=discard)

    def eval_along_direction(self, state: RowStateLike, width: Array, step: Array) -> tuple[Array, Array]:
        """First and second derivative of the smoothed mean loss along the direction, at step lengths (q,)."""
        slope, bend = self.rows.map_rows(
            _eval_along_direction_block, state, (self.loss, width, step), reduce=sum_tuples
        )
        return slope, bend

    def screened_slope(self, coef: Array, intercept: Array) -> Array:
        """Derivative (q,) of the screened rows' linear term along a direction."""
        if self.screened is None:
            return np.zeros(self.n_columns)
        return -np.einsum("ij,ij->j", self.screened.phi_t_dual, coef) - self.screened.mean_dual * intercept

    def step(self, state: RowStateLike, step: Array) -> None:
        """Move the residuals by step lengths (q,) along the direction."""
        self.rows.map_rows(_step_block, state, step, reduce=discard)

    def update_multipliers(self, state: RowStateLike, width: Array, columns: NDArray[np.bool_]) -> None:
        """The multiplier step z = v, in these columns (q,)."""
        self.rows.map_rows(_update_multipliers_block, state, (self.loss, width, columns), reduce=discard)

    def center_intercept(self, state: RowStateLike, columns: NDArray[np.bool_]) -> Array:
        """Move the intercepts of these columns (q,) to the middle of their optimal interval; return the shifts (q,)."""
        below, above = self.rows.map_rows(_intercept_interval_block, state, self.loss, reduce=_intersect)
        free = columns & np.isfinite(below) & np.isfinite(above)
        shift = np.where(free, np.where(free, below, 0) + np.where(free, above, 0), 0) / 2
        self.shift_intercept(state, shift)
        return shift

    def round_intercept(self, coef: Array, intercept: Array) -> Array:
        """The intercepts (q,) that fits have once they are stored: see `Centring`.

        Samples whose features are those of a basis are not what is stored: their intercepts stay as they are.
        """
        if self.centring is None or not self.fit_intercept or not self.centring.fits(len(coef)):
            return intercept
        return self.centring.round_intercept(coef, intercept)

    def storable_constants(self, constant: Array) -> list[Array]:
        """The constant fits (q,) nearest to the given ones that can be stored; several if they are far from zero."""
        if self.centring is None or not self.fit_intercept or not self.centring.fits(self.rows.n_features):
            return [constant]
        zero = np.zeros((self.rows.n_features, self.n_columns))
        stored = self.centring.restore(zero, constant)[1]
        near = (
            [stored]
            if self.centring.target == 0
            else [stored, np.nextafter(stored, np.inf), np.nextafter(stored, -np.inf)]
        )
        return [self.centring.enter(zero, one)[1] for one in near]

    def shift_intercept(self, state: RowStateLike, shift: Array) -> None:
        """Move the residuals of the state to intercepts larger by `shift` (q,)."""
        self.rows.map_rows(_shift_intercept_block, state, (self.loss, shift), reduce=discard)

    def set_multipliers(self, state: RowStateLike, dual: Array) -> None:
        """Set the multipliers of all rows of a column to the same dual (q,)."""
        self.rows.map_rows(_set_multipliers_block, state, dual, reduce=discard)


class InMemoryProblem(Problem):
    """A problem whose rows are arrays in this process, such as a sample: they can be indexed, their state collected."""

    rows: InMemoryDesign


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


def _set_residuals(block: Block, state: BlockState, args: tuple[Loss, Array, Array]) -> float:
    """Set the residuals; return the largest absolute one, which shows a NaN or infinity."""
    state["residual"] = residuals(block, *args)
    if "anchor" not in state:
        state["anchor"] = np.zeros_like(state["residual"])
    return float(np.abs(state["residual"]).max(initial=0))


def _smoothed_gradient_block(block: Block, state: BlockState, args: tuple[Loss, Array]) -> tuple[Array, ...]:
    """The fields of `DualSums` over one block, for the duals of the smoothed loss."""
    loss, width = args
    if piecewise.applies(loss, block):
        return piecewise.smoothed_gradient(block, state, loss, width)
    dual, curvature = loss.smooth(state["residual"], state["anchor"], width)
    return (*_dual_sums(block, loss, state["residual"], dual), np.count_nonzero(curvature, axis=0))


def _multiplier_gradient_block(
    block: Block, state: BlockState, args: tuple[Loss, tuple[Array, Array]]
) -> tuple[Array, ...]:
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


def _curvature_block(
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
) -> list[piecewise.ActiveColumn]:
    """The active rows of each column, their weights h, and their surplus h (r - r*) with the row's sign."""
    if piecewise.applies(loss, block):
        return piecewise.find_active(block, state, loss, width, anchored)
    residual, anchor = state["residual"], state["anchor"]
    at_multiplier = loss.inverse_subgradient(anchor)
    at = np.where(anchored, at_multiplier, residual) if anchored.any() else residual
    h = loss.curvature(at, anchor, width) * block.share[:, None]
    _, sign = loss.margin_transform(block.targets)
    signed_surplus = sign * (residual - at_multiplier)
    rows = [np.flatnonzero(h[:, k]) for k in range(len(width))]
    return [(active, h[active, k], h[active, k] * signed_surplus[active, k]) for k, active in enumerate(rows)]


def _find_active_block(
    block: Block, state: BlockState, args: tuple[Loss, Array, NDArray[np.bool_]]
) -> list[piecewise.ActiveColumn]:
    """Block function: the same, by indices among all rows."""
    return [(block.start + active, h, surplus) for active, h, surplus in _find_active(block, state, *args)]


def _concatenate_columns(answers: list[list[piecewise.ActiveColumn]]) -> list[piecewise.ActiveColumn]:
    """Reduce step: the active rows of every column over all blocks."""
    index, h, surplus = (
        [np.concatenate(parts) for parts in zip(*([column[j] for column in answer] for answer in answers), strict=True)]
        for j in range(3)
    )
    return list(zip(index, h, surplus, strict=True))


def _reduce_curvatures(answers: list[list[Curvature]]) -> list[Curvature]:
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


def _set_direction_block(block: Block, state: BlockState, args: tuple[Loss, Array, Array]) -> None:
    """Store s_i (phi_i'x + z) of the direction (x, z): the residual changes by minus this per unit step."""
    loss, coef, intercept = args
    _, sign = loss.margin_transform(block.targets)
    state["change"] = _predict(block, coef, intercept) * sign


def _eval_along_direction_block(
    block: Block, state: BlockState, args: tuple[Loss, Array, Array]
) -> tuple[Array, Array]:
    """First and second derivative of the smoothed mean loss at r - step change."""
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
    """r = r - step change."""
    state["residual"] -= step * state["change"]


def _set_multipliers_block(block: Block, state: BlockState, dual: Array) -> None:
    """The same multiplier for all rows of a column."""
    state["anchor"] = np.tile(dual[:, None], len(block.share)).T


def _update_multipliers_block(block: Block, state: BlockState, args: tuple[Loss, Array, Array]) -> None:  # noqa: ARG001
    """z = v, in the given columns."""
    loss, width, columns = args
    dual = loss.dual(state["residual"], state["anchor"], width)
    state["anchor"] = dual if columns.all() else np.where(columns, dual, state["anchor"])


def _intercept_interval_block(block: Block, state: BlockState, loss: Loss) -> tuple[Array, Array]:
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


def _intersect(answers: list[tuple[Array, Array]]) -> tuple[Array, Array]:
    """Reduce step: the intersection of the blocks' intervals."""
    below, above = zip(*answers, strict=True)
    return np.max(below, axis=0), np.min(above, axis=0)


def _shift_intercept_block(block: Block, state: BlockState, args: tuple[Loss, Array]) -> None:
    """Residuals after the intercepts moved by `shift` (q,)."""
    loss, shift = args
    _, sign = loss.margin_transform(block.targets)
    state["residual"] -= sign * shift


# Splits a float64 into halves of 26 bits (Dekker 1971).
_SPLITTER = 2.0**27 + 1


@dataclass(frozen=True, eq=False)
class Centring:
    """Centre c of the targets, m (M,) of the features (None for zero) and scale s of the features."""

    target: float = 0.0
    mean: Array | None = None
    scale: float = 1.0

    def fits(self, n_features: int) -> bool:
        """Whether so many features can be those of these coordinates."""
        return self.mean is None or len(self.mean) == n_features

    def transform_features(self, features: Array) -> Array:
        """phi' (n, M) of original features."""
        if self.mean is not None:
            features = features - self.mean
        return features if self.scale == 1 else features * self.scale

    def round_intercept(self, coef: Array, intercept: Array) -> Array:
        """The b' (q,) of the floating point numbers b that are nearest to those of (u', b'); rounded once, to b'."""
        stored = self.restore(coef, intercept)[1]
        return self._sum_with_centre(stored, coef, -1.0)

    def restore(self, coef: Array, intercept: Array) -> tuple[Array, Array]:
        """(u, b) of a fit (u', b'): M x q coefficients and q intercepts, each b rounded once."""
        return self.scale * coef, self._sum_with_centre(intercept, coef, 1.0)

    def enter(self, coef: Array, intercept: Array) -> tuple[Array, Array]:
        """(u', b') of a fit (u, b)."""
        inner = coef / self.scale
        return inner, self._sum_with_centre(intercept, inner, -1.0)

    def _sum_with_centre(self, intercept: Array, coef: Array, sign: float) -> Array:
        """intercept + sign (c - m'u) with a single rounding."""
        if self.mean is None:
            return intercept + sign * self.target
        columns = zip(intercept, (self.scale * coef).T, strict=True)
        return np.array(
            [
                fsum([b, sign * self.target, *(-sign * part for part in _exact_products(self.mean, u))])
                for b, u in columns
            ]
        )


def _exact_products(a: Array, b: Array) -> Array:
    """Numbers (2 M,) whose exact sum is the exact inner product of a and b (M,)."""
    product = a * b
    (a_high, a_low), (b_high, b_low) = _split(a), _split(b)
    error = a_low * b_low - (((product - a_high * b_high) - a_low * b_high) - a_high * b_low)
    return np.concatenate([product, error])


def _split(a: Array) -> tuple[Array, Array]:
    """a as the sum of two numbers of 26 bits."""
    high = _SPLITTER * a
    high = high - (high - a)
    return high, a - high
