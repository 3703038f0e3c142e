"""Differences of two methods on the same rows, repetition by repetition, and what they say of a claim."""

from __future__ import annotations

import math
from typing import Any, Literal

from scipy.stats import t as student

from quernel.paper.experiment import Summary, Table

LEVEL = 0.95


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
    return float(student.ppf((1 + LEVEL) / 2, mean.n - 1) * mean.se)


def is_below_zero(difference: Summary) -> bool | Literal["undecided"]:
    """True (False) if the 95 % interval lies wholly below (above) 0; undecided if it holds 0, or there is none."""
    if difference.mean < -half_width(difference):
        return True
    return False if difference.mean > half_width(difference) else "undecided"


def describe(difference: Summary) -> str:
    """The mean with its sign, and its standard error."""
    return f"{difference.mean:+.4f} (s.e. {difference.se:.4f})"
