"""A vectorised cosine for random Fourier features:  scale * cos(z + phase), compiled by numba.

A fit evaluates billions of cosines, and numpy's is a careful scalar routine. Here, with k = round(z / pi) and the
reduced argument r = z - k pi in [-pi/2, pi/2],

    cos(z) = (-1)^k cos(r) = (-1)^k p(r^2),

where the polynomial p of degree 7 is exact to 1e-14. The product k pi is subtracted in three parts (Cody-Waite argument
reduction), so that no digits are lost for |z| up to a million. The loop has no branches, so the compiler turns it into
vector instructions. It is compiled on first use and cached on disk.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from quernel._compile import compiled

# pi = PI_1 + PI_2 + PI_3; the first two have so few significant bits (32) that their products with k < 2^20 are exact.
PI_1 = float.fromhex("0x1.921fb54400000p+1")
PI_2 = float.fromhex("0x1.0b4611a600000p-33")
PI_3 = float.fromhex("0x1.3198a2e037073p-68")
INVERSE_PI = 1 / math.pi
# Arguments beyond this need more parts of pi: their line is left to the library's cosine.
MAX_ARGUMENT = 1e6
# p(s) = cos(sqrt(s)) for 0 <= s <= (pi/2)^2: the coefficients, the constant one first, of
# np.polynomial.Chebyshev.interpolate(lambda s: np.cos(np.sqrt(s)), 7, [0, (np.pi / 2) ** 2]).
C0, C1, C2, C3 = 0.9999999999999977, -0.4999999999998856, 0.04166666666573118, -0.0013888888859375104
C4, C5, C6, C7 = 2.4801582689576286e-05, -2.7556925490448287e-07, 2.085804387847153e-09, -1.1004959341669042e-11


@compiled(fastmath={"contract"}, inline="always")
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


@compiled(fastmath={"contract"})
def scaled_cosine(z: Any, phase: Any, scale: Any, out: Any) -> None:
    """out[i, j] = scale[j] * cos(z[i, j] + phase[j]); `out` may be `z` itself, or of another floating type."""
    line = np.empty(z.shape[1])
    for i in range(len(z)):
        for j in range(len(line)):
            line[j] = z[i, j] + phase[j]
        _write(line, scale, out, i)


@compiled(fastmath={"contract"})
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
