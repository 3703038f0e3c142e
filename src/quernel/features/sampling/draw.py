"""Data-independent draws of random features: independent, orthogonal or quasi-random frequencies.

A `Draw` holds the random numbers of M features and evaluates them. A strategy draws frequencies and phases for one
kernel; `draw_features` applies it to every summand of a sum of kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.stats import qmc

from quernel.kernels import Kernel, RandomFeatureKernel, ShiftInvariantKernel
from quernel.kernels.base import spawn_rng

Array = NDArray[np.floating]
Index = NDArray[np.intp]
# (kernel, rng, n_components, n_columns) -> frequencies (d, M) and phases (M,).
Strategy = Callable[[RandomFeatureKernel, np.random.Generator, int, int], tuple[Array, Array]]


@dataclass(frozen=True, eq=False)
class Draw:
    """The random numbers of M features  phi_m(x) = weight_m wave(x, frequency_m, phase_m).

    `wave` is that of the summand of the kernel to which feature m belongs. The weights are such that E Phi Phi' = K,
    the Gram matrix; for one kernel and independent draws they are 1 / sqrt(M).

    Attributes
    ----------
    frequencies : array of shape (d, M)
    phases, weights : arrays of shape (M,)
    terms : array of int of shape (M,)
        Index of the summand of each feature.
    """

    frequencies: Array
    phases: Array
    weights: Array
    terms: Index

    def recenter(self, kernel: Kernel, center: Array | None) -> Draw:
        """Features of x - center, by shifting phases:  cos(w'(x - c) + b) = cos(w'x + (b - w'c)).

        Features of kernels that are not shift-invariant stay as they are.
        """
        if center is None:
            return self
        is_cosine = np.array([isinstance(part, ShiftInvariantKernel) for _, part in kernel.summands])[self.terms]
        shifted = (self.phases - np.asarray(center, dtype=float) @ self.frequencies) % (2 * np.pi)
        return replace(self, phases=np.where(is_cosine, shifted, self.phases))

    def take(self, index: Index, factor: Array) -> Draw:
        """Some of the features, by index, with each weight multiplied by a factor."""
        return Draw(self.frequencies[:, index], self.phases[index], self.weights[index] * factor, self.terms[index])

    def evaluate_unweighted(self, kernel: Kernel, X: Array) -> Array:
        """The features of the rows of X without their weights, shape (n, M)."""
        if len(kernel.summands) == 1:
            return _require_random_features(kernel.summands[0][1]).wave(X, self.frequencies, self.phases)
        Phi = np.empty((len(X), len(self.phases)))
        for term, (_, part) in enumerate(kernel.summands):
            own = self.terms == term
            Phi[:, own] = _require_random_features(part).wave(X, self.frequencies[:, own], self.phases[own])
        return Phi


def draw_features(
    kernel: Kernel, strategy: Strategy, rng: np.random.Generator, n_components: int, n_columns: int
) -> Draw:
    """Draw M features of a kernel; for a sum of kernels, M_k of each in proportion to its coefficient c_k.

    The counts M_k are fixed rather than random (stratified sampling): features of summand k are weighted by
    sqrt(c_k / M_k), so that each summand is estimated without bias by its own features, and no variance comes from the
    counts.
    """
    coefficients = np.array([coefficient for coefficient, _ in kernel.summands])
    counts = allocate_components(coefficients, n_components)
    drawn = [
        strategy(_require_random_features(part), rng, int(count), n_columns)
        for count, (_, part) in zip(counts, kernel.summands, strict=True)
    ]
    return Draw(
        np.ascontiguousarray(np.hstack([frequencies for frequencies, _ in drawn])),
        np.concatenate([phases for _, phases in drawn]),
        np.repeat(np.sqrt(coefficients / counts), counts),
        np.repeat(np.arange(len(counts)), counts),
    )


def allocate_components(coefficients: Array, n_components: int) -> Index:
    """Integers >= 1 that sum to M, as close to proportional to the coefficients as rounding allows.

    One for each summand first, then the rest by the largest-remainder method.
    """
    n = len(coefficients)
    if n_components < n:
        raise ValueError(
            f"A sum of {n} kernels needs at least one random feature for each; got n_components={n_components}."
        )
    exact = (n_components - n) * coefficients / coefficients.sum()
    counts = np.floor(exact).astype(np.intp)
    largest_remainders = np.argsort(counts - exact, kind="stable")[: n_components - n - counts.sum()]
    counts[largest_remainders] += 1
    return counts + 1


def _require_random_features(kernel: Kernel) -> RandomFeatureKernel:
    """The kernel itself, typed; users' kernels were checked by `RandomFeatures.check`."""
    assert isinstance(kernel, RandomFeatureKernel)
    return kernel


def pair_cosine_sine(frequencies: Array, phases: Array, n_components: int) -> tuple[Array, Array]:
    """Use every frequency twice, with phases a quarter turn apart: a cosine and a sine; M = `n_components` in all.

    cos(a) cos(b) + sin(a) sin(b) = cos(a - b) contains no phase, which removes the variance of the phases from
    phi(x)'phi(z).
    """
    phases = np.column_stack([phases, phases - np.pi / 2]).ravel()
    return np.repeat(frequencies, 2, axis=1)[:, :n_components], phases[:n_components]


def draw_uniform(
    kernel: RandomFeatureKernel, rng: np.random.Generator, n_components: int, n_columns: int
) -> tuple[Array, Array]:
    """Independent frequencies and phases; under one seed, those for M are the first M of those for more."""
    frequencies = kernel.frequencies(spawn_rng(rng), n_components, n_columns)
    return frequencies, kernel.phases_at(spawn_rng(rng).random(n_components))


def draw_orthogonal(
    kernel: RandomFeatureKernel, rng: np.random.Generator, n_components: int, n_columns: int
) -> tuple[Array, Array]:
    """Orthogonal random features (Yu et al., 2016); cosine and sine of each frequency where the kernel has both."""
    n_frequencies = (n_components + 1) // 2 if kernel.paired else n_components
    normal = orthogonal_normals(rng, n_columns, n_frequencies)
    frequencies = kernel.frequencies_from(normal, rng.random((kernel.n_mixing(n_columns), n_frequencies)))
    phases = kernel.phases_at(rng.random(n_frequencies))
    return pair_cosine_sine(frequencies, phases, n_components) if kernel.paired else (frequencies, phases)


def orthogonal_normals(rng: np.random.Generator, n_columns: int, n_frequencies: int) -> Array:
    """Columns that are standard normal each, but orthogonal within blocks of d; shape (d, M).

    Orthonormal directions, each multiplied by an independent chi(d) length: that of a standard normal vector.
    """
    block_sizes = [min(n_columns, n_frequencies - start) for start in range(0, n_frequencies, n_columns)]
    directions = np.hstack([_draw_orthonormal(rng, n_columns, size) for size in block_sizes])
    return directions * np.sqrt(rng.chisquare(n_columns, n_frequencies))


def _draw_orthonormal(rng: np.random.Generator, n_columns: int, size: int) -> Array:
    """`size` columns of a uniformly (Haar) distributed random orthogonal matrix, by QR of a Gaussian one."""
    Q, R = np.linalg.qr(rng.standard_normal((n_columns, size)))
    return Q * np.sign(np.diag(R))  # fixes the signs, without which the distribution would depend on the QR algorithm


# Bits of a point of the Sobol sequence; doubles have 53.
SOBOL_BITS = 52


def draw_qmc(
    kernel: RandomFeatureKernel, rng: np.random.Generator, n_components: int, n_columns: int
) -> tuple[Array, Array]:
    """Frequencies at the points of a scrambled Sobol sequence; cosine and sine of each where the kernel has both.

    For kernels without pairs the phase is one more dimension of the sequence.
    """
    if kernel.paired:
        n_frequencies = (n_components + 1) // 2
        points = draw_sobol(rng, n_frequencies, kernel.cube_dimension(n_columns))
        phases = kernel.phases_at(rng.random(n_frequencies))
        return pair_cosine_sine(kernel.frequencies_at(points, n_columns), phases, n_components)
    *cube, last = draw_sobol(rng, n_components, kernel.cube_dimension(n_columns) + 1)
    return kernel.frequencies_at(np.array(cube), n_columns), kernel.phases_at(last)


def draw_sobol(rng: np.random.Generator, n_points: int, dimension: int) -> Array:
    """The first points of a scrambled Sobol sequence in the open unit cube, shape (dimension, n_points).

    Points are kept off the faces of the cube, where inverse distribution functions are infinite.
    """
    if dimension > qmc.Sobol.MAXDIM:
        raise ValueError(
            f"sampling='qmc' needs a sequence in {dimension} dimensions, and {qmc.Sobol.MAXDIM} is the most there is. "
            "Use sampling='orthogonal'."
        )
    sequence = qmc.Sobol(dimension, scramble=True, bits=SOBOL_BITS, seed=rng)
    points = sequence.random_base2(int(n_points - 1).bit_length())[:n_points]
    return np.clip(points.T, 2.0 ** -(SOBOL_BITS + 1), 1 - 2.0 ** -(SOBOL_BITS + 1))
