"""Conformity scores of calibration rows, and the quantile of them by which an interval is widened.

The conformity score of a calibration row is the signed distance of its target from the predicted interval
[low, high]: low - y below it, y - high above it, negative inside (conformalized quantile regression: Romano, Patterson
and Candes 2019). If the n calibration rows and a new row are exchangeable, the new row's score takes each of the n + 1
ranks with the same probability. So an interval that is widened by the score of rank ceil(level (n + 1)) contains the
new target with probability `level` or more, whatever the model is.

Two extensions are in here:

- weighted conformal prediction for covariate shift (Tibshirani, Barber, Candes and Ramdas 2019): ranks become
  cumulative sums of weights, with the new row's own weight in the total;
- CV+ (Barber, Candes, Ramdas and Tibshirani 2021): each score is added to the bound predicted by the model that did not
  see the row of that score, so that every new row has its own list of candidate bounds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating]

# Relative tolerance of ranks: 0.95 * 20 must be 19, and in floating point it may be a little more.
ROUNDING = 1e-12
# CV+ sorts a matrix of (new rows, calibration rows); new rows are batched so that it has at most so many entries.
MAX_ENTRIES = 2_000_000


def score_level(coverage: float, symmetric: bool) -> float:
    """Level of the conformal quantile at each bound.

    Symmetric scores take both sides at once, so that all misses, 1 - coverage, are theirs. Otherwise each bound has a
    quantile of its own and half of the misses: level = 1 - (1 - coverage) / 2.
    """
    return coverage if symmetric else (1 + coverage) / 2


def min_calibration_rows(level: float) -> int:
    """Smallest n with  ceil(level (n + 1)) <= n;  with fewer rows only an infinite interval has the coverage."""
    return int(np.ceil(level / (1 - level) * (1 - ROUNDING)))


def conformal_quantile(score: Array, weight: Array, own: Array, level: float) -> Array:
    """Weighted conformal quantile of the scores, one for each new row, shape (m,).

    The smallest score s with  sum_{i: score_i <= s} weight_i  >=  level (sum_i weight_i + own);  infinite where there
    is none. With all weights 1 it is the score of rank ceil(level (n + 1)).

    Parameters
    ----------
    score, weight : arrays of shape (n,), of the calibration rows
    own : array of shape (m,), the weights of the new rows themselves
    level : float in (0, 1)
    """
    order = np.argsort(score, kind="stable")
    cumulative = np.cumsum(weight[order])
    ranks = np.searchsorted(cumulative, level * (cumulative[-1] + own) * (1 - ROUNDING))
    return np.append(score[order], np.inf)[ranks]


@dataclass(frozen=True, eq=False)
class Scores:
    """Conformity scores of n calibration rows.

    Model files store these fields by name.

    Parameters
    ----------
    below, above : arrays of shape (n,)
        Signed distance of y below the lower and above the upper bound. Symmetric scores are the larger of the two, the
        same in both arrays: the interval is then widened by the same length at either end.
    model : int array of shape (n,)
        Index of the model that predicted the row, which is its fold for CV+ and 0 otherwise.
    weight : array of shape (n,)
        Density ratio of the row; 1 without covariate shift.
    """

    below: Array
    above: Array
    model: NDArray[np.intp]
    weight: Array

    @classmethod
    def from_predictions(
        cls, bounds: Array, y: Array, model: NDArray[np.intp], weight: Array, *, symmetric: bool
    ) -> Scores:
        """Compute the scores of targets y (n,) against predicted intervals `bounds` (n, 2)."""
        below, above = bounds[:, 0] - y, y - bounds[:, 1]
        if symmetric:
            below = above = np.maximum(below, above)
        return cls(below, above, model, weight)

    def take(self, rows: NDArray[np.intp]) -> Scores:
        """Select the scores of some of the rows."""
        return Scores(self.below[rows], self.above[rows], self.model[rows], self.weight[rows])

    def interval(self, bounds: Array, own: Array, level: float) -> Array:
        """Calibrate predicted intervals.

        Scores may be negative, so that calibration may narrow an interval until its bounds cross. Such an interval
        becomes its midpoint, which cannot cover less than the empty set.

        Parameters
        ----------
        bounds : array of shape (K, m, 2), the intervals of m new rows by each of the K models
        own : array of shape (m,), the weights of the new rows
        level : float, as of `score_level`

        Returns
        -------
        array of shape (m, 2)
        """
        # The lower bound is the upper bound of the mirrored problem, -y.
        low = -self._calibrated_bound(-bounds[:, :, 0], self.below, own, level)
        high = self._calibrated_bound(bounds[:, :, 1], self.above, own, level)
        crossed = low > high
        # Infinite bounds never cross; they are masked here because -inf + inf would warn.
        midpoint = (np.where(crossed, low, 0) + np.where(crossed, high, 0)) / 2
        return np.column_stack([np.where(crossed, midpoint, low), np.where(crossed, midpoint, high)])

    def _calibrated_bound(self, bound: Array, score: Array, own: Array, level: float) -> Array:
        """Conformal quantile of  bound[model_i, j] + score_i  over i, for each new row j; `bound` is (K, m)."""
        if len(bound) == 1:  # one model: its bound is a constant, and one quantile of the scores serves all new rows
            return bound[0] + conformal_quantile(score, self.weight, own, level)
        size = max(1, MAX_ENTRIES // len(score))
        batches = [slice(start, start + size) for start in range(0, bound.shape[1], size)]
        return np.concatenate(
            [self._quantile_per_row(bound[self.model, batch].T + score, own[batch], level) for batch in batches]
        )

    def _quantile_per_row(self, values: Array, own: Array, level: float) -> Array:
        """`conformal_quantile` where every new row has scores of its own: values (m, n), result (m,)."""
        order = np.argsort(values, axis=1)
        cumulative = np.cumsum(self.weight[order], axis=1)
        goal = level * (cumulative[:, -1] + own) * (1 - ROUNDING)
        ranks = np.sum(cumulative < goal[:, None], axis=1)
        index = np.take_along_axis(order, np.minimum(ranks, values.shape[1] - 1)[:, None], axis=1)
        return np.where(ranks < values.shape[1], np.take_along_axis(values, index, axis=1)[:, 0], np.inf)
