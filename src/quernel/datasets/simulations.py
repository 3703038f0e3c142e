"""The paper's two simulations (appendix "Simulated Data"), each with its true conditional quantiles.

Covariates are uniform on the unit cube and the noise is standard normal. The true quantile is an object, not a lambda,
so that a simulation can be pickled and sent to other processes.
"""

from dataclasses import dataclass
from numbers import Integral
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri


class Quantile(Protocol):
    """The true conditional quantile of y given x."""

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
    """q(x, p) = exp(-x1 + x2) - x2 x3 + mean(x) + F^-1(p)."""

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
    """q(x, p) = sum_j beta_j sin(2 pi x_j) + (1 + mean(x)) (F^-1(p) - F^-1(tau)),  j = 1, 2, 3."""

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
        spread = np.multiply.outer(self.scale(X), z)
        return self.location(X).reshape(len(X), *(1,) * z.ndim) + spread


def make_homoscedastic(
    n: int, *, n_features: int = 3, random_state: int | np.random.Generator | None = None
) -> Simulation:
    """y = exp(-x1 + x2) - x2 x3 + mean(x) + e,  x_j ~ U(0, 1),  e ~ N(0, 1).

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
    """y = sum_j beta_j sin(2 pi x_j) + (1 + mean(x)) (e - F^-1(tau)),  x_j ~ U(0, 1),  e ~ N(0, 1).

    The sum runs over the first three coordinates and F is the standard normal distribution function, so the tau-th
    conditional quantile is the sum alone. One beta_j ~ U(0, 1) per coordinate is drawn once per call: **draw training
    and test rows in one call and split them**, for a second call follows another law. ``quantile.beta`` keeps them.

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
    """The count, if it is a whole number that is large enough."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be an integer of at least {least}; got {value!r}.")
    return int(value)


def check_points(X: ArrayLike, n_features: int) -> NDArray[np.float64]:
    """X as an array of points with so many columns."""
    points = np.asarray(X, dtype=np.float64)
    if points.ndim != 2 or points.shape[1] != n_features:
        raise ValueError(
            f"X must have shape (n, {n_features}), the columns of this simulation; got shape {points.shape}."
        )
    return points


def check_levels(level: ArrayLike) -> NDArray[np.float64]:
    """The level, or levels, as an array of numbers between 0 and 1."""
    levels = np.asarray(level, dtype=np.float64)
    if levels.ndim > 1 or not np.all((levels > 0) & (levels < 1)):
        raise ValueError(f"level must be one level, or a flat sequence of levels, between 0 and 1; got {level!r}.")
    return levels
