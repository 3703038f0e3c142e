"""Compiled probe of the line search for non-crossing levels."""

from __future__ import annotations

from typing import Any

from numba import njit


@njit(cache=True, nogil=True)
def probe_levels(
    y: Any,
    share: Any,
    constraint_weight: Any,
    levels: Any,
    curves: Any,
    change: Any,
    v: Any,
    m: Any,
    width: float,
    length: float,
) -> tuple[float, float]:
    """First and second derivative of the smoothed losses and constraints along a direction, at step `length`.

    curves and change are (N, q), the multipliers v (N, q) and m (N, q - 1).
    """
    slope, curvature, q = 0.0, 0.0, len(levels)
    for i in range(len(y)):
        for k in range(q):
            here, moved = curves[i, k] + length * change[i, k], change[i, k]
            line = (y[i] - here) / width + v[i, k]
            if levels[k] - 1 < line < levels[k]:
                curvature += share[i] * moved * moved / width
            slope -= share[i] * min(max(line, levels[k] - 1), levels[k]) * moved
            if k + 1 < q:
                pressure = (here - curves[i, k + 1] - length * change[i, k + 1]) / width + m[i, k]
                if pressure > 0:
                    closing = moved - change[i, k + 1]
                    slope += constraint_weight[i] * pressure * closing
                    curvature += constraint_weight[i] * closing * closing / width
    return slope, curvature
