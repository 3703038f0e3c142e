"""Tables in one file, or in many with the same columns: a path, a folder, or a pattern such as trips/*.csv."""

from __future__ import annotations

import glob
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from quernel.tables import reading
from quernel.tables.arrow_casts import kind_of, undone
from quernel.tables.missing_values import NUMBER, spellings
from quernel.tables.reading import (
    ARROW,
    AS_IT_LOOKS,
    BLOCK_BYTES,
    COMPRESSED,
    CSV,
    PARQUET,
    Batches,
    CsvReading,
    TableError,
    complaints,
    ending_of,
    opened_stream,
    schema_without_views,
    separator_of,
    without_views,
)

Needed = Callable[[str], bool]

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


def every(_: str) -> bool:
    """Whether a column is needed, where all are."""
    return True


def read(data: Path, how: CsvReading = AS_IT_LOOKS, needed: Needed = every) -> Any:
    """All files as one Arrow table; those of CSV are read as `how` says.

    Columns that are not needed are empty where the files do not agree on them.
    """
    import pyarrow as pa

    files = files_of(data)
    tables = [reading.read(path, how) for path in files]
    if len(tables) == 1:
        return tables[0]
    schema = agreed(((path, table.schema) for path, table in zip(files, tables, strict=True)), needed)
    return pa.concat_tables([as_agreed(table, schema, path) for path, table in zip(files, tables, strict=True)])


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
    schema = agreed(schemas, {*needed}.__contains__)

    def pieces() -> Iterator[Any]:
        for path in files:
            with reading.in_batches(path, needed, how) as batches:
                for piece in batches.pieces:
                    yield as_agreed(piece, schema, path)

    yield Batches(schema, pieces(), None if None in counts else sum(counts))


def agreed(schemas: Iterable[tuple[Path, Any]], needed: Needed = every) -> Any:
    """The Arrow schema of all files, or an error that names the first file with other columns, and the column.

    Types of the same kind agree: integers with other numbers, a column that is empty in one file with any. A column
    that is not needed and on which the files do not agree has Arrow's type of nothing.
    """
    import pyarrow as pa

    first: Path | None = None
    types: dict[str, Any] = {}
    lost: set[str] = set()
    for path, found in schemas:
        other = schema_without_views(found)
        if first is None:
            first, types = path, dict(zip(other.names, other.types, strict=True))
            continue
        for name in dict.fromkeys([*types, *other.names]):
            one = types.get(name)
            new = other.field(name).type if name in other.names else None
            kind = None if one is None or new is None else _common(one, new)
            if kind is None and needed(name):
                raise TableError(f"{_differing(name, path, new, first, one)} {REMEDY}")
            if kind is None:
                lost.add(name)
            types[name] = kind
    return pa.schema([(name, pa.null() if name in lost else kind) for name, kind in types.items()])


def _differing(name: str, path: Path, new: Any, first: Path, one: Any) -> str:
    """How a file differs from the first in a column, of which they have other types, or None if there is none."""
    if new is None:
        return f"{path} has no column {name!r}, but {first} has."
    if one is None:
        return f"{path} has a column {name!r}, but {first} has none."
    return f"Column {name!r} of {path} holds {new}, but {one} in {first}."


def as_agreed(table: Any, schema: Any, path: Path | str) -> Any:
    """A table, or a piece of one, with the columns it has in the order and of the types of a schema.

    Columns that hold nothing are there in any case. `path` is for messages.
    """
    import pyarrow as pa

    table = without_views(table)
    fields = [field for field in schema if field.name in table.schema.names or pa.types.is_null(field.type)]
    return pa.table([_as(field, table, path) for field in fields], schema=pa.schema(fields))


def _as(field: Any, table: Any, path: Path | str) -> Any:
    """A column of a table as what the field says; large whole numbers lose digits among others that have them."""
    import pyarrow as pa

    if pa.types.is_null(field.type):
        return pa.nulls(len(table))
    try:
        return table[field.name].cast(field.type, safe=not pa.types.is_floating(field.type))
    except pa.ArrowException as error:
        raise TableError(
            f"Column {field.name!r} of {path} cannot be read as {field.type}, as in other files: {error}. {REMEDY}"
        ) from error


def _common(one: Any, other: Any) -> Any:
    """The type that holds values of both, or None if they are of different kinds."""
    import pyarrow as pa

    if one == other:
        return one
    one, other = undone(one), undone(other)
    kinds = {kind_of(one), kind_of(other)} - {"nothing"}
    if len(kinds) > 1:
        return None
    try:
        both = [pa.schema([pa.field("x", kind)]) for kind in (one, other)]
        return pa.unify_schemas(both, promote_options="permissive").field("x").type
    except pa.ArrowException:
        return None


def _format(path: Path) -> tuple[str, ...]:
    ending, _ = ending_of(path)
    return next(endings for endings in (CSV, PARQUET, ARROW) if ending in endings)


def unmet(files: Sequence[Path], words: Sequence[str]) -> list[str]:
    """Return the markers that are no field of any of these CSV files, which are read until all are found."""
    left = list(words)
    for path in files:
        fields = {word: _field(word, separator_of(ending_of(path)[0])) for word in left}
        for lines in _blocks(path) if left else ():
            left = [word for word in left if not fields[word].search(lines)]
            if not left:
                break
    return left


def _field(word: str, separator: str) -> re.Pattern[bytes]:
    """Return a pattern of a field with the marker; numbers match with any trailing zeros."""
    ways = [re.escape(way) for way in spellings(word)]
    if NUMBER.fullmatch(word):
        number = repr(float(word)).removesuffix(".0")
        ways.append(re.escape(number) + ("0*" if "." in number else "(?:[.]0*)?"))
    ends = re.escape(separator)
    return re.compile(f'(?:^|[{ends}"])(?:{"|".join(ways)})(?:[{ends}"\r\n]|\\Z)'.encode(), re.MULTILINE)


def _blocks(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file in large blocks."""
    ending, compression = ending_of(path)
    with complaints(path, ending), opened_stream(path, compression) as stream:
        rest = b""
        while block := stream.read(BLOCK_BYTES):
            lines, _, rest = (rest + block).rpartition(b"\n")
            yield lines
        yield rest
