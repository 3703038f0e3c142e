"""Raw rows in arrays that may be larger than memory, mapped from files."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quernel.data.feature_cache import check_policy
from quernel.data.prefetch import read_ahead
from quernel.data.sources import Array, Piece, RowsError, checked, cut


class MemmapRows:
    """Rows held in arrays that are read block by block, such as files mapped into memory.

    Parameters
    ----------
    X : array or np.memmap of shape (n, d), or the path of a .npy file
    y : array or np.memmap of shape (n,), or the path of a .npy file
    weight : the same as y, or None for equal weights
        Floats, integers and booleans of any size are taken; they become float64 a block at a time.
    cache : "auto", "recompute", "memory", "disk", or a folder, default="auto"
        Whether features are kept after the first sweep of a fit: as for `ParquetRows`.
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
        """These blocks in order, read ahead in a thread; X=False reads target and weight only."""
        return read_ahead(self._pieces(blocks, X))

    def place(self, k: int) -> str:
        """Where block k comes from, for messages."""
        span = self.spans[k]
        return f"{self._labels[0]}, rows {span.start:,} to {span.stop - 1:,}"

    def _pieces(self, blocks: range, X: bool) -> Generator[Piece, None, None]:
        labels = [*(f"column {j} of {self._labels[0]}" for j in range(self.n_columns)), *self._labels[1:]]
        for k in blocks:
            span = self.spans[k]
            weight = None if self._weight is None else _floats(self._weight[span])
            piece = Piece(_floats(self._X[span]) if X else None, _floats(self._y[span]), weight)
            yield checked(piece, labels, lambda row, start=span.start: f"Row {start + row:,} (counted from 0)")  # type: ignore[misc]


def _label(given: Any, name: str) -> str:
    """What messages call an array: its file, if it has one."""
    path = given if isinstance(given, str | os.PathLike) else getattr(given, "filename", None)
    return name if path is None else os.fspath(path)


def _numbers(given: Any, label: str, n_axes: int) -> NDArray[Any]:
    """The array, mapped where it is a path, if it holds numbers and has so many axes."""
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
    """A copy of these values: what is handed out is in memory and in nobody else's hands."""
    return np.array(values, dtype=np.float64, order="C")
