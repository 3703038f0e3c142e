"""Training data: what `fit` is given, read and checked; each error says what is wrong, what was given and what to do.

`fit` accepts arrays, data frames, row sources (`ParquetRows`, `MemmapRows`, ...) and Dask collections. `source_of`
decides which one it is, `load_if_fits` loads what fits in memory; other functions draw and select rows of data that do
not. `prediction.py` has the rows to predict.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import _safe_indexing
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, column_or_1d, validate_data

from quernel._machine import parallel_map, single_threaded_blas
from quernel._validation import LARGEST, SMALLEST, check_weight, sum_silently
from quernel.data import ArrayRows, DaskRows, RowSource, SelectedRows, blocks, memory_budget
from quernel.data.sources import is_stream, read_all
from quernel.estimators.warnings import stacklevel_of_caller
from quernel.losses import LOSSES, Loss
from quernel.tables import TableEncoder, TableWarning
from quernel.tables.column_stats import find_numeric_traps
from quernel.tables.frames import Frame, TableError, as_entries, open_frame, refuse_repeated_names, to_numbers
from quernel.tuning.data_summary import DataSummary, summarize_rows

Array = NDArray[np.floating]
Rows = ArrayRows | DaskRows | RowSource
Names = NDArray[np.object_]  # of columns, (d,)

NUMBER = 8  # bytes of a float64
# Up to this many entries, X is checked for NaN immediately, even if a later pass would find them.
QUICK_TO_READ = 2_000_000


def source_of(X: Any, y: Any, sample_weight: ArrayLike | None) -> Rows | None:
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


def is_dask(X: Any) -> bool:
    """Whether this is a Dask array or data frame, found out without importing Dask."""
    return hasattr(X, "__dask_graph__")


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

    rows: Rows
    names: Names | None
    encoder: TableEncoder | None = None
    notes: tuple[str, ...] = ()
    centred: bool = False

    @property
    def in_memory(self) -> ArrayRows:
        """The rows as arrays, for options that rows out of core were refused with."""
        assert isinstance(self.rows, ArrayRows)
        return self.rows

    @property
    def row_names(self) -> Names | None:
        """Names of the columns of `rows`, which are encoded ones if there is an encoder."""
        return self.names if self.encoder is None else self.encoder.get_feature_names_out()

    @cached_property
    def summary(self) -> DataSummary:
        """Statistics of the rows, computed when they are first asked for."""
        summary = summarize_rows(self.rows)
        return summary.centred() if self.centred else summary


def read_fit_data(
    estimator: BaseEstimator,
    X: Any,
    y: Any,
    sample_weight: ArrayLike | None,
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


def check_training(
    estimator: BaseEstimator,
    X: Any,
    y: Any,
    sample_weight: ArrayLike | None,
    read_target: Callable[[Any], NDArray[Any]] | None = None,
    *,
    finite: bool = True,
) -> tuple[Array, NDArray[Any], Array | None]:
    """Validate X, y and sample_weight for a fit; rows of weight 0 are dropped.

    The number and names of the columns are stored on the estimator, and `encoder_` if X has columns other than finite
    numbers. `read_target` validates y; None expects numbers. `finite` looks for NaN and infinity in large X, too, which
    costs a pass over it.
    """
    if y is None:
        raise ValueError(
            f"This {type(estimator).__name__} estimator requires y to be passed, but the target y is None."
        )
    rows = None if is_mixed(X) else check_numbers(estimator, X, finite=finite)
    target = check_target(y) if read_target is None else read_target(y)
    check_lengths(X if rows is None else rows, target)
    if read_target is None:
        _refuse_extreme_target(target)
    weight = None if sample_weight is None else check_weight(sample_weight, len(target))
    if weight is not None and not weight.all():
        kept = np.flatnonzero(weight)
        X, rows = (_safe_indexing(X, kept), None) if rows is None else (X, rows[kept])
        target, weight = target[kept], weight[kept]
    if rows is None:
        rows = _encode_training(estimator, X, target, weight)
    return rows, target, weight


def _encode_training(estimator: BaseEstimator, X: Any, target: NDArray[Any], weight: Array | None) -> Array:
    """Encode training rows by a new encoder, which is stored on the estimator with the names of the columns.

    An encoder of categories by means of the target gives training rows other values than new ones: those of means that
    leave the row's fold out. Otherwise a rare category would tell the target of its rows.
    """
    frame = open_frame(X)
    refuse_infinite(frame, frame.names)
    encoder = TableEncoder().fit(frame, target, weight)
    estimator.encoder_, estimator.n_features_in_ = encoder, encoder.n_features_in_
    estimator.__dict__.pop("feature_names_in_", None)
    if hasattr(encoder, "feature_names_in_"):
        estimator.feature_names_in_ = encoder.feature_names_in_
    return encoder.encode(frame, 0)


def refuse_infinite(frame: Frame, needed: Sequence[str]) -> None:
    """Raise TableError if a needed column of numbers, or any of a table without names, has infinite ones."""
    wanted = {*needed} if frame.named else {*frame.names}
    for name in frame.names:
        if name not in wanted or frame.get(name).kind != "number":
            continue
        if count := int(np.isinf(to_numbers(frame.get(name))).sum()):
            raise TableError(
                f"Input X contains infinity in column {name!r} ({count} entries). Replace it by a number or NaN."
            )


def warn_of_traps(
    X: Any, rows: Array, y: NDArray[Any], names: Names | None, encoder: TableEncoder | None
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


def _find_traps(X: Any, rows: Array, y: NDArray[Any], names: Names | None) -> Sequence[str]:
    """Sentences on columns of a data frame of numbers that identify rows, or tell the target.

    Arrays are not looked at: their columns have no names that a warning could give.
    """
    if names is None or isinstance(X, np.ndarray) or y.dtype.kind != "f" or len(rows) != len(X):
        return []
    return find_numeric_traps(open_frame(X), y)


def check_levels(quantiles: object) -> tuple[Array, bool]:
    """Validate quantile levels; return them as an array (q,), and whether a single float was given.

    Predictions for a single float are one-dimensional.
    """
    try:
        if isinstance(quantiles, str) or quantiles is None:
            raise TypeError
        levels = np.asarray(quantiles, dtype=float)
    except (TypeError, ValueError) as error:
        raise ValueError(f"quantiles must be a number or a sequence of numbers; got {quantiles!r}.") from error
    if levels.ndim > 1 or levels.size == 0:
        raise ValueError(f"quantiles must be one level or a flat sequence of levels; got {quantiles!r}.")
    single, levels = levels.ndim == 0, np.atleast_1d(levels)
    outside = levels[~((levels > 0) & (levels < 1))]
    if len(outside):
        raise ValueError(
            f"Quantile levels must lie strictly between 0 and 1; got {outside.tolist()}. "
            "Write 0.95 for the 95th percentile."
        )
    if len(np.unique(levels)) < len(levels):
        raise ValueError(f"Quantile levels must differ from one another; got {levels.tolist()}.")
    return levels, single


def is_mixed(X: Any) -> bool:
    """Whether a table has columns other than numbers, by their types; gaps are not looked for."""
    if isinstance(X, list | tuple):
        X = np.asarray(X, dtype=object) if np.asarray(X).dtype.kind in "US" else np.asarray(X)
    if isinstance(X, np.ndarray):
        return X.ndim == 2 and X.dtype.kind in "OUM" and not _all_numbers(X)
    if not is_frame(X) and not hasattr(X, "schema"):
        return False
    frame = open_frame(X)
    return any(frame.get(name).kind not in ("number", "boolean") for name in frame.names)


def check_numbers(estimator: BaseEstimator, X: Any, *, finite: bool = True) -> Array | None:
    """Validate training rows of numbers; return a float64 array of shape (n, d), or None if values are missing.

    The number and names of the columns are stored on the estimator.
    """
    if is_frame(X):
        refuse_repeated_names(list(X.columns))
    array = validate_data(estimator, X, reset=True, dtype=np.float64, ensure_all_finite=False, ensure_min_samples=1)
    if not finite and array.size > QUICK_TO_READ:
        return array
    return None if has_missing(array, getattr(estimator, "feature_names_in_", None)) else array


def check_target(y: Any) -> Array:
    """Validate a numeric target; return a finite float64 array of shape (n,)."""
    if is_dates(np.asarray(y).ravel()):
        raise ValueError("y holds dates where numbers are needed. Turn it into numbers first, such as days.")
    try:
        target = column_or_1d(y, warn=True)
        target = check_array(target, ensure_2d=False, dtype=np.float64, ensure_all_finite=False, input_name="y")
    except ValueError as error:
        if "could not convert string" in str(error):
            raise ValueError(f"y holds text where numbers are needed: {error}. Encode it as numbers first.") from error
        raise
    missing, infinite = np.isnan(target).sum(), np.isinf(target).sum()
    if missing or infinite:
        raise ValueError(
            f"Input y contains NaN or infinity: {missing} NaN and {infinite} infinite among {len(target)} values. "
            "Leave those rows out."
        )
    return target


def check_labels(y: Any) -> NDArray[Any]:
    """Validate class labels: an array of shape (n,) of numbers, strings or booleans, all of one type.

    Labels of several types have no order, and so no `classes_`.
    """
    labels = column_or_1d(y, warn=True)
    if labels.dtype.kind == "O":
        kinds = {"text" if isinstance(label, str) else type(label).__name__ for label in labels.tolist()}
        if len(kinds) > 1:
            raise ValueError(
                f"y mixes labels of different types ({', '.join(sorted(kinds))}). Make them all text, or all numbers."
            )
    if labels.dtype.kind == "f" and not np.isfinite(labels).all():
        raise ValueError(
            f"Input y contains NaN or infinity: {np.sum(~np.isfinite(labels))} of {len(labels)} labels. "
            "Leave those rows out."
        )
    try:
        check_classification_targets(labels)
    except ValueError as error:
        raise ValueError(
            f"{error} y must hold class labels. For numbers to be predicted as such use KernelRegressor or "
            "KernelQuantileRegressor."
        ) from error
    return labels


def check_loss(loss: object, *, margin: bool) -> None:
    """Raise ValueError unless `loss` is a name or object of `quernel.losses`, of the margin (classes) or residual."""
    names = [name for name, known in LOSSES.items() if known.margin == margin]
    other, use = ("residual", "KernelRegressor") if margin else ("margin", "KernelClassifier")
    listed = ", ".join(map(repr, names))
    if isinstance(loss, str) and loss not in LOSSES:
        raise ValueError(f"Unknown loss {loss!r}. Known: {listed}, or an object of quernel.losses.")
    if not isinstance(loss, str | Loss):
        raise ValueError(f"loss must be one of {listed}, or an object of quernel.losses; got {loss!r}.")
    if (LOSSES[loss].margin if isinstance(loss, str) else loss.margin) != margin:
        raise ValueError(f"The loss {loss!r} is one of the {other}. Use {use} for it, or one of {listed}.")
    if isinstance(loss, Loss) and loss.n_columns != 1:
        raise ValueError(
            f"The loss must be of one column here; got {loss!r} with {loss.n_columns}. Give one number only."
        )


def check_lengths(X: Any, y: Array) -> None:
    """Raise ValueError unless X and y have the same length."""
    if len(X) != len(y):
        raise ValueError(
            f"X has {len(X)} rows but y has {len(y)} entries (inconsistent numbers of samples): give one per row."
        )


def has_missing(X: Array, names: Names | None) -> bool:
    """Whether X has NaN; raise ValueError if it has infinity."""
    with single_threaded_blas(*X.shape) as threads:  # finite sums prove finite X, in one cheap pass
        if np.isfinite(parallel_map(lambda block: sum_silently(X[block]), blocks(*X.shape), threads)).all():
            return False
    # A sum may also overflow, so look at the entries themselves.
    if np.isinf(X).any():
        refuse_missing(X, names)
    return bool(np.isnan(X).any())


def refuse_missing(X: Array, names: Names | None) -> None:
    """Raise ValueError if X has NaN or infinity, with their numbers by column."""
    missing, infinite = np.isnan(X).sum(axis=0), np.isinf(X).sum(axis=0)
    bad = np.flatnonzero(infinite if infinite.any() else missing)
    if len(bad) == 0:
        return
    labels = [repr(str(names[j])) if names is not None else str(j) for j in bad]
    shown = ", ".join(
        f"column {label} ({missing[j]} NaN, {infinite[j]} infinite)"
        for j, label in list(zip(bad, labels, strict=True))[:5]
    )
    more = f" and {len(bad) - 5} more columns" if len(bad) > 5 else ""
    if infinite.any():
        remedy = "Replace it by a number, or by NaN if the value is missing"
    else:
        remedy = "Encode large X for a linear kernel first, with quernel.TableEncoder in a Pipeline"
    raise ValueError(f"Input X contains {'infinity' if infinite.any() else 'NaN'} in {shown}{more}. {remedy}.")


def refuse_large(limits: Array, names: Names | None) -> None:
    """Raise ValueError if a column is too large to square; `limits` (2, d) are the column minima and maxima.

    Distances and variances would be infinite, and a kernel 0 between all rows.
    """
    largest = np.abs(limits).max(axis=0)
    if (largest > LARGEST).any():
        j = int(np.argmax(largest > LARGEST))
        label = str(j) if names is None else repr(str(names[j]))
        raise ValueError(
            f"Column {label} of X holds numbers as large as {largest[j]:.3g}, and beyond {LARGEST:g} their squares "
            "overflow. Rescale it."
        )


def _refuse_extreme_target(y: Array) -> None:
    """Raise ValueError if y is so large that squares overflow, or so nearly constant that they underflow."""
    if np.abs(y).max(initial=0) > LARGEST:
        raise ValueError(
            f"y holds numbers as large as {np.abs(y).max():.3g}, and beyond {LARGEST:g} their squares overflow. "
            "Rescale it."
        )
    if len(y) and 0 < np.ptp(y) < SMALLEST:
        raise ValueError(
            f"The entries of y differ by {np.ptp(y):.3g} at most, and below {SMALLEST:g} squares vanish. Rescale it."
        )


def is_frame(X: Any) -> bool:
    """Whether X is a pandas or polars data frame."""
    return hasattr(X, "columns") and hasattr(X, "dtypes")


def _all_numbers(X: NDArray[Any]) -> bool:
    """Whether an array of objects or text holds nothing but numbers, be they written as text, and missing values."""
    return X.dtype.kind == "O" and all(as_entries(column).kind in ("number", "boolean", None) for column in X.T)


def is_dates(values: NDArray[Any]) -> bool:
    """Whether these are dates or times: by dtype, or objects with a year and a month."""
    if values.dtype.kind in "Mm":
        return True
    return values.dtype.kind == "O" and any(
        hasattr(value, "year") and hasattr(value, "month") for value in values.tolist()
    )


def require_in_memory(options: Iterable[tuple[str, str]], source: DaskRows | RowSource) -> None:
    """Raise ValueError if there are (option, alternative) that need all rows in memory; these rows are out of core."""
    dask = isinstance(source, DaskRows)
    where = "stay where Dask has them" if dask else "exceed max_memory and are read in parts"
    for what, instead in options:
        raise ValueError(
            f"{what} needs all rows in memory, but these {source.n_rows:,} x {source.n_columns} {where}. "
            f"Use {instead}, or give rows that fit in memory."
        )


def load_if_fits(source: Rows, max_memory: int | None) -> Rows:
    """Read the rows of files into arrays if they fit in `max_memory` bytes; return any other source unchanged."""
    if not is_stream(source):
        return source
    if NUMBER * source.n_rows * (source.n_columns + 1 + source.weighted) > memory_budget(max_memory):
        return source
    return read_all(source)


def sample_rows(
    source: DaskRows | RowSource, size: int, rng: np.random.Generator
) -> tuple[ArrayRows, NDArray[np.intp]]:
    """Draw `size` rows without replacement; return them in memory, in their original order, and their positions.

    A mask of all rows serves files, which are read in order, and sorts the positions for Dask on the way.
    """
    chosen = np.zeros(source.n_rows, dtype=bool)
    chosen[rng.choice(source.n_rows, size, replace=False, shuffle=False)] = True
    index = np.flatnonzero(chosen)
    if not isinstance(source, DaskRows):
        return read_all(SelectedRows(source, chosen)), index
    from dask import compute

    X, y, *weight = compute(*(part[index] for part in (source.X, source.y, source.weight) if part is not None))
    return ArrayRows(X, y, *weight), index


def subset(source: Any, chosen: NDArray[np.bool_]) -> DaskRows | SelectedRows:
    """Subset of a source by a mask of shape (n_rows,); nothing is read or computed."""
    return source.select(np.flatnonzero(chosen)) if isinstance(source, DaskRows) else SelectedRows(source, chosen)
