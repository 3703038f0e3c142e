"""`to_onnx`: export of fitted models to ONNX, to be run by any ONNX runtime without Python or quernel."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from quernel._files import check_writable, write_atomically
from quernel.conformal import ConformalQuantileRegressor
from quernel.estimators import KernelClassifier, KernelQuantileRegressor, KernelRegressor
from quernel.estimators.multiclass import Isotonic, ProbabilityCurves, Sigmoid
from quernel.estimators.quantile_cv import KernelQuantileRegressorCV
from quernel.losses import Logistic
from quernel.persistence.models import check_model_type
from quernel.persistence.onnx_graph import PREFIX, Graph, Tensor, exp, hstack, where
from quernel.persistence.onnx_inputs import table_inputs
from quernel.persistence.onnx_intervals import calibrated_bounds, check_exportable, fitted_quantiles, median_prediction
from quernel.persistence.onnx_kernels import feature_map_dot
from quernel.tables import TableModel


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


def to_onnx(model: Any, path: str | PathLike[str], *, overwrite: bool = False) -> None:
    """Export a fitted model to an ONNX file, whose outputs are those of `predict` up to rounding.

    The graph computes in float64. Its inputs are:

    - of a model of arrays: ``X``, float64, shape (rows, columns);
    - of a `ConformalQuantileRegressor` calibrated by group also ``groups``, strings or int64, shape (rows,);
    - of a `TableModel`: one input per column, by its name, of shape (rows, 1): text as strings (empty where missing),
      everything else as float64 (NaN where missing), booleans as 0 and 1, dates as seconds since 1970. `onnx_inputs`
      computes them from a table.

    Its outputs are:

    - of a quantile regressor: ``quantiles``, shape (rows, q) or, for a single level, (rows,); they do not cross if the
      model's do not;
    - of a `KernelRegressor`: ``prediction``, shape (rows,);
    - of a classifier: ``label``, and ``probabilities`` or, where the loss gives none, ``scores``;
    - of a `ConformalQuantileRegressor`: ``lower``, ``upper`` and ``prediction``, each (rows,);
    - of a `TableModel`: ``quantiles`` and, if it has calibrated intervals, ``lower`` and ``upper``.

    Parameters
    ----------
    model : fitted estimator of quernel
    path : str or path-like
    overwrite : bool, default=False
        Whether to replace an existing file. Writing is atomic: the new file appears complete or not at all.
    """
    check_model_type(model, EXPORTERS, "quernel.to_onnx")
    check_is_fitted(model.model if isinstance(model, TableModel) else model)
    graph, path = Graph(), Path(path)
    check_writable(path, overwrite=overwrite)
    EXPORTERS[type(model)](graph, model)
    content = graph.model(f"{type(model).__name__} of quernel").SerializeToString()
    with write_atomically(path, overwrite=overwrite) as part, part.open("xb") as file:
        file.write(content)


def matrix_input(graph: Graph, model: Any) -> Tensor:
    """Declare the input X, shape (rows, columns)."""
    return graph.input("X", float, (None, model.n_features_in_))


def export_quantiles(graph: Graph, model: KernelQuantileRegressor) -> None:
    """Export a quantile regressor: its fitted levels, in the order of `quantiles`."""
    add_quantile_output(graph, model, fitted_quantiles(model, matrix_input(graph, model)))


def export_table_model(graph: Graph, model: TableModel) -> None:
    """Export a model of tables: encode its columns, predict, and map back from logarithms if the target was in them."""
    for name in ("quantiles", *(("lower", "upper") if model.interval is not None else ())):
        if name in model.encoder.inputs:
            raise ValueError(f"The column {name!r} has the name of the graph's output. Rename it, and fit again.")
    for name in model.encoder.inputs:
        if not name or name.startswith(PREFIX):
            raise ValueError(
                f"The input {name!r} cannot be one of a graph: there it must have a name that does not begin with "
                f"{PREFIX!r}. Rename the column, and fit again."
            )
    x = table_inputs(graph, model.encoder)
    quantiles = fitted_quantiles(model.model, x)
    add_quantile_output(graph, model.model, exp(quantiles) if model.log_target else quantiles)
    if model.interval is not None:
        check_exportable(model.interval)
        bounds = calibrated_bounds(graph, model.interval, x)
        add_interval_outputs(graph, [exp(bound) if model.log_target else bound for bound in bounds])


def export_intervals(graph: Graph, model: ConformalQuantileRegressor) -> None:
    """Export a ConformalQuantileRegressor: its calibrated bounds, and the median."""
    check_exportable(model)
    x = matrix_input(graph, model)
    add_interval_outputs(graph, calibrated_bounds(graph, model, x))
    graph.output("prediction", median_prediction(model, x), float, (None,))


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


def export_regressor(graph: Graph, model: KernelRegressor) -> None:
    """Export a KernelRegressor: Phi u + b."""
    prediction = feature_map_dot(model.feature_map_, matrix_input(graph, model), model.coef_) + model.intercept_
    graph.output("prediction", prediction.take(0, axis=1), float, (None,))


def export_classifier(graph: Graph, model: KernelClassifier) -> None:
    """Export a classifier: its label, and its probabilities or, without any, its decision function."""
    scores = feature_map_dot(model.feature_map_, matrix_input(graph, model), model.coef_) + model.intercept_
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


# Registry of exporters: functions that declare inputs and outputs of the graph for a model of this class. To make a new
# estimator exportable, add its line.
EXPORTERS: dict[type, Callable[[Graph, Any], None]] = {
    KernelQuantileRegressor: export_quantiles,
    KernelQuantileRegressorCV: export_quantiles,
    KernelRegressor: export_regressor,
    KernelClassifier: export_classifier,
    ConformalQuantileRegressor: export_intervals,
    TableModel: export_table_model,
}
