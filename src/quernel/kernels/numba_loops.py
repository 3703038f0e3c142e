"""Compiled loops of shift-invariant kernels: the cosine of random features, and distances between rows.

`fourier` says how the cosine works, and has the same with numpy.

The loops have no branches, so the compiler turns them into vector instructions. It may not contract products and sums
to fused operations (no fastmath): the bits are those of `fourier`. (numba's cache on disk notices changes of this file
only: whoever changes the constants in `fourier` changes something here, too.)

Distances are those of scipy's `cdist`, to the bit, in less than half of its time. Landmarks are columns here, so that
the inner loop runs over them with vector instructions. Differences are added up column by column, as in `cdist`.
"""

from __future__ import annotations

import math

import numpy as np

from quernel._compile import compiled
from quernel.kernels.fourier import C0, C1, C2, C3, C4, C5, C6, C7, INVERSE_PI, MAX_ARGUMENT, PI_1, PI_2, Array

# Adding it rounds a number below 2^51 to an integer, whose parity is then the last bit: rint and (-1)^k for the price
# of an addition.
ROUNDING = 1.5 * 2**52


@compiled(inline="always")
def _write(line: Array, n_too_large: int, scale: Array, out: Array, i: int) -> None:
    """out[i] = scale * cos(line), for one row of angles, so many of which are beyond MAX_ARGUMENT."""
    if n_too_large == 0:
        for j in range(len(line)):
            shifted = line[j] * INVERSE_PI + ROUNDING
            k = shifted - ROUNDING
            r = (line[j] - k * PI_1) - k * PI_2
            s = r * r
            cosine = C0 + s * (C1 + s * (C2 + s * (C3 + s * (C4 + s * (C5 + s * (C6 + s * C7))))))
            sign = np.float64(shifted).view(np.int64) << 63
            out[i, j] = np.int64(np.float64(scale[j] * cosine).view(np.int64) ^ sign).view(np.float64)
    else:
        for j in range(len(line)):
            out[i, j] = scale[j] * math.cos(line[j])


@compiled()
def scaled_cosine(z: Array, phase: Array, scale: Array, out: Array) -> None:
    """out[i, j] = scale[j] * cos(z[i, j] + phase[j]); `out` may be `z` itself, or of another floating type."""
    line = np.empty(z.shape[1])
    for i in range(len(z)):
        n_too_large = 0  # a count is vectorised; a maximum would not be
        for j in range(len(line)):
            angle = z[i, j] + phase[j]
            line[j] = angle
            n_too_large += abs(angle) > MAX_ARGUMENT
        _write(line, n_too_large, scale, out, i)


@compiled()
def scaled_cosine_fused(X: Array, frequencies: Array, phase: Array, scale: Array, out: Array) -> None:
    """out = scale * cos(X @ frequencies + phase), for X with few columns: a row of the product is computed on the fly.

    Saves writing and reading the (n, M) matrix of angles, which for few columns costs more than the product itself.
    """
    line = np.empty(frequencies.shape[1])
    for i in range(len(X)):
        for j in range(len(line)):
            line[j] = phase[j] + X[i, 0] * frequencies[0, j]
        for a in range(1, X.shape[1]):
            x = X[i, a]
            for j in range(len(line)):
                line[j] += x * frequencies[a, j]
        n_too_large = 0
        for j in range(len(line)):
            n_too_large += abs(line[j]) > MAX_ARGUMENT
        _write(line, n_too_large, scale, out, i)


@compiled()
def fill_distances(X: Array, Z: Array, squared: bool, out: Array) -> None:
    """out[i, k] = sum_j (x_ij - z_jk)^2,  or of the absolute differences; X (n, d), Z (d, m), out (n, m)."""
    for i in range(len(X)):
        line = out[i]
        line[:] = 0.0
        for j in range(len(Z)):
            x, z = X[i, j], Z[j]
            if squared:
                for k in range(len(line)):
                    line[k] += (x - z[k]) * (x - z[k])
            else:
                for k in range(len(line)):
                    line[k] += abs(x - z[k])
