"""The top of the page: in short, key figures, the baseline that wins, and what to try."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from html import escape
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from quernel.estimators import KernelQuantileRegressor
from quernel.plots.calibration import binomial_band
from quernel.plots.fans import pair_levels
from quernel.report.evaluation import LINEAR, Evaluation, Interval
from quernel.report.formatting import (
    format_amount,
    format_count,
    format_numbers,
    format_share,
    judge_levels,
    render_text,
)
from quernel.tables import TextColumn

if TYPE_CHECKING:
    from quernel.report.content import Page
    from quernel.report.reliability import Group

# Columns and groups that are named, the least increase of the loss that makes a column matter, and the error of a group
# relative to that of all rows that is worth a word.
MOST_IMPORTANT, LEAST_IMPORTANCE, LARGE_ERROR = 3, 0.02, 1.4
# Errors that grow with the prediction, up to this multiple in relation to it, are no reason for doubt.
GROWS = 1.1
# Shares of rows that are worth a word: outside the training range or with the largest or smallest target, and with a
# predicted quantile that no target can be. A target with fewer distinct values than these is discrete, not capped.
FEW_ROWS, ANY_ROWS, DISTINCT = 0.01, 0.0005, 30
# Names of columns that together are a place, and the number of categories from which new ones are to be expected.
PLACES, MANY = (r"(^|[^a-z])lat(itude)?($|[^a-z])", r"(^|[^a-z])(lon|lng|long|longitude)($|[^a-z])"), 30
WORST = 10  # rows that are called the worst ones
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
    "model had not seen: the rows of this page differ from those. If rows come in units, such as patients, shops or "
    "machines, <code>--groups</code> (in Python, <code>fit(..., groups=...)</code>) makes the intervals those of new "
    "units; if they are in time order, <code>--conformal --time-ordered</code> calibrates on the last ones."
)
TUNED = "not tuned; a tuned one may be as good"
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
    share = f"{format_share(change)} (± {100 * error:.1f} points)"
    chance = ", a difference within chance" if change < 2 * error else ""
    text = f"{escape(best)} has a lower loss on these rows than this model, whose loss is {share} higher{chance}."
    return f'<p class="warn">{text}{describe_fit(evaluation)} {_remedy(evaluation, best)}</p>'


def _remedy(evaluation: Evaluation, best: str) -> str:
    """Return what to try where this baseline is better than the model."""
    if best == next(iter(evaluation.baselines)):
        return TRY_CONSTANT
    if best == LINEAR:
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
    doubts = "".join(f"<li>{render_text(one)}</li>" for one in _doubts(page))
    return (
        f'<ul class="short"><li><strong>How good:</strong> {render_text(_how_good(page.evaluation))}</li>'
        f"<li><strong>What it rests on:</strong> {render_text(_rests_on(page))}</li>"
        f"<li><strong>Where not to trust it:</strong><ul>{doubts}</ul></li></ul>"
    )


def _how_good(evaluation: Evaluation) -> str:
    """Return the typical error, the coverage, and the loss beside that of baselines, in words."""
    errors = np.abs(evaluation.y - evaluation.curves[:, evaluation.middle])
    error, mean, typical = format_numbers(map(float, (np.median(errors), errors.mean(), np.median(evaluation.y))))
    middle = float(np.median(evaluation.curves[:, evaluation.middle]))
    relative = evaluation.y.min() >= 0 and middle > 0
    share = f"{format_share(float(np.median(errors)) / middle, 0)} of a typical prediction; " if relative else ""
    text = f"half of the {evaluation.row_name} lie within {error} of their {evaluation.middle_name} "
    text += f"({share}mean absolute error: {mean}; their median target: {typical})"
    for one in evaluation.intervals()[:1]:
        text += f". The {_name(one)} "
        if not one.calibrated:
            low, high = evaluation.levels[list(pair_levels(evaluation.levels).bands[0])]
            text += (
                f"of a row, from its predicted {low:g} to its predicted {high:g} quantile, should hold its value in "
            )
            text += f"{format_share(one.nominal, 0)} of all rows. It "
        text += f"covers {format_share(one.observed)} of these rows, {describe_deviation(one)}"
    losses, compared, constant = _format_losses(evaluation), list[str](), next(iter(evaluation.baselines))
    for name in dict.fromkeys((evaluation.best_baseline, constant)):
        change, _ = evaluation.compare_losses(evaluation.row_losses(name))
        who, way = name_baseline(evaluation, name), "less" if change <= 0 else "more"
        who = who.replace("not tuned", TUNED) if change <= 0 else who
        compared.append(f"{format_share(abs(change), 0)} {way} than the {losses[name]} of {who}")
    text += ". Over all quantiles its error (pinball loss; smaller is better, only for comparison) is "
    return f"{text}{losses[None]}: {' and '.join(compared)}."


def name_baseline(evaluation: Evaluation, name: str) -> str:
    """Return the name of a baseline within a sentence."""
    if name.startswith("LightGBM"):
        return name
    return f"{'the ' if name == next(iter(evaluation.baselines)) else ''}{name[0].lower()}{name[1:]}"


def _format_losses(evaluation: Evaluation) -> dict[str | None, str]:
    """Return the mean losses of the baselines by name, and that of the model by None, as text."""
    names = [None, *evaluation.baselines]
    return dict(zip(names, format_numbers(evaluation.losses(name).mean() for name in names), strict=True))


def describe_deviation(one: Interval) -> str:
    """Return by how much the coverage of an interval is off, and whether that is more than chance explains."""
    size = f"{100 * abs(one.observed - one.nominal):.1f}"
    way = "more" if one.observed > one.nominal else "less"
    far = f"{size} point{'s' if size != '1.0' else ''} {way} than {format_share(one.nominal, 0)}"
    far = "as nominal" if size == "0.0" else far
    return f"{far}{': ' if one.holds else ', beyond chance: '}{_judge(one)}"


def _judge(one: Interval) -> str:
    """Return whether an interval is within chance, or slightly or clearly wide or narrow."""
    if one.holds:
        return "within chance"
    slightly = "slightly " if 100 * abs(one.observed - one.nominal) < SLIGHT else ""
    return f"{slightly}{'wide' if one.wide else 'narrow'}"


def _rests_on(page: Page) -> str:
    """Return the most important columns in words."""
    increase = page.importance.increase.mean(axis=1)
    named = [(page.importance.names[j], increase[j]) for j in page.importance.order if increase[j] >= LEAST_IMPORTANCE]
    if not named:
        return "no single column: shuffling any of them hardly changes the loss."
    listed = ", ".join(f"`{name}` (+{100 * share:,.0f}\N{NO-BREAK SPACE}%)" for name, share in named[:MOST_IMPORTANT])
    more, rest = len(named) - MOST_IMPORTANT, len(increase) - len(named)
    others = f", and less on {format_count(more, 'other column')}" if more > 0 else ""
    others += f"; {rest:,} more hardly matter{'s' if rest == 1 else ''}" if rest else ""
    return f"{listed}{others}. In brackets: how much the loss rises if the column is shuffled."


def _doubts(page: Page) -> list[str]:
    """Return the groups, periods and ranges in which predictions are less sure, a sentence or two each."""
    evaluation, found = page.evaluation, []
    off = sorted((group for group in page.groups if group.narrow), key=lambda group: group.observed - group.low)
    if off:
        named = "; ".join(f"{one.describe()} (covers {format_share(one.observed, 0)})" for one in off[:MOST_IMPORTANT])
        found.append(f"intervals cover too few rows in {len(off)} of {len(page.groups)} groups: {named}")
    found += [] if page.periods is None else page.periods.drift
    if evaluation.unseen and not evaluation.time_ordered:
        found += _find_shared(page)
    found += _find_off(page)
    found += _find_hard(page)
    found += _target_doubts(page)
    if far := [column.far for column in page.columns if column.far]:
        found.append(f"look for errors in values far from all others: {'; '.join(far[:MOST_IMPORTANT])}")
    if evaluation.outside.mean() >= FEW_ROWS:
        most = evaluation.model.encoder.names[int(np.argmax(np.sum(evaluation.beyond, axis=0)))]
        found.append(
            f"{evaluation.outside.sum():,} of {len(evaluation.y):,} rows are outside the range of the training rows, "
            f"most often in `{most}`: predictions there are extrapolations"
        )
    if not found:
        found.append(
            "no group of these rows or period stands out; beyond the range of the training rows all is unknown"
        )
    if not evaluation.unseen:
        found.append("if the model was fitted to any of these rows, all numbers are too optimistic")
    return [f"{one[0].upper()}{one[1:].rstrip('.')}." for one in found]


def _find_off(page: Page) -> list[str]:
    """Return which levels are off by more than chance explains, and what that means for the intervals."""
    marks = judge_levels(page.calibration)
    levels = [
        (way, [f"{one:g}" for one, mark in zip(page.calibration.levels, marks, strict=True) if mark == way])
        for way in ("too low", "too high")
        if way in marks
    ]
    off = [one for one in page.evaluation.intervals() if not one.holds]
    narrow = [one for one in off if one.narrow]
    if not levels and not narrow:
        return []
    named = " and ".join(
        f"the predicted {' and '.join(some)} quantile{'s are' if len(some) > 1 else ' is'} {way}"
        for way, some in levels
    )
    covers = ", ".join(f"the {_name(one)} covers {format_share(one.observed)}" for one in off)
    ways = ["wider than stated over all rows"] + ["wider or narrower than stated"] * len(off)
    ways[len(off)] = "narrower than stated over all rows"
    meant = f"intervals are {ways[len(narrow)]} ({covers} of the rows)" if off else "intervals cover what they should"
    return [f"more than chance explains, {named}: {meant}" if levels else meant]


def _name(one: Interval) -> str:
    return f"{'calibrated ' if one.calibrated else ''}{format_share(one.nominal, 0)} interval"


def _find_shared(page: Page) -> list[str]:
    """Return of what times, places and groups rows held out at random tell nothing, since training rows share them."""
    found, random = [], "rows were held out at random, between"
    if page.periods is not None:
        found.append(
            f"the future: {random} others of the same time; later rows may be predicted worse "
            "(`quernel fit --time-ordered` evaluates on the last ones)"
        )
    if page.evaluation.units is not None:
        return found
    columns = page.evaluation.model.encoder.columns_
    if all(any(re.search(pattern, one.name.lower()) for one in columns) for pattern in PLACES):
        found.append(
            f"places not in the data: {random} others of the same places; elsewhere errors may be larger "
            "(`quernel fit --groups COLUMN`, of a column of regions, evaluates on whole regions)"
        )
    many = [one.name for one in columns if isinstance(one, TextColumn) and len(one.categories) > MANY]
    if many:
        found.append(
            f"values of {' and '.join(f'`{name}`' for name in many)} not in the data: {random} others of the same "
            f"values; new ones may be predicted worse (`quernel fit --groups {many[0]}` evaluates on such)"
        )
    return found


def _find_hard(page: Page) -> list[str]:
    """Return the groups with the largest errors, relative to the prediction and in units of the target."""
    evaluation, found = page.evaluation, []
    prediction = evaluation.curves[:, evaluation.middle]
    error, typical = float(np.median(np.abs(evaluation.y - prediction))), float(np.median(prediction))
    mean = float(evaluation.row_losses().mean()) or 1.0
    relative = evaluation.y.min() >= 0 and typical > 0 and all(group.typical > 0 for group in page.groups)
    if relative and (group := _find_worst(page.groups, lambda one: one.error / one.typical, error / typical)):
        one, everyone = format_numbers((group.error, error))
        share, of_all = format_share(group.error / group.typical, 0), format_share(error / typical, 0)
        found.append(
            f"errors relative to the prediction are largest where {group.describe()}: half of these rows are off by "
            f"more than {one}, {share} of a typical prediction there (of all rows: {everyone}, {of_all})"
        )
    groups = [one for one in page.groups if not relative or one.error / one.typical > GROWS * error / typical]
    if group := _find_worst(groups, lambda one: one.loss, mean):
        found.append(
            f"the loss is largest where {group.describe()}: {group.loss / mean:.1f} times the mean; half of these rows "
            f"are off by more than {format_amount(group.error)}"
        )
    above, below = _count_sides(evaluation)
    if max(above, below) >= WORST - 2:
        way = "higher" if above >= below else "lower"
        found.append(f"{describe_sides(evaluation)}: the largest errors are of targets much {way} than predicted")
    return found


def _find_worst(groups: Sequence[Group], measure: Callable[[Group], float], of_all: float) -> Group | None:
    """Return the group with the largest measure of those with enough rows, None where it is not clearly above all."""
    most = max((group for group in groups if not group.few), key=measure, default=None)
    return None if most is None or measure(most) <= LARGE_ERROR * of_all else most


def describe_sides(evaluation: Evaluation) -> str:
    """Return how many of the worst rows lie above their highest or below their lowest quantile, the more of the two."""
    (above, below), levels, n_rows = _count_sides(evaluation), evaluation.levels, min(WORST, len(evaluation.y))
    where = f"above their {levels[-1]:g} quantile" if above >= below else f"below their {levels[0]:g} quantile"
    most = max(above, below)
    return f"{'All' if most == n_rows else most} of the {n_rows} worst-predicted rows lie {where}"


def _count_sides(evaluation: Evaluation) -> tuple[int, int]:
    """Return how many of the worst rows lie above their highest quantile, and how many below their lowest."""
    rows = np.argsort(-evaluation.row_losses(), kind="stable")[:WORST]
    y, curves = evaluation.y[rows], evaluation.curves[rows]
    return int(np.sum(y > curves[:, -1])), int(np.sum(y < curves[:, 0]))


def _target_doubts(page: Page) -> list[str]:
    """Return what is said of targets that look capped, and of predictions that no target can be."""
    y, evaluation, found = page.y, page.evaluation, []
    for end, name in find_caps(y):
        found.append(
            f"values near {format_amount(end)}: {format_share(np.mean(y == end))} of rows have exactly this value, "
            f"which looks like a cap; true values {'above' if name == 'largest' else 'below'} it are unknown"
        )
        beyond = np.mean(evaluation.curves > end if name == "largest" else evaluation.curves < end, axis=0)
        if beyond.max() >= FEW_ROWS:
            level = evaluation.levels[int(np.argmax(beyond))]
            found[-1] += f". Of the predicted {level:g} quantiles {format_share(beyond.max())} lie there"
        found[-1] += "".join(
            f". The {_name(one)} covers {'only ' if low else ''}{format_share(inside, 0)} of the "
            f"{np.isclose(evaluation.y, end, rtol=1e-9).sum():,} {evaluation.row_name} that have it"
            for of, one, inside, low in cover_caps(page)
            if of == end
        )
    below = np.mean(evaluation.curves < 0, axis=0)
    if y.min() >= 0 and below.max() >= ANY_ROWS:
        named, lowest = _list_shares(evaluation, below), format_amount(float(evaluation.curves.min()))
        logged = " or `--log-target`" if y.min() > 0 else ""
        found.append(
            f"{named} are below 0 (down to {lowest}), though no target is; "
            f"`quernel fit --lower 0`{logged} prevents that"
        )
    return found


def cover_caps(page: Page) -> list[tuple[float, Interval, float, bool]]:
    """Return each cap with the first interval, its coverage of capped rows, and whether that is low beyond chance."""
    evaluation, found = page.evaluation, []
    first = evaluation.first_interval()
    for end, _ in find_caps(page.y):
        capped = np.isclose(evaluation.y, end, rtol=1e-9)
        if first is not None and capped.any():
            low, high = first[1][capped].T
            inside = float(np.mean((low <= end) & (end <= high)))
            least = float(binomial_band(first[0].nominal, int(capped.sum()))[0])
            found.append((end, first[0], inside, inside < least))
    return found


def find_caps(y: NDArray[np.floating]) -> list[tuple[float, str]]:
    """Return the largest and smallest target, and which it is, where so many rows have it that it looks capped."""
    ends = (float(y.max()), "largest"), (float(y.min()), "smallest")
    many = len(np.unique(y)) >= DISTINCT
    return [(end, name) for end, name in ends if many and end != 0 and np.mean(y == end) >= FEW_ROWS]


def _list_shares(evaluation: Evaluation, shares: NDArray[np.floating]) -> str:
    """Return the shares (q,) of predicted quantiles by level, where they are not negligible, as a list in words."""
    named = [
        f"{format_share(share)} of the predicted {level:g} quantiles"
        for level, share in zip(evaluation.levels, shares, strict=True)
        if share >= ANY_ROWS
    ]
    return named[0] if len(named) == 1 else f"{', '.join(named[:-1])} and {named[-1]}"


def _tiles(page: Page) -> str:
    """Return the key figures at the top of the page."""
    evaluation, losses = page.evaluation, _format_losses(page.evaluation)
    drawn = "" if evaluation.out_of is None else f", a sample of {evaluation.out_of:,}"
    name = f"Pinball loss on {len(evaluation.y):,} {evaluation.row_name}{drawn}"
    best = evaluation.best_baseline
    tiles = [(name, losses[None], f"smaller is better; {losses[best]}: {name_baseline(evaluation, best)}")]
    for one in evaluation.intervals()[:1]:
        nominal = format_share(one.nominal, 0)
        details = f"aim: {nominal} ({100 * one.low:.1f} to {format_share(one.high)} by chance): {_judge(one)}"
        if one.inner < one.observed:
            details += f"; without rows on its bounds {format_share(one.inner)}"
        kind = "calibrated interval" if one.calibrated else "interval"
        tiles.append((f"Coverage of the {nominal} {kind}", format_share(one.observed), details))
        tiles.append((f"Mean width of the {nominal} {kind}", format_amount(one.width), _compare_width(page, one)))
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
    return f"{format_share(one.width / (high - low), 0)} of the width of one interval for every row"


def describe_comparison(page: Page) -> str:
    """Return which of the models has the lowest loss, in a sentence; "" without others."""
    if not page.others:
        return ""
    ours = page.evaluation.row_losses()
    changes = {name: one[0].compare_losses(ours) for name, one in page.others.items()}
    best = min(changes, key=lambda name: changes[name][0])
    change, error = changes[best]
    chance = "" if abs(change) > 2 * error else ", a difference within chance"
    far = f"{format_share(abs(change))} (± {100 * error:.1f} points)"
    if change >= 0:
        return f"{page.name} has the lowest loss: that of {best} is {far} higher{chance}."
    return f"{best} has a lower loss than {page.name}, by {far}{chance}."
