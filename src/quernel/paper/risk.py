"""Excess risks in closed form: the law of the noise, or of the labels, is known."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, ndtr, ndtri

Array = NDArray[np.floating]


def normal_excess_risk(deviation: Array, scale: float | Array, level: float | Array) -> Array:
    """E rho(s (e - z) - d) - E rho(s (e - z)) for e standard normal, z its quantile at the level, d = f - f*:

    s [F'(t) - F'(z) + t (F(t) - tau)]  with  t = z + d / s.
    """
    z = ndtri(level)
    t = z + deviation / scale
    return scale * (_density(t) - _density(z) + t * (ndtr(t) - level))


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
