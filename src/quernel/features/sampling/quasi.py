"""Quasi-random frequencies: a scrambled Sobol sequence through the inverse law of the kernel's measure.

Every point of a scrambled sequence is uniform on the cube, so the features stay unbiased; together the points fill it
evenly. Waves come in pairs of cosine and sine, one random phase to each pair: in 5 and 20 columns (M = 2d to 10d) and
in 1 the squared error of the Gaussian kernel was 0.4 to 0.9 and 0.03 to 0.15 of that of uniform sampling, against 0.5
to 0.8 and 0.1 to 0.3 with phases from one more coordinate of the sequence. A Halton sequence does as well for few
points and worse for many.
"""

from __future__ import annotations

import numpy as np
from scipy.stats import qmc

from quernel.features.sampling.draw import Array, in_pairs
from quernel.kernels import IntegralKernel

BITS = 52


def quasi(kernel: IntegralKernel, rng: np.random.Generator, n_components: int, n_columns: int) -> tuple[Array, Array]:
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
