"""A sample of rows that depends on their values and weights only, found block by block.

It holds up to `limit` different x, those of `features.distinct.sample_of_rows`, each with all its different y and the
weight of all rows equal to (x, y). Rows that repeat are added up on the way, so that the sample stays small. Where an x
has more y than there is room for, at least PAIRS, some of them stand for all, chosen by a hash of their values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quernel.data.sources import Array, ArrayRows
from quernel.features.hash_sample import sample_of_rows

Codes = NDArray[np.uint64]

# At most so many times `limit` pairs (x, y) are held.
PAIRS = 64


@dataclass(frozen=True, eq=False)
class Sample:
    """Different pairs (x, y), in the order of their hash codes: equal x have equal codes and stand together.

    weight (p,) is that of all rows equal to the pair, and whole (p,) that of all rows with its x, in the first pair of
    every x and 0 in others; `limit` different x are held at most.
    """

    limit: int
    code: Codes
    pair_code: Codes
    X: Array
    y: Array
    weight: Array
    whole: Array

    def rows(self) -> ArrayRows:
        """The pairs as rows; where an x lost some of its y, the others carry their weight."""
        _, group = np.unique(self.code, return_inverse=True)
        kept, whole = np.bincount(group, self.weight), np.bincount(group, self.whole)
        # Not a factor but for pairs that were left out: sums of the same weights in another order differ by rounding.
        factor = np.where(np.isclose(kept, whole, rtol=1e-9, atol=0), 1.0, whole / kept)
        return ArrayRows(self.X, self.y, self.weight * factor[group])

    @property
    def n_pairs(self) -> int:
        """How many different pairs all rows have: exactly where they have few different x, else about that.

        Codes are spread evenly, so that the share of all x that has codes up to the last is known.
        """
        if len(np.unique(self.code)) < self.limit:
            return len(self.code)
        return round(len(self.code) / ((float(self.code[-1]) + 1) / 2.0**64))


def sample(X: Array, y: Array, weight: Array | None, limit: int) -> Sample:
    """The sample of one block; rows of weight 0 count like none."""
    weight = np.ones(len(y)) if weight is None else weight
    if not (weight > 0).all():
        X, y, weight = X[weight > 0], y[weight > 0], weight[weight > 0]
    if len(y) == 0:
        codes = np.empty(0, dtype=np.uint64)
        return Sample(limit, codes, codes, X, y, weight, weight)
    picked, code = sample_of_rows(X, limit)
    X, y, weight = X[picked], y[picked], weight[picked]
    _, pair_code = sample_of_rows(np.column_stack([X, y]), len(y))
    return _merged(Sample(limit, code, pair_code, X, y, weight, weight))


def join_samples(parts: Sequence[Sample]) -> Sample:
    """The sample of all rows of the parts."""
    names = ("code", "pair_code", "X", "y", "weight", "whole")
    return _merged(Sample(parts[0].limit, *(np.concatenate([getattr(part, name) for part in parts]) for name in names)))


def _merged(found: Sample) -> Sample:
    """Equal pairs added up, the `limit` x of the smallest codes kept, and of each so many y as there is room for.

    The room for each x shrinks with their number, which never does: whatever the blocks, the same pairs remain.
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
    x_number = np.cumsum(new_x[new_pair]) - 1  # of each pair
    pairs_before = np.flatnonzero(new_x[new_pair])[x_number]
    n_x = min(int(x_number[-1]) + 1, found.limit)
    keep = (x_number < n_x) & (np.arange(len(new_pair)) - pairs_before < PAIRS * found.limit // n_x)
    at = order[new_pair[keep]]
    return Sample(found.limit, found.code[at], found.pair_code[at], found.X[at], found.y[at], weight[keep], whole[keep])


def _changes(codes: Codes) -> NDArray[np.bool_]:
    """Whether each code differs from the one before."""
    return np.r_[True, codes[1:] != codes[:-1]]
