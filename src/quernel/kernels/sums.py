"""Sums of kernels with positive coefficients, which are kernels again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from quernel.kernels.base import Array, Kernel


@dataclass(frozen=True)
class Sum(Kernel):
    """The kernel  K = sum_k c_k K_k,  written `Gaussian(1.0) + 0.5 * Matern(3.0)`.

    Its random features are those of all summands, concatenated.

    Parameters
    ----------
    terms : tuple of (float, Kernel)
        The coefficients c_k, positive and finite, and the kernels K_k.
    """

    name: ClassVar[str] = "sum"
    terms: tuple[tuple[float, Kernel], ...]

    def __post_init__(self) -> None:
        wrong = [c for c, _ in self.summands if not 0 < c < np.inf]
        if wrong:
            raise ValueError(f"A kernel can be multiplied by positive finite numbers only; got {wrong[0]!r}.")

    @property
    def summands(self) -> tuple[tuple[float, Kernel], ...]:
        """The terms."""
        return self.terms

    def gram(self, X: Array, Z: Array) -> Array:
        """sum_k c_k K_k(x, z)."""
        return np.sum([c * kernel.gram(X, Z) for c, kernel in self.summands], axis=0)

    def diagonal(self, X: Array) -> Array:
        """sum_k c_k K_k(x, x)."""
        return np.sum([c * kernel.diagonal(X) for c, kernel in self.summands], axis=0)

    @property
    def takes_bandwidth(self) -> bool:
        """Whether some summand has a bandwidth."""
        return any(kernel.takes_bandwidth for _, kernel in self.summands)

    @property
    def has_free_bandwidth(self) -> bool:
        """Whether some summand has a bandwidth of None."""
        return any(kernel.has_free_bandwidth for _, kernel in self.summands)

    @property
    def bandwidth(self) -> tuple[Any, ...]:
        """The bandwidth of every summand; None for a summand without one."""
        return tuple(getattr(kernel, "bandwidth", None) for _, kernel in self.summands)

    def with_bandwidth(self, bandwidth: ArrayLike) -> Sum:
        """A copy with this bandwidth in place of every None; bandwidths that were given stay."""
        filled = (k.with_bandwidth(bandwidth) if k.has_free_bandwidth else k for _, k in self.summands)
        return Sum(tuple(zip((c for c, _ in self.summands), filled, strict=True)))

    def check_columns(self, n_columns: int) -> None:
        """Raise a ValueError if a summand cannot be used with this number of columns."""
        for _, kernel in self.summands:
            kernel.check_columns(n_columns)

    def check_diagonal(self) -> None:
        """Raise a ValueError if the diagonal of a summand is infinite or unknown."""
        for _, kernel in self.summands:
            kernel.check_diagonal()
