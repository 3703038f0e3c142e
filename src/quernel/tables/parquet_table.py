"""ParquetTable: one table in one or many Parquet files, read row group by row group, in a fixed order."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from quernel.data.parquet import Stamp, check_stamp, explain_errors, open_file, read_footer
from quernel.data.sources import BLOCK_ROWS, RowsError
from quernel.tables.frames import TableError, column_kind

ColumnFilter = Callable[[str], bool]
# Rows of a batch.
BATCH_ROWS = BLOCK_ROWS
REMEDY = "Files must have the same columns."


def any_column(_: str) -> bool:
    """Filter that every column passes."""
    return True


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


@dataclass(frozen=True, eq=False)
class ParquetTable:
    """A table of Parquet files, of which only a batch is in memory at a time.

    Attributes
    ----------
    groups : row groups that have rows, in the order of the files
    schema : common Arrow schema of the files
    n_bytes : uncompressed size of all values
    stamps : by path, what tells that a file was changed between two passes
    notes : sentences for the user
    """

    groups: tuple[RowGroup, ...]
    schema: pa.Schema
    n_bytes: int
    stamps: Mapping[str, Stamp]
    notes: tuple[str, ...] = ()

    @property
    def n_rows(self) -> int:
        """Number of rows of all files."""
        return sum(group.n_rows for group in self.groups)

    def select_group(self, group: RowGroup) -> ParquetTable:
        """Return the table of one row group."""
        return replace(self, groups=(group,))

    def iter_batches(
        self, columns: Sequence[str], groups: Sequence[RowGroup] | None = None, size: int | None = None
    ) -> Generator[RowBatch, None, None]:
        """Yield the rows of these groups (None: all), `size` at a time; each file is opened once."""
        schema, size = pa.schema([self.schema.field(name) for name in columns]), size or BATCH_ROWS
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

    def read(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Read all rows of these columns (None: all)."""
        names = self.schema.names if columns is None else list(columns)
        schema = pa.schema([self.schema.field(name) for name in names])
        return pa.concat_tables([schema.empty_table(), *(batch.table for batch in self.iter_batches(names))])


def open_parquet(
    files: Sequence[Path], labels: Mapping[str, str] | None = None, needed: ColumnFilter = any_column
) -> ParquetTable:
    """Open Parquet files as one table; only their footers are read.

    Parameters
    ----------
    files : sequence of Path
    labels : dict or None
        Names of files in messages, by path.
    needed : callable
        Whether a column is used; files may differ in the types of others.
    """
    labels = labels or {}
    footers = [read_footer(str(path)) for path in files]
    for path, one in zip(files, footers, strict=True):
        refuse_same_names(labels.get(str(path), path), one.schema.names)
    sizes = [
        (str(path), number, n_rows)
        for path, one in zip(files, footers, strict=True)
        for number, n_rows in enumerate(one.sizes)
        if n_rows
    ]
    firsts = accumulate((n_rows for *_, n_rows in sizes), initial=0)
    groups = tuple(RowGroup(*size, first, labels.get(size[0], "")) for size, first in zip(sizes, firsts, strict=False))
    named = (labels.get(str(path), str(path)) for path in files)
    schema = unify_schema(zip(named, (one.schema for one in footers), strict=True), needed)
    stamps = {str(path): one.stamp for path, one in zip(files, footers, strict=True)}
    return ParquetTable(groups, schema, sum(map(_uncompressed_bytes, map(str, files))), stamps)


def _uncompressed_bytes(path: str) -> int:
    with open_file(path) as file, explain_errors(path):
        return sum(file.metadata.row_group(g).total_byte_size for g in range(file.metadata.num_row_groups))


# Schemas


def refuse_same_names(path: Path | str, names: Sequence[str]) -> None:
    """Raise if two columns have the same name, or names that differ in case only, which SQL does not distinguish."""
    places: dict[str, str] = {}
    for name in names:
        other = places.setdefault(name.lower(), name)
        if other is not name or names.count(name) > 1:
            both = repr(name) if other == name else f"{other!r} or {name!r}"
            raise TableError(f"{path} has more than one column named {both}. Rename them, so that each is known.")


def unify_schema(schemas: Iterable[tuple[str, pa.Schema]], needed: ColumnFilter = any_column) -> pa.Schema:
    """Return the common Arrow schema of all files; raise with the first file and column that differ.

    Types of the same kind are promoted: integers to other numbers, a column that is empty in one file to any type. A
    column that is not needed and in which the files differ has Arrow's null type.
    """
    first: str | None = None
    types: dict[str, pa.DataType | None] = {}
    dropped: set[str] = set()
    for path, found in schemas:
        other = {field.name: without_view(field.type) for field in found}
        if first is None:
            first, types = path, dict(other)
            continue
        for name in dict.fromkeys([*types, *other]):
            one, new = types.get(name), other.get(name)
            common = None if one is None or new is None else _common_type(one, new)
            if common is None and needed(name):
                raise TableError(f"{_describe_difference(name, path, new, first, one)} {REMEDY}")
            if common is None:
                dropped.add(name)
            types[name] = common
    return pa.schema([(name, pa.null() if name in dropped else kind) for name, kind in types.items()])


def _describe_difference(name: str, path: str, new: pa.DataType | None, first: str, one: pa.DataType | None) -> str:
    """Say how a file differs from the first one in a column, given its type in both, None where it is missing."""
    if new is None:
        return f"{path} has no column {name!r}, but {first} has."
    if one is None:
        return f"{path} has a column {name!r}, but {first} has none."
    return f"Column {name!r} of {path} holds {new}, but {one} in {first}."


def cast_to_schema(table: pa.Table | pa.RecordBatch, schema: pa.Schema, path: str) -> pa.Table:
    """Return the columns of a table or batch in the order and with the types of a schema; `path` is for messages."""
    return pa.table([_cast_column(field, table, path) for field in schema], schema=schema)


def _cast_column(field: pa.Field, table: pa.Table | pa.RecordBatch, path: str) -> pa.Array | pa.ChunkedArray:
    """Cast a column of a table; large integers may lose digits as floating-point numbers."""
    if pa.types.is_null(field.type):
        return pa.nulls(len(table))
    column = table[field.name]
    if pa.types.is_dictionary(column.type) and column.type != field.type:
        column = column.dictionary_decode()
    try:
        return column.cast(field.type, safe=not pa.types.is_floating(field.type))
    except pa.ArrowException as error:
        raise TableError(
            f"Column {field.name!r} of {path} cannot be read as {field.type}, as in other files: {error}. {REMEDY}"
        ) from error


def kind_of_type(arrow_type: pa.DataType) -> str | None:
    """Return the kind of a column of this Arrow type, as `frames.column_kind` does."""
    return column_kind(pa.chunked_array([], arrow_type))


def _common_type(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return the type that holds values of both, or None if they are of different kinds."""
    if one == other:
        return one
    one, other = (kind.value_type if pa.types.is_dictionary(kind) else kind for kind in (one, other))
    kinds = {kind_of_type(kind) for kind in (one, other) if not pa.types.is_null(kind)}
    if len(kinds) > 1:
        return None
    try:
        both = [pa.schema([pa.field("x", kind)]) for kind in (one, other)]
        return pa.unify_schemas(both, promote_options="permissive").field("x").type
    except pa.ArrowException:
        return None


def without_view(kind: pa.DataType) -> pa.DataType:
    """Return the type, with string views, as polars writes them, as large strings."""
    name = str(kind)  # earlier versions of Arrow have no functions that recognise views
    if pa.types.is_dictionary(kind):
        return pa.dictionary(kind.index_type, without_view(kind.value_type), kind.ordered)
    return {"string_view": pa.large_string(), "binary_view": pa.large_binary()}.get(name, kind)
