"""Shared by the experiments with the spline kernel: choices of the theorem, random features, quadrature points.

The design has x uniform on [0, 1], the periodic spline kernel Lambda_(1/gamma) and a target of source exponent r; its
capacity exponent and the compatibility of its features are gamma. Formulas of the theorem are also evaluated outside of
its range 2r + gamma >= 1, where some of the paper's settings lie.
"""

from __future__ import annotations

import math
import warnings

import numpy as np
from numpy.typing import NDArray

from quernel.features import RandomFeatures
from quernel.kernels import PeriodicSpline
from quernel.theory import OutsideTheoryWarning, feature_exponent, learning_rate, regularization

Array = NDArray[np.floating]

# The constant of M = ceil(CONSTANT n^c), which the theory does not give.
CONSTANT = 5


def features_of_theorem(n: int, r: float, gamma: float, constant: float = CONSTANT) -> int:
    """M = ceil(constant n^c) of `thm2`, with compatibility gamma."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OutsideTheoryWarning)
        return math.ceil(constant * n ** float(feature_exponent(r, gamma, gamma, strict=False)))


def ridge_of_theorem(n: int, r: float, gamma: float) -> float:
    """lambda = n^(-1/(2r + gamma)) of `thm2`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OutsideTheoryWarning)
        return regularization(n, r, gamma, strict=False)


def predicted_slope(r: float, gamma: float) -> float:
    """-2r/(2r + gamma), the slope of log squared error against log n by `thm2`, logarithms left out."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OutsideTheoryWarning)
        return -float(learning_rate(r, gamma, strict=False))


def spline_kernel(gamma: float) -> PeriodicSpline:
    """The periodic spline kernel Lambda_(1/gamma), of infinite order for gamma = 0."""
    return PeriodicSpline(1 / gamma if gamma else np.inf)


def spline_features(gamma: float, n_components: int, X: Array, rng: np.random.Generator) -> RandomFeatures:
    """Fitted random features Lambda_(1/(2 gamma))(x, w) with w uniform on [0, 1]."""
    return RandomFeatures(spline_kernel(gamma), n_components, random_state=rng).fit(X)


def midpoints(count: int) -> Array:
    """Midpoint rule (count, 1) on [0, 1]: means over it are integrals over uniform x, without sampling noise."""
    return (np.arange(count)[:, None] + 0.5) / count
