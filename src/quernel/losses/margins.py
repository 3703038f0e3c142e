"""Losses of the margin m = y f with labels -1 and +1, written as losses of r = 1 - m.

A row whose margin is 1 or more has r <= 0. So the hinge is max(r, 0): half a check loss.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, xlog1py, xlogy

from quernel.losses.base import Loss, Parameter
from quernel.losses.piecewise import Piecewise
from quernel.losses.smooth import Smooth

Array = NDArray[np.floating]


class Margin(Loss):
    """r = 1 - y f."""

    margin: ClassVar[bool] = True

    def margin_transform(self, target: Array) -> tuple[Array | float, Array | float]:
        """(1, y)."""
        return 1.0, target

    def fit_constant(self, target: Array, share: Array) -> Array:
        """From the share of the label +1, which is all that counts."""
        positive = share @ (target > 0) / share.sum()
        return self.constant_for(np.broadcast_to(positive, (self.n_columns,)))

    def constant_for(self, positive: Array) -> Array:
        """argmin over b of  p loss(1 - b) + (1 - p) loss(1 + b)."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Hinge(Margin, Piecewise):
    """max(1 - m, 0):  the support vector machine."""

    def value(self, residual: Array) -> Array:
        """max(r, 0)."""
        return np.maximum(residual, 0)

    @property
    def domain(self) -> tuple[Array, Array]:
        """[0, 1]."""
        return np.zeros(self.n_columns), np.ones(self.n_columns)

    def constant_for(self, positive: Array) -> Array:
        """The label that most rows have; 0 between equals."""
        return np.sign(np.where(np.isclose(positive, 0.5, rtol=0, atol=1e-12), 0, positive - 0.5))


@dataclass(frozen=True, eq=False)
class SquaredHinge(Margin, Piecewise):
    """max(1 - m, 0)^2."""

    def value(self, residual: Array) -> Array:
        """max(r, 0)^2."""
        return np.maximum(residual, 0) ** 2

    @property
    def domain(self) -> tuple[Array, Array]:
        """0 and more."""
        return np.zeros(self.n_columns), np.full(self.n_columns, np.inf)

    @property
    def second_derivatives(self) -> tuple[Array, Array]:
        """1/2: the slope is 2 r."""
        return np.full(self.n_columns, 0.5), np.full(self.n_columns, 0.5)

    def constant_for(self, positive: Array) -> Array:
        """2 p - 1."""
        return 2 * positive - 1


@dataclass(frozen=True, eq=False)
class SmoothedHinge(Margin, Piecewise):
    """The hinge with its kink rounded over a width: a parabola for margins in (1 - width, 1)."""

    width: Parameter = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require("width", (self.width > 0) & np.isfinite(self.width), "positive")

    def value(self, residual: Array) -> Array:
        """v r - width v^2 / 2  at  v = clip(r / width, 0, 1)."""
        slope = np.clip(residual / self.width, 0, 1)
        return slope * residual - self.width * slope**2 / 2

    @property
    def domain(self) -> tuple[Array, Array]:
        """[0, 1]."""
        return np.zeros(self.n_columns), np.ones(self.n_columns)

    @property
    def second_derivatives(self) -> tuple[Array, Array]:
        """The width."""
        return self.width, self.width

    def constant_for(self, positive: Array) -> Array:
        """Where  p clip((1 - b) / width) = (1 - p) clip((1 + b) / width),  clipped to [0, 1].

        On the side of the rarer label the slope is 1 as soon as the width is below 1 + |b|; otherwise both are sloping.
        """
        rare = np.minimum(positive, 1 - positive)
        far = 1 - self.width * rare / (1 - rare)
        size = np.where(1 + far >= self.width, far, 1 - 2 * rare)
        return np.sign(positive - 0.5) * np.where(rare < 0.5, size, 0)


@dataclass(frozen=True, eq=False)
class Logistic(Margin, Smooth):
    """log(1 + exp(-m)):  logistic regression, without the factor 1 / log 2."""

    ends: ClassVar[tuple[float, float]] = (0.0, 1.0)
    inverse_smoothness: ClassVar[float] = 4.0

    def value(self, residual: Array) -> Array:
        """log(1 + exp(r - 1))."""
        return np.logaddexp(0, residual - 1)

    def slope(self, residual: Array) -> Array:
        """1 / (1 + exp(1 - r)):  the probability that the model gives to the other label."""
        return expit(residual - 1)

    def second_derivative(self, residual: Array) -> Array:
        """p (1 - p)."""
        return expit(residual - 1) * expit(1 - residual)

    def conjugate(self, dual: Array) -> Array:
        """v + v log v + (1 - v) log(1 - v)."""
        v = np.clip(dual, 0, 1)
        return np.where(dual == v, v + xlogy(v, v) + xlog1py(1 - v, -v), np.inf)

    def inverse_subgradient(self, dual: Array) -> Array:
        """1 + log(v / (1 - v)), cut where the numbers end."""
        v = np.clip(dual, np.finfo(float).tiny, 1 - np.finfo(float).epsneg)
        return 1 + np.log(v) - np.log1p(-v)

    def constant_for(self, positive: Array) -> Array:
        """log(p / (1 - p)), finite also where there is one label only."""
        p = np.clip(positive, np.finfo(float).eps, 1 - np.finfo(float).eps)
        return np.log(p) - np.log1p(-p)
