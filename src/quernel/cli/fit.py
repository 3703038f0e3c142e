"""`quernel fit`: fit conditional quantiles to a data file and save the model, its encoder included."""

from __future__ import annotations

import json
import shlex
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.markup import escape
from rich.table import Table as RichTable

from quernel.cli.console import console, errors, fitting, note
from quernel.cli.data import (
    READ_MODES,
    Source,
    check_checkpoint,
    check_new_files,
    check_outputs,
    load_training_data,
    print_training,
    read_mode,
)
from quernel.cli.options import (
    DATA,
    TARGET,
    FitOptions,
    IntervalOptions,
    TrainingOptions,
    cli_error_names,
    expand_options,
    flag,
    translate_parameters,
)
from quernel.cli.report import (
    check_report_path,
    print_evaluation,
    report_by_refitting,
    summarize_evaluation,
    write_report,
)
from quernel.conformal import ConformalQuantileRegressor
from quernel.conformal.table_model import TableModel
from quernel.estimators import ExtrapolationWarning, KernelQuantileRegressor
from quernel.persistence import save
from quernel.report.formatting import format_count
from quernel.tables.training_data import AnyTrainingData, StreamedTrainingData, TrainingData

# Ratio of upper to lower tail, (q95 - q50) / (q50 - q05), above which --log-target is suggested; a log-normal target
# with sigma = 0.7 has 3.2.
LONG_TAIL = 3.0
# Up to this many input columns are printed one by one.
MAX_SHOWN = 30


@expand_options
def fit(
    *,
    data: Annotated[Path | None, typer.Argument(help=DATA)] = None,
    target: Annotated[str, typer.Option(help=TARGET)],
    model: Annotated[Path, typer.Option(help="File to write the model to, such as m.quernel.")],
    reading: TrainingOptions,
    estimation: FitOptions,
    intervals: IntervalOptions,
    report: Annotated[
        Path | None,
        typer.Option(help="Also write an HTML report that evaluates the model on held-out rows, such as r.html."),
    ] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="File from which an interrupted fit resumes; removed when the fit is complete.")
    ] = None,
    force: Annotated[bool, flag("--force", "Overwrite existing files.")] = False,
    as_json: Annotated[bool, flag("--json", "Print JSON instead of a table.")] = False,
) -> None:
    """Fit conditional quantiles of one column given the others, and save the model.

    Missing values, categories, dates and times are encoded automatically.
    """
    source, estimator = Source(data, reading.query), estimation.make_estimator(reading)
    if intervals.time_ordered and not intervals.conformal and report is None:
        raise ValueError("--time-ordered says which rows are held out. Add --conformal or --report, or leave it out.")
    interval = intervals.wrap(estimator, estimation.levels)
    check_outputs({"--model": model, "--report": report, "--checkpoint": checkpoint}, source)
    check_checkpoint(checkpoint)
    check_new_files([model], force=force)
    check_report_path(report, force=force)
    evaluation = None
    options = reading.read_options(target)
    with load_training_data(source, options, estimator.max_memory, reading.dask) as (table, training):
        doing = "Fitting and calibrating" if interval else "Fitting"
        text = f"{doing} {format_count(len(estimation.levels), 'quantile level')} on {training.n_rows:,} rows"
        more = {} if checkpoint is None else {"checkpoint": checkpoint}
        seconds = fit_with_progress(interval or estimator, training, text, **more)
        fitted = interval.estimators_[0] if interval else estimator
        table_model = TableModel(training.encoder, fitted, target, options.log_target, interval)
        save(table_model, model, overwrite=force)
        summary = _summarize(table_model, training, source, model, seconds)
        if report is not None:
            with _explain_report_failure(model, source, report):
                evaluation, page = report_by_refitting(
                    table_model, table, training, seed=estimation.seed, time_ordered=intervals.time_ordered,
                    data=source.name, model_file=model.name,
                )  # fmt: skip
                write_report(page, report, force=force)
            summary |= {"report": str(report), "evaluation": summarize_evaluation(evaluation)}
    if as_json:
        typer.echo(json.dumps(summary))
        return
    console.print(columns_table(training))
    _print_fit(summary)
    if evaluation is not None and report is not None:
        print_evaluation(evaluation, report)
    for tip in _list_tips(training, fitted, options.log_target):
        errors.print(f"Tip: {tip}")


def fit_with_progress(
    estimator: KernelQuantileRegressor | ConformalQuantileRegressor,
    training: AnyTrainingData,
    text: str,
    **kwargs: Any,
) -> float:
    """Fit with a progress display, print warnings as notes, and return the seconds it took.

    A fit that is out of time or interrupted by Ctrl-C keeps its best solution, and one of the notes states the gap.
    `kwargs` are those of the estimator's `fit`.
    """
    print_training(training)
    start = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        # Calibration rows may extrapolate; their scores account for it.
        warnings.simplefilter("ignore", ExtrapolationWarning)
        with cli_error_names(), fitting(text):
            if isinstance(training, StreamedTrainingData):
                estimator.fit(training.rows, **kwargs)
            else:
                estimator.fit(training.X, training.y, sample_weight=training.weight, **kwargs)
    for message in dict.fromkeys(str(warning.message) for warning in caught):
        note(translate_parameters(message))
    return time.perf_counter() - start


@contextmanager
def _explain_report_failure(model: Path, source: Source, report: Path) -> Iterator[None]:
    """If the report fails after the fit, say that the model is saved and how to build the report later."""
    try:
        yield
    except (OSError, ValueError, MemoryError) as error:
        reason = str(error).rstrip(".") or "there is not enough memory for the report"
        again = shlex.join(["quernel", "report", str(model), *source.command(), "--out", str(report)])
        raise ValueError(
            f"The model was saved to {model}, but its report failed: {reason}. Once that is fixed, run: {again}"
        ) from error


def _summarize(
    model: TableModel, training: AnyTrainingData, source: Source, path: Path, seconds: float
) -> dict[str, Any]:
    """Summarize a fit, as printed by --json."""
    estimator, interval = model.model, model.interval
    bandwidth = estimator.bandwidth_
    summary = summarize_model(estimator, training, path, seconds) | {
        "data": str(source),
        "target": model.target,
        "columns": {column.name: column.kind for column in training.encoder.columns_},
        "encoded_columns": len(training.encoder.names),
        "bandwidth": None if bandwidth is None else np.ravel(bandwidth).tolist(),
        "crossing_rate": float(estimator.crossing_rate_),
    }
    if interval is not None:
        summary |= {"coverage": interval.coverage_, "calibration_rows": interval.n_calibration_}
    return summary


def summarize_model(
    estimator: KernelQuantileRegressor,
    training: AnyTrainingData,
    model: Path | None,
    seconds: float,
) -> dict[str, Any]:
    """Summarize what `fit` and `tune` share: the rows, the fitted model, and its file, None if it was not saved."""
    return {
        "rows": training.n_rows,
        "read": read_mode(training),
        "rows_without_target": training.dropped,
        "quantiles": estimator.quantiles_.tolist(),
        "n_components": estimator.n_components_,
        "alpha": estimator.alpha_,
        "duality_gap": estimator.duality_gap_.tolist(),
        "seconds": round(seconds, 3),
        "notes": list(training.notes),
        "model": None if model is None else str(model),
        "bytes": None if model is None else model.stat().st_size,
    }


def columns_table(training: AnyTrainingData) -> RichTable:
    """Tabulate each column's type and encoding; of more than MAX_SHOWN, the unchanged ones of a type share a line."""
    table = RichTable(title="Input columns")
    for heading in ("column", "type", "encoded as"):
        table.add_column(heading)
    columns, unchanged = training.encoder.columns_, Counter[str]()
    if len(columns) > MAX_SHOWN:
        unchanged.update(column.kind for column in columns if column.names == [column.name])
    for column in columns:
        if column.kind in unchanged and column.names == [column.name]:
            continue
        names = [name.removeprefix(column.name).removeprefix(" = ").strip() or "itself" for name in column.names]
        shown = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
        table.add_row(escape(column.name), column.kind, escape(shown))
    for kind, count in unchanged.items():
        table.add_row(format_count(count, "other column"), kind, "themselves")
    return table


def _print_fit(summary: dict[str, Any]) -> None:
    """Print the summary of a fit in sentences."""
    console.print(
        f"{format_count(len(summary['quantiles']), 'quantile level')} of {escape(repr(summary['target']))} fitted to "
        f"{summary['rows'] - summary.get('calibration_rows', 0):,} rows in "
        f"{summary['seconds']:.1f} s: {summary['n_components']:,} features, alpha {summary['alpha']:.2g}, "
        f"certified gap {max(summary['duality_gap']):.0e}."
        + ("" if summary["read"] == "whole" else f" {READ_MODES[summary['read']]}")
    )
    if "coverage" in summary:
        console.print(
            f"A {summary['coverage']:.0%} interval calibrated on the other {summary['calibration_rows']:,} rows."
        )
    print_model(summary)


def print_model(summary: dict[str, Any]) -> None:
    """Print where the model is and the command that predicts with it."""
    name = summary["model"]
    console.print(f"Model: [bold]{escape(name)}[/] ({summary['bytes'] / 1000:,.0f} kB)")
    command = f"quernel predict {shlex.quote(name)} NEW_DATA --out PREDICTIONS.csv"
    errors.print(f"Next: {escape(command)}", soft_wrap=True)  # on one line, to be pasted


def _list_tips(training: AnyTrainingData, fitted: KernelQuantileRegressor, log_target: bool) -> list[str]:
    """Return options that may improve the fit."""
    tips = []
    automatic = isinstance(fitted.bandwidth, str) and fitted.bandwidth == "auto" and fitted.bandwidth_ is not None
    if automatic and len(training.encoder.names) > 1:
        tips.append("with several columns, --bandwidth learned is usually more accurate, but slower")
    if not log_target and isinstance(training, TrainingData) and _is_right_skewed(training):
        tips.append("the target is positive and right-skewed: try --log-target, which keeps predictions positive")
    return tips


def _is_right_skewed(training: TrainingData) -> bool:
    """Whether all targets are positive and the upper tail exceeds LONG_TAIL lower ones."""
    low, median, high = np.quantile(training.y, [0.05, 0.5, 0.95])
    return bool(training.y.min() > 0 and high - median > LONG_TAIL * (median - low))
