"""What the page says of single columns: importance, fan charts of similar rows, and the what-if panel."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from quernel.conformal.table_model import TableModel
from quernel.plots import QuantileFanDisplay
from quernel.plots.fans import SIMILAR_ROWS, average_similar, pair_levels, sample_rows
from quernel.plots.inputs import (
    GRID,
    MISSING,
    OTHER,
    Columns,
    drop_missing,
    is_time_of_day,
    make_grid,
    predict_quantiles,
    split_columns,
    to_dates,
    to_seconds,
)
from quernel.report import charts
from quernel.report.charts import ColumnFan
from quernel.report.formatting import (
    bar_cell,
    format_date,
    format_number,
    format_numbers,
    format_share,
    format_time,
    make_figure,
    make_table,
    numeric_cell,
    render_text,
    row_header,
)
from quernel.tables import TextColumn
from quernel.tables.columns import CYCLES, Column

if TYPE_CHECKING:
    import pyarrow as pa

    from quernel.report.content import Page

Array = NDArray[np.floating]


@dataclass(frozen=True)
class EffectOptions:
    """Constants of charts and panel: how much detail against the size of the page."""

    grid_points: int = 60  # of the curves of a fan chart
    what_if_points: int = 15  # of each input of the what-if panel, at most; of whole numbers ...
    what_if_integers: int = 30  # ... all of them, if there are no more than these
    max_codes: int = 12  # values of a column of numbers that are drawn as categories, not as points on a line, if ...
    share_codes: tuple[float, float] = (0.5, 0.9)  # ... at least these rows have one of three, and of all of them
    ends: tuple[float, float] = (0.01, 0.99)  # quantiles where the axis of a column of numbers ends
    max_bars: int = 12  # columns in the table of importances
    near_share: float = 0.04  # numbers that differ by at most this share of the range of the middle 90 % are near
    handful: int = 5  # rows near a point without which a fan has no curves there; of few rows a fiftieth


OPTIONS = EffectOptions()
UNSEEN = " This is the evaluated model, not fitted to this row; the saved one, fitted to all rows, differs a little."
MAYBE_SEEN = " If the model was fitted to rows like these, ranges that hold for new rows are wider, perhaps by far."
WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def compute_fans(model: TableModel, table: pa.Table, y: Array, names: Sequence[str]) -> list[ColumnFan]:
    """Compute fan charts along these columns, as averages over similar rows; y (n,) are the targets of the table.

    Rows are predicted as they are, once for all charts. A date has a chart for each of hour, weekday, month and trend
    that its values tell apart.
    """
    columns = split_columns(model, table, pooled=True)
    some = sample_rows(columns.n_rows, SIMILAR_ROWS)
    rows = columns.take(some)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # rows may be extrapolations, and "(other)" is unknown
        curves, levels = predict_quantiles(model, columns.assemble(rows), None)
    order, least = np.argsort(levels), min(OPTIONS.handful, len(some) // 50)
    curves, levels = curves[:, order], levels[order]
    fans = []
    for name in names:
        j = columns.names.index(name)
        column = model.encoder.columns_[j]
        is_date = column.kind == "date" and len(drop_missing(rows[j])) > 0
        whole = [(name, *_as_codes(rows[j]))]
        for label, values, grid in _split_date(name, to_seconds(rows[j])) if is_date else whole:
            points = _make_grid(column, _without_ends(values)) if grid is None else grid
            similar, places = values, points
            if grid is not None and values.dtype.kind == "f":  # of dates: the same hour, not similar ones
                similar, places = np.floor(values).astype(object), grid.astype(object)
            n_near = find_near(similar, places).sum(axis=0)
            if points.dtype.kind == "O":  # few rows are of categories that are pooled
                kept = (points.astype(str) != OTHER) | (n_near >= least)
                points, places, n_near = points[kept], places[kept], n_near[kept]
            along = np.where(n_near[:, None] < least, np.nan, average_similar(similar, curves, places))
            display = QuantileFanDisplay(values, y[some], points, along, levels, label)
            total = len(column.categories) if isinstance(column, TextColumn) else 0
            if not total and grid is not None and not is_date:
                total = len(np.unique(drop_missing(rows[j])))
            fans.append(replace(ColumnFan.from_display(display, column=name), n_near=n_near, total=total))
    return fans


def find_near(values: NDArray[Any], grid: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which rows (n,) are near each point of a grid, (n, g): of the same category, or close in the numbers."""
    if grid.dtype.kind == "O":
        return values.astype(str)[:, None] == grid.astype(str)
    numbers, points = (to_seconds(one) if grid.dtype.kind == "M" else one for one in (values, grid))
    known = numbers[np.isfinite(numbers)]
    reach = OPTIONS.near_share * np.ptp(np.quantile(known, (0.05, 0.95))) if len(known) else 0.0
    return np.abs(numbers[:, None] - points) <= reach


def _without_ends(values: NDArray[Any]) -> NDArray[Any]:
    """Return the numbers (n,) of a column without the lowest and highest, which squeeze the others."""
    known = drop_missing(values) if values.dtype.kind == "f" else values[:0]
    if not len(known):
        return values
    low, high = np.quantile(known, OPTIONS.ends)
    return values[(values >= low) & (values <= high)]


def _as_codes(values: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """Return the values (n,) of a column, and its grid: a few frequent numbers as text, else None for any grid."""
    known = drop_missing(values) if values.dtype.kind == "f" else np.empty(0)
    observed, counts = np.unique(known, return_counts=True)
    often = np.sort(np.argsort(-counts, kind="stable")[: OPTIONS.max_codes])
    held = np.array([np.sort(counts)[-3:].sum(), counts[often].sum()])
    if len(observed) < 2 or (
        len(observed) > OPTIONS.max_codes and np.any(held < np.array(OPTIONS.share_codes) * len(known))
    ):
        return values, None
    texts = np.array([format_number(value) if np.isfinite(value) else None for value in values], dtype=object)
    return texts, np.array([format_number(value) for value in observed[often]], dtype=object)


def _split_date(name: str, seconds: Array) -> Iterator[tuple[str, NDArray[Any], NDArray[Any] | None]]:
    """Yield hour, weekday, month and trend of dates, where they vary: a label, values (n,) and a grid, None for any."""
    known = np.isfinite(seconds)
    moments = np.where(known, seconds, 0.0)
    span = float(np.ptp(seconds[known]))
    hour = moments % CYCLES["day"] / 3600
    if len(np.unique(np.floor(hour[known]))) > 1:
        hours = np.where(known, hour, np.nan)
        yield f"{name}: hour of the day", hours, np.unique(np.floor(hours[known]))
    weekday = (moments // CYCLES["day"]).astype(int) + 3  # 1970 began on a Thursday
    month = to_dates(moments).astype("datetime64[M]").astype(int)
    parts = (("weekday", weekday, WEEKDAYS, 2 * CYCLES["week"]), ("month", month, MONTHS, 0.9 * CYCLES["year"]))
    for part, codes, labels, least in parts:
        used = np.unique(codes[known] % len(labels))
        if span >= least and len(used) > 1:
            values = np.array(labels, dtype=object)[codes % len(labels)]
            values[~known] = None
            yield f"{name}: {part}", values, np.array(labels, dtype=object)[used]
    yield f"{name}: trend" if span > 0 else name, to_dates(seconds), None


def _make_grid(column: Column, values: NDArray[Any]) -> NDArray[Any]:
    """Return the values of a column at which to predict; the training median where it has none."""
    if column.kind == "boolean":
        flags: list[bool | None] = [flag for flag in (False, True) if flag in drop_missing(values)]
        return np.array(flags or [None], dtype=object)
    yearly = True
    if not isinstance(column, TextColumn):
        if len(drop_missing(values)) == 0:
            fill = np.array([column.fill])
            return to_dates(fill) if column.kind in ("date", "time") else fill
        yearly = column.kind != "date" or "year" in column.cycles
    return make_grid(values, OPTIONS.grid_points, yearly=yearly)


class WhatIf(NamedTuple):
    """Predicted quantiles of a typical row whose one or two most important columns vary.

    Attributes
    ----------
    names : sequence of str
        These columns.
    values, labels : sequences of sequences
        Their values, exactly as the model was given them, and as text.
    row : dict of str to the values of all columns of the typical row
    start : sequence of int
        Positions of this row's own values.
    curves : ndarray of shape (values of the first, values of the second or 1, q), levels ascending
    near : int ndarray of shape (values of the first, values of the second or 1)
        Rows of the data that are near in both.
    apart : list of lists of str
        A category of the typical row, with its column, that none of these rows has; "" without such.
    totals : sequence of int
        Number of categories of each column, 0 of other columns.
    """

    names: Sequence[str]
    values: Sequence[NDArray[Any]]
    labels: Sequence[Sequence[str]]
    row: dict[str, Any]
    start: Sequence[int]
    curves: Array
    near: NDArray[np.intp]
    apart: list[list[str]]
    totals: Sequence[int]


def compute_what_if(model: TableModel, table: pa.Table, names: Sequence[str], rows: NDArray[np.intp]) -> WhatIf:
    """Predict the most typical of these rows of a table at all pairs of values of one or two columns."""
    columns = split_columns(model, table, pooled=True)
    places = [columns.names.index(name) for name in names]
    typical = columns.take(_find_typical(columns, rows))
    same = {
        j: values.astype(str) == str(typical[j][0])
        for j, values in enumerate(columns.values)
        if values.dtype.kind == "O"
    }
    grids = []
    for j in places:  # categories that the row can have: those of rows with its other categories
        possible = np.all([there for k, there in same.items() if k != j] or [np.ones(columns.n_rows, bool)], axis=0)
        values = columns.values[j]
        if j in same and len(np.unique(values[possible].astype(str))) > 1:
            values = values[possible]
        grids.append(_what_if_grid(model.encoder.columns_[j], values, typical[j]))
    second = len(grids[1]) if len(grids) > 1 else 1
    product = [np.repeat(values, len(grids[0]) * second) for values in typical]
    product[places[0]] = np.repeat(grids[0], second)
    if len(grids) > 1:
        product[places[1]] = np.tile(grids[1], len(grids[0]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some pairs are extrapolations; the panel says so
        curves, levels = predict_quantiles(model, columns.assemble(product), None)
    near = [find_near(columns.values[j], grid) for j, grid in zip(places, grids, strict=True)]
    near += [np.ones((columns.n_rows, 1), dtype=bool)]  # of a second column that is not there
    others = {f"{columns.names[j]} {typical[j][0]}": there for j, there in same.items() if j not in places}
    counts, apart = np.zeros((len(grids[0]), second), dtype=np.intp), []
    for i, first in enumerate(near[0].T):
        both = near[1][first]
        counts[i] = both.sum(axis=0)
        shared = {name: there[first] @ both for name, there in others.items()}
        apart.append([next((name for name, any_row in shared.items() if not any_row[k]), "") for k in range(second)])
    start = [int(np.argmax(grid == typical[j][0])) for j, grid in zip(places, grids, strict=True)]
    row = {name: _as_json(values)[0] for name, values in zip(columns.names, typical, strict=True)}
    curves = curves[:, np.argsort(levels)].reshape(len(grids[0]), second, -1)
    found = [model.encoder.columns_[j] for j in places]
    totals = [len(column.categories) if isinstance(column, TextColumn) else 0 for column in found]
    return WhatIf(names, grids, [_name_values(grid) for grid in grids], row, start, curves, counts, apart, totals)


def _find_typical(columns: Columns, rows: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return the position of the one of some rows that is nearest to the middle, by ranks and frequent categories."""
    distance = np.zeros(columns.n_rows)
    for values, middle in zip(columns.values, columns.typical_row, strict=True):
        if values.dtype.kind == "O":
            distance += values.astype(str) != str(middle[0])
            continue
        numbers = to_seconds(values) if values.dtype.kind == "M" else values
        known = np.isfinite(numbers)
        low, high = (np.searchsorted(np.sort(numbers[known]), numbers, side=side) for side in ("left", "right"))
        # A rank of 1/2 is the middle; ties share their mean rank, and missing values count as an end.
        distance += np.where(known, np.abs((low + high) / max(known.sum(), 1) - 1), 1.0)
    return rows[[np.argmin(distance[rows])]]


def _what_if_grid(column: Column, values: NDArray[Any], own: NDArray[Any]) -> NDArray[Any]:
    """Return the values of an input of the panel, as they are printed, with the typical row's own value."""
    grid = _make_grid(column, values)
    if grid.dtype.kind == "O":
        grid = grid if own[0] in grid else np.concatenate([grid, own])
        return grid if column.kind == "boolean" else grid[np.argsort(grid.astype(str))]
    observed = np.unique(drop_missing(values))
    if len(observed) > GRID.few_values:
        low, high = np.quantile(drop_missing(values), GRID.ends) if values.dtype.kind == "f" else observed[[0, -1]]
        observed = observed[(observed >= low) & (observed <= high)]
    whole = grid.dtype.kind == "f" and bool(len(observed)) and bool(np.all(observed == observed.round()))
    if whole and len(observed) <= OPTIONS.what_if_integers:
        return np.union1d(observed, drop_missing(own))
    grid = grid[np.unique(np.linspace(0, len(grid) - 1, OPTIONS.what_if_points).round().astype(int))]
    if grid.dtype.kind == "f":
        texts = [format_number(round(value) if whole else value) for value in grid]
        grid = np.array([float(text.replace(",", "")) for text in texts])
    else:
        grid = grid.astype("datetime64[m]").astype(grid.dtype)
    return np.unique(np.concatenate([grid, drop_missing(own)]))


def _name_values(grid: NDArray[Any]) -> list[str]:
    """Return the values of a grid as text."""
    if grid.dtype.kind == "O":
        return [charts.name_category(value) for value in grid]
    if grid.dtype.kind == "M":
        return [(format_time if is_time_of_day(grid) else format_date)(value) for value in to_seconds(grid)]
    return [format_number(value) for value in grid]


def _as_json(values: NDArray[Any]) -> list[Any]:
    """Return values as JSON has them: numbers as they are, dates and times as ISO text, None where missing."""
    if values.dtype.kind == "M":
        texts = np.datetime_as_string(values, unit="us").tolist()
        cut = 11 if is_time_of_day(values) else 0
        return [None if text == "NaT" else text[cut:] for text in texts]
    return [None if value is None or value != value or value == MISSING else value for value in values.tolist()]


def render_columns(page: Page) -> str:
    """Return the section on the permutation importance of the columns, with a fan chart along each."""
    levels, target, n_columns = page.evaluation.levels, page.model.target, len(page.model.encoder.columns_)
    increase = page.importance.increase.mean(axis=1)
    longest = max(float(increase.max()), 1e-12)
    lines = [
        (
            row_header(page.importance.names[j]),
            numeric_cell(f"{round(100 * increase[j]):+d} %"),
            bar_cell(max(increase[j], 0) / longest),
        )
        for j in page.importance.order[: OPTIONS.max_bars]
    ]
    most = f" The {OPTIONS.max_bars} most important ones." if len(increase) > OPTIONS.max_bars else ""
    caption = f"Permutation importance: increase of the loss when a column is shuffled.{most}"
    alone = ""
    if n_columns > 1:
        caption += (
            " Columns that go together stand in for each other, so their importances are rough. A column that is "
            "important though its chart is flat matters together with another."
        )
        alone = (
            '<p class="caption">This is not the effect of this column alone: the others are as they are in these rows. '
            "The bands are averages of many predictions, so that more than 10 % of the dots may lie outside the light "
            "band; that is no fault.</p>"
        )
    options = "".join(f'<option value="{k}">{escape(fan.name)}</option>' for k, fan in enumerate(page.fans))
    figures = "".join(
        make_figure(charts.draw_fan(fan, levels, target), _describe_fan(fan), f"fan-{k}")
        for k, fan in enumerate(page.fans)
    )
    left = n_columns - len({fan.column for fan in page.fans})
    hidden = "1 less important column is" if left == 1 else f"{left} less important columns are"
    more = f'<p class="quiet">{hidden} not shown.</p>' if left > 0 else ""
    heads = ("column", numeric_cell("increase of loss"), "")
    chooser = f'<label for="column">Column</label><select id="column">{options}</select>'
    return (
        f'<div class="beside"><div>{make_table(heads, lines, caption)}</div><div>'
        f'<div class="chooser"{" hidden" if len(page.fans) == 1 else ""}>{chooser}</div>'
        f'{fan_key(levels, "average")}{alone}<div class="fans" aria-live="polite">{figures}</div>{more}</div></div>'
    )


def _describe_fan(fan: ColumnFan) -> str:
    """Return the caption of a fan chart."""
    which = "with about this value" if fan.kind == "number" else "of each value"
    text = f"Along {fan.name}: the quantiles predicted for rows {which}, averaged."
    shown = sum(name not in (OTHER, MISSING) for name in fan.categories)
    if shown < fan.total:
        text += f" Shown are the {shown} most frequent of {fan.total} values in these rows."
    if fan.kind == "number" and np.any((fan.x < fan.grid[0]) | (fan.x > fan.grid[-1])):
        text += " At most 2 % of the rows are left out at either end."
    if np.isnan(fan.curves).any():
        text += " Quantiles are not drawn where there are only a few rows."
    return text + (" Rows are spread sideways." if fan.categories else "")


def render_what_if(page: Page) -> str:
    """Return the panel in which a reader changes the most important columns of a typical row; it needs the script."""
    shown, levels = page.what_if, page.evaluation.levels
    parts = pair_levels(levels)
    inputs = ""
    for k, (name, grid, labels) in enumerate(zip(shown.names, shown.values, shown.labels, strict=True)):
        unordered = grid.dtype.kind == "O" or len(grid) == 2
        field = _make_input(k, labels, shown.start[k], as_list=unordered)
        inputs += f'<p><label for="if-{k}">{escape(name)}</label> {field}</p>'
    lines = "".join(f'<tr><th scope="row">{level:g}</th><td class="n"></td></tr>' for level in levels[::-1])
    numbers = {
        "labels": shown.labels,
        "values": [_as_json(grid) for grid in shown.values],
        "row": shown.row,
        "curves": [[[float(f"{value:.6g}") for value in row] for row in rows] for rows in shown.curves],
        "texts": [[format_numbers(row) for row in rows] for rows in shown.curves],
        "near": shown.near.tolist(),
        "apart": shown.apart,
        "bands": parts.bands,
        "median": parts.median,
    }
    bands = "".join(f'<i style="opacity:{opacity:.2f}"></i>' for opacity in _band_opacities(len(parts.bands)))
    shares = [format_share(levels[b] - levels[a], 0) for a, b in parts.bands]
    shades = ["Bar: "] if len(shares) == 1 else ["Light: ", *[""] * (len(shares) - 2), "dark: "]
    key = ", ".join(f"{shade}{share}" for shade, share in zip(shades, shares, strict=False))
    key += f" interval{'' if parts.median is None else '; line: median'}." if shares else ""
    others = {name: value for name, value in shown.row.items() if name not in shown.names}
    cells = [(row_header(name), _format_input(value)) for name, value in others.items()]
    rest = f"<details><summary>Its other columns</summary>{make_table(('column', 'value'), cells)}</details>"
    text = (
        f"Change the inputs of a typical row of the data{', whose other columns stay' if others else ''}: the "
        f"predicted quantiles of {page.model.target} follow."
    )
    for name, labels, total in zip(shown.names, shown.labels, shown.totals, strict=True):
        if len(labels) < total:
            text += f" You can choose among {len(labels)} of {total} categories of `{name}`, common among similar rows."
    text += UNSEEN if page.evaluation.unseen else MAYBE_SEEN
    return (
        f'<div id="what-if" data-numbers="{escape(json.dumps(numbers))}" hidden><p>{render_text(text)}</p>'
        f'<div class="beside"><div>{inputs}<div class="range" aria-hidden="true">{bands}'
        f'<span class="middle"></span></div><p class="ends" aria-hidden="true"><span></span><span></span></p>'
        f'<p class="caption" aria-hidden="true">{key}</p>'
        f'<p class="near" role="status"></p>'
        f"{rest if others else ''}</div><table><thead><tr><th>level</th>"
        f'<th class="n">{escape(page.model.target)}</th></tr></thead><tbody>{lines}</tbody></table></div></div>'
        "<noscript><p>This panel needs a script.</p></noscript>"
    )


def _make_input(k: int, labels: Sequence[str], start: int, *, as_list: bool) -> str:
    """Return the k-th input of the panel, a list of its values or a slider over them."""
    if not as_list:
        limits = f'min="0" max="{len(labels) - 1}" value="{start}"'
        return f'<input type="range" id="if-{k}" {limits}> <output for="if-{k}"></output>'
    marks = [" selected" if i == start else "" for i in range(len(labels))]
    options = [f'<option value="{i}"{marks[i]}>{escape(label)}</option>' for i, label in enumerate(labels)]
    return f'<select id="if-{k}">{"".join(options)}</select>'


def _format_input(value: Any) -> str:
    """Return a value of the typical row as text."""
    if isinstance(value, float):
        return format_number(value)
    text = "missing" if value is None else charts.name_category(value).removesuffix(".000000")
    return text.removesuffix("T00:00:00")


def _band_opacities(count: int) -> list[float]:
    """Return how opaque the bands look, outermost first: the inner ones lie on the outer ones."""
    opacities, opacity = [], 0.0
    for k in range(count):
        opacity = 1 - (1 - opacity) * (1 - charts.band_opacity(k, count))
        opacities.append(opacity)
    return opacities


def fan_key(levels: Array, kind: str = "middle") -> str:
    """Return the key of fan charts whose bands are the middle of a distribution, or an average of such."""
    parts = pair_levels(levels)
    items = ['<li><i class="median"></i>median</li>'] if parts.median is not None else []
    bands = [
        f'<li><i style="opacity:{opacity:.2f}"></i>{kind} {format_share(levels[b] - levels[a], 0)}'
        f"{' range' if kind == 'average' else ''}</li>"
        for (a, b), opacity in zip(parts.bands, _band_opacities(len(parts.bands)), strict=True)
    ]
    items += bands[::-1]
    if parts.singles:
        names = ", ".join(f"{levels[k]:g}" for k in parts.singles)
        items.append(f'<li><i class="single"></i>level {names}</li>')
    return f'<ul class="key" aria-label="Key">{"".join(items)}<li><i class="rows"></i>rows</li></ul>'
