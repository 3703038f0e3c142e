"""Tables in Parquet files: `ParquetTable` reads them in batches, always in the same order; `ParquetRows` is a source.

Files are read without Arrow's threads: these compete with our own, and may deadlock in a forked process.
"""

from __future__ import annotations

import glob
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, groupby, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from quernel._machine import read_ahead
from quernel.data import sources
from quernel.data.sources import Mask, Piece, RowsError, Stamp, check_piece, check_stamp, count_block_rows, read_stamp

PARQUET = (".parquet", ".pq")
# Bytes of a column that are buffered at a time; without a limit, a whole row group would be in memory.
BUFFER = 2**20
# Whether a column is used, by its name.
ColumnFilter = Callable[[str], bool]


def any_column(_: str) -> bool:
    """Filter that every column passes."""
    return True


@dataclass(frozen=True)
class RowGroup:
    """A row group of a Parquet file: its number and its first row in the file, and the name of the file in messages."""

    path: str
    number: int
    first: int
    n_rows: int
    label: str

    def __str__(self) -> str:
        return f"{self.label}, row group {self.number}"


@dataclass(frozen=True, eq=False)
class ParquetTable:
    """One table in one or many Parquet files, of whose rows only a batch is in memory at a time."""

    schema: Any  # the Arrow schema that all files are read with
    groups: tuple[RowGroup, ...]  # those that have rows, in the order of the files
    n_bytes: int  # uncompressed size of all values
    stamps: Mapping[str, Stamp]  # by path, what tells that a file was changed between two passes
    filesystem: Any = None  # Arrow's; None is the local one
    notes: tuple[str, ...] = ()  # sentences for the user

    @property
    def n_rows(self) -> int:
        """Number of rows of all files."""
        return sum(group.n_rows for group in self.groups)

    def iter_batches(
        self, columns: Sequence[str], groups: Iterable[RowGroup] | None = None, size: int | None = None
    ) -> Generator[tuple[RowGroup, int, Any], None, None]:
        """Yield the rows of these groups (None: all), `size` at a time; each file is opened once.

        With their group, and the index of the first of them in it, as an Arrow table.
        """
        schema = self.schema.empty_table().select(columns).schema
        for path, some in groupby(self.groups if groups is None else groups, key=lambda group: group.path):
            with open_file(path, self.filesystem) as file:
                check_stamp(path, self.stamps[path], self.filesystem)
                for group in some:
                    start = 0
                    with explain_errors(str(group)):
                        batches = file.iter_batches(
                            size or sources.BLOCK_ROWS, [group.number], list(columns), use_threads=False
                        )
                    while start < group.n_rows:
                        with explain_errors(str(group)):
                            batch = cast_batch(next(batches), schema)
                        yield group, start, batch
                        start += len(batch)
                check_stamp(path, self.stamps[path], self.filesystem)

    def read(self, columns: Sequence[str] | None = None) -> Any:
        """Read all rows of these columns (None: all) as an Arrow table."""
        import pyarrow as pa

        names = self.schema.names if columns is None else list(columns)
        empty = self.schema.empty_table().select(names)
        return pa.concat_tables([empty, *(table for *_, table in self.iter_batches(names))])


def open_parquet(
    paths: Sequence[str | Path],
    labels: Mapping[str, str] | None = None,
    needed: ColumnFilter = any_column,
    filesystem: Any = None,
) -> ParquetTable:
    """Open Parquet files as one table; only their footers are read.

    `labels` are names of files in messages, by path. Columns that are not needed have Arrow's null type; files may
    differ in them.
    """
    schemas, groups, n_bytes, stamps = {}, list[RowGroup](), 0, {}
    for path in map(str, paths):
        label, first = (labels or {}).get(path, path), 0
        with explain_errors(label):
            stamps[path] = read_stamp(path, filesystem)
        with open_file(path, filesystem) as file, explain_errors(label):
            schemas[label] = file.schema_arrow
            for number in range(file.metadata.num_row_groups):
                found = file.metadata.row_group(number)
                if found.num_rows:
                    groups.append(RowGroup(path, number, first, found.num_rows, label))
                first, n_bytes = first + found.num_rows, n_bytes + found.total_byte_size
    return ParquetTable(_unify_schemas(schemas, needed), tuple(groups), n_bytes, stamps, filesystem)


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


def is_data_file(path: Path, endings: Sequence[str]) -> bool:
    """Whether a file in a folder is read as data; names that begin with . or _ belong to the programs that write it."""
    return path.suffix.lower() in endings and not path.name.startswith((".", "_"))


def list_files(path: str, endings: Sequence[str]) -> list[str]:
    """Return the file itself, or all data files of a folder, with these endings, or of a pattern, sorted by name."""
    if os.path.isdir(path):
        return sorted(str(file) for file in Path(path).rglob("*") if file.is_file() and is_data_file(file, endings))
    if os.path.exists(path) or not glob.has_magic(path):
        return [path]
    return sorted(found for found in glob.glob(path, recursive=True) if os.path.isfile(found))


# Types


def _unify_schemas(schemas: Mapping[str, Any], needed: ColumnFilter) -> Any:
    """Return the common Arrow schema of all files; raise with the first file and column that differ.

    Types of the same kind are promoted: integers to other numbers, a column that is empty in one file to any type.
    """
    import pyarrow as pa

    (first, _), *_ = schemas.items()
    common: dict[str, Any] = {}
    for label, schema in schemas.items():
        types = {field.name: plain_type(field.type) if needed(field.name) else pa.null() for field in schema}
        if twice := sorted({name for name in schema.names if needed(name) and schema.names.count(name) > 1}):
            raise RowsError(f"{label} has more than one column named {twice[0]!r}. Rename them, so that each is known.")
        for name in dict.fromkeys([*common, *types]):
            if label != first and needed(name) and (name in common) != (name in types):
                one, other = (label, first) if name in common else (first, label)
                raise RowsError(f"{one} has no column {name!r}, but {other} has. Files must have the same columns.")
            both = [kind.get(name, pa.null()) for kind in (common, types)]
            common[name] = _common_type(*both)
            if common[name] is None:
                raise RowsError(f"Column {name!r} of {label} holds {both[1]}, but {both[0]} in {first}.")
    return pa.schema([*common.items()])


def _common_type(*both: Any) -> Any:
    """Return the Arrow type that holds values of two others, or None if they are of different kinds."""
    import pyarrow as pa

    if both[0] != both[1]:
        both = tuple(kind.value_type if pa.types.is_dictionary(kind) else kind for kind in both)
    try:
        merged = pa.unify_schemas([pa.schema([("x", kind)]) for kind in both], promote_options="permissive")
    except pa.ArrowException:
        return None
    return merged.field("x").type


def plain_type(kind: Any) -> Any:
    """Return the type, with string views, as polars writes them, as large strings."""
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        return pa.dictionary(kind.index_type, plain_type(kind.value_type), kind.ordered)
    # Earlier versions of Arrow have no functions that recognise views.
    return {"string_view": pa.large_string(), "binary_view": pa.large_binary()}.get(str(kind), kind)


def cast_batch(batch: Any, schema: Any) -> Any:
    """Return a batch as a table of this schema, columns of the null type as null.

    Large integers may lose digits as floating-point numbers.
    """
    import pyarrow as pa

    columns = []
    for field in schema:
        column = pa.nulls(len(batch)) if pa.types.is_null(field.type) else batch.column(field.name)
        if pa.types.is_dictionary(column.type) and column.type != field.type:
            kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
            column = column.dictionary.cast(kind).take(column.indices)
        columns.append(column.cast(field.type, safe=not pa.types.is_floating(field.type)))
    return pa.table(columns, schema=schema)


# Blocks of rows


class BlockedRows(ABC):
    """Row source over batches of a table, of whose rows those of the mask `used` (n,) are used; X has `n_columns`.

    X is made of the columns `inputs` of the table; there may be a column of weights.
    """

    def __init__(
        self, table: ParquetTable, used: Mask, n_columns: int, inputs: Sequence[str], target: str, weight: str | None
    ) -> None:
        self.table, self.inputs, self.target, self.weight, self.weighted = table, inputs, target, weight, bool(weight)
        self.n_columns, self.size = n_columns, count_block_rows(n_columns)
        self.blocks, first = list[tuple[RowGroup, int, Mask]](), 0  # a group, from which row on, and which are used
        for group in table.groups:
            inside, first = used[first : first + group.n_rows], first + group.n_rows
            masks = [(start, inside[start : start + self.size]) for start in range(0, group.n_rows, self.size)]
            self.blocks += [(group, start, mask) for start, mask in masks if mask.any()]
        ends = np.cumsum([0, *(np.count_nonzero(mask) for *_, mask in self.blocks)]).tolist()
        self.spans = [slice(start, stop) for start, stop in pairwise(ends)]
        self.n_rows: int = ends[-1]

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
        return str(self.blocks[k][0])

    def _read_blocks(self, numbers: range, X: bool) -> Generator[Piece, None, None]:
        import pyarrow as pa

        wanted = {self.blocks[k][:2]: k for k in numbers}
        groups = dict.fromkeys(group for group, _ in wanted)
        names = [*(self.inputs if X else ()), self.target, *([self.weight] if self.weight else [])]
        for group, start, table in self.table.iter_batches(names, groups, self.size):
            if (k := wanted.get((group, start))) is None:
                continue
            *_, used = self.blocks[k]
            rows = group.first + start + np.flatnonzero(used)

            def where(row: int, group: RowGroup = group, rows: Any = rows) -> str:
                return f"{group}, row {rows[row]:,} of the file (counted from 0)"

            yield self._read_piece(table if used.all() else table.filter(pa.array(used)), k, X, where)
            if k == numbers[-1]:
                check_stamp(group.path, self.table.stamps[group.path], self.table.filesystem)
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
        Rows to keep; a list of lists is a disjunction ("or") of conjunctions ("and"). The constructor finds the rows
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
        try:
            import pyarrow  # noqa: F401
        except ImportError as error:
            raise ImportError("ParquetRows needs pyarrow, which is not installed. Run: pip install pyarrow") from error
        found, filesystem, partitions = _find_files(paths)
        kept = None if filters is None else _as_expression(filters)
        first = open_parquet(found[:1], filesystem=filesystem).schema
        names = [name for name in first.names if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", str(kept))]
        needed = any_column if columns is None else {*columns, target, weight, *names}.__contains__
        table = open_parquet(found, needed=needed, filesystem=filesystem)
        if columns is None and partitions:
            raise RowsError(
                f"The dataset has columns that are known from the names of folders only, which are not read: "
                f"{', '.join(partitions)}. Choose the inputs with columns=."
            )
        numeric = [one.name for one in table.schema if _is_number(one.type) or one.name not in names]
        self.names = tuple(name for name in numeric if name not in (target, weight)) if columns is None else (*columns,)
        self._check_names(table, columns, [*self.names, target, *([] if weight is None else [weight])])
        used = np.broadcast_to(True, table.n_rows) if filters is None else _find_kept(table, kept, names)
        super().__init__(table, used, len(self.names), self.names, target, weight)
        if not self.spans:
            that = "that the filters keep " if filters is not None else ""
            raise RowsError(f"There are no rows {that}in {self._describe_files()}.")

    @property
    def files(self) -> tuple[str, ...]:
        """Paths of the files, in the order in which they are read."""
        return tuple(self.table.stamps)

    def __repr__(self) -> str:
        return f"ParquetRows({self._describe_files()}: {self.n_rows:,} rows x {self.n_columns} columns)"

    def _describe_files(self) -> str:
        return self.files[0] + (f" and {len(self.files) - 1} more files" if len(self.files) > 1 else "")

    def _check_names(self, table: ParquetTable, columns: Sequence[str] | None, named: Sequence[str]) -> None:
        """Raise a `RowsError` unless inputs, target and weight, which are `named`, are different columns of numbers."""
        if isinstance(columns, str) or not self.names:
            raise RowsError(f"columns must be a list of names, or None for all columns of numbers; got {columns!r}.")
        path = next(iter(table.stamps))
        for name in named:
            if name not in table.schema.names:
                raise RowsError(f"{path} has no column {name!r}. Its columns: {', '.join(table.schema.names[:12])}.")
            if named.count(name) > 1:
                raise RowsError(f"Column {name!r} is named twice among columns, target and weight.")
            if not _is_number(kind := table.schema.field(name).type):
                raise RowsError(
                    f"{path}: column {name!r} holds {kind} values, not numbers. Choose other columns with columns=, "
                    "turn it into numbers first, or use the command line, which encodes text."
                )

    def _read_piece(self, table: Any, k: int, X: bool, where: Callable[[int], str]) -> Piece:  # noqa: ARG002
        """Return a table as a validated `Piece`; missing values become NaN."""
        numbers = {name: table[name].cast("float64", safe=False).to_numpy() for name in table.column_names}
        inputs = np.stack([numbers[name] for name in self.inputs], axis=1) if X else None
        piece = Piece(inputs, numbers[self.target], numbers[self.weight] if self.weight else None)
        return check_piece(piece, [f"column {name!r}" for name in (*self.inputs, self.target, self.weight)], where)


def _is_number(kind: Any) -> bool:
    """Whether an Arrow type converts to float64 without encoding: floats, integers and booleans."""
    import pyarrow.types as types

    return types.is_floating(kind) or types.is_integer(kind) or types.is_boolean(kind)


def _as_expression(filters: Any) -> Any:
    """Filters as a pyarrow expression: from one, or from a list, or list of lists, of (column, operator, value)."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    try:
        return filters if isinstance(filters, pc.Expression) else pq.filters_to_expression(filters)
    except Exception as error:  # of any type: the filters are not of that form
        raise RowsError(
            "filters must be a pyarrow expression or a list of (column, operator, value), such as "
            f"[('year', '>=', 2020)]; got {filters!r}: {error}"
        ) from error


def _find_kept(table: ParquetTable, kept: Any, names: Sequence[str]) -> Mask:
    """Return which rows a filter keeps, in one pass over the columns that it names; without Arrow's threads."""
    import pyarrow.dataset as ds

    masks = [np.empty(0, dtype=bool)]
    with explain_errors(f"{next(iter(table.stamps))} with the filters {kept}", "Are their names and types right?"):
        for batch in chain([table.schema.empty_table()], (batch for *_, batch in table.iter_batches(names))):
            found = ds.dataset(batch).to_table(columns={"kept": kept}, use_threads=False)["kept"]
            masks.append(found.fill_null(False).to_numpy())
    return np.concatenate(masks)


def _find_files(paths: Any) -> tuple[Sequence[str], Any, tuple[str, ...]]:
    """List the files of a path, a glob pattern, a folder, a list of paths, or a pyarrow dataset.

    Returns the paths, Arrow's file system (None is the local one), and columns that only names of folders tell.
    """
    if hasattr(paths, "get_fragments"):
        if getattr(getattr(paths, "format", None), "default_extname", None) != "parquet" or not paths.files:
            raise RowsError("The dataset must be one of Parquet files.")
        if (getattr(paths, "_scan_options", None) or {}).get("filter") is not None:
            raise RowsError("The dataset has a filter of its own. Give the whole dataset, and the filter as filters=.")
        return paths.files, paths.filesystem, tuple(paths.partitioning.schema.names) if paths.partitioning else ()
    if isinstance(paths, str | os.PathLike):
        found = list_files(os.fspath(paths), PARQUET)
    elif isinstance(paths, Sequence):
        found = [os.fspath(path) for path in paths]
    else:
        raise RowsError(f"paths must be a path, a list of paths or a pyarrow dataset; got {type(paths).__name__}.")
    for path in found or [repr(paths)]:
        if not os.path.isfile(path):
            raise RowsError(f"No Parquet file was found at {path}. Give a file, a folder, or a pattern.")
    return found, None, ()
