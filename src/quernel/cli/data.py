"""Inputs and outputs of the commands: training data, in memory or streamed, and checks of the paths to be written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pyarrow as pa

from quernel._files import check_writable
from quernel._validation import LARGEST, SMALLEST
from quernel.cli.console import note, working
from quernel.data import DaskRows, memory_budget
from quernel.estimators.warm_start import read_checkpoint
from quernel.report.formatting import format_count
from quernel.tables import TableError
from quernel.tables.arrow_casts import column_kind
from quernel.tables.column_stats import MAX_CATEGORIES
from quernel.tables.dask_tables import DaskTable, connect, dask_rows
from quernel.tables.multi_file import find_files, find_unused_markers, is_data_file, read
from quernel.tables.parquet_table import ParquetTable, copy_to_parquet, estimate_bytes, open_parquet
from quernel.tables.reading import CSV, PARQUET, split_extension
from quernel.tables.streaming_training import AnyTrainingData, prepare_streamed
from quernel.tables.training_data import ReadOptions, TrainingData, prepare

# Fewer rows with a target are an error.
MIN_ROWS = 20
# How the data were read, as a sentence for the summary of a fit.
READ_MODES = {
    "streamed": "The data did not fit in memory and were streamed from the files.",
    "dask": "The data were read and held by the workers of the cluster.",
}
# Encoded columns per input column, at most: a date gives a trend, three cycles (sine and cosine) and a missing-value
# indicator; text gives one column per category; a type without an encoding none.
WIDTHS = {"date": 8, "time": 4, "text": MAX_CATEGORIES + 2, None: 0}
USUAL_WIDTH = 2
# Memory per byte of a CSV or Arrow file, as a table and as encoded columns.
MEMORY_PER_BYTE = 3


@contextmanager
def load_training_data(
    data: Path, options: ReadOptions, max_memory: int | None, dask: str | None = None
) -> Iterator[tuple[pa.Table | None, AnyTrainingData]]:
    """Yield the Arrow table (None unless it is in memory) and the encoded training data, valid within the context.

    Parameters
    ----------
    data : Path
        A file, a folder or a pattern.
    options : ReadOptions
    max_memory : int or None
        Bytes that the data may take; larger files are streamed. None is half of the free memory.
    dask : str or None
        Address of a Dask scheduler whose workers read the files, or "local".
    """
    if options.missing and not any(split_extension(path)[0] in CSV for path in find_files(data)):
        raise ValueError(
            f"--missing is for CSV files: {data} is in a format that marks missing values itself. Leave it out."
        )
    with _open_streamed(data, options, max_memory, dask) as parts:
        if parts is None:
            table = read(data, options.csv_options(), options.uses)
            _check_not_empty(len(table), data)
            yield table, _check_training(prepare(table, options), data, options)
            return
        _check_not_empty(parts.n_rows, data)
        with nullcontext() if dask is None else connect(dask) as client:
            with working(f"Learning the encoding of {parts.n_rows:,} rows"):
                if client is None:
                    training = prepare_streamed(parts, options)
                else:
                    training = prepare_streamed(DaskTable(parts, client), options, dask_rows)
            yield None, _check_training(training, data, options)


@contextmanager
def _open_streamed(
    data: Path, options: ReadOptions, max_memory: int | None, dask: str | None
) -> Iterator[ParquetTable | None]:
    """Yield the files as a table to be streamed, if they may not fit in memory or a cluster reads them; else None.

    CSV and Arrow files are first copied to Parquet, in a temporary folder.
    """
    files, budget = find_files(data), memory_budget(max_memory)
    if all(path.is_file() and split_extension(path)[0] in PARQUET for path in files):
        table = open_parquet(data, needed=options.uses)
        widths = [WIDTHS.get(column_kind(field.type), USUAL_WIDTH) for field in table.schema]
        size = table.n_bytes + 8.0 * table.n_rows * sum(widths)  # of the table and its encoded columns, from above
        yield table if dask is not None or size > budget else None
        return
    if dask is not None:
        raise TableError(
            f"--dask needs Parquet files, and {files[0]} is none. Convert it first, for example by "
            "polars.scan_csv(...).sink_parquet(...), or leave --dask out to stream it on this machine."
        )
    if MEMORY_PER_BYTE * sum(estimate_bytes(path) for path in files if path.is_file()) <= budget:
        yield None
        return
    with ExitStack() as stack:
        with working(f"Copying {data}, which may not fit in memory, to Parquet for streaming"):
            table = stack.enter_context(copy_to_parquet(files, options.csv_options(), options.uses))
        yield table


def _check_not_empty(n_rows: int, data: Path) -> None:
    if n_rows == 0:
        raise TableError(f"{data} has no rows: there is nothing to learn from.")


def _check_training(training: AnyTrainingData, data: Path, options: ReadOptions) -> AnyTrainingData:
    """Raise if the target cannot be learnt from; add a note for each --missing marker that occurs in no file."""
    if training.n_rows < MIN_ROWS:
        raise TableError(f"{data} has {training.n_rows} rows with a target; at least {MIN_ROWS} are needed.")
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
    unused = find_unused_markers(find_files(data), options.missing)
    notes = [f"The --missing marker {text!r} occurs in no field of {data}: check its spelling." for text in unused]
    return replace(training, notes=(*training.notes, *notes))


def print_training(training: AnyTrainingData) -> None:
    """Print notes on the training data, and how many rows were dropped for lack of a target."""
    for sentence in training.notes:
        note(sentence)
    if training.dropped:
        those = f", {training.infinite:,} of them with an infinite one" if training.infinite else ""
        are = "is" if training.dropped == 1 else "are"
        note(f"{format_count(training.dropped, 'row')} without a target {are} left out{those}.")


def read_mode(training: AnyTrainingData) -> str:
    """Return "whole" for data in memory, or a key of READ_MODES."""
    if isinstance(training, TrainingData):
        return "whole"
    return "dask" if isinstance(training.rows, DaskRows) else "streamed"


# Outputs: no command may overwrite its own input, not even with --force.


def check_outputs(outputs: Mapping[str, Path | None], data: Path, model: Path | None = None) -> None:
    """Raise, before any work, if an output is an input, would become one, or is named twice.

    `outputs` maps options to paths; `data` and `model` are the inputs.
    """
    named = {option: path for option, path in outputs.items() if path is not None}
    inputs = {_identity(path): path for path in find_files(data) if path.exists()}
    for option, path in named.items():
        if not path.exists():
            _check_not_among_data(option, path, data)
            continue
        if _identity(path) in inputs:
            of = "" if inputs[_identity(path)] == data else f", one of {data}"
            raise ValueError(
                f"{option} {path} is the input data{of}: it would be lost. Choose another name for the output."
            )
        if model is not None and model.exists() and _identity(path) == _identity(model):
            raise ValueError(
                f"{option} {path} is the input model: it would be lost. Choose another name for the output."
            )
    for (one, path), (other, again) in combinations(named.items(), 2):
        if path.resolve() == again.resolve():
            raise ValueError(f"{one} and {other} name the same file, {again}. Give each a name of its own.")


def check_new_files(paths: Sequence[Path | None], *, force: bool) -> None:
    """Raise, before any work, if a file cannot be written, or exists already and --force is not given."""
    for path in paths:
        if path is not None:
            check_writable(path, overwrite=force, remedy="--force")


def check_checkpoint(path: Path | None) -> None:
    """Raise, before any work, if the path cannot be written or is a file other than a checkpoint."""
    if path is None:
        return
    check_writable(path, overwrite=True)
    if path.exists():
        try:
            read_checkpoint(path)
        except ValueError as error:
            raise ValueError(
                f"--checkpoint {path} is a file, but not a checkpoint of a fit. Choose another name."
            ) from error


def check_folder(out: Path) -> None:
    """Create the folder of --out; raise, before any work, if that is impossible."""
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file, not a folder. Choose another --out.")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"The folder {out} cannot be created: {error.strerror}. Choose another --out.") from error


def _check_not_among_data(option: str, path: Path, data: Path) -> None:
    """Raise if the output would be read as data by the next command on the same folder or pattern."""
    if data.is_file() or not is_data_file(path):
        return
    place, among = path.resolve(), data.resolve()
    if among in place.parents if data.is_dir() else place.match(str(among)):
        raise ValueError(
            f"{option} {path} would be one of the files of {data}, and read as data by the next command. Write it to "
            "another folder."
        )


def _identity(path: Path) -> tuple[int, int]:
    """Identify a file by device and inode, the same for all paths and links to it."""
    found = path.stat()
    return found.st_dev, found.st_ino
