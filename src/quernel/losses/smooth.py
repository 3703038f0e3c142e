"""Base class of losses that are twice differentiable everywhere."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from quernel.losses.base import Loss, monotone_root

Array = NDArray[np.floating]


class Smooth(Loss):
    """A twice differentiable loss.

    A subclass gives `value`, `slope` (the first derivative), `second_derivative`, `conjugate` and
    `inverse_subgradient`, and two class attributes:

    ends : (float, float)
        The range of the slope, the same in every column; override `domain` where it differs.
    inverse_smoothness : float
        1 / L, with L the Lipschitz constant of the slope: the largest second derivative.

    `dual` and `curvature` follow from these. With the smoothing width d and the multipliers v0, the maximising v is the
    slope at the proximal point z, which solves  z + d slope(z) = r + d v0.
    """

    ends: ClassVar[tuple[float, float]]
    inverse_smoothness: ClassVar[float]

    def second_derivative(self, residual: Array) -> Array:
        """loss''(r), elementwise."""
        raise NotImplementedError

    @property
    def domain(self) -> tuple[Array, Array]:
        """The range of the slope, shape (q,) each."""
        low, high = self.ends
        return np.full(self.n_columns, low), np.full(self.n_columns, high)

    @property
    def smoothing_width(self) -> Array:
        """1 / max loss'', shape (q,)."""
        return np.full(self.n_columns, self.inverse_smoothness)

    def dual(self, residual: Array, anchor: Array, width: Array | float) -> Array:
        """slope(z) at the proximal point z, where  z + width (slope(z) - anchor) = r."""
        return self.slope(self._proximal_point(residual, anchor, width))

    def curvature(self, residual: Array, anchor: Array, width: Array | float) -> Array:
        """loss''(z) / (1 + width loss''(z)),  by the implicit function theorem."""
        second = self.second_derivative(self._proximal_point(residual, anchor, width))
        return second / (1 + width * second)

    def _proximal_point(self, residual: Array, anchor: Array, width: Array | float) -> Array:
        """The solution z of  z + width slope(z) = r + width anchor,  by safeguarded Newton; r itself for width 0.

        The slope lies in the domain [low, high], so z lies in [goal - width high, goal - width low].
        """
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
