"""Weighted means, variances and ranges of the columns of X, computed block by block and merged.

Rows of weight 0 are ignored. Blocks are merged by the parallel variance formula (Chan, Golub, LeVeque 1979), so that
the result is that of one block up to rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from quernel.data.sources import Array, RowsError

# Entries per row from which numpy's reductions over rows are fast.
FOLDED_ROW = 1024


@dataclass(frozen=True, eq=False)
class Moments:
    """Sufficient statistics of the rows of a block, or of several, which `join_moments` can merge with others.

    The mean is stored in two parts, origin + offset, where the origin is one of the rows: a column whose values are far
    from 0 (years, coordinates) then loses no digits in the differences between the means of blocks.
    """

    n_rows: int  # rows of positive weight
    total: float  # sum of the weights
    largest: float  # largest weight
    origin: Array  # (d,), the first row of the first block
    offset: Array  # (d,), weighted mean of x_i - origin
    scatter: Array  # (d,), sum_i w_i (x_i - mean)^2
    low: Array  # (d,), smallest entry of each column
    high: Array  # (d,), largest entry of each column

    @property
    def mean(self) -> Array:
        """Weighted mean of each column, shape (d,)."""
        return self.origin + self.offset

    @property
    def variance(self) -> Array:
        """Weighted variance of each column, shape (d,): scatter / total weight, without a correction for bias."""
        return self.scatter / self.total

    @property
    def range(self) -> Array:
        """Smallest and largest entry of each column, shape (2, d)."""
        return np.array([self.low, self.high])


def moments(X: Array, weight: Array | None) -> Moments:
    """Moments of one block X (m, d) with weights (m,), or None for equal weights 1."""
    if weight is not None and not (weight > 0).all():
        X, weight = X[weight > 0], weight[weight > 0]
    n, d = X.shape
    if n == 0:
        zeros = np.zeros(d)
        return Moments(0, 0.0, 0.0, zeros, zeros, zeros, np.full(d, np.inf), np.full(d, -np.inf))
    share = np.full(n, 1 / n) if weight is None else weight / weight.sum()
    total, largest = (float(n), 1.0) if weight is None else (float(weight.sum()), float(weight.max()))
    shifted = X - X[0]
    offset = share @ shifted
    scatter = total * (share @ (shifted - offset) ** 2)
    return Moments(n, total, largest, X[0].copy(), offset, scatter, *column_range(X))


def column_range(X: Array) -> Array:
    """Smallest and largest entry of each column of X (n, d), shape (2, d).

    numpy reduces an array of long rows ten times as fast as one of short rows. So `fold` consecutive rows are viewed as
    one row of fold * d entries, whose extremes are reduced to those of the d columns afterwards.
    """
    n, d = X.shape
    fold = max(1, min(n, FOLDED_ROW // d))
    whole = n - n % fold
    wide, rest = X[:whole].reshape(-1, fold * d), X[whole:].ravel()
    low, high = (np.concatenate([ends, rest]).reshape(-1, d) for ends in (wide.min(axis=0), wide.max(axis=0)))
    return np.array([low.min(axis=0), high.max(axis=0)])


def join_moments(parts: Sequence[Moments]) -> Moments:
    """Merge moments of disjoint sets of rows k, of total weights W_k.

    scatter = sum_k scatter_k + sum_k W_k (mean_k - mean)^2
    """
    some = [part for part in parts if part.n_rows]
    if not some:
        return parts[0]
    weight = np.array([part.total for part in some])
    total, origin = float(weight.sum()), some[0].origin
    offsets = np.array([(part.origin - origin) + part.offset for part in some])
    offset = weight @ offsets / total
    return Moments(
        n_rows=sum(part.n_rows for part in some),
        total=total,
        largest=max(part.largest for part in some),
        origin=origin,
        offset=offset,
        scatter=np.sum([part.scatter for part in some], axis=0) + weight @ (offsets - offset) ** 2,
        low=np.min([part.low for part in some], axis=0),
        high=np.max([part.high for part in some], axis=0),
    )


def checked_total(found: Moments) -> Moments:
    """Return the moments, or raise a `RowsError` if no row has a positive weight."""
    if found.n_rows == 0:
        raise RowsError("The weight is zero for every row: there is nothing to fit. Give some rows a weight.")
    return found
