"""What the automatic choices need to know of all rows, wherever those are.

Each statistic is the same for rows in memory, in files and on a cluster: means, scales and ranges of the columns, the
spread of y, and a sample of rows. The sample is picked by a hash of values: whatever is chosen of it (`distinct_rows`,
`distinct_sample`) is what would be chosen of all rows. In memory it is all rows; of others it holds a few thousand.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quernel.estimators.atoms import frequent_values
from quernel.estimators.defaults import bandwidth_from, column_scales, scales_from, spread, spread_from
from quernel.estimators.sources import counting
from quernel.rows import ArrayRows, DaskRows, MemmapRows, ParquetRows, RowSource, SelectedRows, summary
from quernel.rows.moments import column_range
from quernel.rows.sample import sample

Array = NDArray[np.floating]
FarSource = ParquetRows | MemmapRows | SelectedRows | DaskRows | RowSource

# Different rows in the sample of rows that are far away: as many as any of the choices looks at.
SAMPLE = 4000


class Overview:
    """Rows in memory."""

    near = True

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
    def spread(self) -> float:
        """A robust scale of y."""
        return spread(self.source.y, self.source.share())

    @cached_property
    def n_distinct(self) -> int:
        """How many rows have different (x, y), about."""
        return sample(self.source.X, self.source.y, self.source.weight, SAMPLE).n_pairs

    @cached_property
    def frequent(self) -> Array:
        """Values that many entries of y have; of rows that are far away, judged on the sample."""
        return frequent_values(self.sample.X, self.sample.y, self.sample.share())

    @property
    def bandwidth(self) -> Array:
        """The automatic bandwidths, (d,)."""
        return bandwidth_from(self.scales, self.sample.X, self.sample.share())

    def every(self, step: int, function: Callable[[Array], Array]) -> Array:
        """A function of the rows 0, step, 2 step, ... of X, which works row by row."""
        return function(self.source.X[::step])


class FarOverview(Overview):
    """Rows of files or of a cluster; those of weight 0 are left out.

    One pass over the rows finds everything but the spread of y, which takes a few passes over y.
    """

    near = False

    def __init__(self, source: FarSource) -> None:
        self._found = summary.summarise(source, SAMPLE)
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
    def spread(self) -> float:
        """A robust scale of y."""
        quartiles = summary.quantiles(self.source, np.array([0.25, 0.5, 0.75]), self.total)
        return spread_from(quartiles, lambda median: summary.absolute_deviation(self.source, median, self.total))

    def every(self, step: int, function: Callable[[Array], Array]) -> Array:
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


def overview(source: ArrayRows | FarSource) -> Overview:
    """What is to be known of these rows."""
    return Overview(source) if isinstance(source, ArrayRows) else FarOverview(source)


def _without_weightless(source: Any) -> Any:
    """The same rows without those of weight 0."""
    if isinstance(source, DaskRows):
        counts = source.weight > 0
        some = DaskRows(source.X[counts], source.y[counts], source.weight[counts])
        some.names = source.names
        return some
    return SelectedRows(source, counting(source))
