"""Tables written piece by piece, in the format that the ending of a file says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from quernel.tables.reading import ARROW, CSV, ending_of


@contextmanager
def table_writer(part: Path, out: Path) -> Iterator[Callable[[Any], None]]:
    """A function that writes tables to `part`, one after the other, in the format of the ending of `out`."""
    import pyarrow as pa

    ending, compression = ending_of(out)
    with ExitStack() as files:
        stream = files.enter_context(pa.output_stream(str(part), compression=compression))
        opened: list[Any] = []

        def write(table: Any) -> None:
            if not opened:
                opened.append(files.enter_context(open_writer(stream, ending, table.schema)))
            opened[0].write_table(table)

        yield write


def open_writer(stream: Any, ending: str, schema: Any) -> Any:
    """Arrow's writer of tables with this schema."""
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
