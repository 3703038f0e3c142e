"""The automatic choices: bandwidth, ridge weight and number of features.

Each depends on the rows only through weighted statistics, so that a row of weight 2 counts exactly like a row given
twice, and a row of weight 0 like none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import pdist

from quernel.data.statistics import Moments, moments
from quernel.features.hash_sample import distinct_rows
from quernel.losses import LOSSES, Loss, weighted_quantiles

Array = NDArray[np.floating]

# Features for tables too small to choose by, and the numbers that a search goes through for larger ones.
N_COMPONENTS = 500
SIZES = (125, 250, 500, 1000, 2000)
# Landmarks, fewest and most; between, as many as keep rows x landmarks^2, the work of a step of the solver, at this.
LANDMARKS, LANDMARK_WORK = (1000, 2000), 4e10
# alpha = ALPHA / spread(y) and bandwidth = BANDWIDTH x median distance of standardised rows: a compromise. On eleven
# public tables held-out loss was best around 1e-5 and 0.5 on average, but noisy small ones want ten times that alpha.
# That is for tables of FEW rows. With more the best alpha falls, in theory as n^(-1 / (2 r + gamma)): at n^(-1/2), the
# slowest of these, it is never too small.
ALPHA, FEW = 5e-5, 1000
BANDWIDTH = 0.6
SUBSAMPLE = 1000
# The lengths of losses given by name, in units of the spread of y. Half of it is 1.35 standard deviations of the noise,
# the usual threshold, where a fit explains six sevenths of the variance.
LENGTHS = {"huber": "threshold", "epsilon_insensitive": "epsilon", "smoothed_pinball": "width", "logcosh": "scale"}
LENGTH = {"huber": 0.5, "epsilon_insensitive": 0.1, "smoothed_pinball": 0.1, "logcosh": 0.5}


def spread(y: Array, share: Array) -> float:
    """Interquartile range over 1.35; mean absolute deviation where that is 0; 1 if y is constant."""
    quartiles = weighted_quantiles(y, share, np.array([0.25, 0.5, 0.75]))
    return spread_from(quartiles, lambda median: float(share @ np.abs(y - median)))


def spread_from(quartiles: Array, deviation_from: Callable[[float], float]) -> float:
    """`spread` from the quartiles of y and, if it is needed, its mean absolute deviation from the second."""
    first, median, third = quartiles
    if third > first:
        return float(third - first) / 1.349
    deviation = deviation_from(float(median))
    return deviation if deviation > 0 else 1.0


def column_scales(X: Array, share: Array) -> Array:
    """The standard deviation of each column, or the distance between its values where it has but two.

    For a constant column, a number so large that it plays no part. A flag that is rarely set has a small standard
    deviation, and measured in that it would be what rows differ in most; so would a category that is spread over
    columns of 0 and 1, which in this way count together about as much as one column of numbers.
    """
    return scales_from(moments(X, share))


def scales_from(found: Moments) -> Array:
    """`column_scales` from what is known of all rows."""
    mean, variance = found.mean, found.variance
    constant = variance <= (1e-12 * np.maximum(np.abs(mean), 1e-300)) ** 2
    # Of all laws between two ends, those on the ends alone have the largest variance for their mean. The distances of
    # the mean are taken from a row, which is one of the ends then: far from 0 the mean itself has too few digits.
    below, above = found.origin - found.low + found.offset, found.high - found.origin - found.offset
    two_values = variance >= (1 - 1e-9) * below * above
    scales = np.where(two_values, found.high - found.low, np.sqrt(variance))
    return np.where(constant, 1e9 * np.maximum(np.abs(mean), 1), scales)


def auto_bandwidth(X: Array, share: Array) -> Array:
    """One bandwidth per column: its scale times 0.6 of the median distance between rows measured in these."""
    return bandwidth_from(column_scales(X, share), X, share)


def bandwidth_from(lengths: Array, X: Array, share: Array) -> Array:
    """These lengths, one per column, times 0.6 of the median distance between rows that are measured in them."""
    rows, weight = distinct_rows(X, share, SUBSAMPLE)
    if len(rows) < 2:
        return lengths
    first, second = np.triu_indices(len(rows), 1)
    distances = pdist(rows / lengths)
    median = weighted_quantiles(distances, weight[first] * weight[second], np.array([0.5]))[0]
    return BANDWIDTH * median * lengths


def auto_landmarks(n_rows: int) -> int:
    """How many landmarks for so many different rows."""
    return int(np.clip(np.sqrt(LANDMARK_WORK / n_rows), *LANDMARKS))


def scaled_loss(name: str, scale: float) -> Loss:
    """The loss of this name, its length (if it has one) in units of the scale of y, so that fit(a y) = a fit(y)."""
    made = LOSSES[name]()
    return replace(made, **{LENGTHS[name]: LENGTH[name] * scale}) if name in LENGTHS else made


def alpha_unit(loss: Loss, scale: float) -> float:
    """What alpha is measured in, so that fit(a y) = a fit(y): the loss at residuals of the size of the scale.

    Where a tube holds all of these, the loss beyond it.
    """
    size = float(np.mean(loss.value(np.full((2, loss.n_columns), [[-scale], [scale]]))))
    return 2 * (size if size > 0 else scale * float(np.mean(loss.lipschitz()))) / scale**2


def alpha_for(loss: Loss, scale: float, n_rows: int = FEW) -> float:
    """`auto_alpha` for any loss."""
    return ALPHA * alpha_unit(loss, scale) / _sample_size_factor(n_rows)


def alpha_equivalent_to_krr(ridge: float, n_rows: int, loss: Loss, scale: float) -> float:
    """The ridge weight that weighs against the mean loss what this ridge does against a sum of squares over two."""
    return ridge / (2 * n_rows) * alpha_unit(loss, scale)


def auto_alpha(scale: float, n_rows: int) -> float:
    """A constant over the spread of y, so that fit(a y) = a fit(y); for so many different rows."""
    return ALPHA / scale / _sample_size_factor(n_rows)


def _sample_size_factor(n_rows: int) -> float:
    """sqrt(n / FEW) to the nearest power of 2, and at least 1: the number of different rows is known roughly only."""
    return 2.0 ** max(0, int(np.log2(n_rows / FEW) / 2 + 0.5))
