"""The HTML page of a forecast: the fan of the next values after the last ones, their table, and how past ones did."""

from __future__ import annotations

from datetime import date
from html import escape

import numpy as np
from numpy.typing import NDArray

from quernel.forecasting import Backtest
from quernel.metrics import pinball_loss
from quernel.plots import CalibrationDisplay
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

Array = NDArray[np.floating]

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
        f'<p class="quiet">{escape(data)}, {len(history[0]):,} values until {format_date(history[0][-1])}; intervals: '
        f"{bands or 'none'}; {date.today().isoformat()}</p>"
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
    """Coverage and loss of each window, and the calibration over all of them."""
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
    display = CalibrationDisplay.compute(past.y[known], past.quantiles[known], past.levels)
    picture = make_figure(
        charts.draw_calibration(display),
        "Calibration over these windows: points on the dashed line are ideal. Hours of one window are alike, so that "
        "chance moves the points further than the band says.",
    )
    text = (
        "<p>Each window was forecast from what was known before it, by models that had seen none of the windows. Loss "
        "is the mean pinball loss over the levels.</p>"
    )
    table = make_table(heads, lines, "Past windows, and the share of values inside each interval.")
    return f'{text}<div class="beside"><div>{table}</div><div>{picture}</div></div>'
