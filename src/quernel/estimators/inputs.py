"""Training data given as an object of `quernel.data` or as a Dask collection, rather than as arrays.

`fit` accepts arrays, data frames, row sources (`ParquetRows`, `MemmapRows`, ...) and Dask collections. This module
decides which one it is (`source_of`), loads what fits in memory (`load_if_fits`), and draws, selects and predicts rows
of data that do not.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quernel.data import ArrayRows, DaskRows, Piece, RowSource, SelectedRows, memory_budget
from quernel.data.sources import is_stream
from quernel.estimators.validation import check_training

Array = NDArray[np.floating]
Index = NDArray[np.intp]

NUMBER = 8  # bytes of a float64


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


def training_rows(
    estimator: Any,
    X: Any,
    y: Any,
    sample_weight: Any,
    read_target: Callable[[Any], NDArray[Any]] | None,
    *,
    finite: bool,
) -> Any:
    """Validate the data of a fit.

    Returns `ArrayRows` if they fit in memory (rows of weight 0 are dropped), otherwise the out-of-core source itself.
    Sets `n_features_in_` and, if there are names, `feature_names_in_`. `read_target` validates y; None expects numbers.
    `finite` looks for NaN and infinity in X, which takes a pass over it.
    """
    given = source_of(X, y, sample_weight)
    if given is not None:
        source = load_if_fits(given, estimator.max_memory)
        if not isinstance(source, ArrayRows):
            require_in_memory(estimator, source)
            record_feature_names(estimator, source)
            return source
        X, y, sample_weight = source.X, source.y, source.weight
    X, y, weight = check_training(estimator, X, y, sample_weight, read_target, finite=finite)
    if given is not None and not isinstance(given, ArrayRows):
        record_feature_names(estimator, given)
    return ArrayRows(X, y, weight)


def require_in_memory(estimator: Any, source: Any) -> None:
    """Raise ValueError if the estimator has an option that needs all rows in memory; these rows are out of core."""
    dask = isinstance(source, DaskRows)
    where = "stay where Dask has them" if dask else "exceed max_memory and are read in parts"
    for what, instead in estimator._in_memory_only():
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
    return _read_all(source)


def _read_all(source: Any) -> ArrayRows:
    """Read all rows of a source into memory, block by block."""
    X, y = np.empty((source.n_rows, source.n_columns)), np.empty(source.n_rows)
    weight = np.empty(source.n_rows) if source.weighted else None
    for span, piece in zip(source.spans, source.stream(range(len(source.spans))), strict=True):
        X[span], y[span] = piece.X, piece.y
        if weight is not None:
            weight[span] = piece.weight
    return ArrayRows(X, y, weight)


def sample_rows(source: Any, size: int, rng: np.random.Generator) -> tuple[ArrayRows, NDArray[np.intp]]:
    """Draw `size` rows without replacement; return them in memory, in their original order, and their positions."""
    chosen = np.zeros(source.n_rows, dtype=bool)
    chosen[rng.choice(source.n_rows, size, replace=False, shuffle=False)] = True
    index = np.flatnonzero(chosen)
    if not isinstance(source, DaskRows):
        return _read_all(SelectedRows(source, chosen)), index
    from dask import compute

    X, y, *weight = compute(*(part[index] for part in (source.X, source.y, source.weight) if part is not None))
    return ArrayRows(X, y, *weight), index


def selected(source: Any, chosen: NDArray[np.bool_]) -> Any:
    """Subset of a source by a mask of shape (n_rows,); nothing is read or computed."""
    if not isinstance(source, DaskRows):
        return SelectedRows(source, chosen)
    index = np.flatnonzero(chosen)
    some = DaskRows(source.X[index], source.y[index], None if source.weight is None else source.weight[index])
    some.names = source.names
    return some


def judged(predict: Callable[[Array], Array], source: Any) -> tuple[Array, Array]:
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


def record_feature_names(estimator: Any, source: Any) -> None:
    """Set `n_features_in_` and, if the source has column names, `feature_names_in_`."""
    estimator.n_features_in_ = source.n_columns
    if source.names is not None:
        estimator.feature_names_in_ = np.array(source.names, dtype=object)
    elif hasattr(estimator, "feature_names_in_"):
        del estimator.feature_names_in_
