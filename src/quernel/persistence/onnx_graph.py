"""ONNX graphs written as array formulas: `cos(x @ W + b)` adds three nodes.

`Tensor` overloads Python's operators, and the functions below have NumPy's names where NumPy has them. All numbers are
float64: the operators used here have float64 kernels in onnxruntime, and random features of large angles, or
coefficients that nearly cancel, would lose all digits in float32.

Written in them is what goes into a model: the columns of a table, encoded (`encode_table`), and feature maps phi(x)'u
(`feature_map_dot`). Below, n is the number of rows, d of columns, M of random features, P of landmarks and q of
quantile levels. No formula ends in a multiplication by a scalar. onnxruntime would fuse it into the matrix product that
follows, as an attribute in float32, and lose half of the digits: such factors are multiplied into the coefficients
instead.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.pipeline import Pipeline

from quernel.conformal import ConformalQuantileRegressor
from quernel.conformal.adapters import unwrap_frozen
from quernel.conformal.table_model import TableModel
from quernel.features import (
    LandmarkPredictor,
    Nystroem,
    PivotedCholesky,
    PrecomputedFeatures,
    RandomFeatures,
    TrendFeatures,
)
from quernel.kernels import (
    ArcCosine,
    Cauchy,
    Gaussian,
    Kernel,
    Laplacian,
    Linear,
    Matern,
    ShiftInvariantKernel,
    resolve,
)
from quernel.tables import TableEncoder, TextColumn
from quernel.tables.columns import CYCLES, Column, Markers, find_places
from quernel.tables.frames import factorize, open_frame

# Versions of the operator sets (the standard one and ai.onnx.ml) and of the file format.
OPSET, ML_OPSET, IR_VERSION = 18, 3, 8
# Prefix of the names of intermediate values, so that they cannot clash with names of inputs and outputs.
PREFIX = "quernel/"
Shape = tuple[int | None, ...]  # None is the number of rows
Model: TypeAlias = BaseEstimator | TableModel


def import_onnx() -> ModuleType:
    """Import the optional dependency onnx, or raise ImportError that says how to install it."""
    try:
        import onnx
    except ImportError as error:
        raise ImportError("quernel.to_onnx needs the package onnx. Install it with: pip install onnx") from error
    return onnx


class Graph:
    """An ONNX graph under construction: operations on its tensors append nodes.

    Declare inputs with `input`, compute with the tensors, declare outputs with `output`, and finish with `model`.

    Attributes
    ----------
    nodes, constants : lists of NodeProto and TensorProto
    outputs : dict of name to tensor, NumPy dtype and shape
    """

    def __init__(self, prefix: str = PREFIX) -> None:
        self.onnx, self._prefix = import_onnx(), prefix
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.outputs: dict[str, tuple[Tensor, Any, Shape]] = {}
        self._inputs: list[Any] = []

    def input(self, name: str, dtype: DTypeLike, shape: Shape) -> Tensor:
        """Declare an input of this NumPy dtype; None in the shape is the number of rows."""
        self._inputs.append(self._value_info(name, np.dtype(dtype), shape))
        return Tensor(self, name)

    def output(self, name: str, value: Tensor, dtype: DTypeLike, shape: Shape) -> None:
        """Declare a tensor to be an output of this name."""
        self.outputs[name] = value, np.dtype(dtype), shape

    def constant(self, value: ArrayLike) -> Tensor:
        """Add an array of numbers or text as a constant (an initializer of the graph)."""
        array = np.asarray(value)
        name = f"{self._prefix}constant{len(self.constants)}"
        if array.dtype.kind in "UO":
            text = [str(item).encode() for item in array.ravel().tolist()]
            tensor = self.onnx.helper.make_tensor(name, self.onnx.TensorProto.STRING, array.shape, text)
        else:
            tensor = self.onnx.numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)
        self.constants.append(tensor)
        return Tensor(self, name)

    def apply(self, name: str, *args: Tensor | ArrayLike, outputs: int = 1, **attributes: Any) -> Any:
        """Append a node and return its output, or a tuple of outputs.

        Parameters
        ----------
        name : of the ONNX operator
        *args : its inputs; whatever is not a tensor becomes a constant
        outputs : number of its outputs
        **attributes : of the node, such as axis
        """
        inputs = [value if isinstance(value, Tensor) else self.constant(value) for value in args]
        names = [f"{self._prefix}{name}{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(self.onnx.helper.make_node(name, [value.name for value in inputs], names, **attributes))
        tensors = tuple(Tensor(self, output) for output in names)
        return tensors[0] if outputs == 1 else tensors

    def lookup(self, keys: Tensor, codes: Mapping[Any, int], *, default: int) -> Tensor:
        """Return the int64 code of every key, all text or all integers, and `default` for keys that have none."""
        kind = "keys_strings" if isinstance(next(iter(codes), ""), str) else "keys_int64s"
        attributes: dict[str, Any] = {kind: list(codes), "values_int64s": list(codes.values())}
        return self.apply("LabelEncoder", keys, domain="ai.onnx.ml", default_int64=default, **attributes)

    def model(self, description: str) -> Any:
        """Return the finished ONNX model (a ModelProto), validated by the onnx checker."""
        from quernel import __version__

        helper = self.onnx.helper
        renamed = [helper.make_node("Identity", [value.name], [name]) for name, (value, *_) in self.outputs.items()]
        declared = [self._value_info(name, dtype, shape) for name, (_, dtype, shape) in self.outputs.items()]
        graph = helper.make_graph([*self.nodes, *renamed], "quernel", self._inputs, declared, self.constants)
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("ai.onnx.ml", ML_OPSET)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, doc_string=description)
        model.producer_name, model.producer_version = "quernel", __version__
        self.onnx.checker.check_model(model)
        return model

    def _value_info(self, name: str, dtype: np.dtype[Any], shape: Shape) -> Any:
        """Declare name, element type and shape of an input or output."""
        helper = self.onnx.helper
        element = self.onnx.TensorProto.STRING if dtype.kind in "UO" else helper.np_dtype_to_tensor_dtype(dtype)
        return helper.make_tensor_value_info(name, element, ["rows" if size is None else size for size in shape])


Operand = Any  # a Tensor, an array or a number


def _binary(name: str, *, swapped: bool = False) -> Callable[[Tensor, Operand], Tensor]:
    """Return the method of `Tensor` that appends a node of two inputs, the tensor being the second one if swapped."""

    def append_node(self: Tensor, other: Operand) -> Tensor:
        return self.graph.apply(name, *((other, self) if swapped else (self, other)))

    return append_node


@dataclass(frozen=True, eq=False)
class Tensor:
    """A value of the graph, by name; arithmetic with it appends nodes. Broadcasting is that of NumPy."""

    graph: Graph
    name: str
    __array_ufunc__ = None  # NumPy then leaves `array * tensor` to `Tensor.__rmul__`

    __add__, __radd__ = _binary("Add"), _binary("Add", swapped=True)
    __sub__, __rsub__ = _binary("Sub"), _binary("Sub", swapped=True)
    __mul__ = __rmul__ = _binary("Mul")
    __truediv__, __rtruediv__ = _binary("Div"), _binary("Div", swapped=True)
    __matmul__, __gt__ = _binary("MatMul"), _binary("Greater")

    def maximum(self, other: float) -> Tensor:
        """Elementwise maximum of the tensor and a number."""
        return self.graph.apply("Max", self, float(other))

    def sum(self, axis: int, *, keepdims: bool = False) -> Tensor:
        """Sum along an axis."""
        return self.graph.apply("ReduceSum", self, np.array([axis]), keepdims=int(keepdims))

    def take(self, index: Tensor | ArrayLike, axis: int) -> Tensor:
        """Select entries along an axis, as `np.take`: a scalar index drops the axis."""
        index = index if isinstance(index, Tensor) else np.asarray(index, dtype=np.int64)
        return self.graph.apply("Gather", self, index, axis=axis)

    def astype(self, dtype: DTypeLike) -> Tensor:
        """Cast to a NumPy dtype."""
        element = self.graph.onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        return self.graph.apply("Cast", self, to=element)


def _unary(name: str) -> Callable[[Tensor], Tensor]:
    """Return the function that appends a node of one input, elementwise."""
    return lambda x: x.graph.apply(name, x)


exp, sin, cos, sqrt, absolute = _unary("Exp"), _unary("Sin"), _unary("Cos"), _unary("Sqrt"), _unary("Abs")


def equal(x: Tensor, other: Operand) -> Tensor:
    """Elementwise x == other, boolean."""
    return x.graph.apply("Equal", x, other)


def is_missing(x: Tensor) -> Tensor:
    """Whether x is NaN or infinite, elementwise: x - x is NaN for both, and 0 for finite numbers."""
    return x.graph.apply("IsNaN", x - x)


def hstack(parts: list[Tensor]) -> Tensor:
    """Concatenate tensors (n, k_i) along their columns."""
    return parts[0].graph.apply("Concat", *parts, axis=1)


def where(condition: Tensor, yes: Operand, no: Operand) -> Tensor:
    """Elementwise `yes` where the condition holds and `no` elsewhere, as `np.where`."""
    return condition.graph.apply("Where", condition, yes, no)


def add_all(terms: list[Tensor]) -> Tensor:
    """Add tensors; Python's `sum` would begin with a node for 0."""
    return reduce(operator.add, terms)


Array = NDArray[np.floating]
FeatureMap = RandomFeatures | PivotedCholesky | Nystroem | LandmarkPredictor | PrecomputedFeatures | TrendFeatures


def onnx_inputs(model: Model, table: Any) -> dict[str, NDArray[Any]]:
    """Compute the inputs of the ONNX graph of a model of tables, for the rows of a table.

    Columns are converted as by `predict`, whatever their type: dates and times in any unit and time zone, durations,
    categories, numbers as text.

    Parameters
    ----------
    model : TableModel, TableEncoder, or Pipeline that begins with one
        A `TableModel` is what `quernel.load` returns for a file that `quernel fit` wrote.
    table : pandas or polars data frame, Arrow table, or dict of columns

    Returns
    -------
    dict of column name to array of shape (rows, 1)
        Text as strings, empty where missing; everything else as float64, NaN where missing. It is what `run` of an
        onnxruntime session takes.
    """
    encoder = find_encoder(model)
    if encoder is None:
        raise TypeError(
            f"quernel.onnx_inputs takes a model of tables, as quernel fit makes them; got {type(model).__name__}. The "
            'graph of a model of arrays is fed {"X": X}, of type float64.'
        )
    frame = open_frame(table)
    encoder.check_frame(frame)
    values = {
        column.name: _input_values(column, frame.get(column.name), encoder.markers) for column in encoder.columns_
    }
    return {name: column[:, None] for name, column in values.items()}


def find_encoder(model: Model) -> TableEncoder | None:
    """Return the encoder of the tables that a model predicts from; None if it predicts from arrays."""
    if isinstance(model, Pipeline):
        return find_encoder(model.steps[0][1])
    if isinstance(model, ConformalQuantileRegressor) and len(model.estimators_) == 1:
        return find_encoder(unwrap_frozen(model.estimators_[0]))
    candidates = (model, getattr(model, "encoder", None), getattr(model, "encoder_", None))
    return next((one for one in candidates if isinstance(one, TableEncoder)), None)


def _input_values(column: Column, entries: Any, markers: Markers) -> NDArray[Any]:
    """Return the values of a column, shape (n,), in the type of the graph's input."""
    if not isinstance(column, TextColumn):
        return column.read(entries, markers)
    labels, index = factorize(entries)
    categories = ["" if label in markers.texts and label not in column.categories else label for label in labels]
    return np.array([*categories, ""], dtype=object)[index]  # missing values have index -1, and so the empty string


def declare_columns(graph: Graph, encoder: TableEncoder) -> dict[str, Tensor]:
    """Declare an input for each column that an encoder uses, by its name, (rows, 1): text, or numbers as float64."""
    for name in encoder.inputs:
        if not name or name.startswith(PREFIX):
            raise ValueError(
                f"The input {name!r} cannot be one of a graph: there it must have a name that does not begin with "
                f"{PREFIX!r}. Rename the column, and fit again."
            )
    return {column.name: graph.input(column.name, input_type(column), (None, 1)) for column in encoder.columns_}


def input_type(column: Column) -> type:
    """Return the type of the input of a column."""
    return str if isinstance(column, TextColumn) else float


def encode_table(encoder: TableEncoder, columns: Mapping[str, Tensor]) -> Tensor:
    """Return the encoded matrix (n, width), as `TableEncoder` computes it, from its columns (n, 1) by name."""
    return hstack(
        [part for column in encoder.columns_ for part in _encode_column(columns[column.name], column, encoder)]
    )


def _encode_column(x: Tensor, column: Column, encoder: TableEncoder) -> list[Tensor]:
    """Return the encoded columns of one column of the table, x of shape (n, 1).

    Missing values are imputed by `column.fill`; a column that is `flagged` adds an indicator of them.
    """
    if isinstance(column, TextColumn):
        return [_encode_text(x, column, encoder.missing_markers(column))]
    if column.kind in ("number", "duration"):
        for number in encoder.markers.numbers:  # missing-value markers that are numbers, such as -999
            x = where(equal(x, number), np.nan, x)
    missing = is_missing(x)
    filled = where(missing, column.fill, x)
    flag = [missing.astype(float)] if column.flagged else []
    is_date = column.kind == "date"
    elapsed = filled - column.start if is_date else filled
    angles = [2 * np.pi / CYCLES[cycle] * elapsed for cycle in column.cycles]
    waves = [function(angle) for angle in angles for function in (sin, cos)]
    return [elapsed / CYCLES["year"] if is_date else filled, *waves, *flag]


def _encode_text(text: Tensor, column: TextColumn, markers: tuple[str, ...]) -> Tensor:
    """Return the one-hot encoding of a text column, (n, width), as a lookup in `column.codes`.

    Its first rows are those of the known categories; then come one for other text and one for missing values, to which
    the missing-value markers belong.
    """
    n, graph = len(column.categories), text.graph
    rows = dict.fromkeys(markers, n + 1) | find_places(column.categories)
    row = graph.lookup(text, rows, default=n)
    return graph.constant(column.codes).take(graph.apply("Squeeze", row, np.array([1])), axis=0)


def feature_map_dot(feature_map: FeatureMap, x: Tensor, coef: Array) -> Tensor:
    """Return Phi(x) u, shape (n, q), for coefficients u of shape (M, q) or, with landmarks, (P, q).

    Maps with landmarks need no features: phi(x)'u is a sum of kernel values K(x, p) times weights, found here.
    """
    if isinstance(feature_map, TrendFeatures):
        of_base, of_others, of_trends = feature_map.split(coef)
        trends = _trends(feature_map, x)
        terms = [feature_map_dot(feature_map.base, x, of_base)]
        terms += [trend @ of_trends[k : k + 1] for k, trend in enumerate(trends)]
        return add_all(
            terms if feature_map.others is None else [*terms, _others_dot(feature_map, x, trends, of_others)]
        )
    if isinstance(feature_map, PrecomputedFeatures):
        return x @ coef
    kernel = resolve(feature_map.kernel)
    if isinstance(feature_map, PivotedCholesky):  # phi(x)'u = K(x, P) L^-T u: the factor L need not be exported
        return _kernel_sum(kernel, x, feature_map.landmarks_, np.linalg.solve(feature_map.factor_.T, coef))
    if isinstance(feature_map, Nystroem):
        feature_map, coef = LandmarkPredictor.from_nystroem(feature_map, coef)
    if isinstance(feature_map, LandmarkPredictor):
        return _kernel_sum(kernel, x, feature_map.landmarks_, coef)
    terms = []
    for term, (_, part) in enumerate(kernel.summands):
        own = feature_map.terms_ == term  # the features of this summand of the kernel
        factor, features = random_features(part, x, feature_map.frequencies_[:, own], feature_map.phases_[own])
        terms.append(features @ (factor * feature_map.weights_[own, None] * coef[own]))
    return add_all(terms)


def _trends(features: TrendFeatures, x: Tensor) -> list[Tensor]:
    """Return the standardised trends, (n, 1) each."""
    found = []
    for k, (sign, bend) in enumerate(zip(features.monotone, features.convex, strict=True)):
        own = (x.take(np.array([features.columns[k]]), axis=1) - features.low_[k]) / features.range_[k]
        trend = own * float(sign) if not bend else (exp(own * float(sign * bend)) if sign else own * own) * float(bend)
        found.append((trend - features.mean_[k]) / features.scale_[k])
    return found


def _others_dot(features: TrendFeatures, x: Tensor, trends: list[Tensor], coef: Array) -> Tensor:
    """Return the features of the other columns, alone and times each trend, times coefficients (1 + p, m, q)."""
    free = np.ones(features.others.landmarks_.shape[1])
    free[features.columns] = 0.0
    first, *products = (feature_map_dot(features.others, x * free, features.weight * one) for one in coef)
    return add_all([first, *(one * trend for one, trend in zip(products, trends, strict=True))])


def _kernel_sum(kernel: Kernel, x: Tensor, landmarks: Array, weights: Array) -> Tensor:
    """Return K(x, P) w, shape (n, q), for weights w of shape (P, q); K is a sum of kernels c_k K_k."""
    return add_all([kernel_matrix(part, x, landmarks) @ (c * weights) for c, part in kernel.summands])


def random_features(kernel: Kernel, x: Tensor, frequencies: Array, phases: Array) -> tuple[float, Tensor]:
    """Return the random features of a kernel as (factor, tensor of shape (n, M)), without their weights.

    sqrt(2) cos(w'x + b) for shift-invariant kernels (Rahimi and Recht 2007), rectified linear or step units for the
    arc-cosine kernels.
    """
    if isinstance(kernel, ShiftInvariantKernel):
        return np.sqrt(2), cos(x @ frequencies + phases)
    if type(kernel) is ArcCosine:
        unit = x @ frequencies + phases
        return np.sqrt(2), unit.maximum(0) if kernel.order == 1 else (unit > 0.0).astype(float)
    raise ValueError(_unsupported_message(kernel))


def kernel_matrix(kernel: Kernel, x: Tensor, landmarks: Array) -> Tensor:
    """Return the kernel matrix K(x_i, p_k) between rows and landmarks, shape (n, P)."""
    if type(kernel) is Linear:
        return x @ landmarks.T
    if type(kernel) not in (Gaussian, Laplacian, Matern, Cauchy):  # not isinstance: a subclass may have another formula
        raise ValueError(_unsupported_message(kernel))
    assert isinstance(kernel, ShiftInvariantKernel)
    difference = _differences(x, landmarks) / kernel.scale(landmarks.shape[1])
    if type(kernel) is Laplacian:
        return exp(-1.0 * absolute(difference).sum(axis=2))
    squared = (difference * difference).sum(axis=2)
    if type(kernel) is Gaussian:
        return exp(-0.5 * squared)
    if type(kernel) is Cauchy:
        return 1.0 / (1.0 + squared)
    assert isinstance(kernel, Matern)
    s = np.sqrt(2 * kernel.nu) * sqrt(squared)
    decay = exp(-1.0 * s)
    if kernel.nu == 0.5:
        return decay
    return (1.0 + s if kernel.nu == 1.5 else 1.0 + s + s * s / 3.0) * decay


def _differences(x: Tensor, points: Array) -> Tensor:
    """Return x_i - p_k for all pairs, shape (n, P, d)."""
    return x.graph.apply("Unsqueeze", x, np.array([1])) - points


def _unsupported_message(kernel: Kernel) -> str:
    waves = isinstance(kernel, ShiftInvariantKernel | ArcCosine)
    return f"The kernel {type(kernel).__name__} has no formula for ONNX. Use " + (
        "random features (n_components=500, say)." if waves else "another one of quernel's own kernels."
    )
