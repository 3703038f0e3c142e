"""Calibrated intervals as graphs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quernel.conformal import ConformalQuantileRegressor
from quernel.conformal.adapters import unwrap_frozen
from quernel.conformal.scores import Scores, conformal_quantile
from quernel.estimators import KernelQuantileRegressor
from quernel.estimators.levels import QuantileFunction
from quernel.persistence.onnx_graph import Graph, Tensor, absolute, hstack, where
from quernel.persistence.onnx_kernels import feature_map_dot
from quernel.tables import TableModel

# Of what is near to a frequent value: this part of it is no more than rounding.
ROUNDING = 1e-6


def fitted_quantiles(model: KernelQuantileRegressor, x: Tensor) -> Tensor:
    """The fitted levels as they are predicted, in the order in which they were given, shape (n, q)."""
    if model.noncrossing is None:
        return _raw_curves(model, x)
    return _sorted_curves(model, x).take(np.argsort(np.argsort(model.quantiles_)), axis=1)


def quantiles_at(model: KernelQuantileRegressor, x: Tensor, wanted: ArrayLike) -> Tensor:
    """Other levels, shape (n, len(wanted)), read between the sorted curves as `predict` does."""
    levels = np.sort(model.quantiles_)
    # What is read off is linear in the curves: of the unit curves it is the weight of each.
    weights = QuantileFunction(levels, np.eye(len(levels))).at(np.asarray(wanted, dtype=float))
    between = _sorted_curves(model, x) @ weights
    values = getattr(model, "frequent_values_", np.empty(0))
    # Two curves that share such a value have it between them, too, but for rounding.
    return _snap_to_point_masses(between, values, ROUNDING * model._near) if len(values) else between


def _raw_curves(model: KernelQuantileRegressor, x: Tensor) -> Tensor:
    raw = feature_map_dot(model.feature_map_, x, model.coef_) + model.intercept_
    values = getattr(model, "frequent_values_", np.empty(0))
    return _snap_to_point_masses(raw, values, model._near) if len(values) else raw


def _snap_to_point_masses(raw: Tensor, values: ArrayLike, near: float) -> Tensor:
    """As `quernel.tuning.data_summary.snapped`: curves that are all but at one of these values are put there."""
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


Array = NDArray[np.floating]


def check_exportable(model: ConformalQuantileRegressor) -> None:
    """Refuse what no graph can say."""
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
    """Lower and upper end of every row, each (n,)."""
    tail = (1 - model.coverage_) / 2
    ends = [quantiles_at(inner, x, [tail, 1 - tail]) for inner in _inner_models(model)]
    intervals = [_interval(scores, ends, model._score_level) for scores in model.calibration_.values()]
    if None in model.calibration_:
        return [end.take(0, axis=1) for end in intervals[0]]
    group = _group_index(graph, list(model.calibration_))
    unknown = np.nan * ends[0].take([0], axis=1)  # predict_interval would refuse such rows
    return [_select_group(group, [*side, unknown]) for side in zip(*intervals, strict=True)]


def median_prediction(model: ConformalQuantileRegressor, x: Tensor) -> Tensor:
    """The mean of the models' medians, (n,)."""
    return _mean([quantiles_at(inner, x, [0.5]).take(0, axis=1) for inner in _inner_models(model)])


def _inner_models(model: ConformalQuantileRegressor) -> list[Any]:
    return [unwrap_frozen(one) for one in model.estimators_]


def _interval(scores: Scores, ends: list[Tensor], level: float) -> tuple[Tensor, Tensor]:
    """As in `Scores.interval`, for rows of weight 1; lower and upper end, each (n, 1)."""
    low = -1.0 * _calibrated_bound([-1.0 * end.take([0], axis=1) for end in ends], scores, scores.below, level)
    high = _calibrated_bound([end.take([1], axis=1) for end in ends], scores, scores.above, level)
    empty, middle = low > high, (low + high) / 2.0
    return where(empty, middle, low), where(empty, middle, high)


def _calibrated_bound(ends: list[Tensor], scores: Scores, score: Array, level: float) -> Tensor:
    """The end plus score of the rank that covers `level`: a constant, unless there are several models."""
    if len(ends) == 1:
        return ends[0] + conformal_quantile(score, scores.weight, np.ones(1), level)
    n = len(score)
    place = int(conformal_quantile(np.arange(n, dtype=float), scores.weight, np.ones(1), level)[0])
    values = hstack(ends).take(scores.model, axis=1) + score
    largest, _ = values.graph.apply("TopK", values, np.array([n - place]), outputs=2, axis=1, largest=1, sorted=1)
    return largest.take([n - place - 1], axis=1)


def _group_index(graph: Graph, labels: list[Any]) -> Tensor:
    """The place of each row's label, (n, 1); that after the last for a label that is not known."""
    text = isinstance(labels[0], str)
    given = graph.input("groups", str if text else np.int64, (None,))
    keys = {"keys_strings": labels} if text else {"keys_int64s": [int(label) for label in labels]}
    places = {"values_int64s": list(range(len(labels))), "default_int64": len(labels)}
    row = graph.apply("LabelEncoder", given, domain="ai.onnx.ml", **keys, **places)
    return graph.apply("Unsqueeze", row, np.array([1]))


def _select_group(group: Tensor, columns: list[Tensor]) -> Tensor:
    """From each row the column of its group, (n,)."""
    chosen = group.graph.apply("GatherElements", hstack(columns), group, axis=1)
    return chosen.take(0, axis=1)


def _mean(parts: list[Tensor]) -> Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total / float(len(parts))
