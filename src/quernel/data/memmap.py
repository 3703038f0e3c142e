"""Row source for arrays that may be larger than memory: numpy memory maps and .npy files."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quernel.data.feature_cache import check_policy
from quernel.data.prefetch import read_ahead
from quernel.data.sources import Array, Piece, RowsError, checked, cut


class MemmapRows:
    """Rows of memory-mapped arrays, read block by block.

    Parameters
    ----------
    X : array or np.memmap of shape (n, d), or the path of a .npy file
    y : array or np.memmap of shape (n,), or the path of a .npy file
    weight : the same as y, or None for equal weights
        Row weights, >= 0. All three may hold floats, integers or booleans of any size, which are converted to float64 a
        block at a time.
    cache : "auto", "recompute", "memory", "disk", or a folder, default="auto"
        Whether features are cached after the first pass of a fit: as for `ParquetRows`.
    """

    names: tuple[str, ...] | None = None

    def __init__(self, X: Any, y: Any, weight: Any = None, *, cache: str | os.PathLike[str] = "auto") -> None:
        self.cache = check_policy(cache)
        self._labels = tuple(_label(given, name) for given, name in ((X, "X"), (y, "y"), (weight, "weight")))
        self._X, self._y = _numbers(X, self._labels[0], 2), _numbers(y, self._labels[1], 1)
        self._weight = None if weight is None else _numbers(weight, self._labels[2], 1)
        self.n_rows, self.n_columns = self._X.shape
        self.weighted = weight is not None
        for label, values in zip(self._labels[1:], (self._y, self._weight), strict=True):
            if values is not None and len(values) != self.n_rows:
                raise RowsError(
                    f"{self._labels[0]} has {self.n_rows:,} rows but {label} has {len(values):,} entries. "
                    "Give one per row."
                )
        if 0 in self._X.shape:
            raise RowsError(f"{self._labels[0]} has shape {self._X.shape}: there is nothing to read.")
        self.spans = cut(self.n_rows, self.n_columns)

    def stream(self, blocks: range, *, X: bool = True) -> Iterator[Piece]:
        """Iterate over these blocks in order, prefetched by a thread; X=False reads target and weight only."""
        return read_ahead(self._pieces(blocks, X))

    def place(self, k: int) -> str:
        """Where block k comes from (array or file, and rows), for error messages."""
        span = self.spans[k]
        return f"{self._labels[0]}, rows {span.start:,} to {span.stop - 1:,}"

    def _pieces(self, blocks: range, X: bool) -> Generator[Piece, None, None]:
        """Read and validate these blocks; runs in the prefetching thread."""
        labels = [*(f"column {j} of {self._labels[0]}" for j in range(self.n_columns)), *self._labels[1:]]
        for k in blocks:
            span = self.spans[k]
            weight = None if self._weight is None else _floats(self._weight[span])
            piece = Piece(_floats(self._X[span]) if X else None, _floats(self._y[span]), weight)
            yield checked(piece, labels, partial(_describe_row, start=span.start))


def _describe_row(row: int, start: int) -> str:
    return f"Row {start + row:,} (counted from 0)"


def _label(given: Any, name: str) -> str:
    """Name of an array in error messages: its file, if it has one."""
    path = given if isinstance(given, str | os.PathLike) else getattr(given, "filename", None)
    return name if path is None else os.fspath(path)


def _numbers(given: Any, label: str, n_axes: int) -> NDArray[Any]:
    """Validate an array: numeric, with `n_axes` axes; the path of a .npy file is memory-mapped."""
    if isinstance(given, str | os.PathLike):
        try:
            given = np.load(given, mmap_mode="r")
        except (OSError, ValueError, EOFError) as error:
            raise RowsError(f"{label} cannot be read as a .npy file: {error}") from error
    if not isinstance(given, np.ndarray):
        raise RowsError(f"{label} must be a numpy array or the path of a .npy file; got {type(given).__name__}.")
    if given.dtype.kind not in "biuf":
        raise RowsError(f"{label} must hold floats, integers or booleans; its type is {given.dtype}.")
    if given.ndim != n_axes:
        wanted = "two axes, rows and columns" if n_axes == 2 else "one axis, an entry per row"
        raise RowsError(f"{label} must have {wanted}; its shape is {given.shape}.")
    return given


def _floats(values: NDArray[Any]) -> Array:
    """A float64 copy in C order: callers own what they receive, and it is no longer mapped."""
    return np.array(values, dtype=np.float64, order="C")
