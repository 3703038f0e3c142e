"""CSV files: encoding, separator and header are found here, and so are the types of columns; Arrow reads the rows.

The types are those of all rows. A file is read with the types of its first block, and again with another type for a
column of which a later value does not fit. They are the same in every locale: 3/4/2020 and T are text.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as arrow_csv

from quernel.data.parquet import ColumnFilter
from quernel.tables.columns import Markers, TextColumn
from quernel.tables.encoder import TableEncoder
from quernel.tables.frames import TableError

Writer = Callable[[pa.Schema, Iterable[pa.RecordBatch]], Any]
SEPARATORS = (",", ";", "\t", "|")
# What files are tried to be in: UTF-16 has a mark at its beginning, and any bytes are Latin-1.
ENCODINGS = ("utf-8", "utf-16", "cp1252", "latin-1")
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
    path: Path, compression: str | None, options: CsvOptions, needed: ColumnFilter, write: Writer
) -> list[str]:
    """Hand schema and batches of a CSV file to a function, again if types turn out to be others.

    Columns that are not needed are not in the batches. Returns sentences for the user.
    """
    encoding, beginning = _read_text(path, compression)
    separator, names = _find_header(beginning)
    used, notes = [name for name in names if name and needed(name)], list[str]()
    if not any(names):
        raise TableError(f"{path} has no header: the first line must name the columns.")
    if twice := [name for name in used if used.count(name) > 1]:
        raise TableError(f"{path} has more than one column named {twice[0]!r}. Rename them, so that each is known.")
    if encoding != "utf-8":
        notes.append(f"{path} is not in UTF-8, and was read as {encoding}. Save it as UTF-8 if that is wrong.")
    if "" in names:  # usually row numbers
        notes.append(f"{path} has a column without a name, which is left out. Give it a name in the file to use it.")

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
    schemas = {point: read(texts, point).schema for point in (".," if separator == ";" else ".")}
    # A decimal comma only where it makes more columns numbers.
    point = max(schemas, key=lambda point: schemas[point].types.count(pa.float64()))
    types = {one.name: WIDER.get(one.type, one.type) for one in schemas[point]}
    while True:
        try:
            write(pa.schema([(name, types.get(name, pa.null())) for name in names if name]), read(types, point))
            return notes
        except pa.ArrowInvalid as error:
            misfit = MISFIT.match(str(error))
            name = names[int(misfit[1])] if misfit else ""
            if types.get(name, TYPES[-1]) == TYPES[-1]:
                raise
            types[name] = TYPES[TYPES.index(types[name]) + 1]


def _find_header(beginning: str) -> tuple[str, list[str]]:
    """Return the field separator and the header: the most fields, if possible as many in the next line."""
    found = []
    for separator in SEPARATORS:
        lines = csv.reader(io.StringIO(beginning, newline=""), delimiter=separator)
        header, following = next(lines, []), next(lines, [])
        found.append((len(header) == len(following), len(header), separator, header))
    *_, separator, header = max(found, key=lambda one: one[:2])
    return separator, header


def _read_text(path: Path, compression: str | None) -> tuple[str, str]:
    """Return the encoding of a text file, the first that all of it can be in, and its beginning.

    Raise if it is no text, or has a quote that does not end.
    """
    fault = ""
    for encoding in ENCODINGS:
        stream = pa.input_stream(str(path), compression=compression)
        with suppress(UnicodeError), io.TextIOWrapper(stream, encoding, newline="") as text:
            beginning = text.read(BLOCK)
            n_quotes = beginning.count('"') + sum(block.count('"') for block in iter(partial(text.read, BLOCK), ""))
            fault = "it has a quote that does not end" if n_quotes % 2 else ""
            fault = "it has bytes that text has not" if "\0" in beginning else fault
            fault = fault if beginning else "it is empty"
            if not fault:
                return encoding, beginning[: 2**20].removeprefix("\ufeff")
            break
    raise TableError(f"{path} cannot be read as CSV: {fault}.")
