"""The sections of the page, one function each."""

from __future__ import annotations

import shlex
from decimal import Decimal
from html import escape
from pathlib import PurePath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quernel.plots.fan import arrange
from quernel.plots.style import cut
from quernel.report import charts
from quernel.report.columns import day, time_of_day
from quernel.report.content import Page, intervals
from quernel.report.elements import Cell, figure, head, right, table, verdict
from quernel.report.evaluation import Evaluation
from quernel.report.number_format import counted, number, percent
from quernel.tables import DateColumn, TimeColumn
from quernel.tables.columns import Column, NumberColumn

Array = NDArray[np.floating]

NONE, MISSING = "\N{EN DASH}", "missing"
TOO_NARROW = (
    "The intervals hold fewer rows than they promise: the model follows its training rows too closely. A larger ridge "
    "weight, 3 to 100 times the one above (<code>--alpha</code>), makes it smoother; <code>--conformal</code> (in "
    "Python, ConformalQuantileRegressor) widens an interval until it holds."
)
ON_CURVES = (
    "Rows with the same target lie exactly on curves: then two shares are given, of the rows below the curve and of "
    "those below or on it. A level between the two is kept. So it is with intervals, and the rows on their ends."
)
CALIBRATED = (
    "The calibrated interval was widened, or narrowed, until it held the rows that calibrated it, {rows:,} of those "
    "that the model was not fitted to. On average over new rows like these it holds as many as it promises, however "
    "wrong the model; the other intervals are as fitted."
)
WORST, SHOWN_INPUTS, MOST_BARS, MOST_NAMED = 10, 8, 12, 20


def data(page: Page) -> str:
    """What is in the table."""
    lost = f"{page.dropped:,} rows have" if page.dropped > 1 else "1 row has"
    dropped = f" {lost} no target and {'were' if page.dropped > 1 else 'was'} left out." if page.dropped else ""
    drawn = f" What follows describes a random sample of {page.drawn:,} rows." if page.drawn is not None else ""
    logged = " The model was fitted to the logarithm of the target, and its quantiles are mapped back."
    text = (
        f"{counted(page.n_rows, 'row')}, {counted(len(page.columns) - 1, 'input column')}, target "
        f"{page.model.target!r}.{dropped}{drawn}{logged if page.model.log_target else ''}"
    )
    lines = [
        (head(one.name), one.kind, right(f"{one.missing:,}" if one.missing else NONE), one.words)
        for one in page.columns
    ]
    columns = table(("column", "read as", right("missing"), "values"), lines)
    return (
        f'<p>{escape(text)}</p><div class="beside"><div>{columns}</div>'
        f"{figure(charts.histogram(page.y, page.model.target), 'How the target is distributed.')}</div>"
    )


def choices(page: Page) -> str:
    """What was chosen, and why."""
    chosen = table(("choice", "value", "why"), [(head(one.name), one.value, one.why) for one in page.choices])
    widths, names = page.model.model.bandwidth_, page.model.encoder.names
    if widths is None or np.ndim(widths) != 1 or isinstance(widths, tuple) or len(widths) != len(names):
        return chosen
    lines = [(head(name), right(number(width))) for name, width in zip(names, widths, strict=True)]
    return (
        f"{chosen}<details><summary>Bandwidths of {counted(len(names), 'encoded column')}</summary>"
        f"{table(('column', right('bandwidth')), lines)}</details>"
    )


def losses(page: Page) -> str:
    """The loss of the model beside that of its rivals."""
    judged = page.judged
    methods: list[str | None] = [None, *judged.rivals]
    means = {name: float(judged.losses(name).mean()) for name in methods}
    top = max(means.values()) or 1.0
    lines = []
    for name in sorted(methods, key=lambda one: means[one]):
        bar = Cell(f'<span style="width:{96 * means[name] / top:.1f}%"></span>', "track")
        losses = [right(number(loss)) for loss in judged.losses(name)]
        title = head("This model" if name is None else name)
        lines.append((title, right(number(means[name])), right(_beside(judged, name)), bar, *losses))
    ours = [k for k, name in enumerate(sorted(methods, key=lambda one: means[one])) if name is None]
    heads = ["model", right("mean loss"), right("beside this model"), "", *(right(f"{q:g}") for q in judged.levels)]
    caption = "Pinball loss, in units of the target: the mean over the levels, then by level. Lower is better."
    warning = "" if judged.unseen else ' class="warn"'
    best = min(judged.rivals, key=means.__getitem__)
    beaten = (
        f'<p class="warn">This model is beaten on these rows: {escape(best)} has the lower loss.</p>'
        if means[best] < means[None]
        else ""
    )
    return f"<p{warning}>{escape(judged.how)}</p>{beaten}{table(heads, lines, caption, marked=ours)}"


def _beside(judged: Evaluation, name: str | None) -> str:
    """By how much the loss differs from the model's, with the standard error of the difference."""
    if name is None:
        return NONE
    ours = judged.row_losses()
    if ours.mean() == 0:
        return NONE
    change = (judged.row_losses(name) - ours) / ours.mean()
    error = change.std() / np.sqrt(len(change))
    digits = 1 if abs(change.mean()) < 1 else 0
    return f"{100 * change.mean():+,.{digits}f} % ± {100 * error:,.{digits}f}"


def coverage(page: Page) -> str:
    """Whether levels and intervals hold."""
    shown, judged = page.calibration, page.judged
    lines = [
        (
            right(f"{level:g}"),
            right(_shares(below, observed)),
            right(_from_to(low, high)),
            verdict(holds),
        )
        for level, below, observed, low, high, holds in zip(
            shown.levels, shown.below, shown.observed, shown.lower, shown.upper, shown.holds, strict=True
        )
    ]
    heads = (right("level"), right("rows below"), right("95 % by chance"), "")
    parts = [table(heads, lines, "Share of rows at or below each curve.")]
    found = intervals(judged)
    tied = bool(np.any(shown.below < shown.observed))
    if tied or any(one.inner < one.observed for one in found):
        parts.append(f"<p>{ON_CURVES}</p>")
    if found:
        narrow = not found[0].calibrated and found[0].observed < found[0].low
        lines = [
            (
                f"{percent(one.nominal, 0)}{', calibrated' if one.calibrated else ''}",
                right(_shares(one.inner, one.observed)),
                right(_from_to(one.low, one.high)),
                verdict(one.holds),
                right(number(one.width)),
            )
            for one in found
        ]
        heads = ("interval", right("rows inside"), right("95 % by chance"), "", right("width"))
        parts.append(table(heads, lines, "Central intervals, between pairs of levels unless said; mean width."))
        if found[0].calibrated:
            parts.append(f"<p>{escape(CALIBRATED.format(rows=judged.model.interval.n_calibration_))}</p>")
        if narrow:
            parts.append(f'<p class="warn">{TOO_NARROW}</p>')
    most = percent(shown.confidence, 0)
    pictures = figure(
        charts.calibration(shown),
        f"Points on the dashed line are right; the band is where true quantiles would be in {most} of such tables."
        + (" Upright lines go from the share below a curve to that below or on it." if tied else ""),
    ) + figure(
        charts.pit(page.residuals),
        f"Rows between neighbouring curves over those expected, with {most} of chance. A bowl says that the intervals "
        "are too narrow, a hump that they are too wide.",
    )
    told = (
        ""
        if judged.out_of is None
        else f"<p>Counted on {len(judged.y):,} rows, a random sample of {judged.out_of:,}.</p>"
    )
    return f'{told}<div class="beside"><div>{"".join(parts)}</div><div>{pictures}</div></div>'


def _shares(without: float, on: float) -> str:
    """The share of rows without those on curves and with them, or both in one."""
    return percent(on) if without == on else _from_to(without, on)


def _from_to(low: float, high: float) -> str:
    return f"{100 * low:.1f} to {percent(high)}"


def fans(page: Page) -> str:
    """Which columns matter, and how the quantiles run along each."""
    levels, target = page.judged.levels, page.model.target
    increase = page.importance.increase.mean(axis=1)
    order = np.argsort(-increase, kind="stable")[:MOST_BARS]
    top = max(float(increase.max()), 1e-12)
    lines = [
        (
            head(page.importance.names[j]),
            right(f"{round(100 * increase[j]):+d} %"),
            Cell(f'<span style="width:{96 * max(increase[j], 0) / top:.1f}%"></span>', "track"),
        )
        for j in order
    ]
    most = f" The {MOST_BARS} that matter most." if len(increase) > MOST_BARS else ""
    caption = f"How much the loss rises when a column is shuffled among the judged rows.{most}"
    options = "".join(f'<option value="{k}">{escape(one.name)}</option>' for k, one in enumerate(page.fans))
    alone = len(page.model.encoder.columns) == 1
    still = "" if alone else "; the other columns are at typical values (median, or most frequent)"
    figures = "".join(
        figure(
            charts.fan(one, levels, target),
            f"Along {one.name}{still}.{' Rows are scattered sideways.' if one.scattered else ''}",
            f"fan-{k}",
        )
        for k, one in enumerate(page.fans)
    )
    left = len(page.model.encoder.columns) - len(page.fans)
    told = "1 column that matters less is" if left == 1 else f"{left} columns that matter less are"
    more = f'<p class="quiet">{told} not drawn.</p>' if left > 0 else ""
    chooser = f'<label for="column">Column</label><select id="column">{options}</select>'
    return (
        f'<div class="beside"><div>{table(("column", right("loss"), ""), lines, caption)}</div><div>'
        f'<div class="chooser"{" hidden" if len(page.fans) == 1 else ""}>{chooser}</div>'
        f'{_key(levels)}<div class="fans" aria-live="polite">{figures}</div>{more}</div></div>'
    )


def _key(levels: Array) -> str:
    parts = arrange(levels)
    marks = [("median", "median")] if parts.median is not None else []
    drawn: float = 0.0
    bands = []
    for k, (a, b) in enumerate(parts.bands):
        # The inner bands lie on the outer ones.
        drawn = 1 - (1 - drawn) * (1 - charts.opacity(k, len(parts.bands)))
        bands.append((f"middle {percent(levels[b] - levels[a], 0)}", drawn))
    items = [f'<li><i class="{kind}"></i>{name}</li>' for name, kind in marks]
    items += [f'<li><i style="opacity:{shade:.2f}"></i>{name}</li>' for name, shade in bands[::-1]]
    if parts.singles:
        names = ", ".join(f"{levels[k]:g}" for k in parts.singles)
        items.append(f'<li><i class="single"></i>level {names}</li>')
    return f'<ul class="key" aria-label="Key">{"".join(items)}<li><i class="rows"></i>rows</li></ul>'


def worst(page: Page) -> str:
    """The rows that were predicted worst."""
    judged = page.judged
    loss = judged.row_losses()
    worst = np.argsort(-loss, kind="stable")[:WORST]
    text = (
        f"The {len(worst)} rows with the largest pinball loss, mean over the levels. Together they make up "
        f"{percent(loss[worst].sum() / loss.sum() if loss.sum() > 0 else 0)} of the loss of {len(loss):,} rows: look "
        "for errors in the data, and for what the columns do not say."
    )
    return f"<p>{escape(text)}</p>{_rows(page, worst, loss)}"


def outside(page: Page) -> str:
    """Rows that leave the range of the training rows."""
    judged = page.judged
    count = int(judged.outside.sum())
    if count == 0:
        return f"<p>None of the {len(judged.y):,} judged rows leaves the range of the training rows in any column.</p>"
    beyond = np.sum(judged.beyond, axis=0)
    names = judged.model.encoder.names
    columns = ", ".join(f"{names[j]} ({beyond[j]:,})" for j in np.argsort(-beyond, kind="stable")[:5] if beyond[j])
    loss = judged.row_losses()
    inside = ~judged.outside
    compared = (
        f" Their mean loss is {number(loss[judged.outside].mean())}, that of the others {number(loss[inside].mean())}."
        if inside.any()
        else ""
    )
    text = (
        f"{count:,} of {len(judged.y):,} judged rows ({percent(count / len(judged.y))}) leave the range of the "
        f"training rows in at least one column: {columns}. Kernels know little there.{compared}"
    )
    first = np.flatnonzero(judged.outside)[:WORST]
    return f"<p>{escape(text)}</p>{_rows(page, first, loss)}"


def _rows(page: Page, some: NDArray[np.intp], loss: Array) -> str:
    """Some of the judged rows: where they are in the file, their target, quantiles, loss and most important columns."""
    judged = page.judged
    order = np.argsort(-page.importance.increase.mean(axis=1), kind="stable")
    names = [page.importance.names[j] for j in order[:SHOWN_INPUTS]]
    entries = page.entries.take(some)
    columns = {column.name: column for column in page.model.encoder.columns}
    inputs = [_entries(columns[name], entries[name]) for name in names]
    titles = [right(name) if isinstance(columns[name], NumberColumn) else name for name in names]
    lines = [
        (
            right(f"{page.rows[i]:,}"),
            right(number(judged.y[i])),
            *(right(number(value)) for value in judged.curves[i]),
            right(number(loss[i])),
            *(values[k] for values in inputs),
        )
        for k, i in enumerate(some)
    ]
    levels = [right(f"{level:g}") for level in judged.levels]
    heads = (right("row"), right(page.model.target), *levels, right("loss"), *titles)
    return table(heads, lines, "Rows are counted from 1 in the file, its header left out; columns by importance.")


def loading(page: Page) -> str:
    """How to use the model."""
    name = PurePath(page.model_file).name
    levels = ", ".join(f"{level:g}" for level in page.model.quantiles_)
    python = (
        f"import quernel\n\nmodel = quernel.load({name!r})\n"
        f"model.predict(frame)  # pandas, polars or Arrow; one column for each level: {levels}\n"
        f"model.predict(frame, quantiles={_between(page.judged.levels)})  # or any level between these"
    )
    if page.model.interval is not None:
        coverage = percent(page.model.interval.coverage_, 0)
        python += f"\nmodel.predict_interval(frame)  # lower and upper end, calibrated: {coverage}"
    shell = f"quernel predict {shlex.quote(name)} new.csv --out predicted.csv"
    inputs = page.model.encoder.inputs
    needed = ", ".join(inputs) if len(inputs) <= MOST_NAMED else f"that are listed above, {len(inputs)} of them"
    return (
        f"<p>In Python:</p><pre><code>{escape(python)}</code></pre><p>On the command line:</p>"
        f"<pre><code>{escape(shell)}</code></pre><p>Tables must have the columns {escape(needed)}; others are ignored, "
        "and missing entries are fine.</p>"
    )


def _between(levels: Array) -> str:
    return f"{(levels[0] + levels[-1]) / 2:.3g}" if len(levels) > 1 else f"{levels[0]:g}"


def _entries(column: Column, entries: Any) -> list[Cell | str]:
    """The entries of a column as they are shown; dates that a file holds as text are read first."""
    if isinstance(column, DateColumn):
        return [MISSING if np.isnan(moment) else Cell(day(moment), "whole") for moment in column.read(entries)]
    if isinstance(column, TimeColumn):
        return [MISSING if np.isnan(time) else time_of_day(time) for time in column.read(entries)]
    missing = right(MISSING) if isinstance(column, NumberColumn) else MISSING
    return [missing if value in (None, "") else _entry(value) for value in entries.to_pylist()]


def _entry(value: Any) -> Cell | str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float | Decimal):
        return right(number(float(value)))
    return cut(str(value), 40)
