"""ParquetTable: one table in one or many Parquet files, whose columns have the same types in all of them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from quernel.data.parquet import ParquetFiles, RowBatch, RowGroup
from quernel.tables.frames import TableError, as_entries

ColumnFilter = Callable[[str], bool]
REMEDY = "Files must have the same columns."


def any_column(_: str) -> bool:
    """Filter that every column passes."""
    return True


@dataclass(frozen=True, eq=False)
class ParquetTable(ParquetFiles):
    """A table of Parquet files, with their common Arrow schema, and sentences for the user."""

    schema: pa.Schema = None
    notes: tuple[str, ...] = ()

    def iter_batches(
        self, columns: Sequence[str], groups: Iterable[RowGroup] | None = None, size: int | None = None
    ) -> Generator[RowBatch, None, None]:
        """Yield the rows of these groups (None: all), `size` at a time, with the types of the schema."""
        schema = pa.schema([self.schema.field(name) for name in columns])
        for batch in super().iter_batches(columns, groups, size):
            table = [_cast_column(field, batch.table, str(batch.group)) for field in schema]
            yield batch._replace(table=pa.table(table, schema=schema))

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
    found, labels = ParquetFiles.from_paths([*map(str, files)], labels=labels), labels or {}
    schemas = {labels.get(path, path): schema for path, schema in found.schemas.items()}
    for path, schema in schemas.items():
        refuse_same_names(path, schema.names)
    return ParquetTable(**vars(found), schema=unify_schema(schemas.items(), needed))


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
    (first, found), *others = schemas
    types: dict[str, pa.DataType | None] = {field.name: without_view(field.type) for field in found}
    for path, found in others:
        other = {field.name: without_view(field.type) for field in found}
        for name in dict.fromkeys([*types, *other]):
            one, new = types.get(name), other.get(name)
            types[name] = None if one is None or new is None else _common_type(one, new)
            if types[name] is None and needed(name):
                raise TableError(f"{_describe_difference(name, path, new, first, one)} {REMEDY}")
    return pa.schema([(name, pa.null() if kind is None else kind) for name, kind in types.items()])


def _describe_difference(name: str, path: str, new: pa.DataType | None, first: str, one: pa.DataType | None) -> str:
    """Say how a file differs from the first one in a column, given its type in both, None where it is missing."""
    if new is None:
        return f"{path} has no column {name!r}, but {first} has."
    if one is None:
        return f"{path} has a column {name!r}, but {first} has none."
    return f"Column {name!r} of {path} holds {new}, but {one} in {first}."


def _cast_column(field: pa.Field, table: pa.Table, path: str) -> pa.Array | pa.ChunkedArray:
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
    """Return the kind of a column of this Arrow type."""
    return as_entries(pa.chunked_array([], arrow_type)).kind


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
