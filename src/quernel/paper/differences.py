"""Differences of two methods on the same rows, repetition by repetition, and what they say of a claim."""

from __future__ import annotations

from typing import Any, Literal

from quernel.paper.experiment import Summary, Table

# A difference counts from so many standard errors on.
ERRORS = 2.0


def summarize(values: Any) -> Summary:
    """Mean, standard deviation and standard error of these numbers."""
    return Table([{"value": float(value)} for value in values]).summary("value")


def paired_difference(table: Table, method: str, other: str, name: str) -> Summary:
    """A column under one method minus that under the other, row by row: both have the same tasks in the same order."""
    return summarize(table.select(method=method).column(name) - table.select(method=other).column(name))


def is_below_zero(difference: Summary) -> bool | Literal["undecided"]:
    """True (False) if the mean lies more than two standard errors below (above) 0; undecided between, or for n = 1."""
    if difference.mean < -ERRORS * difference.se:
        return True
    return False if difference.mean > ERRORS * difference.se else "undecided"


def describe(difference: Summary) -> str:
    """The mean with its sign, and its standard error."""
    return f"{difference.mean:+.4f} (s.e. {difference.se:.4f})"
