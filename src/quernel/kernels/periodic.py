"""Periodic kernels: periodic x Gaussian, for columns such as the hour of the day, and the paper's periodic spline.

The random features of both have the period of the kernel exactly.

The spline kernel (section 5 of the paper) rests on the function

    Lambda_s(t) = 1 + 2 sum_{k >= 1} k^-s cos(2 pi k t),

a polylogarithm on the unit circle, for real orders s > 0. Its series converges too slowly for small s. With the angle
a = 2 pi |t| in [0, pi] it has the expansion

    Lambda_s = 1 + 2 sum_j (-1)^j zeta(s - 2j) a^(2j) / (2j)!  +  pi / (Gamma(s) cos(pi s / 2)) a^(s - 1),

a smooth term, which is replaced by a polynomial, and a singular one, a power. Near odd orders s = 2m + 1 the
coefficient of the power and the m-th smooth term both have a pole, and the poles cancel: there the two are combined
into one expression (`Pair`) that is evaluated without cancellation.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import factorial, prod
from numbers import Real
from typing import ClassVar

import numpy as np
from numpy.polynomial import Chebyshev, Polynomial
from numpy.typing import ArrayLike, NDArray
from scipy.special import digamma, exprel, gamma, gammaln, ive, ndtr, polygamma, zetac

from quernel.kernels.base import RandomFeatureKernel
from quernel.kernels.fourier import ShiftInvariantKernel

Array = NDArray[np.floating]

# Harmonics beyond this many standard deviations have a probability below 1e-20.
MAX_DEVIATIONS = 12


@dataclass(frozen=True, eq=False)
class Periodic(ShiftInvariantKernel):
    """Product of periodic and Gaussian kernels:  K(x, z) = exp(-sum_j c_j^2 / (2 bandwidth_j^2)).

    For a column of period p, c = (p / pi) sin(pi (x - z) / p) is the chord between x and z on a circle of circumference
    p; for one of infinite period, the distance x - z itself. So hours 23 and 0 are neighbours, and the kernel of a
    column whose period is infinite, or much longer than its range, is Gaussian.

    By its Fourier series, the spectral measure of a periodic column is that of 2 pi k / p with k the difference of two
    Poisson numbers of mean (p / (2 pi bandwidth))^2 / 2 each (a Skellam distribution). So random features have exactly
    the period p.

    Parameters
    ----------
    bandwidth : float, one float per column, or None
        As in every shift-invariant kernel, in the units of the columns.
    period : float or one float per column, default=inf
        Periods of the columns, ``np.inf`` for columns that have none.

    Examples
    --------
    >>> import numpy as np
    >>> daily = Periodic([3.0, 5.0], period=[24, np.inf])  # hour of the day, temperature
    >>> daily.gram(np.array([[23.5, 10.0]]), np.array([[0.5, 10.0], [12.0, 10.0]])).round(3)
    array([[0.946, 0.04 ]])
    """

    name: ClassVar[str] = "periodic"
    period: ArrayLike = np.inf

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            period = np.array(self.period, dtype=float)
        except (TypeError, ValueError):
            period = np.array(np.nan)
        if period.ndim > 1 or period.size == 0 or not np.all(period > 0):
            raise ValueError(
                "period must be positive, one number or one per column, np.inf for columns without a period; got "
                f"{self.period!r}."
            )
        period.flags.writeable = False
        object.__setattr__(self, "period", float(period) if period.ndim == 0 else period)

    def check_columns(self, n_columns: int) -> None:
        """Raise a ValueError if there are several bandwidths or periods, but not one per column."""
        super().check_columns(n_columns)
        self._periods(n_columns)

    def _periods(self, n_columns: int) -> Array:
        """The periods, shape (n_columns,)."""
        period = np.asarray(self.period, dtype=float)
        if period.ndim == 1 and len(period) != n_columns:
            raise ValueError(
                f"period has {len(period)} entries but X has {n_columns} columns; give one number or one per column."
            )
        return np.broadcast_to(period, (n_columns,))

    def _squared_chords(self, X: Array, Z: Array, column: int) -> Array:
        """c_j^2 / bandwidth_j^2 of one column j, shape (len(X), len(Z))."""
        period, width = self._periods(X.shape[1])[column], self.scale(X.shape[1])[column]
        distance = np.subtract.outer(np.asarray(X[:, column], dtype=float), np.asarray(Z[:, column], dtype=float))
        if np.isfinite(period):
            distance = period / np.pi * np.sin(np.pi / period * distance)
        return (distance / width) ** 2

    def gram(self, X: Array, Z: Array) -> Array:
        """exp(-sum_j c_j^2 / (2 bandwidth_j^2))."""
        self.check_columns(X.shape[1])
        total = np.zeros((len(X), len(Z)))
        for column in range(X.shape[1]):
            total += self._squared_chords(X, Z, column)
        return np.exp(-total / 2)

    def bandwidth_gradient(self, X: Array, weight: Array) -> Array:
        """dK / dlog bandwidth_j = K c_j^2 / bandwidth_j^2."""
        weighted = np.asarray(weight) * self.gram(X, X)
        return np.array([np.sum(weighted * self._squared_chords(X, X, column)) for column in range(X.shape[1])])

    def frequencies_from(self, normal: Array, mixing: Array) -> Array:  # noqa: ARG002
        """Normal numbers over the bandwidth; for periodic columns, harmonics at the same quantiles (d, M)."""
        frequencies = np.array(normal / self.scale(len(normal))[:, None])
        for column, (period, width) in enumerate(zip(self._periods(len(normal)), self.scale(len(normal)), strict=True)):
            if np.isfinite(period):
                harmonic = _skellam_quantiles(ndtr(normal[column]), (period / (2 * np.pi * width)) ** 2)
                frequencies[column] = 2 * np.pi / period * harmonic
        return frequencies

    def _standard_frequencies(self, normal: Array, mixing: Array) -> Array:
        raise NotImplementedError


def _skellam_quantiles(uniform: Array, variance: float) -> Array:
    """Quantiles of the difference of two Poisson numbers, whose variance is given, by inverting exp(-v) I_k(v)."""
    largest = int(np.ceil(MAX_DEVIATIONS * np.sqrt(variance))) + MAX_DEVIATIONS
    harmonics = np.arange(-largest, largest + 1)
    cumulative = np.cumsum(ive(np.abs(harmonics), variance))
    return harmonics[np.minimum(np.searchsorted(cumulative, uniform), 2 * largest)].astype(float)


# Stieltjes constants:  zeta(1 + e) - 1/e = sum_n (-1)^n STIELTJES[n] e^n / n!
STIELTJES = (
    0.57721566490153286,
    -0.072815845483676725,
    -0.0096903631928723185,
    0.0020538344203033459,
    0.0023253700654673000,
    0.00079332381730106270,
    -0.00023876934543019961,
)
# Stands in for an angle of 0 in powers and logarithms.
TINY = 1e-300


@dataclass(frozen=True)
class ExpansionOptions:
    """Constants of the expansion of Lambda."""

    direct_from: int = 20  # from this order on, the defining series up to k = 7 is exact to working precision
    n_terms: int = 40  # of the power series of the smooth part ...
    degree: int = 16  # ... and the degree of the polynomial that replaces it
    near: float = 0.02  # distance from an odd order below which zeta(1 + e) - 1/e is computed by Taylor series


OPTIONS = ExpansionOptions()


def periodic_sum(order: float, t: Array, *, nearest: float = 0.0) -> Array:
    """Lambda_order(t), of the shape of t.

    For orders up to 1 the function is infinite at integers t; with `nearest` > 0, a t closer to an integer than that
    counts as so far away, which keeps the result finite.
    """
    t = np.asarray(t, dtype=float)
    angle = t - np.rint(t)
    np.abs(angle, out=angle)
    if nearest:
        np.maximum(angle, nearest, out=angle)
    angle *= 2 * np.pi
    if order >= OPTIONS.direct_from:
        return np.polynomial.chebyshev.chebval(np.cos(angle), direct_coefficients(order))
    form = expansion(float(order))
    result = _horner(form.smooth, angle * angle * (2 / np.pi**2) - 1)
    result += form.singular.at(angle)
    if order <= 1:
        result[angle == 0] = np.inf
    return result


def direct_coefficients(order: float) -> list[float]:
    """Coefficients of  1 + 2 sum_{k <= 7} k^-order cos(k a)  as a Chebyshev series in cos(a): T_k(cos a) = cos(k a)."""
    return [1.0, 2.0, *(2.0 * float(k) ** -order for k in range(2, 8))]


@dataclass(frozen=True)
class Power:
    """The singular term  coefficient a^(order - 1),  for orders that are not close to an odd number."""

    order: float
    coefficient: float

    def at(self, angle: Array) -> Array:
        """The term at these angles."""
        if self.order == 2:  # the most frequent case, features of periodic cubic splines: no power is needed
            return self.coefficient * angle
        return self.coefficient * np.maximum(angle, TINY) ** (self.order - 1)


@dataclass(frozen=True)
class Pair:
    """The singular and the m-th smooth term together, for an order 2m + 1 + e close to the odd number 2m + 1.

    front a^(2m) [zeta - (g a^e - 1) / e]  with  zeta = zeta(1 + e) - 1/e  and  log g = e slope.  At e = 0 the quotient
    is a logarithm.
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
    """Lambda(a) = smooth(2 a^2 / pi^2 - 1) + singular(a),  with the coefficients of a polynomial for the first."""

    smooth: tuple[float, ...]
    singular: Power | Pair


@lru_cache(maxsize=64)
def expansion(order: float) -> Expansion:
    """The two terms of Lambda_order, computed once for each order."""
    m = int(order // 2)
    e = order - (2 * m + 1)  # in [-1, 1)
    if abs(e) < 0.5:
        pair = Pair(m, e, 2 * (-1) ** m / factorial(2 * m), _zeta_without_pole(e), _log_g_over_e(m, e))
        return Expansion(_smooth(order, leave_out=m), pair)
    power = Power(order, float(np.pi / (gamma(order) * np.cos(np.pi * order / 2))))  # 2 A
    return Expansion(_smooth(order, leave_out=None), power)


def _smooth(order: float, leave_out: int | None) -> tuple[float, ...]:
    """The smooth term  1 + 2 sum_j (-1)^j zeta(s - 2j) a^(2j) / (2j)!  as a polynomial in z = 2 a^2 / pi^2 - 1.

    z is between -1 and 1. Near an odd order, the term j = `leave_out` belongs to the `Pair`.
    """
    kept = [j for j in range(OPTIONS.n_terms) if j != leave_out]
    coefficients = np.zeros(OPTIONS.n_terms)
    coefficients[kept] = [(-1) ** j * (1 + zetac(order - 2 * j)) / factorial(2 * j) * np.pi ** (2 * j) for j in kept]
    power_series = Polynomial(2 * coefficients)
    # The power series, which converges for a < 2 pi, takes many terms; interpolated on [0, pi] far fewer suffice.
    interpolated = (
        Chebyshev.interpolate(lambda z: 1 + power_series((z + 1) / 2), OPTIONS.degree).convert(kind=Polynomial).coef
    )
    return tuple(interpolated.tolist())


def _horner(coefficients: tuple[float, ...], z: Array) -> Array:
    """The polynomial with these coefficients, lowest degree first, by Horner's rule in place."""
    result = np.full_like(z, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        result *= z
        result += coefficient
    return result


def _zeta_without_pole(e: float) -> float:
    """zeta(1 + e) - 1/e,  by its Laurent series near the pole at e = 0."""
    if abs(e) >= OPTIONS.near:
        return float(1 + zetac(1 + e) - 1 / e)
    return sum((-1) ** n * c * e**n / factorial(n) for n, c in enumerate(STIELTJES))


def _log_g_over_e(m: int, e: float) -> float:
    """log(g) / e,  with  g = Gamma(n) / Gamma(n + e) x / sin(x),  n = 2m + 1,  x = pi e / 2;  by series near e = 0."""
    n = 2 * m + 1
    if abs(e) >= OPTIONS.near:
        return float((gammaln(n) - gammaln(n + e) + np.log(np.pi * e / 2 / np.sin(np.pi * e / 2))) / e)
    x = np.pi * e / 2
    sine = np.pi / 2 * (x / 6 + x**3 / 180 + x**5 / 2835)  # log(x / sin x) / e
    log_gamma = digamma(n) + sum(polygamma(k, n) * e**k / factorial(k + 1) for k in range(1, 9))
    return float(sine - log_gamma)


# A feature of order up to 1 has a pole at its knot. Rows fall on a knot with probability 0, unless data and knots were
# drawn from the same seed; a row closer to the knot than this counts as so far away.
NEAREST = 1e-12


@dataclass(frozen=True)
class PeriodicSpline(RandomFeatureKernel):
    """Periodic spline kernel  K(x, z) = prod_j Lambda_q(x_j - z_j),  Lambda_q(t) = 1 + 2 sum_k k^-q cos(2 pi k t).

    For functions of period 1 in every column. The random features are  prod_j Lambda_{q/2}(x_j - w_j)  with w uniform
    on the unit cube, because the functions convolve as  Lambda_q * Lambda_p = Lambda_{q+p}.  Divide a column by its
    period (24 hours, 360 degrees), so that one period is the interval [0, 1]; x and x + 1 are the same point.

    Parameters
    ----------
    order : float above 0, infinity included, default=4
        The paper's q = 1/gamma; 4 gives periodic cubic splines. Up to order 1 the kernel is infinite where x = z, and
        has random features only; up to order 3/2 the variance of phi(x)^2 is infinite. Infinite order gives
        1 + 2 cos(2 pi t).
    """

    name: ClassVar[str] = "spline"
    refused_samplings: ClassVar[dict[str, str]] = {
        "orthogonal": "sampling='orthogonal' needs frequencies made of normal numbers; those of the spline kernel are "
        "uniform on the unit cube. Use 'qmc', which spreads them evenly, or 'uniform' or 'leverage'."
    }
    order: float = 4.0

    def __post_init__(self) -> None:
        if isinstance(self.order, bool) or not isinstance(self.order, Real) or not self.order > 0:
            raise ValueError(f"order must be a number above 0 (infinity is allowed); got {self.order!r}.")

    def gram(self, X: Array, Z: Array) -> Array:
        """prod_j Lambda_q(x_j - z_j)."""
        return _product(self.order, np.asarray(X, dtype=float), np.asarray(Z, dtype=float).T)

    def diagonal(self, X: Array) -> Array:
        """K(x, x) = Lambda_q(0)^d."""
        self.check_diagonal()
        return np.full(len(X), float(periodic_sum(self.order, np.zeros(1))[0]) ** np.shape(X)[1])

    def check_diagonal(self) -> None:
        """Raise a ValueError for orders up to 1, where K(x, x) is infinite."""
        if self.order <= 1:
            raise ValueError(
                f"The spline kernel of order {self.order:g} is infinite where x = z, so it has no Gram matrix. "
                "Use an order above 1, or random features (n_components=500, say)."
            )

    def wave(self, X: Array, frequencies: Array, phases: Array) -> Array:  # noqa: ARG002
        """prod_j Lambda_{q/2}(x_j - w_j)."""
        return _product(self.order / 2, np.asarray(X, dtype=float), frequencies, nearest=NEAREST)

    def frequencies(self, rng: np.random.Generator, n_components: int, n_columns: int) -> Array:
        """The knots w of the features: uniform on the unit cube, shape (n_columns, n_components)."""
        return rng.random((n_components, n_columns)).T

    def cube_dimension(self, n_columns: int) -> int:
        """One number for every column."""
        return n_columns

    def frequencies_at(self, uniform: Array, n_columns: int) -> Array:  # noqa: ARG002
        """The points of the unit cube are the knots."""
        return uniform

    def phases_at(self, uniform: Array) -> Array:
        """Zeros: the features have no phase."""
        return np.zeros_like(uniform)


def _product(order: float, X: Array, columns: Array, nearest: float = 0.0) -> Array:
    """prod_j Lambda(x_j - c_j)  for all rows x of X and all columns c, shape (len(X), number of columns)."""
    factors = (periodic_sum(order, X[:, [j]] - columns[[j]], nearest=nearest) for j in range(X.shape[1]))
    return prod(factors)  # type: ignore[return-value]
