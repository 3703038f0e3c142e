"""How fast errors fall: the slope of log error against log n, with an interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy.stats import t as student

from quernel.paper.experiment import Summary, Table

CONFIDENCE = 0.95


def summarize(values: Any) -> Summary:
    """Mean, standard deviation and standard error of these numbers."""
    return Table([{"value": float(value)} for value in values]).summary("value")


def paired_difference(table: Table, method: str, other: str, name: str) -> Summary:
    """A column under one method minus that under the other, row by row: both have the same tasks in the same order."""
    return summarize(table.select(method=method).column(name) - table.select(method=other).column(name))


def subtract_means(one: Summary, other: Summary) -> Summary:
    """The difference of two independent means, with as many degrees of freedom as the smaller of their samples has."""
    return Summary(one.mean - other.mean, math.nan, math.hypot(one.se, other.se), min(one.n, other.n))


def half_width(mean: Summary) -> float:
    """Of the 95 % interval around a mean, by Student's t: two standard errors for many numbers, NaN for one."""
    return float(student.ppf((1 + CONFIDENCE) / 2, mean.n - 1) * mean.se)


def is_below_zero(difference: Summary) -> bool | Literal["undecided"]:
    """True (False) if the 95 % interval lies wholly below (above) 0; undecided if it holds 0, or there is none."""
    if difference.mean < -half_width(difference):
        return True
    return False if difference.mean > half_width(difference) else "undecided"


def format_mean(difference: Summary) -> str:
    """The mean with its sign, and its standard error."""
    return f"{difference.mean:+.4f} (s.e. {difference.se:.4f})"


# A claim holds, does not, or the numbers are too few to tell.
Judgement = bool | Literal["undecided"]
# An interval that is wider than this tells too little of a slope between 0 and -1 to confirm anything.
MAX_WIDTH = 0.5


@dataclass(frozen=True)
class Slope:
    """A mean slope over independent repetitions, and its interval."""

    value: float
    low: float
    high: float
    confidence: float = 0.95

    def lies_above(self, bound: float) -> bool:
        """Whether the whole interval does: the error falls too slowly. Steeper than the bound is allowed."""
        return self.low > bound

    @property
    def is_wide(self) -> bool:
        """Whether the interval is wider than `WIDEST`: it may refute, but it confirms nothing."""
        return self.high - self.low > MAX_WIDTH

    def meets_bound(self, bound: float) -> Judgement:
        """Whether the error falls at least as fast: the whole interval lies at or below the bound, or wholly above."""
        if self.lies_above(bound):
            return False
        return "undecided" if self.is_wide or self.high > bound else True

    def meets_value(self, value: float) -> Judgement:
        """Whether the slope may be this one, two-sided: its interval holds it, or not."""
        if not self.low <= value <= self.high:
            return False
        return "undecided" if self.is_wide else True

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]".replace("-", "\u2212")


def all_hold(judgements: Sequence[Judgement]) -> Judgement:
    """False if one is, undecided if one of the others is."""
    if False in judgements:
        return False
    return "undecided" if "undecided" in judgements else True


def allowed_slope(rate: float, sizes: Sequence[float], *, power: int) -> float:
    """The slope of n^rate log^power n from the first to the last size: what a bound with such a factor allows."""
    first, last = np.log(sizes[0]), np.log(sizes[-1])
    return rate + power * float(np.log(last / first) / (last - first))


def fit_slope(table: Table, error: str, *, against: str = "n", confidence: float = 0.95) -> Slope:
    """Each repetition has its own line through its points; the interval is Student's for the mean of their slopes.

    Repetitions are independent of each other, points of one of them need not be. The logarithm is taken before the
    mean: the theorems bound the error with high probability, and a rare failure of the features must not decide.
    """
    slopes = [
        np.polyfit(np.log(points.column(against).astype(float)), np.log(points.column(error)), 1)[0]
        for _, points in table.groups("repetition")
    ]
    if len(slopes) < 2:
        raise ValueError(f"A slope's interval needs at least 2 repetitions; got {len(slopes)}.")
    half = student.ppf((1 + confidence) / 2, len(slopes) - 1) * np.std(slopes, ddof=1) / np.sqrt(len(slopes))
    value = float(np.mean(slopes))
    return Slope(value, value - float(half), value + float(half), confidence)


def geometric_means(table: Table, error: str, *, against: str = "n") -> tuple[list[float], np.ndarray, np.ndarray]:
    """Sizes, geometric mean of the error at each, and (2, k) distances to one standard error below and above."""
    sizes, centre, lower, upper = [], [], [], []
    for (size,), points in table.groups(against):
        logs = np.log(points.column(error))
        middle, se = logs.mean(), (logs.std(ddof=1) if len(logs) > 1 else 0.0) / np.sqrt(len(logs))
        sizes.append(float(size))
        centre.append(np.exp(middle))
        lower.append(np.exp(middle) - np.exp(middle - se))
        upper.append(np.exp(middle + se) - np.exp(middle))
    return sizes, np.array(centre), np.array([lower, upper])
