"""What the report says: `compute_page` computes what its sections share, and explains every hyperparameter."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from quernel.conformal.table_model import TableModel
from quernel.estimators import KernelQuantileRegressor, TabularQuantileRegressor
from quernel.estimators.shaped_parts import ShapedParts
from quernel.features import LandmarkPredictor
from quernel.plots import CalibrationDisplay, PermutationImportanceDisplay
from quernel.plots.calibration import binomial_band
from quernel.plots.style import truncate
from quernel.report.charts import ColumnFan
from quernel.report.effects import WhatIf, compute_fans, compute_what_if
from quernel.report.evaluation import Evaluation, evaluate_alike
from quernel.report.formatting import (
    format_count,
    format_date,
    format_number,
    format_numbers,
    format_share,
    format_time,
    judge_levels,
)
from quernel.report.reliability import Group, Periods, compute_groups, compute_periods
from quernel.tables import TextColumn
from quernel.tables.columns import Column
from quernel.tables.frames import as_entries, factorize
from quernel.tables.training_data import RowSample, read_numbers
from quernel.theory import KernelGap, effective_dimension
from quernel.tuning.data_summary import robust_scale

if TYPE_CHECKING:
    import pyarrow as pa

Array = NDArray[np.floating]


@dataclass(frozen=True)
class PageOptions:
    """Constants of the page: what it shows against how long it takes to compute and to read."""

    importance_rows: int = 1000  # evaluation rows whose columns are permuted, at most
    n_repeats: int = 3  # permutations of each column
    dimension_rows: int = 1000  # on which the effective dimension is computed, at most
    few_values: int = 10  # columns with more distinct values may have some far from the others
    max_fans: int = 30  # columns with a fan chart, the most important ones


OPTIONS = PageOptions()


class ColumnSummary(NamedTuple):
    """Name, type and number of missing values of a column, a description of the others, and which are far apart."""

    name: str
    kind: str
    missing: int
    description: str
    far: str = ""


class Choice(NamedTuple):
    """A hyperparameter or diagnostic: name, value, and how it was chosen or what it means."""

    name: str
    value: str
    why: str


@dataclass(frozen=True, eq=False)
class Page:
    """Everything that the report shows.

    Attributes
    ----------
    data, model_file : str
        Names of the data file and the model file.
    model : TableModel
        The saved model.
    evaluation : Evaluation
        Predictions and losses on the evaluation rows.
    n_rows, dropped : int
        Rows of the data, and how many of these have no target.
    drawn : int or None
        Size of the random sample that is described, None for all rows.
    columns : sequence of ColumnSummary
        The target, then the inputs.
    y : ndarray of shape (rows with a target,)
    choices : sequence of Choice
        The hyperparameters.
    calibration, importance : displays of `quernel.plots`, computed on the evaluation rows
    fans : sequence of ColumnFan
        Of the most important columns, the most important one first.
    what_if : WhatIf
        Of the most important columns.
    rows : ndarray of shape (n,)
        Numbers of the evaluation rows in the file, from 1.
    entries : Arrow table of the evaluation rows
    groups : sequence of Group
        Coverage by group of rows.
    periods : Periods or None
        Coverage over time, where rows have dates or are in time order.
    others : dict of str to (Evaluation, PermutationImportanceDisplay, list of Group)
        Other models to compare with, on the same rows and at the same levels.
    name : str
        Name of the model where there are others.
    """

    data: str
    model_file: str
    model: TableModel
    evaluation: Evaluation
    n_rows: int
    dropped: int
    drawn: int | None
    columns: Sequence[ColumnSummary]
    y: Array
    choices: Sequence[Choice]
    calibration: CalibrationDisplay
    importance: PermutationImportanceDisplay
    fans: Sequence[ColumnFan]
    what_if: WhatIf
    rows: NDArray[np.intp]
    entries: Any
    groups: Sequence[Group]
    periods: Periods | None
    others: Mapping[str, tuple[Evaluation, PermutationImportanceDisplay, list[Group]]] = field(default_factory=dict)
    name: str = "This model"


def compute_page(
    model: TableModel,
    table: pa.Table,
    evaluation: Evaluation,
    *,
    data: str,
    model_file: str,
    sample: RowSample | None = None,
    kernel_gap: KernelGap | None = None,
) -> Page:
    """Compute the numbers of the report.

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
    target = read_numbers(table, model.target)
    positions = np.flatnonzero(np.isfinite(target))
    with_target = table.filter(np.isfinite(target))
    y = target[positions]
    X = model.encoder.transform(with_target)
    importance = _compute_importance(evaluation)
    most_important = [importance.names[j] for j in importance.order[: OPTIONS.max_fans]]
    rows = (positions if sample is None else sample.row[positions])[evaluation.rows] + 1
    entries = with_target.take(evaluation.rows)
    return Page(
        data=data,
        model_file=model_file,
        model=model,
        evaluation=evaluation,
        n_rows=table.num_rows if sample is None else sample.n_rows,
        dropped=table.num_rows - len(y) if sample is None else sample.n_rows - sample.n_counted,
        drawn=None if sample is None or sample.whole else len(table),
        columns=summarize_columns(model, table),
        y=y,
        choices=describe_choices(model.model, X, np.log(y) if model.log_target else y, kernel_gap),
        calibration=_compute_calibration(evaluation),
        importance=importance,
        # As of the evaluation: a model is closer to rows that it was fitted to.
        fans=compute_fans(evaluation.model, entries, evaluation.y, most_important),
        what_if=compute_what_if(evaluation.model, with_target, most_important[:2], evaluation.rows),
        rows=rows,
        entries=entries,
        groups=compute_groups(evaluation, entries, most_important),
        periods=compute_periods(evaluation, entries, rows),
    )


def compare_with(page: Page, name: str, others: Mapping[str, TableModel]) -> Page:
    """The page with other models, evaluated on the same rows, beside its own, which has this name."""
    shown = [page.importance.names[j] for j in page.importance.order[: OPTIONS.max_fans]]
    found = {}
    for other, model in others.items():
        alike = evaluate_alike(model, page.entries, page.evaluation)
        shared = [column for column in shown if column in model.encoder.inputs]
        found[other] = alike, _compute_importance(alike), compute_groups(alike, page.entries, shared)
    return replace(page, name=name, others=found)


def _compute_calibration(evaluation: Evaluation) -> CalibrationDisplay:
    """Compute the share of rows below each level, and what is within chance; of units by the level that varies most."""
    shown = CalibrationDisplay.compute(evaluation.y, evaluation.curves, evaluation.levels)
    below = evaluation.y[:, None] <= evaluation.curves
    n_rows = min(map(evaluation.effective_rows, below.T))
    lower, upper = binomial_band(shown.levels, n_rows, shown.confidence)
    return replace(shown, lower=lower, upper=upper, n_rows=n_rows)


def _compute_importance(evaluation: Evaluation) -> PermutationImportanceDisplay:
    """Compute the permutation importance of each input column; its encoded columns are shuffled together."""
    together, start = {}, 0
    for column in evaluation.model.encoder.columns_:
        together[column.name] = list(range(start, start + len(column.names)))
        start += len(column.names)
    some = np.sort(np.random.default_rng(0).permutation(len(evaluation.y))[: OPTIONS.importance_rows])
    X, y = evaluation.X[some], evaluation.y[some]
    if evaluation.row_losses()[some].max() == 0:  # a perfect fit has no loss to compare with
        return PermutationImportanceDisplay(list(together), np.zeros((len(together), 1)), 0.0)
    y = np.log(y) if evaluation.model.log_target else y
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # shuffled rows may be extrapolations
        return PermutationImportanceDisplay.compute(
            evaluation.model.model, X, y, quantiles=evaluation.levels, together=together, n_repeats=OPTIONS.n_repeats
        )


def summarize_columns(model: TableModel, table: pa.Table) -> list[ColumnSummary]:
    """Summarize the target, then the inputs of the model, from an Arrow table."""
    target = read_numbers(table, model.target)
    lines = [ColumnSummary(model.target, "target", int(np.sum(~np.isfinite(target))), _describe_range(target))]
    return lines + [_summarize_column(column, table[column.name]) for column in model.encoder.columns_]


def _summarize_column(column: Column, entries: Any) -> ColumnSummary:
    """Summarize one column: its range or, of text, the three most frequent categories."""
    if isinstance(column, TextColumn):
        labels, index = factorize(as_entries(entries))
        n_rows = np.bincount(index[index >= 0], minlength=len(labels)).tolist()
        counts = Counter({label: count for label, count in zip(labels, n_rows, strict=True) if label})
        total = sum(counts.values())
        shares = [(truncate(label, 24), count / total) for label, count in counts.most_common(3)]
        common = ", ".join(f"{label} ({format_share(share, 0 if share >= 0.01 else 1)})" for label, share in shares)
        return ColumnSummary(column.name, column.kind, len(index) - total, f"{len(counts):,} categories: {common}")
    values = np.asarray(column.read(entries), dtype=float)
    finite = values[np.isfinite(values)]
    if not len(finite):
        description = ""
    elif column.kind == "boolean":
        description = f"true in {format_share(finite.mean(), 0)}"
    elif column.kind == "date":
        description = f"{format_date(finite.min())} to {format_date(finite.max())}"
    elif column.kind == "time":
        description = f"{format_time(finite.min())} to {format_time(finite.max())}"
    else:
        description = _describe_range(finite)
    far = find_far(column.name, finite) if column.kind == "number" else ""
    return ColumnSummary(column.name, column.kind, int(np.sum(np.isnan(values))), description, far)


def find_far(name: str, values: Array) -> str:
    """Return the values beyond a gap that is wider than the range of the middle 98 % of rows, in words; "" for none."""
    distinct = np.unique(values)
    if len(distinct) <= OPTIONS.few_values:
        return ""
    low, high = np.quantile(values, (0.01, 0.99))
    gaps = np.flatnonzero(np.diff(distinct) > high - low if high > low else [])
    below, above = [k for k in gaps if distinct[k] <= low][-1:], [k for k in gaps if distinct[k] >= high][:1]
    found = [_describe_far(values, distinct[: k + 1], f"{format_number(distinct[k + 1])} or more") for k in below]
    found += [_describe_far(values, distinct[k + 1 :], f"at most {format_number(distinct[k])}") for k in above]
    return f"`{name}` is {'; '.join(found)}" if found else ""


def _describe_far(values: Array, far: Array, others: str) -> str:
    first, last = format_numbers(far[[0, -1]], grouped=None)
    rows = format_count(int(np.isin(values, far).sum()), "row")
    return f"{first if first == last else f'{first} to {last}'} in {rows}, else {others}"


def _describe_range(values: Array) -> str:
    """Return the range and the median of the finite values, "" if there are none."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return ""
    low, high, median = format_numbers((finite.min(), finite.max(), float(np.median(finite))), grouped=None)
    return f"{low} to {high}, median {median}"


def describe_choices(
    model: TabularQuantileRegressor | KernelQuantileRegressor,
    X: Array,
    y: Array,
    kernel_gap: KernelGap | None = None,
) -> list[Choice]:
    """Return the hyperparameters of a fitted model, and how each was chosen.

    X (n, d) and y (n,), in the model's units, are rows to compute the effective dimension of a kernel model on.
    """
    if isinstance(model, TabularQuantileRegressor):
        return _describe_tabular(model)
    plan = model.plan_
    name = "Random features M" if plan.features == "random" else "Features M"
    tolerance = np.format_float_positional(model.tol, trim="-")  # 1e-06 could break at its sign at the end of a line
    return [
        Choice("Quantile levels", ", ".join(f"{level:g}" for level in model.quantiles_), "given"),
        Choice("Kernel", model.kernel_.full_name, "similarity of two rows as a function of their distance"),
        _describe_bandwidth(model),
        Choice(
            "Ridge weight alpha", f"{model.alpha_:.3g}", f"{plan.alpha_reason}; larger values give smoother quantiles"
        ),
        Choice(name, f"{model.n_components_:,}", plan.features_reason),
        *_describe_kernel_gap(kernel_gap),
        Choice(
            "Effective dimension",
            f"{compute_dimension(model, X, y):.1f}",
            "approximate degrees of freedom of the fit at this ridge weight",
        ),
        Choice(
            "Certified gap",
            f"{model.duality_gap_.max():.1e}",
            f"relative duality gap: the objective is at most this fraction above its minimum (tolerance: {tolerance})",
        ),
        Choice("Crossing levels", format_share(model.crossing_rate_, 2), _describe_crossing(model)),
    ]


GAP = (
    "relative duality gap of the kernel's {which}: their objectives are at most this fraction above the minimum. It "
    "says that they were solved, not how good predictions are"
)
# What a reader should know of each part of a tabular model.
PARTS = {
    "kernel": "location and scale that vary smoothly with the columns, and one distribution of the residuals",
    "residual_forest": "location and scale that vary smoothly, and residuals whose distribution follows the columns",
    "forest": "the targets of training rows that share leaves of trees with the row",
}
# The same of a model with shapes.
SHAPED_PARTS = {
    "kernel": "quantiles that vary smoothly with the columns and have the shapes, at levels as they are",
    "residual_forest": "quantiles that vary smoothly with the columns, at levels that depend on those without a shape",
    "forest": "the targets of training rows that share leaves of trees with the row, ordered along monotone columns",
}


def _describe_tabular(model: TabularQuantileRegressor) -> list[Choice]:
    """Return the shares of the parts of a tabular model, and what was chosen for each."""
    forests = {"residual_forest": model.parts_.residual_forest, "forest": model.parts_.forest}
    about = SHAPED_PARTS if isinstance(model.parts_, ShapedParts) else PARTS
    choices = [
        Choice(
            "Quantile levels",
            ", ".join(f"{level:g}" for level in model.quantiles_),
            "those of this page; the model predicts any level, and levels never cross",
        )
    ]
    for name, share in model.shares_.items():
        forest = forests.get(name)
        grown = f": {forest.n_trees} trees, leaves of at least {format_count(forest.min_leaf, 'row')}" if forest else ""
        weighed = "" if len(model.shares_) == 1 else "; weighed by loss on rows that the part had not seen"
        choices.append(
            Choice(f"Share of the {name.replace('_', ' ')}", format_share(share, 0), f"{about[name]}{grown}{weighed}")
        )
    smooth = model.parts_.location_scale
    if smooth is not None:
        kernel = smooth.feature_map.kernel
        chosen = (
            "similarity of a row to each landmark, a row that stands for others. Bandwidths, how far similarity "
            "reaches along each column, and ridge, how smooth the fit is, were chosen by errors on held-out rows"
        )
        choices += [
            Choice("Kernel", f"{kernel.full_name}, {len(smooth.coef):,} landmarks", chosen),
            Choice(
                "Certified gap",
                f"{smooth.duality_gap.max():.1e}",
                GAP.format(which="two regressions, of location and of scale"),
            ),
        ]
    if isinstance(model.parts_, ShapedParts):
        choices += _describe_shapes(model.parts_)
    choices.append(Choice("Correction of levels", *_describe_calibration(model)))
    if model.stopped_by_ is not None:
        choices.append(Choice("Ended early", model.stopped_by_, "fewer trees, or a shorter search for bandwidths"))
    return choices


def _describe_shapes(parts: ShapedParts) -> list[Choice]:
    """Return the constrained kernel of a tabular model, and what its shapes are."""
    kernel = parts.smooth.model.kernel_
    return [
        Choice("Shapes", parts.notes[0], " ".join(parts.notes[1:]) or "bounds hold everywhere"),
        Choice("Kernel", f"{kernel.full_name}, {parts.kernel_size:,} landmarks and trends", "under the shapes"),
        Choice(
            "Certified gap",
            f"{parts.duality_gap.max():.1e}",
            GAP.format(which="constrained quantile regressions"),
        ),
    ]


def _describe_calibration(model: TabularQuantileRegressor) -> tuple[str, str]:
    """Return the largest correction of a level, and where it comes from."""
    shift = model.parts_.calibration(model.quantiles_) - model.quantiles_
    if not shift.any():
        return "none", "the levels are those of the parts"
    most = int(np.argmax(np.abs(shift)))
    level = model.quantiles_[most]
    why = "chosen on rows that the parts had not seen (out of fold, out of bag); none were set aside for it"
    shifted = (
        f"already applied: to have level {level:g} hold, level {level + shift[most]:.3g} of the parts is predicted; "
    )
    return f"up to {100 * shift[most]:+.1f} points, at level {level:g}", shifted + why


def find_bandwidths(model: TabularQuantileRegressor | KernelQuantileRegressor) -> Any:
    """Return the bandwidths of a model's kernel, None if it has none."""
    if isinstance(model, KernelQuantileRegressor):
        return model.bandwidth_
    if isinstance(model.parts_, ShapedParts):
        return model.parts_.smooth.model.bandwidth_
    smooth = model.parts_.location_scale
    return None if smooth is None else getattr(smooth.feature_map.kernel, "bandwidth", None)


def compute_dimension(model: KernelQuantileRegressor, X: Array, y: Array) -> float:
    """Return the effective dimension  Tr((C + alpha s I)^-1 C)  of the features on some rows; s is the scale of y."""
    some = np.sort(np.random.default_rng(0).permutation(len(X))[: OPTIONS.dimension_rows])
    ridge = model.alpha_ * robust_scale(y, np.full(len(y), 1 / len(y)))
    features = getattr(model.feature_map_, "base", model.feature_map_)
    if isinstance(features, LandmarkPredictor):  # a saved model with landmarks
        features = features.to_nystroem()
    return float(effective_dimension(features.transform(X[some]), alpha=ridge))


def _describe_bandwidth(model: KernelQuantileRegressor) -> Choice:
    """Return the bandwidth; of one per column, the page has a table of its own."""
    widths = model.bandwidth_
    if isinstance(widths, tuple):
        return Choice("Bandwidth", "several", "the kernel is a sum, each term with its own")
    value = "none" if widths is None else "one per column, below" if np.ndim(widths) else f"{widths:.3g}"
    return Choice("Bandwidth", value, model.plan_.bandwidth_reason)


def _describe_kernel_gap(gap: KernelGap | None) -> list[Choice]:
    """Return bounds on what random features cost compared with the exact kernel, if computed."""
    if gap is None:
        return []
    levels = "; ".join(
        f"level {level:g}: {low} to {high}" for level, (low, high) in zip(gap.quantiles, gap.as_percent(), strict=True)
    )
    why = f"proven bounds on the relative excess over the minimum of the objective with the exact kernel ({levels})"
    return [Choice("Cost of the features", f"at most {gap.as_percent()[int(gap.upper.argmax())][1]}", why)]


def _describe_crossing(model: KernelQuantileRegressor) -> str:
    """Say of which rows the crossing rate is, and what was done about it."""
    if model.noncrossing != "rearrange":
        return "of the training rows; " + (
            "fitted under noncrossing constraints" if model.noncrossing else "not corrected"
        )
    return "of the training rows, before the predictions of each row were sorted"


def summarize_page(page: Page) -> dict[str, Any]:
    """Return all numbers of a page as what JSON can hold."""
    shown, periods = page.calibration, page.periods
    numbers = {
        "target": page.model.target,
        "data": page.data,
        "rows": page.n_rows,
        **summarize_evaluation(page.evaluation),
        "calibration": [
            {"level": level, "below": a, "at_or_below": b, "lower": low, "upper": high, "holds": mark == "ok"}
            for level, a, b, low, high, mark in zip(
                *(values.tolist() for values in (shown.levels, shown.below, shown.observed, shown.lower, shown.upper)),
                judge_levels(shown),
                strict=True,
            )
        ],
        "importance": dict(zip(page.importance.names, page.importance.increase.mean(axis=1).tolist(), strict=True)),
        "groups": [asdict(group) | {"holds": not group.narrow} for group in page.groups],
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
