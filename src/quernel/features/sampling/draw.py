"""What was drawn for M features, and how features are made of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.stats import qmc

from quernel.kernels import Kernel, RandomFeatureKernel, ShiftInvariantKernel
from quernel.kernels.base import stream

Array = NDArray[np.floating]
Index = NDArray[np.intp]
# Frequencies (d, M) and phases (M,) of one kernel: how a strategy draws.
Strategy = Callable[[RandomFeatureKernel, np.random.Generator, int, int], tuple[Array, Array]]


@dataclass(frozen=True, eq=False)
class Draw:
    """phi_m(x) = weight_m * wave(x, frequency_m, phase_m), the wave being that of the summand `term_m` of the kernel.

    Shapes: frequencies (d, M), phases (M,), weights (M,), terms (M,). The weights are such that E Phi Phi' = K.
    """

    frequencies: Array
    phases: Array
    weights: Array
    terms: Index

    def centered(self, kernel: Kernel, center: Array | None) -> Draw:
        """Waves of x - center; features that are no waves stay as they are."""
        if center is None:
            return self
        is_wave = np.array([isinstance(part, ShiftInvariantKernel) for _, part in kernel.parts])[self.terms]
        shifted = (self.phases - np.asarray(center, dtype=float) @ self.frequencies) % (2 * np.pi)
        return replace(self, phases=np.where(is_wave, shifted, self.phases))

    def take(self, index: Index, factor: Array) -> Draw:
        """Some of the features, their weights multiplied by a factor each."""
        return Draw(self.frequencies[:, index], self.phases[index], self.weights[index] * factor, self.terms[index])

    def waves(self, kernel: Kernel, X: Array) -> Array:
        """The waves, without their weights, shape (n, M)."""
        if len(kernel.parts) == 1:
            return _integral(kernel.parts[0][1]).wave(X, self.frequencies, self.phases)
        Phi = np.empty((len(X), len(self.phases)))
        for term, (_, part) in enumerate(kernel.parts):
            mine = self.terms == term
            Phi[:, mine] = _integral(part).wave(X, self.frequencies[:, mine], self.phases[mine])
        return Phi


def draw(kernel: Kernel, strategy: Strategy, rng: np.random.Generator, n_components: int, n_columns: int) -> Draw:
    """M features of the kernel, those of a sum shared out in proportion to its coefficients.

    The share of each summand is fixed, not drawn: its features are weighted by sqrt(c_k / M_k), so that every summand
    is met on average by its own, and nothing is lost to a random number of them.
    """
    coefficients = np.array([coefficient for coefficient, _ in kernel.parts])
    counts = shares(coefficients, n_components)
    drawn = [
        strategy(_integral(part), rng, int(count), n_columns)
        for count, (_, part) in zip(counts, kernel.parts, strict=True)
    ]
    return Draw(
        np.ascontiguousarray(np.hstack([frequencies for frequencies, _ in drawn])),
        np.concatenate([phases for _, phases in drawn]),
        np.repeat(np.sqrt(coefficients / counts), counts),
        np.repeat(np.arange(len(counts)), counts),
    )


def shares(coefficients: Array, n_components: int) -> Index:
    """Whole numbers that sum to M, in proportion to the coefficients but at least one each."""
    n = len(coefficients)
    if n_components < n:
        raise ValueError(
            f"A sum of {n} kernels needs at least one random feature for each; got n_components={n_components}."
        )
    wanted = (n_components - n) * coefficients / coefficients.sum()
    counts = np.floor(wanted).astype(np.intp)
    most_wanting = np.argsort(counts - wanted, kind="stable")[: n_components - n - counts.sum()]
    counts[most_wanting] += 1
    return counts + 1


def _integral(kernel: Kernel) -> RandomFeatureKernel:
    assert isinstance(kernel, RandomFeatureKernel)
    return kernel


def in_pairs(frequencies: Array, phases: Array, n_components: int) -> tuple[Array, Array]:
    """Every frequency twice, with phases a quarter turn apart: cosine and sine, whose products hold no phase at all."""
    phases = np.column_stack([phases, phases - np.pi / 2]).ravel()
    return np.repeat(frequencies, 2, axis=1)[:, :n_components], phases[:n_components]


def uniform(
    kernel: RandomFeatureKernel, rng: np.random.Generator, n_components: int, n_columns: int
) -> tuple[Array, Array]:
    """Frequencies and phases, all independent; under one seed, those for M are the first M of those for more."""
    frequencies = kernel.frequencies(stream(rng), n_components, n_columns)
    return frequencies, kernel.phases_at(stream(rng).random(n_components))


def orthogonal(
    kernel: RandomFeatureKernel, rng: np.random.Generator, n_components: int, n_columns: int
) -> tuple[Array, Array]:
    """Frequencies of block-orthogonal normals; cosine and sine of each where the kernel has both."""
    n_frequencies = (n_components + 1) // 2 if kernel.paired else n_components
    normal = orthogonal_normals(rng, n_columns, n_frequencies)
    frequencies = kernel.frequencies_from(normal, rng.random((kernel.n_mixing(n_columns), n_frequencies)))
    phases = kernel.phases_at(rng.random(n_frequencies))
    return in_pairs(frequencies, phases, n_components) if kernel.paired else (frequencies, phases)


def orthogonal_normals(rng: np.random.Generator, n_columns: int, n_frequencies: int) -> Array:
    """Columns that are standard normal each, and orthogonal to the others of their block; shape (d, M)."""
    sizes = [min(n_columns, n_frequencies - start) for start in range(0, n_frequencies, n_columns)]
    directions = np.hstack([_directions(rng, n_columns, size) for size in sizes])
    return directions * np.sqrt(rng.chisquare(n_columns, n_frequencies))


def _directions(rng: np.random.Generator, n_columns: int, size: int) -> Array:
    """`size` columns of a random rotation."""
    Q, R = np.linalg.qr(rng.standard_normal((n_columns, size)))
    return Q * np.sign(np.diag(R))  # without the signs the law of Q would depend on how QR is computed


BITS = 52


def quasi(
    kernel: RandomFeatureKernel, rng: np.random.Generator, n_components: int, n_columns: int
) -> tuple[Array, Array]:
    """Frequencies at points of the sequence; cosine and sine of each where the kernel has both."""
    if kernel.paired:
        n_frequencies = (n_components + 1) // 2
        points = sobol(rng, n_frequencies, kernel.cube_dimension(n_columns))
        phases = kernel.phases_at(rng.random(n_frequencies))
        return in_pairs(kernel.frequencies_at(points, n_columns), phases, n_components)
    *cube, last = sobol(rng, n_components, kernel.cube_dimension(n_columns) + 1)
    return kernel.frequencies_at(np.array(cube), n_columns), kernel.phases_at(last)


def sobol(rng: np.random.Generator, n_points: int, dimension: int) -> Array:
    """The first points of a scrambled Sobol sequence in the open unit cube, shape (dimension, n_points)."""
    if dimension > qmc.Sobol.MAXDIM:
        raise ValueError(
            f"sampling='qmc' needs a sequence in {dimension} dimensions, and {qmc.Sobol.MAXDIM} is the most there is. "
            "Use sampling='orthogonal'."
        )
    sequence = qmc.Sobol(dimension, scramble=True, bits=BITS, seed=rng)
    points = sequence.random_base2(int(n_points - 1).bit_length())[:n_points]
    return np.clip(points.T, 2.0 ** -(BITS + 1), 1 - 2.0 ** -(BITS + 1))
