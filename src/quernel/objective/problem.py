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

from quernel.data import DesignMatrix, InMemoryDesign, RowStateLike, discard, sum_tuples
from quernel.losses import Loss
from quernel.objective import blocks
from quernel.objective.blocks import Curvature

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

    # Each of the following maps a block function over the row blocks, and reduces the answers. Those that need the
    # features use `map_reduce`, a pass over them; the others use `map_rows`, which reads row state only.

    def set_coefficients(self, state: RowStateLike, coef: Array, intercept: Array) -> None:
        """Set the residuals to those of (coef, intercept); multipliers start at zero unless the state has some."""
        require_finite(self.rows.map_reduce(blocks.set_residuals, state, (self.loss, coef, intercept), reduce=np.max))

    def smoothed_gradient(self, state: RowStateLike, width: Array) -> DualSums:
        """Sums for the duals v that maximise the smoothed loss of width (q,): all that the gradient of F_d needs."""
        return self._add_screened(
            self.rows.map_reduce(blocks.smoothed_gradient, state, (self.loss, width), reduce=sum_tuples)
        )

    def multiplier_gradient(self, state: RowStateLike, shrink: tuple[Array, Array]) -> DualSums:
        """Sums for the multipliers as duals, the positive and the negative ones multiplied by these factors (q,)."""
        return self._add_screened(
            self.rows.map_reduce(blocks.multiplier_gradient, state, (self.loss, shrink), reduce=sum_tuples)
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
        return self.rows.map_reduce(blocks.curvature, state, args, reduce=blocks.reduce_curvatures)

    def find_active(self, state: RowStateLike, width: Array, anchored: NDArray[np.bool_]) -> list[blocks.ActiveColumn]:
        """The active rows of each column, as in `curvature`, among all rows: indices, weights h, and surplus."""
        return self.rows.map_rows(
            blocks.find_active, state, (self.loss, width, anchored), reduce=blocks.concatenate_active
        )

    def set_direction(self, state: RowStateLike, coef: Array, intercept: Array) -> None:
        """Store the change of each row along the direction (coef, intercept), for the line search."""
        self.rows.map_reduce(blocks.set_direction, state, (self.loss, coef, intercept), reduce=discard)

    def eval_along_direction(self, state: RowStateLike, width: Array, step: Array) -> tuple[Array, Array]:
        """First and second derivative of the smoothed mean loss along the direction, at step lengths (q,)."""
        slope, bend = self.rows.map_rows(
            blocks.eval_along_direction, state, (self.loss, width, step), reduce=sum_tuples
        )
        return slope, bend

    def screened_slope(self, coef: Array, intercept: Array) -> Array:
        """Derivative (q,) of the screened rows' linear term along a direction."""
        if self.screened is None:
            return np.zeros(self.n_columns)
        return -np.einsum("ij,ij->j", self.screened.phi_t_dual, coef) - self.screened.mean_dual * intercept

    def step(self, state: RowStateLike, step: Array) -> None:
        """Move the residuals by step lengths (q,) along the direction."""
        self.rows.map_rows(blocks.step, state, step, reduce=discard)

    def update_multipliers(self, state: RowStateLike, width: Array, columns: NDArray[np.bool_]) -> None:
        """The multiplier step z = v, in these columns (q,)."""
        self.rows.map_rows(blocks.update_multipliers, state, (self.loss, width, columns), reduce=discard)

    def center_intercept(self, state: RowStateLike, columns: NDArray[np.bool_]) -> Array:
        """Move the intercepts of these columns (q,) to the middle of their optimal interval; return the shifts (q,)."""
        below, above = self.rows.map_rows(blocks.intercept_interval, state, self.loss, reduce=blocks.intersect)
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
        self.rows.map_rows(blocks.shift_intercept, state, (self.loss, shift), reduce=discard)

    def set_multipliers(self, state: RowStateLike, dual: Array) -> None:
        """Set the multipliers of all rows of a column to the same dual (q,)."""
        self.rows.map_rows(blocks.set_multipliers, state, dual, reduce=discard)


class InMemoryProblem(Problem):
    """A problem whose rows are arrays in this process, such as a sample: they can be indexed, their state collected."""

    rows: InMemoryDesign


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
