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

    `gaps_in_text`: these words are gaps in columns of text, too, instead of text.
    """

    types: dict[str, Any] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    gaps_in_text: bool = True

    def gaps(self) -> list[str]:
        """All words that stand for gaps."""
        from pyarrow import csv

        return [*csv.ConvertOptions().null_values, *self.missing]

    def options(self, **more: Any) -> Any:
        """The same for Arrow."""
        from pyarrow import csv

        return csv.ConvertOptions(
            column_types=self.types, null_values=self.gaps(), strings_can_be_null=self.gaps_in_text, **more
        )


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

            _check_separator(path, ending, compression)
            with _stream(path, compression) as stream:
                options = csv.ReadOptions(use_threads=False)
                table = csv.read_csv(stream, options, _parsing(ending), how.options())
        elif ending in PARQUET:
            import pyarrow.parquet as pq

            with pq.ParquetFile(str(path), pre_buffer=False) as file:
                groups = [_row_group(file, path, g) for g in range(file.metadata.num_row_groups)]
                table = pa.concat_tables(groups) if groups else file.schema_arrow.empty_table()
        else:
            with _arrow_reader(path) as reader:
                table = reader.read_all()
        check_names(path, table.column_names)
    return table


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
        yield replace(batches, pieces=_guarded(batches.pieces, path, ending, batches.schema.names))


def _csv_batches(
    files: ExitStack,
    path: Path,
    ending: str,
    compression: str | None,
    needed: Sequence[str] | None,
    how: CsvReading,
) -> Batches:
    from pyarrow import csv

    _check_separator(path, ending, compression)
    options, parsing = csv.ReadOptions(use_threads=False, block_size=BLOCK_BYTES), _parsing(ending)
    guessed = CsvReading(missing=how.missing).options()
    with _stream(path, compression) as stream, csv.open_csv(stream, options, parsing, guessed) as first:
        schema = first.schema  # of all columns, as they look at the beginning of the file
    check_names(path, schema.names)
    present = schema.names if needed is None else [name for name in needed if name in schema.names]
    for name in set(present) & set(how.types):
        place = schema.get_field_index(name)
        schema = schema.set(place, schema.field(place).with_type(how.types[name]))
    convert = how.options(include_columns=present)
    stream = files.enter_context(_stream(path, compression))
    with complaints(path, ending, schema.names):  # the first piece is read at once
        pieces = files.enter_context(csv.open_csv(stream, options, parsing, convert))
    return Batches(schema, iter(pieces), None)


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


def _check_separator(path: Path, ending: str, compression: str | None) -> None:
    """A first line with none of the separators that are meant and some of another was written with those."""
    with _stream(path, compression) as stream:
        first = stream.read(BLOCK_BYTES).split(b"\n", 1)[0]
    meant = _separator(ending)
    other = next((mark for mark in SEPARATORS if mark.encode() in first), meant)
    if meant.encode() not in first and other != meant:
        raise TableError(
            f"{path} has its columns separated by {SEPARATORS[other]}, not by {SEPARATORS[meant]}. Write it with "
            "commas (and points in numbers), or with tabs and the ending .tsv."
        )


def _separator(ending: str) -> str:
    return "\t" if ending == ".tsv" else ","


def _parsing(ending: str) -> Any:
    from pyarrow import csv

    return csv.ParseOptions(delimiter=_separator(ending), newlines_in_values=True)


def _stream(path: Path, compression: str | None) -> Any:
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
