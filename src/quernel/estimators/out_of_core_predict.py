"""Methods that predict row by row, for rows that are not in memory as well.

Of a Dask collection the answer is lazy and has its chunks; rows of files are read piece by piece, and the answer for
all of them is an array.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np

from quernel.data import ArrayRows, DaskRows
from quernel.data.sources import is_stream
from quernel.estimators.inputs import is_dask

# Arguments, besides X, that have an entry per row.
BY_ROW = ("y", "groups", "density_ratio")


def blockwise(method: Callable[..., Any]) -> Callable[..., Any]:
    """The method `method(model, X, ...)` for X in memory, for Dask collections, and for objects of `quernel.data`."""

    @wraps(method)
    def predict(self: Any, X: Any, *args: Any, **words: Any) -> Any:
        order = None
        if isinstance(X, DaskRows) or is_stream(X):
            order = _order(self, X.names)
        if isinstance(X, ArrayRows | DaskRows):
            X = X.X
        if not (is_dask(X) or is_stream(X)):
            return method(self, X, *args, **words)
        if args:  # `y` or an option, whichever comes first
            words |= dict(zip(method.__code__.co_varnames[2:], args, strict=False))
        by_row = {name: words.pop(name) for name in BY_ROW if _has_rows(words.get(name))}
        function = _Bound(method, self, words, tuple(by_row), order)
        return _lazily(function, X, by_row) if is_dask(X) else _streamed(function, X, by_row)

    return predict


class _Bound:
    """A method of a model with its options, as a function of X and of what has an entry per row.

    `order` is where the model's columns are in X, for rows whose names have been looked at already; None: as they come.
    """

    def __init__(
        self, method: Callable[..., Any], model: Any, words: dict[str, Any], by_row: tuple[str, ...], order: Any
    ) -> None:
        self.name, self.model, self.words, self.by_row, self.order = method.__name__, model, words, by_row, order

    def __call__(self, X: Any, *by_row: Any) -> Any:
        words = {name: np.asarray(values) for name, values in zip(self.by_row, by_row, strict=True)}
        if len(X) == 0:
            return self.nothing(X, words)
        return self._answer(X if self.order is None else X[:, self.order], words)

    def _answer(self, X: Any, words: dict[str, Any]) -> Any:
        predict = getattr(self.model, self.name)
        if self.order is None:
            return predict(X, **self.words, **words)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="X does not have valid feature names")
            return predict(X, **self.words, **words)

    def nothing(self, X: Any, words: dict[str, Any]) -> Any:
        """The answer for no rows: that for one, without it."""
        row: Any = _typical_row(self.model, X.shape[1])
        if hasattr(X, "columns"):
            row = type(X)(row, columns=X.columns)
        one = {name: np.zeros(1, dtype=values.dtype) for name, values in words.items()}
        return self._answer(row, one)[:0]


def _typical_row(model: Any, n_columns: int) -> Any:
    """A row in the middle of the training inputs, as far as they are known: nothing warns of it."""
    known = getattr(getattr(model, "estimators_", [model])[0], "input_range_", np.zeros((2, 0)))
    if known.shape[1] != n_columns or not np.isfinite(known).all():
        return np.zeros((1, n_columns))
    return known.mean(axis=0)[None, :]


def _has_rows(values: Any) -> bool:
    return is_dask(values) or (values is not None and not callable(values) and np.ndim(values) > 0)


def _lazily(function: _Bound, X: Any, by_row: dict[str, Any]) -> Any:
    """A Dask array with the chunks of X."""
    import dask.array as da
    from dask import delayed

    frame = hasattr(X, "to_dask_array")
    parts = X.to_delayed() if frame else X.rechunk({1: -1}).to_delayed().ravel()
    lengths = [np.nan] * len(parts) if frame else X.chunks[0]
    beside = [_parts(name, values, lengths) for name, values in by_row.items()]
    kinds = {name: np.empty(0, dtype=getattr(values, "dtype", float)) for name, values in by_row.items()}
    none = function.nothing(X._meta if frame else np.empty((0, X.shape[1])), kinds)
    task = delayed(function, pure=False)
    pieces = [
        da.from_delayed(task(part, *sides), (length, *none.shape[1:]), dtype=none.dtype)
        for part, length, *sides in zip(parts, lengths, *beside, strict=True)
    ]
    return da.concatenate(pieces, allow_unknown_chunksizes=True)


def _parts(name: str, values: Any, lengths: Any) -> list[Any]:
    """What has an entry per row, cut like X."""
    known = not np.isnan(np.asarray(lengths, dtype=float)).any()
    if is_dask(values):
        if known and hasattr(values, "rechunk"):
            values = values.rechunk({0: tuple(lengths)})
        parts = np.ravel(values.to_delayed()).tolist()
        if len(parts) == len(lengths):
            return parts
    elif known:
        return np.split(np.asarray(values), np.cumsum(lengths)[:-1])
    raise ValueError(
        f"{name} must be cut like X: give it as a Dask collection with the same chunks, or X as an array whose chunks "
        "are known."
    )


def _streamed(function: _Bound, source: Any, by_row: dict[str, Any]) -> Any:
    """All predictions, piece by piece."""
    for name, values in by_row.items():
        if len(values) != source.n_rows:
            raise ValueError(f"{name} has {len(values):,} entries for {source.n_rows:,} rows. Give one per row.")
    spans, out = source.spans, None
    for span, piece in zip(spans, source.stream(range(len(spans))), strict=True):
        part = function(piece.X, *(np.asarray(values)[span] for values in by_row.values()))
        out = np.empty((source.n_rows, *part.shape[1:]), dtype=part.dtype) if out is None else out
        out[span] = part
    return out


def _order(model: Any, names: tuple[str, ...] | None) -> Any:
    """Where the model's columns are among those of the rows: by name, where both have names."""
    known = getattr(model, "feature_names_in_", None)
    if known is None or names is None:
        return slice(None)
    if sorted(known) != sorted(names):
        raise ValueError(
            f"The rows have the columns {', '.join(names)}, but the model was fitted with {', '.join(known)}. "
            "Choose them with columns=."
        )
    return [names.index(name) for name in known]
