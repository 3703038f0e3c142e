"""The model file: its bytes, and the encoding of objects as JSON and arrays. Data of known classes only, never code.

    quernel model\\n | SHA-256 of all that follows | zip: model.json, 0.npy, 1.npy, ...

The checksum covers every byte of the archive, so that damage anywhere is found before anything is parsed. It is not a
signature: whoever can write the file can compute the checksum anew. Loading is safe because nothing is executed, and
no memory is allocated that the size of the file does not justify: arrays are numbers or text, never pickled objects;
members are stored uncompressed, so that there are no zip bombs; and an array's shape must agree with its bytes.

In the JSON document numbers, text, None and lists are encoded as themselves. Everything else is a JSON object tagged by
its type:

    {"float": "nan"}    {"tuple": [...]}    {"dict": [[key, value], ...]}    {"scalar": array}    {"array": array}
    {"generator": state}    {"random_state": state}    {"object": class name, "state": [[attribute, value], ...]}

where `array` is {"number": position, "frozen": read-only?} in the list of arrays or, for arrays of Python objects,
{"items": [...], "shape": [...]}.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import io
import json
import math
import tokenize
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray
from sklearn.base import BaseEstimator

from quernel._files import write_atomically

MAGIC = b"quernel model\n"
# Bytes before the zip archive: the magic number and the checksum.
HEADER_SIZE = len(MAGIC) + hashlib.sha256().digest_size
DOCUMENT = "model.json"
# `dtype.kind` of arrays that may be stored: booleans, integers, floats and text.
DTYPE_KINDS = "biufU"
# All members have the same date, so that the same model gives the same file, byte for byte.
ZIP_DATE = (1980, 1, 1, 0, 0, 0)
# What invalid zip archives and array headers raise. NumPy parses headers as Python literals, hence the syntax errors.
ARCHIVE_ERRORS = (
    *(ValueError, TypeError, KeyError, EOFError, OverflowError, RuntimeError, SyntaxError),
    *(tokenize.TokenError, zipfile.BadZipFile),
)

JSON = Any
# NumPy's bit generators: the only classes that are looked up by a name in the file outside the known ones.
BIT_GENERATORS = ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")


class ModelFileError(ValueError):
    """Raised for a file that is not a model, is damaged, or was written by a newer version of quernel."""


def write_archive(path: Path, document: Any, arrays: list[NDArray[Any]], *, overwrite: bool) -> None:
    """Write a model file atomically: it appears complete or not at all.

    The document is anything that JSON can represent, without NaN; it refers to the arrays by their position.
    """
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_STORED) as members:
        members.writestr(zipfile.ZipInfo(DOCUMENT, ZIP_DATE), json.dumps(document, allow_nan=False, indent=1))
        for number, array in enumerate(arrays):
            member = io.BytesIO()
            npy.write_array(member, array, allow_pickle=False)
            members.writestr(zipfile.ZipInfo(f"{number}.npy", ZIP_DATE), member.getvalue())
    archive = content.getvalue()
    with write_atomically(path, overwrite=overwrite) as part, part.open("wb") as file:
        file.write(MAGIC + hashlib.sha256(archive).digest() + archive)


def read_archive(path: Path) -> tuple[Any, list[NDArray[Any]]]:
    """Read the document and the arrays of a model file; raise ModelFileError unless it is intact."""
    data = path.read_bytes()
    if not data.startswith(MAGIC):
        raise ModelFileError(f"{path} is not a quernel model file. Models are written by quernel.save or quernel fit.")
    if hashlib.sha256(data[HEADER_SIZE:]).digest() != data[len(MAGIC) : HEADER_SIZE]:
        raise ModelFileError(f"{path} is damaged: its content does not match its checksum. Copy or save it again.")
    try:
        with zipfile.ZipFile(io.BytesIO(data[HEADER_SIZE:])) as members:
            names = members.namelist()
            if any(info.compress_type != zipfile.ZIP_STORED for info in members.infolist()):
                raise ValueError("members must not be compressed")
            if names != [DOCUMENT, *(f"{number}.npy" for number in range(len(names) - 1))]:
                raise ValueError(f"unexpected members {names[:5]}")
            return json.loads(members.read(DOCUMENT)), [_read_array(members.read(name)) for name in names[1:]]
    except ARCHIVE_ERRORS as error:
        raise ModelFileError(f"{path} is not a valid quernel model file: {error}.") from error


def _read_array(member: bytes) -> NDArray[Any]:
    """Parse a .npy member, without `np.load`: the header is checked against the bytes before memory is allocated.

    The memory layout (C or Fortran) is that of the saved array, because the last bit of matrix products depends on it.
    """
    stream = io.BytesIO(member)
    version = npy.read_magic(stream)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"arrays of version {version} are unknown")
    read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, fortran, dtype = read_header(stream)
    content = member[stream.tell() :]
    if dtype.kind not in DTYPE_KINDS or dtype.itemsize * math.prod(shape) != len(content):
        raise ValueError(f"an array of shape {shape} and type {dtype} does not hold what it says")
    return np.frombuffer(content, dtype).reshape(shape, order="F" if fortran else "C").copy(order="K")


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
