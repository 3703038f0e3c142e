"""Which rows are fitted and which are held out.

A number of folds, or a share to hold out, is made here rather than by scikit-learn's KFold, for two reasons: files are
often in order, and folds cut from one piece each would then be unlike one another, so rows are shuffled; and equal rows
stay together, so that weighting a row and repeating it are the same thing, and no row is judged by its own copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import check_cv

from quernel.estimators.inputs import drop_zero_weight
from quernel.estimators.validation import check_groups
from quernel.tuning.grid_search import Split

Array = NDArray[np.floating]
Index = NDArray[np.intp]

CV_MESSAGE = (
    "cv must be a number of folds (2 or more), a share of the rows to hold out (between 0 and 1), a scikit-learn "
    "splitter, or a list of (train, test) index arrays"
)


@dataclass(frozen=True)
class LastRows:
    """A splitter of rows in order of time: the last `share` of them is held out, once."""

    share: float

    def split(self, X: Any, *_: Any) -> Iterator[Split]:
        """The one split."""
        n = len(X)
        first = min(max(round((1 - self.share) * n), 1), n - 1)
        yield np.arange(first), np.arange(first, n)

    def get_n_splits(self, *_: Any) -> int:
        """One."""
        return 1


def check_splitting(cv: Any) -> None:
    """Complain about what cannot split rows."""
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
    cv: Any, X: Array, y: Array, counts: NDArray[np.bool_], groups: Any, rng: np.random.Generator
) -> list[Split]:
    """The splits of the rows that count, as positions among them.

    Parameters
    ----------
    cv : int, float, splitter or iterable of (train, test)
    X, y : the rows that count, (m, d) and (m,)
    counts : of all n rows that were given, which count (those of weight 0 do not); splitters see all n
    groups : one label for each of the n rows, or None
    """
    if groups is not None:
        groups = np.asarray(groups)
        if groups.shape != counts.shape:
            raise ValueError(f"groups must have one label for each of {len(counts)} rows; got shape {groups.shape}.")
        check_groups(groups)
    if isinstance(cv, Real):
        labels = _label_equal(np.column_stack([X, y]), axis=0) if groups is None else _label_equal(groups[counts])
        return _split_by_label(labels, cv, rng)
    target = np.zeros(len(counts))
    target[counts] = y
    return drop_zero_weight(check_cv(cv).split(np.arange(len(counts))[:, None], target, groups), counts)


def _split_by_label(labels: Index, cv: Real, rng: np.random.Generator) -> list[Split]:
    """Rows of one label stay together; labels are shuffled and dealt out."""
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
    """A number for every row, the same for equal rows, in the order of their values."""
    return np.unique(rows, axis=axis, return_inverse=True)[1].ravel()
