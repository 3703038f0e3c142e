"""What a kernel is: a positive definite function, and, for most, a mean of products of random features."""

from __future__ import annotations

from abc import ABC, abstractmethod
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

if TYPE_CHECKING:
    from quernel.kernels.sums import Sum

Array = NDArray[np.floating]


class Kernel(ABC):
    """A positive definite function K(x, z) of two rows. Kernels can be added, and multiplied by positive numbers."""

    name: ClassVar[str]
    __array_ufunc__ = None  # numpy's numbers leave `number * kernel` to the kernel

    @abstractmethod
    def gram(self, X: Array, Z: Array) -> Array:
        """K(x, z) for every row x of X and z of Z, shape (len(X), len(Z))."""

    @abstractmethod
    def diagonal(self, X: Array) -> Array:
        """K(x, x) for every row x of X, shape (len(X),)."""

    @property
    def parts(self) -> tuple[tuple[float, Kernel], ...]:
        """The (coefficient, kernel) of every summand; a kernel that is no sum is its own."""
        return ((1.0, self),)

    @property
    def full_name(self) -> str:
        """The name, or the names of the summands."""
        return " + ".join(part.name for _, part in self.parts)

    def __add__(self, other: Any) -> Sum:
        from quernel.kernels.sums import Sum

        return Sum(self.parts + other.parts) if isinstance(other, Kernel) else NotImplemented

    def __mul__(self, number: Any) -> Sum:
        from quernel.kernels.sums import Sum

        if not isinstance(number, Real):
            return NotImplemented
        return Sum(tuple((float(number) * coefficient, kernel) for coefficient, kernel in self.parts))

    __rmul__ = __mul__

    # Most kernels have no bandwidth; those that do say so by overriding what follows.

    @property
    def takes_bandwidth(self) -> bool:
        """Whether the kernel has a bandwidth at all."""
        return False

    @property
    def has_free_bandwidth(self) -> bool:
        """Whether a bandwidth is left for the estimator to choose."""
        return False

    def with_bandwidth(self, bandwidth: ArrayLike) -> Kernel:
        """The same kernel with another bandwidth."""
        raise ValueError(f"The {self.name} kernel has no bandwidth; got {bandwidth!r}.")

    def check_columns(self, n_columns: int) -> None:  # noqa: B027 (most kernels accept any number)
        """Complain if the kernel cannot be used with so many columns."""

    def check_diagonal(self) -> None:  # noqa: B027 (most diagonals are finite)
        """Complain if K(x, x) is infinite or unknown: then there are random features only."""


def stream(rng: np.random.Generator) -> np.random.Generator:
    """A generator of its own: however many numbers one purpose takes, those of the next stay the same."""
    return np.random.default_rng(rng.integers(2**63))


class RandomFeatureKernel(Kernel):
    """K(x, z) = E phi(x, w) phi(z, w): the paper's integral representation, from which random features are drawn.

    A feature is given by its frequency w, a column, and by its phase, a number. A frequency is made of normal numbers
    and of a few uniform ones that mix them (`frequencies_from`): independent normals give independent features, normals
    that are orthogonal within blocks give orthogonal ones, and a low-discrepancy sequence through the inverse normal
    law gives quasi-random ones.
    """

    paired: ClassVar[bool] = False
    """Whether features whose phases are a quarter turn apart are cosine and sine of the same wave."""
    refused_samplings: ClassVar[dict[str, str]] = {}
    """Ways of sampling that the kernel cannot serve, and what to tell the user."""

    @abstractmethod
    def wave(self, X: Array, frequencies: Array, phases: Array) -> Array:
        """phi(x, w) for every row and feature, shape (len(X), M)."""

    @abstractmethod
    def phases_at(self, uniform: Array) -> Array:
        """Phases from uniform numbers, both of shape (M,)."""

    def frequencies_from(self, normal: Array, mixing: Array) -> Array:
        """Frequencies (d, M) from normal numbers (d, M) and uniform ones (n_mixing(d), M)."""
        raise NotImplementedError

    def n_mixing(self, n_columns: int) -> int:  # noqa: ARG002
        """How many uniform numbers mix the normal ones."""
        return 0

    def frequencies(self, rng: np.random.Generator, n_components: int, n_columns: int) -> Array:
        """Independent draws w_1, ..., w_M, shape (n_columns, n_components); the first M of those for more than M."""
        normal = stream(rng).standard_normal((n_components, n_columns)).T
        return self.frequencies_from(normal, stream(rng).random((n_components, self.n_mixing(n_columns))).T)

    def cube_dimension(self, n_columns: int) -> int:
        """How many uniform numbers make one frequency by its inverse law."""
        return self.n_mixing(n_columns) + n_columns

    def frequencies_at(self, uniform: Array, n_columns: int) -> Array:
        """The inverse law: frequencies (d, M) from points of the open unit cube, shape (cube_dimension(d), M).

        The mixing numbers come first: the first coordinates of a low-discrepancy sequence are its best.
        """
        mixing, normal = np.split(uniform, [self.n_mixing(n_columns)])
        return self.frequencies_from(ndtri(normal), mixing)
