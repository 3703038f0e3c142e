"""Values that many targets share: counts, amounts that are mostly zero, prices that end in 99.

The quantile of such a target often is one of them, over a whole stretch of x. The fit is there but for rounding and
tiny waves, and whether a row lies on a curve or just below it would be left to chance. So curves that are all but there
are put there exactly.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating]

# A value is frequent if this part of the rows has it, judged on so many of them.
PART, ROWS = 0.01, 20_000
# What counts as being there, relative to the spread of y. Fitted to counts, curves that stay on a value do so to 1e-9
# where a column or two tell little, and to 1e-4 between rows of more columns.
NEAR = 1e-4


def frequent_values(X: Array, y: Array, share: Array) -> Array:
    """The values that at least one row in a hundred has, and rows of different x, ascending."""
    X, y, share = X[share > 0], y[share > 0], share[share > 0]
    values, first, place = np.unique(y, return_index=True, return_inverse=True)
    often = np.bincount(place, share) >= PART * share.sum()
    rows = np.flatnonzero(often[place])
    # A row that is given twice is no more than a row of twice the weight.
    elsewhere = np.any(X[rows] != X[first[place[rows]]], axis=1)
    return values[np.unique(place[rows[elsewhere]])]


def snapped(curves: Array, values: Array, near: float) -> Array:
    """The curves, and where they are as near as this to one of the values (ascending), the value."""
    if len(values) == 0:
        return curves
    above = np.searchsorted(values, curves)
    low, high = values[np.maximum(above - 1, 0)], values[np.minimum(above, len(values) - 1)]
    nearest = np.where(np.abs(curves - low) <= np.abs(high - curves), low, high)
    return np.where(np.abs(nearest - curves) <= near, nearest, curves)
