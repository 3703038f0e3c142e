"""scale * cos(z + phase), in place and fast.

numpy's cosine is a careful scalar routine, and feature maps need billions of them. With k = round(z / pi) and
r = z - k pi, taken in three parts so that nothing is lost for |z| up to a million,  cos(z) = (-1)^k cos(r);  on
[-pi/2, pi/2] the Taylor polynomial of degree 18 is exact to 4e-15. The loop has no branches, so the compiler turns it
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
# (-1)^i / (2i)!
C1, C2, C3, C4, C5, C6, C7, C8, C9 = ((-1) ** i / math.factorial(2 * i) for i in range(1, 10))


@njit(cache=True, nogil=True, fastmath={"contract"})
def scaled_cosine(z: Any, phase: Any, scale: float, out: Any) -> None:
    """out[i, j] = scale * cos(z[i, j] + phase[j]); `out` may be `z`, or of another floating type."""
    rows, columns = z.shape
    line = np.empty(columns)
    for i in range(rows):
        largest = 0.0
        for j in range(columns):
            line[j] = z[i, j] + phase[j]
            largest = max(largest, abs(line[j]))
        if largest < LARGEST:
            for j in range(columns):
                k = np.rint(line[j] * INVERSE_PI)
                r = ((line[j] - k * PI_1) - k * PI_2) - k * PI_3
                s = r * r
                high = C5 + s * (C6 + s * (C7 + s * (C8 + s * C9)))
                cosine = 1.0 + s * (C1 + s * (C2 + s * (C3 + s * (C4 + s * high))))
                odd = k - 2.0 * np.floor(0.5 * k)
                out[i, j] = scale * (1.0 - 2.0 * odd) * cosine
        else:
            for j in range(columns):
                out[i, j] = scale * math.cos(line[j])
