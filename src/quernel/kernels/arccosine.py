"""Arc-cosine kernels: two-layer neural networks with a fixed random first layer (the paper's appendix A)."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import ClassVar

import numpy as np
from scipy.spatial.distance import cdist
from scipy.special import ndtri

from quernel.kernels.base import Array, Kernel, RandomFeatureKernel


@dataclass(frozen=True)
class Linear(Kernel):
    """K(x, z) = x'z: the columns are the features, as they are."""

    name: ClassVar[str] = "linear"

    def gram(self, X: Array, Z: Array) -> Array:
        """K(x, z) = x'z."""
        return np.asarray(X) @ np.asarray(Z).T

    def diagonal(self, X: Array) -> Array:
        """K(x, x) = |x|^2."""
        return np.einsum("ij,ij->i", X, X)


@dataclass(frozen=True)
class ArcCosine(RandomFeatureKernel):
    """K(x, z) = (|x||z|)^order kappa_order(t), with t the angle between x and z.

    kappa_0(t) = 1 - t/pi,  kappa_1(t) = (sin t + (pi - t) cos t) / pi.  The features are those of a network's hidden
    layer,  sqrt(2) 1[w'x > 0]  and  sqrt(2) max(0, w'x)  with w normal. The origin matters: centre or standardise the
    columns, or give the units a bias.

    Parameters
    ----------
    order : {1, 0}, default=1
        1: rectified linear units; 0: step functions.
    bias : float, default=0
        Standard deviation of the bias of the hidden units, like one more column of X that is everywhere this number.
        The paper has none; then a function is determined by its values on rays from the origin.
    """

    name: ClassVar[str] = "arccosine"
    order: int = 1
    bias: float = 0.0

    def __post_init__(self) -> None:
        if self.order not in (0, 1):
            raise ValueError(f"order must be 0 or 1; got {self.order!r}.")
        if not isinstance(self.bias, Real) or not 0 <= self.bias < np.inf:
            raise ValueError(f"bias must be a number of at least 0; got {self.bias!r}.")

    def gram(self, X: Array, Z: Array) -> Array:
        """(|x||z|)^order kappa_order(t)."""
        X, Z = self._with_bias(X), self._with_bias(Z)
        size_x, size_z = np.linalg.norm(X, axis=1), np.linalg.norm(Z, axis=1)
        unit_x, unit_z = (A / np.where(size > 0, size, 1)[:, None] for A, size in ((X, size_x), (Z, size_z)))
        # tan(t/2) = |u - v| / |u + v| for unit vectors: the arc cosine of u'v would lose half of the digits.
        angle = 2 * np.arctan2(cdist(unit_x, unit_z), cdist(unit_x, -unit_z))
        if self.order == 0:
            return np.outer(size_x > 0, size_z > 0) * (1 - angle / np.pi)
        return np.outer(size_x, size_z) * (np.sin(angle) + (np.pi - angle) * np.cos(angle)) / np.pi

    def diagonal(self, X: Array) -> Array:
        """|x|^(2 order), and 0 where x = 0."""
        size = np.einsum("ij,ij->i", self._with_bias(X), self._with_bias(X))
        return size if self.order == 1 else (size > 0).astype(float)

    def wave(self, X: Array, frequencies: Array, phases: Array) -> Array:
        """sqrt(2) max(0, w'x + b), or sqrt(2) where w'x + b > 0."""
        unit = np.asarray(X, dtype=float) @ frequencies
        unit += phases
        return np.sqrt(2) * (np.maximum(unit, 0) if self.order == 1 else unit > 0)

    def frequencies_from(self, normal: Array, mixing: Array) -> Array:  # noqa: ARG002
        """The normal numbers."""
        return normal

    def phases_at(self, uniform: Array) -> Array:
        """The biases of the hidden units: normal, or 0."""
        return self.bias * ndtri(uniform) if self.bias else np.zeros_like(uniform)

    def _with_bias(self, X: Array) -> Array:
        X = np.asarray(X, dtype=float)
        return np.column_stack([X, np.full(len(X), self.bias)]) if self.bias else X
