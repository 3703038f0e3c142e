"""scale * cos(z + phase), in place and fast.

numpy's cosine is a careful scalar routine, and feature maps need billions of them. With k = round(z / pi) and
r = z - k pi, taken in three parts so that nothing is lost for |z| up to a million,  cos(z) = (-1)^k cos(r);  on
[-pi/2, pi/2] a polynomial of degree 7 in r^2 is exact to 1e-14. The loop has no branches, so the compiler turns it
into vector instructions. It is compiled on first use and cached on disk.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

# pi in three parts; the first two have 32 bits, so that their products with k < 2^20 are exact.
PI_1 = float.fromhex("0x1.921fb54400000p+1")
PI_2 = float.fromhex("0x1.0b4611a600000p-33")
PI_3 = float.fromhex("0x1.3198a2e037073p-68")
INVERSE_PI = 1 / math.pi
# Beyond this the three parts no longer suffice, and the library's own cosine is used.
LARGEST = 1e6
# cos(sqrt(s)) for s up to (pi/2)^2, interpolated at Chebyshev's points.
_POLYNOMIAL = np.polynomial.Chebyshev.interpolate(lambda s: np.cos(np.sqrt(s)), 7, [0, (math.pi / 2) ** 2])
C0, C1, C2, C3, C4, C5, C6, C7 = _POLYNOMIAL.convert(kind=np.polynomial.Polynomial).coef.tolist()


@njit(cache=True, nogil=True, fastmath={"contract"}, inline="always")
def _write(line: Any, scale: Any, out: Any, i: int) -> None:
    """out[i] = scale * cos(line)."""
    too_large = 0  # counted rather than compared with the maximum, which the compiler would take one by one
    for j in range(len(line)):
        too_large += abs(line[j]) > LARGEST
    if too_large == 0:
        for j in range(len(line)):
            k = np.rint(line[j] * INVERSE_PI)
            r = ((line[j] - k * PI_1) - k * PI_2) - k * PI_3
            s = r * r
            cosine = C0 + s * (C1 + s * (C2 + s * (C3 + s * (C4 + s * (C5 + s * (C6 + s * C7))))))
            half = 0.5 * k
            out[i, j] = scale[j] * (1.0 - 4.0 * (half - np.floor(half))) * cosine  # minus for odd k
    else:
        for j in range(len(line)):
            out[i, j] = scale[j] * math.cos(line[j])


@njit(cache=True, nogil=True, fastmath={"contract"})
def scaled_cosine(z: Any, phase: Any, scale: Any, out: Any) -> None:
    """out[i, j] = scale[j] * cos(z[i, j] + phase[j]); `out` may be `z`, or of another floating type."""
    line = np.empty(z.shape[1])
    for i in range(len(z)):
        for j in range(len(line)):
            line[j] = z[i, j] + phase[j]
        _write(line, scale, out, i)


@njit(cache=True, nogil=True, fastmath={"contract"})
def scaled_cosine_of_few(X: Any, frequencies: Any, phase: Any, scale: Any, out: Any) -> None:
    """scale * cos(X @ frequencies + phase) for few columns of X, whose products need no matrix of their own."""
    line = np.empty(frequencies.shape[1])
    for i in range(len(X)):
        line[:] = phase
        for a in range(X.shape[1]):
            x = X[i, a]
            for j in range(len(line)):
                line[j] += x * frequencies[a, j]
        _write(line, scale, out, i)
