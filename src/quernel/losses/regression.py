"""Losses of the residual y - f."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import xlog1py

from quernel.losses.base import Parameter
from quernel.losses.piecewise import Piecewise
from quernel.losses.pinball import weighted_quantiles
from quernel.losses.smooth import Smooth

Array = NDArray[np.floating]


@dataclass(frozen=True, eq=False)
class Absolute(Piecewise):
    """|r|:  least absolute deviations."""

    def value(self, residual: Array) -> Array:
        """|r|."""
        return np.abs(residual)

    @property
    def domain(self) -> tuple[Array, Array]:
        """[-1, 1]."""
        return -np.ones(self.n_columns), np.ones(self.n_columns)

    def fit_constant(self, target: Array, share: Array) -> Array:
        """The weighted median."""
        return weighted_quantiles(target, share, np.full(self.n_columns, 0.5))


@dataclass(frozen=True, eq=False)
class EpsilonInsensitive(Piecewise):
    """max(|r| - epsilon, 0):  support vector regression."""

    epsilon: Parameter = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require("epsilon", (self.epsilon >= 0) & np.isfinite(self.epsilon), "0 or more")

    def value(self, residual: Array) -> Array:
        """max(|r| - epsilon, 0)."""
        return np.maximum(np.abs(residual) - self.epsilon, 0)

    @property
    def domain(self) -> tuple[Array, Array]:
        """[-1, 1]."""
        return -np.ones(self.n_columns), np.ones(self.n_columns)

    @property
    def tube(self) -> Array:
        """epsilon."""
        return self.epsilon

    def fit_constant(self, target: Array, share: Array) -> Array:
        """The weighted median of y - epsilon and y + epsilon together, for the loss is the mean of two |.| there."""
        twice = np.tile(share, 2)
        ends = [np.concatenate([target - e, target + e]) for e in self.epsilon]
        return np.array([weighted_quantiles(values, twice, np.array([0.5]))[0] for values in ends])


@dataclass(frozen=True, eq=False)
class Huber(Piecewise):
    """r^2 / 2 up to the threshold, and from there on a line."""

    threshold: Parameter = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require("threshold", (self.threshold > 0) & np.isfinite(self.threshold), "positive")

    def value(self, residual: Array) -> Array:
        """r^2 / 2  where |r| <= threshold, else  threshold |r| - threshold^2 / 2."""
        near = np.minimum(np.abs(residual), self.threshold)
        return near * (np.abs(residual) - near / 2)

    @property
    def domain(self) -> tuple[Array, Array]:
        """[-threshold, threshold]."""
        return -self.threshold, self.threshold

    @property
    def second_derivatives(self) -> tuple[Array, Array]:
        """1: the slope is r."""
        return np.ones(self.n_columns), np.ones(self.n_columns)


@dataclass(frozen=True, eq=False)
class SmoothedPinball(Piecewise):
    """The check loss with its kink rounded: the smoothed loss of anchor 0 and this width."""

    width: Parameter = 0.1
    levels: Parameter = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require("width", (self.width > 0) & np.isfinite(self.width), "positive")
        self._require("levels", (self.levels > 0) & (self.levels < 1), "strictly between 0 and 1")

    def value(self, residual: Array) -> Array:
        """v r - width v^2 / 2  at  v = clip(r / width, level - 1, level)."""
        slope = np.clip(residual / self.width, *self.domain)
        return slope * residual - self.width * slope**2 / 2

    @property
    def domain(self) -> tuple[Array, Array]:
        """The box [level - 1, level]."""
        return self.levels - 1, self.levels

    @property
    def second_derivatives(self) -> tuple[Array, Array]:
        """The width."""
        return self.width, self.width


@dataclass(frozen=True, eq=False)
class Expectile(Piecewise):
    """|level - 1{r < 0}| r^2:  expectiles, the least-squares cousins of quantiles."""

    level: Parameter = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require("level", (self.level > 0) & (self.level < 1), "strictly between 0 and 1")

    def value(self, residual: Array) -> Array:
        """level r^2  above the fit,  (1 - level) r^2  below it."""
        return np.where(residual < 0, 1 - self.level, self.level) * residual**2

    @property
    def domain(self) -> tuple[Array, Array]:
        """All numbers."""
        return np.full(self.n_columns, -np.inf), np.full(self.n_columns, np.inf)

    @property
    def second_derivatives(self) -> tuple[Array, Array]:
        """1 / loss'' on either side."""
        return 1 / (2 * (1 - self.level)), 1 / (2 * self.level)


@dataclass(frozen=True, eq=False)
class Squared(Piecewise):
    """r^2:  kernel ridge regression."""

    def value(self, residual: Array) -> Array:
        """r^2."""
        return residual**2

    @property
    def domain(self) -> tuple[Array, Array]:
        """All numbers."""
        return np.full(self.n_columns, -np.inf), np.full(self.n_columns, np.inf)

    @property
    def second_derivatives(self) -> tuple[Array, Array]:
        """1/2: the slope is 2 r."""
        return np.full(self.n_columns, 0.5), np.full(self.n_columns, 0.5)

    def fit_constant(self, target: Array, share: Array) -> Array:
        """The weighted mean."""
        return np.full(self.n_columns, share @ target / share.sum())


@dataclass(frozen=True, eq=False)
class LogCosh(Smooth):
    """scale^2 log cosh(r / scale):  r^2 / 2 near 0 and lines of slope scale far away, without a seam."""

    inverse_smoothness: ClassVar[float] = 1.0
    scale: Parameter = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require("scale", (self.scale > 0) & np.isfinite(self.scale), "positive")

    def value(self, residual: Array) -> Array:
        """scale^2 log cosh(x), x = r / scale:  log(1 + 2 sinh(x/2)^2)  near 0,  x + log(1 + exp(-2x)) - log 2  far."""
        x = np.abs(residual / self.scale)
        near = np.log1p(2 * np.sinh(np.minimum(x, 1) / 2) ** 2)
        return self.scale**2 * np.where(x < 1, near, x + np.log1p(np.exp(-2 * x)) - np.log(2))

    def slope(self, residual: Array) -> Array:
        """scale tanh(r / scale)."""
        return self.scale * np.tanh(residual / self.scale)

    def second_derivative(self, residual: Array) -> Array:
        """1 / cosh(r / scale)^2."""
        return 1 / np.cosh(np.clip(residual / self.scale, -300, 300)) ** 2

    @property
    def domain(self) -> tuple[Array, Array]:
        """[-scale, scale]."""
        return -self.scale, self.scale

    def conjugate(self, dual: Array) -> Array:
        """scale^2 ((1 + u) log(1 + u) + (1 - u) log(1 - u)) / 2  with u = v / scale."""
        u = dual / self.scale
        inside = np.clip(u, -1, 1)
        entropy = (xlog1py(1 + inside, inside) + xlog1py(1 - inside, -inside)) / 2
        return np.where(np.abs(u) <= 1, self.scale**2 * entropy, np.inf)

    def inverse_subgradient(self, dual: Array) -> Array:
        """scale artanh(v / scale), cut where the numbers end."""
        near_one = 1 - np.finfo(float).epsneg
        return self.scale * np.arctanh(np.clip(dual / self.scale, -near_one, near_one))
