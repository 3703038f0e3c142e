"""Rows to predict, in memory or out of core: their checks, and predictions as data frames.

The decorator `blockwise` extends row-wise methods such as `predict` to

- a Dask array or data frame: returns a lazy Dask array with the chunks of X, one task per chunk;
- a row source of files: reads block by block and returns an array for all rows.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import Any

import narwhals as nw
import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import validate_data

from quernel._validation import check_weight
from quernel.data import ArrayRows, DaskRows, Piece, RowSource
from quernel.data.sources import is_stream
from quernel.estimators.inputs import (
    check_lengths,
    check_target,
    has_missing,
    is_dask,
    is_dates,
    is_frame,
    refuse_infinite,
)
from quernel.tables.frames import open_frame, refuse_repeated_names

Array = NDArray[np.floating]
# Columns of a source, by their positions or all of them.
Places = list[int] | slice

# Names of arguments, besides X, that may have one entry per row and are then split like X.
PER_ROW = ("y", "groups", "density_ratio")


def check_rows(estimator: BaseEstimator, X: Any, *, training: bool = False) -> Array:
    """Validate rows to predict; return a float64 array of shape (n, d), encoded if the estimator has an encoder.

    The columns must be those of the fit. Missing values, where the training rows had none, are imputed by their means.
    `training` is for all rows of the fit, in their order, which are encoded as they were then.
    """
    encoder = getattr(estimator, "encoder_", None)
    if encoder is not None:
        frame = open_frame(X, encoder.inputs)
        refuse_infinite(frame, encoder.inputs)
        return encoder.encode(frame, 0 if training else None)
    if is_frame(X):
        refuse_repeated_names(list(X.columns))
    _refuse_text(X)
    array = validate_data(estimator, X, reset=False, dtype=np.float64, ensure_all_finite=False, ensure_min_samples=1)
    if not has_missing(array, getattr(estimator, "feature_names_in_", None)):
        return array
    return np.where(np.isnan(array), estimator._fill, array)


def check_scored(
    estimator: BaseEstimator, X: Any, y: Any, sample_weight: ArrayLike | None
) -> tuple[Array, Array, Array]:
    """Validate the data of `score`: X of shape (n, d), y (n,), and weights (n,), ones if none are given."""
    X, y = check_rows(estimator, X), check_target(y)
    check_lengths(X, y)
    return X, y, np.ones(len(X)) if sample_weight is None else check_weight(sample_weight, len(X))


def _refuse_text(X: Any) -> None:
    """Raise ValueError if a column holds text or dates where the model was fitted to numbers."""
    for label, values in _suspicious_columns(X):
        example = _example(values) if is_dates(values) else _first_text(values)
        if example is not None:
            what = "dates" if is_dates(values) else "text"
            raise ValueError(
                f"Column {label} of X holds {what} (such as {example!r}), but the model was fitted to numbers. Give "
                "the columns that it was fitted to."
            )


def _suspicious_columns(X: Any) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield (label, values) of columns whose dtype is not numeric."""
    if is_frame(X):
        for name in X.columns:
            values = np.asarray(X[name])
            if values.ndim == 1 and values.dtype.kind not in "biuf":
                yield repr(str(name)), values
    elif isinstance(X, list | tuple | np.ndarray):
        array = np.asarray(X) if isinstance(X, np.ndarray) else np.array(X, dtype=object)
        if array.ndim == 2 and array.dtype.kind not in "biufc":
            for j in range(array.shape[1]):
                yield str(j), array[:, j]


def _example(values: NDArray[Any]) -> str:
    """The first entry that is not missing, for the message."""
    return str(next((value for value in values if value is not None and value == value), "NaT"))


def _first_text(values: NDArray[Any]) -> str | None:
    """The first string that does not parse as a number, or None."""
    for value in values.tolist():
        if isinstance(value, str | bytes):
            try:
                float(value)
            except ValueError:
                return str(value)
    return None


def predict_in_place(predict: Callable[[Array], Array], source: DaskRows | RowSource) -> tuple[Array, Array]:
    """Predictions and targets of the rows of a source, blockwise: streamed from files, or computed by Dask.

    Rows of weight 0 are left out of both.
    """
    if not isinstance(source, DaskRows):
        step, pieces = _PredictPiece(predict), source.stream(range(len(source.spans)))
        answers = [step(piece) for piece in pieces]
    else:
        from dask import compute, delayed

        task = delayed(_PredictPiece(predict), pure=False)
        answers = compute(*(task(piece) for piece in source.chunks()))
    predicted, y = zip(*answers, strict=True)
    return np.concatenate(predicted), np.concatenate(y)


class _PredictPiece:
    """Picklable task: predictions and targets of one block, without rows of weight 0, which are no part of a score."""

    def __init__(self, predict: Callable[[Array], Array]) -> None:
        self.predict = predict

    def __call__(self, piece: Piece) -> tuple[Array, Array]:
        assert piece.X is not None
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="X does not have valid feature names")  # blocks have no names
            if piece.weight is None or piece.weight.all():
                return self.predict(piece.X), piece.y
            counts = piece.weight > 0
            return self.predict(piece.X)[counts], piece.y[counts]


def blockwise(method: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate `method(model, X, ...)` so that X may also be a Dask collection or an object of `quernel.data`.

    The method itself only ever sees arrays or data frames. It must work row by row: the result for some rows must not
    depend on the others.
    """

    @wraps(method)
    def predict(self: Any, X: Any, *args: Any, **kwargs: Any) -> Any:
        order = None
        if isinstance(X, DaskRows) or is_stream(X):
            order = _column_order(self, X.names)
        if isinstance(X, ArrayRows | DaskRows):
            X = X.X
        if not (is_dask(X) or is_stream(X)):
            return method(self, X, *args, **kwargs)
        if kwargs.get("as_frame"):
            raise ValueError(f"as_frame=True is for data frames in memory; got a {type(X).__name__}. Leave it out.")
        if args:  # positional arguments after X, by their names in the signature
            kwargs |= dict(zip(method.__code__.co_varnames[2:], args, strict=False))
        per_row = {name: kwargs.pop(name) for name in PER_ROW if _is_per_row(kwargs.get(name))}
        function = _BoundMethod(method, self, kwargs, tuple(per_row), order)
        return _predict_dask(function, X, per_row) if is_dask(X) else _predict_streamed(function, X, per_row)

    return predict


class _BoundMethod:
    """Picklable function (X, *per_row) -> result: a method bound to a model and its keyword arguments.

    The method is looked up by name when called, so that the model is pickled and not the decorated function. `order`
    holds the positions of the model's columns in X for a source whose names were matched already; None leaves X as is.
    """

    def __init__(
        self,
        method: Callable[..., Any],
        model: BaseEstimator,
        kwargs: dict[str, Any],
        per_row: tuple[str, ...],
        order: Places | None,
    ) -> None:
        self.name, self.model, self.kwargs, self.per_row, self.order = method.__name__, model, kwargs, per_row, order

    def __call__(self, X: Any, *per_row: Any) -> Any:
        entries = {name: np.asarray(values) for name, values in zip(self.per_row, per_row, strict=True)}
        if len(X) == 0:
            return self.empty_result(X, entries)
        return self._call_method(X if self.order is None else X[:, self.order], entries)

    def _call_method(self, X: Any, entries: dict[str, Any]) -> Any:
        predict = getattr(self.model, self.name)
        if self.order is None:
            return predict(X, **self.kwargs, **entries)
        # The columns are in the model's order already, but a block is a plain array without names.
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="X does not have valid feature names")
            return predict(X, **self.kwargs, **entries)

    def empty_result(self, X: Any, entries: dict[str, Any]) -> Any:
        """Result for zero rows, with the right dtype and trailing shape: predict one row and drop it.

        Dask has to know both before anything is computed, and chunks may be empty.
        """
        row: Any = _typical_row(self.model, X.shape[1])
        if hasattr(X, "columns"):  # of mixed columns, missing values, which are imputed by typical ones
            mixed = hasattr(_innermost(self.model), "encoder_")
            row = X.reindex([0]) if mixed else type(X)(row, columns=X.columns)
        one = {name: np.zeros(1, dtype=values.dtype) for name, values in entries.items()}
        return self._call_method(row, one)[:0]


def _innermost(model: BaseEstimator) -> BaseEstimator:
    """The model itself, or the first of those that it calibrates."""
    return getattr(model, "estimators_", [model])[0]


def _typical_row(model: BaseEstimator, n_columns: int) -> Array:
    """One row at the centre of the training range, shape (1, d), which raises no ExtrapolationWarning; else zeros."""
    known = getattr(_innermost(model), "input_range_", np.zeros((2, 0)))
    if known.shape[1] != n_columns or not np.isfinite(known).all():
        return np.zeros((1, n_columns))
    return known.mean(axis=0)[None, :]


def _is_per_row(values: Any) -> bool:
    """Whether an argument has one entry per row: an array or Dask collection, not None, a scalar or a function."""
    return is_dask(values) or (values is not None and not callable(values) and np.ndim(values) > 0)


def _predict_dask(function: _BoundMethod, X: Any, per_row: dict[str, Any]) -> Any:
    """Lazy predictions: a Dask array with the chunks of X; chunk lengths of a data frame are unknown (nan)."""
    import dask.array as da
    from dask import delayed

    frame = hasattr(X, "to_dask_array")
    parts = X.to_delayed() if frame else X.rechunk({1: -1}).to_delayed().ravel()
    lengths = [np.nan] * len(parts) if frame else X.chunks[0]
    beside = [_split_like(name, values, lengths) for name, values in per_row.items()]
    kinds = {name: np.empty(0, dtype=getattr(values, "dtype", float)) for name, values in per_row.items()}
    none = function.empty_result(X._meta if frame else np.empty((0, X.shape[1])), kinds)
    task = delayed(function, pure=False)
    pieces = [
        da.from_delayed(task(part, *sides), (length, *none.shape[1:]), dtype=none.dtype)
        for part, length, *sides in zip(parts, lengths, *beside, strict=True)
    ]
    return da.concatenate(pieces, allow_unknown_chunksizes=True)


def _split_like(name: str, values: Any, lengths: Any) -> list[Any]:
    """Split a per-row argument into the chunks of X, whose lengths are `lengths` (nan where unknown).

    Chunks of a data frame have unknown lengths until they are computed: then only an argument in as many chunks fits.
    """
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
        f"{name} must be chunked like X: give it as a Dask collection with the same chunks, or X as an array whose "
        "chunks are known."
    )


def _predict_streamed(function: _BoundMethod, source: RowSource, per_row: dict[str, Any]) -> Any:
    """Predictions for all rows of a source, read and predicted block by block, shape (n, ...)."""
    for name, values in per_row.items():
        if len(values) != source.n_rows:
            raise ValueError(f"{name} has {len(values):,} entries for {source.n_rows:,} rows. Give one per row.")
    spans, out = source.spans, None
    for span, piece in zip(spans, source.stream(range(len(spans))), strict=True):
        part = function(piece.X, *(np.asarray(values)[span] for values in per_row.values()))
        out = np.empty((source.n_rows, *part.shape[1:]), dtype=part.dtype) if out is None else out
        out[span] = part
    return out


def _column_order(model: BaseEstimator, names: tuple[str, ...] | None) -> Places | None:
    """Positions of the model's columns in the source, matched by name if both have names, else all in order.

    Files of the same table may have their columns in another order; blocks are arrays, which cannot tell.
    """
    known = getattr(model, "feature_names_in_", None)
    if known is None or names is None:
        return slice(None)
    if sorted(known) != sorted(names):
        raise ValueError(
            f"The rows have the columns {', '.join(names)}, but the model was fitted with {', '.join(known)}. "
            "Choose them with columns=."
        )
    return [names.index(name) for name in known]


def as_frame_like(X: Any, values: Array, names: Sequence[str]) -> Any:
    """Predictions of shape (n, q) as a data frame of the library of X, with its index if it has one.

    The index is what aligns predictions with rows when a user joins both.
    """
    if isinstance(X, np.ndarray | list | tuple | dict):
        raise ValueError(f"as_frame=True needs X as a data frame; got {type(X).__name__}. Leave it out.")
    given = nw.from_native(X)
    columns = dict(zip(names, values.T, strict=True))
    frame = nw.from_dict(columns, backend=given.implementation).to_native()
    if hasattr(X, "iloc"):  # pandas
        frame.index = X.index
    return frame


def level_names(levels: Array) -> list[str]:
    """Names of columns of quantiles: q0.05, q0.5, ..."""
    return [f"q{level:.12g}" for level in levels.tolist()]
