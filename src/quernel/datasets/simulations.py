"""Generators of simulated data with known conditional quantiles: the simulations of the paper.

- `make_homoscedastic`, `make_heteroscedastic`  the two designs of the appendix "Simulated Data";
- `make_spline`                                 the design of the learning rates, for the periodic spline kernel.

Covariates are uniform on the unit cube and the noise is normal. The true quantile function is an object rather than a
lambda, so that a simulation can be pickled and sent to other processes.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

from quernel.kernels.periodic import NEAREST, periodic_sum


class Quantile(Protocol):
    """The true conditional quantile function of y given x, as a callable."""

    def __call__(self, X: ArrayLike, level: ArrayLike) -> NDArray[np.float64]:
        """Shape (n,) for a scalar level, (n, q) for a sequence of q levels."""
        ...


class Simulation(NamedTuple):
    """A simulated data set; unpacks as ``X, y, quantile``."""

    X: NDArray[np.float64]
    """Covariates, shape (n, n_features), uniform on [0, 1]."""
    y: NDArray[np.float64]
    """Responses, shape (n,)."""
    quantile: Quantile
    """True conditional quantile, ``quantile(X, level)``, at any points and levels."""


@dataclass(frozen=True)
class HomoscedasticQuantile:
    """True quantiles of `make_homoscedastic`:  q(x, p) = exp(-x1 + x2) - x2 x3 + mean(x) + F^-1(p).

    F is the standard normal distribution function.
    """

    n_features: int

    def location(self, X: NDArray[np.float64]) -> NDArray[np.float64]:
        """exp(-x1 + x2) - x2 x3 + mean(x): the median."""
        x1, x2, x3 = X[:, 0], X[:, 1], X[:, 2]
        return np.exp(-x1 + x2) - x2 * x3 + X.mean(axis=1)

    def __call__(self, X: ArrayLike, level: ArrayLike) -> NDArray[np.float64]:
        """Shape (n,) for a scalar level, (n, q) for a sequence of q levels."""
        X, z = check_points(X, self.n_features), ndtri(check_levels(level))
        return np.add.outer(self.location(X), z)


@dataclass(frozen=True)
class HeteroscedasticQuantile:
    """True quantiles of `make_heteroscedastic`.

    q(x, p) = sum_j beta_j sin(2 pi x_j) + (1 + mean(x)) (F^-1(p) - F^-1(tau)),  j = 1, 2, 3.
    """

    n_features: int
    beta: tuple[float, float, float]
    tau: float

    def location(self, X: NDArray[np.float64]) -> NDArray[np.float64]:
        """sum_j beta_j sin(2 pi x_j): the tau-th quantile."""
        return np.sin(2 * np.pi * X[:, :3]) @ np.array(self.beta)

    def scale(self, X: NDArray[np.float64]) -> NDArray[np.float64]:
        """1 + mean(x): the standard deviation of y given x."""
        return 1 + X.mean(axis=1)

    def __call__(self, X: ArrayLike, level: ArrayLike) -> NDArray[np.float64]:
        """Shape (n,) for a scalar level, (n, q) for a sequence of q levels."""
        X, z = check_points(X, self.n_features), ndtri(check_levels(level)) - ndtri(self.tau)
        deviation = np.multiply.outer(self.scale(X), z)
        return self.location(X).reshape(len(X), *(1,) * z.ndim) + deviation


def make_homoscedastic(
    n: int, *, n_features: int = 3, random_state: int | np.random.Generator | None = None
) -> Simulation:
    """Simulate  y = exp(-x1 + x2) - x2 x3 + mean(x) + e,  x_j ~ U(0, 1),  e ~ N(0, 1).

    Parameters
    ----------
    n : number of rows
    n_features : number of columns, at least 3; the columns after the third enter through mean(x) only
    random_state : seed or generator; X is drawn first, then the noise

    Returns
    -------
    Simulation, which unpacks as ``X, y, quantile``

    Examples
    --------
    >>> X, y, quantile = make_homoscedastic(5, random_state=0)
    >>> quantile(X, 0.9).shape, quantile(X, [0.1, 0.9]).shape
    ((5,), (5, 2))
    """
    n, n_features = check_count("n", n, least=1), check_count("n_features", n_features, least=3)
    rng = np.random.default_rng(random_state)
    X = rng.random((n, n_features))
    noise = rng.standard_normal(n)
    quantile = HomoscedasticQuantile(n_features)
    return Simulation(X, quantile.location(X) + noise, quantile)


def make_heteroscedastic(
    n: int, tau: float = 0.5, *, n_features: int = 3, random_state: int | np.random.Generator | None = None
) -> Simulation:
    """Simulate  y = sum_j beta_j sin(2 pi x_j) + (1 + mean(x)) (e - F^-1(tau)),  x_j ~ U(0, 1),  e ~ N(0, 1).

    The sum runs over the first three coordinates and F is the standard normal distribution function, so the tau-th
    conditional quantile is the sum alone. One beta_j ~ U(0, 1) per coordinate is drawn once per call: **draw training
    and test rows in one call and split them**, because a second call has other coefficients. ``quantile.beta`` holds
    them.

    Parameters
    ----------
    n : number of rows
    tau : level whose conditional quantile is the sum of sines, strictly between 0 and 1
    n_features : number of columns, at least 3; the columns after the third enter through mean(x) only
    random_state : seed or generator; X is drawn first, then the noise, then beta (so that one seed gives the same X and
        noise as in ``make_homoscedastic``)

    Returns
    -------
    Simulation, which unpacks as ``X, y, quantile``

    Examples
    --------
    >>> X, y, quantile = make_heteroscedastic(5, tau=0.25, random_state=0)
    >>> quantile(X, [0.1, 0.25, 0.9]).shape
    (5, 3)
    """
    n, n_features = check_count("n", n, least=1), check_count("n_features", n_features, least=3)
    if not (np.ndim(tau) == 0 and 0 < tau < 1):
        raise ValueError(f"tau must be one level strictly between 0 and 1; got {tau!r}. Use 0.5 for the median.")
    rng = np.random.default_rng(random_state)
    X = rng.random((n, n_features))
    noise = rng.standard_normal(n)
    beta1, beta2, beta3 = rng.random(3).tolist()
    quantile = HeteroscedasticQuantile(n_features, (beta1, beta2, beta3), float(tau))
    return Simulation(X, quantile.location(X) + quantile.scale(X) * (noise - ndtri(tau)), quantile)


def check_count(name: str, value: int, *, least: int) -> int:
    """Return the count as an int; raise a ValueError unless it is an integer of at least `least`."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be an integer of at least {least}; got {value!r}.")
    return int(value)


def check_points(X: ArrayLike, n_features: int) -> NDArray[np.float64]:
    """Return X as an array of shape (n, n_features); raise a ValueError for any other shape."""
    points = np.asarray(X, dtype=np.float64)
    if points.ndim != 2 or points.shape[1] != n_features:
        raise ValueError(
            f"X must have shape (n, {n_features}), the columns of this simulation; got shape {points.shape}."
        )
    return points


def check_levels(level: ArrayLike) -> NDArray[np.float64]:
    """Return the level or levels as an array of shape () or (q,), strictly between 0 and 1."""
    levels = np.asarray(level, dtype=np.float64)
    if levels.ndim > 1 or not np.all((levels > 0) & (levels < 1)):
        raise ValueError(f"level must be one level, or a flat sequence of levels, between 0 and 1; got {level!r}.")
    return levels


# Standard deviation of the noise: the 0.01 of the paper's N(0, 0.01) is the variance.
NOISE = 0.1


@dataclass(frozen=True)
class SplineQuantile:
    """True quantiles of `make_spline`:  q(x, p) = Lambda_(r/gamma + 1/2)(x) + 0.1 F^-1(p).

    Lambda_s(x) = 1 + 2 sum_k k^-s cos(2 pi k x),  and F is the standard normal distribution function.
    """

    r: float
    gamma: float

    @property
    def order(self) -> float:
        """r/gamma + 1/2; infinite for gamma = 0, where 1 + 2 cos(2 pi x) is left."""
        return self.r / self.gamma + 0.5 if self.gamma else np.inf

    def location(self, X: NDArray[np.float64]) -> NDArray[np.float64]:
        """Lambda_(r/gamma + 1/2)(x): the median, and the mean. For r <= gamma/2 it has a pole at integer x."""
        return periodic_sum(self.order, X[:, 0], nearest=NEAREST).astype(np.float64, copy=False)

    def __call__(self, X: ArrayLike, level: ArrayLike) -> NDArray[np.float64]:
        """Shape (n,) for a scalar level, (n, q) for a sequence of q levels."""
        X, z = check_points(X, 1), ndtri(check_levels(level))
        return np.add.outer(self.location(X), NOISE * z)


def make_spline(n: int, r: float, gamma: float, *, random_state: int | np.random.Generator | None = None) -> Simulation:
    """Simulate  y = Lambda_(r/gamma + 1/2)(x) + e,  x ~ U(0, 1),  e normal with variance 0.01.

    Lambda_s(x) = 1 + 2 sum_k k^-s cos(2 pi k x) is the function that the spline kernel is made of. Together with
    ``PeriodicSpline(1 / gamma)`` the design has capacity and compatibility exponent gamma, and every source exponent
    below r. The paper's limits are allowed: r = 0, a median with a pole at x = 0, and gamma = 0, a single cosine.

    Parameters
    ----------
    n : number of rows
    r : source exponent, at least 0
    gamma : capacity exponent in [0, 1]; with gamma = 0, r must be above 0
    random_state : seed or generator; X is drawn first, then the noise

    Returns
    -------
    Simulation, which unpacks as ``X, y, quantile``

    Examples
    --------
    >>> X, y, quantile = make_spline(5, r=0.5, gamma=0.25, random_state=0)
    >>> X.shape, quantile(X, [0.25, 0.5, 0.75]).shape
    ((5, 1), (5, 3))
    """
    n = check_count("n", n, least=1)
    if not (np.ndim(r) == 0 and np.ndim(gamma) == 0 and 0 <= r < np.inf and 0 <= gamma <= 1 and r + gamma > 0):
        raise ValueError(
            f"make_spline needs r >= 0 and gamma in [0, 1], not both 0; got r={r!r}, gamma={gamma!r}. "
            "The paper's own pairs are (0, 1), (0.5, 1), (1, 0), (0.2, 0.1), (0.4, 0.2), (0.5, 0.1) and (0.8, 0.2)."
        )
    rng = np.random.default_rng(random_state)
    X = rng.random((n, 1))
    noise = rng.standard_normal(n)
    quantile = SplineQuantile(float(r), float(gamma))
    return Simulation(X, quantile.location(X) + NOISE * noise, quantile)
