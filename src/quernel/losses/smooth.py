"""Losses with a second derivative everywhere."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from quernel.losses.base import Loss, monotone_root

Array = NDArray[np.floating]


class Smooth(Loss):
    """A loss given by `value`, `slope`, `second_derivative` (its second derivative), `conjugate`, `inverse_subgradient` and `ends`."""

    # The range of the slope, the same in every column.
    ends: ClassVar[tuple[float, float]]
    # 1 / the largest second derivative.
    inverse_smoothness: ClassVar[float]

    def second_derivative(self, residual: Array) -> Array:
        """loss''(r)."""
        raise NotImplementedError

    @property
    def domain(self) -> tuple[Array, Array]:
        """The range of the slope."""
        low, high = self.ends
        return np.full(self.n_columns, low), np.full(self.n_columns, high)

    @property
    def smoothing_width(self) -> Array:
        """1 / max loss''."""
        return np.full(self.n_columns, self.inverse_smoothness)

    def dual(self, residual: Array, anchor: Array, width: Array | float) -> Array:
        """The slope at the point z whose own residual is r:  z + width (slope(z) - anchor) = r."""
        return self.slope(self._moved(residual, anchor, width))

    def curvature(self, residual: Array, anchor: Array, width: Array | float) -> Array:
        """loss''(z) / (1 + width loss''(z))."""
        bend = self.second_derivative(self._moved(residual, anchor, width))
        return bend / (1 + width * bend)

    def _moved(self, residual: Array, anchor: Array, width: Array | float) -> Array:
        """The solution z of  z + width slope(z) = r + width anchor,  by Newton's method inside a bracket."""
        if not np.any(width):
            return residual
        goal = residual + width * anchor
        low, high = self.domain
        return monotone_root(
            lambda z: (z + width * self.slope(z) - goal, 1 + width * self.second_derivative(z)),
            goal - width * high,
            goal - width * low,
            goal,
        )
