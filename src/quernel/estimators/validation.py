"""Input validation: each error says what is wrong, what was given and what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import _safe_indexing
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, column_or_1d, validate_data

from quernel._machine import parallel_map, single_threaded_blas
from quernel._validation import LARGEST, SMALLEST, check_weight, sum_silently
from quernel.data import blocks
from quernel.losses import LOSSES, Loss
from quernel.tables import TableEncoder
from quernel.tables.frames import Frame, TableError, as_entries, open_frame, refuse_repeated_names, to_numbers

Array = NDArray[np.floating]

# Up to this many entries, X is checked for NaN immediately, even if a later pass would find them.
QUICK_TO_READ = 2_000_000


def check_levels(quantiles: Any) -> tuple[Array, bool]:
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


def check_lengths(X: Any, y: Array) -> None:
    """Raise ValueError unless X and y have the same length."""
    if len(X) != len(y):
        raise ValueError(
            f"X has {len(X)} rows but y has {len(y)} entries (inconsistent numbers of samples): give one per row."
        )


def check_rows(estimator: Any, X: Any, *, training: bool = False) -> Array:
    """Validate rows to predict; return a float64 array of shape (n, d), encoded if the estimator has an encoder.

    The columns must be those of the fit. Missing values, where the training rows had none, are imputed by their means.
    `training` is for all rows of the fit, in their order, which are encoded as they were then.
    """
    encoder = getattr(estimator, "encoder_", None)
    if encoder is not None:
        frame = open_frame(X, encoder.inputs)
        _refuse_infinite(frame, encoder.inputs)
        return encoder.encode(frame, 0 if training else None)
    if _is_frame(X):
        refuse_repeated_names(list(X.columns))
    _refuse_text(X)
    array = validate_data(estimator, X, reset=False, dtype=np.float64, ensure_all_finite=False, ensure_min_samples=1)
    if not has_missing(array, getattr(estimator, "feature_names_in_", None)):
        return array
    return np.where(np.isnan(array), estimator._fill, array)


def check_training(
    estimator: Any,
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


def _encode_training(estimator: Any, X: Any, target: NDArray[Any], weight: Array | None) -> Array:
    """Encode training rows by a new encoder, which is stored on the estimator with the names of the columns."""
    frame = open_frame(X)
    _refuse_infinite(frame, frame.names)
    encoder = TableEncoder().fit(frame, target, weight)
    estimator.encoder_, estimator.n_features_in_ = encoder, encoder.n_features_in_
    estimator.__dict__.pop("feature_names_in_", None)
    if hasattr(encoder, "feature_names_in_"):
        estimator.feature_names_in_ = encoder.feature_names_in_
    return encoder.encode(frame, 0)


def _refuse_infinite(frame: Frame, needed: Sequence[str]) -> None:
    """Raise TableError if a needed column of numbers, or any of a table without names, has infinite ones."""
    wanted = {*needed} if frame.named else {*frame.names}
    for name in frame.names:
        if name not in wanted or frame.get(name).kind != "number":
            continue
        if count := int(np.isinf(to_numbers(frame.get(name))).sum()):
            raise TableError(
                f"Input X contains infinity in column {name!r} ({count} entries). Replace it by a number or NaN."
            )


def is_mixed(X: Any) -> bool:
    """Whether a table has columns other than numbers, by their types; gaps are not looked for."""
    if isinstance(X, list | tuple):
        X = np.asarray(X, dtype=object) if np.asarray(X).dtype.kind in "US" else np.asarray(X)
    if isinstance(X, np.ndarray):
        return X.ndim == 2 and X.dtype.kind in "OUM" and not _all_numbers(X)
    if not _is_frame(X) and not hasattr(X, "schema"):
        return False
    frame = open_frame(X)
    return any(frame.get(name).kind not in ("number", "boolean") for name in frame.names)


def check_numbers(estimator: Any, X: Any, *, finite: bool = True) -> Array | None:
    """Validate training rows of numbers; return a float64 array of shape (n, d), or None if values are missing.

    The number and names of the columns are stored on the estimator.
    """
    if _is_frame(X):
        refuse_repeated_names(list(X.columns))
    array = validate_data(estimator, X, reset=True, dtype=np.float64, ensure_all_finite=False, ensure_min_samples=1)
    if not finite and array.size > QUICK_TO_READ:
        return array
    return None if has_missing(array, getattr(estimator, "feature_names_in_", None)) else array


def check_scored(estimator: Any, X: Any, y: Any, sample_weight: ArrayLike | None) -> tuple[Array, Array, Array]:
    """Validate the data of `score`: X of shape (n, d), y (n,), and weights (n,), ones if none are given."""
    X, y = check_rows(estimator, X), check_target(y)
    check_lengths(X, y)
    return X, y, np.ones(len(X)) if sample_weight is None else check_weight(sample_weight, len(X))


def check_target(y: Any) -> Array:
    """Validate a numeric target; return a finite float64 array of shape (n,)."""
    if _is_dates(np.asarray(y).ravel()):
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
    """Validate class labels: an array of shape (n,) of numbers, strings or booleans, all of one type."""
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


def check_loss(loss: Any, *, margin: bool) -> None:
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


def has_missing(X: Array, names: NDArray[Any] | None) -> bool:
    """Whether X has NaN; raise ValueError if it has infinity."""
    with single_threaded_blas(*X.shape) as threads:  # finite sums prove finite X, in one cheap pass
        if np.isfinite(parallel_map(lambda block: sum_silently(X[block]), blocks(*X.shape), threads)).all():
            return False
    # A sum may also overflow, so look at the entries themselves.
    if np.isinf(X).any():
        refuse_missing(X, names)
    return bool(np.isnan(X).any())


def refuse_missing(X: Array, names: NDArray[Any] | None) -> None:
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


def refuse_large(limits: Array, names: NDArray[Any] | None) -> None:
    """Raise ValueError if a column is too large to square; `limits` (2, d) are the column minima and maxima."""
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


def _refuse_text(X: Any) -> None:
    """Raise ValueError if a column holds text or dates where the model was fitted to numbers."""
    for label, values in _suspicious_columns(X):
        example = _example(values) if _is_dates(values) else _first_text(values)
        if example is not None:
            what = "dates" if _is_dates(values) else "text"
            raise ValueError(
                f"Column {label} of X holds {what} (such as {example!r}), but the model was fitted to numbers. Give "
                "the columns that it was fitted to."
            )


def _is_frame(X: Any) -> bool:
    """Whether X is a pandas or polars data frame."""
    return hasattr(X, "columns") and hasattr(X, "dtypes")


def _suspicious_columns(X: Any) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield (label, values) of columns whose dtype is not numeric."""
    if _is_frame(X):
        for name in X.columns:
            values = np.asarray(X[name])
            if values.ndim == 1 and values.dtype.kind not in "biuf":
                yield repr(str(name)), values
    elif isinstance(X, list | tuple | np.ndarray):
        array = np.asarray(X) if isinstance(X, np.ndarray) else np.array(X, dtype=object)
        if array.ndim == 2 and array.dtype.kind not in "biufc":
            for j in range(array.shape[1]):
                yield str(j), array[:, j]


def _all_numbers(X: NDArray[Any]) -> bool:
    """Whether an array of objects or text holds nothing but numbers, be they written as text, and missing values."""
    return X.dtype.kind == "O" and all(as_entries(column).kind in ("number", "boolean", None) for column in X.T)


def _is_dates(values: NDArray[Any]) -> bool:
    """Whether these are dates or times: by dtype, or objects with a year and a month."""
    if values.dtype.kind in "Mm":
        return True
    return values.dtype.kind == "O" and any(
        hasattr(value, "year") and hasattr(value, "month") for value in values.tolist()
    )


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


def check_groups(groups: NDArray[Any]) -> None:
    """Raise ValueError if group labels are missing or of different types."""
    objects = groups.dtype.kind == "O"
    if groups.dtype.kind == "f" or objects:
        missing = int(sum(map(_is_missing, groups.tolist())) if objects else np.isnan(groups).sum())
        if missing:
            raise ValueError(f"groups has no label in {missing} of {len(groups)} rows. Give those one of their own.")
    if objects and len(set(map(type, groups.tolist()))) > 1:
        raise ValueError("groups mixes labels of different types. Make them all text, or all numbers.")


def _is_missing(label: Any) -> bool:
    """Whether a label is None, NaN, or pandas.NA, which cannot be compared."""
    return label is None or type(label).__name__ == "NAType" or label != label
