"""Division of the rows into training rows and calibration rows."""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import KFold, check_cv

from quernel.estimators.inputs import drop_zero_weight

Index = NDArray[np.intp]


def check_size(size: Any) -> None:
    """Raise unless `calibration_size` is a share of the rows in (0, 1), or a positive number of them."""
    is_count = isinstance(size, numbers.Integral) and not isinstance(size, bool) and size > 0
    is_share = isinstance(size, numbers.Real) and not isinstance(size, numbers.Integral) and 0 < float(size) < 1
    if not (is_count or is_share):
        raise ValueError(
            f"calibration_size must be a share between 0 and 1 or a positive number of rows; got {size!r}."
        )


def choose_calibration_rows(n_rows: int, size: float, *, last: bool, groups: Any, rng: np.random.Generator) -> Index:
    """Choose the calibration rows of a split; the other rows train the model.

    Parameters
    ----------
    n_rows : int
    size : share of the rows, or a number of them
    last : whether to take the last rows, for data in order of time, instead of a random sample
    groups : array of shape (n_rows,) or None
        Labels to stratify by: every group gives the same share of its rows, rounded up.
    rng : Generator

    Returns
    -------
    Sorted positions of the calibration rows.
    """
    n_wanted = int(size) if isinstance(size, numbers.Integral) else max(1, round(size * n_rows))
    if n_wanted >= n_rows:
        raise ValueError(
            f"calibration_size={size} of n_samples = {n_rows} leaves no rows to fit the model on. "
            "Give more rows or calibrate with less of them."
        )
    if last:
        return np.arange(n_rows - n_wanted, n_rows)
    if groups is None:
        return np.sort(rng.choice(n_rows, n_wanted, replace=False, shuffle=False))
    strata = [np.flatnonzero(groups == label) for label in np.unique(groups)]
    return np.sort(np.concatenate([rng.permutation(rows)[: -(-len(rows) * n_wanted // n_rows)] for rows in strata]))


def make_folds(
    cv: Any, X: Any, y: Any, positive: NDArray[np.bool_], groups: Any, rng: np.random.Generator
) -> list[tuple[Index, Index]]:
    """Return the (train, test) folds of CV+, as positions among the rows of positive weight.

    Each of these rows must be in exactly one test fold, because it has one conformity score.

    Parameters
    ----------
    cv : int, scikit-learn splitter, or iterable of (train, test) index arrays
        An integer is a shuffled KFold of the rows of positive weight. Splitters and iterables refer to all rows, with
        their groups if there are any; rows of weight 0 are dropped from the folds afterwards.
    X, y, groups : what the splitter is given
    positive : bool array of shape (n,), the rows of positive weight
    rng : Generator that seeds the KFold
    """
    n = int(positive.sum())
    if isinstance(cv, numbers.Integral):
        if not 2 <= cv <= n:
            raise ValueError(f"cv={cv} folds of n_samples = {n}: give at least 2, and no more than there are rows.")
        return list(KFold(cv, shuffle=True, random_state=int(rng.integers(2**31))).split(np.arange(n)))
    splitter = check_cv(cv)
    pairs = drop_zero_weight(splitter.split(X, y, groups), positive)
    n_tests = np.bincount(np.concatenate([test for _, test in pairs]), minlength=n)
    if np.any(n_tests != 1):
        raise ValueError(
            f"method='cv+' needs folds that test every row once; with {splitter!r} {np.sum(n_tests != 1)} of {n} "
            "rows are tested never or more than once. For rows in order of time use method='split' with "
            "time_ordered=True."
        )
    return pairs
