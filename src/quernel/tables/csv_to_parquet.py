"""Copy CSV and Arrow files larger than memory to temporary Parquet files, batch by batch, so that they can be streamed.

Columns of a CSV file have the types that they have when it is read whole, though only a piece is seen at a time.
"""

from __future__ import annotations

import io
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from quernel.estimators.cost import as_size
from quernel.tables import reading
from quernel.tables.multi_file import Needed, every
from quernel.tables.parquet_row_groups import ParquetTable, open_parquet
from quernel.tables.reading import AS_IT_LOOKS, CSV, FAILED, CsvReading, TableError, complaints, ending_of

try:
    from fcntl import LOCK_EX, LOCK_NB, flock
except ImportError:  # Windows
    flock = None  # type: ignore[assignment]

PREFIX = "quernel-copy-"
LOCK = "owner.lock"


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder that goes with the block or, after this process was killed, with the next call of `remove_leftovers`."""
    with tempfile.TemporaryDirectory(prefix=PREFIX) as made, (Path(made) / "owner").open("wb") as owner:
        if _locked(owner):
            Path(owner.name).rename(Path(made) / LOCK)  # nobody sees it before it is locked
        inner = Path(made) / "files"
        inner.mkdir()
        yield inner


def remove_leftovers() -> None:
    """Remove the folders of processes that are no more."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        # Not there any more, or another user's.
        with suppress(OSError), (folder / LOCK).open("rb") as owner:
            if _locked(owner):
                shutil.rmtree(folder)


def _locked(file: IO[bytes]) -> bool:
    """Whether this process has the lock of a file from here on."""
    if flock is None:
        return False
    try:
        flock(file, LOCK_EX | LOCK_NB)
    except OSError:  # somebody else has it, or the file system has no locks
        return False
    return True


# Bytes that one of a compressed file becomes, about.
EXPANDED = 6


@contextmanager
def copied(files: Sequence[Path], how: CsvReading = AS_IT_LOOKS, needed: Needed = every) -> Iterator[ParquetTable]:
    """The files as a table that is read in parts; the copy, a folder of temporary files, goes with the block."""
    remove_leftovers()
    _check_disk(files)
    with temporary_folder() as folder:
        called = {}
        for k, path in enumerate(files):
            copy = folder / f"{k:06}.parquet"
            called[str(copy)] = str(path)
            _copy(path, copy, how)
        yield open_parquet(folder, called, needed)


def bytes_of(path: Path) -> int:
    """The size of a file, or about that which it has when it is not compressed."""
    size = path.stat().st_size
    return size if ending_of(path)[1] is None else EXPANDED * size


def _check_disk(files: Sequence[Path]) -> None:
    needed, folder = sum(map(bytes_of, files)), tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise TableError(
            f"{files[0]} is larger than memory and is copied to Parquet for streaming, which may take "
            f"{as_size(needed)}; the folder for temporary files, {folder}, has {as_size(free)}. Name a larger one by "
            "the environment variable TMPDIR, or convert the files to Parquet yourself."
        )


def _copy(path: Path, copy: Path, how: CsvReading) -> None:
    if ending_of(path)[0] not in CSV:
        with reading.in_batches(path) as batches:
            _write(batches, copy)
        return
    types: dict[str, Any] = dict(how.types)
    names: list[str] = []
    while True:
        try:
            with reading.in_batches(path, None, replace(how, types=types)) as batches:
                names = batches.schema.names
                types |= {field.name: field.type for field in batches.schema if field.name not in types}
            with reading.in_batches(path, None, replace(how, types=types)) as batches:
                _write(batches, copy)
            return
        except TableError as error:
            failed = FAILED.search(str(error.__cause__))
            if failed is None or not names:  # of a file whose first rows cannot be read there is no more to know
                raise
            name = names[int(failed["column"])]
            types[name] = _looser(types[name], failed["value"])


def _write(batches: reading.Batches, copy: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([field.with_type(_held(field.type)) for field in batches.schema])
    with pq.ParquetWriter(str(copy), schema) as writer:
        for piece in batches.pieces:
            columns = [
                column if column.type == field.type else pa.nulls(len(piece), field.type)
                for column, field in zip(piece.columns, schema, strict=True)
            ]
            with complaints(copy, ".parquet"):
                writer.write_table(pa.table(columns, schema=schema))


def _held(kind: Any) -> Any:
    """The type itself or, if Parquet has none such, another that says so: no model has a use for either."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        pq.ParquetWriter(io.BytesIO(), pa.schema([pa.field("x", kind)])).close()
    except pa.ArrowNotImplementedError:
        return pa.struct([pa.field(str(kind), pa.bool_())])
    return kind


def _looser(kind: Any, value: str | None) -> Any:
    """The next type that Arrow tries for a column of CSV, of those that hold this value, if it is known."""
    import pyarrow as pa
    from pyarrow import csv

    zones, units = (None, "UTC"), ("s", "ns")
    times = [pa.timestamp(unit, zone) for zone in zones for unit in units]
    order = [pa.null(), pa.int64(), pa.bool_(), pa.date32(), pa.time32("s"), *times, pa.float64(), pa.string()]
    for one in order[order.index(kind) + 1 : -1]:
        line = io.BytesIO()
        csv.write_csv(pa.table({"x": [value], "y": [0]}), line)
        try:
            line.seek(0)
            csv.read_csv(line, csv.ReadOptions(use_threads=False), None, csv.ConvertOptions(column_types={"x": one}))
        except pa.ArrowInvalid:
            continue
        return one
    return pa.string() if kind != pa.string() else pa.binary()
