"""What the automatic choices need to know of all rows, wherever those are.

Each statistic is the same for rows in memory, in files and on a cluster: means, scales and ranges of the columns, the
spread of y, and a sample of rows. The sample is picked by a hash of values: whatever is chosen of it (`distinct_rows`,
`deduplicated_sample`) is what would be chosen of all rows. In memory it is all rows; of others it holds a few thousand.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quernel.data import ArrayRows, DaskRows, MemmapRows, ParquetRows, RowSource, SelectedRows, streaming_summary
from quernel.data.hash_sample import sample
from quernel.data.sources import counting
from quernel.data.statistics import column_range
from quernel.tuning.defaults import bandwidth_from, column_scales, scales_from, spread, spread_from

Array = NDArray[np.floating]

# A value is frequent if this part of the rows has it, but for rounding: their order must not matter.
PART, ROUNDING = 0.01, 1e-9
# Rows that are compared at a time.
SOME = 1000
# What counts as being there, relative to the spread of y. Fitted to counts, curves that stay on a value do so to 1e-9
# where a column or two tell little, and to 1e-4 between rows of more columns.
NEAR = 1e-4


def find_point_masses(X: Array, y: Array, share: Array) -> Array:
    """The values that at least one row in a hundred has, and rows of different x, ascending."""
    rows = np.flatnonzero(share > 0)
    if not _repeats(y[rows]):
        return np.empty(0)
    order = rows[np.argsort(y[rows])]
    ascending = y[order]
    starts = np.append(0, 1 + np.flatnonzero(ascending[1:] != ascending[:-1]))
    weight = np.add.reduceat(share[order], starts)
    often = np.flatnonzero(weight >= PART * (1 - ROUNDING) * weight.sum())
    stops = np.append(starts[1:], len(order))
    # A row that is given twice is no more than a row of twice the weight.
    return np.array([ascending[starts[k]] for k in often.tolist() if _differ(X, order[starts[k] : stops[k]])])


def _repeats(y: Array) -> bool:
    """Whether any value is there twice; without the places of the values this is soon known."""
    ascending = np.sort(y)
    return bool(np.any(ascending[1:] == ascending[:-1]))


def _differ(X: Array, rows: NDArray[np.intp]) -> bool:
    """Whether not all of these rows are equal; mostly the first few tell."""
    parts = (rows[start : start + SOME] for start in range(0, len(rows), SOME))
    return any(bool(np.any(X[part] != X[rows[0]])) for part in parts)


def snap_to_point_masses(curves: Array, values: Array, near: float) -> Array:
    """The curves, and where they are as near as this to one of the values (ascending), the value."""
    if len(values) == 0:
        return curves
    above = np.searchsorted(values, curves)
    low, high = values[np.maximum(above - 1, 0)], values[np.minimum(above, len(values) - 1)]
    nearest = np.where(np.abs(curves - low) <= np.abs(high - curves), low, high)
    return np.where(np.abs(nearest - curves) <= near, nearest, curves)


OutOfCoreSource = ParquetRows | MemmapRows | SelectedRows | DaskRows | RowSource

# Different rows in the sample of rows that are far away: as many as any of the choices looks at.
SAMPLE = 4000


class DataSummary:
    """Rows in memory."""

    in_memory = True

    def __init__(self, source: ArrayRows) -> None:
        self.source: Any = source
        self.n_rows, self.n_columns = source.X.shape

    @property
    def sample(self) -> ArrayRows:
        """Rows of which choices are made: all."""
        return self.source

    @cached_property
    def mean(self) -> Array:
        """The weighted mean of every column, (d,)."""
        return self.source.share() @ self.source.X

    @cached_property
    def scales(self) -> Array:
        """The length in which every column is measured, (d,): mostly its standard deviation."""
        return column_scales(self.source.X, self.source.share())

    @cached_property
    def range(self) -> Array:
        """The smallest and the largest entry of every column, (2, d)."""
        return column_range(self.source.X)

    @cached_property
    def target_scale(self) -> float:
        """A robust scale of y."""
        return spread(self.source.y, self.source.share())

    @cached_property
    def n_distinct(self) -> int:
        """How many rows have different (x, y), about."""
        return sample(self.source.X, self.source.y, self.source.weight, SAMPLE).n_pairs

    @cached_property
    def point_masses(self) -> Array:
        """Values that many entries of y have; of rows that are far away, judged on the sample."""
        return find_point_masses(self.sample.X, self.sample.y, self.sample.share())

    @property
    def bandwidth(self) -> Array:
        """The automatic bandwidths, (d,)."""
        return bandwidth_from(self.scales, self.sample.X, self.sample.share())

    def map_strided(self, step: int, function: Callable[[Array], Array]) -> Array:
        """A function of the rows 0, step, 2 step, ... of X, which works row by row."""
        return function(self.source.X[::step])


class StreamedSummary(DataSummary):
    """Rows of files or of a cluster; those of weight 0 are left out.

    One pass over the rows finds everything but the spread of y, which takes a few passes over y.
    """

    in_memory = False

    def __init__(self, source: OutOfCoreSource) -> None:
        self._found = streaming_summary.summarise(source, SAMPLE)
        moments = self._found.moments
        self.source = source if moments.n_rows == source.n_rows else _without_weightless(source)
        self.n_rows, self.n_columns = self.source.n_rows, self.source.n_columns
        self.total, self.largest = moments.total, moments.largest
        self.mean, self.range = moments.mean, moments.range
        self.scales = scales_from(moments)
        self.n_distinct = self._found.sample.n_pairs

    @cached_property
    def sample(self) -> ArrayRows:
        """Some rows that stand for all."""
        return self._found.sample.rows()

    @cached_property
    def target_scale(self) -> float:
        """A robust scale of y."""
        quartiles = streaming_summary.quantiles(self.source, np.array([0.25, 0.5, 0.75]), self.total)
        return spread_from(
            quartiles, lambda median: streaming_summary.absolute_deviation(self.source, median, self.total)
        )

    def map_strided(self, step: int, function: Callable[[Array], Array]) -> Array:
        """A function of the rows 0, step, 2 step, ... of X, computed where they are."""
        if isinstance(self.source, DaskRows):
            from dask import compute, delayed

            parts = self.source.X[::step].to_delayed().ravel()
            return np.concatenate(compute(*(delayed(function, pure=False)(part) for part in parts)))
        spans = self.source.spans
        pieces = self.source.stream(range(len(spans)))
        return np.concatenate(
            [function(piece.X[-span.start % step :: step]) for span, piece in zip(spans, pieces, strict=True)]
        )


def summarize_rows(source: ArrayRows | OutOfCoreSource) -> DataSummary:
    """What is to be known of these rows."""
    return DataSummary(source) if isinstance(source, ArrayRows) else StreamedSummary(source)


def _without_weightless(source: Any) -> Any:
    """The same rows without those of weight 0."""
    if isinstance(source, DaskRows):
        counts = source.weight > 0
        some = DaskRows(source.X[counts], source.y[counts], source.weight[counts])
        some.names = source.names
        return some
    return SelectedRows(source, counting(source))
