"""Bottom-k hash sample of rows: it depends on their values and weights only, not on their order or blocks.

Rows are hashed by x, and the sample holds the `limit` distinct x with the smallest hash codes
(`features.hash_sample.sample_of_rows`), each with all its distinct y and with the total weight of the rows equal to
(x, y). Repeated rows are merged on the way, so that the sample stays small. An x with very many y, at least PAIRS of
them, is represented by those pairs whose own hash codes are smallest.

Samples of blocks are merged by `join_samples`, which is associative: the sample can be found by map-reduce.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quernel.data.sources import Array, ArrayRows
from quernel.features.sampling import sample_of_rows

Codes = NDArray[np.uint64]

# At most PAIRS * limit pairs (x, y) are held.
PAIRS = 64


@dataclass(frozen=True, eq=False)
class Sample:
    """Distinct pairs (x, y), sorted by the hash code of x, then of the pair: equal x are adjacent."""

    limit: int  # largest number of distinct x
    code: Codes  # (p,), hash code of x
    pair_code: Codes  # (p,), hash code of (x, y)
    X: Array  # (p, d)
    y: Array  # (p,)
    weight: Array  # (p,), total weight of the rows equal to the pair
    whole: Array  # (p,), total weight of the rows with this x, in the first pair of each x; 0 in its other pairs

    def rows(self) -> ArrayRows:
        """The pairs as weighted rows; where pairs of an x were dropped, its other pairs carry their weight."""
        _, group = np.unique(self.code, return_inverse=True)
        kept, whole = np.bincount(group, self.weight), np.bincount(group, self.whole)
        # Exactly 1 unless pairs were dropped: sums of the same weights in another order differ by rounding.
        factor = np.where(np.isclose(kept, whole, rtol=1e-9, atol=0), 1.0, whole / kept)
        return ArrayRows(self.X, self.y, self.weight * factor[group])

    @property
    def n_pairs(self) -> int:
        """Number of distinct pairs in all rows: exact up to `limit` distinct x, an estimate above.

        Hash codes are uniform on [0, 2^64): if the largest code in the sample is c, the sample holds a fraction
        (c + 1) / 2^64 of all x.
        """
        if len(np.unique(self.code)) < self.limit:
            return len(self.code)
        return round(len(self.code) / ((float(self.code[-1]) + 1) / 2.0**64))


def sample(X: Array, y: Array, weight: Array | None, limit: int) -> Sample:
    """Sample of one block: X (m, d), y (m,), weight (m,) or None; rows of weight 0 are ignored."""
    weight = np.ones(len(y)) if weight is None else weight
    if not (weight > 0).all():
        X, y, weight = X[weight > 0], y[weight > 0], weight[weight > 0]
    if len(y) == 0:
        codes = np.empty(0, dtype=np.uint64)
        return Sample(limit, codes, codes, X, y, weight, weight)
    picked, code = sample_of_rows(X, limit)
    X, y, weight = X[picked], y[picked], weight[picked]
    _, pair_code = sample_of_rows(np.column_stack([X, y]), len(y))
    return _merge_pairs(Sample(limit, code, pair_code, X, y, weight, weight))


def join_samples(parts: Sequence[Sample]) -> Sample:
    """Merge the samples of disjoint sets of rows."""
    names = ("code", "pair_code", "X", "y", "weight", "whole")
    arrays = (np.concatenate([getattr(part, name) for part in parts]) for name in names)
    return _merge_pairs(Sample(parts[0].limit, *arrays))


def _merge_pairs(found: Sample) -> Sample:
    """Sum the weights of equal pairs, then keep the `limit` x of smallest code, with as many y each as are allowed.

    PAIRS * limit // (number of x) pairs are allowed per x. The number of x never falls while samples are merged, so a
    pair dropped early would also be dropped at the end: the result does not depend on the blocks.
    """
    if len(found.code) == 0:
        return found
    order = np.lexsort((found.pair_code, found.code))
    code, pair_code = found.code[order], found.pair_code[order]
    new_x = _changes(code)
    new_pair = np.flatnonzero(new_x | _changes(pair_code))
    weight = np.add.reduceat(found.weight[order], new_pair)
    whole = np.zeros(len(new_pair))
    whole[np.flatnonzero(new_x[new_pair])] = np.add.reduceat(found.whole[order], np.flatnonzero(new_x))
    x_number = np.cumsum(new_x[new_pair]) - 1  # of each pair: the rank of its x
    pairs_before = np.flatnonzero(new_x[new_pair])[x_number]
    n_x = min(int(x_number[-1]) + 1, found.limit)
    keep = (x_number < n_x) & (np.arange(len(new_pair)) - pairs_before < PAIRS * found.limit // n_x)
    at = order[new_pair[keep]]
    return Sample(found.limit, found.code[at], found.pair_code[at], found.X[at], found.y[at], weight[keep], whole[keep])


def _changes(codes: Codes) -> NDArray[np.bool_]:
    """Boolean mask: whether each code differs from the one before; True for the first."""
    return np.r_[True, codes[1:] != codes[:-1]]
