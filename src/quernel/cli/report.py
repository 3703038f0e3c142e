"""`quernel report`: evaluate a saved model on a data file and write an HTML report; also for `quernel fit --report`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
import pyarrow as pa
import typer
from numpy.typing import NDArray
from rich.markup import escape

from quernel._files import write_text_atomically
from quernel.cli.console import console, fitting, note, parse_bytes, working
from quernel.cli.data import MIN_ROWS, Source, check_outputs, check_report_path
from quernel.cli.options import MAX_MEMORY, QUERY, flag
from quernel.cli.predict import load_table_model
from quernel.conformal.table_model import TableModel, describe_unseen
from quernel.data import ArrayRows, memory_budget
from quernel.data.parquet import ParquetTable
from quernel.estimators import KernelQuantileRegressor
from quernel.plots.inputs import replace_missing_markers
from quernel.report import Evaluation, evaluate_by_refitting, evaluate_on, evaluate_streamed
from quernel.report.content import Page, compare_with, compute_page, summarize_page
from quernel.report.evaluation import check_comparable, check_target
from quernel.report.formatting import format_amount
from quernel.report.sections import render_page
from quernel.tables import TableError
from quernel.tables.csv_files import CsvOptions, model_csv_options
from quernel.tables.frames import suggest_name
from quernel.tables.training_data import (
    RowSample,
    TrainingData,
    choose_sample_size,
    is_numeric,
    read_numbers,
    sample_rows,
)
from quernel.theory import KernelGap

Array = NDArray[np.floating]

EVALUATION_DATA = "Data with the target, preferably rows not used for training: a file, a folder or a quoted pattern."
# Seed of the random sample of rows.
SEED = 0


def report(
    model: Annotated[Path, typer.Argument(help="Model file written by `quernel fit` or `quernel tune`.")],
    data: Annotated[Path | None, typer.Argument(help=EVALUATION_DATA)] = None,
    *,
    out: Annotated[Path, typer.Option(help="File for the report, such as report.html.")],
    query: Annotated[str | None, typer.Option(help=QUERY)] = None,
    kernel_gap: Annotated[
        bool,
        flag(
            "--kernel-gap",
            "Bound what random features cost compared with the exact kernel; DATA must be the training data.",
        ),
    ] = False,
    compare: Annotated[
        list[Path] | None,
        typer.Option(help="Another model of the same target to show beside it; may be given several times."),
    ] = None,
    time_ordered: Annotated[
        bool, flag("--time-ordered", "Rows are in time order: show coverage over time, and drift, without dates, too.")
    ] = False,
    max_memory: Annotated[str | None, typer.Option(help=MAX_MEMORY)] = None,
    force: Annotated[bool, flag("--force", "Overwrite an existing file.")] = False,
    as_json: Annotated[bool, flag("--json", "Print the numbers of the report as JSON.")] = False,
) -> None:
    """Evaluate a model on a data file and write a self-contained HTML report.

    Data that do not fit in memory are evaluated on a random sample of the rows.
    """
    source = Source(data, query)
    check_outputs({"--out": out}, source, model)
    check_report_path(out, force=force)
    models = {model.stem: load_table_model(model)}
    for path in compare or []:
        models[path.stem if path.stem not in models else str(path)] = load_table_model(path)
    check_comparable(models)
    fitted, others = models.pop(model.stem), models
    sample = _read_sample(fitted, source, memory_budget(parse_bytes(max_memory)), others)
    target = read_numbers(sample.table, fitted.target)
    finite = np.isfinite(target)
    if finite.sum() < MIN_ROWS:
        among = "" if sample.whole else f" among {len(finite):,} sampled"
        raise TableError(f"{source} has {finite.sum()} rows with a target{among}; at least {MIN_ROWS} are needed.")
    for sentence in describe_unseen(fitted.encoder, sample.table):
        note(sentence)
    y = check_target(fitted, target[finite])
    X = fitted.encoder.transform(sample.table.filter(finite))
    gap = _kernel_gap(fitted, X, y, source, whole=sample.whole) if kernel_gap else None
    with working(f"Evaluating the model on {finite.sum():,} rows"):
        out_of = None if sample.whole else sample.n_counted
        evaluation = evaluate_on(fitted, X, y, out_of, time_ordered=time_ordered)
        page = compute_page(
            fitted, sample.table, evaluation, data=source.name, model_file=model.name, sample=sample, kernel_gap=gap
        )
        page = compare_with(page, model.stem, others)
    write_report(render_page(page), out, force=force)
    if as_json:
        ends = ("lower", "upper", "similarity_bound")
        bracket = {} if gap is None else {"kernel_gap": {end: getattr(gap, end).tolist() for end in ends}}
        typer.echo(json.dumps({"report": str(out)} | summarize_page(page) | bracket))
        return
    if gap is not None:
        console.print(str(gap))
    print_evaluation(evaluation, out)


def _kernel_gap(fitted: TableModel, X: Array, y: Array, source: Source, *, whole: bool) -> KernelGap:
    """Bound what the random features cost against the exact kernel; X and y must be the training rows."""
    if not isinstance(fitted.model, KernelQuantileRegressor):
        raise TableError(
            "--kernel-gap bounds what random features cost, and this model, a kernel and forests, has none. Fit one "
            "with --estimator kernel, or leave --kernel-gap out."
        )
    if not whole:
        raise TableError(
            f"--kernel-gap compares every training row with every other, and {source} does not fit in memory. "
            "Raise --max-memory, or fit a model to a sample of the rows."
        )
    try:
        with fitting(f"Comparing the features of {len(y):,} rows with the exact kernel"):
            return fitted.model.kernel_gap(X, y)
    except ValueError as error:
        if "was fitted to" not in str(error):
            raise
        raise TableError(
            f"--kernel-gap needs the data that the model was fitted to, complete and without weights, and {source} is "
            "not that. A model with calibrated intervals was fitted to part of the rows: fit one without --conformal."
        ) from error


def _read_sample(fitted: TableModel, source: Source, allowed: float, others: Mapping[str, TableModel]) -> RowSample:
    """Read the inputs and the target: all rows or, if these exceed the allowed bytes, a random sample."""
    encoder, target = fitted.encoder, fitted.target
    inputs = list(dict.fromkeys([*encoder.inputs, *(name for one in others.values() for name in one.encoder.inputs)]))
    options = model_csv_options(encoder) if source.query is None else CsvOptions(tuple(encoder.missing))
    with source.working("Reading {}"), source.open(options, {*inputs, target}.__contains__) as table:
        for one in (fitted, *others.values()):
            _check_columns(one, table.schema, source)
        if not table.n_rows:
            raise TableError(f"{source} has no rows.")
        size = table.n_bytes + 8 * table.n_rows * len(encoder.names)
        limit = table.n_rows if size <= allowed else choose_sample_size(len(encoder.names), allowed)
        sample = sample_rows(table, inputs, target, limit, SEED, encoder.missing)
        return replace(sample, table=replace_missing_markers(encoder, sample.table, target))


def _check_columns(fitted: TableModel, schema: pa.Schema, source: Source) -> None:
    fitted.encoder.check_frame(schema.empty_table(), of=str(source))
    if fitted.target not in schema.names:
        raise TableError(
            f"{source} has no column {fitted.target!r}, the target, which the evaluation needs. "
            f"{suggest_name(fitted.target, schema.names)}"
        )
    kind = schema.field(fitted.target).type
    if not is_numeric(kind):
        raise TableError(f"The target {fitted.target!r} of {source} holds {kind}, not numbers.")


# Shared with `quernel fit --report`


def report_by_refitting(
    model: TableModel,
    table: pa.Table | None,
    training: TrainingData,
    *,
    seed: int,
    time_ordered: bool,
    data: str,
    model_file: str,
) -> Page:
    """Evaluate a model by refitting it without held-out training rows; return the contents of the report.

    Parameters
    ----------
    model : TableModel, fitted to all rows
    table : the training table if it is in memory, else None
    training : the same data, encoded
    seed : which rows are held out, and which are sampled from streamed data
    time_ordered : whether the last rows are held out instead of random ones
    data, model_file : names of files, for the report
    """
    if isinstance(training.rows, ArrayRows):
        with working("Evaluating the model on held-out rows"):
            evaluation = evaluate_by_refitting(model, training, seed=seed, time_ordered=time_ordered)
            return compute_page(model, table, evaluation, data=data, model_file=model_file)
    assert isinstance(training.table, ParquetTable)
    with working("Sampling rows for the report"):
        allowed = memory_budget(getattr(model.model, "max_memory", None))
        most = choose_sample_size(len(model.encoder.names), allowed)
        columns = [*training.encoder.inputs, *training.options.outputs]
        sample = sample_rows(training.table, columns, training.options.target, most, seed)
    with fitting("Evaluating the model on held-out rows"):
        evaluation = evaluate_streamed(model, training, sample, seed=seed, time_ordered=time_ordered)
    return compute_page(model, sample.table, evaluation, data=data, model_file=model_file, sample=sample)


def write_report(text: str, out: Path, *, force: bool) -> None:
    """Write the report atomically."""
    write_text_atomically(out, text, overwrite=force)


def print_evaluation(evaluation: Evaluation, out: Path) -> None:
    """Print the loss of the model and of the baselines, the coverage, and where the report is."""
    ours = format_amount(evaluation.losses().mean())
    compared = ", ".join(f"{name} {format_amount(evaluation.losses(name).mean())}" for name in evaluation.baselines)
    drawn = "" if evaluation.out_of is None else f", a random sample of {evaluation.out_of:,},"
    console.print(f"Pinball loss on {len(evaluation.y):,} rows{drawn} {ours} ({compared}).")
    for one in evaluation.intervals()[:1]:
        kind = "calibrated interval" if one.calibrated else "interval"
        console.print(f"The {one.nominal:.0%} {kind} covers {one.observed:.1%} of them.")
    console.print(f"Report: [bold]{escape(str(out))}[/]")
