"""What calibration rows teach about intervals, and how far a new row's interval must reach.

A calibration row's score is by how much its target lies outside the predicted interval: low - y below it, y - high
above it, negative inside. A new row's score is as likely to take any rank among n + 1 as those of the n calibration
rows, if all are exchangeable. So the interval that is moved out by the score of rank ceil(level (n + 1)) holds the new
target with a probability of at least `level`, whatever the model is (Romano, Patterson and Candes 2019). Where rows
have weights, ranks become sums of weights, the new row's own among them (Tibshirani et al. 2019).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating]

# 0.95 * 20 must be 19 and not a little more.
ROUNDING = 1e-12
# Numbers looked at together where every new row has scores of its own.
PART = 2_000_000


def level_of(coverage: float, symmetric: bool) -> float:
    """The share of the scores that each end must cover: all misses may be at either end, or half of them at each."""
    return coverage if symmetric else (1 + coverage) / 2


def rows_needed(level: float) -> int:
    """The fewest calibration rows with  ceil(level (n + 1)) <= n:  with less, only an infinite interval is sure."""
    return int(np.ceil(level / (1 - level) * (1 - ROUNDING)))


def reach(score: Array, weight: Array, own: Array, level: float) -> Array:
    """For each new row (m,): the least score s with  sum of weights of scores <= s  at least  level (sum + own).

    Infinite where there is none. With all weights 1 it is the score of rank ceil(level (n + 1)).
    """
    order = np.argsort(score, kind="stable")
    reached = np.cumsum(weight[order])
    places = np.searchsorted(reached, level * (reached[-1] + own) * (1 - ROUNDING))
    return np.append(score[order], np.inf)[places]


@dataclass(frozen=True, eq=False)
class Scores:
    """Scores below and above the interval, the number of the model that predicted each row, and its weight; all (n,).

    Symmetric scores are the larger of the two, on both sides: the interval grows by the same length at either end.
    """

    below: Array
    above: Array
    model: NDArray[np.intp]
    weight: Array

    @classmethod
    def of(cls, ends: Array, y: Array, model: NDArray[np.intp], weight: Array, *, symmetric: bool) -> Scores:
        """The scores of targets y (n,) against predicted ends (n, 2)."""
        below, above = ends[:, 0] - y, y - ends[:, 1]
        if symmetric:
            below = above = np.maximum(below, above)
        return cls(below, above, model, weight)

    def take(self, rows: NDArray[np.intp]) -> Scores:
        """The scores of some of the rows."""
        return Scores(self.below[rows], self.above[rows], self.model[rows], self.weight[rows])

    def interval(self, ends: Array, own: Array, level: float) -> Array:
        """Calibrated ends (m, 2) from those (K, m, 2) that each model predicts; `own` (m,) are the new rows' weights.

        An interval can end up empty, where the model's was far too wide elsewhere. It then becomes its middle point:
        that holds no less than the empty one.
        """
        low = -self._farthest(-ends[:, :, 0], self.below, own, level)
        high = self._farthest(ends[:, :, 1], self.above, own, level)
        empty = low > high
        middle = (np.where(empty, low, 0) + np.where(empty, high, 0)) / 2
        return np.column_stack([np.where(empty, middle, low), np.where(empty, middle, high)])

    def _farthest(self, end: Array, score: Array, own: Array, level: float) -> Array:
        """The reach of  end + score,  each score on top of the end (K, m) by the model that made it."""
        if len(end) == 1:
            return end[0] + reach(score, self.weight, own, level)
        size = max(1, PART // len(score))
        parts = [slice(start, start + size) for start in range(0, end.shape[1], size)]
        return np.concatenate([self._reach_each(end[self.model, part].T + score, own[part], level) for part in parts])

    def _reach_each(self, values: Array, own: Array, level: float) -> Array:
        """`reach` where every new row has scores of its own, (m, n)."""
        order = np.argsort(values, axis=1)
        reached = np.cumsum(self.weight[order], axis=1)
        goal = level * (reached[:, -1] + own) * (1 - ROUNDING)
        places = np.sum(reached < goal[:, None], axis=1)
        there = np.take_along_axis(order, np.minimum(places, values.shape[1] - 1)[:, None], axis=1)
        return np.where(places < values.shape[1], np.take_along_axis(values, there, axis=1)[:, 0], np.inf)
