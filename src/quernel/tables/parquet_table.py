"""ParquetTable: files larger than memory, read row group by row group, and map-reduce over their batches.

CSV and Arrow files are first copied to temporary Parquet files, batch by batch. Columns of a CSV file then have the
types that they have when it is read whole, although only a piece is seen at a time.
"""

from __future__ import annotations

import io
import shutil
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv

from quernel._files import as_size
from quernel.data.parquet import explain_errors, open_file, read_footer
from quernel.data.passes import read_ahead
from quernel.data.sources import BLOCK_ROWS, RowsError, Stamp, check_stamp
from quernel.tables import reading
from quernel.tables.multi_file import ColumnFilter, any_column, cast_to_schema, find_files, unify_schema
from quernel.tables.reading import (
    CONVERSION_ERROR,
    CSV,
    INFER_TYPES,
    PARQUET,
    CsvOptions,
    TableError,
    check_names,
    split_extension,
)

try:
    from fcntl import LOCK_EX, LOCK_NB, flock
except ImportError:  # Windows
    flock = None  # type: ignore[assignment]

# Results of batches that are reduced at a time, so that they never pile up.
REDUCE_SIZE = 16
# Estimated ratio of a compressed file's content to its size.
COMPRESSION_RATIO = 6
# Names of the temporary folders of copies, and of the file in them that their process keeps locked.
PREFIX, LOCK = "quernel-copy-", "owner.lock"


@dataclass(frozen=True)
class RowGroup:
    """A row group of a Parquet file.

    Attributes
    ----------
    path, number : the file, and the index of the group in it
    n_rows : number of rows, at least 1
    first : index of the first row among the rows of all files
    label : name of the file in messages, if that is not its path
    """

    path: str
    number: int
    n_rows: int
    first: int = 0
    label: str = ""

    def __str__(self) -> str:
        return f"{self.label or self.path}, row group {self.number}"


class RowBatch(NamedTuple):
    """Consecutive rows of a group as an Arrow table, and the index of the first in the group."""

    group: RowGroup
    start: int
    table: pa.Table


Map = Callable[[RowBatch], Any]
Reduce = Callable[[list[Any]], Any]


class MapReduceTable(Protocol):
    """What the training data need of a table: a `ParquetTable`, or a `DaskTable`."""

    @property
    def groups(self) -> tuple[RowGroup, ...]:
        """Row groups that have rows."""

    @property
    def schema(self) -> pa.Schema:
        """Common schema of the files."""

    @property
    def n_rows(self) -> int:
        """Number of rows of all files."""

    def map_reduce(self, step: Map, reduce: Reduce, columns: Sequence[str]) -> Any:
        """Apply `step` to these columns of every batch, and merge the results by `reduce`."""


@dataclass(frozen=True, eq=False)
class ParquetTable:
    """A table of Parquet files, of which only a batch is in memory at a time.

    Attributes
    ----------
    groups : row groups that have rows, in the order of the files
    schema : common Arrow schema of the files
    n_bytes : uncompressed size of all values
    stamps : by path, what tells that a file was changed between two passes
    """

    groups: tuple[RowGroup, ...]
    schema: pa.Schema
    n_bytes: int
    stamps: Mapping[str, Stamp]

    @property
    def n_rows(self) -> int:
        """Number of rows of all files."""
        return sum(group.n_rows for group in self.groups)

    def select_group(self, group: RowGroup) -> ParquetTable:
        """Return the table of one row group."""
        return replace(self, groups=(group,))

    def iter_batches(
        self, columns: Sequence[str], groups: Sequence[RowGroup] | None = None, size: int = BLOCK_ROWS
    ) -> Generator[RowBatch, None, None]:
        """Yield the rows of these groups (None: all), `size` at a time; each file is opened once."""
        schema = pa.schema([self.schema.field(name) for name in columns])
        for path, some in groupby(self.groups if groups is None else groups, key=lambda group: group.path):
            with open_file(path) as file:
                check_stamp(path, self.stamps[path])
                for group in some:
                    with explain_errors(str(group)):
                        batches = file.iter_batches(size, [group.number], list(columns), use_threads=False)
                    for start in range(0, group.n_rows, size):
                        with explain_errors(str(group)):
                            batch = next(batches, None)
                        if batch is None or len(batch) != min(size, group.n_rows - start):
                            raise RowsError(f"{group} has other rows than before: the file was changed while in use.")
                        yield RowBatch(group, start, cast_to_schema(batch, schema, str(group)))
                check_stamp(path, self.stamps[path])

    def map_reduce(self, step: Map, reduce: Reduce, columns: Sequence[str]) -> Any:
        """Apply `step` to every batch, prefetched by a thread, and merge the results by `reduce`."""
        return reduce_stream(map(step, read_ahead(self.iter_batches(columns))), reduce)


def reduce_stream(results: Iterable[Any], reduce: Reduce) -> Any:
    """Reduce results as they come, a few at a time."""
    held: list[Any] = []
    for result in results:
        held.append(result)
        if len(held) == REDUCE_SIZE:
            held = [reduce(held)]
    return reduce(held)


def open_parquet(data: Path, labels: dict[str, str] | None = None, needed: ColumnFilter = any_column) -> ParquetTable:
    """Open the Parquet files of a path, a pattern or a folder; only their footers are read.

    Parameters
    ----------
    data : Path
    labels : dict or None
        Names of files in messages, by path.
    needed : callable
        Whether a column is used; files may differ in the types of others.
    """
    labels, files = labels or {}, find_files(data)
    for path in files:
        if not path.is_file():
            raise TableError(f"{path} is not a file. Give a Parquet file, a folder or a pattern.")
        if split_extension(path)[0] not in PARQUET:
            raise TableError(f"{path} is no Parquet file, and only those are read group by group.")
    footers = [read_footer(str(path)) for path in files]
    for path, one in zip(files, footers, strict=True):
        check_names(path, one.schema.names)
    sizes = [
        (str(path), number, n_rows)
        for path, one in zip(files, footers, strict=True)
        for number, n_rows in enumerate(one.sizes)
        if n_rows
    ]
    firsts = accumulate((n_rows for *_, n_rows in sizes), initial=0)
    groups = tuple(RowGroup(*size, first, labels.get(size[0], "")) for size, first in zip(sizes, firsts, strict=False))
    named = (Path(labels.get(str(path), path)) for path in files)
    schema = unify_schema(zip(named, (one.schema for one in footers), strict=True), needed)
    stamps = {str(path): one.stamp for path, one in zip(files, footers, strict=True)}
    return ParquetTable(groups, schema, sum(map(_uncompressed_bytes, map(str, files))), stamps)


def _uncompressed_bytes(path: str) -> int:
    with open_file(path) as file, explain_errors(path):
        return sum(file.metadata.row_group(g).total_byte_size for g in range(file.metadata.num_row_groups))


# Copies of other formats


@contextmanager
def copy_to_parquet(
    files: Sequence[Path], options: CsvOptions = INFER_TYPES, needed: ColumnFilter = any_column
) -> Iterator[ParquetTable]:
    """Copy files to temporary Parquet files, removed at the end of the context; yield the table of these."""
    remove_leftovers()
    _check_disk(files)
    with temporary_folder() as folder:
        labels = {}
        for k, path in enumerate(files):
            copy = folder / f"{k:06}.parquet"
            labels[str(copy)] = str(path)
            _copy(path, copy, options)
        yield open_parquet(folder, labels, needed)


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Yield a folder that is removed at the end or, if this process is killed, by the next `remove_leftovers`."""
    with tempfile.TemporaryDirectory(prefix=PREFIX) as made, (Path(made) / "owner").open("wb") as owner:
        if _acquire_lock(owner):
            Path(owner.name).rename(Path(made) / LOCK)  # visible to others only once it is locked
        inner = Path(made) / "files"
        inner.mkdir()
        yield inner


def remove_leftovers() -> None:
    """Remove the temporary folders of processes that have ended."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        # OSError: removed in the meantime, or another user's.
        with suppress(OSError), (folder / LOCK).open("rb") as owner:
            if _acquire_lock(owner):
                shutil.rmtree(folder)


def _acquire_lock(file: IO[bytes]) -> bool:
    """Lock a file; whether that succeeded."""
    if flock is None:
        return False
    try:
        flock(file, LOCK_EX | LOCK_NB)
    except OSError:  # another process has it, or the file system has no locks
        return False
    return True


def estimate_bytes(path: Path) -> int:
    """Return the size of a file or, if it is compressed, an estimate of its uncompressed size."""
    size = path.stat().st_size
    return size if split_extension(path)[1] is None else COMPRESSION_RATIO * size


def _check_disk(files: Sequence[Path]) -> None:
    needed, folder = sum(map(estimate_bytes, files)), tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise TableError(
            f"{files[0]} is larger than memory and is copied to Parquet for streaming, which may take "
            f"{as_size(needed)}; the folder for temporary files, {folder}, has {as_size(free)}. Name a larger one by "
            "the environment variable TMPDIR, or convert the files to Parquet yourself."
        )


def _copy(path: Path, copy: Path, options: CsvOptions) -> None:
    """Copy a file to Parquet; a CSV file again with a wider type for a column, until all values can be converted."""
    if split_extension(path)[0] not in CSV:
        with reading.in_batches(path) as batches:
            _write(batches, copy)
        return
    types: dict[str, pa.DataType] = dict(options.types)
    names: list[str] = []
    while True:
        try:
            with reading.in_batches(path, None, replace(options, types=types)) as batches:
                names = batches.schema.names
                types |= {field.name: field.type for field in batches.schema if field.name not in types}
            with reading.in_batches(path, None, replace(options, types=types)) as batches:
                _write(batches, copy)
            return
        except TableError as error:
            failed = CONVERSION_ERROR.search(str(error.__cause__))
            if failed is None or not names:  # a file whose first rows cannot be read
                raise
            name = names[int(failed["column"])]
            types[name] = _next_type(types[name], failed["value"])


def _write(batches: reading.Batches, copy: Path) -> None:
    schema = pa.schema([field.with_type(_parquet_type(field.type)) for field in batches.schema])
    with pq.ParquetWriter(str(copy), schema) as writer:
        for batch in batches.pieces:
            columns = [
                column if column.type == field.type else pa.nulls(len(batch), field.type)
                for column, field in zip(batch.columns, schema, strict=True)
            ]
            with reading.translate_errors(copy, ".parquet"):
                writer.write_table(pa.table(columns, schema=schema))


def _parquet_type(arrow_type: pa.DataType) -> pa.DataType:
    """Return the type or, if Parquet cannot store it, a placeholder of its name: models use neither."""
    try:
        pq.ParquetWriter(io.BytesIO(), pa.schema([pa.field("x", arrow_type)])).close()
    except pa.ArrowNotImplementedError:
        return pa.struct([pa.field(str(arrow_type), pa.bool_())])
    return arrow_type


def _next_type(arrow_type: pa.DataType, value: str | None) -> pa.DataType:
    """Return the next type, in the order in which Arrow tries them for CSV columns, that can hold this value."""
    zones, units = (None, "UTC"), ("s", "ns")
    times = [pa.timestamp(unit, zone) for zone in zones for unit in units]
    order = [pa.null(), pa.int64(), pa.bool_(), pa.date32(), pa.time32("s"), *times, pa.float64(), pa.string()]
    for wider in order[order.index(arrow_type) + 1 : -1]:
        line = io.BytesIO()
        csv.write_csv(pa.table({"x": [value], "y": [0]}), line)
        try:
            line.seek(0)
            csv.read_csv(line, csv.ReadOptions(use_threads=False), None, csv.ConvertOptions(column_types={"x": wider}))
        except pa.ArrowInvalid:
            continue
        return wider
    return pa.string() if arrow_type != pa.string() else pa.binary()
