"""Encoding of objects as JSON and arrays, and back: data of known classes only, never code.

Numbers, text, None and lists are encoded as themselves. Everything else is a JSON object tagged by its type:

    {"float": "nan"}    {"tuple": [...]}    {"dict": [[key, value], ...]}    {"scalar": array}    {"array": array}
    {"generator": state}    {"random_state": state}    {"object": class name, "state": [[attribute, value], ...]}

where `array` is {"number": position, "frozen": read-only?} in the list of arrays or, for arrays of Python objects,
{"items": [...], "shape": [...]}.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator

from quernel.persistence.archive import DTYPE_KINDS

JSON = Any
# NumPy's bit generators: the only classes that are looked up by a name in the file outside the known ones.
BIT_GENERATORS = ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")


class Encoder:
    """Encoder of objects of known classes; their arrays are collected in `arrays`.

    Parameters
    ----------
    known : dict of class name to class
        Instances of any other class raise TypeError.
    remedies : dict of attribute name to str
        What to do about an attribute that cannot be saved, for the error message.
    """

    def __init__(self, known: Mapping[str, type], remedies: Mapping[str, str]) -> None:
        self.known, self.remedies, self.arrays = known, remedies, list[NDArray[Any]]()
        self._array_numbers: dict[int, int] = {}

    def encode(self, value: Any, where: str) -> JSON:
        """Return the JSON of a value; `where` is its path from the model, for error messages."""
        if value is None or type(value) in (bool, int, str):
            return value
        if type(value) is float:  # JSON has no NaN and no infinity
            return value if np.isfinite(value) else {"float": str(value)}
        if type(value) is list:
            return [self.encode(item, f"{where}[{i}]") for i, item in enumerate(value)]
        if type(value) is tuple:
            return {"tuple": self.encode(list(value), where)}
        if type(value) is dict:
            return {"dict": [[self.encode(k, where), self.encode(v, f"{where}[{k!r}]")] for k, v in value.items()]}
        if isinstance(value, np.generic) and value.dtype.kind in DTYPE_KINDS:
            return {"scalar": self._array(np.asarray(value), where)}
        if type(value) is np.ndarray:
            return {"array": self._array(value, where)}
        if type(value) is np.random.Generator:
            return {"generator": self.encode(value.bit_generator.state, where)}
        if type(value) is np.random.RandomState:
            return {"random_state": self.encode(value.get_state(legacy=False), where)}
        if self.known.get(type(value).__name__) is type(value):
            state = [[name, self.encode(part, f"{where}.{name}")] for name, part in get_state(value).items()]
            return {"object": type(value).__name__, "state": state}
        remedy = self.remedies.get(where.rsplit(".", 1)[-1].split("[")[0], "")
        raise TypeError(
            f"{where} is a {type(value).__module__}.{type(value).__qualname__}, which a model file cannot hold: there "
            f"are numbers, text and quernel's own objects in it, never code. {remedy}".rstrip()
        )

    def _array(self, array: NDArray[Any], where: str) -> JSON:
        """Add an array to the list, and return the reference to it."""
        if array.dtype.kind == "O":  # text from data frames
            return {"items": self.encode(array.ravel().tolist(), where), "shape": list(array.shape)}
        if array.dtype.kind not in DTYPE_KINDS:
            raise TypeError(f"{where} is an array of type {array.dtype}, which a model file cannot hold.")
        # An array shared by several objects is stored once.
        number = self._array_numbers.setdefault(id(array), len(self.arrays))
        if number == len(self.arrays):
            self.arrays.append(array)
        return {"number": number, "frozen": not array.flags.writeable}


class Decoder:
    """Decoder of what `Encoder` made: builds objects of known classes from JSON and arrays."""

    def __init__(self, known: Mapping[str, type], arrays: list[NDArray[Any]]) -> None:
        self.known, self.arrays = known, arrays

    def decode(self, node: JSON) -> Any:
        """Return the value of a JSON node; raise ValueError, TypeError or LookupError if it is invalid."""
        if node is None or isinstance(node, bool | int | float | str):
            return node
        if isinstance(node, list):
            return [self.decode(item) for item in node]
        match node:
            case {"float": "nan" | "inf" | "-inf" as text}:
                return float(text)
            case {"tuple": list(items)}:
                return tuple(self.decode(items))
            case {"dict": list(items)}:
                return {self.decode(key): self.decode(item) for key, item in items}
            case {"scalar": array}:
                return self._array(array)[()]
            case {"array": array}:
                return self._array(array)
            case {"generator": state}:
                return np.random.Generator(_bit_generator(self.decode(state)))
            case {"random_state": state}:
                return np.random.RandomState(_bit_generator(self.decode(state)))
            case {"object": str(name), "state": list(state)}:
                if name not in self.known:
                    raise ValueError(f"objects of the class {name!r} are unknown")
                return build(self.known[name], {key: self.decode(part) for key, part in state})
        raise ValueError(f"the entry {str(node)[:60]} is unknown")

    def _array(self, node: JSON) -> NDArray[Any]:
        """Return the array of a reference, read-only if it was."""
        match node:
            case {"items": list(items), "shape": list(shape)}:
                array = np.empty(len(items), dtype=object)
                for place, item in enumerate(items):  # one by one: an item may be an array itself
                    array[place] = self.decode(item)
                return array.reshape(shape)
            case {"number": int(number), "frozen": bool(frozen)} if 0 <= number < len(self.arrays):
                array = self.arrays[number]
                array.flags.writeable = not frozen
                return array
        raise ValueError(f"the array {str(node)[:60]} is missing")


def get_state(value: Any) -> dict[str, Any]:
    """Return the state to save: constructor parameters and, for an estimator, all its attributes.

    An estimator with `_export_state` may replace what only fitting needs by what predictions need.
    """
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
    if isinstance(value, BaseEstimator):
        state = value.get_params(deep=False) | vars(value)
        return value._export_state(state) if hasattr(value, "_export_state") else state
    return {name: getattr(value, name) for name in inspect.signature(type(value)).parameters}


def build(kind: type, state: dict[str, Any]) -> Any:
    """Build an object from its state, through its own constructor, which validates its arguments.

    Fitted attributes of an estimator are set afterwards. Names of methods and properties are refused: a file must not
    be able to replace them.
    """
    if not issubclass(kind, BaseEstimator):
        return kind(**state)
    model = kind(**{name: state.pop(name) for name in inspect.signature(kind).parameters})
    for name, value in state.items():
        if not isinstance(name, str) or not name.isidentifier() or hasattr(kind, name):
            raise ValueError(f"{kind.__name__} has no fitted attribute {name!r}")
        setattr(model, name, value)
    return model


def _bit_generator(state: dict[str, Any]) -> Any:
    """Restore a bit generator of NumPy from its `state`."""
    if state["bit_generator"] not in BIT_GENERATORS:
        raise ValueError(f"the random generator {state['bit_generator']!r} is unknown")
    generator = getattr(np.random, state["bit_generator"])()
    generator.state = state
    return generator
