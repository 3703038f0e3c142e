"""Quantiles, intervals and names of fitted models: estimators by themselves, in pipelines or in models of tables."""

import inspect
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.frozen import FrozenEstimator
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

from quernel.conformal import ConformalQuantileRegressor
from quernel.conformal.table_model import TableModel

Floats = NDArray[np.floating]

# Coverage of intervals that were not calibrated for one.
DEFAULT_COVERAGE = 0.9


def unwrap_estimator(model: Any) -> Any:
    """Return the fitted estimator inside pipelines, models of tables and frozen estimators; raise if unfitted."""
    while isinstance(model, Pipeline | TableModel | FrozenEstimator):
        if isinstance(model, Pipeline):
            model = model.steps[-1][1]
        else:
            model = model.model if isinstance(model, TableModel) else model.estimator
    check_is_fitted(model)
    return model


def unwrap_tuned_estimator(model: Any) -> Any:
    """Return the estimator that was tuned: as `unwrap_estimator`, and also inside a ConformalQuantileRegressor."""
    inner = unwrap_estimator(model)
    if not isinstance(inner, ConformalQuantileRegressor):
        return inner
    if len(inner.estimators_) > 1:
        raise ValueError(
            f"This {type(inner).__name__} has a model for each of {len(inner.estimators_)} folds, each with choices of "
            "its own. Draw one of them: give estimators_[0] of it instead."
        )
    return unwrap_tuned_estimator(inner.estimators_[0])


def get_input_names(model: Any) -> Any:
    """Return the names of the columns that the innermost estimator is given, or None if they have none."""
    if isinstance(model, FrozenEstimator):
        return get_input_names(model.estimator)
    if isinstance(model, ConformalQuantileRegressor):  # its model may be a pipeline, with names of its own
        inner = get_input_names(model.estimators_[0])
        return getattr(model, "feature_names_in_", None) if inner is None else inner
    if isinstance(model, TableModel):
        return model.encoder.names
    if isinstance(model, Pipeline) and len(model) > 1:
        try:
            return model[:-1].get_feature_names_out()
        except (AttributeError, ValueError):  # a step has no feature names
            return None
    return getattr(model, "feature_names_in_", None)


def predict_quantiles(model: Any, X: Any, quantiles: ArrayLike | None) -> tuple[Floats, Floats]:
    """Predict quantiles; return them, shape (n, q), and their levels (q,). None is all fitted levels."""
    inner = unwrap_estimator(model)
    name = type(inner).__name__
    if isinstance(inner, ConformalQuantileRegressor):
        raise ValueError(
            f"{name} predicts one interval and has no quantiles_. Draw its intervals with IntervalWidthDisplay, or the "
            "model that it calibrates: give estimators_[0] of it instead."
        )
    quantiles = getattr(inner, "quantiles_", None) if quantiles is None else quantiles
    if quantiles is None or "quantiles" not in inspect.signature(inner.predict).parameters:
        raise ValueError(
            f"{name} has no quantiles_, or no predict(X, quantiles=...). Fit a KernelQuantileRegressor, or draw what "
            "another model predicts with from_predictions."
        )
    levels = np.atleast_1d(np.asarray(quantiles, dtype=np.float64))
    return np.asarray(model.predict(X, quantiles=levels), dtype=np.float64), levels


def predict_interval_with_coverage(
    model: Any, X: Any, coverage: float | None, groups: Any = None, density_ratio: Any = None
) -> tuple[Floats, float]:
    """Predict intervals; return them, shape (n, 2), and their nominal coverage.

    A coverage of None is that of the calibration or, for a model without one, 0.9. `groups` and `density_ratio` are for
    a ConformalQuantileRegressor whose `fit` was given arrays of them; groups are ignored by others.
    """
    inner = unwrap_estimator(model)
    while isinstance(model, Pipeline | FrozenEstimator):  # they have no predict_interval of their own
        if isinstance(model, Pipeline):
            X, model = (model[:-1].transform(X) if len(model) > 1 else X), model[-1]
        else:
            model = model.estimator
    if not hasattr(model, "predict_interval"):
        raise ValueError(
            f"{type(inner).__name__} predicts no intervals. Fit a KernelQuantileRegressor or a "
            "ConformalQuantileRegressor, or draw other intervals with from_predictions."
        )
    if isinstance(model, ConformalQuantileRegressor):
        coverage = model.coverage_ if coverage is None else coverage
        kwargs = {"groups": groups} if model._groups is True else {}  # True: `fit` was given an array of groups
        return np.asarray(model.predict_interval(X, coverage, **kwargs, density_ratio=density_ratio)), coverage
    if density_ratio is not None:
        raise ValueError(
            f"density_ratio is for intervals that were calibrated with one, and {type(inner).__name__} has none. Leave "
            "it out, or fit a ConformalQuantileRegressor with it."
        )
    calibrated = model.interval if isinstance(model, TableModel) else None
    if coverage is None:
        coverage = DEFAULT_COVERAGE if calibrated is None else calibrated.coverage_
    return np.asarray(model.predict_interval(X, coverage=coverage)), coverage
