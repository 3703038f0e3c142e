"""Model files that somebody changed, with a right checksum."""

import io
import json
import zipfile

import pytest

import quernel
from quernel.persistence import ModelFileError
from quernel.persistence.archive import HEADER_SIZE, SCHEMA, add_checksum


def write_archive(schema, members=(), compression=zipfile.ZIP_STORED):
    """The bytes of a model file with this schema and these members, pairs of a name and bytes."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", compression) as archive:
        archive.writestr(SCHEMA, schema if isinstance(schema, str) else json.dumps(schema))
        for name, member in dict(members).items():
            archive.writestr(name, member)
    return add_checksum(content.getvalue())


def read_archive(content):
    """The schema, and the other members by name, in the bytes of a model file."""
    with zipfile.ZipFile(io.BytesIO(content[HEADER_SIZE:])) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
        return json.loads(members.pop(SCHEMA)), members


def tamper(content, change):
    """The bytes of a model file after `change(schema, members)`."""
    schema, members = read_archive(content)
    change(schema, members)
    return write_archive(schema, members)


def node(value):
    """The node of a value: a number, text, None or a tuple of these."""
    node.made = number = node.made + 1
    kind, loader, content = "str", "JsonNode", json.dumps(value)
    if isinstance(value, tuple):
        kind, loader, content = "tuple", "TupleNode", [node(item) for item in value]
    return {"__class__": kind, "__module__": "builtins", "__loader__": loader, "content": content, "__id__": number}


node.made = 10**6  # so that no number is that of another object


def attributes(schema):
    """The nodes of the attributes of an object."""
    return schema["content"]["content"]


def replace(schema, name, forged):
    """Replace the attribute or item of this name, anywhere in a schema, by a node, or remove it if that is None."""
    for inside in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        replace(inside, name, forged)
    if isinstance(schema, dict) and schema.get("__loader__") == "DictNode" and name in schema["content"]:
        position = list(schema["content"]).index(name)
        schema["content"][name] = forged
        if forged is None:
            del schema["content"][name], schema["key_types"]["content"][position]


def add(schema, name, forged):
    """Add an attribute to an object."""
    attributes(schema)[name] = forged
    kinds = schema["content"]["key_types"]["content"]
    kinds.append(kinds[0])


def assert_refused(path, content, message="not a valid"):
    """A file with this content is refused by an error of one line that names it."""
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match=message) as caught:
        quernel.load(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
