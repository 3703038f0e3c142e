"""Data given as an object of `quernel.data` or as a Dask collection, rather than as arrays, to `fit` and `predict`.

`fit` accepts arrays, data frames, row sources (`ParquetRows`, `MemmapRows`, ...) and Dask collections. `source_of`
decides which one it is, `load_if_fits` loads what fits in memory; other functions draw, select and predict rows of data
that do not. The decorator `blockwise` extends row-wise methods such as `predict` to

- a Dask array or data frame: returns a lazy Dask array with the chunks of X, one task per chunk;
- a row source of files: reads block by block and returns an array for all rows.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import Any

import narwhals as nw
import numpy as np
from numpy.typing import NDArray

from quernel.data import ArrayRows, DaskRows, Piece, RowSource, SelectedRows, memory_budget
from quernel.data.sources import is_stream, read_all
from quernel.estimators.validation import check_training
from quernel.estimators.warnings import stacklevel_of_caller
from quernel.tables import TableEncoder, TableWarning
from quernel.tables.column_stats import find_numeric_traps
from quernel.tables.frames import open_frame
from quernel.tuning.data_summary import DataSummary, summarize_rows

Array = NDArray[np.floating]
Index = NDArray[np.intp]

NUMBER = 8  # bytes of a float64
# Names of arguments, besides X, that may have one entry per row and are then split like X.
PER_ROW = ("y", "groups", "density_ratio")


def drop_zero_weight(splits: Iterable[tuple[Any, Any]], counts: NDArray[np.bool_]) -> list[tuple[Index, Index]]:
    """Validate (train, test) pairs and renumber them as positions among the rows of positive weight.

    Parameters
    ----------
    splits : iterable of (train, test)
        Index arrays or masks over all n rows: splitters also see the rows of weight 0, which no fit uses.
    counts : ndarray of bool of shape (n,)
        Which rows have a positive weight.
    """
    # position[i] is the number of row i among the rows of positive weight.
    position, found = np.cumsum(counts) - 1, []
    for k, pair in enumerate(splits):
        train, test = (position[part[counts[part]]] for part in (_check_positions(part, len(counts)) for part in pair))
        if len(train) == 0 or len(test) == 0:
            raise ValueError(
                f"Split {k} of cv has {len(train)} rows to fit and {len(test)} to judge by; none may be 0."
            )
        found.append((train, test))
    if not found:
        raise ValueError("cv gives no split at all.")
    return found


def _check_positions(part: Any, n_rows: int) -> Index:
    """One side of a split as non-negative row numbers; masks and negative positions are accepted."""
    part = np.atleast_1d(part)
    if part.size == 0:
        return np.empty(0, dtype=np.intp)
    if part.dtype == bool and part.shape == (n_rows,):
        return np.flatnonzero(part)
    whole = part.dtype.kind in "iu" and part.ndim == 1
    if not whole or not -n_rows <= part.min() <= part.max() < n_rows:
        raise ValueError(f"cv must give positions among {n_rows} rows; got {part!r}.")
    return part % n_rows


def is_dask(X: Any) -> bool:
    """Whether this is a Dask array or data frame, found out without importing Dask."""
    return hasattr(X, "__dask_graph__")


def source_of(X: Any, y: Any, sample_weight: Any) -> ArrayRows | DaskRows | RowSource | None:
    """The row source that (X, y, sample_weight) stand for, or None if X is an array or data frame in memory.

    A row source brings its own target and weights, so y and sample_weight must then be None.
    """
    if is_dask(X):
        if y is None:
            raise ValueError(
                "A Dask collection needs y: a Dask array or series of as many rows, or the name of a column of the "
                "data frame. Rows with their target are quernel.data.DaskRows(X, y)."
            )
        return DaskRows(X, y, sample_weight)
    if is_dask(y) or is_dask(sample_weight):
        raise ValueError(
            f"y or sample_weight is a Dask collection, but X is a {type(X).__name__}. Give X as one, too, or compute "
            "them first."
        )
    if not (isinstance(X, ArrayRows | DaskRows) or is_stream(X)):
        return None
    for name, given, role in (("y", y, "target"), ("sample_weight", sample_weight, "weight")):
        if given is not None:
            raise ValueError(
                f"{name} was given beside {type(X).__name__}, which has its own {role}. Leave {name} out, and name the "
                f"{role} where the rows are made."
            )
    if getattr(X, "y", True) is None:
        raise ValueError(f"{type(X).__name__} has no target. Make it with one.")
    return X


@dataclass(frozen=True, eq=False)
class FitData:
    """Validated data of a fit.

    Attributes
    ----------
    rows : ArrayRows if they fit in memory (rows of weight 0 are dropped), otherwise the out-of-core source itself
    names : names of the given columns, ndarray of str of shape (d,), or None
    encoder : TableEncoder of columns other than finite numbers, None if there are none
    notes : sentences for the user on columns of a data frame
    centred : whether targets far from zero are centred: in the summary, and in all that is computed from it
    """

    rows: Any
    names: NDArray[Any] | None
    encoder: TableEncoder | None = None
    notes: tuple[str, ...] = ()
    centred: bool = False

    @property
    def row_names(self) -> NDArray[Any] | None:
        """Names of the columns of `rows`, which are encoded ones if there is an encoder."""
        return self.names if self.encoder is None else self.encoder.get_feature_names_out()

    @cached_property
    def summary(self) -> DataSummary:
        """Statistics of the rows, computed when they are first asked for."""
        summary = summarize_rows(self.rows)
        return summary.centred() if self.centred else summary


def read_fit_data(
    estimator: Any,
    X: Any,
    y: Any,
    sample_weight: Any,
    read_target: Callable[[Any], NDArray[Any]] | None,
    *,
    finite: bool,
) -> FitData:
    """Validate the data of a fit; the estimator is left unchanged.

    `read_target` validates y; None expects numbers. `finite` looks for NaN and infinity in X, which takes a pass over
    it.
    """
    given = source_of(X, y, sample_weight)
    names = None
    if given is not None:
        source = load_if_fits(given, estimator.max_memory)
        if not isinstance(given, ArrayRows) and given.names is not None:
            names = np.array(given.names, dtype=object)
        if not isinstance(source, ArrayRows):
            require_in_memory(estimator._restrictions("out_of_core"), source)
            return FitData(source, names)
        X, y, sample_weight = source.X, source.y, source.weight
    header = copy(estimator)  # scikit-learn writes the names of the columns on it
    header.__dict__.pop("encoder_", None)
    rows, y, weight = check_training(header, X, y, sample_weight, read_target, finite=finite)
    if given is None or isinstance(given, ArrayRows):
        names = getattr(header, "feature_names_in_", None)
    encoder = getattr(header, "encoder_", None)
    return FitData(ArrayRows(rows, y, weight), names, encoder, warn_of_traps(X, rows, y, names, encoder))


def warn_of_traps(
    X: Any, rows: Array, y: NDArray[Any], names: NDArray[Any] | None, encoder: TableEncoder | None
) -> tuple[str, ...]:
    """Return sentences on the columns of X, and warn of those that identify rows or tell the target.

    `rows` (n, d) and `y` (n,) are what was read from X and its target.
    """
    alarms = _find_traps(X, rows, y, names) if encoder is None else encoder.alarms_
    if alarms:
        warnings.warn(" ".join(alarms), TableWarning, stacklevel=stacklevel_of_caller())
    return tuple(map(str, alarms)) if encoder is None else (_describe_encoding(encoder), *encoder.notes_)


def _describe_encoding(encoder: TableEncoder) -> str:
    n_columns, n_encoded = encoder.n_features_in_, len(encoder.names)
    return f"X has columns other than finite numbers: encoder_ makes {n_encoded} columns of numbers of its {n_columns}."


def _find_traps(X: Any, rows: Array, y: NDArray[Any], names: NDArray[Any] | None) -> Sequence[str]:
    """Sentences on columns of a data frame of numbers that identify rows, or tell the target."""
    if names is None or isinstance(X, np.ndarray) or y.dtype.kind != "f" or len(rows) != len(X):
        return []
    return find_numeric_traps(open_frame(X), y)


def require_in_memory(options: Iterable[tuple[str, str]], source: Any) -> None:
    """Raise ValueError if there are (option, alternative) that need all rows in memory; these rows are out of core."""
    dask = isinstance(source, DaskRows)
    where = "stay where Dask has them" if dask else "exceed max_memory and are read in parts"
    for what, instead in options:
        raise ValueError(
            f"{what} needs all rows in memory, but these {source.n_rows:,} x {source.n_columns} {where}. "
            f"Use {instead}, or give rows that fit in memory."
        )


def load_if_fits(source: Any, max_memory: int | None) -> Any:
    """Read the rows of files into arrays if they fit in `max_memory` bytes; return any other source unchanged."""
    if not is_stream(source):
        return source
    if NUMBER * source.n_rows * (source.n_columns + 1 + source.weighted) > memory_budget(max_memory):
        return source
    return read_all(source)


def sample_rows(source: Any, size: int, rng: np.random.Generator) -> tuple[ArrayRows, NDArray[np.intp]]:
    """Draw `size` rows without replacement; return them in memory, in their original order, and their positions."""
    chosen = np.zeros(source.n_rows, dtype=bool)
    chosen[rng.choice(source.n_rows, size, replace=False, shuffle=False)] = True
    index = np.flatnonzero(chosen)
    if not isinstance(source, DaskRows):
        return read_all(SelectedRows(source, chosen)), index
    from dask import compute

    X, y, *weight = compute(*(part[index] for part in (source.X, source.y, source.weight) if part is not None))
    return ArrayRows(X, y, *weight), index


def subset(source: Any, chosen: NDArray[np.bool_]) -> Any:
    """Subset of a source by a mask of shape (n_rows,); nothing is read or computed."""
    if not isinstance(source, DaskRows):
        return SelectedRows(source, chosen)
    index = np.flatnonzero(chosen)
    some = DaskRows(source.X[index], source.y[index], None if source.weight is None else source.weight[index])
    some.names = source.names
    return some


def predict_in_place(predict: Callable[[Array], Array], source: Any) -> tuple[Array, Array]:
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
    """Picklable task: predictions and targets of one block, without rows of weight 0."""

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
        self, method: Callable[..., Any], model: Any, kwargs: dict[str, Any], per_row: tuple[str, ...], order: Any
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
        """Result for zero rows, with the right dtype and trailing shape: predict one row and drop it."""
        row: Any = _typical_row(self.model, X.shape[1])
        if hasattr(X, "columns"):  # of mixed columns, missing values, which are imputed by typical ones
            mixed = hasattr(_innermost(self.model), "encoder_")
            row = X.reindex([0]) if mixed else type(X)(row, columns=X.columns)
        one = {name: np.zeros(1, dtype=values.dtype) for name, values in entries.items()}
        return self._call_method(row, one)[:0]


def _innermost(model: Any) -> Any:
    """The model itself, or the first of those that it calibrates."""
    return getattr(model, "estimators_", [model])[0]


def _typical_row(model: Any, n_columns: int) -> Any:
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
    """Split a per-row argument into the chunks of X, whose lengths are `lengths` (nan where unknown)."""
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


def _predict_streamed(function: _BoundMethod, source: Any, per_row: dict[str, Any]) -> Any:
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


def _column_order(model: Any, names: tuple[str, ...] | None) -> Any:
    """Positions of the model's columns in the source, matched by name if both have names, else all in order."""
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
    """Predictions of shape (n, q) as a data frame of the library of X, with its index if it has one."""
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
