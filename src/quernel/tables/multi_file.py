"""Tables in one file, or in many with the same columns: a path, a folder, or a pattern such as trips/*.csv."""

from __future__ import annotations

import glob
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from quernel.tables import reading
from quernel.tables.arrow_casts import ArrowColumn, column_kind, value_type
from quernel.tables.missing_values import NUMBER, equivalent_spellings
from quernel.tables.reading import (
    ARROW,
    BLOCK_BYTES,
    COMPRESSED,
    CSV,
    INFER_TYPES,
    PARQUET,
    Batches,
    CsvOptions,
    TableError,
    find_separator,
    open_stream,
    schema_without_views,
    split_extension,
    translate_errors,
    without_views,
)

ColumnFilter = Callable[[str], bool]

REMEDY = "Files must have the same columns."


def find_files(data: Path) -> list[Path]:
    """Return the file itself, or all data files of a folder or pattern, sorted by name."""
    if data.is_dir():
        found = sorted(path for path in data.rglob("*") if path.is_file() and is_data_file(path))
        if not found:
            raise TableError(f"The folder {data} has no CSV, Parquet or Arrow files.")
    elif glob.has_magic(str(data)) and not data.exists():
        found = sorted(Path(path) for path in glob.glob(str(data), recursive=True) if Path(path).is_file())
        if not found:
            raise TableError(f"No file was found for the pattern {data}.")
    else:
        return [data]
    formats = {_file_format(path): path for path in reversed(found)}
    if len(formats) > 1:
        one, other, *_ = formats.values()
        raise TableError(f"{data} has files of different formats, such as {one} and {other}. Choose some by a pattern.")
    return found


def is_data_file(path: Path) -> bool:
    """Whether a file in a folder is read as data; names that begin with . or _ belong to the programs that write it."""
    known = (*CSV, *PARQUET, *ARROW, *COMPRESSED)
    return path.suffix.lower() in known and not path.name.startswith((".", "_"))


def any_column(_: str) -> bool:
    """Filter that every column passes."""
    return True


def read(data: Path, options: CsvOptions = INFER_TYPES, needed: ColumnFilter = any_column) -> pa.Table:
    """Read all files as one Arrow table; the options are for CSV files.

    Columns that are not needed are empty where the files differ in their types.
    """
    files = find_files(data)
    tables = [reading.read(path, options) for path in files]
    if len(tables) == 1:
        return tables[0]
    schema = unify_schema(((path, table.schema) for path, table in zip(files, tables, strict=True)), needed)
    return pa.concat_tables([cast_to_schema(table, schema, path) for path, table in zip(files, tables, strict=True)])


@contextmanager
def in_batches(data: Path, needed: Sequence[str], options: CsvOptions = INFER_TYPES) -> Iterator[Batches]:
    """Yield the needed columns of all files in batches, as `reading.in_batches` does for one file."""
    files = find_files(data)
    if len(files) == 1:
        with reading.in_batches(files[0], needed, options) as batches:
            yield batches
        return
    schemas, n_rows = [], list[int | None]()
    for path in files:
        with reading.in_batches(path, needed, options) as batches:
            schemas.append((path, batches.schema))
            n_rows.append(batches.n_rows)
    schema = unify_schema(schemas, {*needed}.__contains__)

    def pieces() -> Iterator[pa.Table]:
        for path in files:
            with reading.in_batches(path, needed, options) as batches:
                for piece in batches.pieces:
                    yield cast_to_schema(piece, schema, path)

    known = [count for count in n_rows if count is not None]
    yield Batches(schema, pieces(), sum(known) if len(known) == len(files) else None)


def unify_schema(schemas: Iterable[tuple[Path, pa.Schema]], needed: ColumnFilter = any_column) -> pa.Schema:
    """Return the common Arrow schema of all files; raise with the first file and column that differ.

    Types of the same kind are promoted: integers to other numbers, a column that is empty in one file to any type. A
    column that is not needed and in which the files differ has Arrow's null type.
    """
    first: Path | None = None
    types: dict[str, pa.DataType | None] = {}
    dropped: set[str] = set()
    for path, found in schemas:
        other = schema_without_views(found)
        if first is None:
            first, types = path, dict(zip(other.names, other.types, strict=True))
            continue
        for name in dict.fromkeys([*types, *other.names]):
            one = types.get(name)
            new = other.field(name).type if name in other.names else None
            common = None if one is None or new is None else _common_type(one, new)
            if common is None and needed(name):
                raise TableError(f"{_describe_difference(name, path, new, first, one)} {REMEDY}")
            if common is None:
                dropped.add(name)
            types[name] = common
    return pa.schema([(name, pa.null() if name in dropped else kind) for name, kind in types.items()])


def _describe_difference(name: str, path: Path, new: pa.DataType | None, first: Path, one: pa.DataType | None) -> str:
    """Say how a file differs from the first one in a column, given its type in both, None where it is missing."""
    if new is None:
        return f"{path} has no column {name!r}, but {first} has."
    if one is None:
        return f"{path} has a column {name!r}, but {first} has none."
    return f"Column {name!r} of {path} holds {new}, but {one} in {first}."


def cast_to_schema(table: pa.Table | pa.RecordBatch, schema: pa.Schema, path: Path | str) -> pa.Table:
    """Return the columns of a table or batch in the order and with the types of a schema.

    Columns of null type are always there. `path` is for messages.
    """
    table = without_views(table)
    fields = [field for field in schema if field.name in table.schema.names or pa.types.is_null(field.type)]
    return pa.table([_cast_column(field, table, path) for field in fields], schema=pa.schema(fields))


def _cast_column(field: pa.Field, table: pa.Table | pa.RecordBatch, path: Path | str) -> ArrowColumn:
    """Cast a column of a table; large integers may lose digits as floating-point numbers."""
    if pa.types.is_null(field.type):
        return pa.nulls(len(table))
    try:
        return table[field.name].cast(field.type, safe=not pa.types.is_floating(field.type))
    except pa.ArrowException as error:
        raise TableError(
            f"Column {field.name!r} of {path} cannot be read as {field.type}, as in other files: {error}. {REMEDY}"
        ) from error


def _common_type(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return the type that holds values of both, or None if they are of different kinds."""
    if one == other:
        return one
    one, other = value_type(one), value_type(other)
    kinds = {column_kind(one), column_kind(other)} - {"nothing"}
    if len(kinds) > 1:
        return None
    try:
        both = [pa.schema([pa.field("x", kind)]) for kind in (one, other)]
        return pa.unify_schemas(both, promote_options="permissive").field("x").type
    except pa.ArrowException:
        return None


def _file_format(path: Path) -> tuple[str, ...]:
    ending, _ = split_extension(path)
    return next(endings for endings in (CSV, PARQUET, ARROW) if ending in endings)


def find_unused_markers(files: Sequence[Path], markers: Sequence[str]) -> list[str]:
    """Return the missing-value markers that occur in no field of these CSV files, usually typos.

    The files are read until all markers are found.
    """
    left = list(markers)
    for path in files if left else ():
        patterns = {marker: _field_pattern(marker, find_separator(path)) for marker in left}
        for lines in _read_blocks(path):
            left = [marker for marker in left if not patterns[marker].search(lines)]
            if not left:
                return []
    return left


def _field_pattern(marker: str, separator: str) -> re.Pattern[bytes]:
    """Return a pattern of a field with the marker; numbers match with any trailing zeros."""
    ways = [re.escape(way) for way in equivalent_spellings(marker)]
    if NUMBER.fullmatch(marker):
        number = repr(float(marker)).removesuffix(".0")
        ways.append(re.escape(number) + ("0*" if "." in number else "(?:[.]0*)?"))
    ends = re.escape(separator)
    return re.compile(f'(?:^|[{ends}"])(?:{"|".join(ways)})(?:[{ends}"\r\n]|\\Z)'.encode(), re.MULTILINE)


def _read_blocks(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file in large blocks."""
    with translate_errors(path, CSV[0]), open_stream(path) as stream:
        rest = b""
        while block := stream.read(BLOCK_BYTES):
            lines, _, rest = (rest + block).rpartition(b"\n")
            yield lines
        yield rest
