"""Sums of kernels with positive coefficients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from quernel.kernels.base import Array, Kernel


@dataclass(frozen=True)
class Sum(Kernel):
    """K = sum_k c_k K_k, written `Gaussian(1.0) + 0.5 * Matern(3.0)`; the features of all, side by side."""

    name: ClassVar[str] = "sum"
    summands: tuple[tuple[float, Kernel], ...]

    def __post_init__(self) -> None:
        wrong = [c for c, _ in self.summands if not 0 < c < np.inf]
        if wrong:
            raise ValueError(f"A kernel can be multiplied by positive finite numbers only; got {wrong[0]!r}.")

    @property
    def parts(self) -> tuple[tuple[float, Kernel], ...]:
        """The summands."""
        return self.summands

    def gram(self, X: Array, Z: Array) -> Array:
        """sum_k c_k K_k(x, z)."""
        return np.sum([c * kernel.gram(X, Z) for c, kernel in self.summands], axis=0)

    def diagonal(self, X: Array) -> Array:
        """sum_k c_k K_k(x, x)."""
        return np.sum([c * kernel.diagonal(X) for c, kernel in self.summands], axis=0)

    @property
    def takes_bandwidth(self) -> bool:
        """Whether a summand does."""
        return any(kernel.takes_bandwidth for _, kernel in self.summands)

    @property
    def has_free_bandwidth(self) -> bool:
        """Whether a summand's is."""
        return any(kernel.has_free_bandwidth for _, kernel in self.summands)

    @property
    def bandwidth(self) -> tuple[Any, ...]:
        """The bandwidth of every summand, None where there is none."""
        return tuple(getattr(kernel, "bandwidth", None) for _, kernel in self.summands)

    def with_bandwidth(self, bandwidth: ArrayLike) -> Sum:
        """The same sum, its open bandwidths filled in; those that are given stay."""
        filled = (k.with_bandwidth(bandwidth) if k.has_free_bandwidth else k for _, k in self.summands)
        return Sum(tuple(zip((c for c, _ in self.summands), filled, strict=True)))

    def check_columns(self, n_columns: int) -> None:
        """Complain if a summand does."""
        for _, kernel in self.summands:
            kernel.check_columns(n_columns)

    def check_diagonal(self) -> None:
        """Complain if a summand does."""
        for _, kernel in self.summands:
            kernel.check_diagonal()
