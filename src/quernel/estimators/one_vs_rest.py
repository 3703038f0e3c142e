"""Rows whose target is a class, as rows of signs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quernel.data import DaskRows, Piece, RowSource, streaming_summary

Array = NDArray[np.floating]
Index = NDArray[np.intp]


def encode_signs(codes: Index, n_columns: int) -> Array:
    """-1 and +1: shape (n,) for two classes, (n, K), one class against the rest, for more."""
    if n_columns == 1:
        return np.where(codes == 1, 1.0, -1.0)
    return np.asfortranarray(np.where(codes[:, None] == np.arange(n_columns), 1.0, -1.0))


def encode_labels(y: Array, classes: Array) -> Index:
    """The number of each row's class; any, for one that only rows of weight 0 have."""
    return np.minimum(np.searchsorted(classes, y), len(classes) - 1)


class OneVsRestRows:
    """Rows of files with signs in place of their labels, and weights times the factors of their classes, if any."""

    def __init__(self, source: RowSource, classes: Array, n_columns: int, factor: Array | None) -> None:
        self.source, self._classes, self._n_columns, self._factor = source, classes, n_columns, factor
        self.n_rows, self.n_columns, self.names = source.n_rows, source.n_columns, source.names
        self.spans, self.weighted = source.spans, source.weighted or factor is not None
        self.cache = getattr(source, "cache", "auto")

    def stream(self, blocks: range, *, X: bool = True) -> Iterator[Piece]:
        """These blocks in order."""
        for piece in self.source.stream(blocks, X=X):
            codes = encode_labels(piece.y, self._classes)
            yield Piece(piece.X, encode_signs(codes, self._n_columns), _weighted(codes, piece.weight, self._factor))

    def place(self, k: int) -> str:
        """Where block k comes from, for messages."""
        return self.source.place(k)


def encode_target(source: Any, classes: Array, n_columns: int, factor: Array | None) -> Any:
    """Rows that are far away, ready to be fitted as classes."""
    if not isinstance(source, DaskRows):
        return OneVsRestRows(source, classes, n_columns, factor)
    chunks = {} if n_columns == 1 else {"new_axis": 1, "chunks": (source.y.chunks[0], (n_columns,))}
    y = source.y.map_blocks(partial(_encode_signs_block, classes, n_columns), dtype=float, **chunks)
    weight = source.weight
    if factor is not None:
        by_class = source.y.map_blocks(partial(_class_factor_block, classes, factor), dtype=float)
        weight = by_class if weight is None else weight * by_class
    rows = DaskRows(source.X, y, weight)
    rows.names = source.names
    return rows


def _encode_signs_block(classes: Array, n_columns: int, y: Array) -> Array:
    return encode_signs(encode_labels(y, classes), n_columns)


def _class_factor_block(classes: Array, factor: Array, y: Array) -> Array:
    return factor[encode_labels(y, classes)]


def _weighted(codes: Index, weight: Array | None, factor: Array | None) -> Array | None:
    if factor is None:
        return weight
    return factor[codes] if weight is None else weight * factor[codes]


def class_weights(source: Any, classes: Array) -> Array:
    """The sum of the weights of every class, (K,)."""

    def step(piece: Piece) -> Array:
        return np.bincount(encode_labels(piece.y, classes), piece.weight, minlength=len(classes)).astype(float)

    return streaming_summary.fold(source, step, lambda parts: np.sum(parts, axis=0), X=False)
