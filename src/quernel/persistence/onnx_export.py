"""`to_onnx`: export of fitted models to ONNX, to be run by any ONNX runtime without Python or quernel.

`EXPORTERS` has a function per estimator; the formulas that they share (quantiles, calibrated intervals, probabilities)
follow. What is known before export (conformal quantiles, interpolation weights) is computed here by the code that
predictions use, and enters the graph as constants. In the formulas x has shape (n, d).
"""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from quernel._files import check_writable, write_atomically
from quernel.conformal import ConformalQuantileRegressor
from quernel.conformal.adapters import unwrap_frozen
from quernel.conformal.methods import METHODS, Scale, Scores, conformal_quantile
from quernel.conformal.table_model import TableModel
from quernel.estimators import KernelClassifier, KernelQuantileRegressor, KernelRegressor, TabularQuantileRegressor
from quernel.estimators.classifier import Isotonic, ProbabilityCurves, Sigmoid
from quernel.estimators.levels import QuantileFunction, neighbours
from quernel.estimators.quantile_cv import KernelQuantileRegressorCV
from quernel.losses import Logistic
from quernel.persistence.onnx_graph import (
    Graph,
    Model,
    Tensor,
    absolute,
    add_all,
    declare_columns,
    encode_table,
    exp,
    feature_map_dot,
    find_encoder,
    hstack,
    where,
)
from quernel.tables import TableEncoder

Array = NDArray[np.floating]
# Interpolated quantiles are snapped to point masses within this part of the distance that is used for fitted ones: they
# differ from a point mass between two equal curves by rounding only.
ROUNDING = 1e-6


def to_onnx(model: Model, path: str | PathLike[str], *, overwrite: bool = False, initial_types: Any = None) -> None:
    """Export a fitted model to an ONNX file, whose outputs are those of `predict` up to rounding.

    The graph computes in float64. Its inputs are:

    - of a model of arrays: ``X``, float64, shape (rows, columns);
    - of a `ConformalQuantileRegressor` calibrated by group also ``groups``, strings or int64, shape (rows,);
    - of a `TableModel` or `TableEncoder`: one input per column, by its name, of shape (rows, 1): text as strings
      (empty where missing), everything else as float64 (NaN where missing), booleans as 0 and 1, dates as seconds since
      1970. `onnx_inputs` computes them from a table.

    Its outputs are:

    - of a quantile regressor: ``quantiles``, shape (rows, q) or, for a single level, (rows,); they do not cross if the
      model's do not;
    - of a `KernelRegressor`: ``prediction``, shape (rows,);
    - of a classifier: ``label``, and ``probabilities`` or, where the loss gives none, ``scores``;
    - of a `ConformalQuantileRegressor`: ``lower``, ``upper`` and ``prediction``, each (rows,);
    - of a `TableModel`: ``quantiles`` and, if it has calibrated intervals, ``lower`` and ``upper``;
    - of a `TableEncoder`: ``encoded``, shape (rows, width).

    Parameters
    ----------
    model : fitted estimator of quernel, or of scikit-learn around one
        A `Pipeline` and the like are converted by skl2onnx, with the converters of `quernel.persistence.onnx_pipeline`.
    path : str or path-like
    overwrite : bool, default=False
        Whether to replace an existing file. Writing is atomic: the new file appears complete or not at all.
    initial_types : list of pairs of a name and a type of skl2onnx, optional
        Inputs of a model of scikit-learn. None is ``X`` as above or, of a pipeline that begins with a `TableEncoder`,
        one input per column.
    """
    path = Path(path)
    if isinstance(model, BaseEstimator):
        check_is_fitted(model)
    check_writable(path, overwrite=overwrite)
    if type(model) in EXPORTERS:
        graph = Graph()
        export_model(graph, model, declare_inputs(graph, model))
        encoder = find_encoder(model)
        for name in graph.outputs:
            if encoder is not None and name in encoder.inputs:
                raise ValueError(f"The column {name!r} has the name of the graph's output. Rename it, and fit again.")
        content = graph.model(f"{type(model).__name__} of quernel").SerializeToString()
    elif isinstance(model, BaseEstimator):
        from quernel.persistence.onnx_pipeline import convert_pipeline

        content = convert_pipeline(model, initial_types).SerializeToString()
    else:
        raise TypeError(
            f"quernel.to_onnx takes a fitted estimator of quernel or scikit-learn; got {type(model).__name__}."
        )
    with write_atomically(path, overwrite=overwrite) as part, part.open("wb") as file:
        file.write(content)


def declare_inputs(graph: Graph, model: Any) -> Tensor:
    """Declare the inputs of a model, X of shape (rows, columns) or each column; return the matrix it predicts from."""
    encoder = find_encoder(model)
    if encoder is None:
        return graph.input("X", float, (None, model.n_features_in_))
    return encode_table(encoder, declare_columns(graph, encoder))


def export_model(graph: Graph, model: Model, x: Tensor) -> None:
    """Add the predictions of a model from the matrix x to a graph; raise ValueError if ONNX cannot express them."""
    EXPORTERS[type(model)](graph, model, x)


def export_quantiles(graph: Graph, model: KernelQuantileRegressor, x: Tensor) -> None:
    """Export a quantile regressor: its fitted levels, in the order of `quantiles`."""
    add_quantile_output(graph, model, fitted_quantiles(model, x))


def export_table_model(graph: Graph, model: TableModel, x: Tensor) -> None:
    """Export a model of tables: predict, and map back from logarithms if the target was in them."""
    if isinstance(model.model, TabularQuantileRegressor):
        refuse_tabular(graph, model.model, x)
    quantiles = fitted_quantiles(model.model, x)
    add_quantile_output(graph, model.model, exp(quantiles) if model.log_target else quantiles)
    if model.interval is not None:
        check_exportable(model.interval)
        bounds = calibrated_bounds(graph, model.interval, x)
        add_interval_outputs(graph, [exp(bound) if model.log_target else bound for bound in bounds])


def refuse_tabular(graph: Graph, model: TabularQuantileRegressor, x: Tensor) -> NoReturn:  # noqa: ARG001
    """Raise ValueError: quantiles of forests are weighted quantiles of training rows, which ONNX cannot express."""
    raise ValueError(
        f"{type(model).__name__} cannot be written as ONNX: the quantiles of its forests are quantiles of training "
        "rows, weighted anew for each row. Save it by quernel.save, or export a KernelQuantileRegressor (quernel fit "
        "--estimator kernel)."
    )


def export_encoder(graph: Graph, model: TableEncoder, x: Tensor) -> None:
    """Export an encoder: the encoded matrix itself."""
    graph.output("encoded", x, float, (None, len(model.names)))


def export_intervals(graph: Graph, model: ConformalQuantileRegressor, x: Tensor) -> None:
    """Export a ConformalQuantileRegressor: its calibrated bounds, and the median."""
    check_exportable(model)
    graph.output("prediction", median_prediction(model, x), float, (None,))
    add_interval_outputs(graph, calibrated_bounds(graph, model, x))


def add_interval_outputs(graph: Graph, bounds: list[Tensor]) -> None:
    """Declare the outputs lower and upper of calibrated intervals, each (rows,)."""
    for name, bound in zip(("lower", "upper"), bounds, strict=True):
        graph.output(name, bound, float, (None,))


def add_quantile_output(graph: Graph, model: KernelQuantileRegressor, quantiles: Tensor) -> None:
    """Declare the output of a quantile regressor, in the shape of its `predict`."""
    if model._single:
        graph.output("quantiles", quantiles.take(0, axis=1), float, (None,))
    else:
        graph.output("quantiles", quantiles, float, (None, len(model.quantiles_)))


def export_regressor(graph: Graph, model: KernelRegressor, x: Tensor) -> None:
    """Export a KernelRegressor: Phi u + b."""
    prediction = feature_map_dot(model.feature_map_, x, model.coef_) + model.intercept_
    graph.output("prediction", prediction.take(0, axis=1), float, (None,))


def export_classifier(graph: Graph, model: KernelClassifier, x: Tensor) -> None:
    """Export a classifier: its label, and its probabilities or, without any, its decision function."""
    scores = feature_map_dot(model.feature_map_, x, model.coef_) + model.intercept_
    labels, binary = model.classes_, len(model.classes_) == 2
    dtype = {"i": np.int64, "u": np.int64, "f": np.float64, "b": np.bool_}.get(labels.dtype.kind, np.str_)
    if binary:
        code = (scores.take(0, axis=1) > 0.0).astype(np.int64)
    else:
        code = graph.apply("ArgMax", scores, axis=1, keepdims=0)
    graph.output("label", graph.constant(labels.astype(dtype)).take(code, axis=0), dtype, (None,))
    if model.calibration is not None or isinstance(model.loss_, Logistic):
        graph.output("probabilities", _probabilities(graph, model, scores), float, (None, len(labels)))
    elif binary:
        graph.output("scores", scores.take(0, axis=1), float, (None,))
    else:
        graph.output("scores", scores, float, (None, len(labels)))


def _probabilities(graph: Graph, model: KernelClassifier, scores: Tensor) -> Tensor:
    """Return class probabilities, shape (n, K): calibrated ones, or those of the logistic loss.

    The sigmoid of -s and s for two classes, the softmax of a multinomial fit, and normalized sigmoids of one-vs-rest
    fits.
    """
    if model.calibration is not None:
        return calibrated_probabilities(model.calibrated_, scores)
    if len(model.classes_) == 2:
        return graph.apply("Sigmoid", scores * np.array([[-1.0, 1.0]]))
    if model._together:
        return graph.apply("Softmax", scores, axis=1)
    one_vs_rest = graph.apply("Sigmoid", scores)
    return one_vs_rest / one_vs_rest.sum(axis=1, keepdims=True)


def calibrated_probabilities(calibration: ProbabilityCurves, scores: Tensor) -> Tensor:
    """Return calibrated probabilities, shape (n, K), as `ProbabilityCurves.probabilities` does.

    Scores have shape (n, 1) for two classes and (n, K) for K > 2, where one-vs-rest probabilities are normalized; a row
    whose probabilities are all 0 gets 1/K for each class.
    """
    columns = [_calibrated_probability(curve, scores.take([k], axis=1)) for k, curve in enumerate(calibration.curves)]
    if len(columns) == 1:
        return hstack([1.0 - columns[0], columns[0]])
    one_vs_rest = hstack(columns)
    total = one_vs_rest.sum(axis=1, keepdims=True)
    positive = total > 0.0
    return where(positive, one_vs_rest / where(positive, total, 1.0), 1 / len(columns))


def _calibrated_probability(curve: Sigmoid | Isotonic, score: Tensor) -> Tensor:
    """Return the probability of each score, (n, 1), by Platt scaling or isotonic regression."""
    graph = score.graph
    if isinstance(curve, Sigmoid):
        return graph.apply("Sigmoid", -curve.slope * score - curve.offset)
    if len(curve.scores) == 1:
        return 0.0 * score + curve.chances
    # Piecewise linear interpolation as a sum over segments: each adds its rise times the share of it, between 0 and 1,
    # that lies to the left of the score.
    length, rise = np.diff(curve.scores), np.diff(curve.chances)
    share = graph.apply("Min", ((score - curve.scores[:-1]) / length).maximum(0.0), 1.0)
    return (share * rise).sum(axis=1, keepdims=True) + curve.chances[0]


def fitted_quantiles(model: KernelQuantileRegressor, x: Tensor) -> Tensor:
    """Return the fitted quantiles as `predict` does, in the order of `quantiles`, shape (n, q).

    Unless the model allows crossing (`noncrossing=None`), they are sorted within each row (rearrangement: Chernozhukov,
    Fernandez-Val and Galichon 2010).
    """
    _refuse_tails(model)
    if model.noncrossing is None:
        return _raw_curves(model, x)
    return _sorted_curves(model, x).take(np.argsort(np.argsort(model.quantiles_)), axis=1)


def quantiles_at(model: KernelQuantileRegressor, x: Tensor, wanted: ArrayLike) -> Tensor:
    """Return quantiles at other levels, shape (n, len(wanted)), interpolated between the fitted ones as `predict` does.

    Levels outside the range of the fitted ones raise.
    """
    _refuse_tails(model)
    levels = np.sort(model.quantiles_)
    # Interpolation is linear in the fitted quantiles; applied to unit vectors it gives the weights, (q, len(wanted)).
    weights = QuantileFunction(levels, np.eye(len(levels))).at(np.asarray(wanted, dtype=float))
    # Between two curves at the same point mass the interpolated one is there, too, but for rounding.
    return _snap_to_point_masses(model, _sorted_curves(model, x) @ weights, ROUNDING * model._near)


def _refuse_tails(model: KernelQuantileRegressor) -> None:
    """Raise ValueError if `predict` takes fitted levels from a tail, which the graph does not have."""
    for tail in (getattr(model, "lower_tail_", None), getattr(model, "upper_tail_", None)):
        if tail is not None and tail.covers(model.quantiles_).any():
            raise ValueError(
                f"Levels beyond {tail.level:g} are predicted by the tail, which is not exported. Fit without them, or "
                "with tails=None."
            )


def _raw_curves(model: KernelQuantileRegressor, x: Tensor) -> Tensor:
    """Return Phi u + b, shifted, snapped to the point masses of the target and within its bounds, shape (n, q)."""
    raw = feature_map_dot(model.feature_map_, x, model.coef_) + model.intercept_
    shift = getattr(model, "level_shift_", np.zeros(1))
    shifted = _snap_to_point_masses(model, raw + shift, model._near) if shift.any() else None
    curves = _snap_to_point_masses(model, raw, model._near, elsewhere=shifted)
    for name, bound in (("Max", getattr(model, "lower", None)), ("Min", getattr(model, "upper", None))):
        curves = curves if bound is None else x.graph.apply(name, curves, np.float64(bound))
    return curves


def _snap_to_point_masses(
    model: KernelQuantileRegressor, raw: Tensor, tolerance: float, elsewhere: Tensor | None = None
) -> Tensor:
    """Replace predictions within `tolerance` of a point mass by it, as `data_summary.snap_to_point_masses` does.

    Others are left as they are or, if it is given, taken from `elsewhere`.
    """
    values, others = np.asarray(getattr(model, "frequent_values_", [])), raw if elsewhere is None else elsewhere
    if not len(values):
        return others
    apply = raw.graph.apply
    distance = absolute(apply("Unsqueeze", raw, np.array([2])) - values)  # (n, q, number of values)
    nearest = apply("Gather", values, apply("ArgMin", distance, axis=2, keepdims=0))
    close = apply("LessOrEqual", apply("ReduceMin", distance, np.array([2]), keepdims=0), np.float64(tolerance))
    return where(close, nearest, others)


def _sorted_curves(model: KernelQuantileRegressor, x: Tensor) -> Tensor:
    """Return the fitted quantiles rearranged within each row by ascending level, shape (n, q): `levels.rearrange`."""
    raw, failed, order = _raw_curves(model, x), model._failed_levels(), np.argsort(model.quantiles_)
    if failed.all() or not failed.any():
        return _sort(raw, len(order))
    spoiled = failed[order]
    columns: list[Tensor] = [raw] * len(order)
    for part in (~spoiled, spoiled):
        places = np.flatnonzero(part)
        ascending = _sort(raw.take(order[places], axis=1), len(places))
        for k, place in enumerate(places.tolist()):
            columns[place] = ascending.take([k], axis=1)
    for place, (below, above) in neighbours(spoiled).items():
        if below is not None:
            columns[place] = x.graph.apply("Max", columns[place], columns[below])
        if above is not None:
            columns[place] = x.graph.apply("Min", columns[place], columns[above])
    return hstack(columns)


def _sort(curves: Tensor, count: int) -> Tensor:
    """The `count` columns of each row in ascending order."""
    if count == 1:
        return curves
    return curves.graph.apply("TopK", curves, np.array([count]), outputs=2, axis=1, largest=0, sorted=1)[0]


def check_exportable(model: ConformalQuantileRegressor) -> None:
    """Raise ValueError for calibrated models that ONNX cannot express, or whose inner model is not exported."""
    if model._conditional is not None:
        raise ValueError(
            "Intervals with conditional='kernel' cannot be written as ONNX: each is a fit of its own. Write the model "
            "inside (model.estimators_[0]), or calibrate without conditional."
        )
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
        if hasattr(inner, "encoder_") and len(model.estimators_) > 1:
            raise ValueError(
                "Each model of cv+ has an encoder of its own, which cannot be written as ONNX. Calibrate with "
                "method='split', or put a TableEncoder before the intervals in a Pipeline."
            )
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
    level, scale = model._score_level, METHODS[model.method_].scale
    intervals = [_interval(scores, bounds, level, scale) for scores in model.calibration_.values()]
    if None in model.calibration_:
        return [bound.take(0, axis=1) for bound in intervals[0]]
    group = _group_index(graph, list(model.calibration_))
    unknown = np.nan * bounds[0].take([0], axis=1)  # for labels that were not calibrated: predict_interval raises
    sides = [hstack([*side, unknown]) for side in zip(*intervals, strict=True)]  # (n, groups + 1) each
    return [graph.apply("GatherElements", side, group, axis=1).take(0, axis=1) for side in sides]


def median_prediction(model: ConformalQuantileRegressor, x: Tensor) -> Tensor:
    """Return the mean of the medians of all models, (n,)."""
    medians = [quantiles_at(inner, x, [0.5]).take(0, axis=1) for inner in _inner_models(model)]
    return add_all(medians) / float(len(medians))


def _inner_models(model: ConformalQuantileRegressor) -> list[BaseEstimator]:
    """Return the fitted models, without FrozenEstimators around them."""
    return [unwrap_frozen(one) for one in model.estimators_]


def _interval(scores: Scores, bounds: list[Tensor], level: float, scale: Scale | None) -> tuple[Tensor, Tensor]:
    """Return lower and upper bounds, each (n, 1), as `Scores.interval` does for new rows of weight 1.

    `bounds` has the predicted intervals (n, 2) of each model. Bounds that cross become their midpoint.
    """
    lows, highs = ([each.take([side], axis=1) for each in bounds] for side in (0, 1))
    units = None if scale is None else [scale(*ends) for ends in zip(lows, highs, strict=True)]
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
    codes = {one if text else int(one): code for code, one in enumerate(labels)}
    index = graph.lookup(label, codes, default=len(labels))
    return graph.apply("Unsqueeze", index, np.array([1]))


# Registry of exporters: functions that add the outputs of a model of this class to a graph. To make a new estimator
# exportable, alone and in a pipeline, add its line.
EXPORTERS: dict[type, Callable[[Graph, Any, Tensor], None]] = {
    TabularQuantileRegressor: refuse_tabular,
    KernelQuantileRegressor: export_quantiles,
    KernelQuantileRegressorCV: export_quantiles,
    KernelRegressor: export_regressor,
    KernelClassifier: export_classifier,
    ConformalQuantileRegressor: export_intervals,
    TableModel: export_table_model,
    TableEncoder: export_encoder,
}
