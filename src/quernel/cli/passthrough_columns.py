"""Columns that `predict --keep` copies to its output; those of CSV files are copied as text, unchanged."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from quernel.tables import NumberColumn, TableEncoder, TableError
from quernel.tables.arrow_casts import column_kind, decode_dictionary, parse_text
from quernel.tables.multi_file import find_files
from quernel.tables.reading import ARROW, CSV, CsvOptions, split_extension


@contextmanager
def table_writer(part: Path, out: Path) -> Iterator[Callable[[Any], None]]:
    """Yield a function that appends tables to the file `part`, in the format given by the extension of `out`."""
    import pyarrow as pa

    ending, compression = split_extension(out)
    with ExitStack() as files:
        stream = files.enter_context(pa.output_stream(str(part), compression=compression))
        opened: list[Any] = []

        def write(table: Any) -> None:
            if not opened:
                opened.append(files.enter_context(open_writer(stream, ending, table.schema)))
            opened[0].write_table(table)

        yield write


def open_writer(stream: Any, ending: str, schema: Any) -> Any:
    """Open Arrow's writer for tables of this schema."""
    import pyarrow as pa

    if ending in CSV:
        from pyarrow import csv

        return csv.CSVWriter(
            stream, schema, write_options=csv.WriteOptions(delimiter="\t" if ending == ".tsv" else ",")
        )
    if ending in ARROW:
        return pa.ipc.new_file(stream, schema)
    import pyarrow.parquet as pq

    return pq.ParquetWriter(stream, schema)


@dataclass(frozen=True, eq=False)
class PassthroughColumns:
    """The columns to copy, the encoder of the model's inputs, the data and the output file.

    `as_text`: the data are CSV files, whose copied columns are read as text, since numbers would lose leading zeros.
    """

    names: Sequence[str]
    encoder: TableEncoder
    data: Path
    out: Path
    as_text: bool

    def csv_options(self) -> CsvOptions:
        """Return how to read CSV files: copied columns as text, in which missing-value markers stay."""
        import pyarrow as pa

        how = self.encoder.csv_options()
        if not self.as_text:
            return how
        return replace(how, types=how.types | dict.fromkeys(self.names, pa.string()), missing_in_text=False)

    def inputs(self, batch: Any) -> Any:
        """Convert a batch to what the encoder expects: missing values as null, numbers and booleans parsed."""
        import pyarrow.compute as pc

        if not self.as_text:
            return batch
        table = self.encoder.replace_missing_markers(batch)
        for column in self.encoder.columns:
            if isinstance(column, NumberColumn) and column_kind(table[column.name].type) == "text":
                text = pc.utf8_trim_whitespace(table[column.name])  # as Arrow does where it reads numbers itself
                values = parse_text(text, column.name, column.kind)
                table = table.set_column(table.schema.get_field_index(column.name), column.name, values)
        return table

    def columns(self, batch: Any) -> dict[str, Any]:
        """Return the copied columns by name, without dictionary encoding, which may differ between batches."""
        import pyarrow.compute as pc

        copies = {name: decode_dictionary(batch[name]) for name in self.names}
        if self.as_text:  # empty fields become null in formats that distinguish it from empty text
            copies = {name: pc.if_else(pc.equal(copy, ""), None, copy) for name, copy in copies.items()}
        return copies

    def check(self, table: Any) -> None:
        """Raise, before any work, if a column's type cannot be written."""
        self._refuse_unwritable(self.columns(table))

    @contextmanager
    def complaints(self, copies: Mapping[str, Any]) -> Iterator[None]:
        """Turn Arrow's write errors into one line that names the column."""
        import pyarrow as pa

        try:
            yield
        except pa.ArrowException:
            self._refuse_unwritable(copies)
            raise

    def _refuse_unwritable(self, copies: Mapping[str, Any]) -> None:
        import pyarrow as pa

        ending, _ = split_extension(self.out)
        for name, copy in copies.items():
            alone = pa.table({name: copy})
            try:
                with open_writer(io.BytesIO(), ending, alone.schema) as writer:
                    writer.write_table(alone)
            except pa.ArrowException as error:
                raise TableError(
                    f"Column {name!r} of {self.data} holds {copy.type}, which cannot be copied to {self.out}. Leave it "
                    "out of --keep, or write an .arrow file."
                ) from error


def select_passthrough(names: Sequence[str], encoder: TableEncoder, data: Path, out: Path) -> PassthroughColumns:
    """Return the columns to copy from these data."""
    as_text = bool(names) and any(split_extension(path)[0] in CSV for path in find_files(data))
    return PassthroughColumns(names, encoder, data, out, as_text)
