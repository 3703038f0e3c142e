"""Checks of single arguments, for every layer: each error says what is wrong, what was given and what to do."""

from __future__ import annotations

import numbers
from collections.abc import Collection
from typing import Any

import numpy as np

# Largest ratio of two positive weights of a fit: squares of their shares must not underflow.
MAX_WEIGHT_RATIO = 1e150
# Squares of larger numbers overflow, and squares of smaller differences underflow.
LARGEST, SMALLEST = 1e150, 1e-150


def check_choice(name: str, value: Any, known: Collection[Any]) -> None:
    """Raise ValueError unless `value` is one of the `known` choices."""
    if not any(value is choice or (isinstance(value, str) and value == choice) for choice in known):
        listed = ", ".join(repr(choice) for choice in known)
        raise ValueError(f"Unknown {name} {value!r}. Known: {listed}.")


def check_positive(name: str, value: Any, *, integer: bool = False, instead: str = "") -> None:
    """Raise ValueError unless `value` is a positive, finite number (or integer); `instead` names other choices."""
    kind: Any = numbers.Integral if integer else numbers.Real
    if isinstance(value, bool) or not isinstance(value, kind) or not (np.isfinite(value) and value > 0):
        wanted = "a positive integer" if integer else "a positive, finite number"
        raise ValueError(f"{name} must be {wanted}{instead}; got {value!r}.")


def check_share(name: str, value: Any) -> None:
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
