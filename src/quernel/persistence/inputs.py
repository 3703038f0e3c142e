"""The columns of a table as inputs of a graph, encoded as `quernel.tables` does."""

from __future__ import annotations

import numpy as np

from quernel.persistence.graph import Graph, Tensor, cos, is_missing, join, sin, where
from quernel.tables import DateColumn, TableEncoder, TextColumn, TimeColumn
from quernel.tables.columns import CYCLES, DAY, Column


def table_inputs(graph: Graph, encoder: TableEncoder) -> Tensor:
    """The matrix that the encoder makes, from one input for every column."""
    return join([part for column in encoder.columns for part in _encoded(graph, column, encoder.missing)])


def _encoded(graph: Graph, column: Column, marks: tuple[str, ...]) -> list[Tensor]:
    if isinstance(column, TextColumn):
        return [_levels(graph, column, marks)]
    x = graph.input(column.name, float, (None, 1))
    missing = is_missing(x)
    filled = where(missing, column.fill, x)
    flag = [missing.to(float)] if column.flagged else []
    if isinstance(column, DateColumn):
        return [*_dates(column, filled), *flag]
    if isinstance(column, TimeColumn):
        angle = 2 * np.pi / DAY * filled
        return [filled, sin(angle), cos(angle), *flag]
    return [filled, *flag]


def _levels(graph: Graph, column: TextColumn, marks: tuple[str, ...]) -> Tensor:
    """The row of the column's codes that belongs to each text; empty text and `marks` stand for gaps."""
    text = graph.input(column.name, str, (None, 1))
    n, gaps = len(column.levels), ["", *marks]
    row = graph.apply(
        "LabelEncoder",
        text,
        domain="ai.onnx.ml",
        keys_strings=[*column.levels, *gaps],
        values_int64s=[*range(n), *[n + 1] * len(gaps)],
        default_int64=n,
    )
    return graph.constant(column.codes).take(row.graph.apply("Squeeze", row, np.array([1])), axis=0)


def _dates(column: DateColumn, time: Tensor) -> list[Tensor]:
    """Trend, then sine and cosine of every cycle."""
    passed = time - column.start
    angles = [2 * np.pi / CYCLES[cycle] * passed for cycle in column.cycles]
    return [passed / CYCLES["year"], *(wave(angle) for angle in angles for wave in (sin, cos))]
