"""Weights, means, variances and ranges of all rows, from those of blocks.

Rows of weight 0 count like none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from quernel.data.sources import Array, RowsError

# Entries in a row that is long enough for numpy.
FOLDED_ROW = 1024


@dataclass(frozen=True, eq=False)
class Moments:
    """Sums over rows that are enough to join with those of others.

    n_rows of positive weight, their total and largest weight, and for every column of X its lowest and highest entry
    and  scatter = sum_i w_i (x_i - mean)^2.  The mean is kept in two parts, origin + offset, where the origin is a row:
    so that a column far from 0 loses no digits of what distinguishes its blocks.
    """

    n_rows: int
    total: float
    largest: float
    origin: Array
    offset: Array
    scatter: Array
    low: Array
    high: Array

    @property
    def mean(self) -> Array:
        """The weighted mean of every column."""
        return self.origin + self.offset

    @property
    def variance(self) -> Array:
        """The weighted mean squared distance from the mean, of every column."""
        return self.scatter / self.total

    @property
    def range(self) -> Array:
        """The smallest and the largest entry of every column, shape (2, d)."""
        return np.array([self.low, self.high])


def moments(X: Array, weight: Array | None) -> Moments:
    """The moments of one block."""
    if weight is not None and not (weight > 0).all():
        X, weight = X[weight > 0], weight[weight > 0]
    n, d = X.shape
    if n == 0:
        nothing = np.zeros(d)
        return Moments(0, 0.0, 0.0, nothing, nothing, nothing, np.full(d, np.inf), np.full(d, -np.inf))
    share = np.full(n, 1 / n) if weight is None else weight / weight.sum()
    total, largest = (float(n), 1.0) if weight is None else (float(weight.sum()), float(weight.max()))
    near = X - X[0]
    offset = share @ near
    scatter = total * (share @ (near - offset) ** 2)
    return Moments(n, total, largest, X[0].copy(), offset, scatter, *column_range(X))


def column_range(X: Array) -> Array:
    """The smallest and the largest entry of every column, shape (2, d).

    numpy takes extremes over long rows ten times as fast as over short ones, so a narrow table is folded into a wide
    one first.
    """
    n, d = X.shape
    fold = max(1, min(n, FOLDED_ROW // d))
    whole = n - n % fold
    wide, rest = X[:whole].reshape(-1, fold * d), X[whole:].ravel()
    low, high = (np.concatenate([ends, rest]).reshape(-1, d) for ends in (wide.min(axis=0), wide.max(axis=0)))
    return np.array([low.min(axis=0), high.max(axis=0)])


def join_moments(parts: Sequence[Moments]) -> Moments:
    """The moments of all rows of the parts: scatter = sum of scatters + sum_k W_k (mean_k - mean)^2."""
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
    """The moments themselves, if any row has a positive weight."""
    if found.n_rows == 0:
        raise RowsError("The weight is zero for every row: there is nothing to fit. Give some rows a weight.")
    return found
