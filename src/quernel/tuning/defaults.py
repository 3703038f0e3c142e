"""Rules of thumb for bandwidth, ridge weight, number of features and the lengths of losses.

Each depends on the data only through weighted statistics, so that a row of weight 2 is equivalent to two copies of it,
and a row of weight 0 to none. `share` denotes weights of shape (n,) that sum to 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import pdist

from quernel.data.statistics import Moments, moments
from quernel.features.hash_sample import distinct_rows
from quernel.losses import LOSSES, Loss, weighted_quantiles

Array = NDArray[np.floating]

# Number of random features for data too small for a search, and the numbers that the search tries for larger data.
N_COMPONENTS = 500
SIZES = (125, 250, 500, 1000, 2000)
# Smallest and largest number of landmarks; in between, n_rows x n_landmarks^2, the operations of a Newton step, is kept
# at LANDMARK_WORK.
LANDMARKS, LANDMARK_WORK = (1000, 2000), 4e10
# alpha = ALPHA / scale(y) and bandwidth = BANDWIDTH x median distance of standardised rows are a compromise: on eleven
# public data sets held-out loss was lowest around 1e-5 and 0.5 on average, but small noisy ones need ten times that
# alpha. ALPHA is for FEW rows. The best alpha falls with n, in theory as n^(-1 / (2 r + gamma)); n^(-1/2), the slowest
# of these rates, never makes it too small.
ALPHA, FEW = 5e-5, 1000
BANDWIDTH = 0.6
# Distinct rows whose pairwise distances give the median.
SUBSAMPLE = 1000
# For losses given by name: the parameter that is a length in units of y, and its default relative to the scale of y.
# For Huber's threshold, 0.5 scales of y are the usual 1.35 standard deviations of the noise if a fit explains six
# sevenths of the variance.
LENGTHS = {"huber": "threshold", "epsilon_insensitive": "epsilon", "smoothed_pinball": "width", "logcosh": "scale"}
LENGTH = {"huber": 0.5, "epsilon_insensitive": 0.1, "smoothed_pinball": 0.1, "logcosh": 0.5}


def robust_scale(y: Array, share: Array) -> float:
    """Robust scale of y: interquartile range / 1.349, the standard deviation of normal data.

    The mean absolute deviation from the median if the interquartile range is 0, and 1 if y is constant.
    """
    quartiles = weighted_quantiles(y, share, np.array([0.25, 0.5, 0.75]))
    return robust_scale_from(quartiles, lambda median: float(share @ np.abs(y - median)))


def robust_scale_from(quartiles: Array, deviation_from: Callable[[float], float]) -> float:
    """`robust_scale` from the quartiles (3,) of y; `deviation_from(median)` is called only if they coincide."""
    first, median, third = quartiles
    if third > first:
        return float(third - first) / 1.349
    deviation = deviation_from(float(median))
    return deviation if deviation > 0 else 1.0


def column_scales(X: Array, share: Array) -> Array:
    """Scale of each column, shape (d,): its standard deviation, or for a binary column the distance of its two values.

    A rarely set flag has a small standard deviation; divided by it, the flag would dominate the distances between rows,
    and so would the columns of a one-hot encoded category. With this scale these columns count together about as much
    as one numeric column. A constant column gets a scale so large that it has no influence.
    """
    return scales_from(moments(X, share))


def scales_from(found: Moments) -> Array:
    """`column_scales` from the weighted moments of the columns."""
    mean, variance = found.mean, found.variance
    constant = variance <= (1e-12 * np.maximum(np.abs(mean), 1e-300)) ** 2
    # Binary columns attain the Bhatia-Davis bound  variance <= (mean - low) (high - mean).  The distances are computed
    # relative to a row (`origin`), which is one of the two values then: far from 0, mean - low would lose its digits.
    below, above = found.origin - found.low + found.offset, found.high - found.origin - found.offset
    two_values = variance >= (1 - 1e-9) * below * above
    scales = np.where(two_values, found.high - found.low, np.sqrt(variance))
    return np.where(constant, 1e9 * np.maximum(np.abs(mean), 1), scales)


def auto_bandwidth(X: Array, share: Array) -> Array:
    """Median heuristic, shape (d,): the scale of each column times 0.6 of the median distance of standardised rows."""
    return bandwidth_from(column_scales(X, share), X, share)


def bandwidth_from(lengths: Array, X: Array, share: Array) -> Array:
    """Median heuristic for given column scales, shape (d,): `lengths` times 0.6 median |x/lengths - z/lengths|."""
    rows, weight = distinct_rows(X, share, SUBSAMPLE)
    if len(rows) < 2:
        return lengths
    first, second = np.triu_indices(len(rows), 1)
    distances = pdist(rows / lengths)
    median = weighted_quantiles(distances, weight[first] * weight[second], np.array([0.5]))[0]
    return BANDWIDTH * median * lengths


def auto_landmarks(n_rows: int) -> int:
    """Number of Nystroem landmarks for this many distinct rows."""
    return int(np.clip(np.sqrt(LANDMARK_WORK / n_rows), *LANDMARKS))


def scaled_loss(name: str, scale: float) -> Loss:
    """Loss of this name; its length parameter, if any, is relative to the scale of y, so that fit(a y) = a fit(y)."""
    params: dict[str, Any] = {LENGTHS[name]: LENGTH[name] * scale} if name in LENGTHS else {}
    return LOSSES[name](**params)


def alpha_unit(loss: Loss, scale: float) -> float:
    """Unit of alpha, for which fit(a y) = a fit(y):  2 mean(loss(+-scale)) / scale^2.

    This is 2 for the squared loss r^2, and 1 / scale for the pinball loss at any level. If the loss is 0 at +-scale
    (epsilon-insensitive), its Lipschitz constant times the scale takes its place.
    """
    size = float(np.mean(loss.value(np.full((2, loss.n_columns), [[-scale], [scale]]))))
    return 2 * (size if size > 0 else scale * float(np.mean(loss.lipschitz()))) / scale**2


def alpha_for(loss: Loss, scale: float, n_rows: int = FEW) -> float:
    """Default alpha for any loss: ALPHA in units of `alpha_unit`, divided by the sample-size factor."""
    return ALPHA * alpha_unit(loss, scale) / _sample_size_factor(n_rows)


def alpha_equivalent_to_krr(ridge: float, n_rows: int, loss: Loss, scale: float) -> float:
    """Convert the ridge of kernel ridge regression to alpha:  ridge / (2 n) * alpha_unit.

    Kernel ridge regression minimises  sum r^2 / 2 + ridge u'u / 2;  dividing by n, the penalty is ridge / (2 n) against
    the mean of r^2 / 2, a loss whose `alpha_unit` is 1.
    """
    return ridge / (2 * n_rows) * alpha_unit(loss, scale)


def auto_alpha(scale: float, n_rows: int) -> float:
    """Default alpha for the pinball loss, for which fit(a y) = a fit(y); n_rows counts distinct rows."""
    return ALPHA / scale / _sample_size_factor(n_rows)


def _sample_size_factor(n_rows: int) -> float:
    """sqrt(n / FEW) rounded to a power of 2, at least 1: rounded because n_distinct is an estimate."""
    return 2.0 ** max(0, int(np.log2(n_rows / FEW) / 2 + 0.5))
