"""One-line summaries of the columns of a table."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quernel.plots.style import truncate
from quernel.report.number_format import number, percent
from quernel.tables import DateColumn, TableModel, TextColumn, TimeColumn
from quernel.tables.arrow_casts import as_words, numbers
from quernel.tables.columns import Column

Array = NDArray[np.floating]


@dataclass(frozen=True)
class ColumnSummary:
    """Name, type and number of missing values of a column, and a description of the others."""

    name: str
    kind: str
    missing: int
    description: str


def summarize(model: TableModel, table: Any) -> list[ColumnSummary]:
    """Summarize the target, then the inputs of the model, from an Arrow table."""
    target = numbers(table[model.target])
    lines = [ColumnSummary(model.target, "target", int(np.sum(~np.isfinite(target))), _range(target))]
    return lines + [_summary(column, table[column.name]) for column in model.encoder.columns]


def day(seconds: float) -> str:
    """Format a date, with hours and minutes unless it is midnight."""
    moment = datetime.fromtimestamp(round(seconds), UTC)
    return f"{moment:%Y-%m-%d}" if moment.hour == moment.minute == 0 else f"{moment:%Y-%m-%d %H:%M}"


def time_of_day(seconds: float) -> str:
    """Format a time of day as HH:MM, or HH:MM:SS with seconds."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60:02}:{minutes % 60:02}" + (f":{rest:02}" if rest else "")


def _summary(column: Column, entries: Any) -> ColumnSummary:
    if isinstance(column, TextColumn):
        labels, index = as_words(entries)
        counts = Counter(
            {label: int(count) for label, count in zip(labels, _counts(index, len(labels)), strict=True) if label}
        )
        there = sum(counts.values())
        common = ", ".join(f"{truncate(label, 24)} ({_share(count / there)})" for label, count in counts.most_common(3))
        return ColumnSummary(column.name, column.kind, len(index) - there, f"{len(counts):,} categories: {common}")
    values = np.asarray(column.read(entries), dtype=float)
    missing = int(np.sum(np.isnan(values)))
    there = values[np.isfinite(values)]
    if column.kind == "boolean":
        description = f"true in {percent(there.mean(), 0)}" if len(there) else ""
    elif isinstance(column, DateColumn):
        description = f"{day(there.min())} to {day(there.max())}" if len(there) else ""
    elif isinstance(column, TimeColumn):
        description = f"{time_of_day(there.min())} to {time_of_day(there.max())}" if len(there) else ""
    else:
        description = _range(there)
    return ColumnSummary(column.name, column.kind, missing, description)


def _range(values: Array) -> str:
    there = values[np.isfinite(values)]
    if not len(there):
        return ""
    return f"{number(there.min())} to {number(there.max())}, median {number(np.median(there))}"


def _counts(index: NDArray[np.intp], n_words: int) -> NDArray[np.intp]:
    return np.bincount(index[index >= 0], minlength=n_words)


def _share(share: float) -> str:
    return percent(share, 0 if share >= 0.01 else 1)
