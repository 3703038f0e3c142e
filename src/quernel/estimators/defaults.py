"""The automatic choices: bandwidth, ridge weight and number of features.

Each depends on the rows only through weighted statistics, so that a row of weight 2 counts exactly like a row given
twice, and a row of weight 0 like none.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import pdist

from quernel.features.random import as_generator

Array = NDArray[np.floating]

N_COMPONENTS = 500
# alpha = ALPHA / spread(y); chosen on eight public tables as a value that is never far from the best.
ALPHA = 1e-4
# bandwidth = BANDWIDTH x median distance of the standardised columns.
BANDWIDTH = 1.0
SUBSAMPLE = 1000


def weighted_quantile(values: Array, share: Array, level: float) -> float:
    """The smallest value at which the cumulated share reaches the level; the middle where it is met exactly."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(share[order])
    goal = level * reached[-1]
    low, high = np.searchsorted(reached, [goal * (1 - 1e-12), goal * (1 + 1e-12)])
    return float(values[order[low]] + values[order[min(high, len(values) - 1)]]) / 2


def spread(y: Array, share: Array) -> float:
    """Interquartile range over 1.35; mean absolute deviation where that is 0; 1 if y is constant."""
    quartiles = weighted_quantile(y, share, 0.75) - weighted_quantile(y, share, 0.25)
    if quartiles > 0:
        return quartiles / 1.349
    deviation = float(share @ np.abs(y - weighted_quantile(y, share, 0.5)))
    return deviation if deviation > 0 else 1.0


def column_scales(X: Array, share: Array) -> Array:
    """The standard deviation of each column, and 1 for a constant one."""
    mean = share @ X
    variance = share @ (X - mean) ** 2
    constant = variance <= (1e-12 * np.maximum(np.abs(mean), 1e-300)) ** 2
    return np.where(constant, 1.0, np.sqrt(variance))


def auto_bandwidth(X: Array, share: Array, random_state: object) -> Array:
    """One bandwidth per column: its standard deviation times the median distance between standardised rows.

    Distances are taken between all rows of a table of up to 1,000, and between 1,000 rows drawn by weight otherwise.
    Pairs of equal rows do not count: whether a row is repeated or weighted must not matter.
    """
    scales = column_scales(X, share)
    if len(X) > SUBSAMPLE:
        rng = as_generator(random_state)
        chosen = np.searchsorted(np.cumsum(share), rng.random(SUBSAMPLE) * share.sum(), side="right")
        X, share = X[np.minimum(chosen, len(X) - 1)], np.full(SUBSAMPLE, 1 / SUBSAMPLE)
    distances = pdist(X / scales)
    first, second = np.triu_indices(len(X), 1)
    apart = distances > 0
    if not apart.any():
        return scales
    weight = (share[first] * share[second])[apart]
    return BANDWIDTH * weighted_quantile(distances[apart], weight, 0.5) * scales


def auto_alpha(y: Array, share: Array) -> float:
    """A constant over the spread of y, so that fit(a y) = a fit(y)."""
    return ALPHA / spread(y, share)
