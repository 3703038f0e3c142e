"""The identity feature map: precomputed features, and the linear kernel."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin


class PrecomputedFeatures(TransformerMixin, BaseEstimator):
    """Feature map  phi(x) = x,  for features computed by the caller and for linear quantile regression.

    Attributes
    ----------
    n_components_ : int
        The number of columns of X.
    """

    def fit(self, X: NDArray[np.floating], y: Any = None) -> Self:  # noqa: ARG002 (scikit-learn's signature)
        """Store the number of columns."""
        self.n_components_ = X.shape[1]
        return self

    def transform(self, X: NDArray[np.floating]) -> NDArray[np.floating]:
        """X itself, not a copy."""
        return X
