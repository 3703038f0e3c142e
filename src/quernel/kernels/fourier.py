"""Shift-invariant kernels: each knows its Gram matrix and the law of the frequencies in its spectral measure.

A shift-invariant kernel is the mean of a random wave (Bochner): K(x, z) = E cos(w'(x - z)), with w drawn from the
kernel's spectral measure. `gram` evaluates the left side, `frequencies` draws from the right; a test holds one against
the other. All measures here are normal laws of random scale. Every kernel measures distance after dividing each column
by its bandwidth.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial.distance import cdist, pdist, squareform
from scipy.special import chdtri, ndtri

from quernel.kernels.base import RandomFeatureKernel

Array = NDArray[np.floating]

# Steps of logarithms by which unknown derivatives are taken.
DIFFERENCE = 1e-4


@dataclass(frozen=True, eq=False)
class ShiftInvariantKernel(RandomFeatureKernel):
    """K(x, z) = k((x - z) / bandwidth) with k(0) = 1.

    Parameters
    ----------
    bandwidth : float, one float per column, or None
        The distance at which the kernel has clearly decayed, in the units of the columns. None leaves it to the
        estimator; used alone, None means 1.
    """

    paired: ClassVar[bool] = True
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

    @property
    def takes_bandwidth(self) -> bool:
        """True."""
        return True

    @property
    def has_free_bandwidth(self) -> bool:
        """Whether the bandwidth is None."""
        return self.bandwidth is None

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

    def check_columns(self, n_columns: int) -> None:
        """Complain if there is not one bandwidth per column."""
        self.scale(n_columns)

    def _distance(self, X: Array, Z: Array, metric: str) -> Array:
        # Differences are taken entry by entry: |x|^2 + |z|^2 - 2x'z would lose the small distances that pivoted
        # Cholesky lives on.
        scale = self.scale(X.shape[1])
        return cdist(np.asarray(X, dtype=float) / scale, np.asarray(Z, dtype=float) / scale, metric)

    def diagonal(self, X: Array) -> Array:
        """K(x, x) = 1."""
        return np.ones(len(X))

    def bandwidth_gradient(self, X: Array, weight: Array) -> Array:
        """Derivatives of  sum_ik weight_ik K(x_i, x_k)  by the logarithm of every column's bandwidth, shape (d,).

        By differences here; the library's own kernels know better.
        """
        width, gradient = self.scale(X.shape[1]), np.empty(X.shape[1])
        for j, step in enumerate(DIFFERENCE * np.eye(X.shape[1])):
            wider, narrower = (self.with_bandwidth(width * np.exp(sign * step)).gram(X, X) for sign in (1, -1))
            gradient[j] = np.sum(weight * (wider - narrower)) / (2 * DIFFERENCE)
        return gradient

    def wave(self, X: Array, frequencies: Array, phases: Array) -> Array:
        """sqrt(2) cos(w'x + b)."""
        angle = np.asarray(X, dtype=float) @ frequencies
        angle += phases
        np.cos(angle, out=angle)
        angle *= np.sqrt(2)
        return angle

    def phases_at(self, uniform: Array) -> Array:
        """Uniform on [0, 2 pi)."""
        return 2 * np.pi * uniform

    def frequencies_from(self, normal: Array, mixing: Array) -> Array:
        """The frequencies at bandwidth 1, divided by the bandwidth of each column."""
        return self._standard_frequencies(normal, mixing) / self.scale(len(normal))[:, None]

    @abstractmethod
    def _standard_frequencies(self, normal: Array, mixing: Array) -> Array:
        """Frequencies (d, M) at bandwidth 1, from normal numbers (d, M) and uniform ones (n_mixing(d), M)."""


def pairs(weight: Array) -> Array:
    """What every pair of different rows counts, in the order of `pdist`, from the weight (n, n) of its two orders."""
    return squareform(weight + weight.T, checks=False)


class RadialKernel(ShiftInvariantKernel):
    """A function of the squared distance s's alone, where s = (x - z) / bandwidth."""

    @abstractmethod
    def _radial_derivative(self, squared: Array) -> Array:
        """-2 dK / d(s's)."""

    def bandwidth_gradient(self, X: Array, weight: Array) -> Array:
        """dK / dlog bandwidth_j = -2 dK / d(s's) s_j^2."""
        scaled = np.asarray(X, dtype=float) / self.scale(X.shape[1])
        falling = squareform(pairs(weight) * self._radial_derivative(pdist(scaled, "sqeuclidean")), checks=False)
        scaled -= scaled.mean(axis=0)  # (a - b)^2 = a^2 + b^2 - 2ab loses digits far from 0
        return falling.sum(axis=0) @ scaled**2 - np.sum(scaled * (falling @ scaled), axis=0)


@dataclass(frozen=True, eq=False)
class Gaussian(RadialKernel):
    """K(x, z) = exp(-|x - z|^2 / (2 bandwidth^2)); w is normal."""

    name: ClassVar[str] = "gaussian"

    def gram(self, X: Array, Z: Array) -> Array:
        """exp(-|x - z|^2 / 2) at bandwidth 1."""
        squared = self._distance(X, Z, "sqeuclidean")
        squared *= -0.5
        return np.exp(squared, out=squared)

    def _radial_derivative(self, squared: Array) -> Array:
        return np.exp(-squared / 2)

    def _standard_frequencies(self, normal: Array, mixing: Array) -> Array:  # noqa: ARG002
        return normal


@dataclass(frozen=True, eq=False)
class Laplacian(ShiftInvariantKernel):
    """K(x, z) = exp(-|x - z|_1 / bandwidth), the sum of absolute differences; each w_j is Cauchy."""

    name: ClassVar[str] = "laplacian"

    def gram(self, X: Array, Z: Array) -> Array:
        """exp(-|x - z|_1) at bandwidth 1."""
        return np.exp(-self._distance(X, Z, "cityblock"))

    def bandwidth_gradient(self, X: Array, weight: Array) -> Array:
        """dK / dlog bandwidth_j = |s_j| K."""
        scaled = np.asarray(X, dtype=float) / self.scale(X.shape[1])
        weighted = pairs(weight) * np.exp(-pdist(scaled, "cityblock"))
        return np.array([weighted @ pdist(column[:, None], "cityblock") for column in scaled.T])

    def n_mixing(self, n_columns: int) -> int:
        """One for every column."""
        return n_columns

    def _standard_frequencies(self, normal: Array, mixing: Array) -> Array:
        # The ratio of two independent normal numbers is Cauchy. So orthogonal normals can be used although the measure,
        # a product, has no rotations: whatever one frequency's normals share with another's, its own law is exact.
        return normal / -ndtri(mixing / 2)

    def cube_dimension(self, n_columns: int) -> int:
        """One uniform number for every column suffices."""
        return n_columns

    def frequencies_at(self, uniform: Array, n_columns: int) -> Array:
        """tan(pi (u - 1/2)) at bandwidth 1."""
        return np.tan(np.pi * (uniform - 0.5)) / self.scale(n_columns)[:, None]


@dataclass(frozen=True, eq=False)
class Matern(RadialKernel):
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

    def _radial_derivative(self, squared: Array) -> Array:
        s = np.sqrt(2 * self.nu * squared)
        if self.nu == 0.5:  # where rows are equal it counts nothing, whatever it is
            return np.divide(np.exp(-s), s, out=np.zeros_like(s), where=s > 0)
        return (3.0 if self.nu == 1.5 else 5 / 3 * (1 + s)) * np.exp(-s)

    def n_mixing(self, n_columns: int) -> int:  # noqa: ARG002
        """One for all columns."""
        return 1

    def _standard_frequencies(self, normal: Array, mixing: Array) -> Array:
        degrees = 2 * self.nu
        return normal * np.sqrt(degrees / chdtri(degrees, mixing))  # a chi-square number by its inverse law


@dataclass(frozen=True, eq=False)
class Cauchy(RadialKernel):
    """K(x, z) = 1 / (1 + |x - z|^2 / bandwidth^2); w is normal with an exponentially distributed variance."""

    name: ClassVar[str] = "cauchy"

    def gram(self, X: Array, Z: Array) -> Array:
        """1 / (1 + |x - z|^2) at bandwidth 1."""
        return 1 / (1 + self._distance(X, Z, "sqeuclidean"))

    def _radial_derivative(self, squared: Array) -> Array:
        return 2 / (1 + squared) ** 2

    def n_mixing(self, n_columns: int) -> int:  # noqa: ARG002
        """One for all columns."""
        return 1

    def _standard_frequencies(self, normal: Array, mixing: Array) -> Array:
        # 1/(1 + d^2) = E exp(-s d^2) with s exponential, and exp(-s d^2) is Gaussian with frequency variance 2s.
        return normal * np.sqrt(-2 * np.log1p(-mixing))


@dataclass(frozen=True, eq=False)
class SpectralKernel(ShiftInvariantKernel):
    """K(x, z) = E cos(w'(x - z) / bandwidth), with w from a sampler that the user gives.

    Parameters
    ----------
    bandwidth : float, one float per column, or None
        As in every shift-invariant kernel.
    sampler : callable
        ``sampler(rng, n_components, n_columns)`` returns independent draws of w, shape (n_columns, n_components), from
        a law that is symmetric about 0. Use the generator it is given, and a function that can be pickled.
    function : callable or None
        ``function(X, Z)`` returns K(x, z) at bandwidth 1 for all pairs of rows, if it is known: needed for
        ``n_components="exact"``.

    A sampler gives "uniform" and "leverage" sampling. For the other kinds, write a subclass of
    `quernel.kernels.ShiftInvariantKernel` that makes frequencies of normal numbers, as the library's own kernels do.

    Examples
    --------
    >>> import numpy as np
    >>> def box(rng, n_components, n_columns):
    ...     return rng.uniform(-1, 1, (n_columns, n_components))
    >>> sinc = SpectralKernel(2.0, box, lambda X, Z: np.sinc((X[:, None] - Z[None]) / np.pi).prod(axis=2))
    >>> sinc.gram(np.zeros((1, 1)), np.array([[1.0]])).round(4)
    array([[0.9589]])
    """

    name: ClassVar[str] = "spectral"
    refused_samplings: ClassVar[dict[str, str]] = {
        sampling: f"sampling={sampling!r} must know how frequencies are made of normal or uniform numbers; a "
        "SpectralKernel knows a sampler only. Use 'uniform' or 'leverage', or write a subclass of "
        "quernel.kernels.ShiftInvariantKernel."
        for sampling in ("orthogonal", "qmc")
    }
    sampler: Callable[[np.random.Generator, int, int], Array] | None = None
    function: Callable[[Array, Array], Array] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, given in (("sampler", self.sampler), ("function", self.function)):
            if not callable(given) and not (given is None and name == "function"):
                raise ValueError(f"{name} must be a function; got {given!r}.")

    def __hash__(self) -> int:
        return hash((type(self), self.sampler, self.function))

    def gram(self, X: Array, Z: Array) -> Array:
        """The user's function at bandwidth 1."""
        self.check_diagonal()
        assert self.function is not None
        scale = self.scale(X.shape[1])
        return np.asarray(self.function(np.asarray(X, dtype=float) / scale, np.asarray(Z, dtype=float) / scale))

    def check_diagonal(self) -> None:
        """Complain if the function is not known."""
        if self.function is None:
            raise ValueError(
                "This SpectralKernel knows its sampler only, so it has random features but no Gram matrix. Give it "
                "function=..., or use a number of random features."
            )

    def frequencies(self, rng: np.random.Generator, n_components: int, n_columns: int) -> Array:
        """The user's draws, divided by the bandwidth of each column."""
        assert self.sampler is not None
        drawn = np.asarray(self.sampler(rng, n_components, n_columns), dtype=float)
        if drawn.shape != (n_columns, n_components) or not np.all(np.isfinite(drawn)):
            raise ValueError(
                f"The sampler of a SpectralKernel must return finite numbers of shape (n_columns, n_components) = "
                f"({n_columns}, {n_components}); it returned shape {drawn.shape}."
            )
        return drawn / self.scale(n_columns)[:, None]

    def _standard_frequencies(self, normal: Array, mixing: Array) -> Array:
        raise NotImplementedError
