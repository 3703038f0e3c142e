"""Lambda_s(t) = 1 + 2 sum_{k >= 1} k^-s cos(2 pi k t) for every real order s > 0, to 1e-12 of its size.

With a = 2 pi |t| and |t| <= 1/2, the expansion of the polylogarithm about a = 0 reads

    sum_k k^-s cos(k a) = A a^(s-1) + sum_j (-1)^j zeta(s - 2j) a^(2j) / (2j)!,    A = pi / (2 Gamma(s) cos(pi s/2)).

The sum is smooth: on [0, pi] a polynomial of degree 16 in a^2 holds it to rounding error. The first term is not, and is
evaluated as it stands. Near an odd order s = 2m + 1 + e the coefficient A and zeta(s - 2m) both grow like 1/e, with
opposite signs: there the two terms are taken together, as

    (-1)^m a^(2m) / (2m)! [zeta(1 + e) - g a^e / e],    g = Gamma(2m + 1) / Gamma(2m + 1 + e) (pi e/2) / sin(pi e/2),

in which zeta(1 + e) - 1/e and (g a^e - 1)/e are computed without subtracting large numbers. Large orders need a few
terms of the series only.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import factorial

import numpy as np
from numpy.polynomial import Chebyshev, Polynomial
from numpy.typing import NDArray
from scipy.special import digamma, exprel, gamma, gammaln, polygamma, zetac

Array = NDArray[np.floating]

# From this order on, terms of the series up to k = 7 are enough.
DIRECT_FROM = 20
TERMS = 40
DEGREE = 16
# zeta(1 + e) - 1/e = sum_n (-1)^n STIELTJES[n] e^n / n!
STIELTJES = (
    0.57721566490153286,
    -0.072815845483676725,
    -0.0096903631928723185,
    0.0020538344203033459,
    0.0023253700654673000,
    0.00079332381730106270,
    -0.00023876934543019961,
)
# Within this distance of an odd order, differences are taken by series.
NEAR = 0.02
TINY = 1e-300


def periodic_sum(order: float, t: Array, *, nearest: float = 0.0) -> Array:
    """Lambda_order(t), of the shape of t; infinite at whole t for orders up to 1, unless kept away from them."""
    t = np.asarray(t, dtype=float)
    angle = t - np.rint(t)
    np.abs(angle, out=angle)
    if nearest:
        np.maximum(angle, nearest, out=angle)
    angle *= 2 * np.pi
    if order >= DIRECT_FROM:
        return np.polynomial.chebyshev.chebval(np.cos(angle), direct_coefficients(order))
    form = expansion(float(order))
    result = _horner(form.smooth, angle * angle * (2 / np.pi**2) - 1)
    result += form.singular.at(angle)
    if order <= 1:
        result[angle == 0] = np.inf
    return result


def direct_coefficients(order: float) -> list[float]:
    """1 + 2 sum_{k <= 7} k^-order cos(k a), as a Chebyshev series in cos(a)."""
    return [1.0, 2.0, *(2.0 * float(k) ** -order for k in range(2, 8))]


@dataclass(frozen=True)
class Power:
    """coefficient a^(order - 1), far from odd orders."""

    order: float
    coefficient: float

    def at(self, angle: Array) -> Array:
        """The term at these angles."""
        if self.order == 2:  # the features of periodic cubic splines: no power is needed
            return self.coefficient * angle
        return self.coefficient * np.maximum(angle, TINY) ** (self.order - 1)


@dataclass(frozen=True)
class Pair:
    """front a^(2m) [zeta - (g a^e - 1) / e] with log g = e slope, near the odd order 2m + 1 and at it.

    zeta is zeta(1 + e) - 1/e.
    """

    m: int
    e: float
    front: float
    zeta: float
    slope: float

    def at(self, angle: Array) -> Array:
        """The term at these angles."""
        angle = np.maximum(angle, TINY)
        exponent = self.slope + np.log(angle)  # g a^e = exp(e exponent)
        bracket = self.zeta - exponent * exprel(self.e * exponent)
        return self.front * angle ** (2 * self.m) * bracket if self.m else self.front * bracket


@dataclass(frozen=True)
class Expansion:
    """Lambda(a) = smooth(2 a^2 / pi^2 - 1) + singular(a), the first a polynomial given by its coefficients."""

    smooth: tuple[float, ...]
    singular: Power | Pair


@lru_cache(maxsize=64)
def expansion(order: float) -> Expansion:
    """The two terms of Lambda_order."""
    m = int(order // 2)
    e = order - (2 * m + 1)  # in [-1, 1)
    if abs(e) < 0.5:
        pair = Pair(m, e, 2 * (-1) ** m / factorial(2 * m), _zeta_without_pole(e), _log_g_over_e(m, e))
        return Expansion(_smooth(order, leave_out=m), pair)
    power = Power(order, float(np.pi / (gamma(order) * np.cos(np.pi * order / 2))))  # 2 A
    return Expansion(_smooth(order, leave_out=None), power)


def _smooth(order: float, leave_out: int | None) -> tuple[float, ...]:
    """1 + 2 sum_j (-1)^j zeta(s - 2j) a^(2j) / (2j)! as a polynomial in z = 2 a^2 / pi^2 - 1, between -1 and 1."""
    kept = [j for j in range(TERMS) if j != leave_out]
    coefficients = np.zeros(TERMS)
    coefficients[kept] = [(-1) ** j * (1 + zetac(order - 2 * j)) / factorial(2 * j) * np.pi ** (2 * j) for j in kept]
    power_series = Polynomial(2 * coefficients)
    # The series converges for a < 2 pi only slowly; interpolated between 0 and pi it needs far fewer terms.
    fitted = Chebyshev.interpolate(lambda z: 1 + power_series((z + 1) / 2), DEGREE).convert(kind=Polynomial).coef
    return tuple(fitted.tolist())


def _horner(coefficients: tuple[float, ...], z: Array) -> Array:
    """The polynomial with these coefficients, lowest first."""
    result = np.full_like(z, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        result *= z
        result += coefficient
    return result


def _zeta_without_pole(e: float) -> float:
    """zeta(1 + e) - 1/e."""
    if abs(e) >= NEAR:
        return float(1 + zetac(1 + e) - 1 / e)
    return sum((-1) ** n * c * e**n / factorial(n) for n, c in enumerate(STIELTJES))


def _log_g_over_e(m: int, e: float) -> float:
    """log(g) / e, with g as above."""
    n = 2 * m + 1
    if abs(e) >= NEAR:
        return float((gammaln(n) - gammaln(n + e) + np.log(np.pi * e / 2 / np.sin(np.pi * e / 2))) / e)
    x = np.pi * e / 2
    sine = np.pi / 2 * (x / 6 + x**3 / 180 + x**5 / 2835)  # log(x / sin x) / e
    log_gamma = digamma(n) + sum(polygamma(k, n) * e**k / factorial(k + 1) for k in range(1, 9))
    return float(sine - log_gamma)
