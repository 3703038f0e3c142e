"""Moments of the check loss and excess risk in closed form: the law of the noise is known."""

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


def normal_loss_moments(quantile: float | Array, level: float) -> tuple[Array, Array]:
    """E rho(e - t) and E rho(e - t)^2 for e standard normal:

    F'(t) + t (F(t) - tau)  and  tau^2 [(1 + t^2) (1 - F(t)) - t F'(t)] + (1 - tau)^2 [(1 + t^2) F(t) + t F'(t)].
    """
    t = np.asarray(quantile)
    below, density, square = ndtr(t), _density(t), 1 + np.square(t)
    second = level**2 * (square * (1 - below) - t * density) + (1 - level) ** 2 * (square * below + t * density)
    return density + t * (below - level), second


def _density(z: Array | float) -> Array:
    return np.exp(-np.square(z) / 2) / np.sqrt(2 * np.pi)
