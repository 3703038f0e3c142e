"""`quernel forecast`: quantiles of the next values of a series in a file, printed, as a file, and as an HTML page.

The page has the fan of the next values after the last ones, their table, and how past ones did.
"""

from __future__ import annotations

import html
import json
from datetime import date
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
from quernel.cli.data import Source, check_new_files, check_outputs, check_report_path
from quernel.cli.options import DATA, QUERY, flag
from quernel.estimators.prediction import level_names
from quernel.forecasting import Backtest, QuantileForecaster
from quernel.forecasting.series import count_steps, read_series, to_seconds
from quernel.metrics import pinball_loss
from quernel.persistence import save
from quernel.plots.fans import pair_levels
from quernel.report import charts
from quernel.report.effects import fan_key
from quernel.report.formatting import (
    Cell,
    format_date,
    format_number,
    format_numbers,
    format_share,
    make_figure,
    make_table,
    numeric_cell,
)
from quernel.report.sections import assemble_page
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
    _print(source, forecaster, times, curves, past, report, as_json=as_json)


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
            "target": model.target,
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
    shown = RichTable(title=f"Forecast of {escape(str(model.target))}, {len(times):,} steps", title_justify="left")
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


# Values before the forecast that are drawn, relative to its length.
HISTORY = 1.0


def forecast_page(
    data: str, target: str, history: tuple[Array, Array], times: Array, curves: Array, past: Backtest
) -> str:
    """Return the page.

    Parameters
    ----------
    data, target : str
        Name of the file and of the column.
    history : (times, values), ndarrays of shape (n,)
        The series; times are seconds since 1970.
    times, curves : ndarrays of shape (h,) and (h, q)
        The forecast, at the levels of `past`.
    past : Backtest
        Forecasts of windows that are known by now, by models that had not seen them.
    """
    levels, parts = past.levels, pair_levels(past.levels)
    shown = history[0] > times[0] - max(HISTORY * (times[-1] - times[0]), 1.0)
    figure = make_figure(
        draw_forecast(target, history[0][shown], history[1][shown], times, curves, levels),
        f"The last values of {target} and the forecast until {format_date(times[-1])}.",
    )
    sections = {
        "forecast": ("Forecast", f"{fan_key(levels)}{figure}"),
        "table": ("Table", _forecast_table(times, curves, levels)),
        "past": ("How past forecasts did", _past_windows(past)),
    }
    bands = ", ".join(format_share(levels[b] - levels[a], 0) for a, b in parts.bands)
    top = (
        f'<p class="quiet">{html.escape(data)}, {len(history[0]):,} values until {format_date(history[0][-1])}; '
        f"intervals: {bands or 'none'}; {date.today().isoformat()}</p>"
    )
    return assemble_page(f"Forecast of {target}", top, sections)


def draw_forecast(target: str, x: Array, y: Array, times: Array, curves: Array, levels: Array) -> str:
    """Return the chart of the last values as a line, followed by the bands of the forecast."""
    known, parts = np.isfinite(y), pair_levels(levels)
    everything = np.concatenate([y[known], curves.ravel()])
    room = 0.03 * (everything.max() - everything.min())
    ends = (float(x[0]) if len(x) else float(times[0])), float(times[-1])
    fan = charts.ColumnFan("time", "date", times, (), curves, x, y)
    chart = charts.Chart(
        ends,
        (everything.min() - room, everything.max() + room),
        alt=fan.describe(levels, target),
        x_label="time",
        y_label=target,
        x_ticks=charts.calendar_ticks(*ends),
    )
    for k, (a, b) in enumerate(parts.bands):
        chart.band(times, curves[:, a], curves[:, b], "band", charts.band_opacity(k, len(parts.bands)))
    if known.any():
        chart.line(x[known], y[known], "thin")
    for k in parts.singles:
        chart.line(times, curves[:, k], "single")
    if parts.median is not None:
        chart.line(times, curves[:, parts.median], "median")
    chart.hover(times, fan.value_texts(levels))
    return chart.svg()


def _forecast_table(times: Array, curves: Array, levels: Array) -> str:
    heads: tuple[Cell | str, ...] = ("time", *(numeric_cell(f"{level:g}") for level in levels))
    lines = [
        (Cell(format_date(when), "whole"), *map(numeric_cell, row))
        for when, row in zip(times, np.reshape(format_numbers(curves.ravel()), curves.shape), strict=True)
    ]
    return make_table(heads, lines, "Quantiles of every step.")


def _past_windows(past: Backtest) -> str:
    """Coverage and loss of each window, and the share of values below each quantile over all."""
    parts, lines = pair_levels(past.levels), []
    for origin in np.unique(past.origins):
        mine = (past.origins == origin) & np.isfinite(past.y)
        if not mine.any():
            continue
        y, curves = past.y[mine], past.quantiles[mine]
        shares = [np.mean((curves[:, a] <= y) & (y <= curves[:, b])) for a, b in parts.bands]
        first = format_date(past.times[past.origins == origin].min())
        cells = (
            numeric_cell(format_number(float(pinball_loss(y, curves, quantiles=past.levels).mean()))),
            *(numeric_cell(format_share(s)) for s in shares),
        )
        lines.append((Cell(first, "whole"), *cells))
    heads: tuple[Cell | str, ...] = (
        "window from",
        numeric_cell("mean loss"),
        *(numeric_cell(f"inside {format_share(past.levels[b] - past.levels[a], 0)}") for a, b in parts.bands),
    )
    known = np.isfinite(past.y)
    below = np.mean(past.y[known, None] <= past.quantiles[known], axis=0)
    levels = make_table(
        (numeric_cell("level"), numeric_cell("values at or below")),
        [
            [numeric_cell(f"{level:g}"), numeric_cell(format_share(share))]
            for level, share in zip(past.levels, below, strict=True)
        ],
        "Share of values at or below each predicted quantile, over these windows.",
    )
    text = (
        "<p>Each window was forecast from what was known before it, by models that had seen none of the windows. Loss "
        "is the mean pinball loss over the levels.</p>"
    )
    table = make_table(heads, lines, "Past windows, and the share of values inside each interval.")
    return f'{text}<div class="beside"><div>{table}</div><div>{levels}</div></div>'
