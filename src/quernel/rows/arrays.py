"""Raw rows in memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating]


@dataclass(frozen=True, eq=False)
class ArrayRows:
    """Rows held in arrays: X (n, d), y (n,) or (n, q) for one per fit, and weights (n,) or None for equal weights."""

    X: Array
    y: Array
    weight: Array | None = None

    @property
    def n_rows(self) -> int:
        """The number of rows."""
        return len(self.y)

    def share(self) -> Array:
        """Every row's part w_i / W of the total weight: sums over rows become means."""
        if self.weight is None:
            return np.full(self.n_rows, 1 / self.n_rows)
        return self.weight / self.weight.sum()
