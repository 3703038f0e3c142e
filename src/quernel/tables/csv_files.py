"""CSV files for DuckDB: encoding, separator and header are found here, and the types of columns inferred by queries.

Every column is read as text and converted by SQL. So a type is inferred from all rows where the first ones mislead, and
a file has the same types in every locale: DuckDB's own guesses would read 3/4/2020 as a date, and T as true.
"""

from __future__ import annotations

import codecs
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING

import pyarrow as pa

from quernel.tables.columns import TextColumn
from quernel.tables.encoder import TableEncoder
from quernel.tables.frames import TableError
from quernel.tables.missing_values import equivalent_spellings, number_markers, text_markers

if TYPE_CHECKING:
    import duckdb

SEPARATORS = (",", ";", "\t", "|")
# Rows from whose text the types of the columns of a CSV file are inferred first, before all rows are.
SNIFFED_ROWS = 20_480
# Type of a column of a CSV file by its kind, where a model knows it; text if not named here.
CSV_TYPES = {"number": "DOUBLE", "boolean": "BOOLEAN", "date": "TIMESTAMP", "time": "TIME"}
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
NAMES_OF_TYPES = {"DOUBLE": "a number", "BOOLEAN": "true or false", "TIMESTAMP": "a date", "TIME": "a time of day"}


@dataclass(frozen=True)
class CsvOptions:
    """How CSV files are read.

    Parameters
    ----------
    missing : tuple of str
        Missing-value markers besides NA, NULL and the like.
    text : tuple of str
        Columns that are text, whatever they look like.
    kinds : dict or None
        Where a model knows its columns: the kind of each one that is read. None infers the types of all columns.
    categories : dict
        With `kinds`: by column, markers that are ordinary text there, because they were categories in training.
    copies : dict
        With `kinds`: columns that are copied as text, unchanged, by the name of the copy.
    """

    missing: tuple[str, ...] = ()
    text: tuple[str, ...] = ()
    kinds: Mapping[str, str] | None = None
    categories: Mapping[str, Sequence[str]] = field(default_factory=dict)
    copies: Mapping[str, str] = field(default_factory=dict)


INFER_TYPES = CsvOptions()


def model_csv_options(
    encoder: TableEncoder, copies: Mapping[str, str] | None = None, target: str | None = None
) -> CsvOptions:
    """Return how to read CSV files for a model: every column with its kind in training, and the target as numbers."""
    markers = {*text_markers(encoder.missing)}
    kinds = {column.name: column.kind for column in encoder.columns_} | ({} if target is None else {target: "number"})
    kinds |= {one.name: "text" for one in encoder.columns_ if getattr(one, "order", "year first") != "year first"}
    texts = [column for column in encoder.columns_ if isinstance(column, TextColumn)]
    categories = {column.name: tuple({*column.categories} & markers) for column in texts}
    return CsvOptions(tuple(encoder.missing), (), kinds, categories, copies or {})


@dataclass(frozen=True)
class CsvFile:
    """A CSV file: its columns are read as text c0, c1, ..., and converted by SQL.

    Attributes
    ----------
    path : the file, in UTF-8
    names : those of the header
    separator : between fields
    markers : text that is read as null, besides empty text
    """

    path: Path
    names: tuple[str, ...]
    separator: str
    markers: Sequence[str]

    @property
    def source(self) -> str:
        """SQL that reads all columns as text."""
        columns = ", ".join(f"c{i}: 'VARCHAR'" for i in range(len(self.names)))
        settings = f"auto_detect=false, header=true, quote='\"', escape='\"', strict_mode=true, columns={{{columns}}}"
        special = [text for text in self.markers if self.separator in text or '"' in text]  # DuckDB takes no such ones
        plain = [text for text in self.markers if text not in special]
        dialect = f"delim={quote_text(self.separator)}, nullstr={quote_list(['', *plain])}"
        source = f"read_csv({quote_text(str(self.path))}, {settings}, {dialect})"
        if not special:
            return source
        values = [f"{_without_markers(f'c{i}', special)} as c{i}" for i in range(len(self.names))]
        return f"(select {', '.join(values)} from {source})"

    def select(self, columns: Sequence[str]) -> str:
        """Return the query that reads these columns."""
        return f"select {', '.join(columns)} from {self.source}"

    def inferred_columns(self, types: Sequence[str], options: CsvOptions) -> list[str]:
        """Return the SQL of every column that has a name, given the types of all."""
        numbers = number_markers(options.missing)
        return [
            f"{_convert(f'c{i}', 'VARCHAR' if name in options.text else kind, numbers)} as {quote_name(name)}"
            for i, (name, kind) in enumerate(zip(self.names, types, strict=True))
            if name
        ]

    def known_columns(self, options: CsvOptions) -> list[str]:
        """Return the SQL of the columns whose kind is known, and of copies; others are null."""
        assert options.kinds is not None
        numbers = number_markers(options.missing)
        values = self.known_values(options).items()
        found = [f"{_convert(value, kind, numbers)} as {quote_name(name)}" for name, (value, kind) in values]
        copies = [(i, options.copies[name]) for i, name in enumerate(self.names) if name in options.copies]
        found += [f"c{i} as {quote_name(name)}" for i, name in copies]
        # The others are known by name only, for messages.
        return found + [f"null as {quote_name(name)}" for name in self.names if name and name not in options.kinds]

    def known_values(self, options: CsvOptions) -> dict[str, tuple[str, str]]:
        """Return, by column whose kind is known, the SQL of its text without missing-value markers, and its type."""
        found, kinds = {}, options.kinds or {}
        for i, name in enumerate(self.names):
            if name in kinds:
                ordinary = options.categories.get(name, ())
                markers = [marker for marker in text_markers(options.missing) if marker not in ordinary]
                value = _without_markers(f"c{i}", markers)
                kind = CSV_TYPES.get(kinds[name], "VARCHAR")
                if kind == "DOUBLE":  # booleans are numbers, too
                    comma = f"replace({value}, ',', '.')" if self.separator == ";" else value
                    booleans = f"when lower(c{i}) = 'true' then '1' when lower(c{i}) = 'false' then '0'"
                    hexadecimal = f"when c{i} like '0x%' then cast(try_cast(c{i} as bigint) as varchar)"
                    value = f"case {booleans} {hexadecimal} else {comma} end"
                found[name] = value, kind
        return found


def _without_markers(value: str, markers: Sequence[str]) -> str:
    """Return the SQL of text, null where it is a missing-value marker."""
    # No IN: DuckDB makes a join of it, which changes the order of rows.
    return f"case when list_contains({quote_list(markers)}, {value}) then null else {value} end"


def _convert(value: str, kind: str, numbers: Sequence[float]) -> str:
    """Return the SQL that converts text to a type, with numbers that mark missing values as null."""
    if kind == "NULL":
        return "null"
    if kind not in ("DOUBLE", "COMMA"):
        return f"cast({value} as {kind})"
    number = f"cast({value if kind == 'DOUBLE' else f'replace({value}, chr(44), chr(46))'} as DOUBLE)"
    return f"case when list_contains({[*numbers]}, {number}) then null else {number} end" if numbers else number


def infer_types(connection: duckdb.DuckDBPyConnection, file: CsvFile, n_rows: int | None) -> list[str]:
    """Return the types of all columns of a CSV file, from its first rows or (None) from all."""
    candidates = {kind: test for kind, test in CANDIDATES.items() if kind != "COMMA" or file.separator == ";"}
    tests = [
        f"count(c{i}), "
        + ", ".join(f"bool_and({test.format(c=f'c{i}')}) filter (c{i} is not null)" for test in candidates.values())
        for i in range(len(file.names))
    ]
    limit = "" if n_rows is None else f" limit {n_rows}"
    found = iter(connection.execute(f"select {', '.join(tests)} from (from {file.source}{limit})").fetchall()[0])
    types = []
    for _ in file.names:
        n_values, holds = next(found), [next(found) for _ in candidates]
        types.append(next((kind for kind, all_hold in zip(candidates, holds, strict=True) if all_hold), "VARCHAR"))
        types[-1] = types[-1] if n_values else "NULL"
    return types


def find_markers(connection: duckdb.DuckDBPyConnection, file: CsvFile, missing: Sequence[str]) -> set[str]:
    """Return which of these missing-value markers occur in some field of a CSV file."""
    tests = []
    for marker in missing:
        spellings, numbers = quote_list(equivalent_spellings(marker)), number_markers([marker])
        columns = [f"c{i}" for i in range(len(file.names))]
        found = [f"coalesce(list_contains({spellings}, {c}), false)" for c in columns]
        found += [f"coalesce(try_cast({c} as double) = {number!r}, false)" for c in columns for number in numbers]
        tests.append(f"bool_or({' or '.join(found)})")
    query = f"select {', '.join(tests)} from {replace(file, markers=()).source}"
    row = connection.execute(query).fetchall()[0] if tests else ()
    return {marker for marker, occurs in zip(missing, row, strict=True) if occurs}


def describe_failed_cast(connection: duckdb.DuckDBPyConnection, file: CsvFile, options: CsvOptions) -> str:
    """Say which column of known kind holds text that cannot be converted, and what is needed instead."""
    for name, (value, kind) in file.known_values(options).items():
        rows = f"select {value} as value, row_number() over () as row from {file.source}"
        failed = f"value is not null and try_cast(value as {kind}) is null"
        found = connection.execute(f"select value, row from ({rows}) where {failed} order by row limit 1").fetchall()
        if found:
            text, row = found[0]
            place = f"(row {row:,} below the header)"
            what = f"column {name!r} holds {text!r} {place}, where {NAMES_OF_TYPES[kind]} is needed"
            return f"{what}. Leave the field empty if there is none"
    raise AssertionError("some text cannot be converted")


def find_separator(connection: duckdb.DuckDBPyConnection, path: Path, beginning: str) -> str:
    """Return the field separator of a CSV file: DuckDB's guess, or else the most frequent one of the header."""
    import duckdb

    header = beginning.split("\n", 1)[0]
    try:
        found = connection.execute(f"select Delimiter from sniff_csv({quote_text(str(path))}, header=true)").fetchall()
    except duckdb.Error:
        found = [("",)]
    if found[0][0] and found[0][0] in header:
        return str(found[0][0])
    return max(SEPARATORS, key=header.count)  # the comma, if there is none


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
