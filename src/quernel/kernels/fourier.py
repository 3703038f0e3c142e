"""Shift-invariant kernels, each with its Gram matrix and its spectral measure.

By Bochner's theorem a shift-invariant kernel with K(x, x) = 1 is the characteristic function of a probability measure,
its spectral measure:

    K(x, z) = E cos(w'(x - z)),      w ~ spectral measure.

`gram` evaluates the left side and `frequencies` draws from the right; a test compares the two. The spectral measures
of the named kernels are scale mixtures of normals: normal (Gaussian kernel), Student t (Matern), Cauchy (Laplacian),
Laplace (Cauchy kernel). Every kernel measures distance after dividing each column by its bandwidth.

Random Fourier features  scale * cos(z + phase)  have a cosine of their own (`scaled_cosine`), whose bits depend on its
arguments only. A fit evaluates billions of cosines, and numpy's is a careful scalar routine. Here, with
k = round(z / pi) and the reduced argument r = z - k pi in [-pi/2, pi/2],

    cos(z) = (-1)^k cos(r) = (-1)^k p(r^2),

where the polynomial p of degree 7 is exact to 1e-14. The product k pi is subtracted in two parts (Cody-Waite argument
reduction), so that no digits are lost for |z| up to a million.

It is written twice: here with numpy, and in `numba_loops` as a compiled loop, much faster once numba is loaded. Both
do the same operations in the same order and round each by itself (no fused multiply-add), so that the features of a row
are the same bits whichever computes them.
"""

from __future__ import annotations

import math
import sys
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import ModuleType
from typing import ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial.distance import cdist
from scipy.special import chdtri, ndtri

from quernel._machine import strips
from quernel.kernels.base import RandomFeatureKernel

Array = NDArray[np.floating]

# Step in log bandwidth of the central differences that stand in for an unknown derivative.
DIFFERENCE_STEP = 1e-4
# Differences between entries from which it pays to load the compiled distances, if numba is loaded and if it is not.
COMPILE_FROM, IMPORT_FROM = 200_000_000, 5_000_000_000
COMPILED_METRICS = ("sqeuclidean", "cityblock")
# pi = PI_1 + PI_2; the first has so few significant bits (32) that its products with k < 2^20 are exact, the second is
# so small that the rounding of its products does not matter.
PI_1 = float.fromhex("0x1.921fb54400000p+1")
PI_2 = float.fromhex("0x1.0b4611a626331p-33")
INVERSE_PI = 1 / math.pi
# Arguments beyond this need more parts of pi: their line is left to the library's cosine.
MAX_ARGUMENT = 1e6
# p(s) = cos(sqrt(s)) for 0 <= s <= (pi/2)^2: the coefficients, the constant one first, of
# np.polynomial.Chebyshev.interpolate(lambda s: np.cos(np.sqrt(s)), 7, [0, (np.pi / 2) ** 2]).
C0, C1, C2, C3 = 0.9999999999999977, -0.4999999999998856, 0.04166666666573118, -0.0013888888859375104
C4, C5, C6, C7 = 2.4801582689576286e-05, -2.7556925490448287e-07, 2.085804387847153e-09, -1.1004959341669042e-11
# The module `numba_loops`, once loaded: the same bits as `cdist`, sooner.
_compiled: ModuleType | None = None


def prepare_distances(n_rows: int, n_others: int, n_columns: int) -> None:
    """Load the compiled distances if that pays for these sizes, in one call of `gram` or in many."""
    global _compiled
    least = COMPILE_FROM if "numba" in sys.modules else IMPORT_FROM
    if _compiled is None and n_rows * n_others * n_columns >= least:
        from quernel.kernels import numba_loops

        _compiled = numba_loops


@dataclass(frozen=True, eq=False)
class ShiftInvariantKernel(RandomFeatureKernel):
    """Base class of shift-invariant kernels  K(x, z) = k((x - z) / bandwidth)  with k(0) = 1.

    A subclass implements `gram` and `_standard_frequencies`, the spectral measure at bandwidth 1.

    Parameters
    ----------
    bandwidth : float, one float per column, or None
        The length scale: the distance at which the kernel has clearly decayed, in the units of the columns. None leaves
        the choice to the estimator; without an estimator, None means 1.
    """

    paired: ClassVar[bool] = True
    bandwidth: ArrayLike | None = None

    def __post_init__(self) -> None:
        if self.bandwidth is None:
            return
        try:
            width = np.array(self.bandwidth, dtype=float)  # a copy, because the caller's array may change
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
        """True: every shift-invariant kernel has a bandwidth."""
        return True

    @property
    def has_free_bandwidth(self) -> bool:
        """Whether the bandwidth is None."""
        return self.bandwidth is None

    def with_bandwidth(self, bandwidth: ArrayLike) -> Self:
        """A copy of the kernel with this bandwidth."""
        return replace(self, bandwidth=bandwidth)

    def scale(self, n_columns: int) -> Array:
        """The bandwidth as an array with one entry per column, shape (n_columns,)."""
        width = np.asarray(1.0 if self.bandwidth is None else self.bandwidth, dtype=float)
        if width.ndim == 1 and len(width) != n_columns:
            raise ValueError(
                f"bandwidth has {len(width)} entries but X has {n_columns} columns; give one number or one per column."
            )
        return np.broadcast_to(width, (n_columns,))

    def check_columns(self, n_columns: int) -> None:
        """Raise a ValueError if there are several bandwidths, but not one per column."""
        self.scale(n_columns)

    def _distance(self, X: Array, Z: Array, metric: str) -> Array:
        """Distances of the rows in units of the bandwidth, shape (len(X), len(Z)).

        Differences are taken entry by entry: the expansion |x|^2 + |z|^2 - 2x'z is faster, but cancellation would lose
        the small distances that pivoted Cholesky depends on.
        """
        scale = self.scale(X.shape[1])
        rows, others = np.asarray(X, dtype=float) / scale, np.asarray(Z, dtype=float) / scale
        if _compiled is None or metric not in COMPILED_METRICS:
            return cdist(rows, others, metric)
        distance = np.empty((len(rows), len(others)))
        columns = np.ascontiguousarray(others.T)
        _compiled.fill_distances(np.ascontiguousarray(rows), columns, metric == "sqeuclidean", distance)
        return distance

    def diagonal(self, X: Array) -> Array:
        """K(x, x) = 1."""
        return np.ones(len(X))

    def bandwidth_gradient(self, X: Array, weight: Array) -> Array:
        """Gradient of  sum_ik weight_ik K(x_i, x_k)  in the logarithms of the columns' bandwidths, shape (d,).

        Here by central differences, at the price of two Gram matrices per column; the library's kernels override it by
        formulas.
        """
        width, gradient = self.scale(X.shape[1]), np.empty(X.shape[1])
        for j, step in enumerate(DIFFERENCE_STEP * np.eye(X.shape[1])):
            wider, narrower = (self.with_bandwidth(width * np.exp(sign * step)).gram(X, X) for sign in (1, -1))
            gradient[j] = np.sum(weight * (wider - narrower)) / (2 * DIFFERENCE_STEP)
        return gradient

    def wave(self, X: Array, frequencies: Array, phases: Array) -> Array:
        """Random Fourier features  sqrt(2) cos(w'x + b),  shape (len(X), M)."""
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
        """Frequencies (d, M) at bandwidth 1, from standard normal numbers (d, M) and uniform ones (n_mixing(d), M)."""


def _pair_blocks(rows: Array, weight: Array) -> Iterator[tuple[Array, Array, Array]]:
    """Blocks of  sum_ik weight_ik f(x_i, x_k)  for symmetric f: rows (b, d), rows (c, d) and weights (b, c) of pairs.

    They cover the pairs with i >= k, and stay in cache. Other pairs are covered by adding their weight to these.
    """
    for strip in strips(len(rows), 4 * len(rows)):  # two or three arrays of a block are in use at a time
        both = np.array(weight[strip, : strip.stop], dtype=float)
        both[:, : strip.start] += weight[: strip.start, strip].T
        yield rows[strip], rows[: strip.stop], both


class RadialKernel(ShiftInvariantKernel):
    """A kernel that depends only on the squared distance s's, with s = (x - z) / bandwidth."""

    @abstractmethod
    def _radial_derivative(self, squared: Array) -> Array:
        """-2 dK / d(s's)  at the squared distances s's."""

    def bandwidth_gradient(self, X: Array, weight: Array) -> Array:
        """By the chain rule,  dK / dlog bandwidth_j = -2 dK / d(s's) s_j^2.

        With D the weighted derivatives,  sum_ik D_ik (a_i - b_k)^2  is  sum_i (sum_k D_ik) a_i^2 +
        sum_k (sum_i D_ik) b_k^2 - 2 a'D b  for each column: two matrix products for all columns.
        """
        scaled = np.asarray(X, dtype=float) / self.scale(X.shape[1])
        scaled -= scaled.mean(axis=0)  # the expansion of (a - b)^2 loses digits far from 0
        gradient = np.zeros(X.shape[1])
        for a, b, derivative in _pair_blocks(scaled, weight):
            derivative *= self._radial_derivative(cdist(a, b, "sqeuclidean"))
            gradient += derivative.sum(axis=1) @ a**2 + derivative.sum(axis=0) @ b**2
            gradient -= 2 * np.sum(a * (derivative @ b), axis=0)
        return gradient


@dataclass(frozen=True, eq=False)
class Gaussian(RadialKernel):
    """Gaussian (RBF) kernel  K(x, z) = exp(-|x - z|^2 / (2 bandwidth^2)).  Its spectral measure is normal."""

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
    """Laplacian kernel  K(x, z) = exp(-|x - z|_1 / bandwidth),  with the sum of absolute differences.

    Its spectral measure is a product of Cauchy distributions, one for each column.
    """

    name: ClassVar[str] = "laplacian"
    rough: ClassVar[bool] = True

    def gram(self, X: Array, Z: Array) -> Array:
        """exp(-|x - z|_1) at bandwidth 1."""
        distance = self._distance(X, Z, "cityblock")
        return np.exp(np.negative(distance, out=distance), out=distance)

    def bandwidth_gradient(self, X: Array, weight: Array) -> Array:
        """dK / dlog bandwidth_j = |s_j| K."""
        scaled = np.asarray(X, dtype=float) / self.scale(X.shape[1])
        gradient = np.zeros(X.shape[1])
        for a, b, weighted in _pair_blocks(scaled, weight):
            weighted *= np.exp(-cdist(a, b, "cityblock"))
            distance = np.empty_like(weighted)
            for j, others in enumerate(np.ascontiguousarray(b.T)):
                np.abs(np.subtract(a[:, j, None], others, out=distance), out=distance)
                gradient[j] += np.vdot(weighted, distance)
        return gradient

    def n_mixing(self, n_columns: int) -> int:
        """One for every column: each has a scale of its own."""
        return n_columns

    def _standard_frequencies(self, normal: Array, mixing: Array) -> Array:
        # A standard normal divided by the absolute value of another is Cauchy. So orthogonal normals can be used
        # although the measure is not rotation-invariant: however the normals of two frequencies depend on each other,
        # each frequency for itself has exactly the right distribution.
        return normal / -ndtri(mixing / 2)

    def cube_dimension(self, n_columns: int) -> int:
        """One uniform number for every column suffices."""
        return n_columns

    def frequencies_at(self, uniform: Array, n_columns: int) -> Array:
        """The inverse Cauchy distribution function  tan(pi (u - 1/2))  at bandwidth 1."""
        return np.tan(np.pi * (uniform - 0.5)) / self.scale(n_columns)[:, None]


@dataclass(frozen=True, eq=False)
class Matern(RadialKernel):
    """Matern kernel of smoothness nu = 1/2, 3/2 or 5/2.

    With s = sqrt(2 nu) |x - z| / bandwidth:  exp(-s),  (1 + s) exp(-s),  (1 + s + s^2/3) exp(-s).  Its spectral measure
    is the multivariate t distribution with 2 nu degrees of freedom.

    Parameters
    ----------
    bandwidth : float, one float per column, or None
        As in every shift-invariant kernel.
    nu : {0.5, 1.5, 2.5}, default=1.5
        Smoothness: sample functions of the Gaussian process are differentiable 0, 1 or 2 times.
    """

    name: ClassVar[str] = "matern"
    rough: ClassVar[bool] = True
    nu: float = 1.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nu not in (0.5, 1.5, 2.5):
            raise ValueError(f"nu must be 0.5, 1.5 or 2.5; got {self.nu!r}.")

    def gram(self, X: Array, Z: Array) -> Array:
        """(polynomial of s) exp(-s), s = sqrt(2 nu) |x - z|, at bandwidth 1."""
        s = self._distance(X, Z, "euclidean")
        s *= np.sqrt(2 * self.nu)
        if self.nu == 0.5:
            return np.exp(np.negative(s, out=s), out=s)
        polynomial = 1 + s if self.nu == 1.5 else 1 + s + s**2 / 3
        polynomial *= np.exp(np.negative(s, out=s), out=s)
        return polynomial

    def _radial_derivative(self, squared: Array) -> Array:
        s = np.sqrt(2 * self.nu * squared)
        if self.nu == 0.5:  # infinite at distance 0, where it is multiplied by s_j^2 = 0
            return np.divide(np.exp(-s), s, out=np.zeros_like(s), where=s > 0)
        return (3.0 if self.nu == 1.5 else 5 / 3 * (1 + s)) * np.exp(-s)

    def n_mixing(self, n_columns: int) -> int:  # noqa: ARG002
        """One for all columns."""
        return 1

    def _standard_frequencies(self, normal: Array, mixing: Array) -> Array:
        degrees = 2 * self.nu
        return normal * np.sqrt(degrees / chdtri(degrees, mixing))  # t = normal / sqrt(chi-square / degrees)


@dataclass(frozen=True, eq=False)
class Cauchy(RadialKernel):
    """Cauchy (rational quadratic) kernel  K(x, z) = 1 / (1 + |x - z|^2 / bandwidth^2).

    Its spectral measure is normal with an exponentially distributed variance.
    """

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
        # 1/(1 + d^2) = E exp(-s d^2) with s standard exponential, and exp(-s d^2) is a Gaussian kernel whose
        # frequencies have the variance 2s.
        return normal * np.sqrt(-2 * np.log1p(-mixing))


@dataclass(frozen=True, eq=False)
class SpectralKernel(ShiftInvariantKernel):
    """A kernel given by its spectral measure:  K(x, z) = E cos(w'(x - z) / bandwidth),  with a sampler for w.

    Parameters
    ----------
    bandwidth : float, one float per column, or None
        As in every shift-invariant kernel.
    sampler : callable
        ``sampler(rng, n_components, n_columns)`` returns independent draws of w, shape (n_columns, n_components), from
        a distribution that is symmetric about 0. It must use the generator it is given, and be picklable.
    function : callable or None
        ``function(X, Z)`` returns the Gram matrix at bandwidth 1, if it is known: needed for
        ``n_components="exact"``.

    Notes
    -----
    A sampler supports "uniform" and "leverage" sampling. For the other strategies, write a subclass of
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
        """The user's function of the rows in units of the bandwidth."""
        self.check_diagonal()
        assert self.function is not None
        scale = self.scale(X.shape[1])
        return np.asarray(self.function(np.asarray(X, dtype=float) / scale, np.asarray(Z, dtype=float) / scale))

    def check_diagonal(self) -> None:
        """Raise a ValueError if there is no function for the Gram matrix."""
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


def scaled_cosine(z: Array, phase: Array, scale: Array, out: Array) -> None:
    """out[i, j] = scale[j] * cos(z[i, j] + phase[j]); `out` may be `z` itself, or of another floating type."""
    _write_cosine(z + phase, scale, out)


def scaled_cosine_fused(X: Array, frequencies: Array, phase: Array, scale: Array, out: Array) -> None:
    """out = scale * cos(X @ frequencies + phase), for X with few columns: the product is summed column by column."""
    angle = np.empty(out.shape)
    angle[:] = phase
    for a in range(X.shape[1]):
        angle += X[:, a, None] * frequencies[a]
    _write_cosine(angle, scale, out)


def _write_cosine(angle: Array, scale: Array, out: Array) -> None:
    """out = scale * cos(angle)."""
    with np.errstate(invalid="ignore"):  # infinite angles
        k = np.rint(angle * INVERSE_PI)
        r = angle - k * PI_1
        r -= k * PI_2
        s = r * r
        cosine = s * C7
        for coefficient in (C6, C5, C4, C3, C2, C1):
            cosine += coefficient
            cosine *= s
        cosine += C0
        k *= 0.5
        k -= np.floor(k)
        cosine *= 1.0 - 4.0 * k  # (-1)^k
    for i in np.flatnonzero((np.abs(angle) > MAX_ARGUMENT).any(axis=1)):
        cosine[i] = [math.cos(value) if math.isfinite(value) else math.nan for value in angle[i].tolist()]
    np.multiply(scale, cosine, out=out, casting="same_kind")
