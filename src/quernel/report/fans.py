"""Fan charts: predicted quantiles along one column, with the other columns at typical values."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quernel.plots.table_access import ENDS, FEW_VALUES, date_grid
from quernel.tables import DateColumn, TableModel, TextColumn
from quernel.tables.columns import BooleanColumn, Column

Array = NDArray[np.floating]

# Points of a curve, categories shown (the most frequent), and rows plotted (a random sample).
GRID_POINTS = 60
MOST_CATEGORIES = 10
MOST_POINTS = 400
SCATTERED = 0.2  # jitter, relative to the distance to the next value


@dataclass(frozen=True, eq=False)
class ColumnFan:
    """Predicted quantiles (g, q) over a grid (g,), and rows (x, y) to plot; categories are at 0, 1, ...

    Rows at categories or at a few distinct values are jittered sideways by up to `scattered`.
    """

    name: str
    kind: str
    grid: Array
    categories: tuple[str, ...]
    curves: Array
    x: Array
    y: Array
    scattered: float = 0.0


def column_fans(model: TableModel, table: Any, y: Array, names: Sequence[str]) -> list[ColumnFan]:
    """Return the fan charts of these columns; y are the targets of the rows of the table."""
    columns = model.encoder.columns
    read = [column.read(table[column.name]) for column in columns]
    typical = [
        column.encode(np.array([_typical(column, values)])) for column, values in zip(columns, read, strict=True)
    ]
    shown = np.random.default_rng(0).permutation(len(y))[:MOST_POINTS]
    place = {column.name: j for j, column in enumerate(columns)}
    made = []
    for j in (place[name] for name in names):
        points, categories = _grid(columns[j], read[j])
        blocks = [np.repeat(block, len(points), axis=0) for block in typical]
        blocks[j] = columns[j].encode(points)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            curves = model.predict_encoded(np.hstack(blocks)).reshape(len(points), -1)
        curves = curves[:, np.argsort(model.quantiles_)]
        x = read[j][shown].astype(float)
        grid = points.astype(float)
        if categories:  # in the order of the categories
            code = {int(value): k for k, value in enumerate(points)}
            x = np.array([code.get(int(v), np.nan) if np.isfinite(v) else np.nan for v in x], dtype=float)
            grid = np.arange(len(points), dtype=float)
        scattered = _scattered(columns[j], grid)
        x += np.random.default_rng(1).uniform(-scattered, scattered, len(x))
        there = np.isfinite(x)
        rows = x[there], y[shown][there]
        made.append(ColumnFan(columns[j].name, columns[j].kind, grid, categories, curves, *rows, scattered))
    return made


def _scattered(column: Column, grid: Array) -> float:
    """Return the largest jitter of the rows along a column; 0 where values are mostly distinct."""
    if isinstance(column, TextColumn | BooleanColumn):
        return SCATTERED
    few = 1 < len(grid) <= FEW_VALUES and not isinstance(column, DateColumn)
    return SCATTERED * float(np.diff(grid).min()) if few else 0.0


def _typical(column: Column, values: NDArray[Any]) -> Any:
    """Return the median, or the most frequent category."""
    if isinstance(column, TextColumn):
        return np.bincount(values).argmax()
    there = values[np.isfinite(values)]
    if len(there) == 0:
        return column.fill
    return float(np.median(there)) if not isinstance(column, BooleanColumn) else float(there.mean() > 0.5)


def _grid(column: Column, values: NDArray[Any]) -> tuple[NDArray[Any], tuple[str, ...]]:
    """Return the values at which to predict, and the names of categories."""
    if isinstance(column, TextColumn):
        names = (*column.levels, "(other)", "(missing)")
        counts = np.bincount(values, minlength=len(names))
        codes = np.argsort(-counts, kind="stable")
        codes = codes[counts[codes] > 0][:MOST_CATEGORIES]
        return codes, tuple(names[code] for code in codes)
    if isinstance(column, BooleanColumn):
        return np.array([0.0, 1.0]), ("false", "true")
    there = values[np.isfinite(values)]
    if len(there) == 0:
        return np.array([column.fill]), ()
    if isinstance(column, DateColumn):
        return date_grid(there, GRID_POINTS, yearly="year" in column.cycles), ()
    different = np.unique(there)
    return (different if len(different) <= FEW_VALUES else np.linspace(*np.quantile(there, ENDS), GRID_POINTS)), ()
