"""Excess risk in closed form: the law of the noise is known."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

Array = NDArray[np.floating]


def normal_excess_risk(deviation: Array, scale: float | Array, level: float | Array) -> Array:
    """E rho(s (e - z) - d) - E rho(s (e - z)) for e standard normal, z its quantile at the level, d = f - f*:

    s [F'(t) - F'(z) + t (F(t) - tau)]  with  t = z + d / s.
    """
    z = ndtri(level)
    t = z + deviation / scale
    return scale * (_density(t) - _density(z) + t * (ndtr(t) - level))


def _density(z: Array | float) -> Array:
    return np.exp(-np.square(z) / 2) / np.sqrt(2 * np.pi)
