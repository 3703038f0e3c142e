"""Row source for Dask arrays and data frames, which stay on their workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from quernel.data.sources import Piece, RowsError, check_piece

# A dask.delayed `Piece`: one task per chunk of rows.
Chunk = Any


class DaskRows:
    """Rows of Dask collections, in any chunking: along rows and columns, of known or unknown sizes, some of them empty.

    Only the lengths of chunks of unknown size are computed here; rows stay where Dask has them. Numbers are validated
    by the tasks that `chunks` returns, on the workers.

    Parameters
    ----------
    X : Dask array of shape (n, d), or Dask data frame
        All columns of a data frame must be numbers.
    y : Dask or numpy array of shape (n,) or (n, q), Dask series, or the name of a column of X
    weight : Dask or numpy array of shape (n,), Dask series, name of a column of X, or None for equal weights
    """

    def __init__(self, X: Any, y: Any, weight: Any = None) -> None:
        if not _is_dask(X):
            raise RowsError(
                f"DaskRows needs X as a Dask array or data frame; got {type(X).__name__}. "
                "Rows in memory go into ArrayRows, or through dask.array.from_array."
            )
        names = [name for name in (y, weight) if isinstance(name, str)]
        if _is_frame(X):
            _require_columns(X, names)
            y, weight = (X[one] if isinstance(one, str) else one for one in (y, weight))
            X = X.drop(columns=names) if names else X
        elif names:
            raise RowsError(f"A Dask array has no column named {names[0]!r}. Pass the column itself, or a data frame.")
        self.names = tuple(str(name) for name in X.columns) if _is_frame(X) else None
        self.X = _as_array(X)
        self.n_rows, self.n_columns = (int(length) for length in self.X.shape)
        if self.n_rows == 0:
            raise RowsError("The Dask collection X has no rows.")
        self.y = self._align(y, "y")
        self.weight = None if weight is None else self._align(weight, "weight")
        if self.weight is not None and self.weight.ndim != 1:
            raise RowsError(f"weight must have one number a row; got the shape {self.weight.shape}.")

    @property
    def weighted(self) -> bool:
        """Whether the rows have weights."""
        return self.weight is not None

    @property
    def lengths(self) -> list[int]:
        """Number of rows of each chunk, without empty ones."""
        return [length for length in self.X.chunks[0] if length > 0]

    def derive(self, X: Any, y: Any, weight: Any) -> DaskRows:
        """Rows made of these, lazily, whose columns have the same names."""
        rows = DaskRows(X, y, weight)
        rows.names = self.names
        return rows

    def select(self, rows: Any) -> DaskRows:
        """Some of the rows, lazily: those of a mask (n,), which may be a Dask array, or of positions."""
        return self.derive(self.X[rows], self.y[rows], None if self.weight is None else self.weight[rows])

    def chunks(self, *, X: bool = True) -> list[Chunk]:
        """A delayed `Piece` per chunk, without empty ones, validated where it is computed; X=False leaves out X."""
        from dask import delayed

        task = delayed(make_piece, pure=False)
        targets = np.ravel(self.y.to_delayed()).tolist()
        rows = [row[0] for row in self.X.to_delayed().tolist()] if X else [None] * len(targets)
        weights = [None] * len(targets) if self.weight is None else self.weight.to_delayed().tolist()
        labels = self.names or tuple(f"column {j}" for j in range(self.n_columns))
        return [
            task(k, x, y, weight, labels)
            for k, (x, y, weight) in enumerate(zip(rows, targets, weights, strict=True))
            if self.X.chunks[0][k] > 0
        ]

    def _align(self, values: Any, name: str) -> Any:
        """Values (n,) or (n, q) as a Dask array, rechunked along rows like X."""
        import dask.array as da

        if not _is_dask(values):
            values = da.from_array(np.asarray(values), chunks=-1)
        elif _is_frame(values):
            values = _series_array(values, name)
        values = _with_known_chunks(values)
        if values.ndim not in (1, 2) or len(values) != self.n_rows:
            raise RowsError(
                f"{name} must have a row for each of the {self.n_rows:,} of X; got the shape {values.shape}."
            )
        return values.rechunk((self.X.chunks[0], *values.shape[1:]))


def _is_dask(values: Any) -> bool:
    """Whether these values are a Dask collection."""
    return hasattr(values, "__dask_graph__")


def _is_frame(values: Any) -> bool:
    """Whether these values are a Dask data frame or series, rather than an array."""
    return hasattr(values, "npartitions") and hasattr(values, "map_partitions")


def _require_columns(X: Any, names: Sequence[str]) -> None:
    """Raise a `RowsError` if a data frame lacks one of these columns."""
    missing = [name for name in names if name not in X.columns]
    if missing:
        raise RowsError(f"The data frame has no column {missing[0]!r}; it has {', '.join(map(repr, X.columns))}.")


def _as_array(X: Any) -> Any:
    """X as a Dask array (n, d), with chunks of known lengths along rows and a single chunk along columns."""
    if _is_frame(X):
        return _stack(X, frame_to_numpy, tuple(X.columns), (len(X.columns),))
    if X.ndim != 2:
        raise RowsError(f"X must have two dimensions, rows and columns; got the shape {X.shape}.")
    return _with_known_chunks(X).rechunk({1: -1})


def _series_array(series: Any, name: str) -> Any:
    """A Dask series as a Dask array with chunks of known lengths."""
    if series.ndim != 1:
        raise RowsError(f"{name} must be one column, such as frame['target']; got a data frame.")
    return _stack(series, series_to_numpy, name, ())


def _stack(frame: Any, function: Callable, expected: Any, shape: tuple[int, ...]) -> Any:
    """A Dask array whose chunks are function(partition, k, expected) of the partitions k of a data frame or series.

    `shape` is that of a row. The lengths of partitions are computed here.
    """
    import dask.array as da
    from dask import compute, delayed

    partitions = frame.to_delayed()
    lengths = compute(*(delayed(len)(partition) for partition in partitions))
    task = delayed(function, pure=False)
    chunks = [
        da.from_delayed(task(partition, k, expected), (length, *shape), dtype=float)
        for k, (partition, length) in enumerate(zip(partitions, lengths, strict=True))
    ]
    return da.concatenate(chunks)


def _with_known_chunks(values: Any) -> Any:
    """The array itself, or a copy in which the lengths of its chunks have been computed."""
    if any(np.isnan(length) for lengths in values.chunks for length in lengths):
        values = values.copy()  # compute_chunk_sizes changes the array in place, and this one belongs to the user
        values.compute_chunk_sizes()
    return values


# The following functions run on the workers, as tasks.


def frame_to_numpy(frame: Any, k: int, columns: tuple) -> np.ndarray:
    """Partition k of a data frame as a float array, missing values as NaN; a `RowsError` if its columns are unfit."""
    if tuple(frame.columns) != columns:
        raise RowsError(
            f"Partition {k} of the data frame has the columns {list(frame.columns)}, not {list(columns)} as expected."
        )
    for name, kind in frame.dtypes.items():
        _require_numbers(kind, f"Partition {k} of the data frame, column {name!r}")
    return np.ascontiguousarray(frame.to_numpy(dtype=float, na_value=np.nan))


def series_to_numpy(series: Any, k: int, name: str) -> np.ndarray:
    """Partition k of a series as a float array, missing values as NaN."""
    _require_numbers(series.dtype, f"Partition {k} of {name}")
    return series.to_numpy(dtype=float, na_value=np.nan)


def _require_numbers(kind: Any, place: str) -> None:
    """Raise a `RowsError` unless a dtype is numeric or boolean; pandas' extension dtypes have a `kind`, too."""
    if getattr(kind, "kind", "O") not in "fiub":
        raise RowsError(f"{place} holds {kind}, not numbers. Encode it, or leave it out.")


def make_piece(k: int, X: Any, y: Any, weight: Any, labels: tuple[str, ...]) -> Piece:
    """Chunk k as a validated float64 `Piece`, or a `RowsError` that names the chunk and the column."""
    if X is not None and (X.ndim != 2 or X.shape[1] != len(labels)):
        raise RowsError(f"Chunk {k} of X has the shape {X.shape}, where {len(labels)} columns are expected.")
    for values, name in ((X, "X"), (y, "y"), (weight, "weight")):
        if values is None:
            continue
        if values.dtype == object and name == "X":
            _require_numbers_by_column(k, values, labels)
        else:
            _require_numbers(values.dtype, f"Chunk {k} of {name}")
        if X is not None and len(values) != len(X):
            raise RowsError(f"Chunk {k} has {len(X)} rows of X, but {len(values)} of {name}.")
    floats = (None if values is None else np.ascontiguousarray(values, dtype=float) for values in (X, y, weight))
    piece = Piece(*floats)  # type: ignore[arg-type]
    for j, target in enumerate(piece.y.T if piece.y.ndim == 2 else [piece.y]):
        label = "y" if piece.y.ndim == 1 else f"y, column {j}"
        check_piece(
            piece._replace(y=target), [*labels, label, "weight"], lambda row: f"Chunk {k} of the Dask rows, row {row}"
        )
    return piece


def _require_numbers_by_column(k: int, X: np.ndarray, labels: tuple[str, ...]) -> None:
    """Arrays of dtype object may hold numbers; raise a `RowsError` that names a column which holds something else."""
    for j, label in enumerate(labels):
        kinds = {type(value).__name__ for value in X[:, j] if not isinstance(value, int | float | np.number)}
        if kinds:
            raise RowsError(f"Chunk {k} of X, {label} holds {', '.join(sorted(kinds))}, not numbers.")
