"""How steeply a function of random features rises along each column of X."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quernel.features.blocks import strips
from quernel.features.random import RandomFeatures

Array = NDArray[np.floating]


def squared_slopes(features: RandomFeatures, X: Array, coef: Array, share: Array, steps: Array) -> Array:
    """sum_i share_i (slope of f along column j)^2 at the rows of X, the mean over the functions of `coef` (M, q); (d,).

    The slope is that between x_j - step_j and x_j + step_j rather than the derivative, which rough kernels do not have.
    With  f = sum_m u_m phi_m  and waves  phi_m(x) = s_m cos(w_m'x + b_m)  it is

        - sum_m u_m s_m sin(w_m'x + b_m) sin(w_jm step_j) / step_j
    """
    total = np.zeros(X.shape[1])
    scaled = np.sqrt(2) * features.weights_[:, None] * coef
    reach = np.sin(features.frequencies_ * steps[:, None]) / steps[:, None]
    for rows in strips(len(X), features.n_components_):
        sine = np.sin(X[rows] @ features.frequencies_ + features.phases_)
        for u in scaled.T:
            total += share[rows] @ ((sine * u) @ reach.T) ** 2
    return total / coef.shape[1]
