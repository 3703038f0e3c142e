"""The charts of the report as SVG text: histogram, values over time, and fan charts along a column.

They draw the numbers of the displays of `quernel.plots`, without matplotlib. Colours are CSS classes of the page's
style sheet, for light and dark themes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quernel.plots import QuantileFanDisplay
from quernel.plots.fans import pair_levels
from quernel.plots.inputs import GRID, is_time_of_day, to_seconds
from quernel.plots.style import truncate
from quernel.report.formatting import (
    format_count,
    format_date,
    format_number,
    format_numbers,
    format_share,
    format_tick,
    format_time,
    may_be_years,
)

Array = NDArray[np.floating]
Ticks = Sequence[tuple[float, str]]

# Size and margins of a drawing, in its own units: about its pixels on a phone. Text is 12 high.
WIDTH, HEIGHT = 440, 290
RIGHT, TOP, BOTTOM = 10, 12, 44
# Room for the label of the upright axis, and for each letter of its longest tick; the height of a line of ticks.
LABEL, LETTER, LINE = 26, 7.5, 13
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
# Of a histogram: bars that have a tick each, steps that values may be apart to be taken for counts of steps, and counts
# that have a bar each, however few the rows.
FEW_TICKS, MOST_STEPS, MOST_BARS = 6, 100_000, 16
# Of a fan chart: rows that are drawn (a random sample), their jitter relative to the distance to the next value, half
# the width of a category, and the margin beside the first and the last one; categories are 1 apart.
MOST_POINTS, JITTER, HALF_WIDTH, MARGIN = 400, 0.2, 0.35, 0.6
# Ranges in the text at a pointer.
MOST_RANGES = 3
# Letters of the names of categories that fit on a line below the chart, and beyond its ends.
LETTERS, LETTERS_LEFT, LETTERS_RIGHT = 52, 4, 1


class Chart:
    """Axes on which lines, bands, bars and dots are put, each above those before.

    Parameters
    ----------
    x, y : (low, high), the ends of the axes
    alt : str, what the chart shows, for screen readers
    x_label, y_label : str
    x_ticks : sequence of (value, name), or None for round numbers
    tick_lines : int
        Lines on which the names of the ticks of x take turns, so that long ones do not overlap.
    """

    def __init__(
        self,
        x: tuple[float, float],
        y: tuple[float, float],
        *,
        alt: str,
        x_label: str,
        y_label: str,
        x_ticks: Ticks | None = None,
        tick_lines: int = 1,
    ) -> None:
        self.x, self.y = _widen(x), _widen(y)
        self.alt, self.x_label, self.y_label = alt, x_label, y_label
        self.x_ticks = round_ticks(*self.x) if x_ticks is None else x_ticks
        self.y_ticks = round_ticks(*self.y)
        self.left = LABEL + LETTER * max((len(text) for _, text in self.y_ticks), default=0)
        self.tick_lines, self.bottom = tick_lines, HEIGHT - BOTTOM - LINE * (tick_lines - 1)
        self.marks: list[str] = []
        self.values: list[tuple[float, str]] = []

    def across(self, x: ArrayLike) -> Array:
        """Where x is in the drawing."""
        low, high = self.x
        return self.left + (np.asarray(x, dtype=float) - low) / (high - low) * (WIDTH - self.left - RIGHT)

    def down(self, y: ArrayLike) -> Array:
        """Where y is in the drawing."""
        low, high = self.y
        return self.bottom - (np.asarray(y, dtype=float) - low) / (high - low) * (self.bottom - TOP)

    def line(self, x: ArrayLike, y: ArrayLike, kind: str) -> None:
        """Draw a line through points."""
        self.marks.append(f'<path class="line {kind}" d="{self._path(x, y)}"/>')

    def band(self, x: ArrayLike, low: ArrayLike, high: ArrayLike, kind: str, opacity: float = 1.0) -> None:
        """Fill the area between two lines."""
        outline = np.r_[np.asarray(x), np.asarray(x)[::-1]], np.r_[np.asarray(low), np.asarray(high)[::-1]]
        self.marks.append(f'<path class="{kind}" fill-opacity="{opacity:.2f}" d="{self._path(*outline)}Z"/>')

    def dots(self, x: ArrayLike, y: ArrayLike, kind: str) -> None:
        """Draw points; those outside the axes are left out. Each is a tiny line: one of no length is lost in print."""
        x, y = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
        inside = (x >= self.x[0]) & (x <= self.x[1]) & (y >= self.y[0]) & (y <= self.y[1])
        places = zip(self.across(x[inside]), self.down(y[inside]), strict=True)
        self.marks.append(f'<path class="dots {kind}" d="{"".join(f"M{a:.1f} {b:.1f}h.1" for a, b in places)}"/>')

    def bars(self, edges: ArrayLike, heights: ArrayLike, kind: str) -> None:
        """Draw bars from 0 up, between neighbouring edges."""
        edges = np.asarray(edges, dtype=float)
        for left, right, height in zip(edges[:-1], edges[1:], np.asarray(heights), strict=True):
            self.band([left, right], [0, 0], [height, height], kind)

    def hover(self, x: ArrayLike, texts: Iterable[str]) -> None:
        """Give values to show where a pointer is nearest to each x."""
        self.values += [(round(float(at), 1), text) for at, text in zip(self.across(x), texts, strict=True)]

    def svg(self) -> str:
        """Return the chart as text."""
        values = f' data-values="{escape(json.dumps(self.values))}"' if self.values else ""
        return (
            f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(self.alt)}"{values}>'
            f"{self._frame()}{''.join(self.marks)}</svg>"
        )

    def _frame(self) -> str:
        """Return grid, ticks and labels."""
        left, bottom, right = self.left, self.bottom, WIDTH - RIGHT
        drawn = []
        for value, text in self.y_ticks:
            at = float(self.down(value))
            drawn.append(f'<path class="grid" d="M{left} {at:.1f}H{right}"/>')
            drawn.append(f'<text x="{left - 6}" y="{at + 4:.1f}" text-anchor="end">{escape(text)}</text>')
        for k, (value, text) in enumerate(self.x_ticks):
            at, line = float(self.across(value)), bottom + 16 + LINE * (k % self.tick_lines)
            drawn.append(f'<path class="grid" d="M{at:.1f} {TOP}V{bottom}"/>')
            # A name that the edge would cut ends there.
            place, anchor = (WIDTH, "end") if at + LETTER * len(text) / 2 > WIDTH else (round(at, 1), "middle")
            drawn.append(f'<text x="{place}" y="{line}" text-anchor="{anchor}">{escape(text)}</text>')
        below, beside = (escape(truncate(text, most)) for text, most in ((self.x_label, 56), (self.y_label, 36)))
        middle, at = (left + right) / 2, (TOP + bottom) / 2
        drawn.append(f'<text class="label" x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">{below}</text>')
        turned = f"translate(12 {at}) rotate(-90)"
        drawn.append(f'<text class="label" transform="{turned}" text-anchor="middle">{beside}</text>')
        return "".join(drawn)

    def _path(self, x: ArrayLike, y: ArrayLike) -> str:
        """Return the path through points, in the syntax of SVG."""
        low, high = self.y
        reach = high - low  # far beyond the axes nothing is seen, and huge numbers only make trouble
        y = np.clip(np.asarray(y, dtype=float), low - reach, high + reach)
        return "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in zip(self.across(x), self.down(y), strict=True))


def round_ticks(low: float, high: float, most: int = 6) -> Ticks:
    """Return at most `most` round numbers between low and high, with their labels."""
    rough = (high - low) / max(most - 1, 1)
    power = 10.0 ** np.floor(np.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * (1 - 1e-9))
    values = step * np.arange(np.ceil(low / step - 1e-9), np.floor(high / step + 1e-9) + 1)
    years = may_be_years(values)
    return [(float(value), f"{value:.0f}" if years else format_tick(float(value) + 0.0)) for value in values]


def clock_ticks(low: float, high: float) -> Ticks:
    """Return round times of day between two, given in seconds since midnight, with their labels."""
    return [(at, format_time(at)) for at in _clock_values(low, high, 6)]


def calendar_ticks(low: float, high: float) -> Ticks:
    """Return years, months or days that begin between two dates, in seconds since 1970; within two days, hours."""
    if high - low < 2 * DAY:  # days are named where they begin, or once
        hours = _clock_values(low, high, 5)
        named = [at for at in hours if at % DAY == 0] or hours[:1]
        return [(at, format_date(at) if at in named else format_time(at % DAY)) for at in hours]
    first, last = (np.datetime64(round(at), "s") for at in (low, high))
    for unit, step, most in CALENDAR_STEPS:
        begins = np.arange(first.astype(f"datetime64[{unit}]"), last.astype(f"datetime64[{unit}]") + 1)
        count = begins.astype(int) + (1970 if unit == "Y" else 0)
        found = begins[(begins >= first) & (count % step == 0)]
        if len(found) <= most:
            break
    return [(float(begin.astype("datetime64[s]").astype(int)), str(begin)) for begin in found]


def _clock_values(low: float, high: float, most: int) -> list[float]:
    """Return times that are a round step apart, fewer than `most` steps."""
    step = next((step for step in CLOCK_STEPS if high - low < most * step), CLOCK_STEPS[-1])
    return [float(step * k) for k in range(int(np.ceil(low / step)), int(np.floor(high / step)) + 1)]


def _widen(ends: tuple[float, float]) -> tuple[float, float]:
    """Return the ends of an axis, moved apart if they are equal."""
    low, high = map(float, ends)
    if high > low:
        return low, high
    room = abs(low) / 10 or 1.0
    return low - room, low + room


def draw_histogram(y: Array, name: str) -> str:
    """Return the histogram of the target."""
    edges = bin_edges(y)
    counts, _ = np.histogram(y, edges)
    lowest, lower, upper, highest = (format_number(value) for value in np.quantile(y, [0, 0.25, 0.75, 1]))
    alt = f"Histogram of {name}: {len(y):,} rows from {lowest} to {highest}, half of them between {lower} and {upper}."
    few = len(edges) - 1 <= FEW_TICKS
    x_ticks = [(float(value), format_tick(value)) for value in np.unique(y)] if few else None
    ends, top = (edges[0], edges[-1]), 1.05 * counts.max()
    chart = Chart(ends, (0, top), alt=alt, x_label=name, y_label="rows", x_ticks=x_ticks)
    chart.bars(edges, counts, "bar")
    bars = zip(edges[:-1], edges[1:], counts, strict=True)
    middles = (edges[1:] + edges[:-1]) / 2
    chart.hover(middles, (f"{format_number(a)} to {format_number(b)}\n{n:,} rows" for a, b, n in bars))
    return chart.svg()


def bin_edges(y: Array) -> Array:
    """Return the edges of the bars of a histogram.

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


def draw_over_time(
    times: Array,
    values: Array,
    name: str,
    *,
    reference: Array,
    chance: tuple[Array, Array] | None = None,
    dated: bool = True,
) -> str:
    """Return the chart of a value in consecutive periods.

    Parameters
    ----------
    times : ndarray of shape (b,), a time within each period, in seconds since 1970; numbers of rows, if not `dated`
    values : ndarray of shape (b,)
    name : str, what the values are, for the upright axis
    reference : ndarray of shape (b,), what they are compared with: a dashed line
    chance : lower and upper bounds, (b,) each, within which values vary by chance; None for none
    """
    everything = np.concatenate([values, reference, *(chance or ())])
    room = 0.06 * (everything.max() - everything.min())
    least = max(everything.min() - room, 0.0)
    names = [(format_date if dated else format_number)(at) for at in times]
    alt = f"{name} from {names[0]} to {names[-1]}: " + ", ".join(map(format_number, values))
    ticks = calendar_ticks(times[0], times[-1]) if dated else None
    side = 0.03 * (times[-1] - times[0])  # else the first point would cover a tick
    ends, top = (times[0] - side, times[-1] + side), everything.max() + room
    x_label = "time" if dated else "row, in time order"
    chart = Chart(ends, (least, top), alt=alt, x_label=x_label, y_label=name, x_ticks=ticks)
    holds = np.ones(len(values), dtype=bool)
    if chance is not None:
        chart.band(times, *chance, "chance")
        holds = (chance[0] <= values) & (values <= chance[1])
    chart.line(times, reference, "guide")
    chart.line(times, values, "thin")
    chart.dots(times[holds], values[holds], "good")
    chart.dots(times[~holds], values[~holds], "bad")
    points = zip(names, values, reference, strict=True)
    chart.hover(times, (f"{when}\n{format_number(a)}\ndashed: {format_number(b)}" for when, a, b in points))
    return chart.svg()


@dataclass(frozen=True, eq=False)
class ColumnFan:
    """A fan chart in the coordinates of its axes: dates and times in seconds, categories at 0, 1, ...

    Attributes
    ----------
    name : str
        The column.
    kind : {"number", "date", "time", "category"}
    grid : ndarray of shape (g,)
        Where the curves are computed.
    categories : tuple of str
        Their names, at the points of the grid; empty for other kinds.
    curves : ndarray of shape (g, q)
        Predicted quantiles, NaN where too few rows are near.
    x, y : ndarrays of shape (rows,)
        Rows to draw.
    column : str
        The column that this is, or is a part of, such as the hour of a date.
    n_near : int ndarray of shape (g,) or None
        Rows near each point of the grid, where curves are averages over such rows.
    total : int
        Number of categories, or of distinct values, of the column, of which these may be a part.
    """

    name: str
    kind: str
    grid: Array
    categories: tuple[str, ...]
    curves: Array
    x: Array
    y: Array
    column: str = ""
    n_near: NDArray[np.intp] | None = None
    total: int = 0

    @classmethod
    def from_display(cls, display: QuantileFanDisplay, column: str = "") -> Self:
        """Convert the numbers of a display to coordinates, with a random sample of its rows."""
        shown = np.random.default_rng(0).permutation(len(display.y))[:MOST_POINTS]
        x, grid, kind = display.x[shown], display.grid, "number"
        categories: tuple[str, ...] = ()
        if grid.dtype.kind == "O":
            categories, kind = tuple(map(name_category, grid)), "category"
            places = {str(category): float(k) for k, category in enumerate(grid)}
            x = np.array([places.get(str(category), np.nan) for category in x])
            grid = np.arange(len(grid), dtype=float)
        elif grid.dtype.kind == "M":
            kind = "time" if is_time_of_day(grid) else "date"
            x, grid = to_seconds(x), to_seconds(grid)
        if categories:  # rows are moved sideways, so that all are seen
            x = x + np.random.default_rng(1).uniform(-JITTER, JITTER, len(x))
        there = np.isfinite(x)
        name = str(display.x_label)
        y = display.y[shown][there]
        return cls(name, kind, grid, categories, display.curves, x[there], y, column or name)

    def ticks(self, low: float, high: float) -> tuple[Ticks | None, int]:
        """Return the ticks of the axis, or None for round numbers, and on how many lines their names are."""
        if self.categories:
            return _category_ticks(self.categories)
        ticks = {"date": calendar_ticks, "time": clock_ticks}.get(self.kind)
        return None if ticks is None else ticks(low, high), 1

    @property
    def names(self) -> Sequence[str]:
        """The points of the grid as text."""
        format_value = {"date": format_date, "time": format_time}.get(self.kind, format_number)
        return self.categories or [format_value(value) for value in self.grid]

    def value_texts(self, levels: Array) -> list[str]:
        """Return what is predicted at each point of the grid: the median and the outer bands, or all levels."""
        parts = pair_levels(levels)
        texts, average = [], "" if self.n_near is None else "average "
        for k, (name, curve) in enumerate(zip(self.names, self.curves, strict=True)):
            lines = [name] if self.n_near is None else [f"{name}: {format_count(int(self.n_near[k]), 'row')} near"]
            numbers = format_numbers(curve)
            if np.isnan(curve).any():
                lines.append("too few for an average")
                numbers = []
            elif parts.median is not None:
                lines.append(f"{average}median {numbers[parts.median]}")
            for a, b in parts.bands[: MOST_RANGES if numbers else 0]:
                share = format_share(levels[b] - levels[a], 0)
                lines.append(f"{average}{share}{' range' if average else ''}: {numbers[a]} to {numbers[b]}")
            lines += [f"level {levels[i]:g}: {numbers[i]}" for i in parts.singles[: MOST_RANGES if numbers else 0]]
            texts.append("\n".join(lines))
        return texts

    def describe(self, levels: Array, target: str) -> str:
        """Describe the chart for screen readers by its first, highest and last point."""
        middle = int(np.argmin(np.abs(levels - 0.5)))
        known = np.flatnonzero(np.isfinite(self.curves[:, middle]))
        at = [known[0], known[np.argmax(self.curves[known, middle])], known[-1]]
        names, points = self.names, []
        for k in dict.fromkeys(at):
            lowest, value, highest = map(format_number, self.curves[k, [0, middle, -1]])
            points.append(f"at {names[k]} {value}" + (f" ({lowest} to {highest})" if len(levels) > 1 else ""))
        curve = f"level {levels[middle]:g} (lowest to highest level)"
        return f"Predicted {target} along {self.name}, {curve}: {'; '.join(points)}."


def draw_fan(fan: ColumnFan, levels: Array, target: str) -> str:
    """Return the fan chart: predicted quantiles along a column, with a sample of the rows."""
    low, high = float(np.nanmin(fan.curves)), float(np.nanmax(fan.curves))
    if len(fan.y):  # a few outliers may fall outside, so that they do not flatten the rest
        lowest, highest = np.quantile(fan.y, GRID.ends)
        low, high = min(low, lowest), max(high, highest)
    room = 0.03 * (high - low)
    side = MARGIN if fan.categories else 0.0
    ends = fan.grid[0] - side, fan.grid[-1] + side
    ticks, tick_lines = fan.ticks(*ends)
    labels = {"alt": fan.describe(levels, target), "x_label": fan.name, "y_label": target}
    chart = Chart(ends, (low - room, high + room), **labels, x_ticks=ticks, tick_lines=tick_lines)
    parts = pair_levels(levels)
    known = np.flatnonzero(np.isfinite(fan.curves).all(axis=1))
    # The curves of a category are level, along a bar of its own; those of other columns are drawn from gap to gap.
    runs = np.split(known, np.flatnonzero(np.diff(known) > 1) + 1)
    pieces = [(fan.grid[run], fan.curves[run]) for run in runs]
    if fan.categories:
        bars = zip(fan.grid[known], fan.curves[known], strict=True)
        pieces = [(at + HALF_WIDTH * np.array([-1, 1]), np.tile(row, (2, 1))) for at, row in bars]
    for x, curves in pieces:
        for k, (a, b) in enumerate(parts.bands):
            chart.band(x, curves[:, a], curves[:, b], "band", band_opacity(k, len(parts.bands)))
    chart.dots(fan.x, fan.y, "rows")
    for x, curves in pieces:
        for k in parts.singles:
            chart.line(x, curves[:, k], "single")
        if parts.median is not None:
            chart.line(x, curves[:, parts.median], "median")
    chart.hover(fan.grid, fan.value_texts(levels))
    return chart.svg()


def band_opacity(k: int, count: int) -> float:
    """Return the opacity of the k-th band from outside; outer bands are paler and lie under the inner ones."""
    return 0.28 if count == 1 else 0.2 + 0.35 * k / (count - 1)


def name_category(category: object) -> str:
    """Return the name of a category; those of booleans are false and true."""
    return str(category).lower() if isinstance(category, bool) else str(category)


def _category_ticks(categories: Sequence[str]) -> tuple[Ticks, int]:
    """Return the names of categories, cut to the room that their neighbours and the edges leave, and the lines used."""
    last = len(categories) - 1
    each = LETTERS / (last + 2 * MARGIN)
    wide = [1 + 0.3 * sum(map(str.isupper, name)) / max(len(name), 1) for name in categories]  # as letters go
    longest = max(len(name) * letter for name, letter in zip(categories, wide, strict=True))
    lines = min(next((k for k in (1, 2) if longest + 1 <= k * each), 3), len(categories))
    names = []
    for k, name in enumerate(categories):  # those at the right end may move to the left, as `Chart` has it
        left = min(lines * each / 2, (k + MARGIN) * each + LETTERS_LEFT)
        right = min(lines * each / 2, (last - k + MARGIN) * each + LETTERS_RIGHT)
        names.append((k, truncate(name, max(4, int((left + min(left, right)) / wide[k])))))
    return names, lines
