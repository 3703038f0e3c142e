"""`quernel report`: evaluate a saved model on a data file and write an HTML report; also for `quernel fit --report`."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import typer
from numpy.typing import NDArray
from rich.markup import escape

from quernel._files import write_text_atomically
from quernel.cli.console import console, counting, fitting, note, working
from quernel.cli.data import MIN_ROWS, check_new_files, check_outputs
from quernel.cli.options import MAX_MEMORY, flag, parse_bytes
from quernel.cli.predict import load_table_model
from quernel.conformal.table_model import TableModel, describe_unseen
from quernel.data import memory_budget
from quernel.report import Evaluation, evaluate_by_refitting, evaluate_on, evaluate_streamed, report_page
from quernel.report.evaluation import check_target
from quernel.report.formatting import format_count, format_number
from quernel.tables import TableError
from quernel.tables.arrow_casts import column_kind, has_infinite, replace_missing_markers, to_float64
from quernel.tables.frames import suggest_name
from quernel.tables.multi_file import in_batches
from quernel.tables.parquet_table import REDUCE_SIZE
from quernel.tables.reading import CONVERSION_ERROR, encoder_csv_options
from quernel.tables.reservoir_sample import RowSample, choose_sample_size, merge_samples, sample_batch
from quernel.tables.streaming_training import AnyTrainingData, sample_rows
from quernel.tables.training_data import TrainingData
from quernel.theory import KernelGap

Array = NDArray[np.floating]

EVALUATION_DATA = "Data with the target, preferably rows not used for training: a file, a folder or a quoted pattern."
# Seed of the random sample of rows.
SEED = 0


def report(
    model: Annotated[Path, typer.Argument(help="Model file written by `quernel fit` or `quernel tune`.")],
    data: Annotated[Path, typer.Argument(help=EVALUATION_DATA)],
    out: Annotated[Path, typer.Option(help="File for the report, such as report.html.")],
    kernel_gap: Annotated[
        bool,
        flag(
            "--kernel-gap",
            "Bound what random features cost compared with the exact kernel; DATA must be the training data.",
        ),
    ] = False,
    max_memory: Annotated[str | None, typer.Option(help=MAX_MEMORY)] = None,
    force: Annotated[bool, flag("--force", "Overwrite an existing file.")] = False,
    as_json: Annotated[bool, flag("--json", "Print JSON instead of a sentence.")] = False,
) -> None:
    """Evaluate a model on a data file and write a self-contained HTML report.

    Data that do not fit in memory are evaluated on a random sample of the rows.
    """
    check_outputs({"--out": out}, data, model)
    check_report_path(out, force=force)
    fitted = load_table_model(model)
    sample = _read_sample(fitted, data, memory_budget(parse_bytes(max_memory)))
    target = to_float64(sample.table[fitted.target])
    finite = np.isfinite(target)
    if finite.sum() < MIN_ROWS:
        among = "" if sample.whole else f" among {len(finite):,} sampled"
        raise TableError(f"{data} has {finite.sum()} rows with a target{among}; at least {MIN_ROWS} are needed.")
    _note_infinite(fitted, sample.table, target)
    for sentence in describe_unseen(fitted.encoder, sample.table):
        note(sentence)
    y = check_target(fitted, target[finite])
    X = fitted.encoder.transform(sample.table.filter(finite))
    gap = _kernel_gap(fitted, X, y, data, whole=sample.whole) if kernel_gap else None
    with working(f"Evaluating the model on {finite.sum():,} rows"):
        evaluation = evaluate_on(fitted, X, y, None if sample.whole else sample.n_counted)
        page = report_page(
            fitted, sample.table, evaluation, data=data.name, model_file=model.name, sample=sample, kernel_gap=gap
        )
    write_report(page, out, force=force)
    if as_json:
        ends = ("lower", "upper", "similarity_bound")
        bracket = {} if gap is None else {"kernel_gap": {end: getattr(gap, end).tolist() for end in ends}}
        typer.echo(json.dumps({"report": str(out)} | summarize_evaluation(evaluation) | bracket))
        return
    if gap is not None:
        console.print(str(gap))
    print_evaluation(evaluation, out)


def _kernel_gap(fitted: TableModel, X: Array, y: Array, data: Path, *, whole: bool) -> KernelGap:
    """Bound what the random features cost against the exact kernel; X and y must be the training rows."""
    if not whole:
        raise TableError(
            f"--kernel-gap compares every training row with every other, and {data} does not fit in memory. "
            "Raise --max-memory, or fit a model to a sample of the rows."
        )
    try:
        with fitting(f"Comparing the features of {len(y):,} rows with the exact kernel"):
            return fitted.model.kernel_gap(X, y)
    except ValueError as error:
        if "was fitted to" not in str(error):
            raise
        raise TableError(
            f"--kernel-gap needs the data that the model was fitted to, complete and without weights, and {data} is "
            "not that. A model with calibrated intervals was fitted to part of the rows: fit one without --conformal."
        ) from error


def _read_sample(fitted: TableModel, data: Path, allowed: float) -> RowSample:
    """Read the inputs and the target: all rows or, if these exceed the allowed bytes, a random sample."""
    try:
        return _draw_sample(fitted, data, allowed)
    except TableError as error:
        failed = CONVERSION_ERROR.search(str(error.__cause__))
        if failed is None or str(failed["value"]).lower() not in ("true", "false"):
            raise
    # The target of a CSV file begins with 0 and 1 and goes on with true and false.
    return _draw_sample(fitted, data, allowed, boolean_target=True)


def _draw_sample(fitted: TableModel, data: Path, allowed: float, *, boolean_target: bool = False) -> RowSample:
    """Do the same; with `boolean_target`, the target of a CSV file is read as boolean whatever its first rows hold."""
    parts: list[RowSample] = []
    limit, size, n_rows, n_counted = sys.maxsize, 0, 0, 0
    needed, options = [*fitted.encoder.inputs, fitted.target], encoder_csv_options(fitted.encoder)
    with in_batches(data, needed, options) as batches:
        _check_columns(fitted, batches.schema, data)
        # A target that begins with integers may go on with decimals: read numbers as float64.
        if boolean_target or column_kind(batches.schema.field(fitted.target).type) != "boolean":
            types = {fitted.target: pa.bool_() if boolean_target else pa.float64()}
            options = replace(options, types=options.types | types)
    with in_batches(data, needed, options) as batches, counting("Reading", batches.n_rows) as advance:
        for batch in batches.pieces:
            table = replace_missing_markers(fitted.encoder, batch, fitted.target)
            finite = np.isfinite(to_float64(table[fitted.target]))
            parts.append(sample_batch(table, finite, limit=limit, seed=SEED, row=n_rows, target_row=n_counted))
            n_rows, n_counted = n_rows + len(table), n_counted + int(finite.sum())
            size += table.nbytes + 8 * len(table) * len(fitted.encoder.names)
            if size > allowed:
                limit = choose_sample_size(len(fitted.encoder.names), allowed)
                parts = [merge_samples(parts).subsample(limit)] if len(parts) >= REDUCE_SIZE else parts
            advance(len(table))
    if not n_rows:
        raise TableError(f"{data} has no rows.")
    return merge_samples(parts).subsample(limit)


def _note_infinite(fitted: TableModel, table: pa.Table, target: Array) -> None:
    """Print how many rows have infinite values, which are treated as missing."""
    for what, count in (("target", np.isinf(target).sum()), ("input", has_infinite(fitted.encoder, table).sum())):
        if count:
            note(f"{format_count(int(count), 'row')} with an infinite {what}, treated as missing.")


def _check_columns(fitted: TableModel, schema: pa.Schema, data: Path) -> None:
    fitted.encoder.check_frame(schema.empty_table(), of=str(data))
    if fitted.target not in schema.names:
        raise TableError(
            f"{data} has no column {fitted.target!r}, the target, which the evaluation needs. "
            f"{suggest_name(fitted.target, schema.names)}"
        )
    kind = schema.field(fitted.target).type
    if column_kind(kind) not in ("number", "boolean", "nothing"):
        raise TableError(f"The target {fitted.target!r} of {data} holds {kind}, not numbers.")


# Shared with `quernel fit --report`


def check_report_path(out: Path | None, *, force: bool) -> None:
    """Raise, before any work, if the report cannot be written; None is no report."""
    if out is not None and out.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"The report {out} must end in .html.")
    check_new_files([out], force=force)


def report_by_refitting(
    model: TableModel,
    table: pa.Table | None,
    training: AnyTrainingData,
    *,
    seed: int,
    time_ordered: bool,
    data: str,
    model_file: str,
) -> tuple[Evaluation, str]:
    """Evaluate a model by refitting it without held-out training rows; return the evaluation and the report.

    Parameters
    ----------
    model : TableModel, fitted to all rows
    table : the training table if it is in memory, else None
    training : the same data, encoded
    seed : which rows are held out, and which are sampled from streamed data
    time_ordered : whether the last rows are held out instead of random ones
    data, model_file : names of files, for the report
    """
    if isinstance(training, TrainingData):
        with working("Evaluating the model on held-out rows"):
            evaluation = evaluate_by_refitting(model, training, seed=seed, time_ordered=time_ordered)
            return evaluation, report_page(model, table, evaluation, data=data, model_file=model_file)
    with working("Sampling rows for the report"):
        most = choose_sample_size(len(model.encoder.names), memory_budget(model.model.max_memory))
        sample = sample_rows(training, most, seed)
    with fitting("Evaluating the model on held-out rows"):
        evaluation = evaluate_streamed(model, training, sample, seed=seed, time_ordered=time_ordered)
    page = report_page(model, sample.table, evaluation, data=data, model_file=model_file, sample=sample)
    return evaluation, page


def write_report(text: str, out: Path, *, force: bool) -> None:
    """Write the report atomically."""
    write_text_atomically(out, text, overwrite=force)


def summarize_evaluation(evaluation: Evaluation) -> dict[str, Any]:
    """Return losses and coverage as shown in the report, for --json."""
    return {
        "rows_evaluated": len(evaluation.y),
        "sample_of": evaluation.out_of,
        "unseen": evaluation.unseen,
        "rows_outside": int(evaluation.outside.sum()),
        "quantiles": evaluation.levels.tolist(),
        "pinball_loss": evaluation.losses().tolist(),
        "baselines": {name: evaluation.losses(name).tolist() for name in evaluation.baselines},
        "intervals": [
            {"coverage": one.nominal, "observed": one.observed, "mean_width": one.width, "calibrated": one.calibrated}
            for one in evaluation.intervals()
        ],
    }


def print_evaluation(evaluation: Evaluation, out: Path) -> None:
    """Print the loss of the model and of the baselines, the coverage, and where the report is."""
    ours = format_number(evaluation.losses().mean())
    compared = ", ".join(f"{name} {format_number(evaluation.losses(name).mean())}" for name in evaluation.baselines)
    drawn = "" if evaluation.out_of is None else f", a random sample of {evaluation.out_of:,},"
    console.print(f"Pinball loss on {len(evaluation.y):,} rows{drawn} {ours} ({compared}).")
    for one in evaluation.intervals()[:1]:
        kind = "calibrated interval" if one.calibrated else "interval"
        console.print(f"The {one.nominal:.0%} {kind} covers {one.observed:.1%} of them.")
    console.print(f"Report: [bold]{escape(str(out))}[/]")
