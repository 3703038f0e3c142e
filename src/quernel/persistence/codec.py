"""Objects as JSON and arrays, and back: data of known classes only, never code.

Numbers, text, None and lists are themselves. All else is a JSON object with one tag: what it is, and what it holds.
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
BIT_GENERATORS = ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")


class Encoder:
    """Turns objects of known classes into JSON, and gathers their arrays; `remedies` go by the names of attributes."""

    def __init__(self, known: Mapping[str, type], remedies: Mapping[str, str]) -> None:
        self.known, self.remedies, self.arrays = known, remedies, list[NDArray[Any]]()
        self._array_numbers: dict[int, int] = {}

    def encode(self, value: Any, where: str) -> JSON:
        """The JSON of a value; `where` says in errors what could not be saved."""
        if value is None or type(value) in (bool, int, str):
            return value
        if type(value) is float:  # as text where JSON has no word for it
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
        if array.dtype.kind == "O":  # text from data frames
            return {"items": self.encode(array.ravel().tolist(), where), "shape": list(array.shape)}
        if array.dtype.kind not in DTYPE_KINDS:
            raise TypeError(f"{where} is an array of type {array.dtype}, which a model file cannot hold.")
        number = self._array_numbers.setdefault(
            id(array), len(self.arrays)
        )  # one that several objects share is held once
        if number == len(self.arrays):
            self.arrays.append(array)
        return {"number": number, "frozen": not array.flags.writeable}


class Decoder:
    """Makes objects of known classes from JSON and arrays."""

    def __init__(self, known: Mapping[str, type], arrays: list[NDArray[Any]]) -> None:
        self.known, self.arrays = known, arrays

    def decode(self, node: JSON) -> Any:
        """The value of some JSON; ValueError, TypeError or LookupError if it makes no sense."""
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
    """What an object is made of: what its constructor takes and, for an estimator, its fitted attributes."""
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
    if isinstance(value, BaseEstimator):
        state = value.get_params(deep=False) | vars(value)
        return value._export_state(state) if hasattr(value, "_export_state") else state
    return {name: getattr(value, name) for name in inspect.signature(type(value)).parameters}


def build(kind: type, state: dict[str, Any]) -> Any:
    """The object with this state. Its own constructor runs, and checks what it is given."""
    if not issubclass(kind, BaseEstimator):
        return kind(**state)
    parameters = {name: state.pop(name) for name in kind._get_param_names()}
    model = kind(**parameters)
    for name, value in state.items():
        if not isinstance(name, str) or not name.isidentifier() or hasattr(kind, name):
            raise ValueError(f"{kind.__name__} has no fitted attribute {name!r}")
        setattr(model, name, value)
    return model


def _bit_generator(state: dict[str, Any]) -> Any:
    if state["bit_generator"] not in BIT_GENERATORS:
        raise ValueError(f"the random generator {state['bit_generator']!r} is unknown")
    made = getattr(np.random, state["bit_generator"])()
    made.state = state
    return made
