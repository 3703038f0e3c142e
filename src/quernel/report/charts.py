"""The charts of the page."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quernel.plots import CalibrationDisplay, ResidualQuantileDisplay
from quernel.plots.checks import binomial_band
from quernel.plots.fan import arrange
from quernel.report.columns import day, time_of_day
from quernel.report.fans import ColumnFan
from quernel.report.svg import Chart
from quernel.report.words import number, percent

Array = NDArray[np.floating]

# The targets and rows beyond these quantiles may leave the picture of a fan, so that a few do not flatten the rest.
ENDS = (0.005, 0.995)
# Of the names of categories, on a line below the picture.
LETTERS = 56


def histogram(y: Array, name: str) -> str:
    """How the target is distributed."""
    counts, edges = np.histogram(y, bins=int(np.clip(np.sqrt(len(y)), 8, 30)))
    alt = (
        f"Histogram of {name}: {len(y):,} rows from {number(y.min())} to {number(y.max())}, half of them between "
        f"{number(np.quantile(y, 0.25))} and {number(np.quantile(y, 0.75))}."
    )
    chart = Chart((edges[0], edges[-1]), (0, 1.05 * counts.max()), alt=alt, x_label=name, y_label="rows")
    chart.bars(edges, counts, "bar")
    return chart.svg()


def calibration(display: CalibrationDisplay) -> str:
    """Level asked for against share observed."""
    told = ", ".join(f"{percent(o)} at {level:g}" for level, o in zip(display.levels, display.observed, strict=True))
    alt = f"Share of rows at or below each curve: {told}. {display.holds.sum()} of {len(display.levels)} within chance."
    chart = Chart((0, 1), (0, 1), alt=alt, x_label="level asked for", y_label="share of rows below")
    grid = np.linspace(0.002, 0.998, 80)
    chart.band(grid, *binomial_band(grid, display.n_rows, display.confidence), "chance")
    chart.line([0, 1], [0, 1], "guide")
    chart.line(display.levels, display.nearest, "thin")
    for level, below, observed in zip(display.levels, display.below, display.observed, strict=True):
        if below < observed:  # rows on the curve, which may count to either side
            chart.line([level, level], [below, observed], "thin")
    chart.dots(display.levels[display.holds], display.nearest[display.holds], "good")
    chart.dots(display.levels[~display.holds], display.nearest[~display.holds], "bad")
    return chart.svg()


def pit(display: ResidualQuantileDisplay) -> str:
    """Rows between neighbouring curves, over those expected."""
    edges = np.r_[0.0, display.levels, 1.0]
    widths = np.diff(edges)
    low, high = (band / widths for band in binomial_band(widths, display.n_rows, display.confidence))
    told = ", ".join(
        f"{d:.2f} from {a:g} to {b:g}" for d, a, b in zip(display.density, edges[:-1], edges[1:], strict=True)
    )
    alt = f"Rows between neighbouring curves over rows expected: {told}. 1 is right."
    top = 1.15 * max(display.density.max(), high.max())
    chart = Chart((0, 1), (0, top), alt=alt, x_label="between the levels", y_label="rows / expected")
    chart.bars(edges, display.density, "bar")
    chart.line([0, 1], [1, 1], "guide")
    chart.whiskers(edges[:-1] + widths / 2, low, high, "whisker")
    return chart.svg()


def fan(one: ColumnFan, levels: Array, target: str) -> str:
    """Quantile curves along a column, over some of the rows."""
    low, high = one.curves.min(), one.curves.max()
    if len(one.y):
        low, high = min(low, np.quantile(one.y, ENDS[0])), max(high, np.quantile(one.y, ENDS[1]))
    room = 0.03 * (high - low)
    ends = (-0.6, len(one.grid) - 0.4) if one.categories else (one.grid[0], one.grid[-1])
    x_ticks, lines = None, 1
    if one.categories:
        room_for = LETTERS // len(one.grid)
        lines = 1 if max(map(len, one.categories)) <= room_for else 2
        letters = max(4, lines * room_for)
        x_ticks = [(k, _cut(name, letters)) for k, name in enumerate(one.categories)]
    elif one.kind == "date":
        x_ticks = [(at, day(at)[:10]) for at in np.linspace(*ends, 5)[1:-1]]
    elif one.kind == "time":
        x_ticks = [(at, time_of_day(at - at % 60)) for at in np.linspace(*ends, 5)[1:-1]]
    chart = Chart(
        ends,
        (low - room, high + room),
        alt=_told(one, levels, target),
        x_label=one.name,
        y_label=target,
        x_ticks=x_ticks,
        tick_lines=lines,
    )
    if one.categories:
        _boxes(chart, one, levels)
    else:
        _curves(chart, one, levels)
    return chart.svg()


def _curves(chart: Chart, one: ColumnFan, levels: Array) -> None:
    parts = arrange(levels)
    for k, (a, b) in enumerate(parts.bands):
        chart.band(one.grid, one.curves[:, a], one.curves[:, b], "band", opacity(k, len(parts.bands)))
    chart.dots(one.x, one.y, "rows")
    for k in parts.singles:
        chart.line(one.grid, one.curves[:, k], "single")
    if parts.median is not None:
        chart.line(one.grid, one.curves[:, parts.median], "median")


def _boxes(chart: Chart, one: ColumnFan, levels: Array) -> None:
    parts = arrange(levels)
    for at, row in zip(one.grid, one.curves, strict=True):
        ends = [at - 0.35, at + 0.35]
        for k, (a, b) in enumerate(parts.bands):
            chart.band(ends, [row[a]] * 2, [row[b]] * 2, "band", opacity(k, len(parts.bands)))
    chart.dots(one.x, one.y, "rows")
    for at, row in zip(one.grid, one.curves, strict=True):
        for k in (*parts.singles, *([] if parts.median is None else [parts.median])):
            chart.line([at - 0.35, at + 0.35], [row[k]] * 2, "median" if k == parts.median else "single")


def _told(one: ColumnFan, levels: Array, target: str) -> str:
    """What a fan shows, in words: its first, its highest and its last point."""
    middle = int(np.argmin(np.abs(levels - 0.5)))
    at = [0, int(np.argmax(one.curves[:, middle])), len(one.grid) - 1]
    name = one.categories.__getitem__ if one.categories else lambda k: _value(one, k)
    points = "; ".join(
        f"at {name(k)} {number(one.curves[k, middle])}"
        + (f" ({number(one.curves[k, 0])} to {number(one.curves[k, -1])})" if len(levels) > 1 else "")
        for k in dict.fromkeys(at)
    )
    return f"Predicted {target} along {one.name}, level {levels[middle]:g} (lowest to highest level): {points}."


def _value(one: ColumnFan, k: int) -> str:
    words = {"date": day, "time": time_of_day}.get(one.kind, number)
    return words(one.grid[k])


def opacity(k: int, count: int) -> float:
    """Outer bands are paler; they lie under the inner ones, which add to them."""
    return 0.28 if count == 1 else 0.2 + 0.35 * k / (count - 1)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
