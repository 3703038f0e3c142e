"""ONNX graphs written as formulas: `cos(x @ W + b)` adds three nodes.

All numbers are double: the runtime's operators that are used here have double versions, and features of large angles,
or coefficients that nearly cancel, would not survive single precision.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

OPSET, ML_OPSET, IR_VERSION = 17, 3, 8
# What the names of the graph's own values begin with.
PREFIX = "quernel/"


def import_onnx() -> ModuleType:
    """The onnx package, or word of how to get it."""
    try:
        import onnx
    except ImportError as error:
        raise ImportError("quernel.to_onnx needs the package onnx. Install it with: pip install 'quernel[onnx]'") from (
            error
        )
    return onnx


class Graph:
    """A graph that grows by the formulas of its tensors."""

    def __init__(self) -> None:
        self.onnx = import_onnx()
        self._nodes: list[Any] = []
        self._constants: list[Any] = []
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []

    def input(self, name: str, kind: Any, shape: tuple[int | None, ...]) -> Tensor:
        """An input of this numpy type; None in its shape is the number of rows."""
        self._inputs.append(self._value_info(name, np.dtype(kind), shape))
        return Tensor(self, name)

    def output(self, name: str, value: Tensor, kind: Any, shape: tuple[int | None, ...]) -> None:
        """Give a tensor out under this name."""
        self._nodes.append(self.onnx.helper.make_node("Identity", [value.name], [name]))
        self._outputs.append(self._value_info(name, np.dtype(kind), shape))

    def constant(self, value: ArrayLike) -> Tensor:
        """Numbers or text that the graph holds."""
        array = np.asarray(value)
        name = f"{PREFIX}constant{len(self._constants)}"
        if array.dtype.kind in "UO":
            text = [str(item).encode() for item in array.ravel().tolist()]
            tensor = self.onnx.helper.make_tensor(name, self.onnx.TensorProto.STRING, array.shape, text)
        else:
            tensor = self.onnx.numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)
        self._constants.append(tensor)
        return Tensor(self, name)

    def apply(self, operator: str, *arguments: Tensor | ArrayLike, outputs: int = 1, **options: Any) -> Any:
        """A tensor (or several) that an operator of ONNX makes; arguments that are no tensors are constants."""
        given = [value if isinstance(value, Tensor) else self.constant(value) for value in arguments]
        names = [f"{PREFIX}{operator}{len(self._nodes)}_{i}" for i in range(outputs)]
        self._nodes.append(self.onnx.helper.make_node(operator, [value.name for value in given], names, **options))
        made = tuple(Tensor(self, name) for name in names)
        return made[0] if outputs == 1 else made

    def model(self, description: str) -> Any:
        """The finished ONNX model, checked."""
        from quernel import __version__

        helper = self.onnx.helper
        graph = helper.make_graph(self._nodes, "quernel", self._inputs, self._outputs, self._constants)
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("ai.onnx.ml", ML_OPSET)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, doc_string=description)
        model.producer_name, model.producer_version = "quernel", __version__
        self.onnx.checker.check_model(model)
        return model

    def _value_info(self, name: str, kind: np.dtype[Any], shape: tuple[int | None, ...]) -> Any:
        helper = self.onnx.helper
        element = self.onnx.TensorProto.STRING if kind.kind in "UO" else helper.np_dtype_to_tensor_dtype(kind)
        return helper.make_tensor_value_info(name, element, ["rows" if size is None else size for size in shape])


Operand = Any  # a Tensor, an array or a number


@dataclass(frozen=True, eq=False)
class Tensor:
    """A value of the graph; arithmetic with it adds nodes."""

    graph: Graph
    name: str
    __array_ufunc__ = None  # numpy's arrays leave `array * tensor` to the tensor

    def __add__(self, other: Operand) -> Tensor:
        return self.graph.apply("Add", self, other)

    def __radd__(self, other: Operand) -> Tensor:
        return self.graph.apply("Add", other, self)

    def __sub__(self, other: Operand) -> Tensor:
        return self.graph.apply("Sub", self, other)

    def __rsub__(self, other: Operand) -> Tensor:
        return self.graph.apply("Sub", other, self)

    def __mul__(self, other: Operand) -> Tensor:
        return self.graph.apply("Mul", self, other)

    __rmul__ = __mul__

    def __truediv__(self, other: Operand) -> Tensor:
        return self.graph.apply("Div", self, other)

    def __rtruediv__(self, other: Operand) -> Tensor:
        return self.graph.apply("Div", other, self)

    def __matmul__(self, other: Operand) -> Tensor:
        return self.graph.apply("MatMul", self, other)

    def __pow__(self, exponent: float) -> Tensor:
        return self.graph.apply("Pow", self, float(exponent))

    def __gt__(self, other: Operand) -> Tensor:
        return self.graph.apply("Greater", self, other)

    def maximum(self, other: float) -> Tensor:
        """max(., other)."""
        return self.graph.apply("Max", self, float(other))

    def sum(self, axis: int, *, keepdims: bool = False) -> Tensor:
        """The sum along an axis."""
        return self.graph.apply("ReduceSum", self, np.array([axis]), keepdims=int(keepdims))

    def prod(self, axis: int) -> Tensor:
        """The product along an axis."""
        return self.graph.apply("ReduceProd", self, axes=[axis], keepdims=0)

    def take(self, index: Tensor | ArrayLike, axis: int) -> Tensor:
        """Some entries along an axis; a single index drops the axis."""
        index = index if isinstance(index, Tensor) else np.asarray(index, dtype=np.int64)
        return self.graph.apply("Gather", self, index, axis=axis)

    def astype(self, kind: Any) -> Tensor:
        """The same in another numpy type."""
        element = self.graph.onnx.helper.np_dtype_to_tensor_dtype(np.dtype(kind))
        return self.graph.apply("Cast", self, to=element)


def exp(x: Tensor) -> Tensor:
    """e^x."""
    return x.graph.apply("Exp", x)


def log(x: Tensor) -> Tensor:
    """The natural logarithm."""
    return x.graph.apply("Log", x)


def sin(x: Tensor) -> Tensor:
    """The sine."""
    return x.graph.apply("Sin", x)


def cos(x: Tensor) -> Tensor:
    """The cosine."""
    return x.graph.apply("Cos", x)


def sqrt(x: Tensor) -> Tensor:
    """The square root."""
    return x.graph.apply("Sqrt", x)


def absolute(x: Tensor) -> Tensor:
    """|x|."""
    return x.graph.apply("Abs", x)


def nearest_integer(x: Tensor) -> Tensor:
    """x rounded, halves to even."""
    return x.graph.apply("Round", x)


def equal(x: Tensor, other: Operand) -> Tensor:
    """Where x is the other."""
    return x.graph.apply("Equal", x, other)


def is_missing(x: Tensor) -> Tensor:
    """Where x is no finite number: x - x is not 0 there, but no number."""
    return x.graph.apply("IsNaN", x - x)


def hstack(parts: list[Tensor]) -> Tensor:
    """Columns side by side."""
    return parts[0].graph.apply("Concat", *parts, axis=1)


def where(condition: Tensor, yes: Operand, no: Operand) -> Tensor:
    """One where the condition holds, the other elsewhere."""
    return condition.graph.apply("Where", condition, yes, no)
