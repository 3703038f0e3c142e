"""Samples of distinct rows by hashing: reproducible without a seed, and independent of row order and duplicates.

Each row is hashed to 64 bits, and the rows with the smallest hashes are the sample (bottom-k sampling). The hash
depends on the values only, so that shuffling the rows, or replacing weights by repeated rows, gives the same sample.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating]


def distinct_rows(X: Array, share: Array, limit: int) -> tuple[Array, Array]:
    """Up to `limit` distinct rows of X, shape (m, d), and the total weight of the rows equal to each, shape (m,)."""
    sampled, codes = sample_of_rows(X, limit)
    _, first, group = np.unique(codes, return_index=True, return_inverse=True)
    return np.asarray(X[sampled[first]], dtype=float), np.bincount(group, weights=share[sampled]).astype(float)


def hash_sample_indices(X: Array, limit: int) -> NDArray[np.intp]:
    """Indices of up to `limit` distinct rows; unlike `sample_of_rows`, invariant to the units of the columns, too.

    Ranks within each column are hashed instead of values, which costs a sort of every column.
    """
    ranks = [np.unique(column, return_inverse=True)[1].astype(float) for column in np.asarray(X).T]
    _, first = np.unique(row_hash(np.column_stack(ranks)), return_index=True)
    return first[:limit]


def sample_of_rows(X: Array, limit: int) -> tuple[NDArray[np.intp], NDArray[np.uint64]]:
    """Sample up to `limit` distinct rows, with all their duplicates, by the smallest hashes.

    Returns
    -------
    indices : array of int of shape (m,), ascending
        The sampled rows and all rows equal to them; m may exceed `limit`.
    codes : array of uint64 of shape (m,)
        Their hashes: equal rows have equal hashes.
    """
    codes = row_hash(X)
    # Among the 4 `limit` smallest hashes there are usually `limit` distinct ones: no need to sort all of them.
    smallest = np.sort(np.partition(codes, 4 * limit)[: 4 * limit]) if len(codes) > 8 * limit else np.sort(codes)
    distinct = np.unique(smallest)
    if len(distinct) < limit < len(smallest) < len(codes):  # too many duplicates: all hashes are needed after all
        distinct = np.unique(codes)
    threshold = distinct[:limit][-1]
    indices = np.flatnonzero(codes <= threshold)
    return indices, codes[indices]


def row_hash(X: Array) -> NDArray[np.uint64]:
    """A 64-bit hash of the values of each row (splitmix64, column by column), shape (n,)."""
    code = np.zeros(len(X), dtype=np.uint64)
    for column in np.asarray(X, dtype=float).T:
        code += (column + 0.0).view(np.uint64) + np.uint64(0x9E3779B97F4A7C15)  # + 0.0 turns -0.0 into 0.0
        code = (code ^ (code >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        code = (code ^ (code >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        code ^= code >> np.uint64(31)
    return code
