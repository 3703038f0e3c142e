"""Messages of estimators: progress for `verbose=1`, fits that stop short of `tol`, predictions far outside the data.

A model warns once per fit when it predicts rows far outside its training range (`ExtrapolationWarning`).
"""

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
from sklearn.exceptions import ConvergenceWarning

from quernel.data.statistics import column_range
from quernel.solvers.progress import Progress
from quernel.tuning.cost import as_duration

Array = NDArray[np.floating]

# Rows slightly outside the range are common in held-out data; warn beyond this fraction of the range of a column.
FAR = 0.25
# Models that have warned already. Kept here because `predict` must not change the model.
_warned: WeakSet[Any] = WeakSet()
# Inside `warning_as_one`, the models that have warned; None outside of it, where each model warns for itself.
_warned_in_group: ContextVar[list[Any] | None] = ContextVar("_warned_in_group", default=None)


class ExtrapolationWarning(UserWarning):
    """Predictions were made for rows far outside the range of the training inputs."""


def reset_warning(model: Any) -> None:
    """Let a model warn again, after a new fit."""
    _warned.discard(model)


@contextmanager
def warning_as_one() -> Iterator[None]:
    """Context in which several models predict the same rows, and only the first of them warns."""
    before = _warned_in_group.set([])
    try:
        yield
    finally:
        _warned_in_group.reset(before)


def warn_if_extrapolating(model: Any, X: Array) -> None:
    """Warn if rows of X leave `model.input_range_` (2, d) by more than a quarter of it, once per fit."""
    if model in _warned:
        return
    slack = FAR * np.ptp(model.input_range_, axis=0)
    low, high = model.input_range_[0] - slack, model.input_range_[1] + slack
    least, most = column_range(X)
    if np.any(least < low) or np.any(most > high):
        far = np.any((low > X) | (high < X), axis=1)
        _warned.add(model)
        group = _warned_in_group.get()
        if group:
            return
        if group is not None:
            group.append(model)
        warnings.warn(
            f"{far.sum():,} of {len(X):,} rows are far outside the training inputs (a column is beyond its range "
            f"by over {FAR:.0%} of it): predictions for them are guesses. model.is_extrapolation(X) marks all rows "
            "outside their range. This model does not warn again.",
            ExtrapolationWarning,
            stacklevel=_stacklevel_of_caller(),
        )


def _stacklevel_of_caller() -> int:
    """`stacklevel` for warnings.warn that points at the user's code, the first frame outside quernel."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("quernel."):
        level, frame = level + 1, frame.f_back
    return level


def print_progress(progress: Progress) -> None:
    """Print a line after every pass over out-of-core rows, or whenever the duality gap improves."""
    if progress.sweep:
        if progress.done == 1:
            print(f"quernel: pass {progress.sweep} over the rows is done, about {as_duration(progress.left or 0)} left")
        return
    print(f"quernel: step {progress.iteration}, {progress.columns} active fits, relative gap {progress.gap:.1e}")


def warn_not_converged(model: Any, names: list[str], stopped_by: str | None = None) -> None:
    """Raise a ConvergenceWarning that names the outputs whose relative duality gap is above `tol`.

    `names` has one label per output, such as a quantile level; `stopped_by` says why the solver was stopped, if it was.
    """
    short = ~(model.duality_gap_ <= model.tol)  # negated, so that a gap of NaN also warns
    if not short.any():
        return
    fits, gap = ", ".join(np.array(names)[short]), model.duality_gap_.max()
    accept = f", or accept the gap with tol={2 * gap:.0e}" if gap < 0.01 else ""
    more = f"a larger max_iter (now {model.max_iter})"
    how = "stopped"
    if stopped_by is not None:
        limited = stopped_by == "time limit" and model.max_seconds is not None
        more = f"a larger max_seconds (now {model.max_seconds:g})" if limited else "more time"
        how = f"was stopped by {'a callback' if stopped_by == 'callback' else f'the {stopped_by}'}"
    warnings.warn(
        f"The fit of {fits} {how} at a relative duality gap of {gap:.1e}, above tol={model.tol:g}. "
        f"Try {more} or a larger alpha (now {model.alpha_:.2g}){accept}.",
        ConvergenceWarning,
        stacklevel=_stacklevel_of_caller(),
    )


def warn_of_fewer_folds(cv: Any, n_folds: int, n_rows: int) -> None:
    """Warn that cross-validation uses fewer folds than `cv`, because so few of the rows are different."""
    warnings.warn(
        f"Only {n_folds} of {n_rows} rows are different, and equal rows share a fold: cross-validation uses {n_folds} "
        f"folds instead of cv={cv}.",
        UserWarning,
        stacklevel=_stacklevel_of_caller(),
    )
