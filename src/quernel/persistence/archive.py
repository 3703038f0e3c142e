"""The model file: a checksum, then a zip archive of one JSON document and the arrays that it refers to.

    quernel model\\n | SHA-256 of all that follows | zip: model.json, 0.npy, 1.npy, ...

The checksum covers every byte of the archive, so that damage anywhere is found before anything is parsed. It is not a
signature: whoever can write the file can compute the checksum anew. Loading is safe because nothing is executed, and
no memory is allocated that the size of the file does not justify: arrays are numbers or text, never pickled objects;
members are stored uncompressed, so that there are no zip bombs; and an array's shape must agree with its bytes.
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
    with write_atomically(path, overwrite=overwrite) as part, part.open("xb") as file:
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
