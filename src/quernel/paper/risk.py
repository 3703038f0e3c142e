"""Excess risks in closed form: the noise law is known, so none of them is an error on test rows minus a constant."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, ndtr, ndtri

Array = NDArray[np.floating]


def check_excess(deviation: Array, *, level: float | Array = 0.5, scale: float | Array = 1.0) -> Array:
    """E rho(y - q - d) - E rho(y - q)  for normal y with level-th quantile q, at every deviation d = f - q.

    = s (z (F(z) - tau) + F'(z) - F'(z_tau)),    z = z_tau + d/s,    s the standard deviation: `scale`
    """
    at_quantile = ndtri(level)
    z = at_quantile + deviation / scale
    return scale * (z * (ndtr(z) - level) + _density(z) - _density(at_quantile))


def logistic_excess(f: Array, truth: Array) -> Array:
    """E log(1 + exp(-y f)) - E log(1 + exp(-y f*))  for labels -1 and +1 with log odds f* = truth."""
    p = expit(truth)
    return _log_loss(f, p) - _log_loss(truth, p)


def hinge_excess(f: Array, p: Array) -> Array:
    """E max(1 - y f, 0) - 2 min(p, 1 - p)  for labels that are +1 with probability p."""
    return p * np.maximum(1 - f, 0) + (1 - p) * np.maximum(1 + f, 0) - 2 * np.minimum(p, 1 - p)


def _log_loss(f: Array, p: Array) -> Array:
    return p * np.logaddexp(0, -f) + (1 - p) * np.logaddexp(0, f)


def _density(z: Array | float) -> Array:
    return np.exp(-np.square(z) / 2) / np.sqrt(2 * np.pi)
