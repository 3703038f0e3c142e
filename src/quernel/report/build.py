"""Build the HTML report: `report_page` computes every number once, `html` assembles the sections."""

from __future__ import annotations

import warnings
from datetime import date
from html import escape
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quernel.plots import CalibrationDisplay, PermutationImportanceDisplay, ResidualQuantileDisplay
from quernel.report import sections
from quernel.report.columns import summarize
from quernel.report.content import Page, intervals
from quernel.report.evaluation import Evaluation
from quernel.report.fans import column_fans
from quernel.report.model_choices import choices
from quernel.report.number_format import number, percent
from quernel.tables import TableModel
from quernel.tables.arrow_casts import numbers
from quernel.tables.reservoir_sample import Drawn
from quernel.theory import KernelGap


def html(page: Page) -> str:
    """Assemble the HTML document."""
    title = f"Quantiles of {page.model.target}"
    parts = {
        "data": ("Data", sections.data(page)),
        "choices": ("Hyperparameters", sections.choices(page)),
        "loss": ("Loss compared with baselines", sections.losses(page)),
        "coverage": ("Coverage and calibration", sections.coverage(page)),
        "columns": ("Effect of each column", sections.fans(page)),
        "worst": ("The worst-predicted rows", sections.worst(page)),
        "outside": ("Rows outside the training range", sections.outside(page)),
        "load": ("How to use the model", sections.loading(page)),
    }
    links = "".join(f'<li><a href="#{name}">{heading}</a></li>' for name, (heading, _) in parts.items())
    body = "".join(
        f'<section id="{name}" aria-labelledby="{name}-title"><h2 id="{name}-title">{heading}</h2>{content}</section>'
        for name, (heading, content) in parts.items()
    )
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<style>{_file('page.css')}</style></head><body><header><h1>{escape(title)}</h1>"
        f'<p class="quiet">{escape(page.data)}, {page.n_rows:,} rows, {_today()}</p>{_tiles(page)}'
        f'<nav aria-label="Sections"><ul>{links}</ul></nav></header><main>{body}</main>'
        f"<script>{_file('page.js')}</script></body></html>\n"
    )


def _tiles(page: Page) -> str:
    evaluation = page.evaluation
    ours = evaluation.losses().mean()
    constant = evaluation.losses(next(iter(evaluation.baselines))).mean()
    change = ours / constant - 1 if constant > 0 else 0.0
    compared = f"{percent(abs(change), 0)} {'below' if change <= 0 else 'above'} unconditional quantiles"
    rows = "held-out" if evaluation.unseen else "evaluation"
    drawn = "" if evaluation.out_of is None else f", a sample of {evaluation.out_of:,}"
    tiles = [(f"Pinball loss on {len(evaluation.y):,} {rows} rows{drawn}", number(ours), compared)]
    for one in intervals(evaluation)[:1]:
        details = f"nominal: {percent(one.nominal, 0)}; within chance: {percent(one.low)} to {percent(one.high)}"
        if one.inner < one.observed:
            details += f"; without rows on its bounds {percent(one.inner)}"
        kind = "calibrated interval" if one.calibrated else "interval"
        tiles.append((f"Coverage of the {percent(one.nominal, 0)} {kind}", f"{percent(one.observed)}", details))
    calibrated = page.calibration
    details = "the share of rows below the predicted quantile matches its level, within chance"
    tiles.append(("Calibrated quantile levels", f"{calibrated.holds.sum()} of {len(calibrated.levels)}", details))
    gap = next(choice for choice in page.choices if choice.name == "Certified gap")
    tiles.append((gap.name, gap.value, "the objective is at most this fraction above its minimum"))
    cells = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}<small>{escape(details)}</small></dd></div>"
        for name, value, details in tiles
    )
    return f'<dl class="tiles">{cells}</dl>'


def _file(name: str) -> str:
    return files("quernel.report").joinpath(name).read_text(encoding="utf-8")


def _today() -> str:
    return date.today().isoformat()


Array = NDArray[np.floating]

# Rows and repetitions of the permutation importance, and columns with a fan chart.
IMPORTANCE_ROWS, REPEATS = 1000, 3
MOST_FANS = 30


def report_page(
    model: TableModel,
    table: Any,
    evaluation: Evaluation,
    *,
    data: str,
    model_file: str,
    sample: Drawn | None = None,
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
    sample : Drawn or None
        The random sample that `table` is, if it is one.
    kernel_gap : KernelGap or None
        Bounds on what random features cost compared with the exact kernel, if computed.
    """
    target = numbers(table[model.target])
    positions = np.flatnonzero(np.isfinite(target))
    with_target = table.filter(np.isfinite(target))
    y = target[positions]
    X = model.encoder.encode(with_target)
    importance = _importance(evaluation)
    order = np.argsort(-importance.increase.mean(axis=1), kind="stable")
    names = [importance.names[j] for j in order]
    page = Page(
        data=data,
        model_file=model_file,
        model=model,
        evaluation=evaluation,
        n_rows=table.num_rows if sample is None else sample.n_rows,
        dropped=table.num_rows - len(y) if sample is None else sample.n_rows - sample.n_counted,
        drawn=None if sample is None or sample.whole else len(table),
        columns=summarize(model, table),
        y=y,
        choices=choices(model.model, X, np.log(y) if model.log_target else y, kernel_gap),
        calibration=CalibrationDisplay.compute(evaluation.y, evaluation.curves, evaluation.levels),
        residuals=ResidualQuantileDisplay.compute(evaluation.y, evaluation.curves, evaluation.levels),
        importance=importance,
        fans=column_fans(model, with_target, y, names[:MOST_FANS]),
        rows=(positions if sample is None else sample.place[positions])[evaluation.rows] + 1,
        entries=with_target.take(evaluation.rows),
    )
    return html(page)


def _importance(evaluation: Evaluation) -> PermutationImportanceDisplay:
    """Permutation importance of each input column; its encoded columns are shuffled together."""
    together, start = {}, 0
    for column in evaluation.model.encoder.columns:
        together[column.name] = list(range(start, start + len(column.names)))
        start += len(column.names)
    some = np.sort(np.random.default_rng(0).permutation(len(evaluation.y))[:IMPORTANCE_ROWS])
    estimator = evaluation.model.model
    y = np.log(evaluation.y[some]) if evaluation.model.log_target else evaluation.y[some]
    if evaluation.row_losses()[some].max() == 0:  # a perfect fit has no loss to compare with
        return PermutationImportanceDisplay(list(together), np.zeros((len(together), 1)), 0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # shuffled rows may be extrapolations
        return PermutationImportanceDisplay.compute(
            estimator, evaluation.X[some], y, together=together, n_repeats=REPEATS
        )
