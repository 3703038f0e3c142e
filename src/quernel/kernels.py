"""Kernels: each knows its Gram matrix and how to draw the frequencies of its spectral measure.

A shift-invariant kernel is the mean of a random wave (Bochner): K(x, z) = E cos(w'(x - z)), with w drawn from the
kernel's spectral measure. `gram` evaluates the left side, `frequencies` draws from the right; a test holds one against
the other. Every kernel measures distance after dividing each column by its bandwidth.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial.distance import cdist

Array = NDArray[np.floating]


class Kernel(ABC):
    """A positive definite function K(x, z) of two rows."""

    name: ClassVar[str]

    @abstractmethod
    def gram(self, X: Array, Z: Array) -> Array:
        """K(x, z) for every row x of X and z of Z, shape (len(X), len(Z))."""

    @abstractmethod
    def diagonal(self, X: Array) -> Array:
        """K(x, x) for every row x of X, shape (len(X),)."""


@dataclass(frozen=True)
class Linear(Kernel):
    """K(x, z) = x'z: the columns are the features, as they are."""

    name: ClassVar[str] = "linear"

    def gram(self, X: Array, Z: Array) -> Array:
        """K(x, z) = x'z."""
        return np.asarray(X) @ np.asarray(Z).T

    def diagonal(self, X: Array) -> Array:
        """K(x, x) = |x|^2."""
        return np.einsum("ij,ij->i", X, X)


@dataclass(frozen=True, eq=False)
class ShiftInvariantKernel(Kernel):
    """K(x, z) = k((x - z) / bandwidth) with k(0) = 1.

    Parameters
    ----------
    bandwidth : float, one float per column, or None
        The distance at which the kernel has clearly decayed, in the units of the columns. None leaves it to the
        estimator; used alone, None means 1.
    """

    bandwidth: ArrayLike | None = None

    def __post_init__(self) -> None:
        if self.bandwidth is None:
            return
        try:
            width = np.array(self.bandwidth, dtype=float)  # a copy: the caller's array may change
        except (TypeError, ValueError):
            width = np.array(np.nan)
        if width.ndim > 1 or width.size == 0 or not np.all(np.isfinite(width)) or not np.all(width > 0):
            raise ValueError(
                f"bandwidth must be positive and finite, one number or one per column; got {self.bandwidth!r}."
            )
        width.flags.writeable = False
        object.__setattr__(self, "bandwidth", float(width) if width.ndim == 0 else width)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and all(
            np.array_equal(mine, vars(other)[key]) for key, mine in vars(self).items()
        )

    def __hash__(self) -> int:
        numbers = [None if value is None else np.asarray(value, dtype=float) for value in vars(self).values()]
        return hash((type(self), *(n if n is None else (n.shape, n.tobytes()) for n in numbers)))

    def with_bandwidth(self, bandwidth: ArrayLike) -> Self:
        """The same kernel with another bandwidth."""
        return replace(self, bandwidth=bandwidth)

    def scale(self, n_columns: int) -> Array:
        """The bandwidth of every column, shape (n_columns,)."""
        width = np.asarray(1.0 if self.bandwidth is None else self.bandwidth, dtype=float)
        if width.ndim == 1 and len(width) != n_columns:
            raise ValueError(
                f"bandwidth has {len(width)} entries but X has {n_columns} columns; give one number or one per column."
            )
        return np.broadcast_to(width, (n_columns,))

    def _distance(self, X: Array, Z: Array, metric: str) -> Array:
        # Differences are taken entry by entry: |x|^2 + |z|^2 - 2x'z would lose the small distances that pivoted
        # Cholesky lives on.
        scale = self.scale(X.shape[1])
        return cdist(np.asarray(X, dtype=float) / scale, np.asarray(Z, dtype=float) / scale, metric)

    def diagonal(self, X: Array) -> Array:
        """K(x, x) = 1."""
        return np.ones(len(X))

    def frequencies(self, rng: np.random.Generator, n_components: int, n_columns: int) -> Array:
        """Draws w_1, ..., w_M from the spectral measure, shape (n_columns, n_components)."""
        return self._standard_frequencies(rng, n_components, n_columns) / self.scale(n_columns)[:, None]

    @abstractmethod
    def _standard_frequencies(self, rng: np.random.Generator, n_components: int, n_columns: int) -> Array:
        """The draws for bandwidth 1."""


@dataclass(frozen=True, eq=False)
class Gaussian(ShiftInvariantKernel):
    """K(x, z) = exp(-|x - z|^2 / (2 bandwidth^2)); w is normal."""

    name: ClassVar[str] = "gaussian"

    def gram(self, X: Array, Z: Array) -> Array:
        """exp(-|x - z|^2 / 2) at bandwidth 1."""
        squared = self._distance(X, Z, "sqeuclidean")
        squared *= -0.5
        return np.exp(squared, out=squared)

    def _standard_frequencies(self, rng: np.random.Generator, n_components: int, n_columns: int) -> Array:
        return rng.standard_normal((n_columns, n_components))


@dataclass(frozen=True, eq=False)
class Laplacian(ShiftInvariantKernel):
    """K(x, z) = exp(-|x - z|_1 / bandwidth), the sum of absolute differences; each w_j is Cauchy."""

    name: ClassVar[str] = "laplacian"

    def gram(self, X: Array, Z: Array) -> Array:
        """exp(-|x - z|_1) at bandwidth 1."""
        return np.exp(-self._distance(X, Z, "cityblock"))

    def _standard_frequencies(self, rng: np.random.Generator, n_components: int, n_columns: int) -> Array:
        return rng.standard_cauchy((n_columns, n_components))


@dataclass(frozen=True, eq=False)
class Matern(ShiftInvariantKernel):
    """Matern kernel of smoothness nu = 1/2, 3/2 or 5/2; w is multivariate t with 2 nu degrees of freedom.

    With s = sqrt(2 nu) |x - z| / bandwidth:  exp(-s),  (1 + s) exp(-s),  (1 + s + s^2/3) exp(-s).
    """

    name: ClassVar[str] = "matern"
    nu: float = 1.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nu not in (0.5, 1.5, 2.5):
            raise ValueError(f"nu must be 0.5, 1.5 or 2.5; got {self.nu!r}.")

    def gram(self, X: Array, Z: Array) -> Array:
        """(polynomial of s) exp(-s), s = sqrt(2 nu) |x - z|, at bandwidth 1."""
        s = np.sqrt(2 * self.nu) * self._distance(X, Z, "euclidean")
        polynomial = {0.5: 1.0, 1.5: 1 + s, 2.5: 1 + s + s**2 / 3}[self.nu]
        return polynomial * np.exp(-s)

    def _standard_frequencies(self, rng: np.random.Generator, n_components: int, n_columns: int) -> Array:
        normal = rng.standard_normal((n_columns, n_components))
        degrees = 2 * self.nu
        return normal * np.sqrt(degrees / rng.chisquare(degrees, n_components))


@dataclass(frozen=True, eq=False)
class Cauchy(ShiftInvariantKernel):
    """K(x, z) = 1 / (1 + |x - z|^2 / bandwidth^2); w is normal with an exponentially distributed variance."""

    name: ClassVar[str] = "cauchy"

    def gram(self, X: Array, Z: Array) -> Array:
        """1 / (1 + |x - z|^2) at bandwidth 1."""
        return 1 / (1 + self._distance(X, Z, "sqeuclidean"))

    def _standard_frequencies(self, rng: np.random.Generator, n_components: int, n_columns: int) -> Array:
        # 1/(1 + d^2) = E exp(-s d^2) with s exponential, and exp(-s d^2) is Gaussian with frequency variance 2s.
        normal = rng.standard_normal((n_columns, n_components))
        return normal * np.sqrt(2 * rng.standard_exponential(n_components))


KERNELS: dict[str, type[Kernel]] = {kernel.name: kernel for kernel in (Gaussian, Laplacian, Matern, Cauchy, Linear)}


def resolve(kernel: str | Kernel) -> Kernel:
    """The kernel of that name, or the object itself."""
    if isinstance(kernel, Kernel):
        return kernel
    if isinstance(kernel, str) and kernel in KERNELS:
        return KERNELS[kernel]()
    if isinstance(kernel, type) and issubclass(kernel, Kernel):
        raise ValueError(f"kernel must be an object, not a class: write {kernel.__name__}().")
    known = ", ".join(repr(name) for name in KERNELS)
    raise ValueError(f"Unknown kernel {kernel!r}. Known kernels: {known}, or an object of quernel.kernels.")
