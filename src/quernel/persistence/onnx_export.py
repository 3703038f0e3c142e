"""`to_onnx`: a fitted model as a graph that any ONNX runtime can run, without Python and without quernel."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from quernel.conformal import ConformalQuantileRegressor
from quernel.estimators import KernelClassifier, KernelQuantileRegressor, KernelRegressor
from quernel.estimators.probabilities import Isotonic, ProbabilityCurves, Sigmoid
from quernel.estimators.quantile_cv import KernelQuantileRegressorCV
from quernel.losses import Logistic
from quernel.persistence.models import check_model_type
from quernel.persistence.onnx_graph import PREFIX, Graph, Tensor, exp, hstack, where
from quernel.persistence.onnx_inputs import table_inputs
from quernel.persistence.onnx_intervals import calibrated_bounds, check_exportable, fitted_quantiles, median_prediction
from quernel.persistence.onnx_kernels import feature_map_dot
from quernel.tables import TableModel
from quernel.tables.files import check_free, written_whole


def calibrated_probabilities(calibration: ProbabilityCurves, scores: Tensor) -> Tensor:
    """As `ProbabilityCurves.probabilities`, from scores (n, 1) of two classes or (n, K) of more; shape (n, K)."""
    each = [_calibrated_probability(curve, scores.take([k], axis=1)) for k, curve in enumerate(calibration.curves)]
    if len(each) == 1:
        return hstack([1.0 - each[0], each[0]])
    together = hstack(each)
    total = together.sum(axis=1, keepdims=True)
    possible = total > 0.0
    return where(possible, together / where(possible, total, 1.0), 1 / len(each))


def _calibrated_probability(curve: Sigmoid | Isotonic, score: Tensor) -> Tensor:
    """The probability of each score, (n, 1)."""
    graph = score.graph
    if isinstance(curve, Sigmoid):
        return graph.apply("Sigmoid", -curve.slope * score - curve.offset)
    if len(curve.scores) == 1:
        return 0.0 * score + curve.chances
    # What every piece adds: how far the score has come along it, from nothing to all of its rise.
    length, rise = np.diff(curve.scores), np.diff(curve.chances)
    share = graph.apply("Min", ((score - curve.scores[:-1]) / length).maximum(0.0), 1.0)
    return (share * rise).sum(axis=1, keepdims=True) + curve.chances[0]


def to_onnx(model: Any, path: str | PathLike[str], *, overwrite: bool = False) -> None:
    """Write a fitted model as an ONNX graph, whose answers are those of `predict` up to rounding.

    The graph computes in double precision. A model of arrays has one input, ``X``: double, shape (rows, columns).
    Outputs are ``quantiles`` (not crossing, if the model's are not), shape (rows, q) or, for one level, (rows,);
    ``prediction`` of a `KernelRegressor`; ``label`` and ``probabilities``, or ``scores`` where there are none, of a
    classifier; ``lower``, ``upper`` and ``prediction`` of a `ConformalQuantileRegressor`, each (rows,), with a second
    input ``groups`` (text, or whole numbers) if it was calibrated by group. A model of tables has an input for every
    column, by its name, of shape (rows, 1): text as strings (empty where missing), all else as doubles (NaN where
    missing), truth values as 0 and 1, dates as seconds since 1970 (`onnx_inputs` makes them of a table); and the
    outputs ``lower`` and ``upper`` besides ``quantiles``, if it has calibrated intervals.

    Parameters
    ----------
    model : a fitted estimator of quernel
    path : str or path
    overwrite : bool, default=False
        Whether to replace a file that is there already. The new file appears whole or not at all.
    """
    check_model_type(model, EXPORTERS, "quernel.to_onnx")
    check_is_fitted(model.model if isinstance(model, TableModel) else model)
    graph, path = Graph(), Path(path)
    check_free(path, overwrite=overwrite)
    EXPORTERS[type(model)](graph, model)
    content = graph.model(f"{type(model).__name__} of quernel").SerializeToString()
    with written_whole(path, overwrite=overwrite) as part, part.open("xb") as file:
        file.write(content)


def matrix_input(graph: Graph, model: Any) -> Tensor:
    """The columns of X, as one input."""
    return graph.input("X", float, (None, model.n_features_in_))


def export_quantiles(graph: Graph, model: KernelQuantileRegressor) -> None:
    """The fitted levels, in the order in which they were given."""
    add_quantile_output(graph, model, fitted_quantiles(model, matrix_input(graph, model)))


def export_table_model(graph: Graph, model: TableModel) -> None:
    """The same from the columns of a table, mapped back from logarithms."""
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
        add_interval_outputs(
            graph, [exp(end) if model.log_target else end for end in calibrated_bounds(graph, model.interval, x)]
        )


def export_intervals(graph: Graph, model: ConformalQuantileRegressor) -> None:
    """The calibrated ends, and the median."""
    check_exportable(model)
    x = matrix_input(graph, model)
    add_interval_outputs(graph, calibrated_bounds(graph, model, x))
    graph.output("prediction", median_prediction(model, x), float, (None,))


def add_interval_outputs(graph: Graph, ends: list[Tensor]) -> None:
    """The outputs of calibrated intervals."""
    for name, end in zip(("lower", "upper"), ends, strict=True):
        graph.output(name, end, float, (None,))


def add_quantile_output(graph: Graph, model: KernelQuantileRegressor, quantiles: Tensor) -> None:
    """The output of a quantile model, of the shape of `predict`."""
    if model._single:
        graph.output("quantiles", quantiles.take(0, axis=1), float, (None,))
    else:
        graph.output("quantiles", quantiles, float, (None, len(model.quantiles_)))


def export_regressor(graph: Graph, model: KernelRegressor) -> None:
    """Phi u + b."""
    raw = feature_map_dot(model.feature_map_, matrix_input(graph, model), model.coef_) + model.intercept_
    graph.output("prediction", raw.take(0, axis=1), float, (None,))


def export_classifier(graph: Graph, model: KernelClassifier) -> None:
    """The label, and the probabilities or, where neither loss nor calibration gives any, the decision function."""
    scores = feature_map_dot(model.feature_map_, matrix_input(graph, model), model.coef_) + model.intercept_
    labels, two = model.classes_, len(model.classes_) == 2
    kind = {"i": np.int64, "u": np.int64, "f": np.float64, "b": np.bool_}.get(labels.dtype.kind, np.str_)
    place = (
        (scores.take(0, axis=1) > 0.0).astype(np.int64) if two else graph.apply("ArgMax", scores, axis=1, keepdims=0)
    )
    graph.output("label", graph.constant(labels.astype(kind)).take(place, axis=0), kind, (None,))
    if model.calibration is not None or isinstance(model.loss_, Logistic):
        graph.output("probabilities", _probabilities(graph, model, scores), float, (None, len(labels)))
    elif two:
        graph.output("scores", scores.take(0, axis=1), float, (None,))
    else:
        graph.output("scores", scores, float, (None, len(labels)))


def _probabilities(graph: Graph, model: KernelClassifier, scores: Tensor) -> Tensor:
    if model.calibration is not None:
        return calibrated_probabilities(model.calibrated_, scores)
    if len(model.classes_) == 2:
        return graph.apply("Sigmoid", scores * np.array([[-1.0, 1.0]]))
    if model._together:
        return graph.apply("Softmax", scores, axis=1)
    each = graph.apply("Sigmoid", scores)
    return each / each.sum(axis=1, keepdims=True)


# A new estimator adds its line: a function that takes the graph and the model, and gives out what the model predicts.
EXPORTERS: dict[type, Callable[[Graph, Any], None]] = {
    KernelQuantileRegressor: export_quantiles,
    KernelQuantileRegressorCV: export_quantiles,
    KernelRegressor: export_regressor,
    KernelClassifier: export_classifier,
    ConformalQuantileRegressor: export_intervals,
    TableModel: export_table_model,
}
