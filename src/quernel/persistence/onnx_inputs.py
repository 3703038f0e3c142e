"""The columns of a table as inputs of a graph: what it is fed, and how it encodes that, as `quernel.tables` does."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from quernel.persistence.onnx_graph import Graph, Tensor, cos, equal, hstack, is_missing, sin, where
from quernel.tables import DateColumn, NumberColumn, TableEncoder, TableModel, TextColumn, TimeColumn, as_arrow
from quernel.tables.arrow_casts import as_words
from quernel.tables.columns import CYCLES, DAY, Column
from quernel.tables.missing_values import gap_numbers


def onnx_inputs(model: Any, table: Any) -> dict[str, NDArray[Any]]:
    """What the graph that `to_onnx` writes of a model of tables is fed for the rows of a table.

    Columns are read as `predict` reads them, whatever they are kept as: dates and times in any unit and zone,
    durations, categories, numbers as text.

    Parameters
    ----------
    model : TableModel
        As `quernel.load` gives it of a file that `quernel fit` wrote.
    table : data frame of pandas or polars, Arrow table, or dict of columns

    Returns
    -------
    dict of str to array of shape (rows, 1)
        By the name of the column: text as strings, empty where missing, all else as doubles, NaN where missing.
    """
    if not isinstance(model, TableModel):
        raise TypeError(
            f"quernel.onnx_inputs takes a model of tables, as quernel fit makes them; got {type(model).__name__}. The "
            'graph of a model of arrays is fed {"X": X}, of type float64.'
        )
    table = model.encoder.without_marks(as_arrow(table, model.encoder.inputs))
    model.encoder.check(table.schema)
    return {column.name: _input_values(column, table[column.name])[:, None] for column in model.encoder.columns}


def _input_values(column: Column, values: Any) -> NDArray[Any]:
    """The entries of a column, as the graph's input takes them."""
    if not isinstance(column, TextColumn):
        return column.read(values)
    words, index = as_words(values)
    return np.array([*words, ""], dtype=object)[index]  # a missing entry has index -1


def table_inputs(graph: Graph, encoder: TableEncoder) -> Tensor:
    """The matrix that the encoder makes, from one input for every column."""
    return hstack([part for column in encoder.columns for part in _encode_column(graph, column, encoder)])


def _encode_column(graph: Graph, column: Column, encoder: TableEncoder) -> list[Tensor]:
    if isinstance(column, TextColumn):
        return [_encode_text(graph, column, encoder.gaps(column))]
    x = graph.input(column.name, float, (None, 1))
    if type(column) is NumberColumn:
        for number in gap_numbers(encoder.missing):
            x = where(equal(x, number), np.nan, x)
    missing = is_missing(x)
    filled = where(missing, column.fill, x)
    flag = [missing.astype(float)] if column.flagged else []
    if isinstance(column, DateColumn):
        return [*_encode_dates(column, filled), *flag]
    if isinstance(column, TimeColumn):
        angle = 2 * np.pi / DAY * filled
        return [filled, sin(angle), cos(angle), *flag]
    return [filled, *flag]


def _encode_text(graph: Graph, column: TextColumn, gaps: tuple[str, ...]) -> Tensor:
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


def _encode_dates(column: DateColumn, time: Tensor) -> list[Tensor]:
    """Trend, then sine and cosine of every cycle."""
    passed = time - column.start
    angles = [2 * np.pi / CYCLES[cycle] * passed for cycle in column.cycles]
    return [passed / CYCLES["year"], *(wave(angle) for angle in angles for wave in (sin, cos))]
