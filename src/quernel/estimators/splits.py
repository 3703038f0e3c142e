"""Cross-validation splits: the `cv` argument of `KernelQuantileRegressorCV`.

Scikit-learn splitters and (train, test) pairs are passed through. A number of folds or a fraction to hold out is split
here rather than by `KFold`, for two reasons. Files are often sorted, and contiguous folds would then differ from one
another, so rows are shuffled. And duplicate rows stay together, so that weighting a row is equivalent to repeating it,
and no held-out row has a copy among the training rows.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.model_selection import check_cv

from quernel.estimators.warnings import stacklevel_of_caller
from quernel.tuning.alpha import Split

Array = NDArray[np.floating]
Index = NDArray[np.intp]

CV_MESSAGE = (
    "cv must be a number of folds (2 or more), a share of the rows to hold out (between 0 and 1), a scikit-learn "
    "splitter, or a list of (train, test) index arrays"
)


@dataclass(frozen=True)
class LastRows:
    """Splitter for rows in time order: a single split that holds out the last fraction `share` of them."""

    share: float

    def split(self, X: Any, *_: Any) -> Iterator[Split]:
        """Yield (train, test) index arrays, once."""
        n = len(X)
        first = min(max(round((1 - self.share) * n), 1), n - 1)
        yield np.arange(first), np.arange(first, n)

    def get_n_splits(self, *_: Any) -> int:
        """Number of splits, 1."""
        return 1


def check_splitting(cv: object) -> None:
    """Raise ValueError if `cv` is of no supported kind."""
    if isinstance(cv, bool | str) or cv is None:
        raise ValueError(f"{CV_MESSAGE}; got {cv!r}.")
    if isinstance(cv, Integral):
        fine = int(cv) >= 2
    elif isinstance(cv, Real):
        fine = 0 < float(cv) < 1
    else:
        fine = hasattr(cv, "split") or isinstance(cv, Iterable)
    if not fine:
        raise ValueError(f"{CV_MESSAGE}; got {cv!r}.")


def read_splits(
    cv: Any, X: Array, y: Array, counts: NDArray[np.bool_], groups: ArrayLike | None, rng: np.random.Generator
) -> list[Split]:
    """Splits of the rows of positive weight, as index arrays into them.

    Parameters
    ----------
    cv : int, float, splitter or iterable of (train, test)
    X, y : ndarrays of shape (m, d) and (m,)
        The rows of positive weight.
    counts : ndarray of bool of shape (n,)
        Which of all n rows have a positive weight; splitters see all n.
    groups : array-like of shape (n,) or None
        Group labels.
    rng : Generator
        Shuffles the rows if `cv` is a number.
    """
    if groups is not None:
        groups = np.asarray(groups)
        if groups.shape != counts.shape:
            raise ValueError(f"groups must have one label for each of {len(counts)} rows; got shape {groups.shape}.")
        check_groups(groups)
    if isinstance(cv, Real):
        if groups is not None:
            return _split_by_label(_label_equal(groups[counts]), cv, rng)
        labels = _label_equal(np.column_stack([X, y]), axis=0)
        return _split_by_label(labels, _feasible_folds(cv, labels), rng)
    target = np.zeros(len(counts))
    target[counts] = y
    return drop_zero_weight(check_cv(cv).split(np.arange(len(counts))[:, None], target, groups), counts)


def _feasible_folds(cv: Real, labels: Index) -> Real | int:
    """`cv`, or fewer folds, with a warning, if there are rows enough but too many are equal.

    Like scikit-learn's KFold it counts the rows, so that more folds than rows stay an error; but here equal rows share
    a fold, which leaves one fold for each different row.
    """
    count = int(labels.max()) + 1
    if not isinstance(cv, Integral) or not 2 <= count < int(cv) <= len(labels):
        return cv
    _warn_of_fewer_folds(cv, count, len(labels))
    return count


def _split_by_label(labels: Index, cv: Real | int, rng: np.random.Generator) -> list[Split]:
    """Splits for a number of folds or a fraction: labels are shuffled, and rows of one label stay together."""
    count = int(labels.max()) + 1
    folds = int(cv) if isinstance(cv, Integral) else 2
    if count < folds:
        raise ValueError(
            f"cv={cv} needs at least {folds} different rows (or groups); got {count} among n_samples = {len(labels)}."
        )
    rank = rng.permutation(count)[labels]
    if isinstance(cv, Integral):
        held_out = [rank % folds == k for k in range(folds)]
    else:
        held_out = [rank < min(max(round(float(cv) * count), 1), count - 1)]
    return [(np.flatnonzero(~out), np.flatnonzero(out)) for out in held_out]


def _label_equal(rows: NDArray[Any], axis: int | None = None) -> Index:
    """Integer label of every row, equal for equal rows, in the order of their values."""
    return np.unique(rows, axis=axis, return_inverse=True)[1].ravel()


def _warn_of_fewer_folds(cv: object, n_folds: int, n_rows: int) -> None:
    """Warn that cross-validation uses fewer folds than `cv`, because so few of the rows are different."""
    warnings.warn(
        f"Only {n_folds} of {n_rows} rows are different, and equal rows share a fold: cross-validation uses {n_folds} "
        f"folds instead of cv={cv}.",
        UserWarning,
        stacklevel=stacklevel_of_caller(),
    )


def drop_zero_weight(
    splits: Iterable[tuple[ArrayLike, ArrayLike]], counts: NDArray[np.bool_]
) -> list[tuple[Index, Index]]:
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


def _check_positions(part: ArrayLike, n_rows: int) -> Index:
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


def check_groups(groups: NDArray[Any]) -> None:
    """Raise ValueError if group labels are missing or of different types."""
    objects = groups.dtype.kind == "O"
    if groups.dtype.kind == "f" or objects:
        missing = int(sum(map(_is_missing, groups.tolist())) if objects else np.isnan(groups).sum())
        if missing:
            raise ValueError(f"groups has no label in {missing} of {len(groups)} rows. Give those one of their own.")
    if objects and len(set(map(type, groups.tolist()))) > 1:
        raise ValueError("groups mixes labels of different types. Make them all text, or all numbers.")


def _is_missing(label: object) -> bool:
    """Whether a label is None, NaN, or pandas.NA, which cannot be compared."""
    return label is None or type(label).__name__ == "NAType" or label != label
