"""Classification losses: convex functions of the margin m = y f with labels y in {-1, +1}, written in r = 1 - m.

A row that is classified correctly with a margin of at least 1 has r <= 0. In this form the hinge loss is max(r, 0), a
pinball loss with the box [0, 1], and support vector machines are solved by the code that solves quantile regression.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, xlog1py, xlogy

from quernel.losses.base import Loss, Parameter, Piecewise, Smooth

Array = NDArray[np.floating]


class Margin(Loss):
    """Base class of losses of the margin:  r = 1 - y f.

    Mixed in before `Piecewise` or `Smooth`; a subclass adds `constant_for`.
    """

    margin: ClassVar[bool] = True

    def margin_transform(self, target: Array) -> tuple[Array | float, Array | float]:
        """(offset, sign) = (1, y)."""
        return 1.0, target

    def fit_constant(self, target: Array, share: Array) -> Array:
        """The best constant score, shape (q,); it depends on the data only through the weighted share of label +1."""
        positive, negative = share @ (target > 0) / share.sum(), share @ (target <= 0) / share.sum()
        # Of the rarer label, whose share keeps its digits; the other's score is the opposite.
        rarer = np.broadcast_to(np.minimum(positive, negative), (self.n_columns,))
        return np.where(positive > negative, -1, 1) * self.constant_for(rarer)

    def constant_for(self, positive: Array) -> Array:
        """argmin over b of  p loss(1 - b) + (1 - p) loss(1 + b),  with p the share of label +1; shape (q,)."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Hinge(Margin, Piecewise):
    """Hinge loss  max(1 - m, 0),  of the support vector machine."""

    ends: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def value(self, residual: Array) -> Array:
        """max(r, 0)."""
        return np.maximum(residual, 0)

    def constant_for(self, positive: Array) -> Array:
        """The majority label, -1 or +1; 0 for a tie."""
        return np.sign(np.where(np.isclose(positive, 0.5, rtol=0, atol=1e-12), 0, positive - 0.5))


@dataclass(frozen=True, eq=False)
class SquaredHinge(Margin, Piecewise):
    """Squared hinge loss  max(1 - m, 0)^2,  of the L2-loss support vector machine."""

    ends: ClassVar[tuple[float, float]] = (0.0, np.inf)
    inverse_curvature: ClassVar[float] = 0.5  # the slope is 2 r

    def value(self, residual: Array) -> Array:
        """max(r, 0)^2."""
        return np.maximum(residual, 0) ** 2

    def constant_for(self, positive: Array) -> Array:
        """2 p - 1."""
        return 2 * positive - 1


@dataclass(frozen=True, eq=False)
class SmoothedHinge(Margin, Piecewise):
    """The hinge loss with its kink smoothed: a parabola for margins in (1 - width, 1).

    It is the Moreau envelope of the hinge loss (Rennie and Srebro's smooth hinge for width 1).

    Parameters
    ----------
    width : float or array-like of shape (q,), default=1.0
        Length of the parabola, in units of the margin.
    """

    ends: ClassVar[tuple[float, float]] = (0.0, 1.0)
    ranges: ClassVar[dict[str, str]] = {"width": "positive"}
    width: Parameter = 1.0

    def value(self, residual: Array) -> Array:
        """v r - width v^2 / 2  at  v = clip(r / width, 0, 1)."""
        slope = np.clip(residual / self.width, 0, 1)
        return slope * residual - self.width * slope**2 / 2

    @property
    def inverse_curvatures(self) -> tuple[Array, Array]:
        """The width: the slope r / width rises by 1 over it."""
        return self.width, self.width

    def constant_for(self, positive: Array) -> Array:
        """The root b of  p clip((1 - b) / width) = (1 - p) clip((1 + b) / width),  with clip to [0, 1].

        b has the sign of the majority label. For the minority label r = 1 + |b|: if that is at least the width, its
        slope is 1 and the equation is linear in the majority's slope; otherwise both slopes are linear in b, and
        b = 2p - 1 as for the squared hinge.
        """
        minority = np.minimum(positive, 1 - positive)
        saturated = 1 - self.width * minority / (1 - minority)
        size = np.where(1 + saturated >= self.width, saturated, 1 - 2 * minority)
        return np.sign(positive - 0.5) * np.where(minority < 0.5, size, 0)


@dataclass(frozen=True, eq=False)
class Logistic(Margin, Smooth):
    """Logistic loss  log(1 + exp(-m)),  the negative log-likelihood of logistic regression (natural logarithm)."""

    ends: ClassVar[tuple[float, float]] = (0.0, 1.0)
    inverse_curvature: ClassVar[float] = 4.0

    def value(self, residual: Array) -> Array:
        """log(1 + exp(r - 1))."""
        return np.logaddexp(0, residual - 1)

    def slope(self, residual: Array) -> Array:
        """1 / (1 + exp(1 - r)):  the probability p that the model gives to the wrong label."""
        return expit(residual - 1)

    def second_derivative(self, residual: Array) -> Array:
        """p (1 - p)."""
        return expit(residual - 1) * expit(1 - residual)

    def conjugate(self, dual: Array) -> Array:
        """v + v log v + (1 - v) log(1 - v):  v minus the binary entropy of v."""
        v = np.clip(dual, 0, 1)
        return np.where(dual == v, v + xlogy(v, v) + xlog1py(1 - v, -v), np.inf)

    def inverse_subgradient(self, dual: Array) -> Array:
        """1 + log(v / (1 - v)), with v kept off 0 and 1 so that the result is finite."""
        v = np.clip(dual, np.finfo(float).tiny, 1 - np.finfo(float).epsneg)
        return 1 + np.log(v) - np.log1p(-v)

    def constant_for(self, positive: Array) -> Array:
        """The log-odds log(p / (1 - p)), kept finite where all rows have one label."""
        p = np.clip(positive, np.finfo(float).eps, 1 - np.finfo(float).eps)
        return np.log(p) - np.log1p(-p)
