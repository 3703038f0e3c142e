"""Data files as Arrow tables: CSV (also compressed), Parquet and Arrow, whole or batch by batch.

Everything is read without Arrow's threads, which may abort the interpreter when it exits.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from quernel.tables.missing_values import gap_numbers, gap_words, with_gaps

CSV = (".csv", ".tsv", ".txt")
PARQUET = (".parquet", ".pq")
ARROW = (".arrow", ".feather", ".ipc")
COMPRESSED = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}
SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars", ",": "commas"}
NAMES = {CSV: "CSV", PARQUET: "Parquet", ARROW: "Arrow"}
# Bytes of a CSV file, or rows of another, that are read at a time.
BLOCK_BYTES = 8 * 2**20
BATCH_ROWS = 65_536
# A conversion that fails, as Arrow tells it: the column, mostly the row and the value, and what it was to become.
FAILED = re.compile(
    r"In CSV column #(?P<column>\d+): (?:Row #(?P<row>\d+): )?.*?CSV conversion error to (?P<type>\w+)"
    r".*?(?:(?:invalid value|zone offset in) '(?P<value>.*?)'(?:$|\. If)|$)",
    re.DOTALL,
)
MEANT = {"double": "a number", "int64": "a whole number", "bool": "true or false"}


class TableError(ValueError):
    """A table that cannot be read, or is not what is needed."""


@dataclass(frozen=True, eq=False)
class CsvReading:
    """How CSV files are read: as what some columns, and which words stand for gaps besides NA, NULL and their like.

    `words` are those of some columns that stand for themselves there. `gaps_in_text`: the others are gaps in columns of
    text, too, instead of text.
    """

    types: dict[str, Any] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    words: dict[str, tuple[str, ...]] = field(default_factory=dict)
    gaps_in_text: bool = True

    def options(self, **more: Any) -> Any:
        """The same for Arrow, as far as it can: `with_gaps` does the rest."""
        from pyarrow import csv

        return csv.ConvertOptions(
            column_types=self.types,
            null_values=gap_words(self.missing),
            strings_can_be_null=self.gaps_in_text and not self.words,
            **more,
        )

    def with_gaps(self, table: Any) -> Any:
        """A table, or a piece of one, with the gaps that Arrow does not know: one word means the same to it everywhere.

        Neither does it know that -999.00 is the -999 that stands for a gap.
        """
        in_text = self.words and self.gaps_in_text
        numbers, words = gap_numbers(self.missing), gap_words(self.missing) if in_text else ()
        if not numbers and not words:
            return table
        gaps = [[word for word in words if word not in self.words.get(name, ())] for name in table.schema.names]
        columns = [with_gaps(column, each, numbers) for column, each in zip(table.columns, gaps, strict=True)]
        return type(table).from_arrays(columns, schema=table.schema)


AS_IT_LOOKS = CsvReading()


@dataclass(frozen=True, eq=False)
class Batches:
    """A table that comes in pieces: its schema, the pieces, and how many rows there are, if that is known."""

    schema: Any
    pieces: Iterator[Any]
    n_rows: int | None


def ending_of(path: Path) -> tuple[str, str | None]:
    """The file's ending, which says its format, and how it is compressed; ('.csv', 'gzip') for x.csv.gz."""
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


def read(path: Path, how: CsvReading = AS_IT_LOOKS) -> Any:
    """The whole file as an Arrow table; a CSV file as `how` says."""
    import pyarrow as pa

    ending, compression = _checked(path)
    with complaints(path, ending):
        if ending in CSV:
            from pyarrow import csv

            parsing = _parsing(path, ending, compression)
            with opened_stream(path, compression) as stream:
                options = csv.ReadOptions(use_threads=False)
                table = how.with_gaps(csv.read_csv(stream, options, parsing, how.options()))
        elif ending in PARQUET:
            import pyarrow.parquet as pq

            with pq.ParquetFile(str(path), pre_buffer=False) as file:
                groups = [_row_group(file, path, g) for g in range(file.metadata.num_row_groups)]
                table = pa.concat_tables(groups) if groups else file.schema_arrow.empty_table()
        else:
            with _arrow_reader(path) as reader:
                table = reader.read_all()
        check_names(path, table.column_names)
        return without_views(table)


@contextmanager
def in_batches(path: Path, needed: Sequence[str] | None = None, how: CsvReading = AS_IT_LOOKS) -> Iterator[Batches]:
    """The needed columns (None: all) of a file, piece by piece; those of a CSV file are read as `how` says.

    Columns that are missing are left out: whoever needs them looks at the schema.
    """
    ending, compression = _checked(path)
    with ExitStack() as files:
        with complaints(path, ending):
            if ending in CSV:
                batches = _csv_batches(files, path, ending, compression, needed, how)
            elif ending in PARQUET:
                batches = _parquet_batches(files, path, needed)
            else:
                batches = _arrow_batches(files, path)
        pieces = map(without_views, _guarded(batches.pieces, path, ending, batches.schema.names))
        yield Batches(schema_without_views(batches.schema), pieces, batches.n_rows)


def _csv_batches(
    files: ExitStack,
    path: Path,
    ending: str,
    compression: str | None,
    needed: Sequence[str] | None,
    how: CsvReading,
) -> Batches:
    import pyarrow as pa
    from pyarrow import csv

    parsing = _parsing(path, ending, compression)
    options = csv.ReadOptions(use_threads=False, block_size=BLOCK_BYTES)
    guessed = CsvReading(missing=how.missing).options()
    with opened_stream(path, compression) as stream, csv.open_csv(stream, options, parsing, guessed) as first:
        schema = first.schema  # of all columns, as they look at the beginning of the file
    check_names(path, schema.names)
    present = schema.names if needed is None else [name for name in needed if name in schema.names]
    whole = [name for name in present if how.types.get(name) == pa.float64() and schema.field(name).type == pa.int64()]
    how = replace(how, types=how.types | dict.fromkeys(_hexadecimal(path, compression, parsing, whole), pa.int64()))
    for name in set(present) & set(how.types):
        place = schema.get_field_index(name)
        schema = schema.set(place, schema.field(place).with_type(how.types[name]))
    convert = how.options(include_columns=present)
    stream = files.enter_context(opened_stream(path, compression))
    with complaints(path, ending, schema.names):  # the first piece is read at once
        pieces = files.enter_context(csv.open_csv(stream, options, parsing, convert))
    return Batches(schema, map(how.with_gaps, pieces), None)


def _hexadecimal(path: Path, compression: str | None, parsing: Any, columns: list[str]) -> list[str]:
    """Those of some columns of whole numbers that have some like 0x1f at the beginning of a CSV file.

    So Arrow reads whole numbers, but no others.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import csv

    if not columns:
        return []
    with opened_stream(path, compression) as stream:
        if b"0x" not in stream.read(BLOCK_BYTES).lower():
            return []
    options = csv.ReadOptions(use_threads=False, block_size=BLOCK_BYTES)
    as_text = csv.ConvertOptions(column_types=dict.fromkeys(columns, pa.string()), include_columns=columns)
    with opened_stream(path, compression) as stream, csv.open_csv(stream, options, parsing, as_text) as first:
        piece = first.read_next_batch()
    return [name for name in columns if pc.any(pc.match_substring(piece[name], "0x", ignore_case=True)).as_py()]


def _parquet_batches(files: ExitStack, path: Path, needed: Sequence[str] | None) -> Batches:
    import pyarrow.parquet as pq

    file = files.enter_context(pq.ParquetFile(str(path), pre_buffer=False))
    check_names(path, file.schema_arrow.names)
    known = file.schema_arrow.names
    present = known if needed is None else [name for name in needed if name in known]

    def pieces() -> Iterator[Any]:
        for g in range(file.metadata.num_row_groups):
            batches = file.iter_batches(BATCH_ROWS, [g], present, use_threads=False)
            yield from _guarded(batches, f"{path}, row group {g},", PARQUET[0])

    return Batches(file.schema_arrow, pieces(), file.metadata.num_rows)


def _row_group(file: Any, path: Path, g: int) -> Any:
    with complaints(f"{path}, row group {g},", PARQUET[0]):
        return file.read_row_group(g, use_threads=False)


def _arrow_batches(files: ExitStack, path: Path) -> Batches:
    reader = files.enter_context(_arrow_reader(path))
    check_names(path, reader.schema.names)
    count = getattr(reader, "num_record_batches", None)
    pieces = iter(reader) if count is None else (reader.get_batch(i) for i in range(count))
    return Batches(reader.schema, pieces, None)


def _guarded(pieces: Iterator[Any], path: Path | str, ending: str, names: Sequence[str] = ()) -> Iterator[Any]:
    """The pieces, with complaints about what is read, not about what is done with it."""
    while True:
        with complaints(path, ending, names):
            piece = next(pieces, None)
        if piece is None:
            return
        yield piece


def check_names(path: Path, names: Iterable[str]) -> None:
    """Every column must have a name of its own."""
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise TableError(f"{path} has more than one column named {twice[0]!r}. Rename them, so that each is known.")


def nearest(name: str, known: Sequence[str]) -> str:
    """A hint: the name that was probably meant, or those that there are."""
    close = difflib.get_close_matches(name.lower(), [k.lower() for k in known], n=1, cutoff=0.5)
    if close:
        meant = next(k for k in known if k.lower() == close[0])
        quoted = f" In a list, put a name with a comma in quotes: '\"{meant}\"'." if "," in meant else ""
        return f"Did you mean {meant!r}?{quoted}"
    shown = ", ".join(known[:12]) + (f" and {len(known) - 12} more" if len(known) > 12 else "")
    return f"Its columns: {shown}."


def _checked(path: Path) -> tuple[str, str | None]:
    if not path.is_file():
        raise TableError(f"{path} is not a file. Give a CSV, Parquet or Arrow file.")
    return ending_of(path)


def _parsing(path: Path, ending: str, compression: str | None) -> Any:
    """How the file is cut into fields. Where there is one column, an empty line is a row with a gap."""
    from pyarrow import csv

    with opened_stream(path, compression) as stream:
        first = stream.read(BLOCK_BYTES).split(b"\n", 1)[0].strip(b"\r")
    meant = separator_of(ending)
    _check_separator(path, first, meant)
    one_column = bool(first) and meant.encode() not in first
    return csv.ParseOptions(delimiter=meant, newlines_in_values=True, ignore_empty_lines=not one_column)


def _check_separator(path: Path, first: bytes, meant: str) -> None:
    """A first line with none of the separators that are meant and some of another was written with those."""
    other = next((mark for mark in SEPARATORS if mark.encode() in first), meant)
    if meant.encode() not in first and other != meant:
        raise TableError(
            f"{path} has its columns separated by {SEPARATORS[other]}, not by {SEPARATORS[meant]}. Write it with "
            "commas (and points in numbers), or with tabs and the ending .tsv."
        )


def separator_of(ending: str) -> str:
    """What stands between the fields of a CSV file with this ending."""
    return "\t" if ending == ".tsv" else ","


def opened_stream(path: Path, compression: str | None) -> Any:
    """The bytes of a file, not compressed any more."""
    import pyarrow as pa

    return pa.input_stream(str(path), compression=compression)


@contextmanager
def _arrow_reader(path: Path) -> Iterator[Any]:
    """The random-access format (Feather is the same), or the streaming one."""
    import pyarrow as pa

    with pa.OSFile(str(path)) as file:
        try:
            reader = pa.ipc.open_file(file)
        except pa.ArrowInvalid:
            file.seek(0)
            reader = pa.ipc.open_stream(file)
        with reader:
            yield reader


@contextmanager
def complaints(path: Path | str, ending: str, names: Sequence[str] = ()) -> Iterator[None]:
    """Arrow's complaints as one line that names the file, or the place in it; `names` are those of all columns."""
    import pyarrow as pa

    try:
        yield
    except UnicodeDecodeError as error:
        raise TableError(f"{path} holds text that is not UTF-8. Save it in that encoding.") from error
    except (pa.ArrowException, OSError) as error:
        kind = next(name for endings, name in NAMES.items() if ending in endings)
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        failed = FAILED.search(str(error))
        if failed is not None and int(failed["column"]) < len(names) and failed["type"] in MEANT:
            # Arrow counts the header, and fields may hold line breaks: this is no line of the file.
            row = f" (row {int(failed['row']) - 1:,} below the header)" if failed["row"] else ""
            reason = (
                f"column {names[int(failed['column'])]!r} holds {failed['value']!r}{row}, where "
                f"{MEANT[failed['type']]} is needed. Leave the field empty if there is none"
            )
        raise TableError(f"{path} cannot be read as {kind}: {reason.rstrip('.')}.") from error


# String and binary views, as polars writes them, cast to types that all Arrow functions accept.


def schema_without_views(schema: Any) -> Any:
    """The schema of the same columns without views."""
    import pyarrow as pa

    fields = [field.with_type(_without_view(field.type)) for field in schema]
    return schema if [field.type for field in fields] == schema.types else pa.schema(fields)


def without_views(table: Any) -> Any:
    """An Arrow table, or a piece of one, without views."""
    schema = schema_without_views(table.schema)
    if schema is table.schema or schema == table.schema:
        return table
    columns = [_cast(column, kind) for column, kind in zip(table.columns, schema.types, strict=True)]
    return type(table).from_arrays(columns, schema=schema)


def _without_view(kind: Any) -> Any:
    import pyarrow as pa

    name = str(kind)  # earlier versions of Arrow have no functions that ask for views
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


def _cast(column: Any, kind: Any) -> Any:
    """The column as another type: Arrow does not cast dictionaries of views."""
    import pyarrow as pa

    if column.type == kind:
        return column
    if isinstance(column, pa.ChunkedArray):
        return pa.chunked_array([_cast(chunk, kind) for chunk in column.chunks], kind)
    if pa.types.is_dictionary(kind):
        return pa.DictionaryArray.from_arrays(
            column.indices, column.dictionary.cast(kind.value_type), ordered=kind.ordered
        )
    return column.cast(kind)
