"""Independent draws from the kernel's own measure: the paper's uniform sampling."""

from __future__ import annotations

import numpy as np

from quernel.features.sampling.draw import Array
from quernel.kernels import IntegralKernel
from quernel.kernels.base import stream


def uniform(kernel: IntegralKernel, rng: np.random.Generator, n_components: int, n_columns: int) -> tuple[Array, Array]:
    """Frequencies and phases, all independent; under one seed, those for M are the first M of those for more."""
    frequencies = kernel.frequencies(stream(rng), n_components, n_columns)
    return frequencies, kernel.phases_at(stream(rng).random(n_components))
