"""Quantiles and calibrated intervals as ONNX graphs.

x has shape (n, d). What is known before export (conformal quantiles, interpolation weights) is computed here by the
code that predictions use, and enters the graph as constants.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quernel.conformal import ConformalQuantileRegressor
from quernel.conformal.adapters import unwrap_frozen
from quernel.conformal.methods import METHODS, ConformalMethod, Scores, conformal_quantile
from quernel.estimators import KernelQuantileRegressor
from quernel.estimators.levels import QuantileFunction
from quernel.persistence.onnx_graph import Graph, Tensor, absolute, hstack, where
from quernel.persistence.onnx_kernels import feature_map_dot
from quernel.tables import TableModel

# Interpolated quantiles are snapped to point masses within this part of the distance that is used for fitted ones: they
# differ from a point mass between two equal curves by rounding only.
ROUNDING = 1e-6


def fitted_quantiles(model: KernelQuantileRegressor, x: Tensor) -> Tensor:
    """Return the fitted quantiles as `predict` does, in the order of `quantiles`, shape (n, q).

    Unless the model allows crossing (`noncrossing=None`), they are sorted within each row (rearrangement: Chernozhukov,
    Fernandez-Val and Galichon 2010).
    """
    if model.noncrossing is None:
        return _raw_curves(model, x)
    return _sorted_curves(model, x).take(np.argsort(np.argsort(model.quantiles_)), axis=1)


def quantiles_at(model: KernelQuantileRegressor, x: Tensor, wanted: ArrayLike) -> Tensor:
    """Return quantiles at other levels, shape (n, len(wanted)), interpolated between the fitted ones as `predict` does.

    Levels outside the range of the fitted ones raise.
    """
    levels = np.sort(model.quantiles_)
    # Interpolation is linear in the fitted quantiles; applied to unit vectors it gives the weights, (q, len(wanted)).
    weights = QuantileFunction(levels, np.eye(len(levels))).at(np.asarray(wanted, dtype=float))
    interpolated = _sorted_curves(model, x) @ weights
    values = getattr(model, "frequent_values_", np.empty(0))
    # Between two curves at the same point mass the interpolated one is there, too, but for rounding.
    return _snap_to_point_masses(interpolated, values, ROUNDING * model._near) if len(values) else interpolated


def _raw_curves(model: KernelQuantileRegressor, x: Tensor) -> Tensor:
    """Return Phi u + b, shape (n, q), snapped to the point masses of the target; curves may cross."""
    raw = feature_map_dot(model.feature_map_, x, model.coef_) + model.intercept_
    values = getattr(model, "frequent_values_", np.empty(0))
    return _snap_to_point_masses(raw, values, model._near) if len(values) else raw


def _snap_to_point_masses(raw: Tensor, values: ArrayLike, tolerance: float) -> Tensor:
    """Replace predictions within `tolerance` of one of these values by it, as `data_summary.snap_to_point_masses`."""
    apply = raw.graph.apply
    distance = absolute(apply("Unsqueeze", raw, np.array([2])) - np.asarray(values))  # (n, q, number of values)
    nearest = apply("Gather", np.asarray(values), apply("ArgMin", distance, axis=2, keepdims=0))
    close = apply("LessOrEqual", apply("ReduceMin", distance, axes=[2], keepdims=0), np.float64(tolerance))
    return where(close, nearest, raw)


def _sorted_curves(model: KernelQuantileRegressor, x: Tensor) -> Tensor:
    """Return the fitted quantiles sorted within each row, shape (n, q)."""
    raw, q = _raw_curves(model, x), len(model.quantiles_)
    if q == 1:
        return raw
    return x.graph.apply("TopK", raw, np.array([q]), outputs=2, axis=1, largest=0, sorted=1)[0]


Array = NDArray[np.floating]


def check_exportable(model: ConformalQuantileRegressor) -> None:
    """Raise ValueError for calibrated models that ONNX cannot express, or whose inner model is not exported."""
    if model._ratio is not None:
        raise ValueError(
            "Intervals with a density_ratio cannot be written as ONNX: how far they reach depends on the new row's own "
            "weight. Write the model inside (model.estimators_[0]), or calibrate without density_ratio."
        )
    if callable(model._groups):
        raise ValueError(
            "groups was given to fit as a function, which cannot be written as ONNX. Give fit the labels themselves: "
            "the graph then has an input for those of new rows."
        )
    kinds = {type(label) for label in model.calibration_} - {type(None)}
    if not kinds <= {str, int, bool}:
        raise ValueError(f"Labels of groups must be text or whole numbers in ONNX; got {kinds.pop().__name__}.")
    for inner in _inner_models(model):
        if not isinstance(inner, KernelQuantileRegressor):
            own = isinstance(inner, ConformalQuantileRegressor | TableModel)
            other = "make a model of tables with quernel fit --conformal" if own else "export it with a tool of its own"
            raise ValueError(
                f"The model inside is a {type(inner).__name__}, whose calibration quernel cannot write as ONNX. "
                f"Calibrate a KernelQuantileRegressor, or {other}."
            )


def calibrated_bounds(graph: Graph, model: ConformalQuantileRegressor, x: Tensor) -> list[Tensor]:
    """Return the calibrated lower and upper bounds, each (n,); adds the input `groups` if they are by group."""
    tail = (1 - model.coverage_) / 2
    bounds = [quantiles_at(inner, x, [tail, 1 - tail]) for inner in _inner_models(model)]
    level, method = model._score_level, METHODS[model.method_]
    intervals = [_interval(scores, bounds, level, method) for scores in model.calibration_.values()]
    if None in model.calibration_:
        return [bound.take(0, axis=1) for bound in intervals[0]]
    group = _group_index(graph, list(model.calibration_))
    unknown = np.nan * bounds[0].take([0], axis=1)  # for labels that were not calibrated: predict_interval raises
    return [_select_group(group, [*side, unknown]) for side in zip(*intervals, strict=True)]


def median_prediction(model: ConformalQuantileRegressor, x: Tensor) -> Tensor:
    """Return the mean of the medians of all models, (n,)."""
    return _mean([quantiles_at(inner, x, [0.5]).take(0, axis=1) for inner in _inner_models(model)])


def _inner_models(model: ConformalQuantileRegressor) -> list[Any]:
    """Return the fitted models, without FrozenEstimators around them."""
    return [unwrap_frozen(one) for one in model.estimators_]


def _interval(scores: Scores, bounds: list[Tensor], level: float, method: ConformalMethod) -> tuple[Tensor, Tensor]:
    """Return lower and upper bounds, each (n, 1), as `Scores.interval` does for new rows of weight 1.

    `bounds` has the predicted intervals (n, 2) of each model. Bounds that cross become their midpoint.
    """
    lows, highs = ([each.take([side], axis=1) for each in bounds] for side in (0, 1))
    units = None if method.scale is None else [method.scale(*ends) for ends in zip(lows, highs, strict=True)]
    low = -1.0 * _calibrated_bound([-1.0 * each for each in lows], units, scores, scores.below, level)
    high = _calibrated_bound(highs, units, scores, scores.above, level)
    crossed, midpoint = low > high, (low + high) / 2.0
    return where(crossed, midpoint, low), where(crossed, midpoint, high)


def _calibrated_bound(
    bounds: list[Tensor], units: list[Tensor] | None, scores: Scores, score: Array, level: float
) -> Tensor:
    """Return the conformal quantile of  bound + unit score,  (n, 1), from the bound (n, 1) that each model predicts.

    One model: its bound plus a constant. CV+: for each row, the bound + score of a rank that is known beforehand.
    """
    if len(bounds) == 1:
        quantile = conformal_quantile(score, scores.weight, np.ones(1), level)
        return bounds[0] + (quantile if units is None else units[0] * quantile)
    n = len(score)
    rank = int(conformal_quantile(np.arange(n, dtype=float), scores.weight, np.ones(1), level)[0])  # from 0
    correction = score if units is None else hstack(units).take(scores.model, axis=1) * score
    values = hstack(bounds).take(scores.model, axis=1) + correction
    largest, _ = values.graph.apply("TopK", values, np.array([n - rank]), outputs=2, axis=1, largest=1, sorted=1)
    return largest.take([n - rank - 1], axis=1)


def _group_index(graph: Graph, labels: list[Any]) -> Tensor:
    """Return the index of each row's label, (n, 1), and len(labels) for unknown labels; adds the input `groups`."""
    text = isinstance(labels[0], str)
    label = graph.input("groups", str if text else np.int64, (None,))
    keys = {"keys_strings": labels} if text else {"keys_int64s": [int(one) for one in labels]}
    codes: dict[str, Any] = {"values_int64s": list(range(len(labels))), "default_int64": len(labels)}
    index = graph.apply("LabelEncoder", label, domain="ai.onnx.ml", **keys, **codes)
    return graph.apply("Unsqueeze", index, np.array([1]))


def _select_group(group: Tensor, columns: list[Tensor]) -> Tensor:
    """Select from each row the column (n, 1) of its group; shape (n,)."""
    chosen = group.graph.apply("GatherElements", hstack(columns), group, axis=1)
    return chosen.take(0, axis=1)


def _mean(tensors: list[Tensor]) -> Tensor:
    """Return the elementwise mean of tensors of one shape."""
    total = tensors[0]
    for tensor in tensors[1:]:
        total = total + tensor
    return total / float(len(tensors))
