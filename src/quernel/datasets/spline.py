"""The paper's simulation with the spline kernel (section 5), in which source and capacity exponent are known."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

from quernel.datasets.simulations import Simulation, check_count, check_levels, check_points
from quernel.kernels.periodic import periodic_sum

# The paper's N(0, 0.01) names a variance.
NOISE = 0.1
# With r <= gamma/2 the target has a pole at whole x. Rows fall on it with probability 0; closer counts as this far.
NEAREST = 1e-12


@dataclass(frozen=True)
class SplineQuantile:
    """q(x, p) = Lambda_(r/gamma + 1/2)(x) + 0.1 F^-1(p),  Lambda_s(x) = 1 + 2 sum_k k^-s cos(2 pi k x)."""

    r: float
    gamma: float

    @property
    def order(self) -> float:
        """r/gamma + 1/2; infinite for gamma = 0, where 1 + 2 cos(2 pi x) is left."""
        return self.r / self.gamma + 0.5 if self.gamma else np.inf

    def location(self, X: NDArray[np.float64]) -> NDArray[np.float64]:
        """Lambda_(r/gamma + 1/2)(x): the median, and the mean."""
        return periodic_sum(self.order, X[:, 0], nearest=NEAREST)

    def __call__(self, X: ArrayLike, level: ArrayLike) -> NDArray[np.float64]:
        """Shape (n,) for a scalar level, (n, q) for a sequence of q levels."""
        X, z = check_points(X, 1), ndtri(check_levels(level))
        return np.add.outer(self.location(X), NOISE * z)


def make_spline(n: int, r: float, gamma: float, *, random_state: int | np.random.Generator | None = None) -> Simulation:
    """y = Lambda_(r/gamma + 1/2)(x) + e,  x ~ U(0, 1),  e ~ N(0, 0.01), a variance.

    Lambda_s(x) = 1 + 2 sum_k k^-s cos(2 pi k x) is the spline kernel's function of x alone. Together with
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
