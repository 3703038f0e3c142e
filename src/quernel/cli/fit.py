"""`quernel fit`: from a data file to a model file."""

from __future__ import annotations

import json
import time
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table as RichTable

from quernel.cli.console import console, errors, fitting, listed, note, working
from quernel.cli.pages import check_page, judged_summary, tell, write_page
from quernel.estimators import KernelQuantileRegressor
from quernel.estimators.levels import check_levels
from quernel.kernels import KERNELS
from quernel.persistence import save
from quernel.report import judge_by_refitting, report_page
from quernel.tables import TableError, TableModel, Training, prepare, read
from quernel.tables.files import check_free

LEVELS = "0.05,0.25,0.5,0.75,0.95"
FEWEST_ROWS = 20


def fit(
    data: Annotated[Path, typer.Argument(help="CSV (also .gz, .bz2, .zst), Parquet or Arrow file.")],
    target: Annotated[str, typer.Option(help="Column to predict.")],
    model: Annotated[Path, typer.Option(help="File to write the model to, such as m.quernel.")],
    quantiles: Annotated[str, typer.Option(help="Levels between 0 and 1, separated by commas.")] = LEVELS,
    columns: Annotated[str | None, typer.Option(help="Input columns, separated by commas; all by default.")] = None,
    exclude: Annotated[str | None, typer.Option(help="Columns not to use, separated by commas.")] = None,
    weights: Annotated[str | None, typer.Option(help="Column with the weight of each row.")] = None,
    log_target: Annotated[
        bool, typer.Option("--log-target", help="Fit the logarithm of the target; quantiles are mapped back.")
    ] = False,
    kernel: Annotated[str, typer.Option(help=f"One of {', '.join(KERNELS)}.")] = "gaussian",
    components: Annotated[
        str, typer.Option(help='Number of random features; "auto" looks for it, "exact" uses the kernel itself.')
    ] = "auto",
    alpha: Annotated[float | None, typer.Option(help="Ridge weight; chosen from the target by default.")] = None,
    seed: Annotated[int, typer.Option(help="Makes the fit repeatable.", min=0)] = 0,
    report: Annotated[
        Path | None, typer.Option(help="File for a page about the model, judged on held-out rows, such as r.html.")
    ] = None,
    time_ordered: Annotated[
        bool, typer.Option("--time-ordered", help="For the report, hold out the last rows instead of random ones.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace earlier files.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Fit conditional quantiles of a column given the others, and write the model to a file."""
    estimator = KernelQuantileRegressor(
        levels_from(quantiles),
        kernel=kernel,
        n_components=int(components) if components.isdigit() else components,
        alpha="auto" if alpha is None else alpha,
        random_state=seed,
    )
    estimator._check_parameters()
    check_free(model, overwrite=force, remedy="--force")
    if report is not None:
        check_page(report, force=force)
    elif time_ordered:
        raise ValueError("--time-ordered says which rows a report holds out: add --report PAGE.html, or leave it out.")
    table = read(data)
    training = prepare(
        table,
        target,
        columns=None if columns is None else listed(columns),
        exclude=listed(exclude or ""),
        weights=weights,
        log_target=log_target,
    )
    if len(training.y) < FEWEST_ROWS:
        raise TableError(f"{data} has {len(training.y)} rows with a target; at least {FEWEST_ROWS} are needed.")
    seconds = fit_quietly(estimator, training)
    fitted = TableModel(training.encoder, estimator, target, log_target)
    save(fitted, model, overwrite=force)
    summary = summarized(estimator, training, data, target, model, seconds)
    if report is not None:
        with working("Judging the model on held-out rows"):
            judged = judge_by_refitting(fitted, training, seed=seed, time_ordered=time_ordered)
            page = report_page(fitted, table, judged, data=data.name, model_file=model.name)
        write_page(page, report, force=force)
        summary |= {"report": str(report), "judged": judged_summary(judged)}
    if as_json:
        typer.echo(json.dumps(summary))
    else:
        console.print(_table(training))
        _tell(summary)
        if report is not None:
            tell(judged, report)


def levels_from(text: str) -> list[float]:
    """The levels in a text such as 0.05,0.5,0.95."""
    try:
        levels = [float(word) for word in listed(text)]
    except ValueError as error:
        raise ValueError(f"--quantiles must be numbers separated by commas, such as {LEVELS}; got {text!r}.") from error
    check_levels(levels)
    return levels


def fit_quietly(estimator: KernelQuantileRegressor, training: Training) -> float:
    """Fit, show how it goes, and turn warnings into notes; returns the seconds it took."""
    for sentence in training.notes:
        note(sentence)
    if training.dropped:
        note(f"{training.dropped:,} rows without a target are left out.")
    start = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with fitting(f"Fitting {len(estimator.quantiles)} quantile levels to {len(training.y):,} rows"):
            estimator.fit(training.X, training.y, sample_weight=training.weight)
    for warning in caught:
        note(str(warning.message))
    return time.perf_counter() - start


def summarized(
    estimator: KernelQuantileRegressor, training: Training, data: Path, target: str, model: Path, seconds: float
) -> dict[str, Any]:
    """What was done, for machines and people."""
    return {
        "model": str(model),
        "bytes": model.stat().st_size,
        "data": str(data),
        "target": target,
        "rows": len(training.y),
        "rows_without_target": training.dropped,
        "columns": {column.name: column.kind for column in training.encoder.columns},
        "encoded_columns": len(training.encoder.names),
        "quantiles": estimator.quantiles_.tolist(),
        "n_components": estimator.n_components_,
        "alpha": estimator.alpha_,
        "duality_gap": estimator.duality_gap_.tolist(),
        "crossing_rate": float(estimator.crossing_rate_),
        "seconds": round(seconds, 3),
        "notes": list(training.notes),
    }


def _table(training: Training) -> RichTable:
    table = RichTable(title="Input columns")
    for heading in ("column", "read as", "becomes"):
        table.add_column(heading)
    for column in training.encoder.columns:
        names = [name.removeprefix(column.name).removeprefix(" = ").strip() or "itself" for name in column.names]
        shown = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
        table.add_row(column.name, column.kind, shown)
    return table


def _tell(summary: dict[str, Any]) -> None:
    console.print(
        f"{len(summary['quantiles'])} levels of {summary['target']!r} fitted to {summary['rows']:,} rows in "
        f"{summary['seconds']:.1f} s: {summary['n_components']:,} features, alpha {summary['alpha']:.2g}, "
        f"certified gap {max(summary['duality_gap']):.0e}.",
        highlight=False,
    )
    console.print(f"Model: [bold]{summary['model']}[/] ({summary['bytes'] / 1000:,.0f} kB)", highlight=False)
    errors.print(f"Next: quernel predict {summary['model']} NEW_DATA --out PREDICTIONS.csv", highlight=False)
