"""The curves of a quantile model as graphs: at the fitted levels, and between them."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from quernel.estimators import KernelQuantileRegressor
from quernel.estimators.levels import QuantileFunction
from quernel.persistence.formulas import curves
from quernel.persistence.graph import Tensor, absolute, where

# Of what is near to a frequent value: this part of it is no more than rounding.
ROUNDING = 1e-6


def quantile_curves(model: KernelQuantileRegressor, x: Tensor) -> Tensor:
    """The fitted levels as they are predicted, in the order in which they were given, shape (n, q)."""
    if model.noncrossing is None:
        return _raw_curves(model, x)
    return _sorted_curves(model, x).take(np.argsort(np.argsort(model.quantiles_)), axis=1)


def curves_at(model: KernelQuantileRegressor, x: Tensor, wanted: ArrayLike) -> Tensor:
    """Other levels, shape (n, len(wanted)), read between the sorted curves as `predict` does."""
    levels = np.sort(model.quantiles_)
    # What is read off is linear in the curves: of the unit curves it is the weight of each.
    weights = QuantileFunction(levels, np.eye(len(levels))).at(np.asarray(wanted, dtype=float))
    between = _sorted_curves(model, x) @ weights
    values = getattr(model, "frequent_values_", np.empty(0))
    # Two curves that share such a value have it between them, too, but for rounding.
    return _snapped(between, values, ROUNDING * model._near) if len(values) else between


def _raw_curves(model: KernelQuantileRegressor, x: Tensor) -> Tensor:
    raw = curves(model.feature_map_, x, model.coef_) + model.intercept_
    values = getattr(model, "frequent_values_", np.empty(0))
    return _snapped(raw, values, model._near) if len(values) else raw


def _snapped(raw: Tensor, values: ArrayLike, near: float) -> Tensor:
    """As `quernel.estimators.atoms.snapped`: curves that are all but at one of these values are put there."""
    apply = raw.graph.apply
    distance = absolute(apply("Unsqueeze", raw, np.array([2])) - np.asarray(values))
    nearest = apply("Gather", np.asarray(values), apply("ArgMin", distance, axis=2, keepdims=0))
    there = apply("LessOrEqual", apply("ReduceMin", distance, axes=[2], keepdims=0), np.float64(near))
    return where(there, nearest, raw)


def _sorted_curves(model: KernelQuantileRegressor, x: Tensor) -> Tensor:
    raw, q = _raw_curves(model, x), len(model.quantiles_)
    if q == 1:
        return raw
    return x.graph.apply("TopK", raw, np.array([q]), outputs=2, axis=1, largest=0, sorted=1)[0]
