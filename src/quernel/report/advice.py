"""The top of the page: in short, key figures, the baseline that wins, and what to try."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from quernel.estimators import KernelQuantileRegressor
from quernel.report.evaluation import Evaluation, Interval
from quernel.report.formatting import format_amount, format_count, format_numbers, format_share

if TYPE_CHECKING:
    from quernel.report.content import Page
    from quernel.report.reliability import Group

# Columns and groups that are named, the least increase of the loss that makes a column matter, and the loss of a group
# relative to the mean that is worth a word.
MOST_IMPORTANT, LEAST_IMPORTANCE, LARGE_LOSS = 3, 0.02, 1.25
# Shares of rows that are worth a word: outside the training range, with a predicted quantile that no target can be, and
# with the largest or smallest target. A target with fewer distinct values than these is discrete, not capped.
FEW_ROWS, DISTINCT = 0.01, 30
# Probability, by chance, that a page calls the coverage of two groups of a column uneven, and how low one must be.
UNEVEN, LOW = 0.05, 0.01
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
    lines = {
        "How good": _how_good(page.evaluation),
        "What it rests on": _rests_on(page),
        "Where not to trust it": _doubts(page),
    }
    items = "".join(f"<li><strong>{name}:</strong> {escape(text)}</li>" for name, text in lines.items())
    return f'<ul class="short">{items}</ul>'


def _how_good(evaluation: Evaluation) -> str:
    """Return the typical error and the coverage in words."""
    middle = int(np.argmin(np.abs(evaluation.levels - 0.5)))
    level = evaluation.levels[middle]
    errors = np.abs(evaluation.y - evaluation.curves[:, middle])
    error, mean = format_amount(float(np.median(errors))), format_amount(float(errors.mean()))
    prediction = "predicted median" if level == 0.5 else f"predicted {level:g} quantile"
    typical = format_amount(float(np.median(evaluation.y)))
    rows = "held-out" if evaluation.unseen else "evaluation"
    text = f"half of the {rows} rows lie within {error} of their {prediction} "
    text += f"(mean absolute error: {mean}; their median target: {typical})"
    for one in evaluation.intervals()[:1]:
        text += f"; the {format_share(one.nominal, 0)} interval covers {format_share(one.observed)} of them, "
        text += describe_deviation(one)
    best = evaluation.best_baseline
    ours, theirs = (float(evaluation.losses(name).mean()) for name in (None, best))
    if ours <= theirs and theirs > 0:
        many = len(evaluation.baselines) > 1
        text += f". None of {len(evaluation.baselines)} baselines is better: " if many else ". "
        text += "the pinball loss (what errors of the quantiles cost, in units of the target) "
        text += f"is {format_share(1 - ours / theirs, 0)} lower than that of {best}"
        text += TUNED if "not tuned" in best else ""
    return f"{text}."


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
    listed = ", ".join(f"{name} (+{round(100 * share):,} %)" for name, share in named[:MOST_IMPORTANT])
    more = len(named) - MOST_IMPORTANT
    rest = format_count(len(increase) - MOST_IMPORTANT, "other column")
    others = (
        f", and less on {f'{more} of {rest}' if more < len(increase) - MOST_IMPORTANT else rest}" if more > 0 else ""
    )
    return f"{listed}{others}. In brackets: how much the loss rises if the column is shuffled."


def _doubts(page: Page) -> str:
    """Return the groups, periods and ranges in which predictions are less sure."""
    evaluation, found = page.evaluation, []
    off = sorted((group for group in page.groups if not group.holds), key=lambda group: group.observed - group.low)
    if off:
        named = "; ".join(f"{one.describe()} (covers {format_share(one.observed, 0)})" for one in off[:MOST_IMPORTANT])
        found.append(f"intervals cover too few rows in {len(off)} of {len(page.groups)} groups: {named}")
    elif uneven := _find_uneven(page):
        found.append(uneven)
    found += _find_hard(page)
    found += _target_doubts(page)
    if far := [column.far for column in page.columns if column.far]:
        found.append(f"look for errors in values far from all others: {'; '.join(far[:MOST_IMPORTANT])}")
    if page.periods is not None:
        found += list(page.periods.drift)
        if evaluation.unseen and not evaluation.time_ordered:
            found.append(
                "the future: rows were held out at random, between others of the same time, so that later rows may be "
                "predicted worse (quernel fit --time-ordered evaluates on the last ones)"
            )
    if evaluation.outside.mean() >= FEW_ROWS:
        share = f"{evaluation.outside.sum():,} of {len(evaluation.y):,}"
        found.append(f"{share} rows are outside the training range, where predictions are extrapolations")
    seen = "" if evaluation.unseen else " If the model was fitted to any of these rows, all numbers are too optimistic."
    if not found:
        nothing = "no group of these rows or period stands out. Beyond the range of the training rows nothing is known."
        return nothing + seen
    text = ". ".join(one.rstrip(".")[0].upper() + one.rstrip(".")[1:] for one in found)
    return f"{text}.{seen}"


def _find_hard(page: Page) -> list[str]:
    """Return the group with the largest errors, relative to the prediction where they grow with it; none if alike."""
    errors, relative = page.evaluation.errors()
    typical, mean = float(np.median(errors)), page.evaluation.row_losses().mean()
    ratios = [(group.error / (typical or 1.0) if relative else group.loss / (mean or 1.0)) for group in page.groups]
    # A median of n errors varies by about 1 / sqrt(n) of itself.
    sure = [k for k, group in enumerate(page.groups) if ratios[k] > max(LARGE_LOSS, 1 + 3 / np.sqrt(group.n_rows))]
    if not sure:
        return []
    hard = page.groups[max(sure, key=ratios.__getitem__)]
    if not relative:
        return [f"errors are largest where {hard.describe()}: {hard.loss / mean:.1f} times the mean loss"]
    return [
        f"errors are largest, relative to the predicted median, where {hard.describe()}: half of these rows are off by "
        f"more than {format_share(hard.error, 0)} of it (of all rows: {format_share(typical, 0)})"
    ]


def _find_uneven(page: Page) -> str:
    """Return the two groups of a column whose coverage differs most, if one is low and it is no chance of all pairs."""
    pairs = [(a, b) for a in page.groups for b in page.groups if a.column == b.column and a.observed < b.observed]
    if not pairs or page.evaluation.units is not None:
        return ""

    def compute_z(pair: tuple[Group, Group]) -> float:
        rows = np.array([group.n_rows for group in pair])
        share = float(np.average([group.observed for group in pair], weights=rows))
        return float((pair[1].observed - pair[0].observed) / np.sqrt(share * (1 - share) * np.sum(1 / rows)))

    low, high = max(pairs, key=compute_z)
    nominal = page.evaluation.intervals()[0].nominal
    if compute_z((low, high)) < norm.isf(UNEVEN / 2 / len(pairs)) or low.observed > nominal - LOW:
        return ""
    return (
        f"coverage is uneven: {format_share(low.observed)} where {low.describe()}, {format_share(high.observed)} where "
        f"it is {high.name}, instead of {format_share(nominal, 0)}"
    )


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
    evaluation = page.evaluation
    ours = evaluation.losses().mean()
    losses = format_numbers(evaluation.losses(name).mean() for name in (None, *evaluation.baselines))
    constant = evaluation.losses(next(iter(evaluation.baselines))).mean()
    change = ours / constant - 1 if constant > 0 else 0.0
    compared = "lower is better; "
    compared += f"{format_share(abs(change), 0)} {'below' if change <= 0 else 'above'} unconditional quantiles, which "
    compared += "are the same for all rows"
    rows = "held-out" if evaluation.unseen else "evaluation"
    drawn = "" if evaluation.out_of is None else f", a sample of {evaluation.out_of:,}"
    tiles = [(f"Pinball loss on {len(evaluation.y):,} {rows} rows{drawn}", losses[0], compared)]
    tiles += _peer_tile(evaluation)
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


def _peer_tile(evaluation: Evaluation) -> list[tuple[str, str, str]]:
    """Return the tile that compares the loss with that of the best other baseline; none without such."""
    peers = list(evaluation.baselines)[1:]  # the first are unconditional quantiles
    means = {name: float(evaluation.losses(name).mean()) for name in peers}
    if not peers or min(means.values()) <= 0:
        return []
    best = min(peers, key=lambda name: means[name])
    change, error = evaluation.compare_losses(evaluation.row_losses(best))
    value = f"{format_share(abs(change))} {'lower' if change <= 0 else 'higher'}"
    details = f"than {best} (standard error: {format_share(error)})"
    details += TUNED if change <= 0 and "not tuned" in best else ""
    return [("Loss compared with the best baseline", value, details)]


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
