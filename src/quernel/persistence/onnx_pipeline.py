"""Converters for skl2onnx: estimators of quernel inside of a scikit-learn `Pipeline`, exported as one ONNX graph.

skl2onnx asks three things of a model: which outputs it has (parser), their types (shape calculator), and its nodes
(converter). Here all three run the exporter of `onnx_export`, on a graph of their own.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator

from quernel.conformal.table_model import TableModel
from quernel.persistence.onnx_export import EXPORTERS, export_model
from quernel.persistence.onnx_graph import (
    ML_OPSET,
    OPSET,
    Graph,
    Tensor,
    encode_table,
    find_encoder,
    hstack,
    import_onnx,
    input_type,
)
from quernel.tables import TableEncoder


def import_skl2onnx() -> ModuleType:
    """Import the optional dependency skl2onnx, or raise ImportError that says how to install it."""
    try:
        import skl2onnx
    except ImportError as error:
        raise ImportError(
            "Pipelines are exported by the package skl2onnx. Install it with: pip install skl2onnx"
        ) from error
    return skl2onnx


def register_converters() -> None:
    """Register the estimators of quernel with skl2onnx: `skl2onnx.to_onnx(pipeline, X)` then knows them.

    Outputs have the names of `quernel.to_onnx`; those of shape (rows,) become (rows, 1), as skl2onnx has it, but for
    labels. Graphs need operator set 18 or later, and compute in float64 from inputs of any type.
    """
    skl2onnx = import_skl2onnx()
    for kind in EXPORTERS:
        if kind is not TableModel:  # no estimator of scikit-learn
            alias = f"Quernel{kind.__name__}"
            skl2onnx.update_registered_converter(kind, alias, _set_types, _convert, parser=_parse)


def convert_pipeline(model: BaseEstimator, initial_types: Any = None) -> Any:
    """Return the ONNX model (a ModelProto) of a fitted model of scikit-learn with estimators of quernel inside."""
    skl2onnx = import_skl2onnx()
    register_converters()
    opsets = {"": OPSET, "ai.onnx.ml": ML_OPSET}
    inputs = _default_inputs(model) if initial_types is None else initial_types
    made = skl2onnx.convert_sklearn(model, initial_types=inputs, target_opset=opsets)
    onnx = import_onnx()
    try:
        onnx.checker.check_model(made, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(
            f"skl2onnx has no valid graph in float64 for a step of {type(model).__name__}: {reason}"
        ) from error
    return made


def _default_inputs(model: BaseEstimator) -> list[tuple[str, Any]]:
    """Return X as float64 or, of a pipeline that begins with an encoder, a column of text or float64 each."""
    from skl2onnx.common.data_types import DoubleTensorType, StringTensorType

    encoder = find_encoder(model)
    if encoder is None:
        return [("X", DoubleTensorType([None, model.n_features_in_]))]
    kinds = {str: StringTensorType, float: DoubleTensorType}
    return [(column.name, kinds[input_type(column)]([None, 1])) for column in encoder.columns_]


def _parse(scope: Any, model: BaseEstimator, inputs: list[Any], custom_parsers: Any = None) -> list[Any]:  # noqa: ARG001
    """Declare a model in the topology of skl2onnx, with the outputs of its exporter."""
    operator = scope.declare_local_operator(f"Quernel{type(model).__name__}", model)
    operator.inputs = inputs
    for name, kind in _output_types(operator).items():
        operator.outputs.append(scope.declare_local_variable(name, kind))
    return operator.outputs


def _set_types(operator: Any) -> None:
    """Set the types of the outputs."""
    for output, kind in zip(operator.outputs, _output_types(operator).values(), strict=True):
        output.type = kind


def _output_types(operator: Any) -> dict[str, Any]:
    """Return the types of skl2onnx of a model's outputs, by name."""
    from skl2onnx.common import data_types

    kinds = {"f": data_types.DoubleTensorType, "i": data_types.Int64TensorType, "b": data_types.BooleanTensorType}
    outputs = _export(Graph(), operator).outputs
    return {
        name: kinds.get(dtype.kind, data_types.StringTensorType)(list(shape))
        for name, (_, dtype, shape) in outputs.items()
    }


def _convert(scope: Any, operator: Any, container: Any) -> None:
    """Add the nodes of a model to the graph that skl2onnx builds."""
    if container.target_opset < OPSET:
        raise ValueError(f"Models of quernel need operator set {OPSET}; got target_opset={container.target_opset}.")
    graph = _export(Graph(scope.get_unique_operator_name("quernel") + "/"), operator)
    for output, (value, *_) in zip(operator.outputs, graph.outputs.values(), strict=True):
        graph.nodes.append(graph.onnx.helper.make_node("Identity", [value.name], [output.full_name]))
    container.nodes.extend(graph.nodes)
    container.initializers.extend(graph.constants)
    container.node_domain_version_pair_sets |= {("", OPSET), ("ai.onnx.ml", ML_OPSET)}


def _export(graph: Graph, operator: Any) -> Graph:
    """Run the exporter of a model on the inputs of its operator; outputs of shape (rows,) become columns."""
    model, inputs = operator.raw_operator, operator.inputs
    tensors = {one.raw_name: Tensor(graph, one.full_name) for one in inputs}
    encoder = find_encoder(model)
    if encoder is not None:
        x = encode_table(encoder, _columns(encoder, inputs, tensors))
    else:
        x = hstack([tensor.astype(float) for tensor in tensors.values()])
    if getattr(model, "_groups", None) is not None:
        raise ValueError("Intervals that are calibrated by group need the groups as an input: export the model alone.")
    export_model(graph, model, x)
    for name, (value, dtype, shape) in graph.outputs.items():
        if len(shape) == 1 and name != "label":
            graph.outputs[name] = graph.apply("Unsqueeze", value, np.array([1])), dtype, (None, 1)
    return graph


def _columns(encoder: TableEncoder, inputs: list[Any], tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the columns of an encoder, (n, 1): inputs of these names, or columns of the only input, a matrix."""
    if not set(encoder.inputs) <= set(tensors):
        if len(inputs) > 1:
            missing = [name for name in encoder.inputs if name not in tensors]
            raise ValueError(f"There is no input for the column {missing[0]!r}: give initial_types one for each.")
        (matrix,) = tensors.values()
        places = {name: place for place, name in enumerate(encoder._names_in)}
        tensors = {name: matrix.take([places[name]], axis=1) for name in encoder.inputs}
    numbers = {column.name for column in encoder.columns_ if input_type(column) is float}
    return {name: tensors[name].astype(float) if name in numbers else tensors[name] for name in encoder.inputs}
