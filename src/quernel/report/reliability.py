"""Whether to rely on the intervals: calibration, coverage by group and over time, and drift."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import linregress, t

from quernel.plots.calibration import binomial_band, find_ties
from quernel.plots.inputs import drop_missing, split_columns
from quernel.plots.style import truncate
from quernel.report import charts
from quernel.report.advice import cover_caps, describe_narrow, name_baseline
from quernel.report.evaluation import Evaluation, Interval
from quernel.report.formatting import (
    Cell,
    format_count,
    format_date,
    format_number,
    format_numbers,
    format_share,
    judge_levels,
    make_figure,
    make_table,
    numeric_cell,
    render_text,
    row_header,
    verdict_cell,
)

if TYPE_CHECKING:
    from quernel.report.content import Page

Array = NDArray[np.floating]
Index = NDArray[np.intp]


@dataclass(frozen=True)
class ReliabilityOptions:
    """Constants: how fine groups and periods are, and what counts as drift."""

    period_rows: int = 40  # of a period at least
    max_periods: int = 12
    group_columns: int = 6  # columns whose values make groups, the most important ones
    max_categories: int = 8  # of such a column, the most frequent ones
    group_rows: int = 30  # of a group at least: fewer say little about a share
    vague: float = 0.2  # a group whose coverage varies by more than this by chance has too few rows to tell
    confidence: float = 0.95  # that no group, among all, is called off by chance
    drift_level: float = 0.01  # significance of a trend over periods
    coverage_drift: float = 0.05  # least change of the coverage, as a share of rows, that is worth a word ...
    median_drift: float = 0.1  # ... and of the share of rows above the predicted median
    min_periods: int = 5  # for a trend


OPTIONS = ReliabilityOptions()
TIES = (
    "Rows with the same target lie exactly on predicted quantiles (ties). Then two shares are shown: of the rows below "
    "the quantile, and of those at or below it; a level between the two is calibrated. Likewise for intervals, without "
    "and with the rows on their bounds."
)
OFF = (
    "A quantile marked too high or too low is really at the level shown under 'rows below'. If that difference matters "
    "to you, have an interval calibrated on further rows: <code>quernel fit --conformal</code>."
)
CALIBRATED = (
    "The calibrated interval was adjusted by conformal prediction on {rows:,} rows that the model was not fitted to. "
    "Its coverage of new rows from the same distribution is guaranteed on average, however wrong the model; the other "
    "intervals are the model's own."
)
CALIBRATED_UNITS = (
    "The calibrated interval was adjusted by conformal prediction on {rows:,} rows of units that the model was not "
    "fitted to. Its coverage of rows of new units is right up to an error that decreases with the number of these "
    "units, however wrong the model; the other intervals are the model's own."
)


@dataclass(frozen=True, kw_only=True)
class Group(Interval):
    """The interval on rows of a group: also the column and values that make it, number of rows, mean loss, and errors.

    Half of the rows are off by more than `error` from their prediction, whose median is `typical`.
    """

    column: str
    name: str
    n_rows: int
    loss: float
    error: float
    typical: float

    @property
    def few(self) -> bool:
        """Whether there are too few rows to tell."""
        return self.high - self.low > OPTIONS.vague

    def describe(self) -> str:
        """Return the group in words, the column as code: `place` is north."""
        column = f"the {self.column}" if self.column.startswith("predicted ") else f"`{self.column}`"
        return f"{column} is {self.name}"


def compute_groups(evaluation: Evaluation, entries: Any, names: Sequence[str]) -> list[Group]:
    """Compute coverage, width and loss by groups of rows: by size of the prediction, and by values of columns.

    Parameters
    ----------
    evaluation : Evaluation
    entries : Arrow table of its rows
    names : the columns, the most important ones first; dates are left to the periods
    """
    found = evaluation.first_interval()
    if found is None:
        return []
    interval, ends = found
    columns, prediction = split_columns(evaluation.model, entries, pooled=True), evaluation.curves[:, evaluation.middle]
    labels = {evaluation.middle_name: prediction}
    for name in names[: OPTIONS.group_columns]:
        values = columns.values[columns.names.index(name)]
        if values.dtype.kind != "M":
            labels[name] = values
    inside, loss = (ends[:, 0] <= evaluation.y) & (evaluation.y <= ends[:, 1]), evaluation.row_losses()
    inner, errors = inside & ~find_ties(evaluation.y, ends).any(axis=1), np.abs(evaluation.y - prediction)
    parts = [(name, label, rows) for name, values in labels.items() for label, rows in _split_values(values)]
    confidence = 1 - (1 - OPTIONS.confidence) / max(len(parts), 1)
    share = evaluation.effective_rows(inside) / len(inside)  # below 1 where rows are of units
    groups = []
    for name, label, rows in parts:
        low, high = map(float, binomial_band(interval.nominal, max(int(share * len(rows)), 1), confidence))
        shares = float(inside[rows].mean()), float(inner[rows].mean())
        width = float((ends[rows, 1] - ends[rows, 0]).mean())
        error, typical = float(np.median(errors[rows])), float(np.median(prediction[rows]))
        one = Group(interval.nominal, *shares, low, high, width, column=name, name=label, n_rows=len(rows),
                    loss=float(loss[rows].mean()), error=error, typical=typical)  # fmt: skip
        groups.append(one)
    return groups


def _split_values(values: NDArray[Any]) -> list[tuple[str, Index]]:
    """Split rows by the values of a column: a name and positions of each group; none if there is only one."""
    if values.dtype.kind == "O":
        texts = values.astype(str)
        labels, counts = np.unique(texts[[value is not None for value in values]], return_counts=True)
        kept = labels[np.argsort(-counts, kind="stable")][: OPTIONS.max_categories]
        groups = [(charts.name_category(label), np.flatnonzero(texts == label)) for label in kept]
    elif len(distinct := np.unique(drop_missing(values))) <= OPTIONS.max_categories:
        groups = [(format_number(value), np.flatnonzero(values == value)) for value in distinct]
    else:
        edges = np.unique(np.nanquantile(values, [0, 0.25, 0.5, 0.75, 1]))
        code = np.searchsorted(edges[1:-1], values, side="left")
        names = _name_bins(drop_missing(values), edges)
        groups = [(name, np.flatnonzero((code == k) & np.isfinite(values))) for k, name in enumerate(names)]
    groups = [(truncate(name.strip(), 40), rows) for name, rows in groups if len(rows) >= OPTIONS.group_rows]
    return groups if len(groups) > 1 else []


def _name_bins(values: Array, edges: Array) -> list[str]:
    """Name the bins between edges: each has its upper end, and the first its lower one, too."""
    low, high = edges[:-1], edges[1:]
    if np.all(values == values.round()):
        low, high = np.concatenate([edges[:1], np.floor(edges[1:-1]) + 1]), np.floor(high)
    texts = format_numbers([*low, *high], grouped=None)
    return [a if a == b else f"{a} to {b}" for a, b in zip(texts[: len(low)], texts[len(low) :], strict=True)]


@dataclass(frozen=True, eq=False)
class Periods:
    """Evaluation rows in time order, in consecutive periods, with what drifts.

    Attributes
    ----------
    name : str
        The column of dates, "" for the order of the rows.
    times : ndarray of shape (b,)
        A time within each period in seconds since 1970, or the middle row's number.
    rows : sequence of b index arrays
    coverage : ndarray of shape (b,) or None
        Share of rows inside the interval.
    above : ndarray of shape (b,)
        Share of rows above the predicted quantile whose level is nearest to 1/2.
    loss, reference : ndarrays of shape (b,)
        Mean loss of the model, and of unconditional quantiles.
    drift : sequence of str
        What changes with time by more than chance, in words.
    ends : pair of float
        The first and the last time.
    """

    name: str
    times: Array
    rows: Sequence[Index]
    coverage: Array | None
    above: Array
    loss: Array
    reference: Array
    drift: Sequence[str]
    ends: tuple[float, float]


def compute_periods(evaluation: Evaluation, entries: Any, numbers: Index) -> Periods | None:
    """Compute coverage and loss in consecutive periods, None unless rows have dates or are in time order.

    `entries` is the Arrow table of the rows, and `numbers` (n,) are their positions in the data.
    """
    name, when, later = _find_times(evaluation, entries, numbers)
    order = np.argsort(when, kind="stable")[: np.isfinite(when).sum()]  # missing dates are the last
    rows = np.array_split(order, np.clip(len(order) // OPTIONS.period_rows, 1, OPTIONS.max_periods))
    times = np.array([np.median(when[some]) for some in rows]) if len(order) else np.empty(0)
    if len(times) < 2 or not np.all(np.diff(times) > 0):
        return None

    def mean(values: NDArray[Any]) -> Array:
        return np.array([values[some].mean() for some in rows])

    found = evaluation.first_interval()
    coverage = None
    if found is not None:
        low, high = found[1].T
        coverage = mean((low <= evaluation.y) & (evaluation.y <= high))
    middle = evaluation.middle
    above, level = mean(evaluation.y > evaluation.curves[:, middle]), float(evaluation.levels[middle])
    baseline = next(iter(evaluation.baselines), None)
    nominal = evaluation.intervals()[0].nominal if coverage is not None else 0.0
    drift = _find_drift(coverage, nominal, above, level, evaluation.middle_name, later=later)
    reference = mean(evaluation.row_losses(baseline))  # the model itself, if there are no baselines
    ends = float(when[order[0]]), float(when[order[-1]])
    return Periods(name, times, rows, coverage, above, mean(evaluation.row_losses()), reference, drift, ends)


def _find_times(evaluation: Evaluation, entries: Any, numbers: Index) -> tuple[str, Array, bool]:
    """Return the column with the most distinct dates, times (n,), and whether rows are later than the training rows.

    Without dates, rows in time order have their numbers as times, others none.
    """
    dates, start = {}, 0
    for column in evaluation.model.encoder.columns_:
        if column.kind == "date":
            when = np.asarray(column.read(entries[column.name]), dtype=float)
            dates[column.name] = (when, start)
        start += len(column.names)
    if not dates:
        when = numbers.astype(float) if evaluation.time_ordered else np.full(len(evaluation.y), np.nan)
        return "", when, evaluation.time_ordered and evaluation.unseen
    name = max(dates, key=lambda one: len(np.unique(dates[one][0])))
    when, first = dates[name]
    after = evaluation.X[:, first] > evaluation.model.model.input_range_[1, first]
    return name, when, bool(np.mean(after) > 0.5)


def _differs(shares: Array, expected: float) -> bool:
    """Return whether the mean of the shares of periods (k,) is off by more than chance, and by enough for a word."""
    limit = t.ppf(1 - OPTIONS.drift_level / 2, len(shares) - 1) * shares.std(ddof=1) / np.sqrt(len(shares))
    return bool(abs(shares.mean() - expected) > max(limit, OPTIONS.coverage_drift))


def _find_drift(
    coverage: Array | None, nominal: float, above: Array, level: float, which: str, *, later: bool
) -> list[str]:
    """Return sentences on what changes over periods by more than chance.

    Periods count as independent, not rows: those close in time are alike.
    """
    found = []
    if later and _differs(above, 1 - level):
        way = "risen" if above.mean() > 1 - level else "fallen"
        found.append(
            f"Targets have {way} since the training rows: {format_share(above.mean(), 0)} of these later rows lie "
            f"above the {which}, and {format_share(1 - level, 0)} were expected."
        )
    if later and coverage is not None and coverage.mean() < nominal and _differs(coverage, nominal):
        found.append(
            f"Rows after the training rows differ from them: the {format_share(nominal, 0)} interval covers "
            f"{format_share(coverage.mean(), 0)} of these later rows."
        )
    for shares, what, least in (
        (above, f"share of rows above the {which}", OPTIONS.median_drift),
        (coverage, "coverage", OPTIONS.coverage_drift),
    ):
        if shares is None or len(shares) < OPTIONS.min_periods or np.ptp(shares) == 0:
            continue
        line = linregress(np.arange(len(shares)), shares)
        if line.pvalue < OPTIONS.drift_level and abs(line.slope) * (len(shares) - 1) >= least:
            third = max(len(shares) // 3, 1)
            first, last = format_share(shares[:third].mean(), 0), format_share(shares[-third:].mean(), 0)
            way = "rises" if line.slope > 0 else "falls"
            found.append(f"The {what} {way} with time: {first} in the first third of the rows, {last} in the last.")
    return found


def render_groups(page: Page) -> str:
    """Return the section on coverage by group, "" without groups."""
    if not page.groups:
        return ""
    off, wide = [group for group in page.groups if group.narrow], [group for group in page.groups if group.wide]
    mean = page.evaluation.row_losses().mean() or 1.0
    lines: list[tuple[Cell | str, ...]] = []
    previous = ""
    for group, width in zip(page.groups, format_numbers(group.width for group in page.groups), strict=True):
        lines.append(
            (
                row_header("" if group.column == previous else group.column),
                group.name,
                numeric_cell(f"{group.n_rows:,}"),
                *_share_cells(group.inner, group.observed, group.low, group.high),
                verdict_cell(not group.narrow, wide=group.wide, few=group.few),
                numeric_cell(width),
                numeric_cell(f"{group.loss / mean:.2f}"),
            )
        )
        previous = group.column
    numbers = map(numeric_cell, ("rows", "rows inside", "expected by chance"))
    heads: tuple[Cell | str, ...] = ("column", "values", *numbers, "", *map(numeric_cell, ("width", "loss / mean")))
    interval = page.evaluation.intervals()[0]
    share = format_share(interval.nominal, 0)
    caption = (
        f"Coverage and mean width of the {share} interval, and loss relative to all rows. Groups: the most frequent "
        f"categories of these rows (at most {OPTIONS.max_categories}) or four ranges of each of the most important "
        f"columns, dates excepted; those of fewer than {OPTIONS.group_rows} rows are left out. The ranges are widened "
        "because many groups are looked at."
    )
    names = ", ".join(f"{group.describe()} ({format_share(group.observed)})" for group in off)
    capped = min((inside for *_, inside, low in cover_caps(page) if low), default=None)
    finding = (
        f"The {share} interval covers too few rows in {len(off)} of {len(page.groups)} groups: {names}. Do not rely on "
        "it there."
        if off
        else "None of the groups listed is covered less than chance explains."
    )
    if capped is not None:
        finding += f" Capped rows, which are not listed, are covered less: {format_share(capped, 0)}."
    if wide:
        finding += (
            f" In {format_count(len(wide), 'group')} the interval covers more than chance explains (marked wide)."
        )
    if few := sum(group.few for group in page.groups):
        finding += f" {few} of the groups have too few rows to tell: by chance alone, coverage may vary by more than "
        finding += f"{100 * OPTIONS.vague:.0f} points there."
    return f"<p{' class=warn' if off else ''}>{render_text(finding)}</p>{make_table(heads, lines, caption)}"


def render_periods(page: Page) -> str:
    """Return the section on coverage and loss in consecutive periods, "" for rows held out at random without drift."""
    shown, evaluation = page.periods, page.evaluation
    if shown is None or (evaluation.unseen and not evaluation.time_ordered and not shown.drift):
        return ""
    pictures, outliers, dated = "", "", bool(shown.name)
    if shown.coverage is not None:
        nominal = evaluation.intervals()[0].nominal
        chance = binomial_band(nominal, np.array([len(rows) for rows in shown.rows]))
        below, above = int(np.sum(shown.coverage < chance[0])), int(np.sum(shown.coverage > chance[1]))
        if below or above:
            outliers = (
                f" Coverage is below its band in {below} and above it in {above} of {len(shown.rows)} periods; by "
                "chance about 1 of 20 would be outside."
            )
        line, share = np.full(len(shown.times), 100 * nominal), format_share(nominal, 0)
        name, coverage, band = "rows inside, %", 100 * shown.coverage, (100 * chance[0], 100 * chance[1])
        pictures += make_figure(
            charts.draw_over_time(shown.times, coverage, name, reference=line, chance=band, dated=dated),
            f"Coverage of the {share} interval. Dashed: {share}; band: where 95 % of the points would be by chance if "
            "rows were independent (those close in time often are not); squares: outside the band.",
        )
    baseline = next(iter(evaluation.baselines), "this model")
    pictures += make_figure(
        charts.draw_over_time(shown.times, shown.loss, "mean pinball loss", reference=shown.reference, dated=dated),
        f"Loss of this model. Dashed: that of {name_baseline(evaluation, baseline)}.",
    )
    order = f"in the order of {shown.name!r}" if dated else "in the order of the data"
    text = (
        f"Rows {order}, in {len(shown.rows)} consecutive periods of about {len(shown.rows[0]):,} rows"
        f"{f', from {format_date(shown.ends[0])} to {format_date(shown.ends[1])}' if dated else ''}."
    )
    none = "No drift shows: neither coverage nor the share above the median has a clear trend."
    found = " ".join(shown.drift) or none
    drift = f"<p{' class=warn' if shown.drift else ''}>{escape(found + outliers)}</p>"
    return f'<p>{escape(text)}</p>{drift}<div class="beside">{pictures}</div>'


def render_coverage(page: Page) -> str:
    """Return the section on the calibration of the quantile levels and the coverage of the intervals."""
    shown, evaluation = page.calibration, page.evaluation
    intervals = evaluation.intervals()
    ties = bool(np.any(shown.below < shown.observed))
    marks, shares = judge_levels(shown), zip(shown.below, shown.observed, shown.lower, shown.upper, strict=True)
    lines = [
        (numeric_cell(f"{level:g}"), *_share_cells(*some), Cell(mark, "good" if mark == "ok" else "bad"))
        for level, some, mark in zip(shown.levels, shares, marks, strict=True)
    ]
    heads = (numeric_cell("level"), numeric_cell("rows below"), numeric_cell("expected by chance"), "")
    caption = (
        "Share of rows at or below each predicted quantile, and where it is by chance in 95 % of samples. At 0.25 "
        "a quarter of the rows should be: where more are, the quantile is too high."
    )
    tables = make_table(heads, lines, caption)
    if set(marks) != {"ok"}:
        tables += f"<p>{OFF}</p>"
    if ties or any(one.inner < one.observed for one in intervals):
        tables += f"<p>{TIES}</p>"
    if set(marks) == {"ok"} and any(not one.holds for one in intervals):
        tables += "<p>Each quantile passes on its own; intervals, between two of them, are the sharper test.</p>"
    second = _interval_table(intervals, evaluation) if intervals else ""
    return f'<div class="beside"><div>{tables}</div><div>{second}</div></div>'


def _interval_table(intervals: list[Interval], evaluation: Evaluation) -> str:
    """Return the table of coverages and widths, and what to know or do about them."""
    lines: list[list[Cell | str]] = [
        [
            f"{format_share(one.nominal, 0)}{', calibrated' if one.calibrated else ''}",
            *_share_cells(one.inner, one.observed, one.low, one.high),
            verdict_cell(one.holds, wide=one.wide),
            numeric_cell(width),
        ]
        for one, width in zip(intervals, format_numbers(one.width for one in intervals), strict=True)
    ]
    heads = ("interval", numeric_cell("rows inside"), numeric_cell("expected by chance"), "", numeric_cell("width"))
    caption = "Coverage and mean width of central intervals, between pairs of levels unless marked as calibrated."
    text = make_table(heads, lines, caption)
    if evaluation.model.interval is not None and intervals[0].calibrated:
        promise = CALIBRATED if evaluation.units is None else CALIBRATED_UNITS
        return f"{text}<p>{escape(promise.format(rows=evaluation.model.interval.n_calibration_))}</p>"
    narrow = intervals[0].narrow
    return text + (f'<p class="warn">{describe_narrow(evaluation)}</p>' if narrow else "")


def _share_cells(without_ties: float, with_ties: float, low: float, high: float) -> tuple[Cell, ...]:
    """Return cells with an observed share, as a range where ties make one, and its range by chance."""
    chance = f"{100 * low:.1f} to {format_share(high)}"
    observed = "" if without_ties == with_ties else f"{100 * without_ties:.1f} to "
    return numeric_cell(observed + format_share(with_ties)), numeric_cell(chance)
