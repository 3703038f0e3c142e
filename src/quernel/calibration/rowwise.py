"""What is known of single rows besides their columns: groups and density ratios."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import _num_samples

from quernel.estimators.validation import check_groups

Array = NDArray[np.floating]


def group_of(groups: Any, X: Any) -> NDArray[Any] | None:
    """The label of each row, none missing; `groups` is an array, a function of X, or None."""
    if groups is None:
        return None
    labels = _per_row("groups", groups, X)
    check_groups(labels)
    return labels


def ratio_of(density_ratio: Any, X: Any) -> Array:
    """The density ratio of each row, finite and not negative; an array, a function of X, or None for ones."""
    if density_ratio is None:
        return np.ones(_num_samples(X))
    ratio = _per_row("density_ratio", density_ratio, X).astype(float)
    bad = ~(np.isfinite(ratio) & (ratio >= 0))
    if bad.any():
        raise ValueError(
            f"density_ratio must be finite and not negative; {bad.sum()} of {len(ratio)} entries are not, such as "
            f"{ratio[bad][0]:g}. Estimate it as a ratio of densities, for example p / (1 - p) of a classifier."
        )
    return ratio


def _per_row(name: str, given: Any, X: Any) -> NDArray[Any]:
    """One entry per row of X: as given, or the given function of X."""
    values = np.asarray(given(X) if callable(given) else given)
    if values.ndim != 1 or len(values) != _num_samples(X):
        raise ValueError(f"{name} must have one entry for each of {_num_samples(X)} rows; got shape {values.shape}.")
    return values
