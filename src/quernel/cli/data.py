"""Training data for `fit`, `tune` and `plan`: in memory if it fits, else streamed from disk or read by Dask workers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from quernel.cli.console import note, split_list, working
from quernel.data import DaskRows, memory_budget
from quernel.estimators.validation import LARGEST, SMALLEST
from quernel.report.formatting import format_count
from quernel.tables import ReadOptions, StreamedTrainingData, TableError, TrainingData, prepare, prepare_streamed, read
from quernel.tables.arrow_casts import column_kind
from quernel.tables.column_stats import MAX_CATEGORIES
from quernel.tables.dask_tables import DaskTable, connect, dask_rows
from quernel.tables.multi_file import find_files, find_unused_markers
from quernel.tables.parquet_table import ParquetTable, copy_to_parquet, estimate_bytes, open_parquet
from quernel.tables.reading import CSV, PARQUET, split_extension

DATA = "CSV (also .gz, .bz2, .zst), Parquet or Arrow file; a quoted pattern such as 'trips/*.parquet'; or a folder."
COLUMNS = "Input columns, separated by commas (names with a comma in double quotes); all but the target by default."
EXCLUDE = "Columns to leave out, separated by commas."
MISSING = "Additional missing-value markers in CSV files, besides NA, NULL and the like, such as ?,unknown."
CATEGORICAL = "Columns to treat as categories although they hold numbers, such as zip codes, separated by commas."
MAX_MEMORY = (
    "Memory for the data, such as 500MB; larger files are streamed from disk. Half of the free memory by default."
)
DASK = "Address of a Dask scheduler, such as tcp://host:8786; its workers read Parquet files. 'local' starts one here."
# Fewer rows with a target are an error.
FEWEST_ROWS = 20
# How the data were read, as a sentence for the summary of a fit.
READ = {
    "streamed": "The data did not fit in memory and were streamed from the files.",
    "dask": "The data were read and held by the workers of the cluster.",
}
UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "kib": 2**10, "mib": 2**20, "gib": 2**30}
# Encoded columns per input column, at most: a date gives a trend, three cycles (sine and cosine) and a missing-value
# indicator; text gives one column per category.
WIDTHS = {"date": 8, "time": 4, "text": MAX_CATEGORIES + 2, None: 0}
USUAL_WIDTH = 2
# Memory per byte of a CSV or Arrow file, as a table and as numbers.
IN_MEMORY = 3


def parse_bytes(text: str | None) -> int | None:
    """Parse a size such as 500MB or 1.5 GiB into bytes; None stays None."""
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
    weights: str | None = None,
    log_target: bool = False,
) -> Iterator[tuple[Any, TrainingData | StreamedTrainingData]]:
    """Yield the Arrow table (None unless it is in memory) and the encoded training data, valid within the context.

    `columns`, `exclude`, `missing` and `categorical` are the comma-separated options of the same names.
    """
    if columns is not None and not split_list(columns):
        raise ValueError(f"--columns names no column; got {columns!r}. Name some, or leave it out to use all.")
    markers = split_list(missing or "")
    if markers and not any(split_extension(path)[0] in CSV for path in find_files(data)):
        raise ValueError(
            f"--missing is for CSV files: {data} is in a format that marks missing values itself. Leave it out."
        )
    options = ReadOptions(
        target, None if columns is None else split_list(columns), split_list(exclude or ""), weights, groups,
        log_target, markers, split_list(categorical or ""),
    )  # fmt: skip
    if target in options.categorical:
        raise ValueError(
            f"--categorical names the target {target!r}, which must be numeric. Remove it from --categorical."
        )
    with open_streamed(data, max_memory, dask, options) as parts:
        if parts is None:
            table = read(data, options.csv_options(), options.uses)
            _check_not_empty(len(table), data)
            training: TrainingData | StreamedTrainingData = prepare(table, options)
            _check_target(training, data)
            yield table, _note_unused_markers(training, data, markers)
            return
        _check_not_empty(parts.n_rows, data)
        with nullcontext() if dask is None else connect(dask) as client:
            with working(f"Learning the encoding of {parts.n_rows:,} rows"):
                if client is None:
                    training = prepare_streamed(parts, options)
                else:
                    training = prepare_streamed(DaskTable(parts, client), options, dask_rows)
            _check_target(training, data)
            yield None, _note_unused_markers(training, data, markers)


def _note_unused_markers(training: Any, data: Path, markers: list[str]) -> Any:
    """Add a note for each --missing marker that occurs in none of the files, usually a typo."""
    notes = [
        f"The --missing marker {marker!r} occurs in no field of {data}: check its spelling."
        for marker in find_unused_markers(find_files(data), markers)
    ]
    return replace(training, notes=(*training.notes, *notes))


def print_training(training: TrainingData | StreamedTrainingData) -> None:
    """Print notes on the training data, and how many rows were dropped for lack of a target."""
    for sentence in training.notes:
        note(sentence)
    if training.dropped:
        those = f", {training.infinite:,} of them with an infinite one" if training.infinite else ""
        are = "is" if training.dropped == 1 else "are"
        note(f"{format_count(training.dropped, 'row')} without a target {are} left out{those}.")


def read_mode(training: TrainingData | StreamedTrainingData) -> str:
    """Return "whole" for data in memory, or a key of READ."""
    if isinstance(training, TrainingData):
        return "whole"
    return "dask" if isinstance(training.rows, DaskRows) else "streamed"


@contextmanager
def open_streamed(
    data: Path, max_memory: int | None, dask: str | None, options: ReadOptions
) -> Iterator[ParquetTable | None]:
    """Yield the files as a table to be streamed, if they may not fit in memory or a cluster reads them; else None.

    CSV and Arrow files are first copied to Parquet, in a temporary folder.
    """
    files, budget = find_files(data), memory_budget(max_memory)
    if all(path.is_file() and split_extension(path)[0] in PARQUET for path in files):
        table = open_parquet(data, needed=options.uses)
        yield table if dask is not None or _estimate_bytes(table) > budget else None
        return
    if dask is not None:
        raise TableError(
            f"--dask needs Parquet files, and {files[0]} is none. Convert it first, for example by "
            "polars.scan_csv(...).sink_parquet(...), or leave --dask out to stream it on this machine."
        )
    size = IN_MEMORY * sum(estimate_bytes(path) for path in files if path.is_file())
    if size <= budget:
        yield None
        return
    with ExitStack() as stack:
        with working(f"Copying {data}, which may not fit in memory, to Parquet for streaming"):
            table = stack.enter_context(copy_to_parquet(files, options.csv_options(), options.uses))
        yield table


def _estimate_bytes(table: ParquetTable) -> float:
    """Estimate from above the bytes that the table and its encoded columns take in memory."""
    widths = [WIDTHS.get(column_kind(field.type), USUAL_WIDTH) for field in table.schema]
    return table.n_bytes + 8.0 * table.n_rows * sum(widths)


def _check_not_empty(n_rows: int, data: Path) -> None:
    if n_rows == 0:
        raise TableError(f"{data} has no rows: there is nothing to learn from.")


def _check_target(training: TrainingData | StreamedTrainingData, data: Path) -> None:
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
            f"The target of {data} has values {what}, outside the supported range. Rescale it to between "
            f"{SMALLEST:g} and {LARGEST:g}."
        )
