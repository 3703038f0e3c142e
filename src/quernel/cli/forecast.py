"""`quernel forecast`: quantiles of the next values of a series in a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import numpy as np
import pyarrow as pa
import typer
from numpy.typing import NDArray
from rich.markup import escape
from rich.table import Table as RichTable

from quernel._files import write_text_atomically
from quernel.cli.console import LEVELS, console, parse_levels, working
from quernel.cli.data import Source, check_new_files, check_outputs
from quernel.cli.options import DATA, QUERY, flag
from quernel.cli.report import check_report_path
from quernel.estimators.prediction import level_names
from quernel.forecasting import Backtest, QuantileForecaster
from quernel.forecasting.series import count_steps, read_series, to_seconds
from quernel.metrics import pinball_loss
from quernel.persistence import save
from quernel.report.forecast import forecast_page
from quernel.report.formatting import format_date, format_number
from quernel.tables.csv_files import CsvOptions

Array = NDArray[np.floating]

# Lines of the forecast that are printed, at most.
SHOWN = 12


def forecast(
    data: Annotated[Path | None, typer.Argument(help=DATA)] = None,
    *,
    time: Annotated[str, typer.Option(help="Column of dates, at regular steps.")],
    target: Annotated[str, typer.Option(help="Column to forecast.")],
    horizon: Annotated[
        str, typer.Option(help="How far ahead: a duration such as 31d, 24h, 30min, or a number of steps.")
    ],
    quantiles: Annotated[str, typer.Option(help="Quantile levels, separated by commas.")] = LEVELS,
    season: Annotated[
        str | None, typer.Option(help="Main season, such as 24h; a day for steps below a day, a week for days.")
    ] = None,
    windows: Annotated[int, typer.Option(help="Past windows of this length that are forecast as a check.", min=1)] = 4,
    out: Annotated[Path | None, typer.Option(help="CSV file for the forecast.")] = None,
    model: Annotated[Path | None, typer.Option(help="File for the fitted forecaster, for quernel.load.")] = None,
    report: Annotated[Path | None, typer.Option(help="File for the report, such as forecast.html.")] = None,
    query: Annotated[str | None, typer.Option(help=QUERY)] = None,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    force: Annotated[bool, flag("--force", "Overwrite existing files.")] = False,
    as_json: Annotated[bool, flag("--json", "Print JSON instead of a table.")] = False,
) -> None:
    """Forecast quantiles of the next values of a series, from its lags and the calendar.

    Before, the last windows are forecast from what was known before them, to show how far forecasts can be trusted.
    """
    source = Source(data, query)
    check_outputs({"--out": out, "--model": model, "--report": report}, source)
    check_new_files([out, model], force=force)
    check_report_path(report, force=force)
    levels = np.sort(parse_levels(quantiles))
    with source.open(CsvOptions(), lambda name: name in (time, target)) as opened:
        table = opened.read([field.name for field in opened.schema if field.name in (time, target)])
    ahead = int(horizon) if horizon.isdigit() else horizon
    forecaster = QuantileForecaster(ahead, season=season, quantiles=levels, time=time, target=target, random_state=seed)
    past = _check_on_past(forecaster, table, windows)
    with working(f"Forecasting {target} {horizon} ahead"):
        found = forecaster.fit(table).predict()
    times = to_seconds(found[time])
    curves = np.column_stack([found[name].to_numpy() for name in level_names(levels)])
    if out is not None:
        stamps = times.astype("M8[s]").astype(str)
        lines = [",".join([time, *level_names(levels)])]
        lines += [",".join([when, *map(repr, row)]) for when, row in zip(stamps, curves.tolist(), strict=True)]
        write_text_atomically(out, "\n".join(lines) + "\n", overwrite=force)
    if model is not None:
        save(forecaster, model, overwrite=force)
    if report is not None:
        series = forecaster.series_[0]
        page = forecast_page(source.name, target, (series.times, series.y), times, curves, past)
        write_text_atomically(report, page, overwrite=force)
    _print(source, target, forecaster, times, curves, past, report, as_json=as_json)


def _check_on_past(model: QuantileForecaster, table: pa.Table, windows: int) -> Backtest:
    """Forecast the last windows by models that have seen none of them."""
    assert model.target is not None
    (series,) = read_series(table, model.time, model.target, [], None)
    n_rows, steps = len(series.y), count_steps(model.horizon, series.step)
    first = n_rows - windows * steps
    if first < n_rows / 3:
        raise ValueError(
            f"{windows} windows of {steps:,} steps leave {max(first, 0):,} of {n_rows:,} rows to learn from. Use fewer "
            "--windows or a shorter --horizon."
        )
    with working(f"Forecasting {windows} past windows"):
        before = table.take(np.argsort(to_seconds(table[model.time]), kind="stable")[:first])
        return model.fit(before).backtest(table, start=first)


def _print(
    source: Source,
    target: str,
    model: QuantileForecaster,
    times: Array,
    curves: Array,
    past: Backtest,
    report: Path | None,
    *,
    as_json: bool,
) -> None:
    known = np.isfinite(past.y)
    loss = pinball_loss(past.y[known], past.quantiles[known], quantiles=past.levels)
    inside = np.mean((past.quantiles[known, 0] <= past.y[known]) & (past.y[known] <= past.quantiles[known, -1]))
    if as_json:
        summary = {
            "data": str(source),
            "target": target,
            "steps": len(times),
            "quantiles": past.levels.tolist(),
            "times": times.astype("M8[s]").astype(str).tolist(),
            "forecast": curves.tolist(),
            "past_windows": len(np.unique(past.origins)),
            "past_loss": float(np.mean(loss)),
            "past_coverage": float(inside),
            "report": None if report is None else str(report),
        }
        typer.echo(json.dumps(summary))
        return
    shown = RichTable(title=f"Forecast of {escape(target)}, {len(times):,} steps", title_justify="left")
    shown.add_column(model.time)
    for name in level_names(past.levels):
        shown.add_column(name, justify="right")
    for when, row in list(zip(times, curves, strict=True))[:SHOWN]:
        shown.add_row(format_date(when), *map(format_number, row))
    console.print(shown)
    if len(times) > SHOWN:
        console.print(f"... and {len(times) - SHOWN:,} more; --out writes all of them to a file.")
    console.print(
        f"{len(np.unique(past.origins))} past windows, forecast from what was known before each: mean pinball loss "
        f"{format_number(float(np.mean(loss)))}; {inside:.1%} of the values lie between the levels "
        f"{past.levels[0]:g} and {past.levels[-1]:g}."
    )
    if report is not None:
        console.print(f"Report: [bold]{escape(str(report))}[/]")
