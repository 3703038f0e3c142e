"""Losses made of lines and parabolas."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quernel.losses.base import Loss, Mask

Array = NDArray[np.floating]


class Piecewise(Loss):
    """A loss whose conjugate is  bend v^2 / 2 + tube |v|  on a box [low, high] that holds 0.

    So the loss is 0 up to a distance `tube` from 0, then a parabola whose slope rises by 1 over a length `second_derivative`, and a
    line from where the slope has come to the end of its box. A subclass gives `value` and `domain` and, where they are
    not 0, `second_derivatives` (for negative and positive v) and `tube`.
    """

    @property
    def second_derivatives(self) -> tuple[Array, Array]:
        """The length over which the slope changes by 1, for negative and for positive slopes; 0 at a kink."""
        return np.zeros(self.n_columns), np.zeros(self.n_columns)

    @property
    def tube(self) -> Array | None:
        """The distance from 0 up to which the loss is 0; None is 0."""
        return None

    def _bend(self, sign: Array) -> Array:
        below, above = self.second_derivatives
        return above if np.array_equal(below, above) else np.where(sign < 0, below, above)

    def _free(self, residual: Array, anchor: Array, width: Array | float) -> tuple[Array, Array]:
        """The maximising v if there was no box, and 1 / its derivative.

        (r + width anchor) / (bend + width), written so that it is the anchor itself, to the last digit, at its contact.
        """
        point = residual + width * anchor
        flat = point == 0
        if self.tube is not None:
            flat = np.abs(point) <= self.tube
            residual = residual - self.tube * np.sign(point)
        bend = self._bend(point)
        length = bend + width
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(flat, 0.0, (residual - bend * anchor) / length + anchor), length

    @property
    def smoothing_width(self) -> Array:
        """The shortest bend."""
        return np.minimum(*self.second_derivatives)

    def slope(self, residual: Array) -> Array:
        """The dual of width 0; at a kink, 0."""
        return self.dual(residual, np.zeros_like(residual), 0.0)

    def dual(self, residual: Array, anchor: Array, width: Array | float) -> Array:
        """clip of  (r + width anchor) / (bend + width)  to the box, the tube taken off first."""
        return np.clip(self._free(residual, anchor, width)[0], *self.domain)

    def curvature(self, residual: Array, anchor: Array, width: Array | float) -> Array:
        """1 / (bend + width) on the rows that are neither clipped nor in the tube, else 0."""
        free, length = self._free(residual, anchor, width)
        low, high = self.domain
        active = (free > low) & (free < high) & (length > 0)
        if self.tube is not None:
            active &= free != 0
        return np.divide(1.0, length, out=np.zeros_like(free), where=active)

    def conjugate(self, dual: Array) -> Array:
        """bend v^2 / 2 + tube |v|  in the box, infinite outside."""
        low, high = self.domain
        inside = self._bend(dual) * dual**2 / 2
        if self.tube is not None:
            inside = inside + self.tube * np.abs(dual)
        return np.where((dual >= low) & (dual <= high), inside, np.inf)

    def inverse_subgradient(self, dual: Array) -> Array:
        """bend v + tube sign(v)."""
        point = self._bend(dual) * dual
        return point if self.tube is None else point + self.tube * np.sign(dual)

    def subgradient_interval(self, residual: Array, dual: Array) -> tuple[Array, Array]:
        """In the tube, as far as it reaches."""
        least, largest = super().subgradient_interval(residual, dual)
        if self.tube is None:
            return least, largest
        flat = dual == 0
        return np.where(flat, residual - self.tube, least), np.where(flat, residual + self.tube, largest)

    def strictly_inside(self, dual: Array) -> Mask:
        """Where v is neither an end of the box nor, with a tube, 0."""
        inside = super().strictly_inside(dual)
        return inside if self.tube is None else inside & (np.abs(dual) > 1e-9)

    @property
    def segments(self) -> tuple[Array, Array]:
        """The ends of the parabola, those of the tube, or the kink."""
        low, high = self.domain
        if np.any(self.second_derivatives):
            curved = np.full(self.n_columns, np.nan)
            below, above = self.second_derivatives
            return np.column_stack([below * low, above * high]), np.column_stack([low, curved, high])
        if self.tube is not None:
            return np.column_stack([-self.tube, self.tube]), np.column_stack([low, np.zeros(self.n_columns), high])
        return np.zeros((self.n_columns, 1)), np.column_stack([low, high])
