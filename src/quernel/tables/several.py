"""A table in one file, or in many files with the same columns: a path, a folder, or a pattern such as trips/*.csv."""

from __future__ import annotations

import glob
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from quernel.tables import reading
from quernel.tables.columns import kind_of
from quernel.tables.reading import (
    ARROW,
    AS_IT_LOOKS,
    COMPRESSED,
    CSV,
    PARQUET,
    Batches,
    CsvReading,
    TableError,
    ending_of,
)

REMEDY = "Files must have the same columns."


def files_of(data: Path) -> list[Path]:
    """The file itself, or all data files of a folder or pattern, in the order of their names."""
    if data.is_dir():
        found = sorted(path for path in data.rglob("*") if path.is_file() and looks_like_data(path))
        if not found:
            raise TableError(f"The folder {data} has no CSV, Parquet or Arrow files.")
    elif glob.has_magic(str(data)) and not data.exists():
        found = sorted(Path(path) for path in glob.glob(str(data), recursive=True) if Path(path).is_file())
        if not found:
            raise TableError(f"No file was found for the pattern {data}.")
    else:
        return [data]
    formats = {_format(path): path for path in reversed(found)}
    if len(formats) > 1:
        one, other, *_ = formats.values()
        raise TableError(f"{data} has files of different formats, such as {one} and {other}. Choose some by a pattern.")
    return found


def looks_like_data(path: Path) -> bool:
    """Whether a file of a folder is taken for data: those that begin with . or _ are what writers leave beside it."""
    known = (*CSV, *PARQUET, *ARROW, *COMPRESSED)
    return path.suffix.lower() in known and not path.name.startswith((".", "_"))


def read(data: Path, how: CsvReading = AS_IT_LOOKS) -> Any:
    """All files as one Arrow table; those of CSV are read as `how` says."""
    import pyarrow as pa

    files = files_of(data)
    tables = [reading.read(path, how) for path in files]
    if len(tables) == 1:
        return tables[0]
    schema = agreed((path, table.schema) for path, table in zip(files, tables, strict=True))
    return pa.concat_tables([as_agreed(table, schema) for table in tables])


@contextmanager
def in_batches(data: Path, needed: Sequence[str], how: CsvReading = AS_IT_LOOKS) -> Iterator[Batches]:
    """The needed columns of all files, piece by piece, as `reading.in_batches` has them of one."""
    files = files_of(data)
    if len(files) == 1:
        with reading.in_batches(files[0], needed, how) as batches:
            yield batches
        return
    schemas, counts = [], []
    for path in files:
        with reading.in_batches(path, needed, how) as batches:
            schemas.append((path, batches.schema))
            counts.append(batches.n_rows)
    schema = agreed(schemas)

    def pieces() -> Iterator[Any]:
        for path in files:
            with reading.in_batches(path, needed, how) as batches:
                for piece in batches.pieces:
                    yield as_agreed(piece, schema)

    yield Batches(schema, pieces(), None if None in counts else sum(counts))


def agreed(schemas: Iterable[tuple[Path, Any]]) -> Any:
    """The Arrow schema of all files, or an error that names the first file with other columns, and the column.

    Types of the same kind agree: integers with other numbers, a column that is empty in one file with any.
    """
    import pyarrow as pa

    first: Path | None = None
    schema: Any = None
    for path, other in schemas:
        if first is None:
            first, schema = path, other
            continue
        for name in schema.names:
            if name not in other.names:
                raise TableError(f"{path} has no column {name!r}, but {first} has. {REMEDY}")
        for field in other:
            if field.name not in schema.names:
                raise TableError(f"{path} has a column {field.name!r}, but {first} has none. {REMEDY}")
            place = schema.get_field_index(field.name)
            kind = _common(schema.field(place).type, field.type)
            if kind is None:
                raise TableError(
                    f"Column {field.name!r} of {path} holds {field.type}, but {schema.field(place).type} in {first}. "
                    f"{REMEDY}"
                )
            schema = schema.set(place, pa.field(field.name, kind))
    return schema


def as_agreed(table: Any, schema: Any) -> Any:
    """A table, or a piece of one, with the columns it has in the order and of the types of a schema."""
    import pyarrow as pa

    fields = [field for field in schema if field.name in table.schema.names]
    return pa.table([table[field.name].cast(field.type) for field in fields], schema=pa.schema(fields))


def _common(one: Any, other: Any) -> Any:
    """The type that holds values of both, or None if they are of different kinds."""
    import pyarrow as pa

    if one == other:
        return one
    one, other = _undone(one), _undone(other)
    kinds = {kind_of(one), kind_of(other)} - {"nothing"}
    if len(kinds) > 1:
        return None
    try:
        both = [pa.schema([pa.field("x", kind)]) for kind in (one, other)]
        return pa.unify_schemas(both, promote_options="permissive").field("x").type
    except pa.ArrowException:
        return None


def _undone(kind: Any) -> Any:
    """The type without Arrow's dictionaries."""
    import pyarrow as pa

    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _format(path: Path) -> tuple[str, ...]:
    ending, _ = ending_of(path)
    return next(endings for endings in (CSV, PARQUET, ARROW) if ending in endings)
