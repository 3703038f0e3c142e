"""Model files that somebody changed, with a right checksum."""

import hashlib
import io
import json
import zipfile

import pytest

import quernel
from quernel.persistence import ModelFileError
from quernel.persistence.archive import HEADER_SIZE, MAGIC


def write_archive(document, arrays=(), compression=zipfile.ZIP_STORED):
    """The bytes of a model file with this document and these arrays."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", compression) as members:
        members.writestr("model.json", document if isinstance(document, str) else json.dumps(document))
        for number, array in enumerate(arrays):
            members.writestr(f"{number}.npy", array)
    return MAGIC + hashlib.sha256(content.getvalue()).digest() + content.getvalue()


def read_archive(content):
    """The document and the arrays in the bytes of a model file."""
    with zipfile.ZipFile(io.BytesIO(content[HEADER_SIZE:])) as members:
        names = members.namelist()
        return json.loads(members.read(names[0])), [members.read(name) for name in names[1:]]


def tamper(content, change):
    """The bytes of a model file after `change(document, arrays)`."""
    document, arrays = read_archive(content)
    change(document, arrays)
    return write_archive(document, arrays)


def assert_refused(path, content, message="not a valid"):
    """A file with this content is refused by an error of one line that names it."""
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match=message) as caught:
        quernel.load(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
