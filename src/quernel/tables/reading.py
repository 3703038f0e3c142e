"""Data files as Arrow tables: CSV (also compressed), Parquet and Arrow, whole or batch by batch.

Everything is read without Arrow's threads, which may abort the interpreter when it exits.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import csv

from quernel.tables.arrow_casts import markers_to_null
from quernel.tables.columns import TextColumn
from quernel.tables.encoder import TableEncoder
from quernel.tables.frames import TableError
from quernel.tables.missing_values import number_markers, text_markers

CSV = (".csv", ".tsv", ".txt")
PARQUET = (".parquet", ".pq")
ARROW = (".arrow", ".feather", ".ipc")
COMPRESSED = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}
SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars", ",": "commas"}
FORMAT_NAMES = {CSV: "CSV", PARQUET: "Parquet", ARROW: "Arrow"}
# Bytes of a CSV file, or rows of another, that are read at a time.
BLOCK_BYTES = 8 * 2**20
BATCH_ROWS = 65_536
# Arrow's message on a failed conversion: the column, mostly the row and the value, and the type.
CONVERSION_ERROR = re.compile(
    r"In CSV column #(?P<column>\d+): (?:Row #(?P<row>\d+): )?.*?CSV conversion error to (?P<type>\w+)"
    r".*?(?:(?:invalid value|zone offset in) '(?P<value>.*?)'(?:$|\. If)|$)",
    re.DOTALL,
)
# What a value must be to be converted to these types.
TYPE_NAMES = {"double": "a number", "int64": "a whole number", "bool": "true or false"}


ArrowRows = TypeVar("ArrowRows", pa.Table, pa.RecordBatch)


@dataclass(frozen=True, eq=False)
class CsvOptions:
    """How CSV files are read.

    Parameters
    ----------
    types : dict
        Arrow types by column; those of other columns are inferred.
    missing : tuple of str
        Missing-value markers besides NA, NULL and the like.
    categories : dict
        By column, markers that are ordinary text there, because they were categories of the training data.
    missing_in_text : bool
        Whether markers count as missing in text columns, too; otherwise these keep them as text.
    """

    types: dict[str, pa.DataType] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    categories: dict[str, tuple[str, ...]] = field(default_factory=dict)
    missing_in_text: bool = True

    def convert_options(self, columns: Sequence[str] | None = None) -> csv.ConvertOptions:
        """Return Arrow's options to read these columns (None: all); `replace_missing_markers` does what it cannot."""
        return csv.ConvertOptions(
            column_types=self.types,
            null_values=text_markers(self.missing),
            strings_can_be_null=self.missing_in_text and not self.categories,
            include_columns=columns,
        )

    def replace_missing_markers(self, table: ArrowRows) -> ArrowRows:
        """Replace the markers that Arrow leaves by null: those of single columns, and -999.00 for the marker -999."""
        in_text = self.categories and self.missing_in_text
        numbers, texts = number_markers(self.missing), text_markers(self.missing) if in_text else ()
        if not numbers and not texts:
            return table
        markers = [[text for text in texts if text not in self.categories.get(name, ())] for name in table.schema.names]
        columns = [markers_to_null(column, each, numbers) for column, each in zip(table.columns, markers, strict=True)]
        return type(table).from_arrays(columns, schema=table.schema)


INFER_TYPES = CsvOptions()
# Types of columns in CSV files, text if not named here.
CSV_TYPES = {"number": pa.float64(), "boolean": pa.bool_()}


def encoder_csv_options(encoder: TableEncoder) -> CsvOptions:
    """Return how to read a CSV file for an encoder: every column with its type in the training data."""
    types = {column.name: CSV_TYPES.get(column.kind, pa.string()) for column in encoder.columns_}
    markers = {*text_markers(encoder.missing)}
    texts = [column for column in encoder.columns_ if isinstance(column, TextColumn)]
    categories = {column.name: tuple({*column.categories} & markers) for column in texts}
    return CsvOptions(types, tuple(encoder.missing), {name: those for name, those in categories.items() if those})


@dataclass(frozen=True, eq=False)
class Batches:
    """A table read in pieces.

    Attributes
    ----------
    schema : Arrow schema of every piece
    pieces : iterator of Arrow tables or record batches, valid as long as the file is open
    n_rows : number of rows, None where it is known only at the end (CSV and Arrow files)
    """

    schema: pa.Schema
    pieces: Iterator[pa.Table | pa.RecordBatch]
    n_rows: int | None


def split_extension(path: Path) -> tuple[str, str | None]:
    """Return the extension, which determines the format, and the compression: ('.csv', 'gzip') for x.csv.gz."""
    endings = [ending.lower() for ending in path.suffixes]
    compression = COMPRESSED.get(endings[-1]) if endings else None
    last = (endings[-2] if len(endings) > 1 else "") if compression else (endings[-1] if endings else "")
    if last not in (CSV if compression else (*CSV, *PARQUET, *ARROW)):
        known = ", ".join((*CSV, *PARQUET, *ARROW))
        raise TableError(
            f"{path} must end in one of {known}, so that its format is known; CSV files may be compressed "
            f"({', '.join(COMPRESSED)})."
        )
    return last, compression


def read(path: Path, options: CsvOptions = INFER_TYPES) -> pa.Table:
    """Read a whole file as an Arrow table; the options are for CSV files."""
    ending = _check_file(path)
    with translate_errors(path, ending):
        if ending in CSV:
            parsing = _parse_options(path)
            with open_stream(path) as stream:
                single = csv.ReadOptions(use_threads=False)
                table = csv.read_csv(stream, single, parsing, options.convert_options())
            table = options.replace_missing_markers(table)
        elif ending in PARQUET:
            with pq.ParquetFile(str(path), pre_buffer=False) as file:
                groups = [_read_row_group(file, path, g) for g in range(file.metadata.num_row_groups)]
                table = pa.concat_tables(groups) if groups else file.schema_arrow.empty_table()
        else:
            with _open_arrow(path) as reader:
                table = reader.read_all()
        check_names(path, table.column_names)
        return without_views(table)


@contextmanager
def in_batches(path: Path, needed: Sequence[str] | None = None, options: CsvOptions = INFER_TYPES) -> Iterator[Batches]:
    """Yield the needed columns (None: all) of a file in batches; the options are for CSV files.

    Columns that are missing are left out: the caller checks the schema.
    """
    ending = _check_file(path)
    with ExitStack() as files:
        with translate_errors(path, ending):
            if ending in CSV:
                batches = _csv_batches(files, path, needed, options)
            elif ending in PARQUET:
                batches = _parquet_batches(files, path, needed)
            else:
                batches = _arrow_batches(files, path)
        pieces = map(without_views, _guard(batches.pieces, path, ending, batches.schema.names))
        yield Batches(schema_without_views(batches.schema), pieces, batches.n_rows)


def _csv_batches(files: ExitStack, path: Path, needed: Sequence[str] | None, options: CsvOptions) -> Batches:
    parsing = _parse_options(path)
    blocks = csv.ReadOptions(use_threads=False, block_size=BLOCK_BYTES)
    inferred = CsvOptions(missing=options.missing).convert_options()
    with open_stream(path) as stream, csv.open_csv(stream, blocks, parsing, inferred) as first:
        schema = first.schema  # of all columns, as inferred from the beginning of the file
    check_names(path, schema.names)
    present = schema.names if needed is None else [name for name in needed if name in schema.names]
    integers = [
        name for name in present if options.types.get(name) == pa.float64() and schema.field(name).type == pa.int64()
    ]
    hexadecimal = dict.fromkeys(_find_hexadecimal(path, parsing, integers), pa.int64())
    options = replace(options, types=options.types | hexadecimal)
    for name in set(present) & set(options.types):
        place = schema.get_field_index(name)
        schema = schema.set(place, schema.field(place).with_type(options.types[name]))
    stream = files.enter_context(open_stream(path))
    with translate_errors(path, CSV[0], schema.names):  # the first block is read at once
        pieces = files.enter_context(csv.open_csv(stream, blocks, parsing, options.convert_options(present)))
    return Batches(schema, map(options.replace_missing_markers, pieces), None)


def _find_hexadecimal(path: Path, parsing: csv.ParseOptions, columns: list[str]) -> list[str]:
    """Return those integer columns that hold numbers like 0x1f at the beginning of a CSV file.

    Arrow reads these as integers, but not as float64.
    """
    if not columns:
        return []
    with open_stream(path) as stream:
        if b"0x" not in stream.read(BLOCK_BYTES).lower():
            return []
    blocks = csv.ReadOptions(use_threads=False, block_size=BLOCK_BYTES)
    as_text = csv.ConvertOptions(column_types=dict.fromkeys(columns, pa.string()), include_columns=columns)
    with open_stream(path) as stream, csv.open_csv(stream, blocks, parsing, as_text) as first:
        batch = first.read_next_batch()
    return [name for name in columns if pc.any(pc.match_substring(batch[name], "0x", ignore_case=True)).as_py()]


def _parquet_batches(files: ExitStack, path: Path, needed: Sequence[str] | None) -> Batches:
    file = files.enter_context(pq.ParquetFile(str(path), pre_buffer=False))
    known = file.schema_arrow.names
    check_names(path, known)
    present = known if needed is None else [name for name in needed if name in known]

    def pieces() -> Iterator[pa.RecordBatch]:
        for g in range(file.metadata.num_row_groups):
            batches = file.iter_batches(BATCH_ROWS, [g], present, use_threads=False)
            yield from _guard(batches, f"{path}, row group {g},", PARQUET[0])

    return Batches(file.schema_arrow, pieces(), file.metadata.num_rows)


def _read_row_group(file: pq.ParquetFile, path: Path, g: int) -> pa.Table:
    with translate_errors(f"{path}, row group {g},", PARQUET[0]):
        return file.read_row_group(g, use_threads=False)


def _arrow_batches(files: ExitStack, path: Path) -> Batches:
    reader = files.enter_context(_open_arrow(path))
    check_names(path, reader.schema.names)
    count = getattr(reader, "num_record_batches", None)
    pieces = iter(reader) if count is None else (reader.get_batch(i) for i in range(count))
    return Batches(reader.schema, pieces, None)


def _guard(
    pieces: Iterator[ArrowRows], path: Path | str, ending: str, names: Sequence[str] = ()
) -> Iterator[ArrowRows]:
    """Yield the pieces, translating the errors of reading them, but not those of their use."""
    while True:
        with translate_errors(path, ending, names):
            piece = next(pieces, None)
        if piece is None:
            return
        yield piece


def check_names(path: Path, names: Iterable[str]) -> None:
    """Raise if two columns have the same name."""
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise TableError(f"{path} has more than one column named {twice[0]!r}. Rename them, so that each is known.")


def _check_file(path: Path) -> str:
    """Return the extension of an existing file."""
    if not path.is_file():
        raise TableError(f"{path} is not a file. Give a CSV, Parquet or Arrow file.")
    return split_extension(path)[0]


def _parse_options(path: Path) -> csv.ParseOptions:
    """Return how a CSV file is split into fields. In a file of one column, an empty line is a missing value."""
    with open_stream(path) as stream:
        first = stream.read(BLOCK_BYTES).split(b"\n", 1)[0].strip(b"\r")
    separator = find_separator(path)
    _check_separator(path, first, separator)
    one_column = bool(first) and separator.encode() not in first
    return csv.ParseOptions(delimiter=separator, newlines_in_values=True, ignore_empty_lines=not one_column)


def _check_separator(path: Path, first: bytes, expected: str) -> None:
    """Raise if the first line has none of the expected separators, but another one."""
    other = next((mark for mark in SEPARATORS if mark.encode() in first), expected)
    if expected.encode() not in first and other != expected:
        raise TableError(
            f"{path} has its columns separated by {SEPARATORS[other]}, not by {SEPARATORS[expected]}. Write it with "
            "commas (and points in numbers), or with tabs and the ending .tsv."
        )


def find_separator(path: Path) -> str:
    """Return the field separator of a CSV file, by its extension."""
    return "\t" if split_extension(path)[0] == ".tsv" else ","


def open_stream(path: Path) -> pa.NativeFile:
    """Open a file for reading its bytes, decompressed."""
    return pa.input_stream(str(path), compression=split_extension(path)[1])


@contextmanager
def _open_arrow(path: Path) -> Iterator[pa.ipc.RecordBatchFileReader | pa.ipc.RecordBatchStreamReader]:
    """Open an Arrow file of the random-access format (Feather is the same), or of the streaming one."""
    with pa.OSFile(str(path)) as file:
        try:
            reader = pa.ipc.open_file(file)
        except pa.ArrowInvalid:
            file.seek(0)
            reader = pa.ipc.open_stream(file)
        with reader:
            yield reader


@contextmanager
def translate_errors(path: Path | str, ending: str, names: Sequence[str] = ()) -> Iterator[None]:
    """Translate Arrow's errors into one line that names the file, or the place in it, and the column.

    `names` are those of all columns.
    """
    try:
        yield
    except UnicodeDecodeError as error:
        raise TableError(f"{path} holds text that is not UTF-8. Save it in that encoding.") from error
    except (pa.ArrowException, OSError) as error:
        kind = next(name for endings, name in FORMAT_NAMES.items() if ending in endings)
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        failed = CONVERSION_ERROR.search(str(error))
        if failed is not None and int(failed["column"]) < len(names) and failed["type"] in TYPE_NAMES:
            # Arrow counts the header, and fields may hold line breaks: this is no line of the file.
            row = f" (row {int(failed['row']) - 1:,} below the header)" if failed["row"] else ""
            reason = (
                f"column {names[int(failed['column'])]!r} holds {failed['value']!r}{row}, where "
                f"{TYPE_NAMES[failed['type']]} is needed. Leave the field empty if there is none"
            )
        raise TableError(f"{path} cannot be read as {kind}: {reason.rstrip('.')}.") from error


# String and binary views, as polars writes them, cast to types that all Arrow functions accept.


def schema_without_views(schema: pa.Schema) -> pa.Schema:
    """Return the schema with views replaced by large strings and binaries."""
    fields = [field.with_type(_without_view(field.type)) for field in schema]
    return schema if [field.type for field in fields] == schema.types else pa.schema(fields)


def without_views(table: ArrowRows) -> ArrowRows:
    """Return an Arrow table or batch with views cast to large strings and binaries."""
    schema = schema_without_views(table.schema)
    if schema is table.schema or schema == table.schema:
        return table
    columns = [_cast(column, kind) for column, kind in zip(table.columns, schema.types, strict=True)]
    return type(table).from_arrays(columns, schema=schema)


def _without_view(kind: pa.DataType) -> pa.DataType:
    name = str(kind)  # earlier versions of Arrow have no functions that recognise views
    if name == "string_view":
        return pa.large_string()
    if name == "binary_view":
        return pa.large_binary()
    if pa.types.is_dictionary(kind):
        return pa.dictionary(kind.index_type, _without_view(kind.value_type), kind.ordered)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        inner = kind.value_field.with_type(_without_view(kind.value_type))
        return pa.list_(inner) if pa.types.is_list(kind) else pa.large_list(inner)
    return kind


def _cast(column: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    """Cast a column, also a dictionary of views, which Arrow does not cast."""
    if column.type == kind:
        return column
    if isinstance(column, pa.ChunkedArray):
        return pa.chunked_array([_cast(chunk, kind) for chunk in column.chunks], kind)
    if pa.types.is_dictionary(kind):
        return pa.DictionaryArray.from_arrays(
            column.indices, column.dictionary.cast(kind.value_type), ordered=kind.ordered
        )
    return column.cast(kind)
