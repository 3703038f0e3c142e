"""Tables in Parquet files: `ParquetTable` reads them in batches, always in the same order; `ParquetRows` is a source.

Files are read without Arrow's threads: these compete with our own, and may deadlock in a forked process.
"""

from __future__ import annotations

import glob
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types

from quernel._machine import read_ahead
from quernel.data import sources
from quernel.data.sources import Mask, Piece, RowsError, Stamp, check_piece, check_stamp, count_block_rows, read_stamp

PARQUET = (".parquet", ".pq")
# Bytes of a column that are buffered at a time; without a limit, a whole row group would be in memory.
BUFFER = 2**20
# Rows of a row group of files that are written, which are one or two blocks of a pass.
GROUP_ROWS = 2**17
Names = Sequence[str]
# Whether a column is used, by its name.
ColumnFilter = Callable[[str], bool]


def any_column(_: str) -> bool:
    """Filter that every column passes."""
    return True


@dataclass(frozen=True)
class RowRange:
    """A row group of a Parquet file, or a batch of its rows; `label` is the name of the file in messages."""

    path: str
    label: str
    group: int  # number of the row group
    file_first: int  # first row of the file, counted in the table
    first: int  # first row, counted in the table
    start: int  # and counted in the row group
    n_rows: int

    def __str__(self) -> str:
        return f"{self.label}, row group {self.group}"

    @property
    def rows(self) -> slice:
        """The rows among those of the table."""
        return slice(self.first, self.first + self.n_rows)

    def describe_row(self, used: Mask, row: int) -> str:
        """Return the place of a row that is counted among the used ones."""
        return f"{self}, row {self.first - self.file_first + np.flatnonzero(used)[row]:,} of the file (counted from 0)"


@dataclass(frozen=True, eq=False)
class ParquetTable:
    """One table in one or many Parquet files, of whose rows only a batch is in memory at a time."""

    schema: pa.Schema  # that all files are read with
    groups: tuple[RowRange, ...]  # those that have rows, in the order of the files
    n_bytes: int  # uncompressed size of all values
    stamps: Mapping[str, Stamp]  # by path, what tells that a file was changed between two passes
    notes: tuple[str, ...] = ()  # sentences for the user

    @property
    def n_rows(self) -> int:
        """Number of rows of all files."""
        return sum(group.n_rows for group in self.groups)

    def split(self, size: int) -> list[RowRange]:
        """Return the batches of all row groups, of at most `size` rows."""
        return [
            replace(group, first=group.first + start, start=start, n_rows=min(size, group.n_rows - start))
            for group in self.groups
            for start in range(0, group.n_rows, size)
        ]

    def iter_batches(
        self, columns: Names, size: int | None = None, batches: Iterable[RowRange] | None = None
    ) -> Generator[tuple[RowRange, pa.Table], None, None]:
        """Yield these batches of `split(size)` (None: all), each with its rows as an Arrow table.

        Each file is opened once. Parquet is read from the beginning of a row group, whichever batches are asked for.
        """
        schema, size = pa.schema([self.schema.field(name) for name in columns]), size or sources.BLOCK_ROWS
        options = {"pre_buffer": False, "buffer_size": BUFFER, "page_checksum_verification": True}
        batches = self.split(size) if batches is None else batches
        for (path, label, _), inside in groupby(batches, key=lambda one: (one.path, one.label, one.file_first)):
            with explain_errors(label), pq.ParquetFile(path, **options) as file:
                check_stamp(path, self.stamps[path])
                for number, some in groupby(inside, key=lambda one: one.group):
                    wanted, start = {one.start: one for one in some}, 0
                    with explain_errors(f"{label}, row group {number}"):
                        for batch in file.iter_batches(size, [number], schema.names, use_threads=False):
                            if found := wanted.pop(start, None):
                                yield found, cast_batch(batch, schema)
                            if not wanted:
                                break
                            start += len(batch)
                check_stamp(path, self.stamps[path])

    def read(self, columns: Names | None = None, chosen: Mask | None = None) -> pa.Table:
        """Read rows, all or those of a mask (n,), of these columns (None: all) as an Arrow table."""
        names = self.schema.names if columns is None else columns
        batches = self.iter_batches(names)
        parts = (table if chosen is None else table.filter(pa.array(chosen[batch.rows])) for batch, table in batches)
        return pa.concat_tables([self.schema.empty_table().select(names), *parts])


def open_parquet(
    paths: Sequence[str | Path], labels: Mapping[str, str] | None = None, needed: ColumnFilter = any_column
) -> ParquetTable:
    """Open Parquet files as one table; only their footers are read.

    `labels` are names of files in messages, by path. Columns that are not needed have Arrow's null type; files may
    differ in them.
    """
    schemas, groups, n_rows, n_bytes, stamps = {}, list[RowRange](), 0, 0, {}
    for path in map(str, paths):
        label, file_first = (labels or {}).get(path, path), n_rows
        with explain_errors(label):
            stamps[path] = read_stamp(path)
            with pq.ParquetFile(path) as file:
                schemas[label], footer = file.schema_arrow, file.metadata
        for number, found in enumerate(map(footer.row_group, range(footer.num_row_groups))):
            if found.num_rows:
                groups.append(RowRange(path, label, number, file_first, n_rows, 0, found.num_rows))
            n_rows, n_bytes = n_rows + found.num_rows, n_bytes + found.total_byte_size
    return ParquetTable(_unify_schemas(schemas, needed), tuple(groups), n_bytes, stamps)


@contextmanager
def explain_errors(place: str, remedy: str = "Write the file again, or leave it out.") -> Iterator[None]:
    """Context manager: turn errors of Arrow and of the system into one-line `RowsError`s with the remedy."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise RowsError(f"{place} cannot be read: {reason.rstrip('.')}. {remedy}") from error


def write_parquet(path: Path, needed: ColumnFilter, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
    """Write batches to a Parquet file; columns that are not needed are null."""
    stored = pa.schema([(one.name, plain_type(one.type) if needed(one.name) else pa.null()) for one in schema])
    with pq.ParquetWriter(path, stored) as writer:
        for batch in batches:
            writer.write_table(cast_batch(batch, stored), row_group_size=GROUP_ROWS)


def is_data_file(path: Path, endings: Names) -> bool:
    """Whether a file in a folder is read as data; names that begin with . or _ belong to the programs that write it."""
    return path.suffix.lower() in endings and not path.name.startswith((".", "_"))


def list_files(path: str, endings: Names) -> list[str]:
    """Return the file itself, or all data files of a folder, with these endings, or of a pattern, sorted by name."""
    if os.path.isdir(path):
        return sorted(str(file) for file in Path(path).rglob("*") if file.is_file() and is_data_file(file, endings))
    if os.path.exists(path) or not glob.has_magic(path):
        return [path]
    return sorted(filter(os.path.isfile, glob.glob(path, recursive=True)))


# Types


def _unify_schemas(schemas: Mapping[str, pa.Schema], needed: ColumnFilter) -> pa.Schema:
    """Return the common Arrow schema of all files; raise with the first file and column that differ.

    Types of the same kind are promoted: integers to other numbers, a column that is empty in one file to any type.
    """
    common, (first, *_) = pa.schema([]), schemas
    for label, schema in schemas.items():
        names = [name for name in schema.names if needed(name)]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise RowsError(f"{label} has more than one column named {twice[0]!r}. Rename them, so that each is known.")
        if label != first and (lacking := sorted({*names} ^ {*filter(needed, common.names)})):
            one, other = (label, first) if lacking[0] in common.names else (first, label)
            raise RowsError(f"{one} has no column {lacking[0]!r}, but {other} has. Files must have the same columns.")
        kinds = {field.name: plain_type(field.type) if needed(field.name) else pa.null() for field in schema}
        with explain_errors(label, f"Columns must have the types that they have in {first}."):
            common = pa.unify_schemas([common, pa.schema([*kinds.items()])], promote_options="permissive")
    return common


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the type, with string views, as polars writes them, as large strings."""
    if types.is_dictionary(kind):
        return pa.dictionary(kind.index_type, plain_type(kind.value_type), kind.ordered)
    # Earlier versions of Arrow have no functions that recognise views.
    return {"string_view": pa.large_string(), "binary_view": pa.large_binary()}.get(str(kind), kind)


def cast_batch(batch: pa.RecordBatch, schema: pa.Schema) -> pa.Table:
    """Return a batch as a table of this schema, columns of the null type as null.

    Large integers may lose digits as floating-point numbers.
    """
    columns = [
        pa.nulls(len(batch))
        if types.is_null(field.type)
        else batch.column(field.name).cast(field.type, safe=not types.is_floating(field.type))
        for field in schema
    ]
    return pa.table(columns, schema=schema)


# Blocks of rows


class TableRows(ABC):
    """Row source over batches of a table, of whose rows those of the mask `used` (n,) are used.

    The columns `inputs` of the table make those of X, named `encoded`; there may be a column of weights.
    """

    def __init__(
        self, table: ParquetTable, used: Mask, inputs: Names, encoded: Names, target: str, weight: str | None
    ) -> None:
        self.table, self.inputs, self.target, self.weight, self.weighted = table, inputs, target, weight, bool(weight)
        self.labels = [f"column {name!r}" for name in (*encoded, target, weight)]
        self.n_columns, self.size = len(encoded), count_block_rows(len(encoded))
        self.blocks = [(batch, mask) for batch in table.split(self.size) if (mask := used[batch.rows]).any()]
        ends = np.cumsum([0, *(np.count_nonzero(mask) for _, mask in self.blocks)]).tolist()
        self.spans = [slice(start, stop) for start, stop in pairwise(ends)]
        self.n_rows: int = ends[-1]

    @abstractmethod
    def _encode(self, table: pa.Table, k: int, X: bool) -> Piece:
        """Return the rows of block k as numbers."""

    def stream(self, blocks: range, *, X: bool = True) -> Iterator[Piece]:
        """Iterate over these blocks in order, prefetched by a thread; X=False reads target and weight only."""
        return read_ahead(self._read_blocks(blocks, X))

    def place(self, k: int) -> str:
        """Where block k comes from (file and row group), for error messages."""
        return str(self.blocks[k][0])

    def _read_blocks(self, numbers: range, X: bool) -> Generator[Piece, None, None]:
        names = [*(self.inputs if X else ()), self.target, *([self.weight] if self.weight else [])]
        tables = self.table.iter_batches(names, self.size, [self.blocks[k][0] for k in numbers])
        for k, (batch, table) in zip(numbers, tables, strict=True):
            _, used = self.blocks[k]
            piece = self._encode(table if used.all() else table.filter(pa.array(used)), k, X)
            yield check_piece(piece, self.labels, partial(batch.describe_row, used))


class ParquetRows(TableRows):
    """Rows of Parquet files, which may be larger than memory.

    The constructor reads metadata only; rows are read and validated when they are streamed. A file that changes between
    two passes, by its size or time, is an error. Files without rows are skipped. Corrupt bytes are detected for certain
    only in files with page checksums, which pyarrow writes with write_page_checksum=True.

    Parameters
    ----------
    paths : path, glob pattern such as "trips/*.parquet", folder, or list of paths
    target : str
        Column to predict.
    columns : sequence of str or None
        Columns of X, in this order. None takes all columns except target and weight, which must be numeric. Integers
        and booleans are converted to float64.
    weight : str or None
        Column of row weights, >= 0; None for equal weights.
    """

    def __init__(self, paths: Any, target: str, *, columns: Names | None = None, weight: str | None = None) -> None:
        outputs = [target, *([] if weight is None else [weight])]
        needed = any_column if columns is None else {*columns, *outputs}.__contains__
        files = list_files(os.fspath(paths), PARQUET) if isinstance(paths, str | os.PathLike) else list(paths)
        if not files:
            raise RowsError(f"No Parquet file was found at {paths!s}. Give a file, a folder, or a pattern.")
        table = open_parquet(files, needed=needed)
        known = table.schema.names
        self.names = tuple(name for name in known if name not in outputs) if columns is None else (*columns,)
        if isinstance(columns, str) or not self.names:
            raise RowsError(f"columns must be a list of names, or None for all columns of numbers; got {columns!r}.")
        for name in (*self.names, *outputs):
            if name not in known:
                raise RowsError(f"{files[0]} has no column {name!r}. Its columns: {', '.join(known[:12])}.")
            if (*self.names, *outputs).count(name) > 1:
                raise RowsError(f"Column {name!r} is named twice among columns, target and weight.")
            kind = table.schema.field(name).type
            if not (types.is_floating(kind) or types.is_integer(kind) or types.is_boolean(kind)):
                raise RowsError(
                    f"{files[0]}: column {name!r} holds {kind} values, not numbers. Choose other columns by columns=, "
                    "turn it into numbers first, or use the command line, which encodes text."
                )
        super().__init__(table, np.broadcast_to(True, table.n_rows), self.names, self.names, target, weight)
        if not self.spans:
            raise RowsError(f"There are no rows in {', '.join(map(str, files[:3]))}.")

    def _encode(self, table: pa.Table, k: int, X: bool) -> Piece:  # noqa: ARG002
        """Return a table as float64; missing values become NaN."""
        numbers = {name: table[name].cast("float64", safe=False).to_numpy() for name in table.column_names}
        inputs = np.stack([numbers[name] for name in self.inputs], axis=1) if X else None
        return Piece(inputs, numbers[self.target], numbers[self.weight] if self.weight else None)
