"""The rows on which automatic choices are made."""

from __future__ import annotations

import numpy as np

from quernel.features.distinct import sample_of_rows
from quernel.rows import ArrayRows


def distinct_sample(source: ArrayRows, limit: int) -> ArrayRows:
    """Up to `limit` rows whose (x, y) all differ, in the order of their values, each with the weight of its equals."""
    picked, _ = sample_of_rows(source.X, limit)
    X, y = np.asarray(source.X[picked], dtype=float), source.y[picked]
    both = np.column_stack([X, y])
    order = np.lexsort(both.T[::-1])
    new = np.r_[True, np.any(both[order][1:] != both[order][:-1], axis=1)]
    weight = np.add.reduceat(source.share()[picked][order], np.flatnonzero(new))
    some = np.sort(np.random.default_rng(0).permutation(len(weight))[:limit])  # few different x, each with many y
    chosen = order[new][some]
    return ArrayRows(X[chosen], y[chosen], weight[some])
