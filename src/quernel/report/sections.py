"""The HTML of the report: `report_page` assembles the document, and each section is a function of the `Page`."""

from __future__ import annotations

import json
import shlex
from datetime import date
from decimal import Decimal
from html import escape
from importlib.resources import files
from pathlib import PurePath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quernel.conformal.table_model import TableModel
from quernel.estimators import KernelQuantileRegressor, TabularQuantileRegressor
from quernel.plots import PITDisplay
from quernel.plots.calibration import binomial_band
from quernel.plots.fans import pair_levels
from quernel.plots.style import truncate
from quernel.report import charts
from quernel.report.content import Page, compute_page, find_bandwidths
from quernel.report.evaluation import Evaluation, Interval
from quernel.report.formatting import (
    Cell,
    bar_cell,
    format_count,
    format_date,
    format_number,
    format_share,
    format_time,
    make_figure,
    make_table,
    numeric_cell,
    row_header,
    verdict_cell,
)
from quernel.tables import DateColumn, TimeColumn
from quernel.tables.columns import Column, NumberColumn
from quernel.tables.encoded_rows import RowSample
from quernel.theory import KernelGap

Array = NDArray[np.floating]

NONE, MISSING = "\N{EN DASH}", "missing"
TOO_NARROW = (
    "The intervals cover fewer rows than their nominal coverage. <code>--conformal</code> (in Python, "
    "ConformalQuantileRegressor) calibrates an interval to its nominal coverage."
)
OVERFITS = (
    " The model overfits: its loss on training rows is {share} of that on these. A larger ridge weight, 3 to 100 times "
    "that of the fit (<code>--alpha</code>), makes it smoother."
)
TOO_NARROW_TABULAR = (
    "The intervals cover fewer rows than their nominal coverage, although the levels were calibrated on rows that the "
    "model had not seen: the evaluation rows differ from those. If rows come in units, such as patients, shops or "
    "machines, <code>--groups</code> (in Python, <code>fit(..., groups=...)</code>) makes the intervals those of new "
    "units; if they are in time order, <code>--conformal --time-ordered</code> calibrates on the last ones."
)
# What to try where a baseline wins, by its kind: a simple one, or a rougher one than the model.
TRY_CONSTANT = (
    "The columns say little about the target. Look for columns that matter, and leave out those that cannot "
    "(<code>--exclude</code>)."
)
TRY_LINEAR = (
    "The relation may be close to linear, or the rows too few for more: "
    "<code>--estimator kernel --kernel linear</code> fits just that."
)
TRY_FORESTS = (
    "There is local structure that a smooth kernel misses: the default of <code>quernel fit</code>, a kernel and "
    "forests together (in Python, TabularQuantileRegressor), follows it."
)
TRY_ROUGHER = (
    "There is local structure that this model misses. Columns that make it explicit help, such as dates as dates and "
    "categories as text; or calibrate the other model itself (in Python, ConformalQuantileRegressor around it)."
)
TIES = (
    "Rows with the same target lie exactly on predicted quantiles (ties). Then two shares are shown: of the rows below "
    "the quantile, and of those at or below it; a level between the two is calibrated. Likewise for intervals, without "
    "and with the rows on their bounds."
)
CALIBRATED = (
    "The calibrated interval was adjusted by conformal prediction on {rows:,} rows that the model was not fitted to. "
    "Its coverage of new rows from the same distribution is guaranteed on average, however wrong the model; the other "
    "intervals are the model's own."
)
CALIBRATED_UNITS = (
    "The calibrated interval was adjusted by conformal prediction on {rows:,} rows of units that the model was not "
    "fitted to. Its coverage of rows of new units is right up to an error that decreases with the number of these "
    "units, however wrong the model; the other intervals are the model's own."
)
# At most: rows in the tables of rows, input columns in these, columns in the importance table, and column names in a
# sentence.
WORST, SHOWN_INPUTS, MOST_BARS, MOST_NAMED = 10, 8, 12, 20
# Rows of a period of time at least, and periods at most.
PERIOD_ROWS, MOST_PERIODS = 40, 12


def report_page(
    model: TableModel,
    table: Any,
    evaluation: Evaluation,
    *,
    data: str,
    model_file: str,
    sample: RowSample | None = None,
    kernel_gap: KernelGap | None = None,
) -> str:
    """Return the report on a model as HTML.

    Parameters
    ----------
    model : TableModel
        The saved model.
    table : Arrow table
        The data; `evaluation.rows` are positions among its rows with a target.
    evaluation : Evaluation
        Evaluation of the model, or of the same kind of model fitted to fewer rows.
    data, model_file : str
        Names of the data file and the model file.
    sample : RowSample or None
        The random sample that `table` is, if it is one.
    kernel_gap : KernelGap or None
        Bounds on what random features cost compared with the exact kernel, if computed.
    """
    names = {"data": data, "model_file": model_file}
    page = compute_page(model, table, evaluation, **names, sample=sample, kernel_gap=kernel_gap)
    sections = {
        "loss": ("Loss compared with baselines", render_losses(page)),
        "coverage": ("Coverage and calibration", render_coverage(page)),
        "time": ("Coverage and loss over time", render_periods(page)),
        "columns": ("Effect of each column", render_columns(page)),
        "whatif": ("What if", render_what_if(page)),
        "worst": ("The worst-predicted rows", render_worst_rows(page)),
        "outside": ("Rows outside the training range", render_extrapolations(page)),
        "data": ("Data", render_data(page)),
        "choices": ("How it was fitted", render_choices(page)),
        "load": ("How to use the model", render_usage(page)),
    }
    sections = {name: section for name, section in sections.items() if section[1]}
    about = f'<p class="quiet">{escape(page.data)}, {page.n_rows:,} rows, {date.today().isoformat()}</p>'
    top = f"{about}{_verdict(page.evaluation)}{_tiles(page)}"
    return assemble_page(f"Quantiles of {page.model.target}", top, sections)


def assemble_page(title: str, top: str, sections: dict[str, tuple[str, str]]) -> str:
    """Return a self-contained HTML page: title, what stands below it, and sections, each (heading, HTML) by its id."""
    links = "".join(f'<li><a href="#{name}">{heading}</a></li>' for name, (heading, _) in sections.items())
    body = "".join(
        f'<section id="{name}" aria-labelledby="{name}-title"><h2 id="{name}-title">{heading}</h2>{content}</section>'
        for name, (heading, content) in sections.items()
    )
    style, script = (files("quernel.report").joinpath(name).read_text("utf-8") for name in ("page.css", "page.js"))
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<style>{style}</style></head><body><header><h1>{escape(title)}</h1>{top}"
        f'<nav aria-label="Sections"><ul>{links}</ul></nav></header><main>{body}</main>'
        f"<script>{script}</script></body></html>\n"
    )


def _verdict(evaluation: Evaluation) -> str:
    """Return a paragraph on the baseline that is better than the model, and what to try; "" if there is none."""
    best = evaluation.best_baseline
    ours, theirs = evaluation.row_losses(), evaluation.row_losses(best)
    if theirs.mean() >= ours.mean():
        return ""
    change = (ours - theirs) / ours.mean()
    error = change.std() / np.sqrt(len(change))
    share = f"{format_share(change.mean())} (± {format_share(error)})"
    chance = ", a difference within chance" if change.mean() < 2 * error else ""
    text = f"{escape(best)} has a lower loss on these rows than this model, by {share}{chance}."
    return f'<p class="warn">{text}{_describe_overfit(evaluation)} {_remedy(evaluation, best)}</p>'


def _remedy(evaluation: Evaluation, best: str) -> str:
    """Return what to try where this baseline is better than the model."""
    if best.startswith("Unconditional"):
        return TRY_CONSTANT
    if best.startswith("Linear"):
        return TRY_LINEAR
    return TRY_FORESTS if isinstance(evaluation.model.model, KernelQuantileRegressor) else TRY_ROUGHER


def _describe_overfit(evaluation: Evaluation) -> str:
    """Return that the model overfits and the remedy, "" if nothing shows it."""
    if not evaluation.overfits or evaluation.training_loss is None:
        return ""
    return OVERFITS.format(share=format_share(evaluation.training_loss / evaluation.losses().mean(), 0))


def _tiles(page: Page) -> str:
    """Return the key figures at the top of the page."""
    evaluation = page.evaluation
    ours = evaluation.losses().mean()
    constant = evaluation.losses(next(iter(evaluation.baselines))).mean()
    change = ours / constant - 1 if constant > 0 else 0.0
    compared = f"{format_share(abs(change), 0)} {'below' if change <= 0 else 'above'} unconditional quantiles"
    rows = "held-out" if evaluation.unseen else "evaluation"
    drawn = "" if evaluation.out_of is None else f", a sample of {evaluation.out_of:,}"
    tiles = [(f"Pinball loss on {len(evaluation.y):,} {rows} rows{drawn}", format_number(ours), compared)]
    tiles += _peer_tile(evaluation)
    for one in evaluation.intervals()[:1]:
        nominal = format_share(one.nominal, 0)
        details = f"nominal: {nominal}; within chance: {format_share(one.low)} to {format_share(one.high)}"
        if one.inner < one.observed:
            details += f"; without rows on its bounds {format_share(one.inner)}"
        if not page.calibration.holds.all():
            details += f"; {page.calibration.holds.sum()} of {len(evaluation.levels)} levels hold"
        kind = "calibrated interval" if one.calibrated else "interval"
        tiles.append((f"Coverage of the {nominal} {kind}", format_share(one.observed), details))
        tiles.append((f"Mean width of the {nominal} {kind}", format_number(one.width), _compare_width(page, one)))
    cells = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}<small>{escape(details)}</small></dd></div>"
        for name, value, details in tiles
    )
    return f'<dl class="tiles">{cells}</dl>'


def _compare_width(page: Page, one: Interval) -> str:
    """Return the mean width of an interval beside that of the target's own quantiles."""
    low, high = np.quantile(page.y, [(1 - one.nominal) / 2, (1 + one.nominal) / 2])
    if high <= low:
        return "in units of the target"
    return f"{format_share(one.width / (high - low), 0)} of that of unconditional quantiles"


def _peer_tile(evaluation: Evaluation) -> list[tuple[str, str, str]]:
    """Return the tile that compares the loss with that of the best other baseline; none without such."""
    peers = list(evaluation.baselines)[1:]  # the first are unconditional quantiles
    means = {name: float(evaluation.losses(name).mean()) for name in peers}
    if not peers or min(means.values()) <= 0:
        return []
    best = min(peers, key=lambda name: means[name])
    change = (evaluation.row_losses() - evaluation.row_losses(best)) / means[best]
    error = change.std() / np.sqrt(len(change))
    value = f"{format_share(abs(change.mean()))} {'lower' if change.mean() <= 0 else 'higher'}"
    return [("Loss compared with the best baseline", value, f"than {best} (± {format_share(error)})")]


def render_data(page: Page) -> str:
    """Return the section on the data: its columns, and a histogram of the target."""
    lost = f"{page.dropped:,} rows have" if page.dropped > 1 else "1 row has"
    dropped = f" {lost} no target and {'were' if page.dropped > 1 else 'was'} left out." if page.dropped else ""
    drawn = f" What follows describes a random sample of {page.drawn:,} rows." if page.drawn is not None else ""
    logged = " The model was fitted to the logarithm of the target; predictions are transformed back."
    text = (
        f"{format_count(page.n_rows, 'row')}, {format_count(len(page.columns) - 1, 'input column')}, target "
        f"{page.model.target!r}.{dropped}{drawn}{logged if page.model.log_target else ''}"
    )
    lines = [
        (row_header(one.name), one.kind, numeric_cell(f"{one.missing:,}" if one.missing else NONE), one.description)
        for one in page.columns
    ]
    columns = make_table(("column", "type", numeric_cell("missing"), "values"), lines)
    histogram = make_figure(charts.draw_histogram(page.y, page.model.target), "Distribution of the target.")
    return f'<p>{escape(text)}</p><div class="beside"><div>{columns}</div>{histogram}</div>'


def render_choices(page: Page) -> str:
    """Return the section on the hyperparameters and how they were chosen."""
    heads = ("hyperparameter", "value", "how it was chosen, or what it means")
    chosen = make_table(heads, [(row_header(one.name), one.value, one.why) for one in page.choices])
    widths, names = find_bandwidths(page.model.model), page.model.encoder.names
    if widths is None or np.ndim(widths) != 1 or isinstance(widths, tuple) or len(widths) != len(names):
        return chosen
    lines = [(row_header(name), numeric_cell(format_number(width))) for name, width in zip(names, widths, strict=True)]
    return (
        f"{chosen}<details><summary>Bandwidths of {format_count(len(names), 'encoded column')}</summary>"
        f"{make_table(('column', numeric_cell('bandwidth')), lines)}</details>"
    )


def render_losses(page: Page) -> str:
    """Return the section on the loss of the model and of the baselines."""
    evaluation = page.evaluation
    means = {name: float(evaluation.losses(name).mean()) for name in (None, *evaluation.baselines)}
    ranked = sorted(means, key=lambda name: means[name])
    longest = max(means.values()) or 1.0
    lines = [
        (
            row_header("This model" if name is None else name),
            numeric_cell(format_number(means[name])),
            numeric_cell(_compare_losses(evaluation, name)),
            bar_cell(means[name] / longest),
            *(numeric_cell(format_number(loss)) for loss in evaluation.losses(name)),
        )
        for name in ranked
    ]
    levels = [numeric_cell(f"{level:g}") for level in evaluation.levels]
    heads: list[Cell | str] = ["model", numeric_cell("mean loss"), numeric_cell("difference"), "", *levels]
    caption = (
        "Pinball loss, in units of the target: mean over the levels, difference from this model (± standard error), "
        "and loss per level. Lower is better."
    )
    warning = "" if evaluation.unseen else ' class="warn"'
    best = min(evaluation.baselines, key=lambda name: means[name])
    beaten = (
        f'<p class="warn">A baseline is better on these rows: {escape(best)} has a lower loss than this model.</p>'
        if means[best] < means[None]
        else ""
    )
    losses = make_table(heads, lines, caption, marked=[ranked.index(None)])
    return f"<p{warning}>{escape(evaluation.how)}</p>{beaten}{losses}"


def _compare_losses(evaluation: Evaluation, name: str | None) -> str:
    """Return the relative difference of a baseline's loss from the model's, with its standard error."""
    ours = evaluation.row_losses()
    if name is None or ours.mean() == 0:
        return NONE
    change = (evaluation.row_losses(name) - ours) / ours.mean()
    error = change.std() / np.sqrt(len(change))
    digits = 1 if abs(change.mean()) < 1 else 0
    return f"{100 * change.mean():+,.{digits}f} % ± {100 * error:,.{digits}f}"


def render_coverage(page: Page) -> str:
    """Return the section on the calibration of the quantile levels and the coverage of the intervals."""
    shown, evaluation = page.calibration, page.evaluation
    intervals = evaluation.intervals()
    ties = bool(np.any(shown.below < shown.observed))
    numbers = zip(shown.levels, shown.below, shown.observed, shown.lower, shown.upper, shown.holds, strict=True)
    lines = [(numeric_cell(f"{level:g}"), *_share_cells(*shares)) for level, *shares in numbers]
    heads = (numeric_cell("level"), numeric_cell("rows below"), numeric_cell("95 % by chance"), "")
    caption = "Share of rows at or below each predicted quantile, and its 95 % range by chance for a calibrated level."
    tables = make_table(heads, lines, caption)
    if ties or any(one.inner < one.observed for one in intervals):
        tables += f"<p>{TIES}</p>"
    if intervals:
        tables += _interval_table(intervals, evaluation)
    residuals = PITDisplay.compute(evaluation.y, evaluation.curves, evaluation.levels)
    most = format_share(shown.confidence, 0)
    pictures = make_figure(
        charts.draw_calibration(shown),
        f"Calibration: points on the dashed line are ideal; true quantiles would be in the band in {most} of samples."
        + (" Vertical lines go from the share below a quantile to the share at or below it." if ties else ""),
    ) + make_figure(
        charts.draw_pit(residuals),
        f"PIT histogram: rows between neighbouring quantiles, relative to the expected number, with {most} ranges. A U "
        "shape means that intervals are too narrow, a hump that they are too wide.",
    )
    sampled = evaluation.out_of is not None
    sample = (
        f"<p>Computed on {len(evaluation.y):,} rows, a random sample of {evaluation.out_of:,}.</p>" if sampled else ""
    )
    return f'{sample}<div class="beside"><div>{tables}</div><div>{pictures}</div></div>'


def render_periods(page: Page) -> str:
    """Return the section on coverage and loss in consecutive periods, "" unless the rows have dates."""
    columns = [column for column in page.model.encoder.columns_ if isinstance(column, DateColumn)]
    if not columns:
        return ""
    dates = {one.name: np.asarray(one.read(page.entries[one.name]), dtype=float) for one in columns}
    name = max(dates, key=lambda one: len(np.unique(dates[one])))
    when, evaluation = dates[name], page.evaluation
    order = np.argsort(when, kind="stable")[: np.isfinite(when).sum()]  # missing dates are the last
    periods = np.array_split(order, np.clip(len(order) // PERIOD_ROWS, 1, MOST_PERIODS))
    times = np.array([np.median(when[rows]) for rows in periods]) if len(order) else np.empty(0)
    if len(times) < 2 or not np.all(np.diff(times) > 0):
        return ""
    pictures = ""
    intervals = evaluation.intervals()
    if intervals:
        widest, bands = intervals[0], pair_levels(evaluation.levels).bands
        ends = evaluation.ends if evaluation.ends is not None else evaluation.curves[:, list(bands[0])]
        inside = (ends[:, 0] <= evaluation.y) & (evaluation.y <= ends[:, 1])
        shares = np.array([inside[rows].mean() for rows in periods])
        chance = binomial_band(widest.nominal, np.array([len(rows) for rows in periods]))
        nominal, share = np.full(len(times), widest.nominal), format_share(widest.nominal, 0)
        pictures += make_figure(
            charts.draw_over_time(times, shares, "share of rows inside", reference=nominal, chance=chance),
            f"Coverage of the {share} interval. Dashed: {share}; band: 95 % by chance, if rows were independent. Rows "
            "close in time often are not, so that chance moves the points further.",
        )
    baseline = next(iter(evaluation.baselines))
    ours, constant = (
        np.array([losses[rows].mean() for rows in periods])
        for losses in (evaluation.row_losses(), evaluation.row_losses(baseline))
    )
    pictures += make_figure(
        charts.draw_over_time(times, ours, "mean pinball loss", reference=constant),
        f"Loss of this model. Dashed: {baseline.lower()}.",
    )
    text = (
        f"Evaluation rows in the order of {name!r}, in {len(periods)} consecutive periods of about {len(periods[0]):,} "
        "rows. A trend in the coverage means that the relation changes with time."
    )
    return f'<p>{escape(text)}</p><div class="beside">{pictures}</div>'


def _interval_table(intervals: list[Interval], evaluation: Evaluation) -> str:
    """Return the table of coverages and widths, and what to know or do about them."""
    lines: list[list[Cell | str]] = [
        [
            f"{format_share(one.nominal, 0)}{', calibrated' if one.calibrated else ''}",
            *_share_cells(one.inner, one.observed, one.low, one.high, one.holds),
            numeric_cell(format_number(one.width)),
        ]
        for one in intervals
    ]
    heads = ("interval", numeric_cell("rows inside"), numeric_cell("95 % by chance"), "", numeric_cell("width"))
    caption = "Coverage and mean width of central intervals, between pairs of levels unless marked as calibrated."
    text = make_table(heads, lines, caption)
    if evaluation.model.interval is not None and intervals[0].calibrated:
        promise = CALIBRATED if evaluation.units is None else CALIBRATED_UNITS
        return f"{text}<p>{escape(promise.format(rows=evaluation.model.interval.n_calibration_))}</p>"
    kernel = isinstance(evaluation.model.model, KernelQuantileRegressor)
    remedy = TOO_NARROW + _describe_overfit(evaluation) if kernel else TOO_NARROW_TABULAR
    return text + (f'<p class="warn">{remedy}</p>' if intervals[0].observed < intervals[0].low else "")


def _share_cells(without_ties: float, with_ties: float, low: float, high: float, holds: bool) -> tuple[Cell, ...]:
    """Return cells with an observed share, as a range where ties make one, its range by chance, and the verdict."""
    chance = f"{100 * low:.1f} to {format_share(high)}"
    observed = "" if without_ties == with_ties else f"{100 * without_ties:.1f} to "
    return numeric_cell(observed + format_share(with_ties)), numeric_cell(chance), verdict_cell(holds)


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
        for j in page.importance.order[:MOST_BARS]
    ]
    most = f" The {MOST_BARS} most important ones." if len(increase) > MOST_BARS else ""
    caption = f"Permutation importance: increase of the loss when a column is shuffled among the evaluation rows.{most}"
    options = "".join(f'<option value="{k}">{escape(fan.name)}</option>' for k, fan in enumerate(page.fans))
    others = "" if n_columns == 1 else "; the other columns are at typical values (median, or most frequent)"
    figures = "".join(
        make_figure(
            charts.draw_fan(fan, levels, target),
            f"Along {fan.name}{others}.{' Rows are jittered sideways.' if fan.jitter else ''}",
            f"fan-{k}",
        )
        for k, fan in enumerate(page.fans)
    )
    left = n_columns - len(page.fans)
    hidden = "1 less important column is" if left == 1 else f"{left} less important columns are"
    more = f'<p class="quiet">{hidden} not shown.</p>' if left > 0 else ""
    chooser = f'<label for="column">Column</label><select id="column">{options}</select>'
    return (
        f'<div class="beside"><div>{make_table(("column", numeric_cell("loss"), ""), lines, caption)}</div><div>'
        f'<div class="chooser"{" hidden" if len(page.fans) == 1 else ""}>{chooser}</div>'
        f'{fan_key(levels)}<div class="fans" aria-live="polite">{figures}</div>{more}</div></div>'
    )


def render_what_if(page: Page) -> str:
    """Return the panel in which a reader changes the most important columns of a typical row; it needs the script."""
    shown, levels = page.what_if, page.evaluation.levels
    inputs = "".join(
        f'<p><label for="if-{k}">{escape(name)}</label> <input type="range" id="if-{k}" min="0" '
        f'max="{len(labels) - 1}" value="{len(labels) // 2}"> <output for="if-{k}"></output></p>'
        for k, (name, labels) in enumerate(zip(shown.names, shown.labels, strict=True))
    )
    lines = "".join(f'<tr><th scope="row">{level:g}</th><td class="n"></td></tr>' for level in levels)
    curves = [[[float(f"{value:.6g}") for value in row] for row in rows] for rows in shown.curves]
    numbers = escape(json.dumps({"labels": shown.labels, "curves": curves}))
    others = "" if len(page.model.encoder.columns_) <= len(shown.names) else ", all other columns at typical values"
    text = f"Move the inputs of a row{others}: the predicted quantiles of {page.model.target} follow."
    return (
        f'<div id="what-if" data-numbers="{numbers}" hidden><p>{escape(text)}</p><div class="beside"><div>{inputs}'
        '<div class="range" aria-hidden="true"><i></i><i class="middle"></i></div></div>'
        "<table><thead><tr><th>level</th>"
        f'<th class="n">{escape(page.model.target)}</th></tr></thead><tbody>{lines}</tbody></table></div></div>'
        "<noscript><p>This panel needs a script.</p></noscript>"
    )


def fan_key(levels: Array) -> str:
    """Return the key of the fan charts."""
    parts = pair_levels(levels)
    items = ['<li><i class="median"></i>median</li>'] if parts.median is not None else []
    bands, opacity = [], 0.0
    for k, (a, b) in enumerate(parts.bands):
        # The inner bands lie on the outer ones.
        opacity = 1 - (1 - opacity) * (1 - charts.band_opacity(k, len(parts.bands)))
        name = f"middle {format_share(levels[b] - levels[a], 0)}"
        bands.append(f'<li><i style="opacity:{opacity:.2f}"></i>{name}</li>')
    items += bands[::-1]
    if parts.singles:
        names = ", ".join(f"{levels[k]:g}" for k in parts.singles)
        items.append(f'<li><i class="single"></i>level {names}</li>')
    return f'<ul class="key" aria-label="Key">{"".join(items)}<li><i class="rows"></i>rows</li></ul>'


def render_worst_rows(page: Page) -> str:
    """Return the section on the rows with the largest loss."""
    loss = page.evaluation.row_losses()
    worst = np.argsort(-loss, kind="stable")[:WORST]
    text = (
        f"The {len(worst)} rows with the largest pinball loss, averaged over the levels. They account for "
        f"{format_share(loss[worst].sum() / loss.sum() if loss.sum() > 0 else 0)} of the total loss of {len(loss):,} "
        "rows: look for errors in the data, and for information missing from the columns."
    )
    return f"<p>{escape(text)}</p>{_row_table(page, worst, loss)}"


def render_extrapolations(page: Page) -> str:
    """Return the section on rows outside the range of the training data."""
    evaluation = page.evaluation
    count = int(evaluation.outside.sum())
    if count == 0:
        return f"<p>None of the {len(evaluation.y):,} evaluation rows is outside the training range in any column.</p>"
    beyond = np.sum(evaluation.beyond, axis=0)
    names = evaluation.model.encoder.names
    columns = ", ".join(f"{names[j]} ({beyond[j]:,})" for j in np.argsort(-beyond, kind="stable")[:5] if beyond[j])
    loss, outside = evaluation.row_losses(), evaluation.outside
    compared = (
        f" Their mean loss is {format_number(loss[outside].mean())}, that of the others "
        f"{format_number(loss[~outside].mean())}."
        if count < len(loss)
        else ""
    )
    text = (
        f"{count:,} of {len(loss):,} evaluation rows ({format_share(count / len(loss))}) are outside the range of the "
        f"training rows in at least one column: {columns}. Predictions there are extrapolations.{compared}"
    )
    return f"<p>{escape(text)}</p>{_row_table(page, np.flatnonzero(outside)[:WORST], loss)}"


def _row_table(page: Page, some: NDArray[np.intp], loss: Array) -> str:
    """Tabulate some evaluation rows: position in the file, target, quantiles, loss, and the most important columns."""
    evaluation = page.evaluation
    names = [page.importance.names[j] for j in page.importance.order[:SHOWN_INPUTS]]
    entries = page.entries.take(some)
    columns = {column.name: column for column in page.model.encoder.columns_}
    inputs = [_format_entries(columns[name], entries[name]) for name in names]
    titles = [numeric_cell(name) if isinstance(columns[name], NumberColumn) else name for name in names]
    lines = [
        (
            numeric_cell(f"{page.rows[i]:,}"),
            *(numeric_cell(format_number(value)) for value in (evaluation.y[i], *evaluation.curves[i], loss[i])),
            *(values[k] for values in inputs),
        )
        for k, i in enumerate(some)
    ]
    heads = ("row", page.model.target, *(f"{level:g}" for level in evaluation.levels), "loss")
    caption = "Rows are numbered from 1, without the header; columns are ordered by importance."
    return make_table((*map(numeric_cell, heads), *titles), lines, caption)


def _format_entries(column: Column, entries: Any) -> list[Cell | str]:
    """Format the values of a column; dates given as text are parsed first."""
    if isinstance(column, DateColumn):
        return [MISSING if np.isnan(moment) else Cell(format_date(moment), "whole") for moment in column.read(entries)]
    if isinstance(column, TimeColumn):
        return [MISSING if np.isnan(time) else format_time(time) for time in column.read(entries)]
    missing = numeric_cell(MISSING) if isinstance(column, NumberColumn) else MISSING
    return [missing if value in (None, "") else _format_entry(value) for value in entries.to_pylist()]


def _format_entry(value: Any) -> Cell | str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float | Decimal):
        return numeric_cell(format_number(float(value)))
    return truncate(str(value), 40)


def render_usage(page: Page) -> str:
    """Return the section on how to use the model from Python and on the command line."""
    name, levels = PurePath(page.model_file).name, page.evaluation.levels
    between = f"{(levels[0] + levels[-1]) / 2:.3g}" if len(levels) > 1 else f"{levels[0]:g}"
    any_level = isinstance(page.model.model, TabularQuantileRegressor)
    fitted = ", ".join(f"{level:g}" for level in page.model.quantiles_)
    python = (
        f"import quernel\n\nmodel = quernel.load({name!r})\n"
        f"model.predict(frame)  # pandas, polars or Arrow; one column per level: {fitted}\n"
        f"model.predict(frame, quantiles={'[0.01, 0.99]' if any_level else between})  # or any level"
        f"{'' if any_level else ' between these'}"
    )
    if any_level and page.model.interval is None:
        python += "\nmodel.predict_interval(frame, coverage=0.8)  # lower and upper bounds, of any coverage"
    if page.model.interval is not None:
        coverage = format_share(page.model.interval.coverage_, 0)
        python += f"\nmodel.predict_interval(frame)  # calibrated lower and upper bounds: {coverage}"
    shell = f"quernel predict {shlex.quote(name)} new.csv --out predicted.csv"
    inputs = page.model.encoder.inputs
    needed = ", ".join(inputs) if len(inputs) <= MOST_NAMED else f"listed above ({len(inputs)})"
    return (
        f"<p>In Python:</p><pre><code>{escape(python)}</code></pre><p>On the command line:</p>"
        f"<pre><code>{escape(shell)}</code></pre><p>Tables must have the columns {escape(needed)}; others are ignored, "
        "and missing values are allowed.</p>"
    )
