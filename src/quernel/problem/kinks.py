"""The row steps of a loss that is two lines meeting at 0, each in one compiled pass over one column.

The smoothed slope of such a loss is  v = clip(r / width + anchor, low, high),  its conjugate is 0 on [low, high], and
its value is  max(low r, high r).  Written with array operations a step takes ten passes, which for long columns is most
of a Newton iteration. Compiled on first use and cached on disk.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from quernel.problem.sweeps import FAST


@njit(cache=True, nogil=True, fastmath=FAST)
def pull_column(
    residual: Any, anchor: Any, share: Any, turned: Any, low: float, high: float, width: float, weighted: Any
) -> tuple[float, float, float, float, int]:
    """Fill weighted = turned v (turned = share sign); sum it, its positive part, loss and slack; count the free."""
    balance, positive, loss, slack, active = 0.0, 0.0, 0.0, 0.0, 0
    scale = 1 / width
    for i in range(len(residual)):
        r = residual[i]
        line = r * scale + anchor[i]
        v = min(max(line, low), high)
        value = max(low * r, high * r)
        w = turned[i] * v
        weighted[i] = w
        balance += w
        positive += max(w, 0.0)
        loss += share[i] * value
        slack += share[i] * (value - v * r)
        active += (line > low) & (line < high)  # strictly: an anchor at the end of the box is clipped
    return balance, positive, loss, slack, active


@njit(cache=True, nogil=True, fastmath=FAST)
def probe_column(
    residual: Any, anchor: Any, change: Any, share: Any, low: float, high: float, width: float, step: float
) -> tuple[float, float]:
    """Slope and curvature of the smoothed mean loss at residual - step change."""
    slope, bend = 0.0, 0.0
    scale = 1 / width
    for i in range(len(residual)):
        c = change[i]
        line = (residual[i] - step * c) * scale + anchor[i]
        weighted = share[i] * c
        slope -= weighted * min(max(line, low), high)
        bend += weighted * c if (line > low) & (line < high) else 0.0
    return slope, bend * scale


@njit(cache=True, nogil=True)
def active_rows(at: Any, anchor: Any, low: float, high: float, width: float) -> Any:
    """The rows whose v is not clipped, at these residuals."""
    scale = 1 / width
    found, count = np.empty(len(at), np.intp), 0
    for i in range(len(at)):
        line = at[i] * scale + anchor[i]
        found[count] = i
        count += (line > low) & (line < high)
    return found[:count]
