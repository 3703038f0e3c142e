"""The HTML of the report: `report_page` assembles the document, and each section is a function of the `Page`."""

from __future__ import annotations

import base64
import csv
import io
import json
import shlex
from datetime import date
from decimal import Decimal
from html import escape
from importlib.resources import files
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from quernel import __version__
from quernel.conformal.table_model import TableModel
from quernel.estimators import TabularQuantileRegressor
from quernel.plots import PermutationImportanceDisplay
from quernel.plots.style import truncate
from quernel.report import charts
from quernel.report.advice import WORST, describe_comparison, describe_sides, find_caps, render_top
from quernel.report.content import Page, compute_page, find_bandwidths, summarize_page
from quernel.report.effects import render_columns, render_what_if
from quernel.report.evaluation import Evaluation
from quernel.report.formatting import (
    Cell,
    bar_cell,
    fold,
    format_amount,
    format_count,
    format_date,
    format_number,
    format_numbers,
    format_share,
    format_time,
    make_figure,
    make_table,
    may_be_years,
    numeric_cell,
    render_text,
    row_header,
)
from quernel.report.reliability import render_coverage, render_groups, render_periods
from quernel.tables.columns import Column

if TYPE_CHECKING:
    import pyarrow as pa

Array = NDArray[np.floating]

NONE, MISSING = "\N{EN DASH}", "missing"
# Kinds of columns whose values are written as numbers.
NUMBERS = ("number", "boolean", "duration")
# Numbers in the file to download: at some 12 bytes each, and a third more as a link, less than 3 MB.
MAX_DOWNLOAD = 180_000
# At most: input columns in the tables of rows, and column names in a sentence.
SHOWN_INPUTS, MOST_NAMED = 8, 20
# Columns that are named for each model, beside others.
COMPARED_COLUMNS = 3


def report_page(
    model: TableModel,
    table: pa.Table,
    evaluation: Evaluation,
    *,
    data: str,
    model_file: str,
) -> str:
    """Return the report on a model as HTML; arguments as in `compute_page`."""
    return render_page(compute_page(model, table, evaluation, data=data, model_file=model_file))


def render_page(page: Page) -> str:
    """Return the report as HTML."""
    sections = {
        "models": ("Models side by side", render_comparison(page)),
        "loss": ("Loss compared with baselines", render_losses(page)),
        "coverage": ("Coverage and calibration", render_coverage(page)),
        "groups": ("Coverage by group", render_groups(page)),
        "time": ("Coverage and loss over time", render_periods(page)),
        "columns": ("Predictions along each column", render_columns(page)),
        "whatif": ("What if", render_what_if(page)),
        "worst": ("The worst-predicted rows", render_worst_rows(page)),
        "predictions": ("To download", render_download(page)),
        "data": ("Data", render_data(page)),
        "choices": ("How it was fitted", render_choices(page)),
        "load": ("How to use the model", render_usage(page)),
    }
    sections = {name: section for name, section in sections.items() if section[1]}
    evaluation, kind = page.evaluation, type(page.model.model).__name__
    about = (
        f'<p class="quiet">{escape(page.data)}, {page.n_rows:,} rows; {kind} of quernel {__version__}, evaluated on '
        f"{len(evaluation.y):,} {'held-out' if evaluation.unseen else 'given'} rows; "
        f'<span class="whole">{date.today().isoformat()}</span></p>'
    )
    return assemble_page(f"Quantiles of {page.model.target}", about + render_top(page), sections)


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


def render_data(page: Page) -> str:
    """Return the section on the data: its columns, and a histogram of the target."""
    lost = f"{page.dropped:,} rows have" if page.dropped > 1 else "1 row has"
    dropped = f" {lost} no target and {'were' if page.dropped > 1 else 'was'} left out." if page.dropped else ""
    drawn = f" What follows describes a random sample of {page.drawn:,} rows." if page.drawn is not None else ""
    logged = " The model was fitted to the logarithm of the target; predictions are transformed back."
    text = f"{format_count(page.n_rows, 'row')}, {format_count(len(page.columns) - 1, 'input column')}."
    text += f"{dropped}{drawn}{logged if page.model.log_target else ''}"
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
    if widths is not None and np.ndim(widths) == 1 and not isinstance(widths, tuple) and len(widths) == len(names):
        one_each = zip(names, widths, strict=True)
        lines = [(row_header(name), numeric_cell(format_number(width))) for name, width in one_each]
        chosen += make_table(("column", numeric_cell("bandwidth")), lines, "Bandwidths of the encoded columns.")
    return fold("Settings, and how they were chosen", chosen)


def render_losses(page: Page) -> str:
    """Return the section on the loss of the model and of the baselines."""
    evaluation = page.evaluation
    means = {name: float(evaluation.losses(name).mean()) for name in (None, *evaluation.baselines)}
    ranked = sorted(means, key=lambda name: means[name])
    longest = max(means.values()) or 1.0
    losses = format_numbers(means[name] for name in ranked)
    changes = {name: evaluation.compare_losses(evaluation.row_losses(name)) for name in ranked}
    lines = [
        (
            row_header("This model" if name is None else name),
            numeric_cell(losses[k]),
            numeric_cell(NONE if name is None else f"{100 * change:+,.1f} % ± {100 * error:,.1f}"),
            bar_cell(means[name] / longest),
        )
        for k, (name, (change, error)) in enumerate(changes.items())
    ]
    heads = ("model", numeric_cell("mean loss"), numeric_cell("this model"), "")
    caption = (
        "Pinball loss, the mean over the levels, and by how much this model is below (-) or above (+) the other "
        "(± standard error, in points). Lower is better."
    )
    warning = "" if evaluation.unseen else ' class="warn"'
    table = make_table(heads, lines, caption, marked=[ranked.index(None)])
    return f"<p{warning}>{escape(evaluation.how)}</p>{table}"


def render_worst_rows(page: Page) -> str:
    """Return the section on the rows with the largest loss."""
    loss = page.evaluation.row_losses()
    worst = np.argsort(-loss, kind="stable")[:WORST]
    text = (
        f"The {len(worst)} rows with the largest pinball loss have "
        f"{format_share(loss[worst].sum() / loss.sum() if loss.sum() > 0 else 0)} of the total loss of {len(loss):,} "
        "rows: look for errors in the data, and for information missing from the columns. "
        f"{describe_sides(page.evaluation)}."
    )
    capped = sum(int(np.isclose(page.evaluation.y[worst], end).sum()) for end, _ in find_caps(page.y))
    if capped:
        text += f" {capped} of them {'has' if capped == 1 else 'have'} a capped target, whose true value is unknown."
    return f"<p>{escape(text)}</p>{_row_table(page, worst)}"


def render_download(page: Page) -> str:
    """Return a link that holds the predictions of the evaluation rows as CSV."""
    evaluation = page.evaluation
    names = [f"q{level:g}" for level in evaluation.levels]
    columns = [evaluation.y, *evaluation.curves.T]
    if evaluation.ends is not None:
        names, columns = [*names, "lower", "upper"], [*columns, *evaluation.ends.T]
    n_rows = min(len(evaluation.y), MAX_DOWNLOAD // (len(columns) + 2))
    some = np.unique(np.linspace(0, len(evaluation.y) - 1, n_rows).round().astype(int))
    stream = io.StringIO()
    writer = csv.writer(stream)
    writer.writerow(["row", page.model.target, *names, "outside_training_range"])
    for i in some:
        values = (float(f"{column[i]:.7g}") for column in columns)
        writer.writerow([page.rows[i], *values, int(evaluation.outside[i])])
    held, numbers = (
        base64.b64encode(text.encode()).decode() for text in (stream.getvalue(), json.dumps(summarize_page(page)))
    )
    which = "all" if n_rows == len(evaluation.y) else f"{n_rows:,} of the"
    interval = "" if evaluation.ends is None else " and calibrated interval"
    text = f"Row number, target, predicted quantiles{interval}, and whether a value is outside the training range, of "
    text += f"{which} {len(evaluation.y):,} {evaluation.row_name}."
    return (
        f'<p><a download="predictions.csv" href="data:text/csv;base64,{held}">predictions.csv</a>: {escape(text)}</p>'
        f'<p><a download="report.json" href="data:application/json;base64,{numbers}">report.json</a>: the numbers of '
        "this page.</p>"
    )


def _row_table(page: Page, some: NDArray[np.intp]) -> str:
    """Tabulate some rows: position in the file, target, outer quantiles and median, and the most important columns."""
    evaluation = page.evaluation
    names = [page.importance.names[j] for j in page.importance.order[:SHOWN_INPUTS]]
    entries = page.entries.take(some)
    columns = {column.name: column for column in page.model.encoder.columns_}
    inputs = [_format_entries(columns[name], entries[name]) for name in names]
    titles = [numeric_cell(name) if columns[name].kind in NUMBERS else name for name in names]
    shown = sorted({0, evaluation.middle, len(evaluation.levels) - 1})
    numbers = [format_numbers(column[some]) for column in (evaluation.y, *evaluation.curves.T[shown])]
    lines = [
        (
            numeric_cell(f"{page.rows[i]:,}"),
            *(numeric_cell(column[k]) for column in numbers),
            *(values[k] for values in inputs),
        )
        for k, i in enumerate(some)
    ]
    heads = ("row", page.model.target, *(f"{level:g}" for level in evaluation.levels[shown]))
    which = f"the {len(names)} most important input columns" if len(names) < len(columns) else "input columns"
    caption = f"Rows are numbered from 1, without the header; {which}, ordered by importance."
    return make_table((*map(numeric_cell, heads), *titles), lines, caption)


def _format_entries(column: Column, entries: Any) -> list[Cell | str]:
    """Format the values of a column; dates given as text are parsed first."""
    if column.kind == "date":
        return [MISSING if np.isnan(moment) else Cell(format_date(moment), "whole") for moment in column.read(entries)]
    if column.kind == "time":
        return [MISSING if np.isnan(time) else format_time(time) for time in column.read(entries)]
    missing = numeric_cell(MISSING) if column.kind in NUMBERS else MISSING
    values = entries.to_pylist()
    numbers = [float(value) for value in values if isinstance(value, int | float | Decimal)]
    grouped = not may_be_years(numbers)
    return [missing if value in (None, "") else _format_entry(value, grouped=grouped) for value in values]


def _format_entry(value: Any, *, grouped: bool) -> Cell | str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float | Decimal):
        return numeric_cell(format_number(float(value), 6, grouped=grouped))  # as in the data, to be found there
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


def render_comparison(page: Page) -> str:
    """Return the section on the models side by side, "" without others."""
    if not page.others:
        return ""
    models = {page.name: (page.evaluation, page.importance, page.groups), **page.others}
    columns = [_measures(page.evaluation, one, importance) for one, importance, _ in models.values()]
    heads: list[Cell | str] = ["", *(numeric_cell(name) for name in models)]
    names = list(dict.fromkeys(name for column in columns for name in column))
    lines = [(row_header(name), *(column.get(name, numeric_cell("")) for column in columns)) for name in names]
    caption = "All models on the same rows and at the same levels. Lower losses are better; ± is a standard error."
    side = make_table(heads, lines, caption)
    return f"<p>{escape(describe_comparison(page))}</p>{side}{_group_table(page)}"


def _measures(first: Evaluation, one: Evaluation, importance: PermutationImportanceDisplay) -> dict[str, Cell]:
    """Return what is said of one model, by name."""
    measures = {"Mean pinball loss": numeric_cell(format_amount(float(one.losses().mean())))}
    if one is not first:
        change, error = one.compare_losses(first.row_losses())
        measures["Difference"] = numeric_cell(f"{100 * change:+.1f} % ± {100 * error:.1f}")
    for interval in one.intervals()[:1]:
        kind = f"{format_share(interval.nominal, 0)} interval{', calibrated' if interval.calibrated else ''}"
        measures[f"Coverage of the {kind}"] = numeric_cell(format_share(interval.observed))
        measures[f"Mean width of the {kind}"] = numeric_cell(format_amount(interval.width))
    typical = float(np.median(np.abs(one.y - one.curves[:, one.middle])))
    measures["Half of the rows within"] = numeric_cell(format_amount(typical))
    increase = importance.increase.mean(axis=1)
    named = [f"{importance.names[j]} ({100 * increase[j]:+.0f} %)" for j in importance.order[:COMPARED_COLUMNS]]
    measures["Most important columns"] = Cell("<br>".join(map(escape, named)), "n")
    return measures


def _group_table(page: Page) -> str:
    """Return the losses of all models by group of rows, "" without groups that they share."""
    tables = [{(group.column, group.name): group for group in groups} for _, _, groups in page.others.values()]
    shared = [group for group in page.groups if all((group.column, group.name) in one for one in tables)]
    if not shared:
        return ""
    lines, better = [], []
    for group in shared:
        losses = [group.loss, *(one[group.column, group.name].loss for one in tables)]
        lines.append((Cell(render_text(group.describe()), tag="th"), *map(numeric_cell, format_numbers(losses))))
        better.append(losses[0] <= min(losses))
    heads: list[Cell | str] = ["group", numeric_cell(page.name), *map(numeric_cell, page.others)]
    caption = f"Mean loss by group of rows. {page.name} is the best in {sum(better)} of {len(shared)} groups."
    return make_table(heads, lines, caption)
