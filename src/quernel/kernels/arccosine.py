"""Dot-product kernels: the linear kernel, and the arc-cosine kernels (Cho and Saul, 2009; the paper's appendix A).

Random features of an arc-cosine kernel are the hidden units of a two-layer neural network whose first layer is random
and fixed.
"""

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
    """Linear kernel  K(x, z) = x'z:  the columns of X are the features, and the model is linear in them."""

    name: ClassVar[str] = "linear"

    def gram(self, X: Array, Z: Array) -> Array:
        """K(x, z) = x'z."""
        return np.asarray(X) @ np.asarray(Z).T

    def diagonal(self, X: Array) -> Array:
        """K(x, x) = |x|^2."""
        return np.einsum("ij,ij->i", X, X)


@dataclass(frozen=True)
class ArcCosine(RandomFeatureKernel):
    """Arc-cosine kernel  K(x, z) = (|x||z|)^order kappa_order(t),  with t the angle between x and z.

    kappa_0(t) = 1 - t/pi,  kappa_1(t) = (sin t + (pi - t) cos t) / pi.  The random features are the units of a
    network's hidden layer,  sqrt(2) 1[w'x > 0]  and  sqrt(2) max(0, w'x)  with w standard normal. The kernel is not
    shift-invariant: centre or standardise the columns, or give the units a bias.

    Parameters
    ----------
    order : {1, 0}, default=1
        1: rectified linear units; 0: step functions.
    bias : float, default=0
        Standard deviation of the bias of the hidden units; equivalent to one more column of X that is constant at this
        number. The paper has none. Without a bias the features are homogeneous: along a ray from the origin they are
        linear (order 1) or constant (order 0).
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
        norm_x, norm_z = np.linalg.norm(X, axis=1), np.linalg.norm(Z, axis=1)
        unit_x, unit_z = (A / np.where(norm > 0, norm, 1)[:, None] for A, norm in ((X, norm_x), (Z, norm_z)))
        # tan(t/2) = |u - v| / |u + v| for unit vectors u, v: the arc cosine of u'v would lose half of the digits.
        angle = 2 * np.arctan2(cdist(unit_x, unit_z), cdist(unit_x, -unit_z))
        if self.order == 0:
            return np.outer(norm_x > 0, norm_z > 0) * (1 - angle / np.pi)
        return np.outer(norm_x, norm_z) * (np.sin(angle) + (np.pi - angle) * np.cos(angle)) / np.pi

    def diagonal(self, X: Array) -> Array:
        """|x|^(2 order), and 0 where x = 0."""
        squared_norm = np.einsum("ij,ij->i", self._with_bias(X), self._with_bias(X))
        return squared_norm if self.order == 1 else (squared_norm > 0).astype(float)

    def wave(self, X: Array, frequencies: Array, phases: Array) -> Array:
        """The hidden units  sqrt(2) max(0, w'x + b)  (order 1) or  sqrt(2) 1[w'x + b > 0]  (order 0)."""
        activation = np.asarray(X, dtype=float) @ frequencies
        activation += phases
        return np.sqrt(2) * (np.maximum(activation, 0) if self.order == 1 else activation > 0)

    def frequencies_from(self, normal: Array, mixing: Array) -> Array:  # noqa: ARG002
        """The standard normal numbers themselves."""
        return normal

    def phases_at(self, uniform: Array) -> Array:
        """The biases of the hidden units: normal with standard deviation `bias`, by the inverse normal distribution."""
        return self.bias * ndtri(uniform) if self.bias else np.zeros_like(uniform)

    def _with_bias(self, X: Array) -> Array:
        """X with a constant column for the bias, if there is one."""
        X = np.asarray(X, dtype=float)
        return np.column_stack([X, np.full(len(X), self.bias)]) if self.bias else X
