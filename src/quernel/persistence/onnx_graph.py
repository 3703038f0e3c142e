"""ONNX graphs written as array formulas: `cos(x @ W + b)` adds three nodes.

`Tensor` overloads Python's operators, and the functions below have NumPy's names where NumPy has them. All numbers are
float64: the operators used here have float64 kernels in onnxruntime, and random features of large angles, or
coefficients that nearly cancel, would lose all digits in float32.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

# Versions of the operator sets (the standard one and ai.onnx.ml) and of the file format.
OPSET, ML_OPSET, IR_VERSION = 18, 3, 8
# Prefix of the names of intermediate values, so that they cannot clash with names of inputs and outputs.
PREFIX = "quernel/"
Shape = tuple[int | None, ...]  # None is the number of rows


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

    def input(self, name: str, dtype: Any, shape: Shape) -> Tensor:
        """Declare an input of this NumPy dtype; None in the shape is the number of rows."""
        self._inputs.append(self._value_info(name, np.dtype(dtype), shape))
        return Tensor(self, name)

    def output(self, name: str, value: Tensor, dtype: Any, shape: Shape) -> None:
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

    def astype(self, dtype: Any) -> Tensor:
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
