"""Rows far outside the training inputs: a model warns of them once."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from quernel.data.statistics import column_range

Array = NDArray[np.floating]

# Every other held-out table has a row a little outside the training rows; beyond by this share of the range is far.
FAR = 0.25
# Models that have warned of such rows. It is kept here because predicting must not change a model.
_warned: WeakSet[Any] = WeakSet()
# Of several models that answer together, those that have warned; None where each speaks for itself.
_warned_in_group: ContextVar[list[Any] | None] = ContextVar("_warned_in_group", default=None)


class ExtrapolationWarning(UserWarning):
    """Predictions were asked for rows far outside the training inputs."""


def reset_warning(model: Any) -> None:
    """Let a model that is fitted again warn again."""
    _warned.discard(model)


@contextmanager
def warning_as_one() -> Iterator[None]:
    """Several models are asked about the same rows: the first that would warn of them does, for all."""
    before = _warned_in_group.set([])
    try:
        yield
    finally:
        _warned_in_group.reset(before)


def warn_if_extrapolating(model: Any, X: Array) -> None:
    """Warn of rows far outside `model.input_range_`, (2, d), once for every fit."""
    if model in _warned:
        return
    slack = FAR * np.ptp(model.input_range_, axis=0)
    low, high = model.input_range_[0] - slack, model.input_range_[1] + slack
    least, most = column_range(X)
    if np.any(least < low) or np.any(most > high):
        far = np.any((low > X) | (high < X), axis=1)
        _warned.add(model)
        spoken = _warned_in_group.get()
        if spoken:
            return
        if spoken is not None:
            spoken.append(model)
        warnings.warn(
            f"{far.sum():,} of {len(X):,} rows are far outside the training inputs (a column is beyond its range "
            f"by over {FAR:.0%} of it): predictions for them are guesses. model.outside(X) tells which rows are "
            "outside at all. This model does not warn again.",
            ExtrapolationWarning,
            stacklevel=_stacklevel_of_caller(),
        )


def _stacklevel_of_caller() -> int:
    """The stack level of the code that called the library, as seen from the function that asks."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("quernel."):
        level, frame = level + 1, frame.f_back
    return level
