"""`quernel tune`: choose ridge weight and bandwidth for a data file by held-out loss."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table as RichTable

from quernel.cli.console import console, errors, note, parse_bandwidth, split_list
from quernel.cli.data import Source, check_new_files, check_outputs, load_training_data
from quernel.cli.fit import fit_with_progress, print_model, summarize_model
from quernel.cli.options import DATA, FOLDS, TARGET, SearchOptions, TrainingOptions, expand_options, flag
from quernel.conformal.table_model import TableModel
from quernel.estimators.quantile_cv import FACTORS, KernelQuantileRegressorCV
from quernel.forecasting import time_splits
from quernel.forecasting.series import to_seconds
from quernel.persistence import save
from quernel.report.formatting import format_count
from quernel.tables.frames import TableError, suggest_name
from quernel.tables.training_data import ReadOptions, TrainingData, read_numbers


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
