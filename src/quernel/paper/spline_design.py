"""What the experiments with the spline kernel share: numbers of features, the features, and where risks are taken."""

from __future__ import annotations

import math
import warnings

import numpy as np
from numpy.typing import NDArray

from quernel.features import RandomFeatures
from quernel.kernels import PeriodicSpline
from quernel.theory import OutsideTheoryWarning, feature_exponent, learning_rate, regularization

Array = NDArray[np.floating]

# M = ceil(CONSTANT n^c); the theory leaves the constant open.
CONSTANT = 5


def features_of_theorem(n: int, r: float, gamma: float, constant: float = CONSTANT) -> int:
    """ceil(constant n^c) with the compatibility of the spline design, gamma (`thm2`, also where it is silent)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OutsideTheoryWarning)
        return math.ceil(constant * n ** float(feature_exponent(r, gamma, gamma, strict=False)))


def ridge_of_theorem(n: int, r: float, gamma: float) -> float:
    """n^(-1/(2r + gamma)), also where the theorem is silent."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OutsideTheoryWarning)
        return regularization(n, r, gamma, strict=False)


def predicted_slope(r: float, gamma: float) -> float:
    """-2r/(2r + gamma), also where the theorem is silent."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OutsideTheoryWarning)
        return -float(learning_rate(r, gamma, strict=False))


def spline_kernel(gamma: float) -> PeriodicSpline:
    """Lambda_(1/gamma)."""
    return PeriodicSpline(1 / gamma if gamma else np.inf)


def spline_features(gamma: float, n_components: int, X: Array, rng: np.random.Generator) -> RandomFeatures:
    """phi(x, w) = Lambda_(1/(2 gamma))(x, w) with w uniform."""
    return RandomFeatures(spline_kernel(gamma), n_components, random_state=rng).fit(X)


def midpoints(count: int) -> Array:
    """A regular grid (count, 1) on [0, 1]: means over it are integrals over the uniform law, without sampling noise."""
    return (np.arange(count)[:, None] + 0.5) / count
