"""Adapters from any quantile model, fitted or not, to the two bounds of a prediction interval."""

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
    """Mixin of models that may hold calibrated intervals in `interval`, None if they have none.

    Calibrated intervals have the one coverage they were calibrated for, so that `predict_interval` of such a model is
    called without `coverage`.
    """

    interval: Any


def is_frozen(estimator: Any) -> bool:
    """Whether the estimator is wrapped by scikit-learn's FrozenEstimator, whose `fit` does nothing."""
    return isinstance(estimator, FrozenEstimator)


def unwrap_frozen(estimator: Any) -> Any:
    """Return the estimator inside a FrozenEstimator; any other is returned as it is."""
    return estimator.estimator if is_frozen(estimator) else estimator


def clone_with_levels(estimator: Any, coverage: float, random_state: Any = None) -> Any:
    """Return an unfitted clone that predicts the quantile levels of the interval.

    The levels are (1 - coverage) / 2, 1/2 and (1 + coverage) / 2. They are set if the estimator's parameter `quantiles`
    is a single number. A sequence of levels stays as it is, and must enclose the outer two. An estimator without that
    parameter is cloned as it is. None is a KernelQuantileRegressor with this random state.
    """
    tail = round((1 - coverage) / 2, 12)  # 1 - 0.9 is not 0.1 in floating point
    levels = [tail, 0.5, 1 - tail]
    if estimator is None:
        return KernelQuantileRegressor(levels, random_state=random_state)
    if not hasattr(estimator, "fit"):
        raise ValueError(
            f"{type(estimator).__name__} cannot be fitted. If it is a fitted model, such as one of tables, calibrate "
            "it as it is: method='prefit', with rows that it has not seen."
        )
    unfitted = clone(estimator)
    quantiles = unfitted.get_params(deep=False).get("quantiles", levels)
    if np.ndim(quantiles) == 0:
        return unfitted.set_params(quantiles=levels)
    if min(quantiles) > tail + 1e-9 or max(quantiles) < 1 - tail - 1e-9:
        raise ValueError(
            f"An interval of coverage {coverage:g} needs the levels {tail:g} and {1 - tail:g}; the estimator has "
            f"quantiles={list(quantiles)}. Give it wider ones, or leave its quantiles at their default."
        )
    return unfitted


def interval_bounds(model: Any, X: Any, coverage: float) -> Array:
    """Predict the lower and upper bound of each row, before calibration, shape (n, 2).

    They are what `predict_interval` returns or, for models without it, the outermost columns of `predict`. Either is
    sorted within each row: models whose quantiles cross give an interval all the same.
    """
    name = type(model).__name__
    if hasattr(model, "predict_interval"):
        kwargs = {"coverage": coverage} if _accepts_coverage(model) else {}
        predicted = np.asarray(model.predict_interval(X, **kwargs), dtype=float)
    else:
        predicted = np.asarray(model.predict(X), dtype=float)
    if predicted.ndim != 2 or predicted.shape[1] < 2:
        raise ValueError(
            f"An interval needs two ends: {name} must have predict_interval(X, coverage), or a predict(X) that gives "
            f"two or more quantiles per row, shape (n, 2); its answer has shape {predicted.shape}. Fit it with levels "
            "on either side of 0.5."
        )
    if np.isnan(predicted).any():
        raise ValueError(f"{name} predicts NaN in {np.isnan(predicted).any(axis=1).sum()} rows. Leave those rows out.")
    return np.column_stack([predicted.min(axis=1), predicted.max(axis=1)])


def _accepts_coverage(model: Any) -> bool:
    """Whether `predict_interval` has a parameter `coverage`, or takes any keyword."""
    inner = unwrap_frozen(model)
    if isinstance(inner, HasInterval) and inner.interval is not None:
        return False
    parameters = inspect.signature(model.predict_interval).parameters
    return "coverage" in parameters or any(one.kind is one.VAR_KEYWORD for one in parameters.values())


def point_prediction(model: Any, X: Any, coverage: float) -> Array:
    """Predict the median, shape (n,), if `predict` takes `quantiles`; otherwise the midpoint of the interval."""
    if "quantiles" in inspect.signature(model.predict).parameters:
        return np.asarray(model.predict(X, quantiles=0.5), dtype=float)
    return interval_bounds(model, X, coverage).mean(axis=1)
