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

from quernel.cli.console import console, errors, fitting, note, parse_bytes
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
    write_report,
)
from quernel.conformal import ConformalQuantileRegressor
from quernel.conformal.table_model import TableModel
from quernel.data import ArrayRows
from quernel.estimators import ExtrapolationWarning, KernelQuantileRegressor, TabularQuantileRegressor
from quernel.persistence import save
from quernel.report.comparison import summarize_page
from quernel.report.formatting import format_count
from quernel.report.sections import render_page
from quernel.tables.training_data import TrainingData

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
    source = Source(data, reading.query)
    kernel_only = {"--dask": reading.dask, "--checkpoint": checkpoint}
    choice = estimation.choose_estimator([option for option, given in kernel_only.items() if given is not None])
    estimator = estimation.make_estimator(choice.name, reading)
    if intervals.time_ordered and not intervals.conformal and report is None:
        raise ValueError("--time-ordered says which rows are held out. Add --conformal or --report, or leave it out.")
    if intervals.time_ordered and estimation.groups is not None:
        raise ValueError("--groups and --time-ordered exclude each other. Give one of them.")
    intervals.wrap(estimator, estimation.levels)  # errors before any work
    check_outputs({"--model": model, "--report": report, "--checkpoint": checkpoint}, source)
    check_checkpoint(checkpoint)
    check_new_files([model], force=force)
    check_report_path(report, force=force)
    page = None
    options = reading.read_options(target, groups=estimation.groups)
    with load_training_data(source, options, parse_bytes(reading.max_memory), reading.dask) as (table, training):
        if not isinstance(training.rows, ArrayRows):
            choice = estimation.choose_for_streamed(choice)
            estimator = estimation.make_estimator(choice.name, reading)
        estimation.place_shapes(estimator, training.encoder)
        interval = intervals.wrap(estimator, estimation.levels)
        doing = "Fitting and calibrating" if interval else "Fitting"
        what = "a kernel and forests" if choice.name == "tabular" else _count_levels(estimation.levels)
        text = f"{doing} {what} on {training.n_rows:,} rows", f"estimator: {choice.name}, {choice.reason}"
        more: dict[str, Any] = {} if checkpoint is None else {"checkpoint": checkpoint}
        if training.groups is not None:
            more["units" if interval else "groups"] = training.groups
        seconds = fit_with_progress(interval or estimator, training, *text, **more)
        fitted = interval.estimators_[0] if interval else estimator
        table_model = TableModel(training.encoder, fitted, target, options.log_target, interval)
        save(table_model, model, overwrite=force)
        summary = _summarize(table_model, training, source, model, seconds) | {"estimator_reason": choice.reason}
        if report is not None:
            with _explain_report_failure(model, source, report):
                page = report_by_refitting(
                    table_model, table, training, seed=estimation.seed, time_ordered=intervals.time_ordered,
                    data=source.name, model_file=model.name,
                )  # fmt: skip
                write_report(render_page(page), report, force=force)
            summary |= {"report": str(report), "evaluation": summarize_page(page)}
    if as_json:
        typer.echo(json.dumps(summary))
        return
    console.print(columns_table(training))
    _print_fit(summary)
    if page is not None and report is not None:
        print_evaluation(page.evaluation, report)


def fit_with_progress(
    estimator: TabularQuantileRegressor | KernelQuantileRegressor | ConformalQuantileRegressor,
    training: TrainingData,
    text: str,
    detail: str = "",
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
        with cli_error_names(), fitting(text, detail):
            rows = training.rows
            if isinstance(rows, ArrayRows):
                estimator.fit(rows.X, rows.y, sample_weight=rows.weight, **kwargs)
            else:
                estimator.fit(rows, **kwargs)
    for message in dict.fromkeys(str(warning.message) for warning in caught):
        note(translate_parameters(message))
    fitted = estimator.estimators_[0] if isinstance(estimator, ConformalQuantileRegressor) else estimator
    if isinstance(fitted, TabularQuantileRegressor) and fitted.stopped_by_ is not None:
        note(
            f"The fit was stopped by the {fitted.stopped_by_}: bandwidths are the best found until then, and forests "
            "have fewer trees. Weights and calibration are those of held-out rows all the same."
        )
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


def _summarize(model: TableModel, training: TrainingData, source: Source, path: Path, seconds: float) -> dict[str, Any]:
    """Summarize a fit, as printed by --json."""
    estimator, interval = model.model, model.interval
    summary = summarize_model(estimator, training, path, seconds) | {
        "data": str(source),
        "target": model.target,
        "columns": {column.name: column.kind for column in training.encoder.columns_},
        "encoded_columns": len(training.encoder.names),
    }
    if isinstance(estimator, KernelQuantileRegressor):
        bandwidth = estimator.bandwidth_
        summary |= {
            "bandwidth": None if bandwidth is None else np.ravel(bandwidth).tolist(),
            "crossing_rate": float(estimator.crossing_rate_),
        }
    if interval is not None:
        summary |= {"coverage": interval.coverage_, "calibration_rows": interval.n_calibration_}
    return summary


def summarize_model(
    estimator: TabularQuantileRegressor | KernelQuantileRegressor,
    training: TrainingData,
    model: Path | None,
    seconds: float,
) -> dict[str, Any]:
    """Summarize what `fit` and `tune` share: the rows, the fitted model, and its file, None if it was not saved.

    Of a tabular model, `n_components` and the two gaps are those of its kernel, None if it has none.
    """
    gap = estimator.duality_gap_
    if isinstance(estimator, TabularQuantileRegressor):
        kind: dict[str, Any] = {"estimator": "tabular", "shares": estimator.shares_}
        kind["n_components"] = estimator.parts_.kernel_size
    else:
        kind = {"estimator": "kernel", "n_components": estimator.n_components_, "alpha": estimator.alpha_}
    return {
        "rows": training.n_rows,
        "read": read_mode(training),
        "rows_without_target": training.dropped,
        "quantiles": estimator.quantiles_.tolist(),
        **kind,
        "duality_gap": None if gap is None else gap.tolist(),
        "stopped_by": estimator.stopped_by_,
        "seconds": round(seconds, 3),
        "notes": list(training.notes),
        "model": None if model is None else str(model),
        "bytes": None if model is None else model.stat().st_size,
    }


def columns_table(training: TrainingData) -> RichTable:
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
    tabular = summary["estimator"] == "tabular"
    target, levels = escape(repr(summary["target"])), format_count(len(summary["quantiles"]), "quantile level")
    console.print(
        f"{'Quantiles' if tabular else levels} of {target} fitted to "
        f"{summary['rows'] - summary.get('calibration_rows', 0):,} rows in {summary['seconds']:.1f} s: "
        f"{_describe_parts(summary) if tabular else _describe_kernel(summary)}."
        + ("" if summary["read"] == "whole" else f" {READ_MODES[summary['read']]}")
    )
    if "coverage" in summary:
        console.print(
            f"A {summary['coverage']:.0%} interval calibrated on the other {summary['calibration_rows']:,} rows."
        )
    print_model(summary)


def _describe_kernel(summary: dict[str, Any]) -> str:
    gap = max(summary["duality_gap"])
    return f"{summary['n_components']:,} features, alpha {summary['alpha']:.2g}, certified gap {gap:.0e}"


def _describe_parts(summary: dict[str, Any]) -> str:
    """Say how much each part of a tabular model weighs, and how well its kernel is solved."""
    shares = ", ".join(f"{share:.0%} {name.replace('_', ' ')}" for name, share in summary["shares"].items())
    if summary["duality_gap"] is None:
        return f"{shares}; no kernel"
    gap = max(summary["duality_gap"])
    return f"{shares}; {summary['n_components']:,} landmarks of the kernel, certified gap {gap:.0e}"


def print_model(summary: dict[str, Any]) -> None:
    """Print where the model is and the command that predicts with it."""
    name = summary["model"]
    console.print(f"Model: [bold]{escape(name)}[/] ({summary['bytes'] / 1000:,.0f} kB)")
    command = f"quernel predict {shlex.quote(name)} NEW_DATA --out PREDICTIONS.csv"
    errors.print(f"Next: {escape(command)}", soft_wrap=True)  # on one line, to be pasted


def _count_levels(levels: list[float]) -> str:
    return format_count(len(levels), "quantile level")
