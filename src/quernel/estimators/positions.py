"""Splits of all rows that were given, as positions among those that count."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Index = NDArray[np.intp]


def placed(splits: Iterable[tuple[Any, Any]], counts: NDArray[np.bool_]) -> list[tuple[Index, Index]]:
    """Pairs of train and test, checked, as positions among the rows that count.

    Splitters see all rows, also those of weight 0 that are left out of any fit: positions are those of the table.
    """
    place, found = np.cumsum(counts) - 1, []
    for k, pair in enumerate(splits):
        train, test = (place[part[counts[part]]] for part in (_checked(part, len(counts)) for part in pair))
        if len(train) == 0 or len(test) == 0:
            raise ValueError(
                f"Split {k} of cv has {len(train)} rows to fit and {len(test)} to judge by; none may be 0."
            )
        found.append((train, test))
    if not found:
        raise ValueError("cv gives no split at all.")
    return found


def _checked(part: Any, n_rows: int) -> Index:
    part = np.atleast_1d(part)
    if part.size == 0:
        return np.empty(0, dtype=np.intp)
    if part.dtype == bool and part.shape == (n_rows,):
        return np.flatnonzero(part)
    whole = part.dtype.kind in "iu" and part.ndim == 1
    if not whole or not -n_rows <= part.min() <= part.max() < n_rows:
        raise ValueError(f"cv must give positions among {n_rows} rows; got {part!r}.")
    return part % n_rows
