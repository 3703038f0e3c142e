"""A problem solved in other coordinates: with centred targets, and centred and scaled features.

    y' = y - c,        phi' = s (phi - m),        s a power of two

F is the same function: u = s u' with the ridge weight alpha s^2, and b = b' + c - m'u. Differences of y and c are exact
where y is near c, so that targets far from zero lose no digits; columns far from zero no longer look like a constant.

What is stored is b as a floating point number. Far from zero such numbers are far apart, and rounding b changes F:
therefore fits are certified at the b' that the stored number stands for (`round_intercept`).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import fsum

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating]

# Splits a float64 into halves of 26 bits (Dekker 1971).
_SPLITTER = 2.0**27 + 1


@dataclass(frozen=True, eq=False)
class Centring:
    """Centre c of the targets, m (M,) of the features (None for zero) and scale s of the features."""

    target: float = 0.0
    mean: Array | None = None
    scale: float = 1.0

    def fits(self, n_features: int) -> bool:
        """Whether so many features can be those of these coordinates."""
        return self.mean is None or len(self.mean) == n_features

    def transform_features(self, features: Array) -> Array:
        """phi' (n, M) of original features."""
        if self.mean is not None:
            features = features - self.mean
        return features if self.scale == 1 else features * self.scale

    def round_intercept(self, coef: Array, intercept: Array) -> Array:
        """The b' (q,) of the floating point numbers b that are nearest to those of (u', b'); rounded once, to b'."""
        stored = self.restore(coef, intercept)[1]
        return self._sum_with_centre(stored, coef, -1.0)

    def restore(self, coef: Array, intercept: Array) -> tuple[Array, Array]:
        """(u, b) of a fit (u', b'): M x q coefficients and q intercepts, each b rounded once."""
        return self.scale * coef, self._sum_with_centre(intercept, coef, 1.0)

    def enter(self, coef: Array, intercept: Array) -> tuple[Array, Array]:
        """(u', b') of a fit (u, b)."""
        inner = coef / self.scale
        return inner, self._sum_with_centre(intercept, inner, -1.0)

    def _sum_with_centre(self, intercept: Array, coef: Array, sign: float) -> Array:
        """intercept + sign (c - m'u) with a single rounding."""
        if self.mean is None:
            return intercept + sign * self.target
        columns = zip(intercept, (self.scale * coef).T, strict=True)
        return np.array(
            [
                fsum([b, sign * self.target, *(-sign * part for part in _exact_products(self.mean, u))])
                for b, u in columns
            ]
        )


def _exact_products(a: Array, b: Array) -> Array:
    """Numbers (2 M,) whose exact sum is the exact inner product of a and b (M,)."""
    product = a * b
    (a_high, a_low), (b_high, b_low) = _split(a), _split(b)
    error = a_low * b_low - (((product - a_high * b_high) - a_low * b_high) - a_high * b_low)
    return np.concatenate([product, error])


def _split(a: Array) -> tuple[Array, Array]:
    """a as the sum of two numbers of 26 bits."""
    high = _SPLITTER * a
    high = high - (high - a)
    return high, a - high
