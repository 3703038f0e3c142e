"""From a judged model to its page: every number that the page shows is computed here or below, once."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quernel.plots import CalibrationDisplay, PermutationImportanceDisplay, ResidualQuantileDisplay
from quernel.report.choices import choices
from quernel.report.columns import summarize
from quernel.report.content import Page
from quernel.report.fans import column_fans
from quernel.report.judging import Judged
from quernel.report.page import html
from quernel.tables import TableModel
from quernel.tables.drawing import Drawn
from quernel.tables.values import numbers
from quernel.theory import KernelGap

Array = NDArray[np.floating]

IMPORTANCE_ROWS, REPEATS = 1000, 3
MOST_FANS = 30


def report_page(
    model: TableModel,
    table: Any,
    judged: Judged,
    *,
    data: str,
    model_file: str,
    sample: Drawn | None = None,
    kernel_gap: KernelGap | None = None,
) -> str:
    """The page about a model, as HTML.

    Parameters
    ----------
    model : TableModel
        The model in the file.
    table : Arrow table
        The rows that `judged` knows by their positions among those with a target, and those without one.
    judged : Judged
        How well it does, or one of its kind that was fitted to fewer rows.
    data, model_file : str
        What the files are called.
    sample : Drawn or None
        What the table is a sample of, if it is one.
    kernel_gap : KernelGap or None
        What the model's features cost beside the exact kernel, if that was computed.
    """
    target = numbers(table[model.target])
    place = np.flatnonzero(np.isfinite(target))
    whole = table.filter(np.isfinite(target))
    y = target[place]
    X = model.encoder.encode(whole)
    importance = _importance(judged)
    order = np.argsort(-importance.increase.mean(axis=1), kind="stable")
    names = [importance.names[j] for j in order]
    page = Page(
        data=data,
        model_file=model_file,
        model=model,
        judged=judged,
        n_rows=table.num_rows if sample is None else sample.n_rows,
        dropped=table.num_rows - len(y) if sample is None else sample.n_rows - sample.n_counted,
        drawn=None if sample is None or sample.whole else len(table),
        columns=summarize(model, table),
        y=y,
        choices=choices(model.model, X, np.log(y) if model.log_target else y, kernel_gap),
        calibration=CalibrationDisplay.of(judged.y, judged.curves, judged.levels),
        residuals=ResidualQuantileDisplay.of(judged.y, judged.curves, judged.levels),
        importance=importance,
        fans=column_fans(model, whole, y, names[:MOST_FANS]),
        rows=(place if sample is None else sample.place[place])[judged.rows] + 1,
        entries=whole.take(judged.rows),
    )
    return html(page)


def _importance(judged: Judged) -> PermutationImportanceDisplay:
    """What shuffling each column of the table costs, all numbers that it became together."""
    together, start = {}, 0
    for column in judged.model.encoder.columns:
        together[column.name] = list(range(start, start + len(column.names)))
        start += len(column.names)
    some = np.sort(np.random.default_rng(0).permutation(len(judged.y))[:IMPORTANCE_ROWS])
    estimator = judged.model.model
    y = np.log(judged.y[some]) if judged.model.log_target else judged.y[some]
    if judged.row_losses()[some].max() == 0:  # a perfect fit has no loss to compare with
        return PermutationImportanceDisplay(list(together), np.zeros((len(together), 1)), 0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # shuffled rows may lie far outside
        return PermutationImportanceDisplay.of(estimator, judged.X[some], y, together=together, n_repeats=REPEATS)
