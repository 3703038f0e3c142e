"""Checks of single arguments, for every layer: each error says what is wrong, what was given and what to do."""

from __future__ import annotations

import numbers
from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

# Largest ratio of two positive weights of a fit: squares of their shares must not underflow.
MAX_WEIGHT_RATIO = 1e150
# Squares of larger numbers overflow, and squares of smaller differences underflow.
LARGEST, SMALLEST = 1e150, 1e-150


def check_choice(name: str, value: object, known: Collection[object]) -> None:
    """Raise ValueError unless `value` is one of the `known` choices."""
    if not any(value is choice or (isinstance(value, str) and value == choice) for choice in known):
        listed = ", ".join(repr(choice) for choice in known)
        raise ValueError(f"Unknown {name} {value!r}. Known: {listed}.")


def check_positive(name: str, value: Any, *, integer: bool = False, others: tuple[str | None, ...] = ()) -> None:
    """Raise ValueError unless `value` is a positive, finite number (or integer), or one of `others`."""
    if (value is None or isinstance(value, str)) and value in others:
        return
    kind: Any = numbers.Integral if integer else numbers.Real
    if isinstance(value, bool) or not isinstance(value, kind) or not (np.isfinite(value) and value > 0):
        wanted = "a positive integer" if integer else "a positive, finite number"
        shown = " or ".join(f'"{one}"' if one else "None" for one in others)
        instead = f", {shown}" if len(others) > 1 else f", or {shown}" if others else ""
        raise ValueError(f"{name} must be {wanted}{instead}; got {value!r}.")


def check_flags(estimator: object, *names: str) -> None:
    """Raise ValueError unless these parameters of the estimator are True or False."""
    for name in names:
        value = getattr(estimator, name)
        if not isinstance(value, bool | np.bool_):
            raise ValueError(f"{name} must be True or False; got {value!r}.")


def check_share(name: str, value: object) -> None:
    """Raise ValueError unless `value` lies strictly between 0 and 1."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not 0 < float(value) < 1:
        raise ValueError(f"{name} must lie strictly between 0 and 1; got {value!r}.")


def check_weight_sum(name: str, total: float, largest: float) -> None:
    """Raise ValueError if the sum of weights overflowed."""
    if not np.isfinite(total):
        raise ValueError(
            f"The sum of {name} overflows: its largest entry is {largest:g}. Only the ratios of weights matter; divide "
            f"them by {largest:.0e}, for example."
        )


def check_weight_ratio(name: str, largest: float, smallest: float) -> None:
    """Raise ValueError if the largest and the smallest positive weight are too far apart for floating point."""
    if smallest < largest / MAX_WEIGHT_RATIO:
        raise ValueError(
            f"The positive entries of {name} range from {smallest:g} to {largest:g}, a ratio above "
            f"{MAX_WEIGHT_RATIO:.0e}: the smallest ones count for nothing and underflow. Give those rows a weight of 0."
        )


def check_weight(sample_weight: ArrayLike | None, n_rows: int) -> NDArray[np.floating]:
    """Validate sample weights, finite, non-negative and not all 0; return shape (n,). A scalar applies to all rows."""
    try:
        weight = np.asarray(sample_weight, dtype=float)
    except (TypeError, ValueError) as error:
        raise ValueError(f"sample_weight must hold numbers: {error}.") from error
    if weight.ndim == 0:
        weight = np.full(n_rows, float(weight))
    if weight.ndim != 1:
        raise ValueError(f"Sample weights must be 1D array or scalar, got {weight.ndim}D array.")
    if len(weight) != n_rows:
        raise ValueError(
            f"sample_weight.shape == {weight.shape}, expected {(n_rows,)}: there must be one weight per row of X."
        )
    if not np.isfinite(weight).all():
        raise ValueError(
            f"sample_weight contains {np.sum(~np.isfinite(weight))} NaN or infinite entries; use 0 to leave rows out."
        )
    if (weight < 0).any():
        raise ValueError(f"sample_weight contains {np.sum(weight < 0)} negative entries; weights must be >= 0.")
    if not (weight > 0).any():
        raise ValueError("sample_weight is zero for every row: there is nothing to fit. Give some rows a weight.")
    check_weight_sum("sample_weight", sum_silently(weight), float(weight.max()))
    check_weight_ratio("sample_weight", float(weight.max()), float(weight[weight > 0].min()))
    return weight


def sum_silently(X: NDArray[np.floating]) -> float:
    """Sum of all entries, NaN or infinite if any entry is; overflow is silent."""
    with np.errstate(over="ignore", invalid="ignore"):  # threads do not inherit this setting
        return float(X.sum())
