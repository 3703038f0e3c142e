"""Inputs and outputs of the commands: training data, in memory or streamed, and checks of the paths to be written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from quernel._files import check_writable
from quernel._validation import LARGEST, SMALLEST
from quernel.cli.console import note, working
from quernel.data import ArrayRows, DaskRows, memory_budget
from quernel.data.parquet import ColumnFilter, ParquetTable, any_column, is_data_file
from quernel.report.formatting import format_count
from quernel.solvers.result import read_checkpoint
from quernel.tables import TableError
from quernel.tables.csv_files import CsvOptions
from quernel.tables.files import DATA_ENDINGS, file_format, find_files, find_query_files, open_table
from quernel.tables.training_data import EncodedRows, ReadOptions, TrainingData, dask_rows, prepare

if TYPE_CHECKING:
    from distributed import Client

# Fewer rows with a target are an error.
MIN_ROWS = 20
# How the data were read, as a sentence for the summary of a fit.
READ_MODES = {
    "streamed": "The data did not fit in memory and were streamed from the files.",
    "dask": "The data were read and held by the workers of the cluster.",
}
# Bytes of files from which a command says that it reads them, and what compressed files count more than their size.
SLOW_BYTES, COMPRESSION_RATIO = 10**8, 6
# Dask: the address of a cluster to be started on this machine, and seconds in which a scheduler must answer.
LOCAL, TIMEOUT = "local", 5


@dataclass(frozen=True)
class Source:
    """Where a command reads a table: files, or a query over files or over a database.

    Attributes
    ----------
    data : Path or None, a file, a folder or a pattern
    query : str or None, one SELECT
    """

    data: Path | None
    query: str | None = None

    def __post_init__(self) -> None:
        if self.data is None and self.query is None:
            raise ValueError("Name a data file, or give a --query that names some in single quotes.")

    def __str__(self) -> str:
        return str(self.data) if self.query is None else "the result of --query"

    @property
    def name(self) -> str:
        """Short name, for reports."""
        return "a query" if self.data is None else self.data.name

    def files(self) -> list[Path]:
        """Return all files that are read."""
        found = [] if self.data is None else find_files(self.data)
        return [*found, *find_query_files(self.query or "")]

    def csv_files(self) -> list[Path]:
        """Return the CSV files among them, without those that the query reads by itself."""
        found = [] if self.data is None else find_files(self.data)
        return [path for path in found if file_format(path)[0] == "CSV"]

    def open(self, options: CsvOptions, needed: ColumnFilter = any_column) -> AbstractContextManager[ParquetTable]:
        """Open the table."""
        return open_table(self.data, query=self.query, options=options, needed=needed)

    def working(self, text: str) -> AbstractContextManager[None]:
        """Say what is being done, {} being the name of the data, if that may take a while."""
        files = [path for path in self.files() if path.is_file()]
        size = sum(path.stat().st_size * (COMPRESSION_RATIO if file_format(path)[1] else 1) for path in files)
        return working(text.format(self)) if size > SLOW_BYTES else nullcontext()

    def command(self) -> list[str]:
        """Return these arguments of a command."""
        return [
            *([] if self.data is None else [str(self.data)]),
            *([] if self.query is None else ["--query", self.query]),
        ]


@contextmanager
def load_training_data(
    source: Source, options: ReadOptions, max_memory: int | None, dask: str | None = None
) -> Iterator[tuple[pa.Table | None, TrainingData]]:
    """Yield the Arrow table (None unless it is in memory) and the encoded training data, valid within the context.

    Parameters
    ----------
    source : Source
    options : ReadOptions
    max_memory : int or None
        Bytes that the data may take; larger tables are streamed. None is half of the free memory.
    dask : str or None
        Address of a Dask scheduler whose workers read the files, or "local".
    """
    if options.missing and not source.csv_files():
        raise ValueError(
            f"--missing is for CSV files: {source} is in a format that marks missing values itself. Leave it out."
        )
    if dask is not None and (
        source.query is not None or any(file_format(path)[0] != "Parquet" for path in source.files())
    ):
        raise TableError(
            f"--dask needs Parquet files, and {source} is none. Convert it first, for example by "
            "polars.scan_csv(...).sink_parquet(...), or leave --dask out to stream it on this machine."
        )
    with ExitStack() as stack:
        with source.working("Reading {}"):
            table = stack.enter_context(source.open(options.csv_options(), options.uses))
        _check_not_empty(table.n_rows, source)
        client = None if dask is None else stack.enter_context(connect(dask))
        with source.working("Learning the encoding of {}"):
            training = prepare(table, options, EncodedRows if client is None else dask_rows)
        _check_training(training, source)
        if client is None and training.n_bytes <= memory_budget(max_memory):
            columns = [field.name for field in table.schema if options.uses(field.name)]
            yield table.read(columns), training.load()
        else:
            yield None, training


@contextmanager
def connect(address: str) -> Iterator[Client]:
    """Yield a client of the cluster at this address or, for "local", of one on this machine, closed at the end."""
    try:
        from distributed import Client
    except ImportError as error:
        raise ImportError("--dask needs Dask. Run: pip install 'dask[array,distributed]'") from error
    if address == LOCAL:
        with Client(host="127.0.0.1", processes=True, threads_per_worker=1, dashboard_address=None) as client:
            yield client
        return
    try:
        # A client that cannot connect would otherwise stay Dask's default one and break its later computations.
        client = Client(address, timeout=TIMEOUT, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        raise ConnectionError(
            f"No Dask scheduler answers at {address!r}. Give the address of a running one, such as "
            f"tcp://127.0.0.1:8786, or {LOCAL!r} to start one here."
        ) from error
    with client, client.as_current():
        yield client


def _check_not_empty(n_rows: int, source: Source) -> None:
    if n_rows == 0:
        raise TableError(f"{source} has no rows: there is nothing to learn from.")


def _check_training(training: TrainingData, source: Source) -> None:
    """Raise if the target cannot be learnt from."""
    if training.n_rows < MIN_ROWS:
        raise TableError(f"{source} has {training.n_rows} rows with a target; at least {MIN_ROWS} are needed.")
    low, high = training.target_range
    if low == high:
        raise TableError(
            f"The target is the same in all {training.n_rows:,} rows of {source} that have one: there is nothing to "
            "learn from. Choose another column."
        )
    if max(-low, high) > LARGEST or high - low < SMALLEST:
        what = (
            f"as large as {max(-low, high):.3g}" if high - low >= SMALLEST else f"that differ by {high - low:.3g} only"
        )
        raise TableError(
            f"The target of {source} has values {what}, outside the supported range. Rescale it to between "
            f"{SMALLEST:g} and {LARGEST:g}."
        )


def print_training(training: TrainingData) -> None:
    """Print notes on the training data, and how many rows were dropped for lack of a target."""
    for sentence in training.notes:
        note(sentence)
    if training.dropped:
        are = "is" if training.dropped == 1 else "are"
        note(f"{format_count(training.dropped, 'row')} without a target {are} left out.")


def read_mode(training: TrainingData) -> str:
    """Return "whole" for data in memory, or a key of READ_MODES."""
    if isinstance(training.rows, ArrayRows):
        return "whole"
    return "dask" if isinstance(training.rows, DaskRows) else "streamed"


# Outputs: no command may overwrite its own input, not even with --force.


def check_outputs(outputs: Mapping[str, Path | None], source: Source, model: Path | None = None) -> None:
    """Raise, before any work, if an output is an input, would become one, or is named twice.

    `outputs` maps options to paths; `source` and `model` are the inputs.
    """
    named = {option: path for option, path in outputs.items() if path is not None}
    inputs = {_identity(path): path for path in source.files() if path.exists()}
    for option, path in named.items():
        if not path.exists():
            _check_not_among_data(option, path, source.data)
            continue
        if _identity(path) in inputs:
            of = "" if inputs[_identity(path)] == source.data else f", one of {source}"
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


def check_report_path(out: Path | None, *, force: bool) -> None:
    """Raise, before any work, if the report cannot be written; None is no report."""
    if out is not None and out.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"The report {out} must end in .html.")
    check_new_files([out], force=force)


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


def _check_not_among_data(option: str, path: Path, data: Path | None) -> None:
    """Raise if the output would be read as data by the next command on the same folder or pattern."""
    if data is None or data.is_file() or not is_data_file(path, DATA_ENDINGS):
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
