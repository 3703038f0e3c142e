"""Finding Parquet files and checking their schemas, before any row is read.

Files are read without Arrow's threads: these compete with our own, and may deadlock in a forked process.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quernel.data.sources import RowsError

ENDINGS = (".parquet", ".pq")
# Bytes of a column that are buffered at a time; without a limit, a whole row group would be in memory.
BUFFER = 2**20


@dataclass(frozen=True)
class Files:
    """Parquet files in the order in which they are read."""

    paths: tuple[str, ...]
    filesystem: Any = None  # Arrow file system; None is the local one
    from_folders: tuple[str, ...] = ()  # partition columns, known from the names of folders only


def find(paths: Any) -> Files:
    """List the files of a path, a glob pattern, a folder, a list of paths, or a pyarrow dataset."""
    if hasattr(paths, "get_fragments"):
        return _from_dataset(paths)
    if isinstance(paths, str | os.PathLike):
        found = _from_path(os.fspath(paths))
    elif isinstance(paths, Sequence):
        found = [os.fspath(path) for path in paths]
    else:
        raise RowsError(f"paths must be a path, a list of paths or a pyarrow dataset; got {type(paths).__name__}.")
    if not found:
        raise RowsError(
            f"No Parquet file was found at {paths!r}. Give a file, a folder, or a pattern like 'trips/*.parquet'."
        )
    for path in found:
        if not os.path.isfile(path):
            raise RowsError(f"{path} is not a file. Give Parquet files, or a folder or pattern by itself.")
    return Files(tuple(found))


def _from_path(path: str) -> list[str]:
    """The file itself, or all Parquet files of a folder or glob pattern, sorted by name."""
    if os.path.isdir(path):  # writers leave metadata beside the data, in files that begin with . or _
        inside = (p for p in Path(path).rglob("*") if p.suffix in ENDINGS and not p.name.startswith((".", "_")))
        return sorted(str(p) for p in inside if p.is_file())
    if os.path.exists(path) or not glob.has_magic(path):
        return [path]
    return sorted(p for p in glob.glob(path, recursive=True) if os.path.isfile(p))


def _from_dataset(dataset: Any) -> Files:
    """The files of a pyarrow dataset; a filter of its own is refused, for it would be ignored."""
    if getattr(getattr(dataset, "format", None), "default_extname", None) != "parquet":
        raise RowsError(f"The dataset must be one of Parquet files; got a {type(dataset).__name__} of another kind.")
    if (getattr(dataset, "_scan_options", None) or {}).get("filter") is not None:
        raise RowsError("The dataset has a filter of its own. Give the whole dataset, and the filter as filters=.")
    if not dataset.files:
        raise RowsError("The dataset has no files.")
    partition = getattr(dataset, "partitioning", None)
    return Files(
        tuple(dataset.files), dataset.filesystem, tuple(partition.schema.names) if partition is not None else ()
    )


@dataclass(frozen=True)
class Footer:
    """Metadata of a file."""

    schema: Any  # Arrow schema
    sizes: tuple[int, ...]  # number of rows of each row group


def footer(path: str, filesystem: Any = None) -> Footer:
    """Read the metadata of a file, which stand at its end."""
    with opened(path, filesystem) as file, complaints(path):
        groups = range(file.metadata.num_row_groups)
        return Footer(file.schema_arrow, tuple(file.metadata.row_group(g).num_rows for g in groups))


@contextmanager
def opened(path: str, filesystem: Any = None) -> Iterator[Any]:
    """Context manager: the file opened as a pyarrow ParquetFile, with page checksums verified."""
    import pyarrow.parquet as pq

    with complaints(path):
        file = pq.ParquetFile(
            path, filesystem=filesystem, pre_buffer=False, buffer_size=BUFFER, page_checksum_verification=True
        )
    with file:
        yield file


@contextmanager
def complaints(place: str, remedy: str = "Write the file again, or leave it out.") -> Iterator[None]:
    """Context manager: turn errors of Arrow and of the system into one-line `RowsError`s that name place and remedy."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise RowsError(f"{place} cannot be read: {reason.rstrip('.')}. {remedy}") from error


def is_number(kind: Any) -> bool:
    """Whether an Arrow type converts to float64 without encoding: floats, integers and booleans."""
    import pyarrow.types as types

    return types.is_floating(kind) or types.is_integer(kind) or types.is_boolean(kind)


def inputs(path: str, schema: Any, others: Sequence[str | None], only_filtered: Sequence[str]) -> tuple[str, ...]:
    """Names of all numeric columns of a schema except `others` (target and weight).

    Other types raise a `RowsError`, except in columns that are only filtered by, which are left out.
    """
    chosen = []
    for field in schema:
        if field.name in others:
            continue
        if is_number(field.type):
            chosen.append(field.name)
        elif field.name not in only_filtered:
            raise RowsError(_not_a_number(path, field.name, field.type))
    if not chosen:
        raise RowsError(f"{path} has no column of numbers besides {', '.join(filter(None, others))}.")
    return tuple(chosen)


def check_schema(path: str, schema: Any, needed: Sequence[str]) -> None:
    """Raise a `RowsError` unless every needed column exists, once, and is numeric."""
    for name in needed:
        count = schema.names.count(name)
        if count == 0:
            listed = ", ".join(schema.names[:12]) + (", ..." if len(schema.names) > 12 else "")
            raise RowsError(f"{path} has no column {name!r}. Its columns: {listed}.")
        if count > 1:
            raise RowsError(f"{path} has {count} columns named {name!r}. Rename them, so that each is known.")
        kind = schema.field(name).type
        if not is_number(kind):
            raise RowsError(_not_a_number(path, name, kind))


def _not_a_number(path: str, name: str, kind: Any) -> str:
    return (
        f"{path}: column {name!r} holds {kind} values, not numbers. Choose other columns with columns=, turn it into "
        "numbers first, or use the command line, which encodes text."
    )
