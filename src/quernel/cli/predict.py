"""`quernel predict`: predict quantiles for every row of a data file, batch by batch.

Columns named by `--keep` are copied to the output; those of CSV files as text, unchanged.
"""

from __future__ import annotations

import io
import json
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Annotated, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq
import typer
from pyarrow import csv
from rich.markup import escape

from quernel._files import write_atomically
from quernel._validation import check_share
from quernel.cli.console import console, counting, note, parse_levels, parse_numbers, split_list
from quernel.cli.data import Source, check_new_files, check_outputs
from quernel.cli.options import DATA, QUERY, flag
from quernel.conformal.table_model import TableModel, UnseenCategories
from quernel.data.parquet import ParquetTable
from quernel.estimators import ExtrapolationWarning, KernelQuantileRegressor
from quernel.persistence import load
from quernel.report.formatting import format_count
from quernel.tables import TableEncoder, TableError
from quernel.tables.csv_files import CsvOptions, model_csv_options
from quernel.tables.files import file_format
from quernel.tables.frames import suggest_name

TableWriter: TypeAlias = csv.CSVWriter | pa.ipc.RecordBatchFileWriter | pq.ParquetWriter


def predict(
    model: Annotated[Path, typer.Argument(help="Model file written by `quernel fit` or `quernel tune`.")],
    data: Annotated[Path | None, typer.Argument(help=DATA)] = None,
    *,
    out: Annotated[
        Path, typer.Option(help="File for the predictions; the extension (.csv, .parquet, ...) sets the format.")
    ],
    query: Annotated[str | None, typer.Option(help=QUERY)] = None,
    quantiles: Annotated[
        str | None,
        typer.Option(
            help="Levels to predict, any of a tabular model, otherwise between the lowest and the highest fitted one; "
            "those of the fit by default."
        ),
    ] = None,
    interval: Annotated[
        str | None,
        typer.Option(
            help="Coverages of central prediction intervals to predict, such as 0.9 or 0.5,0.8,0.9; with --conformal "
            "they are calibrated, and the one of the fit is the default."
        ),
    ] = None,
    band: Annotated[
        float | None,
        typer.Option(
            help="Confidence level, such as 0.95, of bands for the fitted quantile curves, at each row by itself; the "
            "model needs `quernel fit --inference`."
        ),
    ] = None,
    keep: Annotated[
        str | None, typer.Option(help="Columns of the data to copy to the output, separated by commas.")
    ] = None,
    force: Annotated[bool, flag("--force", "Overwrite an existing file.")] = False,
    as_json: Annotated[bool, flag("--json", "Print JSON instead of a sentence.")] = False,
) -> None:
    """Predict quantiles for every row of a file, in order. Large files are processed in batches."""
    source = Source(data, query)
    check_output_format(out)
    check_outputs({"--out": out}, source, model)
    check_new_files([out], force=force)
    fitted = load_table_model(model)
    levels = fitted.quantiles_.tolist() if quantiles is None else parse_levels(quantiles)
    coverages = _parse_coverages(interval, fitted)
    _check_band(band, fitted)
    names = list(dict.fromkeys(split_list(keep or "")))
    kept = PassthroughColumns(names, source, out, as_text=query is None and bool(source.csv_files()))
    predictor = _Predictor(fitted, levels, coverages, band, kept)
    with kept.open_source(fitted.encoder) as table:
        predictor.check_columns(table.schema)
        for sentence in table.notes:
            note(sentence)
        with write_atomically(out, overwrite=force) as part, table_writer(part, out) as write:
            predictor.predict(table, write)
    predictor.print_notes()
    if as_json:
        result = {
            "out": str(out),
            "rows": predictor.rows,
            "rows_outside": predictor.outside,
            "quantiles": levels,
            "intervals": coverages,
            "band": band,
            "columns": [*kept.names, *predictor.names],
        }
        typer.echo(json.dumps(result))
    else:
        shown = ", ".join(f"{100 * one:g}%" for one in coverages)
        bounds = f" and {'its' if len(coverages) == 1 else 'the'} {shown} interval{'s'[: len(coverages) > 1]}"
        console.print(
            f"{format_count(predictor.rows, 'row')}, {format_count(len(levels), 'quantile')} of "
            f"{escape(repr(fitted.target))}{bounds if coverages else ''}: [bold]{escape(str(out))}[/]"
        )


def _parse_coverages(text: str | None, fitted: TableModel) -> list[float]:
    """Return the coverages of the intervals to predict: those of --interval, or that of the calibration."""
    if text is None:
        return [] if fitted.interval is None else [float(fitted.interval.coverage_)]
    coverages = list(dict.fromkeys(parse_numbers("--interval", text, "0.5,0.9")))
    if not coverages:
        raise ValueError(f"--interval must be one or more coverages, such as 0.9; got {text!r}.")
    for one in coverages:
        check_share("--interval", one)
    low, high = fitted.quantiles_.min(), fitted.quantiles_.max()
    widest = round(1 - 2 * max(low, 1 - high), 12)
    if isinstance(fitted.model, KernelQuantileRegressor) and fitted.interval is None and max(coverages) > widest:
        raise ValueError(
            f"--interval {max(coverages):g} is wider than the fitted levels, {low:g} to {high:g}. Fit more extreme "
            "ones, or fit with --estimator tabular, which predicts any level."
        )
    return coverages


def _check_band(band: float | None, fitted: TableModel) -> None:
    """Raise unless --band is a confidence level, and the model has bands."""
    if band is None:
        return
    check_share("--band", band)
    if getattr(fitted.model, "inference_", None) is None:
        raise ValueError(
            "--band needs a kernel model with the covariance of its curves. Fit it with quernel fit --estimator kernel "
            "--inference."
        )


def check_output_format(out: Path) -> None:
    """Raise unless the extension of the output is that of a format that is written."""
    if file_format(out)[0] == "database":
        raise TableError(f"{out} would be a database, which is not written. Choose .csv, .parquet or .arrow.")


def load_table_model(path: Path) -> TableModel:
    """Load a TableModel from a model file."""
    if not path.is_file():
        raise TableError(f"{path} is not a file. Give a model file written by `quernel fit`.")
    fitted = load(path)
    if not isinstance(fitted, TableModel):
        raise TableError(
            f"{path} holds a {type(fitted).__name__} of arrays, without the columns of a table. Fit models for files "
            "with quernel fit, or use this one from Python."
        )
    return fitted


@dataclass
class _Predictor:
    """Predicts batch by batch and counts rows: all, and those outside the training range.

    `beyond` has, for each encoded column, the number of rows outside its training range.
    """

    model: TableModel
    levels: list[float]
    coverages: list[float]
    band: float | None
    kept: PassthroughColumns
    rows: int = 0
    outside: int = 0
    beyond: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.unseen = UnseenCategories(self.model.encoder)
        self.names = [_column_name(level) for level in self.levels]
        ends = [""] if len(self.coverages) == 1 else [f"_{one:g}" for one in self.coverages]
        self.names += [f"{side}{end}" for end in ends for side in ("lower", "upper") if self.coverages]
        if self.band is not None:
            curves = [_column_name(level) for level in self.model.quantiles_.tolist()]
            self.names += [f"{curve}_{side}" for curve in curves for side in ("lower", "upper")]

    def check_columns(self, schema: pa.Schema) -> None:
        """Raise, before any work, if the data lack a column, or one cannot be copied."""
        data = self.kept.source
        self.model.encoder.check_frame(schema.empty_table(), of=str(data))
        for name in self.kept.names:
            if name not in schema.names:
                raise TableError(f"{data} has no column {name!r} to keep. {suggest_name(name, schema.names)}")
            if name in self.names:
                raise TableError(
                    f"The column {name!r} cannot be kept: the predictions have a column of that name. Rename it."
                )
        self.kept.check(schema.empty_table())

    def predict(self, data: ParquetTable, write: Callable[[pa.Table], None]) -> None:
        """Predict and write every batch."""
        columns = [*dict.fromkeys([*self.model.encoder.inputs, *self.kept.names])]
        with counting("Predicting", data.n_rows) as advance, warnings.catch_warnings():
            warnings.simplefilter("ignore", ExtrapolationWarning)  # counted instead
            for group, batch in data.iter_batches(columns):
                copies = self.kept.columns(batch)
                try:
                    table = pa.table([*copies.values(), *self._predict(batch)], names=[*copies, *self.names])
                except TableError as error:
                    raise TableError(f"{group.label}: {error}") from error
                with self.kept.explain_errors(copies):
                    write(table)
                advance(len(batch))
        if self.rows == 0:  # still write a file, with the right columns
            copies = self.kept.columns(data.schema.empty_table())
            empty = [pa.array([], pa.float64()) for _ in self.names]
            write(pa.table([*copies.values(), *empty], names=[*copies, *self.names]))

    def _predict(self, inputs: pa.Table) -> list[pa.Array]:
        """Return a column per level, then those of the interval, and count the rows of a batch."""
        self.unseen.check(inputs)
        X = self.model.encoder.transform(inputs)
        answers = [*self.model.predict_encoded(X, self.levels).T]
        if self.coverages:
            bounds = self.model.predict_interval_encoded(X, self.coverages)
            answers += [*bounds.transpose(2, 1, 0).reshape(-1, len(X))]
        if self.band is not None:
            answers += [*self.model.predict_band_encoded(X, self.band).reshape(len(X), -1).T]
        beyond = self.model.extrapolates(X)
        self.rows += len(X)
        self.outside += int(beyond.any(axis=1).sum())
        self.beyond.update(dict(zip(self.model.encoder.names, beyond.sum(axis=0).tolist(), strict=True)))
        return [pa.array(answer) for answer in answers]

    def print_notes(self) -> None:
        """Print notes on unknown categories and extrapolations."""
        for sentence in self.unseen.describe():
            note(sentence)
        if self.rows == 0:
            note(f"{self.kept.source} has no rows: {self.kept.out} has none either.")
        if self.outside:
            note(
                f"{self.outside:,} of {self.rows:,} rows are outside the range of the training data "
                f"({_top_columns(self.beyond)}): predictions there are extrapolations and less reliable."
            )


def _column_name(level: float) -> str:
    """Name the output column of a level, such as q0.05, with as many digits as distinguish levels near 1 from 1."""
    short = f"{level:g}"
    return f"q{short}" if abs(float(short) - level) < 1e-12 else f"q{level!r}"


def _top_columns(beyond: Counter[str]) -> str:
    """Name the three columns with the most rows outside the training range, with counts."""
    found = [f"{name}: {count:,}" for name, count in beyond.most_common(3) if count]
    return ", ".join(found) + (", ..." if sum(count > 0 for count in beyond.values()) > len(found) else "")


@contextmanager
def table_writer(part: Path, out: Path) -> Iterator[Callable[[pa.Table], None]]:
    """Yield a function that appends tables to the file `part`, in the format given by the extension of `out`."""
    _, compression = file_format(out)
    with ExitStack() as files:
        stream = files.enter_context(pa.output_stream(str(part), compression=compression))
        opened: list[TableWriter] = []

        def write(table: pa.Table) -> None:
            if not opened:
                opened.append(files.enter_context(open_writer(stream, out, table.schema)))
            opened[0].write_table(table)

        yield write


def open_writer(stream: IO[bytes] | pa.NativeFile, out: Path, schema: pa.Schema) -> TableWriter:
    """Open Arrow's writer for tables of this schema, in the format of the file `out`."""
    form, _ = file_format(out)
    if form == "CSV":
        tabs = ".tsv" in [ending.lower() for ending in out.suffixes[-2:]]
        return csv.CSVWriter(stream, schema, write_options=csv.WriteOptions(delimiter="\t" if tabs else ","))
    if form == "Arrow":
        return pa.ipc.new_file(stream, schema)
    return pq.ParquetWriter(stream, schema)


@dataclass(frozen=True, eq=False)
class PassthroughColumns:
    """The columns that `--keep` copies to the output.

    Attributes
    ----------
    names : names of the columns
    source : the data
    out : the output file
    as_text : whether the data are CSV files, whose copied columns are read as text: numbers would lose leading zeros
    """

    names: Sequence[str]
    source: Source
    out: Path
    as_text: bool

    def open_source(self, encoder: TableEncoder) -> AbstractContextManager[ParquetTable]:
        """Open the data, CSV files with the types of the model's columns."""
        if self.source.query is None:
            options = model_csv_options(encoder, self.names if self.as_text else ())
        else:
            options = CsvOptions(tuple(encoder.missing))
        return self.source.open(options, {*encoder.inputs, *self.names}.__contains__)

    def columns(self, batch: pa.Table) -> dict[str, pa.ChunkedArray]:
        """Return the copied columns by name, without dictionary encoding, which may differ between batches."""
        found = {name: batch[name] for name in self.names}
        return {
            name: column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
            for name, column in found.items()
        }

    def check(self, table: pa.Table) -> None:
        """Raise, before any work, if a column's type cannot be written."""
        self._check_writable(self.columns(table))

    @contextmanager
    def explain_errors(self, copies: Mapping[str, pa.ChunkedArray]) -> Iterator[None]:
        """Turn Arrow's write errors into one line that names the column."""
        try:
            yield
        except pa.ArrowException:
            self._check_writable(copies)
            raise

    def _check_writable(self, copies: Mapping[str, pa.ChunkedArray]) -> None:
        for name, copy in copies.items():
            alone = pa.table({name: copy})
            try:
                with open_writer(io.BytesIO(), self.out, alone.schema) as writer:
                    writer.write_table(alone)
            except pa.ArrowException as error:
                raise TableError(
                    f"Column {name!r} of {self.source} holds {copy.type}, which cannot be copied to {self.out}. Leave "
                    "it out of --keep."
                ) from error
