"""The data that commands fit to: in memory where they fit, read in parts where not, or by the workers of a cluster."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from quernel.cli.console import listed, note, working
from quernel.data import DaskRows, memory_budget
from quernel.estimators.validation import LARGEST, SMALLEST
from quernel.report.number_format import counted
from quernel.tables import StreamedTraining, TableError, Training, prepare, prepare_streamed, read
from quernel.tables.arrow_casts import kind_of
from quernel.tables.column_stats import MOST_LEVELS
from quernel.tables.csv_to_parquet import bytes_of, copied
from quernel.tables.dask_tables import ClusterTable, cluster_rows, connected
from quernel.tables.multi_file import Needed, files_of
from quernel.tables.parquet_row_groups import ParquetTable, open_parquet
from quernel.tables.reading import CSV, PARQUET, CsvReading, ending_of
from quernel.tables.unused_missing_markers import unmet

DATA = "CSV (also .gz, .bz2, .zst), Parquet or Arrow file; a quoted pattern such as 'trips/*.parquet'; or a folder."
COLUMNS = "Input columns, separated by commas, names with a comma in double quotes; all by default."
EXCLUDE = "Columns not to use, separated by commas."
MISSING = "Words that stand for gaps in CSV files, besides NA, NULL and the like, separated by commas: ?,unknown."
CATEGORICAL = "Columns of numbers that are names, such as zip codes, separated by commas; they are read as words."
MAX_MEMORY = (
    "Memory for the rows, such as 500MB; files that need more are read in parts. Half of what is free by default."
)
DASK = "Address of a Dask scheduler, such as tcp://host:8786, whose workers read Parquet files; 'local' starts one."
FEWEST_ROWS = 20
# How the rows were read, in words.
READ = {
    "streamed": "The rows were read from the files in parts, again in every sweep.",
    "dask": "The rows were read and kept by the workers of the cluster.",
}
UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "kib": 2**10, "mib": 2**20, "gib": 2**30}
# Numbers that a value becomes, at most: a date has its trend, three cycles and a flag, a word all levels.
WIDTHS = {"date": 8, "time": 4, "text": MOST_LEVELS + 2, None: 0}
USUAL_WIDTH = 2
# Bytes that one of a file of another format may take as a table, and as numbers.
IN_MEMORY = 3


def bytes_from(text: str | None) -> int | None:
    """The number of bytes in a text such as 500MB or 1.5 GiB; None for None."""
    if text is None:
        return None
    found = re.fullmatch(r"\s*([0-9.]+)\s*([a-z]*)\s*", text.lower())
    unit = UNITS.get(found[2]) if found else None
    try:
        size = round(float(found[1]) * unit) if found and unit else 0
    except ValueError:
        size = 0
    if size < 1:
        raise ValueError(f"--max-memory must be a size such as 500MB, 1.5GB or 2GiB; got {text!r}.")
    return size


@contextmanager
def load_training_data(
    data: Path,
    target: str,
    columns: str | None,
    exclude: str | None,
    *,
    max_memory: int | None,
    dask: str | None,
    groups: str | None = None,
    missing: str | None = None,
    categorical: str | None = None,
    **more: Any,
) -> Iterator[tuple[Any, Training | StreamedTraining]]:
    """The rows, ready to be fitted while the block lasts, and the Arrow table where it is in memory (else None)."""
    import pyarrow as pa

    if columns is not None and not listed(columns):
        raise ValueError(f"--columns names no column; got {columns!r}. Name some, or leave it out to use all.")
    words = listed(missing or "")
    if words and not any(ending_of(path)[0] in CSV for path in files_of(data)):
        raise ValueError(f"--missing is for CSV files: in {data} gaps are empty by themselves. Leave it out.")
    more |= {"columns": None if columns is None else listed(columns), "exclude": listed(exclude or "")}
    more |= {"missing": words, "categorical": listed(categorical or "")}
    if target in more["categorical"]:
        raise ValueError(f"--categorical names the target {target!r}, which must be a number. Leave it out there.")
    how = CsvReading(dict.fromkeys(more["categorical"], pa.string()), tuple(words))
    chosen = {target, groups, more.get("weights"), *(more["columns"] or ())}

    def needed(name: str) -> bool:
        return name not in more["exclude"] and (more["columns"] is None or name in chosen)

    with in_parts(data, max_memory, dask, how, needed) as parts:
        if parts is None:
            table = read(data, how, needed)
            _refuse_empty(len(table), data)
            training: Training | StreamedTraining = prepare(table, target, groups=groups, **more)
            _enough(training, data)
            yield table, _noted(training, data, words)
            return
        _refuse_empty(parts.n_rows, data)
        more["groups"] = groups
        with nullcontext() if dask is None else connected(dask) as client:
            with working(f"Learning the columns of {parts.n_rows:,} rows"):
                if client is None:
                    training = prepare_streamed(parts, target, **more)
                else:
                    training = prepare_streamed(ClusterTable(parts, client), target, make_rows=cluster_rows, **more)
            _enough(training, data)
            yield None, _noted(training, data, words)


def _noted(training: Any, data: Path, words: list[str]) -> Any:
    """The same with notes on words that were to stand for gaps and are in none of the files."""
    where = f"is in no field of {data}: it must be written as it is there"
    notes = [f"The word {word!r} of --missing {where}." for word in unmet(files_of(data), words)]
    return replace(training, notes=(*training.notes, *notes))


def print_training(training: Training | StreamedTraining) -> None:
    """What a person should know of the rows before they are used."""
    for sentence in training.notes:
        note(sentence)
    if training.dropped:
        those = f", {training.infinite:,} of them with an infinite one" if training.infinite else ""
        are = "is" if training.dropped == 1 else "are"
        note(f"{counted(training.dropped, 'row')} without a target {are} left out{those}.")


def how_read(training: Training | StreamedTraining) -> str:
    """ "whole" for rows in memory, or a word of READ."""
    if isinstance(training, Training):
        return "whole"
    return "dask" if isinstance(training.rows, DaskRows) else "streamed"


@contextmanager
def in_parts(
    data: Path, max_memory: int | None, dask: str | None, how: CsvReading, needed: Needed
) -> Iterator[ParquetTable | None]:
    """The files as a table that is read in parts, if it may not fit in memory or a cluster is to read it; else None."""
    files, room = files_of(data), memory_budget(max_memory)
    if all(path.is_file() and ending_of(path)[0] in PARQUET for path in files):
        table = open_parquet(data, needed=needed)
        yield table if dask is not None or _size(table) > room else None
        return
    if dask is not None:
        raise TableError(
            f"Workers of a cluster read Parquet files, and {files[0]} is none. Convert it first, for example by "
            "polars.scan_csv(...).sink_parquet(...), or leave --dask out: it is then read in parts."
        )
    size = IN_MEMORY * sum(bytes_of(path) for path in files if path.is_file())
    if size <= room:
        yield None
        return
    with ExitStack() as stack:
        with working(f"Copying {data}, which may not fit in memory, to Parquet, to read it in parts"):
            table = stack.enter_context(copied(files, how, needed))
        yield table


def _size(table: ParquetTable) -> float:
    """Bytes that the table and its numbers may take; where that is too many, they are counted before they are kept."""
    widths = [WIDTHS.get(kind_of(field.type), USUAL_WIDTH) for field in table.schema]
    return table.n_bytes + 8.0 * table.n_rows * sum(widths)


def _refuse_empty(n_rows: int, data: Path) -> None:
    if n_rows == 0:
        raise TableError(f"{data} has no rows: there is nothing to learn from.")


def _enough(training: Training | StreamedTraining, data: Path) -> None:
    if training.n_rows < FEWEST_ROWS:
        raise TableError(f"{data} has {training.n_rows} rows with a target; at least {FEWEST_ROWS} are needed.")
    low, high = training.target_range
    if low == high:
        raise TableError(
            f"The target is the same in all {training.n_rows:,} rows of {data} that have one: there is nothing to "
            "learn from. Choose another column."
        )
    if max(-low, high) > LARGEST or high - low < SMALLEST:
        what = (
            f"as large as {max(-low, high):.3g}" if high - low >= SMALLEST else f"that differ by {high - low:.3g} only"
        )
        raise TableError(
            f"The target of {data} has numbers {what}, too large or too small to reckon with. Rescale it to between "
            f"{SMALLEST:g} and {LARGEST:g}."
        )
