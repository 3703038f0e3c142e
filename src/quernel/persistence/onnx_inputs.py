"""Columns of a table as inputs of an ONNX graph: their values, and the encoder of `quernel.tables` as a graph."""

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
    """Compute the inputs of the ONNX graph of a model of tables, for the rows of a table.

    Columns are converted as by `predict`, whatever their type: dates and times in any unit and time zone, durations,
    categories, numbers as text.

    Parameters
    ----------
    model : TableModel
        As returned by `quernel.load` for a file that `quernel fit` wrote.
    table : pandas or polars data frame, Arrow table, or dict of columns

    Returns
    -------
    dict of column name to array of shape (rows, 1)
        Text as strings, empty where missing; everything else as float64, NaN where missing. It is what `run` of an
        onnxruntime session takes.
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
    """Return the values of a column, shape (n,), in the type of the graph's input."""
    if not isinstance(column, TextColumn):
        return column.read(values)
    categories, index = as_words(values)
    return np.array([*categories, ""], dtype=object)[index]  # missing values have index -1, and so the empty string


def table_inputs(graph: Graph, encoder: TableEncoder) -> Tensor:
    """Return the encoded matrix (n, width), as `TableEncoder` computes it; adds one input per column."""
    return hstack([part for column in encoder.columns for part in _encode_column(graph, column, encoder)])


def _encode_column(graph: Graph, column: Column, encoder: TableEncoder) -> list[Tensor]:
    """Return the encoded columns of one column of the table.

    Missing values are imputed by `column.fill`; a column that is `flagged` adds an indicator of them.
    """
    if isinstance(column, TextColumn):
        return [_encode_text(graph, column, encoder.gaps(column))]
    x = graph.input(column.name, float, (None, 1))
    if type(column) is NumberColumn:
        for number in gap_numbers(encoder.missing):  # missing-value markers that are numbers, such as -999
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


def _encode_text(graph: Graph, column: TextColumn, markers: tuple[str, ...]) -> Tensor:
    """Return the one-hot encoding of a text column, (n, width), as a lookup in `column.codes`.

    Its first rows are those of the known categories; then come one for other text and one for missing values, to which
    the missing-value markers belong.
    """
    text = graph.input(column.name, str, (None, 1))
    n = len(column.levels)
    rows = dict.fromkeys(markers, n + 1) | column.places
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
    """Return the trend in years, then sine and cosine of every cycle, each (n, 1), from seconds since 1970."""
    elapsed = time - column.start
    angles = [2 * np.pi / CYCLES[cycle] * elapsed for cycle in column.cycles]
    return [elapsed / CYCLES["year"], *(function(angle) for angle in angles for function in (sin, cos))]
