"""Combine quantile functions by weights, and recalibrate their levels, both judged on rows that no part has seen.

Averages of quantile functions (Vincent 1912) with weights >= 0 never cross, and neither do levels that are mapped
monotonely: the combination  Q(tau | x) = sum_k w_k Q_k(g(tau) | x)  is a quantile function by construction.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from quernel.estimators.levels import QuantileFunction
from quernel.losses import weighted_quantiles

Array = NDArray[np.floating]

# Levels at which distribution functions are tabulated, and between which samples are interpolated.
GRID = np.r_[0.0005, 0.002, 0.005, np.arange(1, 100) / 100, 0.995, 0.998, 0.9995]


@dataclass(frozen=True)
class StackingOptions:
    """Constants of weights and calibration."""

    levels: tuple[float, ...] = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95)  # whose mean pinball loss the weights minimise
    steps: int = 20  # weights are multiples of 1 / steps
    knots: tuple[float, ...] = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)  # levels that are calibrated
    prior_rows: float = 30.0  # calibration is shrunk towards none, as if so many more rows had shown no need of it


OPTIONS = StackingOptions()


def mean_pinball(y: Array, curves: Array, levels: Array, weight: Array) -> float:
    """Mean pinball loss over rows (weighted) and levels; curves (n, q)."""
    residual = y[:, None] - curves
    return float(weight @ np.maximum(levels * residual, (levels - 1) * residual).mean(axis=1) / weight.sum())


def choose_weights(y: Array, curves: list[Array], weight: Array) -> Array:
    """Weights (k,) >= 0 of sum 1 that minimise the loss of  sum_k w_k curves_k,  each (n, q) at `OPTIONS.levels`.

    All multiples of 1 / steps are tried: the loss is piecewise linear, three parts are few, and ties go to the first.
    """
    levels, steps = np.array(OPTIONS.levels), OPTIONS.steps
    shares = [np.array(one) / steps for one in product(range(steps + 1), repeat=len(curves)) if sum(one) == steps]
    losses = [mean_pinball(y, np.tensordot(share, curves, axes=1), levels, weight) for share in shares]
    return shares[int(np.argmin(losses))]


@dataclass(frozen=True, eq=False)
class Calibration:
    """Monotone map g of levels: linear between knots in normal scores, and beyond them by the outer shifts."""

    nominal: Array  # normal scores, ascending
    actual: Array  # normal scores of the levels to ask for, ascending

    @classmethod
    def identity(cls) -> Calibration:
        """The map that changes nothing."""
        return cls(np.array([0.0]), np.array([0.0]))

    @classmethod
    def from_pit(cls, pit: Array, weight: Array) -> Calibration:
        """g(tau) = quantile of the PIT values P(Y <= y_i | x_i) at tau: the level that holds the share tau of rows."""
        knots = np.array(OPTIONS.knots)
        # Knots with fewer than five rows beyond them would be noise.
        n = weight.sum() ** 2 / (weight @ weight)
        knots = knots[np.minimum(knots, 1 - knots) * n >= 5]
        if len(knots) == 0:
            return cls.identity()
        found = np.clip(weighted_quantiles(pit, weight, knots), GRID[0], GRID[-1])
        nominal, trust = ndtri(knots), n / (n + OPTIONS.prior_rows)
        return cls(nominal, np.maximum.accumulate(nominal + trust * (ndtri(found) - nominal)))

    def __call__(self, levels: Array) -> Array:
        """Levels to ask the parts for, within the grid, (q,) as given."""
        score = ndtri(levels)
        inside = np.interp(score, self.nominal, self.actual)
        beyond = np.minimum(score - self.nominal[0], 0) + np.maximum(score - self.nominal[-1], 0)
        return np.clip(ndtr(inside + beyond), GRID[0], GRID[-1])


def randomized_pit(y: Array, curves: Array, rng: np.random.Generator) -> Array:
    """P(Y < y) + U P(Y = y) of each row (n,), from quantiles (n, len(GRID)): uniform if the quantiles are right."""
    function = QuantileFunction(GRID, curves)
    below, up_to = function.cdf(np.nextafter(y, -np.inf)), function.cdf(y)
    return below + rng.random(len(y)) * (up_to - below)
