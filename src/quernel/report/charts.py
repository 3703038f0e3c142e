"""The charts of the report: histogram, calibration, PIT histogram, and fan charts along a column."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from quernel.plots import CalibrationDisplay, ResidualQuantileDisplay
from quernel.plots.calibration import binomial_band
from quernel.plots.fans import pair_levels
from quernel.plots.style import truncate
from quernel.report.columns import day, time_of_day
from quernel.report.fans import ColumnFan
from quernel.report.number_format import number, percent, short
from quernel.report.svg import Chart, Ticks

MINUTE, HOUR, DAY = 60, 3600, 86_400
# Seconds between ticks, as on a clock.
CLOCK_STEPS = (
    *(1, 5, 15, 30, MINUTE, 5 * MINUTE, 15 * MINUTE, 30 * MINUTE),
    *(HOUR, 2 * HOUR, 3 * HOUR, 4 * HOUR, 6 * HOUR, 12 * HOUR, DAY),
)
# Steps between ticks, as in a calendar, and how many there may be: the names of days are the longest.
CALENDAR_STEPS = (
    *(("D", step, 4) for step in (1, 2, 4, 7, 14)),
    *(("M", step, 6) for step in (1, 2, 3, 4, 6)),
    *(("Y", factor * 10**power, 7) for power in range(4) for factor in (1, 2, 5)),
)


def clock_ticks(low: float, high: float) -> Ticks:
    """Round times of day, given in seconds since midnight."""
    return [(at, time_of_day(at)) for at in _clock(low, high, 6)]


def calendar_ticks(low: float, high: float) -> Ticks:
    """Years, months or days that begin between two dates, given in seconds since 1970; within two days, hours."""
    if high - low < 2 * DAY:  # days are named where they begin, or once
        hours = _clock(low, high, 5)
        named = [at for at in hours if at % DAY == 0] or hours[:1]
        return [(at, day(at) if at in named else time_of_day(at % DAY)) for at in hours]
    first, last = (np.datetime64(round(at), "s") for at in (low, high))
    for unit, step, most in CALENDAR_STEPS:
        begins = np.arange(first.astype(f"datetime64[{unit}]"), last.astype(f"datetime64[{unit}]") + 1)
        count = begins.astype(int) + (1970 if unit == "Y" else 0)
        found = begins[(begins >= first) & (count % step == 0)]
        if len(found) <= most:
            break
    return [(float(begin.astype("datetime64[s]").astype(int)), str(begin)) for begin in found]


def _clock(low: float, high: float, most: int) -> list[float]:
    step = next((step for step in CLOCK_STEPS if high - low < most * step), CLOCK_STEPS[-1])
    return [float(step * k) for k in range(int(np.ceil(low / step)), int(np.floor(high / step)) + 1)]


Array = NDArray[np.floating]

# Rows beyond these quantiles of y may fall outside a fan chart, so that a few outliers do not flatten the rest.
ENDS = (0.005, 0.995)
# Bars of a histogram that have a tick each, steps that values may be apart to be taken for counts of steps, and counts
# that have a bar each, however few the rows.
FEW_TICKS, MOST_STEPS, MOST_BARS = 6, 100_000, 16
# Beside the first and the last category; those are 1 apart.
SIDE = 0.6
# Of the names of categories, on a line below the picture, and beyond its ends.
LETTERS, LETTERS_LEFT, LETTERS_RIGHT = 52, 4, 1


def histogram(y: Array, name: str) -> str:
    """Histogram of the target."""
    edges = bins(y)
    counts, _ = np.histogram(y, edges)
    alt = (
        f"Histogram of {name}: {len(y):,} rows from {number(y.min())} to {number(y.max())}, half of them between "
        f"{number(np.quantile(y, 0.25))} and {number(np.quantile(y, 0.75))}."
    )
    few = len(edges) - 1 <= FEW_TICKS
    x_ticks = [(float(value), short(value)) for value in np.unique(y)] if few else None
    ends, top = (edges[0], edges[-1]), 1.05 * counts.max()
    chart = Chart(ends, (0, top), alt=alt, x_label=name, y_label="rows", x_ticks=x_ticks)
    chart.bars(edges, counts, "bar")
    return chart.svg()


def bins(y: Array) -> Array:
    """The edges of the bars of a histogram.

    Where all values are whole steps apart, as counts are, each bar holds as many steps as the others, and stands in
    their middle.
    """
    most = int(np.clip(np.sqrt(len(y)), 8, 30))
    values = np.unique(y)
    for step in (np.diff(values).min() if len(values) > 1 else 1.0, 1.0):
        places = (values - values[0]) / step
        if places[-1] < MOST_STEPS and np.abs(places - places.round()).max() < 1e-3:
            count = places[-1].round() + 1
            wide = 1 if count <= max(most, MOST_BARS) else np.ceil(count / most)
            return values[0] + step * (wide * np.arange(np.ceil(count / wide) + 1) - 0.5)
    return np.histogram_bin_edges(y, most)


def calibration(display: CalibrationDisplay) -> str:
    """Observed share of rows at or below each quantile, against its nominal level."""
    text = ", ".join(f"{percent(o)} at {level:g}" for level, o in zip(display.levels, display.observed, strict=True))
    n_ok, n_levels = display.holds.sum(), len(display.levels)
    alt = f"Share of rows at or below each quantile: {text}. {n_ok} of {n_levels} within chance."
    chart = Chart((0, 1), (0, 1), alt=alt, x_label="quantile level", y_label="observed share below")
    grid = np.linspace(0.002, 0.998, 80)
    chart.band(grid, *binomial_band(grid, display.n_rows, display.confidence), "chance")
    chart.line([0, 1], [0, 1], "guide")
    chart.line(display.levels, display.nearest, "thin")
    for level, below, observed in zip(display.levels, display.below, display.observed, strict=True):
        if below < observed:  # ties: rows on the curve may count to either side
            chart.line([level, level], [below, observed], "thin")
    chart.dots(display.levels[display.holds], display.nearest[display.holds], "good")
    chart.dots(display.levels[~display.holds], display.nearest[~display.holds], "bad")
    return chart.svg()


def pit(display: ResidualQuantileDisplay) -> str:
    """PIT histogram: rows between neighbouring quantiles, relative to the expected number."""
    edges = np.r_[0.0, display.levels, 1.0]
    widths = np.diff(edges)
    low, high = (band / widths for band in binomial_band(widths, display.n_rows, display.confidence))
    text = ", ".join(
        f"{d:.2f} from {a:g} to {b:g}" for d, a, b in zip(display.density, edges[:-1], edges[1:], strict=True)
    )
    alt = f"Rows between neighbouring quantiles relative to the expected number: {text}. 1 is ideal."
    top = 1.15 * max(display.density.max(), high.max())
    chart = Chart((0, 1), (0, top), alt=alt, x_label="between quantile levels", y_label="observed / expected")
    chart.bars(edges, display.density, "bar")
    chart.line([0, 1], [1, 1], "guide")
    chart.whiskers(edges[:-1] + widths / 2, low, high, "whisker")
    return chart.svg()


def fan(one: ColumnFan, levels: Array, target: str) -> str:
    """Fan chart: predicted quantiles along a column, with a sample of the rows."""
    low, high = one.curves.min(), one.curves.max()
    if len(one.y):
        low, high = min(low, np.quantile(one.y, ENDS[0])), max(high, np.quantile(one.y, ENDS[1]))
    room = 0.03 * (high - low)
    side = SIDE if one.categories else 1.25 * one.scattered
    ends = one.grid[0] - side, one.grid[-1] + side
    x_ticks: Ticks | None = None
    lines = 1
    if one.categories:
        x_ticks, lines = _names(one.categories)
    elif one.kind == "date":
        x_ticks = calendar_ticks(*ends)
    elif one.kind == "time":
        x_ticks = clock_ticks(*ends)
    chart = Chart(
        ends,
        (low - room, high + room),
        alt=_describe(one, levels, target),
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


def _names(categories: Sequence[str]) -> tuple[Ticks, int]:
    """The names of categories, cut to the room that their neighbours and the edges leave, and on how many lines."""
    last = len(categories) - 1
    each = LETTERS / (last + 2 * SIDE)
    lines = 1 if max(map(len, categories)) <= each else min(2, len(categories))
    names = []
    for k, name in enumerate(categories):  # those at the right end may move to the left, as `Chart` has it
        left = min(lines * each / 2, (k + SIDE) * each + LETTERS_LEFT)
        right = min(lines * each / 2, (last - k + SIDE) * each + LETTERS_RIGHT)
        names.append((k, truncate(name, max(4, int(left + min(left, right))))))
    return names, lines


def _curves(chart: Chart, one: ColumnFan, levels: Array) -> None:
    parts = pair_levels(levels)
    for k, (a, b) in enumerate(parts.bands):
        chart.band(one.grid, one.curves[:, a], one.curves[:, b], "band", opacity(k, len(parts.bands)))
    chart.dots(one.x, one.y, "rows")
    for k in parts.singles:
        chart.line(one.grid, one.curves[:, k], "single")
    if parts.median is not None:
        chart.line(one.grid, one.curves[:, parts.median], "median")


def _boxes(chart: Chart, one: ColumnFan, levels: Array) -> None:
    parts = pair_levels(levels)
    for at, row in zip(one.grid, one.curves, strict=True):
        ends = [at - 0.35, at + 0.35]
        for k, (a, b) in enumerate(parts.bands):
            chart.band(ends, [row[a]] * 2, [row[b]] * 2, "band", opacity(k, len(parts.bands)))
    chart.dots(one.x, one.y, "rows")
    for at, row in zip(one.grid, one.curves, strict=True):
        for k in (*parts.singles, *([] if parts.median is None else [parts.median])):
            chart.line([at - 0.35, at + 0.35], [row[k]] * 2, "median" if k == parts.median else "single")


def _describe(one: ColumnFan, levels: Array, target: str) -> str:
    """Describe a fan chart for screen readers by its first, highest and last point."""
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
    as_text = {"date": day, "time": time_of_day}.get(one.kind, number)
    return as_text(one.grid[k])


def opacity(k: int, count: int) -> float:
    """Opacity of the k-th band from outside; outer bands are paler and lie under the inner ones."""
    return 0.28 if count == 1 else 0.2 + 0.35 * k / (count - 1)
