"""The model file: a skops archive behind a checksum, checked before skops reads it.

    quernel model\\n | SHA-256 of all that follows | zip: schema.json, 0.npy, 1.npy, ...

The checksum covers every byte of the archive, so that damage anywhere is found before anything is parsed. It is not a
signature: whoever can write the file can compute the checksum anew. So the archive is checked before skops constructs
anything. Members are uncompressed and no array claims more than its bytes: memory is bounded by the size of the file.
The schema, a tree of nodes in JSON, names for each object its class and a loader of skops; only pairs that the caller
knows are accepted, objects with one identity must be the same, and an array belongs to one of them, so that a few
references cannot stand for billions of objects.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from numpy.lib import format as npy

MAGIC = b"quernel model\n"
# Bytes before the zip archive: the magic number and the checksum.
HEADER_SIZE = len(MAGIC) + hashlib.sha256().digest_size
SCHEMA = "schema.json"
# `dtype.kind` of arrays that may be stored: booleans, integers, floats, text, times; and of the fields of records.
DTYPE_KINDS, FIELD_KINDS = "biufUmM", "biuf"
# The largest length of an axis, or size of an item, of an array without items.
MAX_EMPTY = 10**6
# All members have the same date, so that the same model gives the same file, byte for byte.
ZIP_DATE = (1980, 1, 1, 0, 0, 0)
# The oldest protocol of skops that is read: the loaders of older ones check less.
MIN_PROTOCOL = 2
# Keys of dicts that skops writes as text and does not read as they were.
UNKEPT_KEYS = {"bool", "bool_", "NoneType"}

Node = dict[str, Any]


class ModelFileError(ValueError):
    """Raised for a file that is not a model, is damaged, or was written by a newer version of quernel."""


class UntrustedError(TypeError):
    """Raised for objects of classes that are not trusted; `found` has pairs of a path in the model and a class name."""

    def __init__(self, found: list[tuple[str, str]]) -> None:
        self.found = found
        super().__init__("; ".join(f"{where} is of the untrusted type {name}" for where, name in found[:3]))


def type_name(kind: type | Callable[..., object]) -> str:
    """Return the name of a class or function as skops writes it."""
    return f"{kind.__module__}.{kind.__name__}"


def dump_archive(model: object, about: Mapping[str, object]) -> bytes:
    """Return the archive of an object as skops writes it, with `about` in its schema."""
    import skops.io

    old, content = io.BytesIO(skops.io.dumps(model)), io.BytesIO()
    with zipfile.ZipFile(old) as members, zipfile.ZipFile(content, "w", zipfile.ZIP_STORED) as new:
        names: dict[str, str] = {}
        schema = _renumber(json.loads(members.read(SCHEMA)), {}, names)
        new.writestr(zipfile.ZipInfo(SCHEMA, ZIP_DATE), json.dumps(schema | {"quernel": about}, separators=(",", ":")))
        for name, counted in names.items():
            new.writestr(zipfile.ZipInfo(counted, ZIP_DATE), members.read(name))
    return content.getvalue()


def _renumber(part: Any, nodes: dict[int, Node], names: dict[str, str]) -> Any:
    """Return a schema in which objects and members are counted, so that the same model gives the same bytes.

    skops numbers objects and names members by addresses in memory. `nodes` has the new node of each object: one that
    occurs again is written as it was. `names` has the new name of each member.
    """
    if isinstance(part, list):
        return [_renumber(child, nodes, names) for child in part]
    if not isinstance(part, dict):
        return part
    if not isinstance(part.get("__loader__"), str):
        return {key: _renumber(child, nodes, names) for key, child in part.items()}
    address = part.pop("__id__")
    if address not in nodes:
        if isinstance(name := part.get("file"), str):
            part["file"] = names.setdefault(name, f"{len(names)}{Path(name).suffix}")
        new = {key: _renumber(child, nodes, names) for key, child in part.items()}
        nodes[address] = new | {"__id__": len(nodes) + 1}
    return nodes[address]


def add_checksum(archive: bytes) -> bytes:
    """Return the bytes of a model file."""
    return MAGIC + hashlib.sha256(archive).digest() + archive


def read_archive(path: Path) -> bytes:
    """Read the archive of a model file; raise ModelFileError unless it is intact."""
    data = path.read_bytes()
    if not data.startswith(MAGIC):
        raise ModelFileError(f"{path} is not a quernel model file. Models are written by quernel.save or quernel fit.")
    if hashlib.sha256(data[HEADER_SIZE:]).digest() != data[len(MAGIC) : HEADER_SIZE]:
        raise ModelFileError(f"{path} is damaged: its content does not match its checksum. Copy or save it again.")
    return data[HEADER_SIZE:]


def read_schema(archive: bytes) -> tuple[Node, dict[str, int]]:
    """Check the members of an archive; return its schema, and the number of axes of each array by its name.

    Whatever is wrong raises an error of any kind: NumPy, for one, parses headers as Python literals.
    """
    n_axes = {}
    with zipfile.ZipFile(io.BytesIO(archive)) as members:
        entries = members.infolist()
        if len({entry.filename for entry in entries}) != len(entries):
            raise ValueError("two members have the same name")
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
            raise ValueError("members must not be compressed")
        if sum(entry.file_size for entry in entries) > len(archive):
            raise ValueError("members overlap")
        for entry in entries:
            if entry.filename.endswith(".npy"):
                n_axes[entry.filename] = _check_array(members.read(entry))
            elif entry.filename != SCHEMA and not entry.filename.endswith(".bin"):
                raise ValueError(f"the member {entry.filename!r} is of an unknown kind")
        schema = json.loads(members.read(SCHEMA))
    if not isinstance(schema, dict) or not isinstance(schema.get("quernel"), dict):
        raise ValueError("it does not say which format it has")
    if not isinstance(schema.get("protocol"), int) or schema["protocol"] < MIN_PROTOCOL:
        raise ValueError(f"it has the protocol {schema.get('protocol')} of skops, which is too old")
    return schema, n_axes


def _check_array(member: bytes) -> int:
    """Return the number of axes; raise unless the header of a .npy member agrees with its bytes."""
    stream = io.BytesIO(member)
    version = npy.read_magic(stream)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"arrays of version {version} are unknown")
    read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, _, dtype = read_header(stream)
    fields = [dtype[name].kind for name in dtype.names or ()]
    known = all(kind in FIELD_KINDS for kind in fields) if fields else dtype.kind in DTYPE_KINDS
    n_bytes = len(member) - stream.tell()
    # The last condition is for empty arrays, such as one of shape (0, 10**18).
    too_large = max(*shape, dtype.itemsize, 0) > max(len(member), MAX_EMPTY)
    if not known or dtype.itemsize * math.prod(shape) != n_bytes or too_large:
        raise ValueError(f"an array of shape {shape} and type {dtype} does not hold what it says")
    return len(shape)


def check_schema(
    schema: Node, n_axes: Mapping[str, int], known: Mapping[str, Collection[str]], trusted: Collection[str] = ()
) -> set[str]:
    """Check the nodes of a schema, and return the names of all classes and functions in it.

    Parameters
    ----------
    schema, n_axes : as `read_schema` returns them
    known : dict of a loader's name to the names of the classes that it may construct
    trusted : names of classes and functions that the user trusts, with any loader

    Raises
    ------
    UntrustedError
        Some classes are neither known nor trusted.
    ValueError, TypeError or LookupError
        The schema is inconsistent.
    """
    ids: dict[Any, Node] = {}
    owners: dict[str, Any] = {}
    names, untrusted = set(), []
    for where, node in walk_nodes(schema):
        loader, name = node["__loader__"], f"{node['__module__']}.{node['__class__']}"
        if ids.setdefault(node["__id__"], node) != node:
            raise ValueError(f"{where} is two objects at once")
        if loader == "JsonNode":  # numbers, text and lists of them: the class is not looked up
            continue
        if name not in trusted and name not in known.get(loader, ()):
            untrusted.append((where, name))
        names.add(name)
        if "file" in node and owners.setdefault(node["file"], node["__id__"]) != node["__id__"]:
            raise ValueError(f"{where} shares an array with another object")
        if loader == "RandomGeneratorNode":
            _check_seed(node)
        if loader == "TreeNode":
            _check_tree_arrays(node, n_axes)
        if loader == "DictNode" and {kind["__class__"] for kind in node["key_types"]["content"]} & UNKEPT_KEYS:
            raise TypeError(f"{where} has booleans or None as keys, which a model file cannot hold")
    if untrusted:
        raise UntrustedError(untrusted)
    return names


def _check_seed(node: Node) -> None:
    """Raise unless the seed sequence of a generator has the usual pool: the work grows with the square of its size."""
    seed = node["content"]["seed_seq"]
    size = seed["content"]["pool_size"]
    if (seed["__loader__"], size["__loader__"], size["content"]) != ("DictNode", "JsonNode", "4"):
        raise ValueError("the seed sequence of a random generator is invalid")


def _check_tree_arrays(node: Node, n_axes: Mapping[str, int]) -> None:
    """Raise unless the arrays of a tree of scikit-learn have the number of axes that compiled code takes for granted.

    What they hold is checked when it can be looked at, in `integrity`.
    """
    state, arguments = node["content"]["content"], node["__reduce__"]["args"]["content"]
    for array, wanted in ((state["nodes"], 1), (state["values"], 3), (arguments[1], 1)):
        if array["__loader__"] != "NdArrayNode" or n_axes[array["file"]] != wanted:
            raise ValueError("a tree has arrays of the wrong kind")


def walk_nodes(part: Any, where: str = "") -> Iterator[tuple[str, Node]]:
    """Yield every node of a schema with its path from the model, such as `KernelRegressor.loss`."""
    if isinstance(part, list):
        for child in part:
            yield from walk_nodes(child, where)
    elif isinstance(part, dict) and isinstance(part.get("__loader__"), str):
        where = where or str(part.get("__class__"))
        yield where, part
        is_dict = part["__loader__"] == "DictNode"
        for key, child in part.items():
            if key == "content" and is_dict and isinstance(child, dict):
                for name, item in child.items():
                    yield from walk_nodes(item, f"{where}.{name}")
            else:
                yield from walk_nodes(child, where)
    elif isinstance(part, dict):
        if "__id__" in part:  # skops would take it for the node of that identity
            raise ValueError(f"{where} has no loader")
        for child in part.values():
            yield from walk_nodes(child, where)
