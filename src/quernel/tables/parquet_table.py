"""ParquetTable: files larger than memory, read row group by row group, and map-reduce over their batches.

CSV and Arrow files are first copied to temporary Parquet files, batch by batch. Columns of a CSV file then have the
types that they have when it is read whole, although only a piece is seen at a time.
"""

from __future__ import annotations

import io
import shutil
import tempfile
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from pathlib import Path
from typing import IO, Any, NamedTuple

from quernel.data.parquet import explain_errors, open_file, read_footer
from quernel.data.passes import read_ahead
from quernel.data.sources import BLOCK_ROWS, RowsError
from quernel.tables import reading
from quernel.tables.multi_file import Needed, agreed, as_agreed, every, files_of
from quernel.tables.reading import AS_IT_LOOKS, CSV, FAILED, PARQUET, CsvReading, TableError, check_names, ending_of
from quernel.tuning.cost import as_size

try:
    from fcntl import LOCK_EX, LOCK_NB, flock
except ImportError:  # Windows
    flock = None  # type: ignore[assignment]

# Answers of pieces that are joined at a time, so that they never pile up.
JOINED = 16

Step = Callable[[Any], Any]
Join = Callable[[list[Any]], Any]


@dataclass(frozen=True)
class Group:
    """A row group of a Parquet file; `first` is the number of its first row among those of all files, from 0 on.

    `called` is what messages call the file, if that is not its path.
    """

    path: str
    number: int
    n_rows: int
    first: int = 0
    called: str = ""

    def __str__(self) -> str:
        return f"{self.called or self.path}, row group {self.number}"


class Slab(NamedTuple):
    """Consecutive rows of a group as an Arrow table, and the number of the first in the group."""

    group: Group
    start: int
    table: Any


@dataclass(frozen=True, eq=False)
class ParquetTable:
    """Row groups that have rows, the schema on which their files agree, and the bytes of all values."""

    groups: tuple[Group, ...]
    schema: Any
    n_bytes: int

    @property
    def n_rows(self) -> int:
        """The rows of all files."""
        return sum(group.n_rows for group in self.groups)

    def of(self, group: Group) -> ParquetTable:
        """The part of the table that is in one group."""
        return replace(self, groups=(group,))

    def slabs(
        self, columns: Sequence[str], groups: Sequence[Group] | None = None, size: int = BLOCK_ROWS
    ) -> Generator[Slab, None, None]:
        """The rows of these groups (None: all), `size` at a time; each file is opened once."""
        import pyarrow as pa

        schema = pa.schema([self.schema.field(name) for name in columns])
        for path, some in groupby(self.groups if groups is None else groups, key=lambda group: group.path):
            with open_file(path) as file:
                for group in some:
                    with explain_errors(str(group)):
                        batches = file.iter_batches(size, [group.number], list(columns), use_threads=False)
                    for start in range(0, group.n_rows, size):
                        with explain_errors(str(group)):
                            batch = next(batches, None)
                        if batch is None or len(batch) != min(size, group.n_rows - start):
                            raise RowsError(f"{group} has other rows than before: the file was changed while in use.")
                        yield Slab(group, start, as_agreed(batch, schema, str(group)))

    def fold(self, step: Step, join: Join, columns: Sequence[str]) -> Any:
        """The step's answers for all slabs, joined; read ahead in a thread."""
        return joined_as_they_come(map(step, read_ahead(self.slabs(columns))), join)


def open_parquet(data: Path, called: dict[str, str] | None = None, needed: Needed = every) -> ParquetTable:
    """The files of a path, a pattern or a folder; only their ends are read. Messages call them what `called` says.

    Files need not agree on columns that are not needed.
    """
    called = called or {}
    files = files_of(data)
    for path in files:
        if not path.is_file():
            raise TableError(f"{path} is not a file. Give a Parquet file, a folder or a pattern.")
        if ending_of(path)[0] not in PARQUET:
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
    groups = tuple(Group(*size, first, called.get(size[0], "")) for size, first in zip(sizes, firsts, strict=False))
    named = (Path(called.get(str(path), path)) for path in files)
    schema = agreed(zip(named, (one.schema for one in footers), strict=True), needed)
    return ParquetTable(groups, schema, sum(map(_bytes, map(str, files))))


def _bytes(path: str) -> int:
    """What the values of a file take when they are not compressed."""
    with open_file(path) as file, explain_errors(path):
        return sum(file.metadata.row_group(g).total_byte_size for g in range(file.metadata.num_row_groups))


def joined_as_they_come(answers: Any, join: Join) -> Any:
    """All answers joined, a few at a time."""
    held: list[Any] = []
    for answer in answers:
        held.append(answer)
        if len(held) == JOINED:
            held = [join(held)]
    return join(held)


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
            with reading.complaints(copy, ".parquet"):
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
