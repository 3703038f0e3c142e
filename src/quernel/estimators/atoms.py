"""Values that many targets share: counts, amounts that are mostly zero, prices that end in 99.

The quantile of such a target often is one of them, over a whole stretch of x. The fit is there but for rounding and
tiny waves, and whether a row lies on a curve or just below it would be left to chance. So curves that are all but there
are put there exactly.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating]

# A value is frequent if this part of the rows has it, but for rounding: their order must not matter.
PART, ROUNDING = 0.01, 1e-9
# Rows that are compared at a time.
SOME = 1000
# What counts as being there, relative to the spread of y. Fitted to counts, curves that stay on a value do so to 1e-9
# where a column or two tell little, and to 1e-4 between rows of more columns.
NEAR = 1e-4


def frequent_values(X: Array, y: Array, share: Array) -> Array:
    """The values that at least one row in a hundred has, and rows of different x, ascending."""
    rows = np.flatnonzero(share > 0)
    if not _repeats(y[rows]):
        return np.empty(0)
    order = rows[np.argsort(y[rows])]
    ascending = y[order]
    starts = np.append(0, 1 + np.flatnonzero(ascending[1:] != ascending[:-1]))
    weight = np.add.reduceat(share[order], starts)
    often = np.flatnonzero(weight >= PART * (1 - ROUNDING) * weight.sum())
    stops = np.append(starts[1:], len(order))
    # A row that is given twice is no more than a row of twice the weight.
    return np.array([ascending[starts[k]] for k in often.tolist() if _differ(X, order[starts[k] : stops[k]])])


def _repeats(y: Array) -> bool:
    """Whether any value is there twice; without the places of the values this is soon known."""
    ascending = np.sort(y)
    return bool(np.any(ascending[1:] == ascending[:-1]))


def _differ(X: Array, rows: NDArray[np.intp]) -> bool:
    """Whether not all of these rows are equal; mostly the first few tell."""
    parts = (rows[start : start + SOME] for start in range(0, len(rows), SOME))
    return any(bool(np.any(X[part] != X[rows[0]])) for part in parts)


def snapped(curves: Array, values: Array, near: float) -> Array:
    """The curves, and where they are as near as this to one of the values (ascending), the value."""
    if len(values) == 0:
        return curves
    above = np.searchsorted(values, curves)
    low, high = values[np.maximum(above - 1, 0)], values[np.minimum(above, len(values) - 1)]
    nearest = np.where(np.abs(curves - low) <= np.abs(high - curves), low, high)
    return np.where(np.abs(nearest - curves) <= near, nearest, curves)
