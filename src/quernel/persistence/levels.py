"""The curves of a quantile model as graphs: at the fitted levels, and between them."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from quernel.estimators import KernelQuantileRegressor
from quernel.estimators.levels import QuantileFunction
from quernel.persistence.formulas import curves
from quernel.persistence.graph import Tensor


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
    return _sorted_curves(model, x) @ weights


def _raw_curves(model: KernelQuantileRegressor, x: Tensor) -> Tensor:
    return curves(model.feature_map_, x, model.coef_) + model.intercept_


def _sorted_curves(model: KernelQuantileRegressor, x: Tensor) -> Tensor:
    raw, q = _raw_curves(model, x), len(model.quantiles_)
    if q == 1:
        return raw
    return x.graph.apply("TopK", raw, np.array([q]), outputs=2, axis=1, largest=0, sorted=1)[0]
