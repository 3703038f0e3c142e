"""The kernel at landmarks: what a model with landmarks ships with."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator

from quernel.features.nystroem import Nystroem
from quernel.kernels import Kernel, resolve

Array = NDArray[np.floating]


class KernelValues(BaseEstimator):
    """phi(x) = K(P, x) for landmarks P.

    Unlike the features of `Nystroem`, of which these are a linear map, they do not make the kernel: they are for
    predictions, not for fits. But they need no matrix of landmarks x landmarks, which would be most of a model file.

    Attributes
    ----------
    landmarks_ : ndarray of shape (n_components_, n_columns)
    n_components_ : int
    """

    def __init__(self, kernel: str | Kernel = "gaussian") -> None:
        self.kernel = kernel

    @classmethod
    def of(cls, features: Nystroem, coef: Array) -> tuple[KernelValues, Array]:
        """The same curves: their features, and coefficients for these."""
        values = cls(features.kernel)
        values.landmarks_, values.n_components_ = features.landmarks_, len(features.landmarks_)
        return values, features.projection_ @ coef

    def transform(self, X: Array) -> Array:
        """K(x, P), shape (n, n_components_)."""
        return resolve(self.kernel).gram(np.asarray(X, dtype=float), self.landmarks_)

    def making_the_kernel(self) -> Nystroem:
        """Features of the same landmarks that make the kernel."""
        return Nystroem(self.kernel, self.n_components_, landmarks="distinct").fit(self.landmarks_)
