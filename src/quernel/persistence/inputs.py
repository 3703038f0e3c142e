"""The columns of a table as inputs of a graph, encoded as `quernel.tables` does."""

from __future__ import annotations

import numpy as np

from quernel.persistence.graph import Graph, Tensor, cos, equal, is_missing, join, sin, where
from quernel.tables import DateColumn, NumberColumn, TableEncoder, TextColumn, TimeColumn
from quernel.tables.columns import CYCLES, DAY, Column
from quernel.tables.words import gap_numbers


def table_inputs(graph: Graph, encoder: TableEncoder) -> Tensor:
    """The matrix that the encoder makes, from one input for every column."""
    return join([part for column in encoder.columns for part in _encoded(graph, column, encoder)])


def _encoded(graph: Graph, column: Column, encoder: TableEncoder) -> list[Tensor]:
    if isinstance(column, TextColumn):
        return [_levels(graph, column, encoder.gaps(column))]
    x = graph.input(column.name, float, (None, 1))
    if type(column) is NumberColumn:
        for number in gap_numbers(encoder.missing):
            x = where(equal(x, number), np.nan, x)
    missing = is_missing(x)
    filled = where(missing, column.fill, x)
    flag = [missing.to(float)] if column.flagged else []
    if isinstance(column, DateColumn):
        return [*_dates(column, filled), *flag]
    if isinstance(column, TimeColumn):
        angle = 2 * np.pi / DAY * filled
        return [filled, sin(angle), cos(angle), *flag]
    return [filled, *flag]


def _levels(graph: Graph, column: TextColumn, gaps: tuple[str, ...]) -> Tensor:
    """The row of the column's codes that belongs to each text; some words stand for gaps."""
    text = graph.input(column.name, str, (None, 1))
    n = len(column.levels)
    rows = dict.fromkeys(gaps, n + 1) | column.places
    row = graph.apply(
        "LabelEncoder",
        text,
        domain="ai.onnx.ml",
        keys_strings=list(rows),
        values_int64s=list(rows.values()),
        default_int64=n,
    )
    return graph.constant(column.codes).take(row.graph.apply("Squeeze", row, np.array([1])), axis=0)


def _dates(column: DateColumn, time: Tensor) -> list[Tensor]:
    """Trend, then sine and cosine of every cycle."""
    passed = time - column.start
    angles = [2 * np.pi / CYCLES[cycle] * passed for cycle in column.cycles]
    return [passed / CYCLES["year"], *(wave(angle) for angle in angles for wave in (sin, cos))]
