"""Models side by side, and all numbers of a page as JSON."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from quernel.plots import PermutationImportanceDisplay
from quernel.report.evaluation import Evaluation
from quernel.report.formatting import (
    Cell,
    format_amount,
    format_numbers,
    format_share,
    make_table,
    numeric_cell,
    row_header,
)

if TYPE_CHECKING:
    from quernel.report.content import Page
    from quernel.report.reliability import Group

# Columns that are named for each model.
MOST_IMPORTANT = 3


def describe_comparison(page: Page) -> str:
    """Return which of the models has the lowest loss, in a sentence; "" without others."""
    if not page.others:
        return ""
    ours = page.evaluation.row_losses()
    changes = {name: one[0].compare_losses(ours) for name, one in page.others.items()}
    best = min(changes, key=lambda name: changes[name][0])
    change, error = changes[best]
    far = "" if abs(change) > 2 * error else ", a difference within chance"
    if change >= 0:
        return (
            f"{page.name} has the lowest loss: that of {best} is {_percent(change)} (± {_percent(error)}) higher{far}."
        )
    return f"{best} has a lower loss than {page.name}, by {_percent(-change)} (± {_percent(error)}){far}."


def _percent(share: float) -> str:
    return format_share(share, 1)


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
        share = float(np.mean(one.row_losses() < first.row_losses()))
        measures["Rows in which it is better"] = numeric_cell(format_share(share, 0))
    for level, loss in zip(one.levels, one.losses(), strict=True):
        measures[f"Loss at level {level:g}"] = numeric_cell(format_amount(float(loss)))
    for interval in one.intervals()[:1]:
        kind = f"{format_share(interval.nominal, 0)} interval{', calibrated' if interval.calibrated else ''}"
        measures[f"Coverage of the {kind}"] = numeric_cell(format_share(interval.observed))
        measures[f"Mean width of the {kind}"] = numeric_cell(format_amount(interval.width))
    middle = int(np.argmin(np.abs(one.levels - 0.5)))
    typical = float(np.median(np.abs(one.y - one.curves[:, middle])))
    measures["Half of the rows within"] = numeric_cell(format_amount(typical))
    increase = importance.increase.mean(axis=1)
    named = [f"{importance.names[j]} ({100 * increase[j]:+.0f} %)" for j in importance.order[:MOST_IMPORTANT]]
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
        lines.append((row_header(group.describe()), *map(numeric_cell, format_numbers(losses))))
        better.append(losses[0] <= min(losses))
    heads: list[Cell | str] = ["group", numeric_cell(page.name), *map(numeric_cell, page.others)]
    caption = f"Mean loss by group of rows. {page.name} is the best in {sum(better)} of {len(shared)} groups."
    return make_table(heads, lines, caption)


def summarize_page(page: Page) -> dict[str, Any]:
    """Return all numbers of a page as what JSON can hold."""
    shown, periods = page.calibration, page.periods
    numbers = {
        "target": page.model.target,
        "data": page.data,
        "rows": page.n_rows,
        **summarize_evaluation(page.evaluation),
        "calibration": [
            {"level": level, "below": below, "at_or_below": observed, "lower": low, "upper": high, "holds": holds}
            for level, below, observed, low, high, holds in zip(
                *(values.tolist() for values in (shown.levels, shown.below, shown.observed, shown.lower, shown.upper)),
                shown.holds.tolist(),
                strict=True,
            )
        ],
        "importance": dict(zip(page.importance.names, page.importance.increase.mean(axis=1).tolist(), strict=True)),
        "groups": [_summarize_group(group) for group in page.groups],
        "periods": None
        if periods is None
        else {
            "column": periods.name or None,
            "times": periods.times.tolist(),
            "coverage": None if periods.coverage is None else periods.coverage.tolist(),
            "above_median": periods.above.tolist(),
            "loss": periods.loss.tolist(),
        },
        "drift": [] if periods is None else list(periods.drift),
    }
    if page.others:
        numbers["models"] = {page.name: summarize_evaluation(page.evaluation)}
        numbers["models"] |= {name: summarize_evaluation(one) for name, (one, _, _) in page.others.items()}
    return numbers


def _summarize_group(group: Group) -> dict[str, Any]:
    return group._asdict() | {"holds": group.holds}


def summarize_evaluation(evaluation: Evaluation) -> dict[str, Any]:
    """Return losses and coverage as what JSON can hold."""
    return {
        "rows_evaluated": len(evaluation.y),
        "sample_of": evaluation.out_of,
        "unseen": evaluation.unseen,
        "rows_outside": int(evaluation.outside.sum()),
        "quantiles": evaluation.levels.tolist(),
        "pinball_loss": evaluation.losses().tolist(),
        "training_loss": evaluation.training_loss,
        "baselines": {name: evaluation.losses(name).tolist() for name in evaluation.baselines},
        "intervals": [
            {"coverage": one.nominal, "observed": one.observed, "mean_width": one.width, "calibrated": one.calibrated}
            for one in evaluation.intervals()
        ],
    }
