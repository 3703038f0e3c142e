"""Which rows fit the model, and which calibrate it."""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import KFold, check_cv

from quernel.estimators.inputs import drop_zero_weight

Index = NDArray[np.intp]


def check_size(size: Any) -> None:
    """A share of the rows, or a number of them."""
    whole = isinstance(size, numbers.Integral) and not isinstance(size, bool) and size > 0
    share = isinstance(size, numbers.Real) and not isinstance(size, numbers.Integral) and 0 < float(size) < 1
    if not (whole or share):
        raise ValueError(
            f"calibration_size must be a share between 0 and 1 or a positive number of rows; got {size!r}."
        )


def calibration_rows(n_rows: int, size: float, *, last: bool, groups: Any, rng: np.random.Generator) -> Index:
    """The rows that calibrate: the last ones, or a random sample that takes the same share of every group."""
    wanted = int(size) if isinstance(size, numbers.Integral) else max(1, round(size * n_rows))
    if wanted >= n_rows:
        raise ValueError(
            f"calibration_size={size} of n_samples = {n_rows} leaves no rows to fit the model on. "
            "Give more rows or calibrate with less of them."
        )
    if last:
        return np.arange(n_rows - wanted, n_rows)
    if groups is None:
        return np.sort(rng.choice(n_rows, wanted, replace=False, shuffle=False))
    members = [np.flatnonzero(groups == label) for label in np.unique(groups)]
    return np.sort(np.concatenate([rng.permutation(rows)[: -(-len(rows) * wanted // n_rows)] for rows in members]))


def folds(
    cv: Any, X: Any, y: Any, counts: NDArray[np.bool_], groups: Any, rng: np.random.Generator
) -> list[tuple[Index, Index]]:
    """(train, test) rows of each fold, as positions among those that count; each of these must be tested once.

    An integer shuffles the rows that count. Splitters see all rows, with their groups if there are any.
    """
    n = int(counts.sum())
    if isinstance(cv, numbers.Integral):
        if not 2 <= cv <= n:
            raise ValueError(f"cv={cv} folds of n_samples = {n}: give at least 2, and no more than there are rows.")
        return list(KFold(cv, shuffle=True, random_state=int(rng.integers(2**31))).split(np.arange(n)))
    splitter = check_cv(cv)
    made = drop_zero_weight(splitter.split(X, y, groups), counts)
    tested = np.bincount(np.concatenate([test for _, test in made]), minlength=n)
    if np.any(tested != 1):
        raise ValueError(
            f"method='cv+' needs folds that test every row once; with {splitter!r} {np.sum(tested != 1)} of {n} "
            "rows are tested never or more than once. For rows in order of time use method='split' with "
            "time_ordered=True."
        )
    return made
