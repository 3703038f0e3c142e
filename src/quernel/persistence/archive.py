"""The model file: a seal, then a zip archive of one JSON document and the arrays that it refers to.

    quernel model\\n | SHA-256 of all that follows | zip: model.json, 0.npy, 1.npy, ...

The seal covers every byte, so that damage anywhere is found before anything is read. It is no signature: who can write
the file can seal it again. What keeps loading safe is that there is nothing to execute: arrays are numbers or text,
never pickled objects, members are stored uncompressed, and no size is believed that the file itself does not have.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import tokenize
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from quernel.tables.files import written_whole

MAGIC = b"quernel model\n"
HEADER_SIZE = len(MAGIC) + hashlib.sha256().digest_size
DOCUMENT = "model.json"
DTYPE_KINDS = "biufU"  # truth values, integers, numbers, text
# Members carry no date of their own: the same model makes the same file.
ZIP_DATE = (1980, 1, 1, 0, 0, 0)
# What zip archives and headers of arrays raise that make no sense; NumPy reads headers as Python reads literals.
ARCHIVE_ERRORS = (
    *(ValueError, TypeError, KeyError, EOFError, OverflowError, RuntimeError, SyntaxError),
    *(tokenize.TokenError, zipfile.BadZipFile),
)


class ModelFileError(ValueError):
    """A file that is no model, is damaged, or was made by a quernel that this one does not know."""


def write_archive(path: Path, document: Any, arrays: list[NDArray[Any]], *, overwrite: bool) -> None:
    """Write the file, whole or not at all."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_STORED) as members:
        members.writestr(zipfile.ZipInfo(DOCUMENT, ZIP_DATE), json.dumps(document, allow_nan=False, indent=1))
        for number, array in enumerate(arrays):
            member = io.BytesIO()
            npy.write_array(member, array, allow_pickle=False)
            members.writestr(zipfile.ZipInfo(f"{number}.npy", ZIP_DATE), member.getvalue())
    sealed = content.getvalue()
    with written_whole(path, overwrite=overwrite) as part, part.open("xb") as file:
        file.write(MAGIC + hashlib.sha256(sealed).digest() + sealed)


def read_archive(path: Path) -> tuple[Any, list[NDArray[Any]]]:
    """The document and the arrays of a model file that is whole."""
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
    """An array in the layout in which it was saved: products depend on it in their last bit."""
    stream = io.BytesIO(member)
    version = npy.read_magic(stream)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"arrays of version {version} are unknown")
    read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, fortran, kind = read_header(stream)
    content = member[stream.tell() :]
    if kind.kind not in DTYPE_KINDS or kind.itemsize * math.prod(shape) != len(content):
        raise ValueError(f"an array of shape {shape} and type {kind} does not hold what it says")
    return np.frombuffer(content, kind).reshape(shape, order="F" if fortran else "C").copy(order="K")
