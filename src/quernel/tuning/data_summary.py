"""Statistics of the training data on which hyperparameter selection is based, in memory or out of core.

`DataSummary` holds means, scales and ranges of the columns, a robust scale of y, the point masses of y, and a sample of
rows. All of them are the same for rows in memory, in files and on a cluster. The sample is drawn by a hash of the
values, so that further samples of it (`distinct_rows`, `deduplicated_sample`) are those that would be drawn from all
rows. In memory it is all rows; out of core it holds a few thousand.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from quernel.data import (
    ArrayRows,
    DaskDesign,
    DaskRows,
    InMemoryDesign,
    MappedRows,
    MemmapRows,
    RowSource,
    SelectedRows,
    StreamedDesign,
    statistics,
)
from quernel.data.design_matrix import FeatureMap
from quernel.data.sources import positive_weight_mask
from quernel.data.statistics import Moments, column_range, compute_moments, hash_sample
from quernel.features.landmarks import sample_of_rows
from quernel.losses import weighted_quantiles

Array = NDArray[np.floating]

# A point mass is a value of y that has at least this fraction of the weight. The relative slack absorbs rounding error
# of the sums, which depends on the order of rows, so that the result does not.
PART, ROUNDING = 0.01, 1e-9
# Rows of which an approximate mean is computed.
MEAN_ROWS = 500
# Targets are centred if their median is farther from zero than so many robust scales: then every target has several
# digits in common with the others.
FAR = 100.0
# Rows that `_differ` compares at a time.
SOME = 1000
# Distance, relative to the robust scale of y, within which a predicted quantile is snapped to a point mass. Quantiles
# fitted to counts that stay on a value do so to 1e-9 with one or two columns, and to 1e-4 between rows with more.
NEAR = 1e-4


OutOfCoreSource = MappedRows | MemmapRows | SelectedRows | DaskRows | RowSource

# Distinct rows in the sample of out-of-core data: as many as any of the choices uses.
SAMPLE = 16_000


def robust_scale(y: Array, share: Array) -> float:
    """Robust scale of y: interquartile range / 1.349, the standard deviation of normal data.

    The mean absolute deviation from the median if the interquartile range is 0, and 1 if y is constant.
    """
    quartiles = weighted_quantiles(y, share, np.array([0.25, 0.5, 0.75]))
    return robust_scale_from(quartiles, lambda median: float(share @ np.abs(y - median)))


def robust_scale_from(quartiles: Array, deviation_from: Callable[[float], float]) -> float:
    """`robust_scale` from the quartiles (3,) of y; `deviation_from(median)` is called only if they coincide."""
    first, median, third = quartiles
    if third > first:
        return float(third - first) / 1.349
    deviation = deviation_from(float(median))
    return deviation if deviation > 0 else 1.0


def column_scales(X: Array, share: Array) -> Array:
    """Scale of each column, shape (d,): its standard deviation, or for a binary column the distance of its two values.

    A rarely set flag has a small standard deviation; divided by it, the flag would dominate the distances between rows,
    and so would the columns of a one-hot encoded category. With this scale these columns count together about as much
    as one numeric column. A constant column gets a scale so large that it has no influence.
    """
    return scales_from(compute_moments(X, share))


def scales_from(found: Moments) -> Array:
    """`column_scales` from the weighted moments of the columns."""
    mean, variance = found.mean, found.variance
    constant = variance <= (1e-12 * np.maximum(np.abs(mean), 1e-300)) ** 2
    # Binary columns attain the Bhatia-Davis bound  variance <= (mean - low) (high - mean).  The distances are computed
    # relative to a row (`origin`), which is one of the two values then: far from 0, mean - low would lose its digits.
    below, above = found.origin - found.low + found.offset, found.high - found.origin - found.offset
    two_values = variance >= (1 - 1e-9) * below * above
    scales = np.where(two_values, found.high - found.low, np.sqrt(variance))
    return np.where(constant, 1e9 * np.maximum(np.abs(mean), 1), scales)


def find_point_masses(X: Array, y: Array, share: Array) -> Array:
    """Values of y with at least 1 % of the weight, ascending.

    A value shared only by copies of one row does not count: repeating a row must be equivalent to weighting it.
    """
    rows = np.flatnonzero(share > 0)
    if not _repeats(y[rows]):
        return np.empty(0)
    order = rows[np.argsort(y[rows])]
    ascending = y[order]
    starts = np.append(0, 1 + np.flatnonzero(ascending[1:] != ascending[:-1]))
    weight = np.add.reduceat(share[order], starts)
    often = np.flatnonzero(weight >= PART * (1 - ROUNDING) * weight.sum())
    stops = np.append(starts[1:], len(order))
    return np.array([ascending[starts[k]] for k in often.tolist() if _differ(X, order[starts[k] : stops[k]])])


def _repeats(y: Array) -> bool:
    """Whether y has ties; a plain sort is cheaper than the argsort that follows."""
    ascending = np.sort(y)
    return bool(np.any(ascending[1:] == ascending[:-1]))


def _differ(X: Array, rows: NDArray[np.intp]) -> bool:
    """Whether these rows of X are not all equal; stops at the first chunk that has a difference."""
    parts = (rows[start : start + SOME] for start in range(0, len(rows), SOME))
    return any(bool(np.any(X[part] != X[rows[0]])) for part in parts)


def snap_to_point_masses(curves: Array, values: Array, near: float) -> Array:
    """Replace entries of `curves` within `near` of one of the `values` (ascending) by that value."""
    if len(values) == 0:
        return curves
    above = np.searchsorted(values, curves)
    low, high = values[np.maximum(above - 1, 0)], values[np.minimum(above, len(values) - 1)]
    nearest = np.where(np.abs(curves - low) <= np.abs(high - curves), low, high)
    return np.where(np.abs(nearest - curves) <= near, nearest, curves)


class DataSummary:
    """Lazily computed statistics of data in memory.

    Attributes
    ----------
    source : ArrayRows, or an out-of-core source in `StreamedSummary`; without rows of weight 0
    n_rows, n_columns : int
    in_memory : bool
    centre : float
        What was subtracted from y (see `centred`).
    """

    in_memory = True
    centre = 0.0

    def __init__(self, source: ArrayRows) -> None:
        self.source: Any = source
        self.n_rows, self.n_columns = source.X.shape

    def centred(self) -> DataSummary:
        """The summary of the same rows with y - centre for y; itself where y is not far from zero.

        The difference is exact where y is within a factor of 2 of the centre, about its median: all that is computed
        from it keeps the digits in which the targets differ.
        """
        centre, scale = self._locate_target()
        if abs(centre) <= FAR * scale:
            return self
        shifted = copy(self)
        shifted.centre = centre
        shifted._shift_target(centre)
        return shifted

    def _locate_target(self) -> tuple[float, float]:
        """The weighted median and the robust scale of y; out of core, those of the sample."""
        y, share = self.sample.y, self.sample.share()
        scale = self.target_scale if self.in_memory else robust_scale(y, share)
        return float(weighted_quantiles(y, share, np.array([0.5]))[0]), scale

    def _shift_target(self, centre: float) -> None:
        """Subtract the centre from y, and from what is known of it."""
        self.source = replace(self.source, y=self.source.y - centre)
        self.__dict__.pop("point_masses", None)

    @property
    def sample(self) -> ArrayRows:
        """Rows that hyperparameter selection samples from: in memory, all of them."""
        return self.source

    @cached_property
    def mean(self) -> Array:
        """Weighted column means, shape (d,)."""
        return self.source.share() @ self.source.X

    def approximate_mean(self) -> Array:
        """Weighted column means, shape (d,), of some MEAN_ROWS rows at equal distances: no pass over a large X."""
        some = slice(None, None, max(1, self.n_rows // MEAN_ROWS))
        weight = self.source.weight
        return np.average(self.source.X[some], axis=0, weights=None if weight is None else weight[some])

    @cached_property
    def scales(self) -> Array:
        """Scale of every column, shape (d,): its standard deviation, with exceptions (see `column_scales`)."""
        return column_scales(self.source.X, self.source.share())

    @cached_property
    def range(self) -> Array:
        """Minimum and maximum of every column, shape (2, d)."""
        return column_range(self.source.X)

    @cached_property
    def target_scale(self) -> float:
        """Robust scale of y: interquartile range / 1.349, or a substitute if that is 0 (see `robust_scale`)."""
        return robust_scale(self.source.y, self.source.share())

    @cached_property
    def target_moments(self) -> Moments:
        """Moments of y as it was given, one column per output where each has its own target."""
        y = self.source.y + self.centre
        return compute_moments(y if y.ndim == 2 else y[:, None], self.source.weight)

    @cached_property
    def n_distinct(self) -> int:
        """Approximate number of distinct rows (x, y)."""
        return hash_sample(self.source.X, self.source.y, self.source.weight, SAMPLE).n_pairs

    @cached_property
    def point_masses(self) -> Array:
        """Point masses of y (see `find_point_masses`), ascending; out of core, estimated on the sample."""
        return find_point_masses(self.sample.X, self.sample.y, self.sample.share())

    def build_design(self, feature_map: FeatureMap, max_memory: int | None, dtype: DTypeLike = float) -> Any:
        """Design matrix Phi = phi(X) of the rows, where they are; its features are stored as `dtype`."""
        return InMemoryDesign(self.source, feature_map, max_memory=max_memory, dtype=dtype)

    def map_strided(self, step: int, function: Callable[[Array], Array]) -> Array:
        """Apply a row-wise function to the rows 0, step, 2 step, ... of X."""
        return function(self.source.X[::step])


class StreamedSummary(DataSummary):
    """Statistics of out-of-core data, in files or on a Dask cluster; rows of weight 0 are left out.

    One pass over the rows computes everything but the scale of y, which takes a few passes over y for its quartiles.
    """

    in_memory = False

    def __init__(self, source: OutOfCoreSource) -> None:
        self._found = statistics.summarise(source, SAMPLE)
        found = self._found.moments
        self.source = source if found.n_rows == source.n_rows else _drop_zero_weight(source)
        self.n_rows, self.n_columns = self.source.n_rows, self.source.n_columns
        self.total, self.largest = found.total, found.largest
        self.mean, self.range = found.mean, found.range
        self.scales, self.target_moments = scales_from(found), self._found.target
        self.n_distinct = self._found.sample.n_pairs

    def approximate_mean(self) -> Array:
        """Weighted column means, shape (d,), which the summary has anyway."""
        return self.mean

    def _shift_target(self, centre: float) -> None:
        rows = self.sample
        self.__dict__ |= {"sample": replace(rows, y=rows.y - centre)}
        self.source = shift_target(self.source, centre)
        self.__dict__.pop("point_masses", None)

    @cached_property
    def sample(self) -> ArrayRows:
        """Hash sample of the rows, in memory."""
        return self._found.sample.rows()

    @cached_property
    def target_scale(self) -> float:
        """Robust scale of y: interquartile range / 1.349, or a substitute if that is 0 (see `robust_scale`)."""
        quartiles = statistics.streamed_quantiles(self.source, np.array([0.25, 0.5, 0.75]), self.total)
        return robust_scale_from(
            quartiles, lambda median: statistics.mean_absolute_deviation(self.source, median, self.total)
        )

    def build_design(self, feature_map: FeatureMap, max_memory: int | None, dtype: DTypeLike = float) -> Any:
        """Design matrix of the rows: streamed from files, or distributed over Dask workers."""
        if isinstance(self.source, DaskRows):
            return DaskDesign(self.source, feature_map, max_memory=max_memory, dtype=dtype)
        return StreamedDesign(self.source, feature_map, total=self.total, largest=self.largest, max_memory=max_memory)

    def map_strided(self, step: int, function: Callable[[Array], Array]) -> Array:
        """Apply a row-wise function to the rows 0, step, 2 step, ... of X, block by block or by Dask workers."""
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
    """Summary of a source of rows, in memory or out of core."""
    return DataSummary(source) if isinstance(source, ArrayRows) else StreamedSummary(source)


def shift_target(source: Any, centre: float) -> Any:
    """The same out-of-core source with y - centre for y."""
    if isinstance(source, DaskRows):
        return source.derive(source.X, source.y - centre, source.weight)
    return MappedRows(source, lambda y, weight: (y - centre, weight), weighted=source.weighted)


def _drop_zero_weight(source: Any) -> Any:
    """The same source without rows of weight 0."""
    if isinstance(source, DaskRows):
        assert source.weight is not None  # unweighted rows all count
        return source.select(source.weight > 0)
    return SelectedRows(source, positive_weight_mask(source))


def deduplicated_sample(source: ArrayRows, limit: int) -> ArrayRows:
    """Up to `limit` distinct rows (x, y), sorted by their values, each with the total weight of its copies.

    Rows are picked by a hash of x, hence independently of their order and repetition.
    """
    picked, _ = sample_of_rows(source.X, limit)
    X, y = np.asarray(source.X[picked], dtype=float), source.y[picked]
    both = np.column_stack([X, y])
    order = np.lexsort(both.T[::-1])
    new = np.r_[True, np.any(both[order][1:] != both[order][:-1], axis=1)]
    weight = np.add.reduceat(source.share()[picked][order], np.flatnonzero(new))
    some = np.sort(np.random.default_rng(0).permutation(len(weight))[:limit])  # more than limit if few x have many y
    chosen = order[new][some]
    return ArrayRows(X[chosen], y[chosen], weight[some])


def take_rows(rows: ArrayRows, index: NDArray[np.intp]) -> ArrayRows:
    """Subset of the rows with their weights."""
    assert rows.weight is not None
    return ArrayRows(rows.X[index], rows.y[index], rows.weight[index])
