"""Rows of Parquet files: `ParquetFiles` reads them in batches, always in the same order, and `ParquetRows` is a source.

Files are read without Arrow's threads: these compete with our own, and may deadlock in a forked process.
"""

from __future__ import annotations

import glob
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from quernel._machine import read_ahead
from quernel.data import sources
from quernel.data.sources import (
    Array,
    Piece,
    RowsError,
    Stamp,
    check_piece,
    check_stamp,
    count_block_rows,
    read_stamp,
)

# Rows that are transposed from columns at a time: few enough to stay in the processor's cache.
STRIP = 2048
# Column added to rows before they are filtered: their indices in the file, for error messages.
NUMBER = "number of the row (quernel)"
ENDINGS = (".parquet", ".pq")
# Bytes of a column that are buffered at a time; without a limit, a whole row group would be in memory.
BUFFER = 2**20


# Reading files


@dataclass(frozen=True)
class RowGroup:
    """A row group of a Parquet file.

    Attributes
    ----------
    path, number : the file, and the index of the group in it
    first, n_rows : index of the first row in the file, and number of rows
    label : name of the file in messages, if that is not its path
    """

    path: str
    number: int
    first: int
    n_rows: int
    label: str = ""

    def __str__(self) -> str:
        return f"{self.label or self.path}, row group {self.number}"


class RowBatch(NamedTuple):
    """Consecutive rows of a group as an Arrow table, and the index of the first in the group."""

    group: RowGroup
    start: int
    table: Any


@dataclass(frozen=True, eq=False)
class ParquetFiles:
    """Parquet files, of whose rows only a batch is in memory at a time.

    Attributes
    ----------
    schemas : by path, the Arrow schema
    groups : row groups that have rows, in the order of the files
    n_bytes : uncompressed size of all values
    stamps : by path, what tells that a file was changed between two passes
    filesystem : Arrow's; None is the local one
    """

    schemas: Mapping[str, Any]
    groups: tuple[RowGroup, ...]
    n_bytes: int
    stamps: Mapping[str, Stamp]
    filesystem: Any = None

    @classmethod
    def from_paths(cls, paths: Sequence[str], filesystem: Any = None, labels: Mapping[str, str] | None = None) -> Self:
        """Read the metadata of files, which stand at their ends; `labels` are names for messages, by path."""
        schemas, groups, n_bytes, stamps = {}, list[RowGroup](), 0, {}
        for path in paths:
            with explain_errors(path):
                stamps[path] = read_stamp(path, filesystem)
            with open_file(path, filesystem) as file, explain_errors(path):
                schemas[path], first = file.schema_arrow, 0
                for number in range(file.metadata.num_row_groups):
                    found = file.metadata.row_group(number)
                    if found.num_rows:
                        groups.append(RowGroup(path, number, first, found.num_rows, (labels or {}).get(path, "")))
                    first, n_bytes = first + found.num_rows, n_bytes + found.total_byte_size
        return cls(schemas, tuple(groups), n_bytes, stamps, filesystem)

    @property
    def n_rows(self) -> int:
        """Number of rows of all files."""
        return sum(group.n_rows for group in self.groups)

    def select_group(self, group: RowGroup) -> Self:
        """Return the rows of one group."""
        return replace(self, groups=(group,))

    def iter_batches(
        self, columns: Sequence[str], groups: Iterable[RowGroup] | None = None, size: int | None = None
    ) -> Generator[RowBatch, None, None]:
        """Yield the rows of these groups (None: all), `size` at a time; each file is opened once."""
        import pyarrow as pa

        for path, some in groupby(self.groups if groups is None else groups, key=lambda group: group.path):
            with open_file(path, self.filesystem) as file:
                self.check_unchanged(path)
                for group in some:
                    start = 0
                    with explain_errors(str(group)):
                        batches = file.iter_batches(
                            size or sources.BLOCK_ROWS, [group.number], list(columns), use_threads=False
                        )
                    while start < group.n_rows:
                        with explain_errors(str(group)):
                            batch = next(batches)
                        yield RowBatch(group, start, pa.Table.from_batches([batch]))
                        start += len(batch)
                self.check_unchanged(path)

    def check_unchanged(self, path: str) -> None:
        """Raise a `RowsError` if a file changed since its metadata were read."""
        check_stamp(path, self.stamps[path], self.filesystem)


@contextmanager
def open_file(path: str, filesystem: Any = None) -> Iterator[Any]:
    """Context manager: the file opened as a pyarrow ParquetFile, with page checksums verified."""
    import pyarrow.parquet as pq

    with explain_errors(path):
        file = pq.ParquetFile(
            path, filesystem=filesystem, pre_buffer=False, buffer_size=BUFFER, page_checksum_verification=True
        )
    with file:
        yield file


@contextmanager
def explain_errors(place: str, remedy: str = "Write the file again, or leave it out.") -> Iterator[None]:
    """Context manager: turn errors of Arrow and of the system into one-line `RowsError`s that name place and remedy."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise RowsError(f"{place} cannot be read: {reason.rstrip('.')}. {remedy}") from error


def list_files(path: str, accepts: Callable[[Path], bool]) -> list[str]:
    """Return the file itself, or all files of a folder that are accepted, or of a glob pattern, sorted by name."""
    if os.path.isdir(path):
        return sorted(str(inside) for inside in Path(path).rglob("*") if inside.is_file() and accepts(inside))
    if os.path.exists(path) or not glob.has_magic(path):
        return [path]
    return sorted(found for found in glob.glob(path, recursive=True) if os.path.isfile(found))


# Blocks of rows


class RowBlock(NamedTuple):
    """Consecutive batches of a row group, by the indices of their first rows in it, and how many rows are used."""

    group: RowGroup
    starts: tuple[int, ...]
    n_rows: int


class BlockedRows(ABC):
    """Row source over batches of Parquet files of which some rows may be left out.

    Parameters
    ----------
    files : ParquetFiles
    counts : iterable of (group, start, number of rows that are used), of all batches of `count_block_rows` rows
    n_columns : int
        Number of columns of X.
    """

    def __init__(self, files: ParquetFiles, counts: Iterable[tuple[RowGroup, int, int]], n_columns: int) -> None:
        self._files, self.n_columns, self.size = files, n_columns, count_block_rows(n_columns)
        blocks: list[RowBlock] = []
        for group, start, n_rows in counts:  # small batches, of which few rows are used, are joined
            last = blocks[-1] if blocks else None
            if last is not None and last.group == group and last.n_rows + n_rows <= self.size:
                blocks[-1] = RowBlock(group, (*last.starts, start), last.n_rows + n_rows)
            else:
                blocks.append(RowBlock(group, (start,), n_rows))
        self.blocks = [block for block in blocks if block.n_rows]
        ends = np.cumsum([0, *(block.n_rows for block in self.blocks)]).tolist()
        self.spans = [slice(start, stop) for start, stop in pairwise(ends)]
        self.n_rows: int = ends[-1]

    @abstractmethod
    def _iter_batches(self, groups: Iterable[RowGroup], X: bool) -> Iterator[tuple[RowBatch, NDArray[np.intp]]]:
        """Yield batches of the rows that are used, and their indices in the file."""

    @abstractmethod
    def _read_piece(self, table: Any, k: int, X: bool, where: Callable[[int], str]) -> Piece:
        """Return the rows of block k, validated; `where` describes the place of one of them."""

    def stream(self, blocks: range, *, X: bool = True) -> Iterator[Piece]:
        """Iterate over these blocks in order, prefetched by a thread; X=False reads target and weight only.

        Parquet is read from the beginning of a row group: a stream that starts inside one reads the rows before, too.
        """
        return read_ahead(self._read_blocks(blocks, X))

    def place(self, k: int) -> str:
        """Where block k comes from (file and row group), for error messages."""
        return str(self.blocks[k].group)

    def _read_blocks(self, numbers: range, X: bool) -> Generator[Piece, None, None]:
        import pyarrow as pa

        wanted = {(self.blocks[k].group, start): k for k in numbers for start in self.blocks[k].starts}
        pending: list[Any] = []
        rows: list[NDArray[np.intp]] = []
        for batch, indices in self._iter_batches(dict.fromkeys(group for group, _ in wanted), X):
            k = wanted.get((batch.group, batch.start))
            if k is None:
                continue
            pending.append(batch.table)
            rows.append(indices)
            if batch.start == self.blocks[k].starts[-1]:
                group, index = batch.group, np.concatenate(rows)
                if len(index) != self.blocks[k].n_rows:
                    raise RowsError(f"{group} has other rows than before: the file was changed while it was in use.")

                def where(row: int, group: RowGroup = group, index: NDArray[np.intp] = index) -> str:
                    return f"{group}, row {index[row]:,} of the file (counted from 0)"

                yield self._read_piece(pa.concat_tables(pending), k, X, where)
                pending, rows = [], []
                if k == numbers[-1]:
                    self._files.check_unchanged(group.path)
                    return


class ParquetRows(BlockedRows):
    """Rows of Parquet files, which may be larger than memory.

    The constructor reads metadata only (and the columns that `filters` name); rows are read and validated when they are
    streamed. A file that changes between two passes, by its size or time, is an error. Files without rows are skipped.
    Corrupt bytes are detected for certain only in files with page checksums, which pyarrow writes with
    write_page_checksum=True.

    Parameters
    ----------
    paths : path, glob pattern such as "trips/*.parquet", folder, list of paths, or pyarrow dataset
    target : str
        Column to predict.
    columns : sequence of str or None
        Columns of X, in this order. None takes all columns except target and weight, which must be numeric; columns of
        other types that `filters` name are left out. Integers and booleans are converted to float64.
    weight : str or None
        Column of row weights, >= 0; None for equal weights.
    filters : pyarrow expression, list of (column, operator, value), list of such lists, or None
        Rows to keep; a list of lists is a disjunction ("or") of conjunctions ("and"). The constructor counts the rows
        that are kept, in one pass over the columns that the filters name.
    """

    def __init__(
        self,
        paths: Any,
        target: str,
        *,
        columns: Sequence[str] | None = None,
        weight: str | None = None,
        filters: Any = None,
    ) -> None:
        _require_pyarrow()
        _check_names(columns, target, weight)
        self.target, self.weight, self.weighted = target, weight, weight is not None
        self._filter = as_expression(filters)
        found, filesystem, self._from_folders = find_files(paths)
        self._files = ParquetFiles.from_paths(found, filesystem)
        first = self._files.schemas[self.files[0]]
        self._filtered_by = () if filters is None else columns_in_filter(self._filter, first.names)
        self.names: tuple[str, ...] = self._choose_inputs(self.files[0]) if columns is None else tuple(columns)
        for path in self.files:
            self._check_schema(path, all_columns=columns is None)
        super().__init__(self._files, self._count_rows(count_block_rows(len(self.names))), len(self.names))
        if not self.spans:
            kept = "that the filters keep " if filters is not None else ""
            raise RowsError(f"There are no rows {kept}in {self._describe_files()}.")

    @property
    def files(self) -> tuple[str, ...]:
        """Paths of the files, in the order in which they are read."""
        return tuple(self._files.schemas)

    def __repr__(self) -> str:
        return f"ParquetRows({self._describe_files()}: {self.n_rows:,} rows x {self.n_columns} columns)"

    def _describe_files(self) -> str:
        return self.files[0] + (f" and {len(self.files) - 1} more files" if len(self.files) > 1 else "")

    # Metadata

    def _choose_inputs(self, path: str) -> tuple[str, ...]:
        """Return the numeric columns of a file that are neither target nor weight."""
        if self._from_folders:
            raise RowsError(
                f"The dataset has columns that are known from the names of folders only, which are not read: "
                f"{', '.join(self._from_folders)}. Choose the inputs with columns=."
            )
        schema, others = self._files.schemas[path], [self.target, self.weight]
        inputs = [field for field in schema if field.name not in others]
        for field in inputs:
            if not is_number(field.type) and field.name not in self._filtered_by:
                raise RowsError(_not_a_number(path, field.name, field.type))
        chosen = tuple(field.name for field in inputs if is_number(field.type))
        if not chosen:
            raise RowsError(f"{path} has no column of numbers besides {', '.join(filter(None, others))}.")
        return chosen

    def _check_schema(self, path: str, all_columns: bool) -> None:
        """Raise unless a file has the columns that are read, once each, as numbers; and, if all are read, no others."""
        schema = self._files.schemas[path]
        for name in self._needed(X=True):
            count = schema.names.count(name)
            if count == 0:
                listed = ", ".join(schema.names[:12]) + (", ..." if len(schema.names) > 12 else "")
                raise RowsError(f"{path} has no column {name!r}. Its columns: {listed}.")
            if count > 1:
                raise RowsError(f"{path} has {count} columns named {name!r}. Rename them, so that each is known.")
            if not is_number(schema.field(name).type):
                raise RowsError(_not_a_number(path, name, schema.field(name).type))
        if all_columns and (more := set(self._choose_inputs(path)) - set(self.names)):
            raise RowsError(
                f"{path} has a column {min(more)!r}, unlike {self.files[0]}. Choose the inputs with columns=."
            )
        if self._filter is not None:
            with explain_errors(f"{path} with the filters {self._filter}", remedy="Are their names and types right?"):
                filter_table(schema.empty_table(), self._filter)

    def _count_rows(self, size: int) -> Iterator[tuple[RowGroup, int, int]]:
        """Yield the number of rows that the filters keep of each batch: one pass over the columns they name."""
        if self._filter is None:
            for group in self._files.groups:
                yield from ((group, start, min(size, group.n_rows - start)) for start in range(0, group.n_rows, size))
            return
        for batch in self._files.iter_batches(self._filtered_by, size=size):
            with explain_errors(str(batch.group)):
                yield batch.group, batch.start, len(filter_table(batch.table, self._filter))

    # Reading

    def _needed(self, X: bool) -> list[str]:
        """Columns to read: inputs if X, target, and weight if there is one."""
        return [*(self.names if X else ()), self.target, *([] if self.weight is None else [self.weight])]

    def _iter_batches(self, groups: Iterable[RowGroup], X: bool) -> Iterator[tuple[RowBatch, NDArray[np.intp]]]:
        """Yield batches of the rows that the filters keep, and their indices in the file."""
        import pyarrow as pa

        columns = list(dict.fromkeys([*self._needed(X), *self._filtered_by]))
        for batch in self._files.iter_batches(columns, groups, self.size):
            first = batch.group.first + batch.start
            rows = np.arange(first, first + len(batch.table))
            if self._filter is None:
                yield batch, rows
                continue
            with explain_errors(str(batch.group)):
                table = filter_table(batch.table.append_column(NUMBER, pa.array(rows)), self._filter)
            yield batch._replace(table=table), table[NUMBER].to_numpy()

    def _read_piece(self, table: Any, k: int, X: bool, where: Callable[[int], str]) -> Piece:  # noqa: ARG002
        """Return a table as a validated `Piece`."""
        weight = None if self.weight is None else _to_numpy(table, [self.weight])[:, 0]
        X_piece = _to_numpy(table, self.names) if X else None
        piece = Piece(X_piece, _to_numpy(table, [self.target])[:, 0], weight)
        return check_piece(piece, [f"column {name!r}" for name in (*self.names, self.target, self.weight)], where)


def _require_pyarrow() -> None:
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise ImportError("ParquetRows needs pyarrow, which is not installed. Run: pip install pyarrow") from error


def _check_names(columns: Sequence[str] | None, target: str, weight: str | None) -> None:
    """Raise a `RowsError` unless columns, target and weight are distinct names."""
    if isinstance(columns, str) or (columns is not None and len(columns) == 0):
        raise RowsError(f"columns must be a list of names, or None for all columns; got {columns!r}.")
    named = [*(columns if columns is not None else ()), target, *([] if weight is None else [weight])]
    for name in named:
        if not isinstance(name, str):
            raise RowsError(f"Columns are known by their names; got {name!r}.")
        if named.count(name) > 1:
            raise RowsError(f"Column {name!r} is named twice among columns, target and weight.")


def as_expression(filters: Any) -> Any:
    """Filters as a pyarrow expression: from one, or from a list, or list of lists, of (column, operator, value)."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    if filters is None or isinstance(filters, pc.Expression):
        return filters
    try:
        return pq.filters_to_expression(filters)
    except Exception as error:  # of any type: the filters are not of that form
        raise RowsError(
            "filters must be a pyarrow expression or a list of (column, operator, value), such as "
            f"[('year', '>=', 2020)]; got {filters!r}: {error}"
        ) from error


def columns_in_filter(kept: Any, names: Sequence[str]) -> tuple[str, ...]:
    """Columns named in a filter expression, by its text; a column too many is only read in vain."""
    text = str(kept)
    return tuple(name for name in names if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text))


def filter_table(table: Any, kept: Any) -> Any:
    """Filter a table, keeping the order of rows, without threads (`Table.filter` would start some)."""
    from pyarrow import acero

    source = acero.Declaration("table_source", acero.TableSourceNodeOptions(table))
    chosen = acero.Declaration("filter", acero.FilterNodeOptions(kept))
    return acero.Declaration.from_sequence([source, chosen]).to_table(use_threads=False)


def find_files(paths: Any) -> tuple[Sequence[str], Any, tuple[str, ...]]:
    """List the files of a path, a glob pattern, a folder, a list of paths, or a pyarrow dataset.

    Returns the paths, Arrow's file system (None is the local one), and columns that only names of folders tell.
    """
    if hasattr(paths, "get_fragments"):
        return _list_dataset(paths)
    if isinstance(paths, str | os.PathLike):
        # Writers leave metadata beside the data, in files that begin with . or _
        found = list_files(
            os.fspath(paths), lambda path: path.suffix in ENDINGS and not path.name.startswith((".", "_"))
        )
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
    return found, None, ()


def _list_dataset(dataset: Any) -> tuple[Sequence[str], Any, tuple[str, ...]]:
    """Do the same of a pyarrow dataset; a filter of its own is refused, for it would be ignored."""
    if getattr(getattr(dataset, "format", None), "default_extname", None) != "parquet":
        raise RowsError(f"The dataset must be one of Parquet files; got a {type(dataset).__name__} of another kind.")
    if (getattr(dataset, "_scan_options", None) or {}).get("filter") is not None:
        raise RowsError("The dataset has a filter of its own. Give the whole dataset, and the filter as filters=.")
    if not dataset.files:
        raise RowsError("The dataset has no files.")
    partition = getattr(dataset, "partitioning", None)
    return dataset.files, dataset.filesystem, tuple(partition.schema.names) if partition is not None else ()


def is_number(kind: Any) -> bool:
    """Whether an Arrow type converts to float64 without encoding: floats, integers and booleans."""
    import pyarrow.types as types

    return types.is_floating(kind) or types.is_integer(kind) or types.is_boolean(kind)


def _not_a_number(path: str, name: str, kind: Any) -> str:
    return (
        f"{path}: column {name!r} holds {kind} values, not numbers. Choose other columns with columns=, turn it into "
        "numbers first, or use the command line, which encodes text."
    )


def _to_numpy(table: Any, names: Sequence[str]) -> Array:
    """Columns of a table as a float64 array (m, number of names) in C order; missing values become NaN."""
    out = np.empty((len(table), len(names)))
    values = [table.column(name).cast("float64", safe=False).to_numpy() for name in names]
    for start in range(0, len(table), STRIP):
        strip = slice(start, start + STRIP)
        for j, column in enumerate(values):
            out[strip, j] = column[strip]
    return out
