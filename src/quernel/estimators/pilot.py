"""Kernel ridge regression on some rows: what bandwidths and ridge weights are found by before the fit itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from quernel.estimators.defaults import spread
from quernel.estimators.leave_one_out import FIRST_RIDGE, Found, LeaveOneOut, Target, first_bandwidth
from quernel.kernels import Kernel
from quernel.losses import Loss, Pinball, weighted_quantiles
from quernel.rows import ArrayRows

Array = NDArray[np.floating]

# Steps of descent: on few rows, which costs little, then on all, and then by the spread along with y.
COARSE, COARSE_STEPS, STEPS, SPREAD_STEPS = 350, 12, 5, 6
# Targets further than this from the median, in units of their spread, are drawn in: squares follow them too far.
FARTHEST = 8.0


class Pilot:
    """Some rows, in random order, and the usual bandwidths of their columns."""

    def __init__(self, rows: ArrayRows, loss: Loss, usual: Array) -> None:
        share, y = rows.share(), columns(rows.y)
        if not loss.margin:
            y = _drawn_in(y, share)
        middle = share @ y
        deviation = np.sqrt(share @ (y - middle) ** 2)
        self.X, self.share, self.usual = rows.X, share, usual
        self.y = (y - middle) / np.where(deviation > 0, deviation, 1.0)
        # The curve of a level is  mean + normal score * spread,  and a normal law's mean absolute deviation is not 1.
        self.spread_counts = np.pi / 2 * float(np.mean(ndtri(loss.levels) ** 2)) if isinstance(loss, Pinball) else 0.0

    def keep(self, kernel: Kernel) -> Found:
        """The usual bandwidths, and a ridge for them."""
        return self._by(kernel).keep()

    def learn(self, kernel: Kernel, unit: Array) -> Found:
        """A bandwidth for every column, measured in these units: by y first, and then by the spread along with it."""
        start = first_bandwidth(kernel, self.usual, self.X)
        found = self._by(kernel, COARSE).descend(start, unit, steps=COARSE_STEPS)
        by = self._by(kernel)
        found = by.descend(found.bandwidth, unit, found.ridges, steps=STEPS)
        if not self.spread_counts:
            return found
        size = np.abs(by.errors(found)[0])
        both = replace(by, targets=(*by.targets, Target(size - self.share @ size, self.spread_counts)))
        return both.descend(found.bandwidth, unit, np.r_[found.ridges, FIRST_RIDGE], steps=SPREAD_STEPS)

    def _by(self, kernel: Kernel, most: int | None = None) -> LeaveOneOut:
        """Errors of y, on all rows or on so many."""
        weight = self.share[:most]
        return LeaveOneOut(kernel, self.X[:most], weight / weight.mean(), (Target(self.y[:most]),), self.usual)


def columns(y: Array) -> Array:
    """y with a column for every target."""
    return y if y.ndim == 2 else y[:, None]


def _drawn_in(y: Array, share: Array) -> Array:
    """y, what is far from the median brought nearer."""
    sides = [(weighted_quantiles(one, share, np.array([0.5]))[0], FARTHEST * spread(one, share)) for one in y.T]
    middle, far = np.array(sides).T
    return np.clip(y, middle - far, middle + far)
