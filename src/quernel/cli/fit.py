"""`quernel fit` and `quernel tune`: fit conditional quantiles to a data file, and choose parameters by held-out loss.

The model is saved with its encoder.
"""

from __future__ import annotations

import json
import shlex
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.markup import escape
from rich.table import Table as RichTable

from quernel.cli.console import console, errors, fitting, note, parse_bandwidth, parse_bytes, split_list
from quernel.cli.data import (
    READ_MODES,
    Source,
    check_checkpoint,
    check_new_files,
    check_outputs,
    check_report_path,
    load_training_data,
    print_training,
    read_mode,
)
from quernel.cli.options import (
    DATA,
    FOLDS,
    TARGET,
    FitOptions,
    IntervalOptions,
    SearchOptions,
    TrainingOptions,
    cli_error_names,
    expand_options,
    flag,
    translate_parameters,
)
from quernel.cli.report import print_evaluation, report_by_refitting, write_report
from quernel.conformal import ConformalQuantileRegressor
from quernel.conformal.table_model import TableModel
from quernel.data import ArrayRows
from quernel.estimators import ExtrapolationWarning, KernelQuantileRegressor, TabularQuantileRegressor
from quernel.estimators.quantile_cv import FACTORS, KernelQuantileRegressorCV
from quernel.forecasting import time_splits
from quernel.forecasting.series import to_seconds
from quernel.persistence import save
from quernel.report.content import summarize_page
from quernel.report.formatting import format_count
from quernel.report.sections import render_page
from quernel.tables.frames import TableError, suggest_name
from quernel.tables.training_data import ReadOptions, TrainingData, read_numbers

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


@expand_options
def tune(
    *,
    data: Annotated[Path | None, typer.Argument(help=DATA)] = None,
    target: Annotated[str, typer.Option(help=TARGET)],
    reading: TrainingOptions,
    search: SearchOptions,
    model: Annotated[Path | None, typer.Option(help="File to write the tuned model to, such as m.quernel.")] = None,
    force: Annotated[bool, flag("--force", "Overwrite an existing model file.")] = False,
    as_json: Annotated[bool, flag("--json", "Print JSON instead of a table.")] = False,
) -> None:
    """Choose ridge weight and bandwidth by held-out loss, print every trial, and save the best model."""
    source, estimator = Source(data, reading.query), search.make_estimator(reading)
    check_outputs({"--model": model}, source)
    check_new_files([model], force=force)
    options = reading.read_options(target, groups=search.groups)
    if search.time is not None:
        options = replace(options, exclude=[*options.exclude, search.time])
        estimator.set_params(cv=_split_by_time(source, options, search, search.time))
    with load_training_data(source, options, estimator.max_memory, reading.dask) as (_, training):
        _check_groups(search, training)
        text = f"Searching {format_count(len(search.levels), 'quantile level')} of {training.n_rows:,} rows"
        seconds = fit_with_progress(estimator, training, text, groups=training.groups)
    if model is not None:
        save(TableModel(training.encoder, estimator, target, options.log_target), model, overwrite=force)
    summary = summarize_model(estimator, training, model, seconds) | _summarize_search(estimator, source, target)
    edges = _note_grid_edges(summary, learned="learned" in split_list(search.bandwidths))
    summary["notes"] += edges
    if as_json:
        typer.echo(json.dumps(summary))
    else:
        console.print(_loss_table(estimator, search.bandwidths, options.log_target))
    for sentence in edges:
        note(sentence)
    if not as_json:
        _print_summary(summary)


def _split_by_time(source: Source, options: ReadOptions, search: SearchOptions, time: str) -> list[Any]:
    """Return expanding windows by the dates of the rows with a target: as many as --folds, or --validation at the end.

    All windows, and what precedes the first, are equally long; a single one has the share of --validation.
    """
    named = (time, options.target)
    with source.open(options.csv_options(), lambda name: name in named) as opened:
        for name in named:
            if name not in opened.schema.names:
                raise TableError(f"There is no column {name!r}. {suggest_name(name, opened.schema.names)}")
        table = opened.read(list(named))
    times = to_seconds(table.filter(np.isfinite(read_numbers(table, options.target)))[time], f"Column {time!r}")
    stamps = len(np.unique(times))
    folds = 1 if search.validation is not None else search.folds or FOLDS
    steps = stamps * search.validation if search.validation is not None else stamps / (folds + 1)
    return time_splits(times, folds, horizon=max(int(steps), 1))


def _check_groups(search: SearchOptions, training: TrainingData) -> None:
    """Raise if there are fewer groups than folds."""
    if training.groups is None:
        return
    needed, found = (search.folds or FOLDS) if search.validation is None else 2, len(np.unique(training.groups))
    if found < needed:
        raise ValueError(
            f"The column {search.groups!r} has {format_count(found, 'group')}, but "
            f"{'--folds ' + str(needed) if search.validation is None else '--validation'} needs at least {needed}. Use "
            "fewer folds, or choose another column."
        )


def _summarize_search(estimator: KernelQuantileRegressorCV, source: Source, target: str) -> dict[str, Any]:
    """Summarize a search, as printed by --json."""
    results, n_splits = estimator.cv_results_, estimator.n_splits_
    error = results["std_test_score"] / np.sqrt(max(n_splits - 1, 1))
    tried = np.flatnonzero(np.isfinite(results["mean_test_score"]))
    path = [
        {
            "alpha": float(results["param_alpha"][k]),
            "bandwidth": _to_json(results["param_bandwidth"][k]),
            "loss": -float(results["mean_test_score"][k]),
            "standard_error": float(error[k]) if n_splits > 1 else None,
        }
        for k in tried
    ]
    return {
        "data": str(source),
        "target": target,
        "splits": n_splits,
        "bandwidth": _to_json(estimator.bandwidth_),
        "loss": -estimator.best_score_,
        "path": path,
    }


def _to_json(bandwidth: Any) -> Any:
    """Convert a bandwidth for JSON: a number, one per column, or None."""
    return None if bandwidth is None else np.asarray(bandwidth, dtype=float).tolist()


def _loss_table(estimator: KernelQuantileRegressorCV, bandwidths: str, log_target: bool) -> RichTable:
    """Tabulate the held-out loss of every ridge weight tried (rows) and bandwidth (columns)."""
    results, labels = estimator.cv_results_, _bandwidth_labels(estimator, bandwidths)
    n_alphas = len(results["params"]) // len(labels)
    losses = -results["mean_test_score"].reshape(len(labels), n_alphas).T
    alphas = results["param_alpha"][:n_alphas]
    best = divmod(estimator.best_index_, n_alphas)[::-1]
    unit = " (on the log scale)" if log_target else ""
    table = RichTable(title=f"Pinball loss on held-out rows{unit}; * is chosen", title_justify="left")
    table.add_column("alpha", justify="right")
    for label in labels:
        table.add_column(label, justify="right")
    for a in np.argsort(-alphas, kind="stable"):
        if np.isfinite(losses[a]).any():
            cells = [
                f"[bold]* {loss:.5g}[/]" if (a, b) == best else f"{loss:.5g}" if np.isfinite(loss) else ""
                for b, loss in enumerate(losses[a])
            ]
            table.add_row(f"{alphas[a]:.3g}", *cells)
    return table


def _bandwidth_labels(estimator: KernelQuantileRegressorCV, bandwidths: str) -> list[str]:
    """Label the columns of the table by the bandwidths as the user gave them."""
    if estimator.bandwidth_ is None:
        return ["loss"]
    names = split_list(bandwidths)
    if len(names) == 1 and isinstance(parse_bandwidth(names[0]), str):
        return [f"{factor:g} x {names[0]} bandwidth" for factor in FACTORS]
    return [f"bandwidth {entry}" for entry in names]


def _note_grid_edges(summary: dict[str, Any], *, learned: bool) -> list[str]:
    """Return notes where the best alpha or bandwidth is at an end of its grid: a value beyond may be better."""
    notes = []
    for name, others in (("alpha", "numbers"), ("bandwidth", "numbers" if learned else '"learned", or numbers')):
        tried = [np.mean(one[name]) for one in summary["path"] if one[name] is not None]
        if len(set(tried)) < 3:  # the best of one or two is always at an end
            continue
        chosen = np.mean(summary[name])
        for end, which in ((min(tried), "smallest"), (max(tried), "largest")):
            if chosen == end:
                notes.append(
                    f"The {which} {name} of those tried was chosen; extend the grid with --{name}s ({others})."
                )
    return notes


def _print_summary(summary: dict[str, Any]) -> None:
    splits = f"{summary['splits']} splits" if summary["splits"] > 1 else "one split"
    console.print(
        f"Chosen from {len(summary['path'])} trials by {splits} of {summary['rows']:,} rows, in "
        f"{summary['seconds']:.1f} s: alpha {summary['alpha']:.3g}, held-out loss {summary['loss']:.5g}. Refitted to "
        f"all rows with {summary['n_components']:,} features, certified gap {max(summary['duality_gap']):.0e}."
    )
    if summary["model"] is None:
        errors.print("The tuned model was not saved. Add --model FILE to save it.")
        return
    print_model(summary)
