"""The cosine of random Fourier features as a compiled loop; `cosine` says how it works and has the same with numpy.

The loop has no branches, so the compiler turns it into vector instructions. It may not contract products and sums to
fused operations (no fastmath): its bits are those of `cosine`, for which it takes a tenth longer. (numba's cache on
disk notices changes of this file only: whoever changes the constants in `cosine` changes something here, too.)
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from quernel._compile import compiled
from quernel.features.cosine import (
    C0,
    C1,
    C2,
    C3,
    C4,
    C5,
    C6,
    C7,
    INVERSE_PI,
    MAX_ARGUMENT,
    PI_1,
    PI_2,
    PI_3,
)


@compiled(inline="always")
def _write(line: Any, scale: Any, out: Any, i: int) -> None:
    """out[i] = scale * cos(line), for one row of angles."""
    too_large = 0  # a count is vectorised; a maximum would not be
    for j in range(len(line)):
        too_large += abs(line[j]) > MAX_ARGUMENT
    if too_large == 0:
        for j in range(len(line)):
            k = np.rint(line[j] * INVERSE_PI)
            r = ((line[j] - k * PI_1) - k * PI_2) - k * PI_3
            s = r * r
            cosine = C0 + s * (C1 + s * (C2 + s * (C3 + s * (C4 + s * (C5 + s * (C6 + s * C7))))))
            half = 0.5 * k
            out[i, j] = scale[j] * (1.0 - 4.0 * (half - np.floor(half))) * cosine  # (-1)^k without a branch
    else:
        for j in range(len(line)):
            out[i, j] = scale[j] * math.cos(line[j])


@compiled()
def scaled_cosine(z: Any, phase: Any, scale: Any, out: Any) -> None:
    """out[i, j] = scale[j] * cos(z[i, j] + phase[j]); `out` may be `z` itself, or of another floating type."""
    line = np.empty(z.shape[1])
    for i in range(len(z)):
        for j in range(len(line)):
            line[j] = z[i, j] + phase[j]
        _write(line, scale, out, i)


@compiled()
def scaled_cosine_fused(X: Any, frequencies: Any, phase: Any, scale: Any, out: Any) -> None:
    """out = scale * cos(X @ frequencies + phase), for X with few columns: a row of the product is computed on the fly.

    Saves writing and reading the (n, M) matrix of angles, which for few columns costs more than the product itself.
    """
    line = np.empty(frequencies.shape[1])
    for i in range(len(X)):
        line[:] = phase
        for a in range(X.shape[1]):
            x = X[i, a]
            for j in range(len(line)):
                line[j] += x * frequencies[a, j]
        _write(line, scale, out, i)
