"""Frequencies that are orthogonal within blocks of d: directions that do not repeat one another.

A block of normal numbers is a random rotation whose columns are given the lengths of independent normal vectors. Each
column alone is then exactly normal, so each frequency made of it follows exactly the kernel's measure, and the features
stay unbiased: also where the measure is no normal law (Matern, Cauchy: one random scale per frequency) or has no
rotations (Laplacian: one per entry). Waves come in pairs of cosine and sine: on Gaussian, Matern and Cauchy kernels in
5 and 20 columns the squared error was 0.25 to 0.75 of that of uniform sampling with pairs, and 0.7 to 0.9 without.
"""

from __future__ import annotations

import numpy as np

from quernel.features.sampling.draw import Array, in_pairs
from quernel.kernels import IntegralKernel


def orthogonal(
    kernel: IntegralKernel, rng: np.random.Generator, n_components: int, n_columns: int
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
