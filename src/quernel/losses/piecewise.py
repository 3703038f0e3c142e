"""Base class of losses made of lines and parabolas, whose dual variables have a closed form."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from quernel.losses.base import Loss, Mask

Array = NDArray[np.floating]


class Piecewise(Loss):
    """A piecewise linear-quadratic loss, given by its conjugate  c v^2 / 2 + tube |v|  on a box [low, high] around 0.

    In terms of the residual: the loss is 0 up to a distance `tube` from 0 (an insensitive zone, for the
    epsilon-insensitive loss); then a parabola with second derivative 1 / c; and, from where the slope reaches a bound
    of the box, a line. With c = 0 there is no parabola but a kink.

    A subclass gives `value`, the box by `ends` or `domain` and, where they are not 0, `inverse_curvature` (or
    `inverse_curvatures`, for negative and for positive slopes) and `tube`. Everything else, `dual` and `curvature`
    included, is a formula in these.

    ====================  ===================  ========  =================
    loss                  box [low, high]      tube      c
    ====================  ===================  ========  =================
    absolute              [-1, 1]              0         0
    epsilon-insensitive   [-1, 1]              epsilon   0
    Huber                 [-t, t]              0         1
    squared               all numbers          0         1/2
    hinge                 [0, 1]               0         0
    ====================  ===================  ========  =================
    """

    inverse_curvature: ClassVar[float] = 0.0
    """c, where it is the same on both sides and in every column; otherwise override `inverse_curvatures`."""

    @property
    def inverse_curvatures(self) -> tuple[Array, Array]:
        """c = 1 / loss'' on the parabolas of negative and of positive slope, (q,) each; 0 where there is a kink.

        Equivalently, the length of residual over which the slope changes by 1.
        """
        both = np.full(self.n_columns, self.inverse_curvature)
        return both, both

    @property
    def tube(self) -> Array | None:
        """Half the width of the zone around 0 in which the loss is 0, shape (q,); None for no such zone."""
        return None

    def _inverse_curvature_at(self, sign: Array) -> Array:
        """c on the side of 0 on which `sign` lies, elementwise."""
        below, above = self.inverse_curvatures
        return above if np.array_equal(below, above) else np.where(sign < 0, below, above)

    def _unclipped_dual(self, residual: Array, anchor: Array, width: Array | float) -> tuple[Array, Array]:
        """The maximising v without the box, and 1 / its derivative in r, that is c + width.

        Without a tube, v = (r + width anchor) / (c + width). It is computed as  anchor + (r - c anchor) / (c + width),
        which is the same number but equals the anchor to the last digit where r = `inverse_subgradient(anchor)`: at the
        solution, rounding must not move a dual variable that is already right.
        """
        point = residual + width * anchor
        zero = point == 0
        if self.tube is not None:  # soft thresholding
            zero = np.abs(point) <= self.tube
            residual = residual - self.tube * np.sign(point)
        c = self._inverse_curvature_at(point)
        length = c + width
        # At a kink with width 0 the length is 0, and the quotient +-inf, which is clipped to the box, or nan, where
        # `zero` holds.
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(zero, 0.0, (residual - c * anchor) / length + anchor), length

    @property
    def smoothing_width(self) -> Array:
        """1 / the largest second derivative: the smaller c of the two sides."""
        return np.minimum(*self.inverse_curvatures)

    def slope(self, residual: Array) -> Array:
        """The dual of width 0; at a kink at 0, 0."""
        return self.dual(residual, np.zeros_like(residual), 0.0)

    def dual(self, residual: Array, anchor: Array, width: Array | float) -> Array:
        """(r + width anchor) / (c + width), soft-thresholded by the tube and clipped to the box."""
        return np.clip(self._unclipped_dual(residual, anchor, width)[0], *self.domain)

    def curvature(self, residual: Array, anchor: Array, width: Array | float) -> Array:
        """1 / (c + width) on rows that are neither clipped nor in the tube, else 0."""
        unclipped, length = self._unclipped_dual(residual, anchor, width)
        low, high = self.domain
        active = (unclipped > low) & (unclipped < high) & (length > 0)
        if self.tube is not None:
            active &= unclipped != 0
        return np.divide(1.0, length, out=np.zeros_like(unclipped), where=active)

    def conjugate(self, dual: Array) -> Array:
        """c v^2 / 2 + tube |v|  in the box, inf outside."""
        low, high = self.domain
        inside = self._inverse_curvature_at(dual) * dual**2 / 2
        if self.tube is not None:
            inside = inside + self.tube * np.abs(dual)
        return np.where((dual >= low) & (dual <= high), inside, np.inf)

    def inverse_subgradient(self, dual: Array) -> Array:
        """c v + tube sign(v):  a subgradient of the conjugate."""
        point = self._inverse_curvature_at(dual) * dual
        return point if self.tube is None else point + self.tube * np.sign(dual)

    def subgradient_interval(self, residual: Array, dual: Array) -> tuple[Array, Array]:
        """As in the base class; with v = 0, r - s may lie anywhere in the tube."""
        least, largest = super().subgradient_interval(residual, dual)
        if self.tube is None:
            return least, largest
        flat = dual == 0
        return np.where(flat, residual - self.tube, least), np.where(flat, residual + self.tube, largest)

    def strictly_inside(self, dual: Array) -> Mask:
        """Where v is neither a bound of the box nor, with a tube, 0: on both, v stays as it is while r moves."""
        inside = super().strictly_inside(dual)
        return inside if self.tube is None else inside & (np.abs(dual) > 1e-9)

    @property
    def segments(self) -> tuple[Array, Array]:
        """Knots at the ends of the parabola, at the ends of the tube, or at the kink 0."""
        low, high = self.domain
        if np.any(self.inverse_curvatures):
            curved = np.full(self.n_columns, np.nan)
            below, above = self.inverse_curvatures
            return np.column_stack([below * low, above * high]), np.column_stack([low, curved, high])
        if self.tube is not None:
            return np.column_stack([-self.tube, self.tube]), np.column_stack([low, np.zeros(self.n_columns), high])
        return np.zeros((self.n_columns, 1)), np.column_stack([low, high])
