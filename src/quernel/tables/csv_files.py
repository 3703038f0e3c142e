"""CSV files: encoding, separator and header are found here, and so are the types of columns; Arrow reads the rows.

The types are those of all rows. A file is read with the types of its first block, and again with another type for a
column of which a later value does not fit. They are the same in every locale: 3/4/2020 and T are text.
"""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as arrow_csv

from quernel.data.parquet import ColumnFilter
from quernel.tables.columns import Markers, TextColumn
from quernel.tables.encoder import TableEncoder
from quernel.tables.frames import TableError

SEPARATORS = (",", ";", "\t", "|")
# Bytes of a file that are read at a time, and are a row group of the copy; types are inferred from the first of them.
BLOCK = 2**24
# What a column may be, in this order: from each type on to the next, as values do not fit.
TYPES = (
    pa.null(), pa.float64(), pa.bool_(), pa.time64("us"), pa.date32(), pa.timestamp("us"), pa.timestamp("ns"),
    pa.timestamp("us", "UTC"), pa.timestamp("ns", "UTC"), pa.string(),
)  # fmt: skip
# Wider types than Arrow infers from some values; others hold all values as they are.
WIDER = {pa.int64(): pa.float64(), pa.time32("s"): pa.time64("us"), pa.binary(): pa.string()} | {
    pa.timestamp(unit, zone): pa.timestamp("us", zone) for unit in ("s", "ns") for zone in (None, "UTC")
}
# Bytes that Windows-1252 does not have.
NOT_WINDOWS = (b"\x81", b"\x8d", b"\x8f", b"\x90", b"\x9d")
# Arrow's message on a value that does not fit the type of its column.
MISFIT = re.compile(r"In CSV column #(\d+): .*CSV conversion error", re.DOTALL)


@dataclass(frozen=True)
class CsvOptions:
    """How CSV files are read."""

    missing: tuple[str, ...] = ()  # missing-value markers besides NA, NULL and the like
    text: tuple[str, ...] = ()  # columns that are text, whatever they look like
    literal: bool = False  # whether text keeps its missing-value markers: a model knows which were categories


INFER_TYPES = CsvOptions()


def model_csv_options(encoder: TableEncoder, kept: Iterable[str] = ()) -> CsvOptions:
    """Return how to read CSV files for a model: what was text in training is text, as are columns that are kept."""
    texts = [column.name for column in encoder.columns_ if isinstance(column, TextColumn)]
    return CsvOptions(tuple(encoder.missing), (*texts, *kept), literal=True)


def copy_csv(
    path: Path,
    compression: str | None,
    options: CsvOptions,
    needed: ColumnFilter,
    write: Callable[[pa.Schema, Iterable[pa.RecordBatch]], Any],
) -> list[str]:
    """Hand schema and batches of a CSV file to a function, again if types turn out to be others.

    Columns that are not needed are not in the batches. Returns sentences for the user.
    """
    encoding, notes = _find_encoding(path, compression), []
    separator, names = _find_header(path, compression, encoding)
    used = [name for name in names if name and needed(name)]
    if len({*used}) < len(used):
        twice = next(name for name in used if used.count(name) > 1)
        raise TableError(f"{path} has more than one column named {twice!r}. Rename them, so that each is known.")
    if encoding != "utf-8":
        notes.append(f"{path} is not in UTF-8, and was read as {encoding}. Save it as UTF-8 if that is wrong.")
    if "" in names:
        notes.append(
            f"{path} has a column without a name, like the row numbers that pandas writes, which is left out. Give it "
            "a name in the file to use it."
        )

    def read(types: dict[str, pa.DataType], decimal_point: str) -> Any:
        return arrow_csv.open_csv(
            pa.input_stream(str(path), compression=compression),
            arrow_csv.ReadOptions(use_threads=False, block_size=BLOCK, encoding=encoding),
            arrow_csv.ParseOptions(delimiter=separator, newlines_in_values=True, ignore_empty_lines=len(names) > 1),
            arrow_csv.ConvertOptions(
                column_types=types,
                null_values=[*Markers(options.missing).texts],
                strings_can_be_null=not options.literal,
                include_columns=used or names[:1],
                decimal_point=decimal_point,
            ),
        )

    texts = {name: pa.string() for name in used if name in options.text}
    points = (".", ",") if separator == ";" else (".",)
    found = [[WIDER.get(kind, kind) for kind in read(texts, point).schema.types] for point in points]
    numeric = [kinds.count(pa.float64()) for kinds in found]
    best = numeric.index(max(numeric))  # a decimal comma only where it makes more columns numbers
    types = {**dict(zip(used, found[best], strict=False)), **texts}
    while True:
        try:
            write(pa.schema([(name, types.get(name, pa.null())) for name in names if name]), read(types, points[best]))
            return notes
        except pa.ArrowInvalid as error:
            misfit = MISFIT.match(str(error))
            name = names[int(misfit[1])] if misfit else ""
            if types.get(name, TYPES[-1]) == TYPES[-1]:
                raise
            types[name] = TYPES[TYPES.index(types[name]) + 1]


def _find_header(path: Path, compression: str | None, encoding: str) -> tuple[str, list[str]]:
    """Return the field separator and the header: the most fields, if possible as many in the next line."""
    stream = pa.input_stream(str(path), compression=compression)
    with io.TextIOWrapper(stream, encoding="utf-8-sig" if encoding == "utf-8" else encoding, newline="") as text:
        beginning = text.read(2**20)
    found = []
    for separator in SEPARATORS:
        lines = csv.reader(io.StringIO(beginning, newline=""), delimiter=separator)
        header, following = next(lines, []), next(lines, [])
        found.append((len(header) == len(following), len(header), separator, header))
    *_, separator, header = max(found, key=lambda one: one[:2])
    if not any(header):
        raise TableError(f"{path} has no header: the first line must name the columns.")
    return separator, header


def _find_encoding(path: Path, compression: str | None) -> str:
    """Return the encoding of a text file, by trial: UTF-8, UTF-16 with its mark, or that of Western Windows.

    Raise if it is no text, or has a quote that does not end.
    """
    decoder, is_utf8, is_windows, n_quotes = codecs.getincrementaldecoder("utf-8")(), True, True, 0
    with pa.input_stream(str(path), compression=compression) as stream:
        block = stream.read(BLOCK)
        if block.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            return "utf-16"
        if not block:
            raise TableError(f"{path} cannot be read as CSV: it is empty.")
        while block:
            if b"\0" in block:
                raise TableError(f"{path} is no table: it has bytes that text has not.")
            try:
                decoder.decode(block)
            except UnicodeDecodeError:
                is_utf8 = False
            is_windows &= not any(byte in block for byte in NOT_WINDOWS)
            n_quotes += block.count(b'"')
            block = stream.read(BLOCK)
    if n_quotes % 2:
        raise TableError(f"{path} cannot be read as CSV: it has a quote that does not end.")
    return "utf-8" if is_utf8 else "cp1252" if is_windows else "latin-1"
