"""The periodic spline kernel of the paper's section 5, with its own random features."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from numbers import Real
from typing import ClassVar

import numpy as np

from quernel.kernels.base import Array, IntegralKernel
from quernel.kernels.periodic import periodic_sum

# A feature of order up to 1 has a pole at its knot. Rows fall on it with probability 0, but data and knots that were
# drawn from the same seed do: closer than this counts as this far.
NEAREST = 1e-12


@dataclass(frozen=True)
class PeriodicSpline(IntegralKernel):
    """K(x, z) = prod_j Lambda_q(x_j - z_j),  Lambda_q(t) = 1 + 2 sum_k k^-q cos(2 pi k t): functions of period 1.

    The features are  prod_j Lambda_{q/2}(x_j - w_j)  with w uniform on the unit cube, for the kernels convolve:
    Lambda_q * Lambda_p = Lambda_{q+p}. Columns are meant to lie in [0, 1]; since everything has period 1, x and x + 1
    are the same row. Divide a column by its period (24 hours, 360 degrees) to make it fit.

    Parameters
    ----------
    order : float above 0, infinity included, default=4
        The paper's q = 1/gamma; 4 gives periodic cubic splines. Up to order 1 the kernel is infinite where x = z, and
        has random features only; those of order up to 1/2 more have no finite variance. Infinite order leaves
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
        """Lambda_q(0)^d."""
        self.check_diagonal()
        return np.full(len(X), float(periodic_sum(self.order, np.zeros(1))[0]) ** np.shape(X)[1])

    def check_diagonal(self) -> None:
        """Complain up to order 1."""
        if self.order <= 1:
            raise ValueError(
                f"The spline kernel of order {self.order:g} is infinite where x = z, so it has no Gram matrix. "
                "Use an order above 1, or random features (n_components=500, say)."
            )

    def wave(self, X: Array, frequencies: Array, phases: Array) -> Array:  # noqa: ARG002
        """prod_j Lambda_{q/2}(x_j - w_j)."""
        return _product(self.order / 2, np.asarray(X, dtype=float), frequencies, nearest=NEAREST)

    def frequencies(self, rng: np.random.Generator, n_components: int, n_columns: int) -> Array:
        """Uniform on the unit cube."""
        return rng.random((n_components, n_columns)).T

    def cube_dimension(self, n_columns: int) -> int:
        """The unit cube itself."""
        return n_columns

    def frequencies_at(self, uniform: Array, n_columns: int) -> Array:  # noqa: ARG002
        """The points themselves."""
        return uniform

    def phases_at(self, uniform: Array) -> Array:
        """None: zeros."""
        return np.zeros_like(uniform)


def _product(order: float, X: Array, columns: Array, nearest: float = 0.0) -> Array:
    """prod_j Lambda(x_j - c_j) for rows x of X and columns c, shape (len(X), number of columns)."""
    factors = (periodic_sum(order, X[:, [j]] - columns[[j]], nearest=nearest) for j in range(X.shape[1]))
    return prod(factors)  # type: ignore[return-value]
