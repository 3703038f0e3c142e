"""Second moments of the active rows of one column, updated by the rows that come and go.

Where a fit has few rows per feature, forming the Hessian is most of the work of a Newton step. For a loss of two lines
all active rows have the same curvature, 1 / width, so that the sum over them of w phi phi' / W depends on nothing but
the set; and once the smoothing width is small, that changes by few rows from one step to the next.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.blas import dsyrk

from quernel._threads import parallel_map
from quernel.data import InMemoryDesign

Array = NDArray[np.floating]
Index = NDArray[np.intp]

# Rows that are gathered at a time: enough for BLAS, and few beside all rows.
GATHERED = 2048


class ActiveGram:
    """Sums over a set of rows, at first the empty one.

    Attributes
    ----------
    gram : array of shape (M, M)
        sum w phi phi' / W; only the lower triangle is meaningful.
    cross : array of shape (M,)
        sum w phi / W.
    total : float
        sum w / W.
    """

    def __init__(self, rows: InMemoryDesign) -> None:
        self._features, self._share = rows.as_array("Active rows are summed"), rows.share
        self._counted = np.zeros(rows.n_rows, dtype=bool)
        self.gram: Array = np.zeros((rows.n_features, rows.n_features), order="F")
        self.cross: Array = np.zeros(rows.n_features)
        self.total = 0.0

    def changes(self, active: Index) -> tuple[Index, Array]:
        """Rows (m,) in which the set `active` differs from that of the sums; their shares, negative if they leave."""
        here = np.zeros_like(self._counted)
        here[active] = True
        come, gone = np.flatnonzero(here & ~self._counted), np.flatnonzero(self._counted & ~here)
        return np.r_[come, gone], np.r_[self._share[come], -self._share[gone]]

    def take(self, active: Index) -> Array:
        """Features of these rows, (a, M)."""
        return self._features[active].astype(float, copy=False)

    def update(self, active: Index, threads: int = 1) -> None:
        """Make the sums those of the rows `active` (a,): from the last ones or, where that is less work, anew."""
        index, share = self.changes(active)
        if len(index) > len(active):
            self.gram[:], self.cross[:] = 0, 0
            index, share = active, self._share[active]
        self._add(index[share > 0], 1.0, threads)
        self._add(index[share < 0], -1.0, threads)
        self._counted[:] = False
        self._counted[active] = True
        self.total = float(self._share[active].sum())

    def _add(self, index: Index, sign: float, threads: int) -> None:
        """Add these rows, or subtract them; many of them on several threads."""
        parts = np.array_split(index, threads) if len(index) > threads * GATHERED else [index]
        sums = [(self.gram, self.cross), *((np.zeros_like(self.gram), np.zeros_like(self.cross)) for _ in parts[1:])]
        parallel_map(lambda k: self._add_to(*sums[k], parts[k], sign), range(len(parts)), len(parts))
        for gram, cross in sums[1:]:
            self.gram += gram
            self.cross += cross

    def _add_to(self, gram: Array, cross: Array, index: Index, sign: float) -> None:
        """Add the rows at `index` to these sums, in place."""
        for start in range(0, len(index), GATHERED):
            some = index[start : start + GATHERED]
            share, rows = self._share[some], self.take(some)
            cross += sign * (share @ rows)
            weight = sign * share[0]
            if np.any(share != share[0]):
                weight = sign
                rows *= np.sqrt(share)[:, None]
            dsyrk(weight, rows.T, 1.0, gram, lower=1, overwrite_c=1)
