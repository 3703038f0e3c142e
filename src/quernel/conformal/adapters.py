"""Any model of quantiles, seen as one that predicts the two ends of an interval."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.frozen import FrozenEstimator

from quernel.estimators import KernelQuantileRegressor

Array = NDArray[np.floating]


class HasInterval:
    """A model that may hold calibrated intervals (`interval`), which have one coverage: it is not asked for another."""

    interval: Any


def is_frozen(estimator: Any) -> bool:
    """Whether scikit-learn's FrozenEstimator keeps it as it is."""
    return isinstance(estimator, FrozenEstimator)


def unwrap_frozen(estimator: Any) -> Any:
    """The model itself, without a FrozenEstimator around it."""
    return estimator.estimator if is_frozen(estimator) else estimator


def with_levels(estimator: Any, coverage: float, random_state: Any = None) -> Any:
    """An unfitted copy that has the levels of the interval, if it takes `quantiles` and was given none in particular.

    None is a KernelQuantileRegressor with this random state. A sequence of levels is kept, and must enclose them.
    """
    tail = round((1 - coverage) / 2, 12)
    levels = [tail, 0.5, 1 - tail]
    if estimator is None:
        return KernelQuantileRegressor(levels, random_state=random_state)
    if not hasattr(estimator, "fit"):
        raise ValueError(
            f"{type(estimator).__name__} cannot be fitted. If it is a fitted model, such as one of tables, calibrate "
            "it as it is: method='prefit', with rows that it has not seen."
        )
    copy = clone(estimator)
    given = copy.get_params(deep=False).get("quantiles", levels)
    if np.ndim(given) == 0:
        return copy.set_params(quantiles=levels)
    if min(given) > tail + 1e-9 or max(given) < 1 - tail - 1e-9:
        raise ValueError(
            f"An interval of coverage {coverage:g} needs the levels {tail:g} and {1 - tail:g}; the estimator has "
            f"quantiles={list(given)}. Give it wider ones, or leave its quantiles at their default."
        )
    return copy


def ends(model: Any, X: Any, coverage: float) -> Array:
    """Lower and upper end for each row, shape (n, 2): by `predict_interval`, or the outermost columns of `predict`."""
    name = type(model).__name__
    if hasattr(model, "predict_interval"):
        asked = {"coverage": coverage} if _asks_for_coverage(model) else {}
        answer = np.asarray(model.predict_interval(X, **asked), dtype=float)
    else:
        answer = np.asarray(model.predict(X), dtype=float)
    if answer.ndim != 2 or answer.shape[1] < 2:
        raise ValueError(
            f"An interval needs two ends: {name} must have predict_interval(X, coverage), or a predict(X) that gives "
            f"two or more quantiles per row, shape (n, 2); its answer has shape {answer.shape}. Fit it with levels on "
            "either side of 0.5."
        )
    if np.isnan(answer).any():
        raise ValueError(f"{name} predicts NaN in {np.isnan(answer).any(axis=1).sum()} rows. Leave those rows out.")
    return np.column_stack([answer.min(axis=1), answer.max(axis=1)])


def _asks_for_coverage(model: Any) -> bool:
    """Whether `predict_interval` takes a coverage, by name or among any others."""
    inner = unwrap_frozen(model)
    if isinstance(inner, HasInterval) and inner.interval is not None:
        return False
    taken = inspect.signature(model.predict_interval).parameters
    return "coverage" in taken or any(one.kind is one.VAR_KEYWORD for one in taken.values())


def middle(model: Any, X: Any, coverage: float) -> Array:
    """The median (n,), where the model can be asked for it; otherwise the middle of its interval."""
    if "quantiles" in inspect.signature(model.predict).parameters:
        return np.asarray(model.predict(X, quantiles=0.5), dtype=float)
    return ends(model, X, coverage).mean(axis=1)
