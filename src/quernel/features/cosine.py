"""A cosine for random Fourier features,  scale * cos(z + phase),  whose bits depend on its arguments only.

A fit evaluates billions of cosines, and numpy's is a careful scalar routine. Here, with k = round(z / pi) and the
reduced argument r = z - k pi in [-pi/2, pi/2],

    cos(z) = (-1)^k cos(r) = (-1)^k p(r^2),

where the polynomial p of degree 7 is exact to 1e-14. The product k pi is subtracted in two parts (Cody-Waite argument
reduction), so that no digits are lost for |z| up to a million.

It is written twice: here with numpy, and in `numba_cosine` as a compiled loop, much faster once numba is loaded. Both
do the same operations in the same order and round each by itself (no fused multiply-add), so that the features of a row
are the same bits whichever computes them.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating]

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


def scaled_cosine(z: Array, phase: Array, scale: Array, out: Array) -> None:
    """out[i, j] = scale[j] * cos(z[i, j] + phase[j]); `out` may be `z` itself, or of another floating type."""
    _write(z + phase, scale, out)


def scaled_cosine_fused(X: Array, frequencies: Array, phase: Array, scale: Array, out: Array) -> None:
    """out = scale * cos(X @ frequencies + phase), for X with few columns: the product is summed column by column."""
    angle = np.empty(out.shape)
    angle[:] = phase
    for a in range(X.shape[1]):
        angle += X[:, a, None] * frequencies[a]
    _write(angle, scale, out)


def _write(angle: Array, scale: Array, out: Array) -> None:
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
