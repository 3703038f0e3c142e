"""Messages of estimators: progress for `verbose=1`, fits that stop short of `tol`, predictions far outside the data.

A model warns once per fit when it predicts rows far outside its training range (`ExtrapolationWarning`).
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning

from quernel.data.statistics import column_range
from quernel.solvers.progress import Progress
from quernel.tuning.alpha import auto_alpha
from quernel.tuning.cost import as_duration
from quernel.tuning.data_summary import DataSummary

Array = NDArray[np.floating]

# Rows slightly outside the range are common in held-out data; warn beyond this fraction of the range of a column.
FAR = 0.25
# Models that have warned already, with the range of the fit that they warned of: a new fit has another one.
# Kept here because `predict` must not change the model.
_warned: WeakKeyDictionary[BaseEstimator, Array] = WeakKeyDictionary()
# Inside `warning_as_one`, the models that have warned; None outside of it, where each model warns for itself.
_warned_in_group: ContextVar[list[BaseEstimator] | None] = ContextVar("_warned_in_group", default=None)
# Whether fits short of `tol` are silent: inside `convergence_not_warned`.
_silent: ContextVar[bool] = ContextVar("_silent", default=False)


class ExtrapolationWarning(UserWarning):
    """Predictions were made for rows far outside the range of the training inputs."""


@contextmanager
def warning_as_one() -> Iterator[None]:
    """Context in which several models predict the same rows, and only the first of them warns."""
    before = _warned_in_group.set([])
    try:
        yield
    finally:
        _warned_in_group.reset(before)


def warn_if_extrapolating(model: BaseEstimator, X: Array) -> None:
    """Warn if rows of X leave `model.input_range_` (2, d) by more than a quarter of it, once per fit."""
    if _warned.get(model) is model.input_range_:
        return
    slack = FAR * np.ptp(model.input_range_, axis=0)
    low, high = model.input_range_[0] - slack, model.input_range_[1] + slack
    least, most = column_range(X)
    if np.any(least < low) or np.any(most > high):
        far = np.any((low > X) | (high < X), axis=1)
        _warned[model] = model.input_range_
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
            stacklevel=stacklevel_of_caller(),
        )


def warn_if_alpha_is_level(alpha: float | str, levels: Array, summary: DataSummary) -> None:
    """Warn of a ridge weight that was probably meant as a quantile level, as `alpha` is in other packages.

    Three conditions must hold: alpha is a round number, as quantile levels are and ridge weights, often powers of ten,
    are not; `quantiles` has its default; and alpha is far above the automatic one for these data, so that the fit is
    next to constant.
    """
    if isinstance(alpha, str) or levels.tolist() != [0.5]:
        return
    if not (0.05 <= alpha < 1 and alpha != 0.1 and round(alpha, 3) == alpha):
        return
    usual = auto_alpha(summary.target_scale, summary.n_rows)
    if alpha > 100 * usual:
        warnings.warn(
            f"alpha={alpha:g} is the ridge weight here, and about {alpha / usual:.0e} times its usual size: the fit "
            f"will be next to constant. If it is meant as a quantile level, write quantiles={alpha:g}.",
            UserWarning,
            stacklevel=stacklevel_of_caller(),
        )


def stacklevel_of_caller() -> int:
    """`stacklevel` for warnings.warn that points at the user's code, the first frame outside quernel."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("quernel."):
        level, frame = level + 1, frame.f_back
    return level


def print_progress(progress: Progress) -> None:
    """Print a line for a report: the pass over out-of-core rows that is done, or stage, step, gap and the time left."""
    left = "" if progress.left is None else f", about {as_duration(progress.left)} left"
    if progress.sweep:
        if progress.done == 1:
            print(f"quernel: pass {progress.sweep} over the rows is done{left}")
        return
    stage = [progress.stage] if progress.stage else []
    gap = f"step {progress.iteration}, {progress.columns} active fits, relative gap {progress.gap:.1e}"
    print(f"quernel: {', '.join(stage + [gap] * (progress.columns > 0 or not stage))}{left}")


@contextmanager
def convergence_not_warned() -> Iterator[None]:
    """Context of fits inside a fit, whose gaps their user does not see; other threads warn as usual."""
    before = _silent.set(True)
    try:
        yield
    finally:
        _silent.reset(before)


def warn_not_converged(model: BaseEstimator, names: list[str], stopped_by: str | None = None) -> None:
    """Raise a ConvergenceWarning that names the outputs whose relative duality gap is above `tol`.

    `names` has one label per output, such as a quantile level; `stopped_by` says why the solver was stopped, if it was.
    """
    short = ~(model.duality_gap_ <= model.tol)  # negated, so that a gap of NaN also warns
    if not short.any() or _silent.get():
        return
    fits, gap = ", ".join(np.array(names)[short]), model.duality_gap_.max()
    accept = f", or accept the gap with tol={2 * gap:.0e}" if gap < 0.01 else ""
    more = f"a larger max_iter (now {model.max_iter})"
    how = "stopped"
    if stopped_by is not None:
        limited = stopped_by == "time limit" and model.max_seconds is not None
        more = f"a larger max_seconds (now {model.max_seconds:g})" if limited else "more time"
        how = f"was stopped by {_name_stop(stopped_by)}"
    warnings.warn(
        f"The fit of {fits} {how} at a relative duality gap of {gap:.1e}, above tol={model.tol:g}. "
        f"{_name_constants(model, names, short)}Try {more} or a larger alpha (now {model.alpha_:.2g}){accept}.",
        ConvergenceWarning,
        stacklevel=stacklevel_of_caller(),
    )


def warn_calibration_stopped(model: BaseEstimator, n_folds: int, n_wanted: int) -> None:
    """Warn that the probabilities of a classifier rest on fewer folds than they should, if they do."""
    if n_folds == n_wanted:
        return
    rest = f"rest on {n_folds} of {n_wanted} folds"
    if n_folds == 0:
        rest = "rest on what the first fold had by then, and may be no more than the shares of the classes"
    warnings.warn(
        f"The calibration was stopped by {_name_stop(model.stopped_by_)}: probabilities {rest}. predict and "
        "decision_function do not depend on them.",
        ConvergenceWarning,
        stacklevel=stacklevel_of_caller(),
    )


def warn_tails_stopped(stopped_by: str | None) -> None:
    """Warn that tails have a simpler scale than they might, if their fit was stopped."""
    if stopped_by is None or _silent.get():
        return
    warnings.warn(
        f"The fit of the tails was stopped by {_name_stop(stopped_by)}: their scale is the best found by then, and may "
        "depend less on x than with more time.",
        ConvergenceWarning,
        stacklevel=stacklevel_of_caller(),
    )


def _name_stop(reason: str) -> str:
    """What stopped a fit, as a noun with its article."""
    return "a callback" if reason == "callback" else f"the {reason}"


def _name_constants(model: BaseEstimator, names: list[str], short: NDArray[np.bool_]) -> str:
    """A sentence on the outputs short of `tol` for which the solver found nothing better than a constant, if any."""
    constant = ~model.coef_.any(axis=0)
    if len(constant) != len(names):  # several columns are one problem
        constant = constant.all(keepdims=True)
    constant &= short
    if not constant.any():
        return ""
    which = "" if constant.all() else f" for {', '.join(np.array(names)[constant])}"
    what = "the best constant" if model.fit_intercept else "zero"
    return f"Nothing better than a constant was found by then{which}: predictions are {what}, whatever X. "
