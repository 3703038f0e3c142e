"""The top of the page: in short, key figures, the baseline that wins, and what to try."""

from __future__ import annotations

import re
from html import escape
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from quernel.estimators import KernelQuantileRegressor
from quernel.report.evaluation import Evaluation, Interval
from quernel.report.formatting import format_amount, format_count, format_numbers, format_share
from quernel.tables import TextColumn

if TYPE_CHECKING:
    from quernel.report.content import Page

# Columns and groups that are named, the least increase of the loss that makes a column matter, and the loss of a group
# relative to the mean that is worth a word.
MOST_IMPORTANT, LEAST_IMPORTANCE, LARGE_LOSS = 3, 0.02, 1.5
# Shares of rows that are worth a word: outside the training range, with a predicted quantile that no target can be, and
# with the largest or smallest target. A target with fewer distinct values than these is discrete, not capped.
FEW_ROWS, DISTINCT = 0.01, 30
# Names of columns that together are a place, and the number of categories from which new ones are to be expected.
PLACES, MANY = (r"(^|[^a-z])lat(itude)?($|[^a-z])", r"(^|[^a-z])(lon|lng|long|longitude)($|[^a-z])"), 30
# What is set as code: a command or an option.
COMMAND = r"(quernel fit )?--[a-z-]+( 0| COLUMN)?"
SLIGHT = 2.0  # points of coverage below which an interval is slightly wide or narrow
TOO_NARROW = (
    "The intervals cover fewer rows than their nominal coverage. <code>--conformal</code> (in Python, "
    "ConformalQuantileRegressor) calibrates an interval to its nominal coverage."
)
OVERFITS = (
    " The model overfits: its loss on training rows is {share} of that on these. A larger ridge weight, 3 to 100 times "
    "that of the fit (<code>--alpha</code>), makes it smoother."
)
UNDERFITS = (
    " The model underfits: its loss on training rows is {share} of that on these, so that it is too smooth, not too "
    "close to its rows. A smaller ridge weight, 3 to 100 times smaller than that of the fit (<code>--alpha</code>), or "
    "bandwidths learned from the data (<code>--bandwidth learned</code>) let it follow them."
)
TOO_NARROW_TABULAR = (
    "The intervals cover fewer rows than their nominal coverage, although the levels were calibrated on rows that the "
    "model had not seen: the evaluation rows differ from those. If rows come in units, such as patients, shops or "
    "machines, <code>--groups</code> (in Python, <code>fit(..., groups=...)</code>) makes the intervals those of new "
    "units; if they are in time order, <code>--conformal --time-ordered</code> calibrates on the last ones."
)
TUNED = "; tuned boosting usually comes much closer"
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


def render_top(page: Page) -> str:
    """Return what stands below the title: warnings, the report in short, and key figures."""
    compared = describe_comparison(page)
    beside = f"<p>{escape(compared)} This page is on {escape(page.name)}.</p>" if compared else ""
    return f"{beside}{_verdict(page.evaluation)}{_summary(page)}{_tiles(page)}"


def _verdict(evaluation: Evaluation) -> str:
    """Return a paragraph on the baseline that is better than the model, and what to try; "" if there is none."""
    best = evaluation.best_baseline
    change, error = evaluation.compare_losses(evaluation.row_losses(best))
    if change <= 0:
        return ""
    share = f"{format_share(change)} (± {format_share(error)})"
    chance = ", a difference within chance" if change < 2 * error else ""
    text = f"{escape(best)} has a lower loss on these rows than this model, whose loss is {share} higher{chance}."
    return f'<p class="warn">{text}{describe_fit(evaluation)} {_remedy(evaluation, best)}</p>'


def _remedy(evaluation: Evaluation, best: str) -> str:
    """Return what to try where this baseline is better than the model."""
    if best.startswith("Unconditional"):
        return TRY_CONSTANT
    if best.startswith("Linear"):
        return TRY_LINEAR
    return TRY_FORESTS if isinstance(evaluation.model.model, KernelQuantileRegressor) else TRY_ROUGHER


def describe_fit(evaluation: Evaluation) -> str:
    """Return that the model overfits or underfits and the remedy, "" if nothing shows it."""
    if evaluation.training_loss is None or not (evaluation.overfits or evaluation.underfits):
        return ""
    share = format_share(evaluation.training_loss / evaluation.losses().mean(), 0)
    return (OVERFITS if evaluation.overfits else UNDERFITS).format(share=share)


def describe_narrow(evaluation: Evaluation) -> str:
    """Return what to do about intervals that cover too few rows."""
    kernel = isinstance(evaluation.model.model, KernelQuantileRegressor)
    return TOO_NARROW + describe_fit(evaluation) if kernel else TOO_NARROW_TABULAR


def _summary(page: Page) -> str:
    """Return how good the model is, what it rests on and where not to trust it, in a sentence or two each."""
    doubts = re.sub(COMMAND, r"<code>\g<0></code>", "".join(f"<li>{escape(one)}</li>" for one in _doubts(page)))
    return (
        f'<ul class="short"><li><strong>How good:</strong> {escape(_how_good(page.evaluation))}</li>'
        f"<li><strong>What it rests on:</strong> {escape(_rests_on(page))}</li>"
        f"<li><strong>Where not to trust it:</strong><ul>{doubts}</ul></li></ul>"
    )


def _how_good(evaluation: Evaluation) -> str:
    """Return the typical error, the coverage, and the loss beside that of baselines, in words."""
    errors = np.abs(evaluation.y - evaluation.curves[:, evaluation.middle])
    error, mean, typical = format_numbers(map(float, (np.median(errors), errors.mean(), np.median(evaluation.y))))
    rows, target = "held-out" if evaluation.unseen else "evaluation", evaluation.model.target
    text = f"half of the {rows} rows lie within {error} of their {evaluation.middle_name} "
    text += f"(mean absolute error: {mean}; their median target: {typical})"
    for one in evaluation.intervals()[:1]:
        text += f". The {format_share(one.nominal, 0)} interval covers {format_share(one.observed)} of them, "
        text += describe_deviation(one)
    constant, best = next(iter(evaluation.baselines)), evaluation.best_baseline
    losses = _format_losses(evaluation)
    text += f". The pinball loss, the average distance of {target} from its predicted quantiles, weighted by level, is "
    text += f"{losses[None]} in units of {target}. Smaller is better: the same quantiles for every row have "
    text += losses[constant]
    if best != constant:
        text += f", and the best of {len(evaluation.baselines)} baselines, {best}, has {losses[best]}"
        text += TUNED if "not tuned" in best and evaluation.compare_losses(evaluation.row_losses(best))[0] <= 0 else ""
    return f"{text}."


def _format_losses(evaluation: Evaluation) -> dict[str | None, str]:
    """Return the mean losses of the baselines by name, and that of the model by None, as text."""
    names = [None, *evaluation.baselines]
    return dict(zip(names, format_numbers(evaluation.losses(name).mean() for name in names), strict=True))


def describe_deviation(one: Interval) -> str:
    """Return by how much the coverage of an interval is off, and whether that is more than chance explains."""
    points, nominal = 100 * (one.observed - one.nominal), format_share(one.nominal, 0)
    size = f"{abs(points):.1f} point{'' if f'{abs(points):.1f}' == '1.0' else 's'}"
    far = size if abs(points) >= 0.05 else "as nominal"
    if abs(points) >= 0.05:
        far += f" {'more' if points > 0 else 'less'} than {nominal}"
    if one.holds:
        return f"{far}: within chance"
    slightly = "slightly " if abs(points) < SLIGHT else ""
    return f"{far}, beyond chance: {slightly}{'wide' if one.wide else 'narrow'}"


def _rests_on(page: Page) -> str:
    """Return the most important columns in words."""
    increase = page.importance.increase.mean(axis=1)
    named = [(page.importance.names[j], increase[j]) for j in page.importance.order if increase[j] >= LEAST_IMPORTANCE]
    if not named:
        return "no single column: shuffling any of them hardly changes the loss."
    listed = ", ".join(f"{name} (+{100 * share:,.0f}\N{NO-BREAK SPACE}%)" for name, share in named[:MOST_IMPORTANT])
    more = len(named) - MOST_IMPORTANT
    rest = format_count(len(increase) - MOST_IMPORTANT, "other column")
    others = (
        f", and less on {f'{more} of {rest}' if more < len(increase) - MOST_IMPORTANT else rest}" if more > 0 else ""
    )
    return f"{listed}{others}. In brackets: how much the loss rises if the column is shuffled."


def _doubts(page: Page) -> list[str]:
    """Return the groups, periods and ranges in which predictions are less sure, a sentence or two each."""
    evaluation, found = page.evaluation, []
    off = sorted((group for group in page.groups if not group.holds), key=lambda group: group.observed - group.low)
    if off:
        named = "; ".join(f"{one.describe()} (covers {format_share(one.observed, 0)})" for one in off[:MOST_IMPORTANT])
        found.append(f"intervals cover too few rows in {len(off)} of {len(page.groups)} groups: {named}")
    found += _find_hard(page)
    found += _target_doubts(page)
    if far := [column.far for column in page.columns if column.far]:
        found.append(f"look for errors in values far from all others: {'; '.join(far[:MOST_IMPORTANT])}")
    found += [] if page.periods is None else page.periods.drift
    if evaluation.unseen and not evaluation.time_ordered:
        found += _find_shared(page)
    if evaluation.outside.mean() >= FEW_ROWS:
        share = f"{evaluation.outside.sum():,} of {len(evaluation.y):,}"
        found.append(f"{share} rows are outside the training range, where predictions are extrapolations")
    if not found:
        found.append(
            "no group of these rows or period stands out; beyond the range of the training rows all is unknown"
        )
    if not evaluation.unseen:
        found.append("if the model was fitted to any of these rows, all numbers are too optimistic")
    return [f"{one[0].upper()}{one[1:].rstrip('.')}." for one in found]


def _find_shared(page: Page) -> list[str]:
    """Return of what times, places and groups rows held out at random tell nothing, since training rows share them."""
    found = []
    if page.periods is not None:
        found.append(
            "the future: rows were held out at random, between others of the same time, so that later rows may be "
            "predicted worse (quernel fit --time-ordered evaluates on the last ones)"
        )
    columns = page.evaluation.model.encoder.columns_
    named = [[one.name for one in columns if re.search(pattern, one.name.lower())] for pattern in PLACES]
    shared = [*named[0], *named[1]] if all(named) else []
    shared += [one.name for one in columns if isinstance(one, TextColumn) and len(one.categories) > MANY]
    if shared and page.evaluation.units is None:
        found.append(
            f"new places or groups, by {' and '.join(shared)}: the rows held out at random share theirs with training "
            "rows, so that others may be predicted worse (quernel fit --groups COLUMN evaluates on whole groups)"
        )
    return found


def _find_hard(page: Page) -> list[str]:
    """Return the group with the largest errors, relative to the prediction where they grow with it; none if alike."""
    relative = page.evaluation.relative_errors()
    typical = float(page.evaluation.row_losses().mean() if relative is None else np.nanmedian(relative))
    errors = [group.loss if relative is None else group.relative_error or 0.0 for group in page.groups]
    ratios = [error / (typical or 1.0) for error in errors]
    # A median of n errors varies by about 1 / sqrt(n) of itself.
    sure = [k for k, group in enumerate(page.groups) if ratios[k] > max(LARGE_LOSS, 1 + 3 / np.sqrt(group.n_rows))]
    if not sure:
        return []
    most = max(sure, key=ratios.__getitem__)
    where = page.groups[most].describe()
    if relative is None:
        return [f"errors are largest where {where}: {ratios[most]:.1f} times the mean loss"]
    but = " but those predicted near 0" if np.isnan(relative).any() else ""
    return [
        f"errors are largest, relative to the {page.evaluation.middle_name}, where {where}: half of these rows are off "
        f"by more than {format_share(errors[most], 0)} of it (of all rows{but}: {format_share(typical, 0)})"
    ]


def _target_doubts(page: Page) -> list[str]:
    """Return what is said of targets that look capped, and of predictions that no target can be."""
    y, evaluation, found = page.y, page.evaluation, []
    for end, name in find_caps(y):
        found.append(
            f"{format_share(np.mean(y == end))} of the targets are {format_amount(end)}, the {name}: they look capped, "
            f"and predictions near it are of the capped value{_describe_beyond(evaluation, end, name)}"
        )
        capped, loss = np.isclose(evaluation.y, end, rtol=1e-9), evaluation.row_losses()
        if (interval := evaluation.first_interval()) and capped.any():
            low, high = interval[1][capped].T
            inside, nominal = np.mean((low <= end) & (end <= high)), format_share(interval[0].nominal, 0)
            found[-1] += f"; the {nominal} interval covers {format_share(inside, 0)} of capped rows, which have "
            found[-1] += f"{format_share(loss[capped].sum() / (loss.sum() or 1.0))} of the loss"
    below = np.mean(evaluation.curves < 0, axis=0)
    if y.min() >= 0 and below.max() >= FEW_ROWS:
        named, lowest = _list_shares(evaluation, below), format_amount(float(evaluation.curves.min()))
        logged = " or --log-target" if y.min() > 0 else ""
        found.append(
            f"{named} are below 0 (down to {lowest}), though no target is; quernel fit --lower 0{logged} prevents that"
        )
    return found


def find_caps(y: NDArray[np.floating]) -> list[tuple[float, str]]:
    """Return the largest and smallest target, and which it is, where so many rows have it that it looks capped."""
    ends = (float(y.max()), "largest"), (float(y.min()), "smallest")
    many = len(np.unique(y)) >= DISTINCT
    return [(end, name) for end, name in ends if many and end != 0 and np.mean(y == end) >= FEW_ROWS]


def _describe_beyond(evaluation: Evaluation, end: float, name: str) -> str:
    """Return the shares of predicted quantiles beyond the largest or smallest target, "" if there are none."""
    beyond = np.mean(evaluation.curves > end if name == "largest" else evaluation.curves < end, axis=0)
    if beyond.max() < FEW_ROWS:
        return ""
    return f"; {_list_shares(evaluation, beyond)} are {'above' if name == 'largest' else 'below'} it"


def _list_shares(evaluation: Evaluation, shares: NDArray[np.floating]) -> str:
    """Return the shares (q,) of predicted quantiles by level, where they are not negligible, as a list in words."""
    named = [
        f"{format_share(share)} of the predicted {level:g} quantiles"
        for level, share in zip(evaluation.levels, shares, strict=True)
        if share >= FEW_ROWS
    ]
    return named[0] if len(named) == 1 else f"{', '.join(named[:-1])} and {named[-1]}"


def _tiles(page: Page) -> str:
    """Return the key figures at the top of the page."""
    evaluation, compared = page.evaluation, []
    for name in dict.fromkeys((next(iter(evaluation.baselines)), evaluation.best_baseline)):
        change, error = evaluation.compare_losses(evaluation.row_losses(name))
        way = "below" if change <= 0 else "above"
        compared.append(f"{format_share(abs(change))} (± {format_share(error)}) {way} that of {name}")
    loss = _format_losses(evaluation)[None]
    rows = "held-out" if evaluation.unseen else "evaluation"
    drawn = "" if evaluation.out_of is None else f", a sample of {evaluation.out_of:,}"
    tiles = [(f"Pinball loss on {len(evaluation.y):,} {rows} rows{drawn}", loss, ", ".join(compared))]
    for one in evaluation.intervals()[:1]:
        nominal = format_share(one.nominal, 0)
        details = f"nominal: {nominal}; within chance: {format_share(one.low)} to {format_share(one.high)}"
        if one.inner < one.observed:
            details += f"; without rows on its bounds {format_share(one.inner)}"
        details += f"; {_count_levels(page)}"
        kind = "calibrated interval" if one.calibrated else "interval"
        tiles.append((f"Coverage of the {nominal} {kind}", format_share(one.observed), details))
        tiles.append((f"Mean width of the {nominal} {kind}", format_amount(one.width), _compare_width(page, one)))
    cells = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}<small>{escape(details)}</small></dd></div>"
        for name, value, details in tiles
    )
    return f'<dl class="tiles">{cells}</dl>'


def _count_levels(page: Page) -> str:
    """Return how many levels hold within chance, and which do not."""
    holds, levels = page.calibration.holds, page.calibration.levels
    off = ", ".join(f"{level:g}" for level in levels[~holds])
    return f"{holds.sum()} of {format_count(len(levels), 'level')} hold{f', not {off}' if off else ''}"


def _compare_width(page: Page, one: Interval) -> str:
    """Return the mean width of an interval beside that of the target's own quantiles."""
    low, high = np.quantile(page.y, [(1 - one.nominal) / 2, (1 + one.nominal) / 2])
    if high <= low:
        return "in units of the target"
    return f"{format_share(one.width / (high - low), 0)} of that of unconditional quantiles"


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
