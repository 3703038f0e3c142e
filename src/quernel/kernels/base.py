"""The interface of a kernel: a positive definite function and, for most, an expectation over random features.

Kernels can be added and multiplied by positive numbers, which gives a `Sum`. `KERNELS` is the registry of names that
estimators accept; `resolve` turns a name into an object.

Here are also the dot-product kernels: the linear kernel, and the arc-cosine kernels (Cho and Saul, 2009; the paper's
appendix A), whose random features are the hidden units of a two-layer neural network with a random first layer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial.distance import cdist
from scipy.special import ndtri

Array = NDArray[np.floating]
# What `random_state` may be.
Seed = int | np.random.Generator | np.random.RandomState | None


class Kernel(ABC):
    """Base class of all kernels: a positive definite function K(x, z) of two rows.

    Kernels are immutable and can be added and multiplied by positive numbers, which gives a `quernel.kernels.Sum`. A
    subclass implements `gram` and `diagonal`; one with random features derives from `RandomFeatureKernel`.

    Attributes
    ----------
    name : str
        The name by which users choose the kernel (a class attribute).
    rough : bool
        Whether its eigenvalues decay slowly: learned fits then take landmarks, not random features (a class attribute).
    """

    name: ClassVar[str]
    rough: ClassVar[bool] = False
    __array_ufunc__ = None  # so that `np.float64(2) * kernel` calls the kernel's __rmul__

    @abstractmethod
    def gram(self, X: Array, Z: Array) -> Array:
        """The Gram matrix K(x, z) of all rows x of X and z of Z, shape (len(X), len(Z))."""

    @abstractmethod
    def diagonal(self, X: Array) -> Array:
        """K(x, x) for every row x of X, shape (len(X),)."""

    @property
    def summands(self) -> tuple[tuple[float, Kernel], ...]:
        """(coefficient, kernel) of every summand; a kernel that is no sum is its only summand, with coefficient 1."""
        return ((1.0, self),)

    @property
    def full_name(self) -> str:
        """The name; for a sum, the names of its summands joined by " + "."""
        return " + ".join(part.name for _, part in self.summands)

    def __add__(self, other: Any) -> Sum:
        return Sum(self.summands + other.summands) if isinstance(other, Kernel) else NotImplemented

    def __mul__(self, number: Any) -> Sum:
        if not isinstance(number, Real):
            return NotImplemented
        return Sum(tuple((float(number) * coefficient, kernel) for coefficient, kernel in self.summands))

    __rmul__ = __mul__

    # Defaults for kernels without a bandwidth; those with one override what follows.

    @property
    def takes_bandwidth(self) -> bool:
        """Whether the kernel has a bandwidth at all."""
        return False

    @property
    def has_free_bandwidth(self) -> bool:
        """Whether the kernel has a bandwidth of None, which an estimator will choose from the data."""
        return False

    def with_bandwidth(self, bandwidth: ArrayLike) -> Kernel:
        """A copy of the kernel with this bandwidth."""
        raise ValueError(f"The {self.name} kernel has no bandwidth; got {bandwidth!r}.")

    def check_columns(self, n_columns: int) -> None:  # noqa: B027 (most kernels accept any number)
        """Raise a ValueError if the kernel cannot be used with this number of columns."""

    def check_diagonal(self) -> None:  # noqa: B027 (most diagonals are finite)
        """Raise a ValueError if K(x, x) is infinite or unknown, so that the kernel has random features only."""


def spawn_rng(rng: np.random.Generator) -> np.random.Generator:
    """A child generator for one purpose: however many numbers it draws, the draws of the next purpose stay the same."""
    return np.random.default_rng(rng.integers(2**63))


def as_generator(random_state: Seed) -> np.random.Generator:
    """Turn `random_state` (an int, Generator, RandomState or None) into a numpy Generator."""
    if isinstance(random_state, np.random.RandomState):
        return np.random.default_rng(random_state.randint(2**31))
    try:
        return np.random.default_rng(random_state)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"random_state must be a non-negative integer, a Generator, a RandomState or None; got {random_state!r}."
        ) from error


class RandomFeatureKernel(Kernel):
    """A kernel with random features:  K(x, z) = E phi(x, w, b) phi(z, w, b),  the paper's integral representation.

    A feature phi(., w, b), called `wave`, has a frequency w, a vector of length d, and a phase b, a number. Most
    spectral measures are scale mixtures of normals, so a frequency is made of d standard normal numbers and a few
    uniform ones for the random scale (`frequencies_from`). This serves every sampling strategy alike: independent
    normals give independent features, normals that are orthogonal within blocks give orthogonal ones, and a
    low-discrepancy sequence, through the inverse normal distribution function, gives quasi-random ones.
    """

    paired: ClassVar[bool] = False
    """Whether features whose phases are a quarter turn apart are cosine and sine of the same angle."""
    refused_samplings: ClassVar[dict[str, str]] = {}
    """Sampling strategies that the kernel does not support, each with the error message for the user."""

    @abstractmethod
    def wave(self, X: Array, frequencies: Array, phases: Array) -> Array:
        """phi(x, w_m, b_m) for every row of X and every feature m, shape (len(X), M)."""

    @abstractmethod
    def phases_at(self, uniform: Array) -> Array:
        """Phases from uniform numbers by their inverse distribution function, both of shape (M,)."""

    def frequencies_from(self, normal: Array, mixing: Array) -> Array:
        """Frequencies (d, M) from standard normal numbers (d, M) and uniform ones (n_mixing(d), M)."""
        raise NotImplementedError

    def n_mixing(self, n_columns: int) -> int:  # noqa: ARG002
        """How many uniform numbers a frequency needs for its random scale (the mixing variable)."""
        return 0

    def frequencies(self, rng: np.random.Generator, n_components: int, n_columns: int) -> Array:
        """Independent draws w_1, ..., w_M, shape (n_columns, n_components).

        Under one seed, those for M are the first M of those for more.
        """
        normal = spawn_rng(rng).standard_normal((n_components, n_columns)).T
        return self.frequencies_from(normal, spawn_rng(rng).random((n_components, self.n_mixing(n_columns))).T)

    def cube_dimension(self, n_columns: int) -> int:
        """How many uniform numbers make one frequency: the dimension of the sequence for quasi-Monte Carlo."""
        return self.n_mixing(n_columns) + n_columns

    def frequencies_at(self, uniform: Array, n_columns: int) -> Array:
        """Frequencies (d, M) from points of the open unit cube, shape (cube_dimension(d), M), by inverse transform.

        The mixing variables come first, because the first coordinates of a low-discrepancy sequence are the most even.
        """
        mixing, normal = np.split(uniform, [self.n_mixing(n_columns)])
        return self.frequencies_from(ndtri(normal), mixing)


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
        total: Array | float = 0.0
        for c, kernel in self.summands:  # in place: these matrices are larger than any cache
            part = kernel.gram(X, Z)
            part *= c
            part += total
            total = part
        return np.asarray(total)

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


KERNELS: dict[str, type[Kernel]] = {}
"""Kernel classes by the names that estimators accept; `quernel.kernels` registers its own, and users may add theirs."""


def resolve(kernel: str | Kernel) -> Kernel:
    """Return the kernel object for a name, or the object itself.

    "auto" gives the Gaussian kernel, which stands where no kernel is chosen from the data.
    """
    if isinstance(kernel, Kernel):
        return kernel
    if isinstance(kernel, str) and (kernel == "auto" or kernel in KERNELS):
        return KERNELS["gaussian" if kernel == "auto" else kernel]()
    if isinstance(kernel, type) and issubclass(kernel, Kernel):
        raise ValueError(f"kernel must be an object, not a class: write {kernel.__name__}().")
    known = ", ".join(repr(name) for name in KERNELS)
    raise ValueError(f"Unknown kernel {kernel!r}. Known kernels: {known}, 'auto', or an object of quernel.kernels.")


@dataclass(frozen=True)
class Linear(Kernel):
    """Linear kernel  K(x, z) = x'z:  the columns of X are the features, and the model is linear in them."""

    name: ClassVar[str] = "linear"

    def gram(self, X: Array, Z: Array) -> Array:
        """K(x, z) = x'z."""
        return np.asarray(X) @ np.asarray(Z).T

    def diagonal(self, X: Array) -> Array:
        """K(x, x) = |x|^2."""
        return np.einsum("ij,ij->i", X, X)


@dataclass(frozen=True)
class ArcCosine(RandomFeatureKernel):
    """Arc-cosine kernel  K(x, z) = (|x||z|)^order kappa_order(t),  with t the angle between x and z.

    kappa_0(t) = 1 - t/pi,  kappa_1(t) = (sin t + (pi - t) cos t) / pi.  The random features are the units of a
    network's hidden layer,  sqrt(2) 1[w'x > 0]  and  sqrt(2) max(0, w'x)  with w standard normal. The kernel is not
    shift-invariant: centre or standardise the columns, or give the units a bias.

    Parameters
    ----------
    order : {1, 0}, default=1
        1: rectified linear units; 0: step functions.
    bias : float, default=0
        Standard deviation of the bias of the hidden units; equivalent to one more column of X that is constant at this
        number. The paper has none. Without a bias the features are homogeneous: along a ray from the origin they are
        linear (order 1) or constant (order 0).
    """

    name: ClassVar[str] = "arccosine"
    order: int = 1
    bias: float = 0.0

    def __post_init__(self) -> None:
        if self.order not in (0, 1):
            raise ValueError(f"order must be 0 or 1; got {self.order!r}.")
        if not isinstance(self.bias, Real) or not 0 <= self.bias < np.inf:
            raise ValueError(f"bias must be a number of at least 0; got {self.bias!r}.")

    def gram(self, X: Array, Z: Array) -> Array:
        """(|x||z|)^order kappa_order(t)."""
        X, Z = self._with_bias(X), self._with_bias(Z)
        norm_x, norm_z = np.linalg.norm(X, axis=1), np.linalg.norm(Z, axis=1)
        unit_x, unit_z = (A / np.where(norm > 0, norm, 1)[:, None] for A, norm in ((X, norm_x), (Z, norm_z)))
        # tan(t/2) = |u - v| / |u + v| for unit vectors u, v: the arc cosine of u'v would lose half of the digits.
        angle = 2 * np.arctan2(cdist(unit_x, unit_z), cdist(unit_x, -unit_z))
        if self.order == 0:
            return np.outer(norm_x > 0, norm_z > 0) * (1 - angle / np.pi)
        return np.outer(norm_x, norm_z) * (np.sin(angle) + (np.pi - angle) * np.cos(angle)) / np.pi

    def diagonal(self, X: Array) -> Array:
        """|x|^(2 order), and 0 where x = 0."""
        squared_norm = np.einsum("ij,ij->i", self._with_bias(X), self._with_bias(X))
        return squared_norm if self.order == 1 else (squared_norm > 0).astype(float)

    def wave(self, X: Array, frequencies: Array, phases: Array) -> Array:
        """The hidden units  sqrt(2) max(0, w'x + b)  (order 1) or  sqrt(2) 1[w'x + b > 0]  (order 0)."""
        activation = np.asarray(X, dtype=float) @ frequencies
        activation += phases
        return np.sqrt(2) * (np.maximum(activation, 0) if self.order == 1 else activation > 0)

    def frequencies_from(self, normal: Array, mixing: Array) -> Array:  # noqa: ARG002
        """The standard normal numbers themselves."""
        return normal

    def phases_at(self, uniform: Array) -> Array:
        """The biases of the hidden units: normal with standard deviation `bias`, by the inverse normal distribution."""
        return self.bias * ndtri(uniform) if self.bias else np.zeros_like(uniform)

    def _with_bias(self, X: Array) -> Array:
        """X with a constant column for the bias, if there is one."""
        X = np.asarray(X, dtype=float)
        return np.column_stack([X, np.full(len(X), self.bias)]) if self.bias else X
