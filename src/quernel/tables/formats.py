"""How tables are written: Parquet files, which are read in batches, and CSV files, which DuckDB copies to these.

`ParquetTable` is one table in one or many Parquet files, whose columns have the same types in all of them.

Of CSV files encoding, separator and header are found here, and the types of columns inferred by queries. Every column
is read as text and converted by SQL. So a type is inferred from all rows where the first ones mislead, and a file has
the same types in every locale: DuckDB's own guesses would read 3/4/2020 as a date, and T as true.
"""

from __future__ import annotations

import codecs
import csv
import io
import shutil
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING

import pyarrow as pa

from quernel.data.parquet import ParquetFiles, RowBatch, RowGroup
from quernel.tables.columns import TextColumn, number_markers, text_markers
from quernel.tables.encoder import TableEncoder
from quernel.tables.frames import TableError, as_entries

if TYPE_CHECKING:
    import duckdb


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


SEPARATORS = (",", ";", "\t", "|")
# Rows from whose text the types of the columns of a CSV file are inferred first, before all rows are.
SNIFFED_ROWS = 20_480
# What a column of a CSV file may be, in this order: SQL that holds for all its text {c}. Whole numbers are DOUBLE, too.
CANDIDATES = {
    "DOUBLE": "try_cast({c} as double) is not null and not contains({c}, '_')",
    "BOOLEAN": "lower({c}) = 'true' or lower({c}) = 'false' or {c} = '0' or {c} = '1'",
    "TIME": r"regexp_full_match({c}, '\d\d:\d\d(:\d\d([.]\d+)?)?') and try_cast({c} as time) is not null",
    "DATE": r"regexp_full_match({c}, '\d{{4}}-\d\d-\d\d') and try_cast({c} as date) is not null",
    "TIMESTAMP": r"regexp_full_match({c}, '\d{{4}}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d([.]\d+)?)?)?') "
    "and try_cast({c} as timestamp) is not null",
    "TIMESTAMPTZ": r"regexp_full_match({c}, '\d{{4}}-\d\d-\d\d[ T]\d\d:\d\d.*') and "
    "try_cast({c} as timestamptz) is not null",
    "COMMA": r"regexp_full_match(trim({c}), '[+-]?\d+(,\d+)?')",  # in files with semicolons only
}


@dataclass(frozen=True)
class CsvOptions:
    """How CSV files are read.

    Parameters
    ----------
    missing : tuple of str
        Missing-value markers besides NA, NULL and the like.
    text : tuple of str
        Columns that are text, whatever they look like.
    literal : tuple of str
        Columns in which missing-value markers are ordinary text, because they were categories in training.
    copies : dict
        Columns that are copied as text, unchanged, by the name of the copy.
    """

    missing: tuple[str, ...] = ()
    text: tuple[str, ...] = ()
    literal: tuple[str, ...] = ()
    copies: Mapping[str, str] = field(default_factory=dict)


INFER_TYPES = CsvOptions()


def model_csv_options(encoder: TableEncoder, copies: Mapping[str, str] | None = None) -> CsvOptions:
    """Return how to read CSV files for a model: what was text in training is text."""
    texts = {column.name: column for column in encoder.columns_ if isinstance(column, TextColumn)}
    markers = {*text_markers(encoder.missing)}
    dates = [one.name for one in encoder.columns_ if getattr(one, "order", "year first") != "year first"]
    literal = tuple(name for name, column in texts.items() if markers.intersection(column.categories))
    return CsvOptions(tuple(encoder.missing), (*texts, *dates), literal, copies or {})


@dataclass(frozen=True)
class CsvFile:
    """A CSV file: its columns are read as text c0, c1, ..., and converted by SQL.

    Attributes
    ----------
    path : the file, in UTF-8
    names : those of the header
    separator : between fields
    options : CsvOptions
    """

    path: Path
    names: tuple[str, ...]
    separator: str
    options: CsvOptions

    @property
    def _markers(self) -> tuple[list[str], list[str]]:
        """Missing-value markers that DuckDB reads as null, and others: with separators, or not for all columns."""
        markers = text_markers(self.options.missing)
        if self.options.literal or self.options.copies:
            return [""], list(markers)
        special = [text for text in markers if self.separator in text or '"' in text]
        return [text for text in markers if text not in special], special

    @property
    def source(self) -> str:
        """SQL that reads all columns as text."""
        columns = ", ".join(f"c{i}: 'VARCHAR'" for i in range(len(self.names)))
        settings = f"auto_detect=false, header=true, quote='\"', escape='\"', strict_mode=true, columns={{{columns}}}"
        dialect = f"delim={quote_text(self.separator)}, nullstr={quote_list(self._markers[0])}"
        return f"read_csv({quote_text(str(self.path))}, {settings}, {dialect})"

    def text(self, i: int) -> str:
        """Return the SQL of the text of a column, null where it marks a missing value."""
        markers = self._markers[1]
        if not markers or self.names[i] in self.options.literal:
            return f"c{i}"
        # No IN: DuckDB makes a join of it, which changes the order of rows.
        return f"case when list_contains({quote_list(markers)}, c{i}) then null else c{i} end"

    def infer_types(
        self, connection: duckdb.DuckDBPyConnection, needed: ColumnFilter, n_rows: int | None
    ) -> dict[int, str]:
        """Return the types of the columns that are needed, from the first rows or (None) from all."""
        candidates = {kind: test for kind, test in CANDIDATES.items() if kind != "COMMA" or self.separator == ";"}
        places = [i for i, name in enumerate(self.names) if name and needed(name)]
        tests = ["count(*)"]
        for c in map(self.text, places):
            holds = [f"bool_and({test.format(c=c)}) filter ({c} is not null)" for test in candidates.values()]
            tests += [f"count({c})", *holds]
        limit = "" if n_rows is None else f" limit {n_rows}"
        _, *found = connection.execute(f"select {', '.join(tests)} from (from {self.source}{limit})").fetchall()[0]
        types, width = {}, 1 + len(candidates)
        for k, i in enumerate(places):
            n_values, *holds = found[k * width : (k + 1) * width]
            fitting = [kind for kind, all_hold in zip(candidates, holds, strict=True) if all_hold]
            text = self.names[i] in self.options.text
            types[i] = "VARCHAR" if text else "NULL" if not n_values else next(iter(fitting), "VARCHAR")
        return types

    def select(self, types: Mapping[int, str]) -> str:
        """Return the query that reads columns with these types, and copies; others are null, known by name only."""
        numbers = number_markers(self.options.missing)
        columns = [
            f"{_convert(self.text(i), types.get(i, 'NULL'), numbers)} as {quote_name(name)}"
            for i, name in enumerate(self.names)
            if name
        ]
        copies = [(i, self.options.copies[name]) for i, name in enumerate(self.names) if name in self.options.copies]
        columns += [f"c{i} as {quote_name(name)}" for i, name in copies]
        return f"select {', '.join(columns)} from {self.source}"


def _convert(value: str, kind: str, numbers: Sequence[float]) -> str:
    """Return the SQL that converts text to a type, with numbers that mark missing values as null."""
    if kind == "NULL":
        return "null"
    if kind not in ("DOUBLE", "COMMA"):
        return f"cast({value} as {kind})"
    number = f"cast({value if kind == 'DOUBLE' else f'replace({value}, chr(44), chr(46))'} as DOUBLE)"
    return f"case when list_contains({[*numbers]}, {number}) then null else {number} end" if numbers else number


# How a file is written


def open_csv(path: Path, compression: str | None, folder: Path, options: CsvOptions) -> tuple[CsvFile, list[str]]:
    """Find out the encoding, the separator and the header of a CSV file; return it, and sentences for the user.

    What DuckDB does not read is decoded into the folder.
    """
    encoding, readable, notes = find_encoding(path, compression), path, []
    if encoding != "utf-8" or compression == "bz2":
        readable = folder / f"{path.name}.txt"
        with open_text(path, compression, encoding) as text, readable.open("w", encoding="utf-8", newline="") as out:
            shutil.copyfileobj(text, out, 2**20)
    if encoding != "utf-8":
        notes.append(f"{path} is not in UTF-8, and was read as {encoding}. Save it as UTF-8 if that is wrong.")
    with open_text(path, compression, encoding) as text:
        beginning = text.read(2**20)
    if not beginning:
        raise TableError(f"{path} cannot be read as CSV: it is empty.")
    separator, names = find_header(beginning)
    if not any(names):
        raise TableError(f"{path} has no header: the first line must name the columns.")
    refuse_same_names(path, [name for name in names if name])
    if "" in names:
        notes.append(
            f"{path} has a column without a name, like the row numbers that pandas writes, which is left out. Give it "
            "a name in the file to use it."
        )
    return CsvFile(readable, tuple(names), separator, options), notes


def find_header(beginning: str) -> tuple[str, list[str]]:
    """Return the field separator and the header: the most fields, if possible as many in the next line."""
    found = []
    for separator in SEPARATORS:
        lines = csv.reader(io.StringIO(beginning, newline=""), delimiter=separator)
        header, following = next(lines, []), next(lines, [])
        found.append((len(header) == len(following), len(header), separator, header))
    *_, separator, header = max(found, key=lambda one: one[:2])
    return separator, header


def find_encoding(path: Path, compression: str | None) -> str:
    """Return the encoding of a text file, by trial: UTF-8, UTF-16 with its mark, or that of Western Windows."""
    with pa.input_stream(str(path), compression=compression) as stream:
        block = stream.read(2**22)
        if block.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            return "utf-16"
        if b"\0" in block:
            raise TableError(f"{path} is no table: it has bytes that text has not.")
        decoders = {name: codecs.getincrementaldecoder(name)() for name in ("utf-8", "cp1252")}
        while block and decoders:
            decoders = {name: decoder for name, decoder in decoders.items() if _decodes(decoder, block)}
            block = stream.read(2**22)
    return next(iter(decoders), "latin-1")


def _decodes(decoder: codecs.IncrementalDecoder, block: bytes) -> bool:
    try:
        decoder.decode(block)
    except UnicodeDecodeError:
        return False
    return True


def open_text(path: Path, compression: str | None, encoding: str) -> IO[str]:
    """Open a text file, decompressed; a mark of UTF-8 at its beginning is skipped."""
    stream = pa.input_stream(str(path), compression=compression)
    return io.TextIOWrapper(stream, encoding="utf-8-sig" if encoding == "utf-8" else encoding, newline="")


# SQL


def quote_text(text: str) -> str:
    """Quote text for SQL."""
    return "'" + text.replace("'", "''") + "'"


def quote_name(name: str) -> str:
    """Quote the name of a column or table for SQL."""
    return '"' + name.replace('"', '""') + '"'


def quote_list(texts: Sequence[str]) -> str:
    """Quote a list of texts for SQL."""
    return f"[{', '.join(map(quote_text, texts))}]"
