"""The sections of the report, one function each."""

from __future__ import annotations

import shlex
from decimal import Decimal
from html import escape
from pathlib import PurePath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quernel.plots.fans import pair_levels
from quernel.plots.style import truncate
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
    "The intervals cover fewer rows than their nominal coverage: the model overfits. A larger ridge weight, 3 to 100 "
    "times the one above (<code>--alpha</code>), makes it smoother; <code>--conformal</code> (in Python, "
    "ConformalQuantileRegressor) calibrates an interval to its nominal coverage."
)
ON_CURVES = (
    "Rows with the same target lie exactly on predicted quantiles (ties). Then two shares are shown: of the rows below "
    "the quantile, and of those at or below it; a level between the two is calibrated. Likewise for intervals, without "
    "and with the rows on their bounds."
)
CALIBRATED = (
    "The calibrated interval was adjusted by conformal prediction on {rows:,} rows that the model was not fitted to. "
    "Its coverage of new rows from the same distribution is guaranteed on average, however wrong the model; the other "
    "intervals are as fitted."
)
# At most: rows in the tables of rows, input columns in these, columns in the importance table, and column names in a
# sentence.
WORST, SHOWN_INPUTS, MOST_BARS, MOST_NAMED = 10, 8, 12, 20


def data(page: Page) -> str:
    """The data: its columns, and a histogram of the target."""
    lost = f"{page.dropped:,} rows have" if page.dropped > 1 else "1 row has"
    dropped = f" {lost} no target and {'were' if page.dropped > 1 else 'was'} left out." if page.dropped else ""
    drawn = f" What follows describes a random sample of {page.drawn:,} rows." if page.drawn is not None else ""
    logged = " The model was fitted to the logarithm of the target; predictions are transformed back."
    text = (
        f"{counted(page.n_rows, 'row')}, {counted(len(page.columns) - 1, 'input column')}, target "
        f"{page.model.target!r}.{dropped}{drawn}{logged if page.model.log_target else ''}"
    )
    lines = [
        (head(one.name), one.kind, right(f"{one.missing:,}" if one.missing else NONE), one.description)
        for one in page.columns
    ]
    columns = table(("column", "type", right("missing"), "values"), lines)
    return (
        f'<p>{escape(text)}</p><div class="beside"><div>{columns}</div>'
        f"{figure(charts.histogram(page.y, page.model.target), 'Distribution of the target.')}</div>"
    )


def choices(page: Page) -> str:
    """The hyperparameters and how they were chosen."""
    heads = ("hyperparameter", "value", "how it was chosen, or what it means")
    chosen = table(heads, [(head(one.name), one.value, one.why) for one in page.choices])
    widths, names = page.model.model.bandwidth_, page.model.encoder.names
    if widths is None or np.ndim(widths) != 1 or isinstance(widths, tuple) or len(widths) != len(names):
        return chosen
    lines = [(head(name), right(number(width))) for name, width in zip(names, widths, strict=True)]
    return (
        f"{chosen}<details><summary>Bandwidths of {counted(len(names), 'encoded column')}</summary>"
        f"{table(('column', right('bandwidth')), lines)}</details>"
    )


def losses(page: Page) -> str:
    """The loss of the model and of the baselines."""
    evaluation = page.evaluation
    methods: list[str | None] = [None, *evaluation.baselines]
    means = {name: float(evaluation.losses(name).mean()) for name in methods}
    top = max(means.values()) or 1.0
    lines = []
    for name in sorted(methods, key=lambda one: means[one]):
        bar = Cell(f'<span style="width:{96 * means[name] / top:.1f}%"></span>', "track")
        losses = [right(number(loss)) for loss in evaluation.losses(name)]
        title = head("This model" if name is None else name)
        lines.append((title, right(number(means[name])), right(_difference(evaluation, name)), bar, *losses))
    ours = [k for k, name in enumerate(sorted(methods, key=lambda one: means[one])) if name is None]
    heads = ["model", right("mean loss"), right("difference"), "", *(right(f"{q:g}") for q in evaluation.levels)]
    caption = (
        "Pinball loss, in units of the target: mean over the levels, difference from this model (± standard error), "
        "and loss per level. Lower is better."
    )
    warning = "" if evaluation.unseen else ' class="warn"'
    best = min(evaluation.baselines, key=means.__getitem__)
    beaten = (
        f'<p class="warn">A baseline is better on these rows: {escape(best)} has a lower loss than this model.</p>'
        if means[best] < means[None]
        else ""
    )
    return f"<p{warning}>{escape(evaluation.how)}</p>{beaten}{table(heads, lines, caption, marked=ours)}"


def _difference(evaluation: Evaluation, name: str | None) -> str:
    """Relative difference of a baseline's loss from the model's, with its standard error."""
    if name is None:
        return NONE
    ours = evaluation.row_losses()
    if ours.mean() == 0:
        return NONE
    change = (evaluation.row_losses(name) - ours) / ours.mean()
    error = change.std() / np.sqrt(len(change))
    digits = 1 if abs(change.mean()) < 1 else 0
    return f"{100 * change.mean():+,.{digits}f} % ± {100 * error:,.{digits}f}"


def coverage(page: Page) -> str:
    """Calibration of the quantile levels and coverage of the intervals."""
    shown, evaluation = page.calibration, page.evaluation
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
    caption = "Share of rows at or below each predicted quantile, and its 95 % range by chance for a calibrated level."
    parts = [table(heads, lines, caption)]
    found = intervals(evaluation)
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
        caption = "Coverage and mean width of central intervals, between pairs of levels unless marked as calibrated."
        parts.append(table(heads, lines, caption))
        if found[0].calibrated:
            parts.append(f"<p>{escape(CALIBRATED.format(rows=evaluation.model.interval.n_calibration_))}</p>")
        if narrow:
            parts.append(f'<p class="warn">{TOO_NARROW}</p>')
    most = percent(shown.confidence, 0)
    pictures = figure(
        charts.calibration(shown),
        f"Calibration: points on the dashed line are ideal; true quantiles would be in the band in {most} of samples."
        + (" Vertical lines go from the share below a quantile to the share at or below it." if tied else ""),
    ) + figure(
        charts.pit(page.residuals),
        f"PIT histogram: rows between neighbouring quantiles, relative to the expected number, with {most} ranges. A U "
        "shape means that intervals are too narrow, a hump that they are too wide.",
    )
    sample = (
        ""
        if evaluation.out_of is None
        else f"<p>Computed on {len(evaluation.y):,} rows, a random sample of {evaluation.out_of:,}.</p>"
    )
    return f'{sample}<div class="beside"><div>{"".join(parts)}</div><div>{pictures}</div></div>'


def _shares(without: float, on: float) -> str:
    """Format the share of rows without ties and with them, as one number where these agree."""
    return percent(on) if without == on else _from_to(without, on)


def _from_to(low: float, high: float) -> str:
    return f"{100 * low:.1f} to {percent(high)}"


def fans(page: Page) -> str:
    """Permutation importance of the columns, and a fan chart along each."""
    levels, target = page.evaluation.levels, page.model.target
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
    most = f" The {MOST_BARS} most important ones." if len(increase) > MOST_BARS else ""
    caption = f"Permutation importance: increase of the loss when a column is shuffled among the evaluation rows.{most}"
    options = "".join(f'<option value="{k}">{escape(one.name)}</option>' for k, one in enumerate(page.fans))
    alone = len(page.model.encoder.columns) == 1
    still = "" if alone else "; the other columns are at typical values (median, or most frequent)"
    figures = "".join(
        figure(
            charts.fan(one, levels, target),
            f"Along {one.name}{still}.{' Rows are jittered sideways.' if one.scattered else ''}",
            f"fan-{k}",
        )
        for k, one in enumerate(page.fans)
    )
    left = len(page.model.encoder.columns) - len(page.fans)
    hidden = "1 less important column is" if left == 1 else f"{left} less important columns are"
    more = f'<p class="quiet">{hidden} not shown.</p>' if left > 0 else ""
    chooser = f'<label for="column">Column</label><select id="column">{options}</select>'
    return (
        f'<div class="beside"><div>{table(("column", right("loss"), ""), lines, caption)}</div><div>'
        f'<div class="chooser"{" hidden" if len(page.fans) == 1 else ""}>{chooser}</div>'
        f'{_key(levels)}<div class="fans" aria-live="polite">{figures}</div>{more}</div></div>'
    )


def _key(levels: Array) -> str:
    parts = pair_levels(levels)
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
    """The rows with the largest loss."""
    evaluation = page.evaluation
    loss = evaluation.row_losses()
    worst = np.argsort(-loss, kind="stable")[:WORST]
    text = (
        f"The {len(worst)} rows with the largest pinball loss, averaged over the levels. They account for "
        f"{percent(loss[worst].sum() / loss.sum() if loss.sum() > 0 else 0)} of the total loss of {len(loss):,} rows: "
        "look for errors in the data, and for information missing from the columns."
    )
    return f"<p>{escape(text)}</p>{_rows(page, worst, loss)}"


def outside(page: Page) -> str:
    """Rows outside the range of the training data."""
    evaluation = page.evaluation
    count = int(evaluation.outside.sum())
    if count == 0:
        return f"<p>None of the {len(evaluation.y):,} evaluation rows is outside the training range in any column.</p>"
    beyond = np.sum(evaluation.beyond, axis=0)
    names = evaluation.model.encoder.names
    columns = ", ".join(f"{names[j]} ({beyond[j]:,})" for j in np.argsort(-beyond, kind="stable")[:5] if beyond[j])
    loss = evaluation.row_losses()
    inside = ~evaluation.outside
    compared = (
        f" Their mean loss is {number(loss[~inside].mean())}, that of the others {number(loss[inside].mean())}."
        if inside.any()
        else ""
    )
    text = (
        f"{count:,} of {len(loss):,} evaluation rows ({percent(count / len(loss))}) are outside the range of the "
        f"training rows in at least one column: {columns}. Predictions there are extrapolations.{compared}"
    )
    first = np.flatnonzero(evaluation.outside)[:WORST]
    return f"<p>{escape(text)}</p>{_rows(page, first, loss)}"


def _rows(page: Page, some: NDArray[np.intp], loss: Array) -> str:
    """Tabulate some evaluation rows: position in the file, target, quantiles, loss, and the most important columns."""
    evaluation = page.evaluation
    order = np.argsort(-page.importance.increase.mean(axis=1), kind="stable")
    names = [page.importance.names[j] for j in order[:SHOWN_INPUTS]]
    entries = page.entries.take(some)
    columns = {column.name: column for column in page.model.encoder.columns}
    inputs = [_entries(columns[name], entries[name]) for name in names]
    titles = [right(name) if isinstance(columns[name], NumberColumn) else name for name in names]
    lines = [
        (
            right(f"{page.rows[i]:,}"),
            right(number(evaluation.y[i])),
            *(right(number(value)) for value in evaluation.curves[i]),
            right(number(loss[i])),
            *(values[k] for values in inputs),
        )
        for k, i in enumerate(some)
    ]
    levels = [right(f"{level:g}") for level in evaluation.levels]
    heads = (right("row"), right(page.model.target), *levels, right("loss"), *titles)
    return table(heads, lines, "Rows are numbered from 1, without the header; columns are ordered by importance.")


def loading(page: Page) -> str:
    """How to use the model from Python and on the command line."""
    name = PurePath(page.model_file).name
    levels = ", ".join(f"{level:g}" for level in page.model.quantiles_)
    python = (
        f"import quernel\n\nmodel = quernel.load({name!r})\n"
        f"model.predict(frame)  # pandas, polars or Arrow; one column per level: {levels}\n"
        f"model.predict(frame, quantiles={_between(page.evaluation.levels)})  # or any level between these"
    )
    if page.model.interval is not None:
        coverage = percent(page.model.interval.coverage_, 0)
        python += f"\nmodel.predict_interval(frame)  # calibrated lower and upper bounds: {coverage}"
    shell = f"quernel predict {shlex.quote(name)} new.csv --out predicted.csv"
    inputs = page.model.encoder.inputs
    needed = ", ".join(inputs) if len(inputs) <= MOST_NAMED else f"listed above ({len(inputs)})"
    return (
        f"<p>In Python:</p><pre><code>{escape(python)}</code></pre><p>On the command line:</p>"
        f"<pre><code>{escape(shell)}</code></pre><p>Tables must have the columns {escape(needed)}; others are ignored, "
        "and missing values are allowed.</p>"
    )


def _between(levels: Array) -> str:
    return f"{(levels[0] + levels[-1]) / 2:.3g}" if len(levels) > 1 else f"{levels[0]:g}"


def _entries(column: Column, entries: Any) -> list[Cell | str]:
    """Format the values of a column; dates given as text are parsed first."""
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
    return truncate(str(value), 40)
