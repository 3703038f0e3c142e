"""What a loss is: a convex function of the residual r, as the maximum of its dual lines.

    loss(r) = max over v of  v r - conjugate(v)

What the solvers need of a loss is small. With an anchor v0 (the current dual variable) and a width d the smoothed loss
is  max over v of  v r - conjugate(v) - d (v - v0)^2 / 2,  and

- `dual(r, v0, d)`       is the maximising v: the slope of the smoothed loss at r;
- `curvature(r, v0, d)`  is its derivative in r, at most 1/d;
- `value`, `conjugate`   give the certificate, because  value(r) + conjugate(v) - v r >= 0  for every v (Fenchel-Young).

Columns are fits: r has shape (n, q), and a loss may differ from column to column. The residual of a target y and a
prediction f is  r = offset - sign f,  where `margin_transform(y)` is (offset, sign): (y, 1) or, for a loss of the margin y f with
labels y = -1 and +1, (1, y).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating]
Mask = NDArray[np.bool_]
Parameter = Any  # one number for all columns, or one per column; once the loss is made, an array of shape (q,)

MOST_STEPS = 200


@dataclass(frozen=True, eq=False)
class Loss:
    """A convex loss for q columns at once; parameters are one number for all columns, or one per column.

    A subclass gives `value`, `slope`, `dual`, `curvature`, `conjugate`, `inverse_subgradient` and `domain`. `quernel.losses.Smooth`
    and `quernel.losses.Piecewise` derive most of these from less.
    """

    margin: ClassVar[bool] = False
    n_columns: int = field(default=1, kw_only=True)

    def __post_init__(self) -> None:
        given = {name: np.atleast_1d(np.asarray(getattr(self, name), dtype=float)) for name in self._parameters()}
        lengths = [len(array) for array in given.values() if array.ndim == 1]
        size = self.n_columns if self.n_columns != 1 else max([1, *lengths])
        for name, array in given.items():
            if array.ndim != 1 or len(array) not in (1, size):
                wanted = f"a number or one for each of {size} columns"
                raise ValueError(f"{name} must be {wanted}; got an array of shape {array.shape}.")
            object.__setattr__(self, name, np.broadcast_to(array, (size,)))
        object.__setattr__(self, "n_columns", size)

    def _parameters(self) -> list[str]:
        return [part.name for part in fields(self) if part.name != "n_columns"]

    def _require(self, name: str, holds: Any, wanted: str) -> None:
        """A parameter that must be `wanted`, in every column."""
        if not np.all(holds):
            raise ValueError(f"{name} of the {type(self).__name__} loss must be {wanted}; got {getattr(self, name)}.")

    def value(self, residual: Array) -> Array:
        """loss(r)."""
        raise NotImplementedError

    def slope(self, residual: Array) -> Array:
        """A subgradient of the loss at r."""
        raise NotImplementedError

    def dual(self, residual: Array, anchor: Array, width: Array | float) -> Array:
        """argmax over v of  v r - conjugate(v) - width (v - anchor)^2 / 2."""
        raise NotImplementedError

    def curvature(self, residual: Array, anchor: Array, width: Array | float) -> Array:
        """d dual / d r."""
        raise NotImplementedError

    def smooth(self, residual: Array, anchor: Array, width: Array | float) -> tuple[Array, Array]:
        """Dual and curvature, in arrays that the caller may overwrite."""
        return np.array(self.dual(residual, anchor, width)), np.array(self.curvature(residual, anchor, width))

    def conjugate(self, dual: Array) -> Array:
        """max over r of  v r - loss(r);  inf outside the domain."""
        raise NotImplementedError

    def inverse_subgradient(self, dual: Array) -> Array:
        """A residual at which v is a slope of the loss."""
        raise NotImplementedError

    @property
    def domain(self) -> tuple[Array, Array]:
        """Lower and upper end of the duals with a finite conjugate, each of shape (q,)."""
        raise NotImplementedError

    @property
    def smoothing_width(self) -> Array:
        """The width by which the loss is smooth by itself: 1 / its largest curvature, 0 where it has kinks; (q,)."""
        raise NotImplementedError

    @property
    def segments(self) -> tuple[Array, Array]:
        """Knots (q, p) in rising order, and the loss's slope (q, p + 1) before, between and after them.

        Where the loss is no line the slope is nan.
        """
        return np.empty((self.n_columns, 0)), np.full((self.n_columns, 1), np.nan)

    @cached_property
    def is_two_piece(self) -> bool:
        """Whether the loss is two lines that meet at 0, in every column."""
        knots, slopes = self.segments
        return knots.shape[1] == 1 and not knots.any() and not np.isnan(slopes).any()

    def prox(self, residual: Array, width: Array | float) -> Array:
        """argmin over z of  loss(z) + (z - r)^2 / (2 width):  r minus width times the slope at the answer."""
        return residual - width * self.dual(residual, np.zeros_like(residual), width)

    def lipschitz(self, bound: float = np.inf) -> Array:
        """The steepest slope on [-bound, bound], shape (q,)."""
        ends = self.domain if np.isinf(bound) else self.slope(np.full((2, self.n_columns), [[-bound], [bound]]))
        return np.max(np.abs(ends), axis=0)

    def distance_to_knot(self, residual: Array) -> Array:
        """How far r is from the nearest knot."""
        knots, _ = self.segments
        far = np.full(residual.shape, np.inf)
        return np.min([far, *(np.abs(residual - knot) for knot in knots.T)], axis=0)

    def strictly_inside(self, dual: Array) -> Mask:
        """Where v is no end of the domain: the rows that a fit bends to."""
        low, high = self.domain
        margin = 1e-9 * np.minimum(high - low, 1)
        return (dual > low + margin) & (dual < high - margin)

    def subgradient_interval(self, residual: Array, dual: Array) -> tuple[Array, Array]:
        """The least and the largest s for which v is still a slope of the loss at r - s."""
        low, high = self.domain
        away = residual - self.inverse_subgradient(dual)
        return np.where(dual >= high, -np.inf, away), np.where(dual <= low, np.inf, away)

    def margin_transform(self, target: Array) -> tuple[Array | float, Array | float]:
        """(offset, sign) of  r = offset - sign f."""
        return target, 1.0

    def fit_constant(self, target: Array, share: Array) -> Array:
        """argmin over b of  sum share loss(r at f = b),  shape (q,)."""
        return stationary_constant(self, target, share)

    def take(self, columns: NDArray[np.intp]) -> Self:
        """The loss of some of the columns."""
        chosen = {name: getattr(self, name)[columns] for name in self._parameters()}
        return replace(self, n_columns=len(columns), **chosen)


def stationary_constant(loss: Loss, target: Array, share: Array) -> Array:
    """The constant at which the slopes of a smooth loss balance."""
    anchor = np.zeros((len(target), loss.n_columns))

    def heaviness(constant: Array) -> tuple[Array, Array]:
        residual = target[:, None] - constant
        return -(share @ loss.slope(residual)), share @ loss.curvature(residual, anchor, 0.0)

    low, high = np.full(loss.n_columns, target.min()), np.full(loss.n_columns, target.max())
    return monotone_root(heaviness, low, high, np.full(loss.n_columns, share @ target / share.sum()))


def monotone_root(function: Callable[[Array], tuple[Array, Array]], low: Array, high: Array, start: Array) -> Array:
    """Where an increasing function, which gives its value and derivative, passes zero between low and high; entrywise.

    Newton's method while its steps become half as long each time, and bisection otherwise.
    """
    z, last = np.clip(start, low, high), high - low
    enough = 1e-15 * (np.abs(low) + np.abs(high))
    for _ in range(MOST_STEPS):
        value, derivative = function(z)
        low, high = np.where(value <= 0, z, low), np.where(value >= 0, z, high)
        newton = z - np.divide(value, derivative, out=np.full_like(value, np.nan), where=derivative > 0)
        fast = (newton > low) & (newton < high) & (np.abs(newton - z) <= last / 2)
        step = np.where(fast, newton, (low + high) / 2)
        last = np.abs(step - z)
        z = step
        if np.all(last <= enough):
            break
    return z
