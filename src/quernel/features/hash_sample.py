"""A sample of rows that depends on their values and weights only, not on their order or on how they are repeated."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating]


def distinct_rows(X: Array, share: Array, limit: int) -> tuple[Array, Array]:
    """Up to `limit` different rows, and the weight of all rows equal to each."""
    picked, code = sample_of_rows(X, limit)
    _, where, group = np.unique(code, return_index=True, return_inverse=True)
    return np.asarray(X[picked[where]], dtype=float), np.bincount(group, weights=share[picked]).astype(float)


def hash_sample_indices(X: Array, limit: int) -> NDArray[np.intp]:
    """Where up to `limit` different rows are, chosen as by `sample_of_rows`, but whatever the units of the columns.

    The hash is that of ranks, which takes longer.
    """
    ranks = [np.unique(column, return_inverse=True)[1].astype(float) for column in np.asarray(X).T]
    _, first = np.unique(row_hash(np.column_stack(ranks)), return_index=True)
    return first[:limit]


def sample_of_rows(X: Array, limit: int) -> tuple[NDArray[np.intp], NDArray[np.uint64]]:
    """Where up to `limit` different rows and all their equals are, and the code of each: equal rows have equal codes.

    Which rows is decided by a hash of their values: as good as at random, but the same in whatever order they come and
    however often each is repeated.
    """
    code = row_hash(X)
    nearest = np.sort(np.partition(code, 4 * limit)[: 4 * limit]) if len(code) > 8 * limit else np.sort(code)
    different = np.unique(nearest)
    if len(different) < limit < len(nearest) < len(code):  # many repeats: look at all rows after all
        different = np.unique(code)
    chosen = different[:limit]
    picked = np.flatnonzero(code <= chosen[-1])
    return picked, code[picked]


def row_hash(X: Array) -> NDArray[np.uint64]:
    """A 64-bit hash of each row's values (splitmix64, column by column)."""
    code = np.zeros(len(X), dtype=np.uint64)
    for column in np.asarray(X, dtype=float).T:
        code += (column + 0.0).view(np.uint64) + np.uint64(0x9E3779B97F4A7C15)  # + 0.0 makes -0.0 equal to 0.0
        code = (code ^ (code >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        code = (code ^ (code >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        code ^= code >> np.uint64(31)
    return code
