"""Inference on measurements: paired differences with Student t intervals, and learning rates as slopes on log-log axes.

A claim is judged by a 95 % interval, which can support it, refute it, or leave it undecided.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy.stats import t as student

from quernel.paper.experiment import Summary, Table

# Of the intervals by which claims about means are judged.
CONFIDENCE = 0.95


def summarize(values: Any) -> Summary:
    """Mean, standard deviation and standard error of these numbers."""
    return Table([{"value": float(value)} for value in values]).summary("value")


def paired_difference(table: Table, method: str, other: str, name: str) -> Summary:
    """Summary of column `name` under `method` minus that under `other`, row by row.

    Both methods must have run on the same tasks, in the same order: the data they share then cancels.
    """
    return summarize(table.select(method=method).column(name) - table.select(method=other).column(name))


def subtract_means(one: Summary, other: Summary) -> Summary:
    """Difference of two independent means.

    Its standard error is sqrt(se1^2 + se2^2); its n is the smaller of the two, a conservative choice of the degrees of
    freedom. The standard deviation is not defined (NaN).
    """
    return Summary(one.mean - other.mean, math.nan, math.hypot(one.se, other.se), min(one.n, other.n))


def half_width(mean: Summary) -> float:
    """Half the width of the 95 % Student t interval around a mean; NaN for a single number."""
    return float(student.ppf((1 + CONFIDENCE) / 2, mean.n - 1) * mean.se)


def is_below_zero(difference: Summary) -> bool | Literal["undecided"]:
    """True (False) if the 95 % interval lies entirely below (above) 0, "undecided" if it contains 0."""
    if difference.mean < -half_width(difference):
        return True
    return False if difference.mean > half_width(difference) else "undecided"


def format_mean(difference: Summary) -> str:
    """A mean with its sign, and its standard error, as text."""
    return f"{difference.mean:+.4f} (s.e. {difference.se:.4f})"


# A claim is supported, refuted, or not decided by the measurements.
Judgement = bool | Literal["undecided"]
# Slopes lie between 0 and -1 or so: a wider interval than this confirms nothing.
MAX_WIDTH = 0.5


@dataclass(frozen=True)
class Slope:
    """A mean slope over independent repetitions, and its Student t interval."""

    value: float
    low: float
    high: float
    confidence: float = 0.95

    def lies_above(self, bound: float) -> bool:
        """Whether the whole interval lies above the bound: the error falls too slowly."""
        return self.low > bound

    @property
    def is_wide(self) -> bool:
        """Whether the interval is wider than `MAX_WIDTH`: it may refute a claim, but confirms none."""
        return self.high - self.low > MAX_WIDTH

    def meets_bound(self, bound: float) -> Judgement:
        """One-sided: whether the error falls at least as fast as n^bound.

        True if the whole interval lies at or below the bound (steeper is allowed), False if wholly above, otherwise
        undecided.
        """
        if self.lies_above(bound):
            return False
        return "undecided" if self.is_wide or self.high > bound else True

    def meets_value(self, value: float) -> Judgement:
        """Two-sided: whether the interval contains this slope; undecided if it does but is wide."""
        if not self.low <= value <= self.high:
            return False
        return "undecided" if self.is_wide else True

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]".replace("-", "\u2212")


def all_hold(judgements: Sequence[Judgement]) -> Judgement:
    """Combine judgements like `all`: False if any is, otherwise "undecided" if any is."""
    if False in judgements:
        return False
    return "undecided" if "undecided" in judgements else True


def allowed_slope(rate: float, sizes: Sequence[float], *, power: int) -> float:
    """Log-log slope of n^rate (log n)^power between the first and the last size.

    A bound with a logarithmic factor allows an error to fall more slowly than its rate over a finite range of n.
    """
    first, last = np.log(sizes[0]), np.log(sizes[-1])
    return rate + power * float(np.log(last / first) / (last - first))


def fit_slope(table: Table, error: str, *, against: str = "n", confidence: float = 0.95) -> Slope:
    """Slope of log error against log n: one least-squares line per repetition, and a t interval for their mean.

    Repetitions are independent, while the points of one need not be. Logarithms are taken before averaging: the
    theorems bound the error with high probability, and a rare bad draw of the features must not dominate the mean.

    Parameters
    ----------
    table : Table with a column "repetition"
    error : name of the error's column
    against : name of the size's column
    confidence : of the interval
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
    """Geometric mean of the error at each size, for a log-log plot.

    Returns the sizes, the means (k,) and error bars (2, k): the distances to exp(mean of logs -+ its standard error).
    """
    sizes, centre, lower, upper = [], [], [], []
    for (size,), points in table.groups(against):
        logs = np.log(points.column(error))
        middle, se = logs.mean(), (logs.std(ddof=1) if len(logs) > 1 else 0.0) / np.sqrt(len(logs))
        sizes.append(float(size))
        centre.append(np.exp(middle))
        lower.append(np.exp(middle) - np.exp(middle - se))
        upper.append(np.exp(middle + se) - np.exp(middle))
    return sizes, np.array(centre), np.array([lower, upper])
