"""Statistics of out-of-core rows that the automatic choices need: moments, a sample, quantiles, distinct labels.

Each is a map-reduce: a pure function of a block and an associative reduction of its results, in a module of its own
(`statistics`, `hash_sample`, `streaming_quantiles`). `fold` runs them over a stream of blocks, or over the chunks of
Dask collections on their workers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np

from quernel.data.dask import DaskRows
from quernel.data.hash_sample import Sample, join_samples, sample
from quernel.data.progress import begin_pass
from quernel.data.sources import Array, Piece, RowSource
from quernel.data.statistics import Moments, checked_total, join_moments, moments
from quernel.data.streaming_quantiles import Search, counts, join_counts, narrowed, search, values

Answer = TypeVar("Answer")

# Results of Dask chunks are reduced so many at a time: the width of the reduction tree.
FAN_IN = 8


def _fold_chunks(
    source: DaskRows, step: Callable[[Piece], Answer], join: Callable[[Sequence[Answer]], Answer], *, X: bool = True
) -> Answer:
    """Map-reduce over the chunks of Dask collections, as one task graph; X=False computes target and weight only."""
    from dask import compute, delayed

    map_task, reduce_task = delayed(step, pure=False), delayed(join, pure=False)
    results = [map_task(piece) for piece in (source.chunks() if X else _target_chunks(source))]
    while len(results) > FAN_IN:
        results = [reduce_task(results[k : k + FAN_IN]) for k in range(0, len(results), FAN_IN)]
    return join(compute(*results))


def _target_chunks(source: DaskRows) -> list[Any]:
    """A delayed `Piece` without X, of every chunk that has rows."""
    from dask import delayed

    task = delayed(_target_piece, pure=False)
    targets = np.ravel(source.y.to_delayed()).tolist()
    weights = [None] * len(targets) if source.weight is None else source.weight.to_delayed().tolist()
    lengths = source.X.chunks[0]
    return [task(y, weight) for y, weight, n in zip(targets, weights, lengths, strict=True) if n > 0]


def _target_piece(y: Any, weight: Any) -> Piece:
    return Piece(None, np.asarray(y, dtype=float), None if weight is None else np.asarray(weight, dtype=float))


# Results of streamed blocks are reduced so many at a time: a bound on memory.
JOINED = 16


@dataclass(frozen=True, eq=False)
class Summary:
    """Moments and hash sample of all rows."""

    moments: Moments
    sample: Sample


def fold(
    source: RowSource | DaskRows,
    step: Callable[[Piece], Answer],
    join: Callable[[Sequence[Answer]], Answer],
    *,
    X: bool = True,
) -> Answer:
    """Map-reduce over raw rows in one pass: join([step(piece) for all blocks of the source]).

    `join` is associative, for results are reduced as they come; X=False reads target and weight only.
    """
    if isinstance(source, DaskRows):
        return _fold_chunks(source, step, join, X=X)
    results: list[Answer] = []
    count_rows = begin_pass(source.n_rows) if X else None
    for piece in source.stream(range(len(source.spans)), X=X):
        results.append(step(piece))
        if count_rows is not None:
            count_rows(len(piece.y))
        if len(results) == JOINED:
            results = [join(results)]
    return join(results)


def summarise(source: RowSource | DaskRows, limit: int) -> Summary:
    """Moments, and a hash sample of up to `limit` distinct x with their y: one pass over the rows."""

    def step(piece: Piece) -> Summary:
        assert piece.X is not None
        return Summary(moments(piece.X, piece.weight), sample(piece.X, piece.y, piece.weight, limit))

    found = fold(source, step, join_summaries)
    checked_total(found.moments)
    return found


def join_summaries(parts: Sequence[Summary]) -> Summary:
    """Merge the summaries of disjoint sets of rows."""
    return Summary(join_moments([part.moments for part in parts]), join_samples([part.sample for part in parts]))


def quantiles(source: RowSource | DaskRows, levels: Array, total: float) -> Array:
    """Exact weighted quantiles (q,) of y, as by `losses.weighted_quantiles`, in a few passes over y and weights.

    `levels` (q,) are quantile levels in (0, 1), and `total` is the weight of all rows.
    """
    state = search(np.asarray(levels, dtype=float), total)
    while not state.done:
        step = partial(_count_digits, state=state)
        state = narrowed(state, fold(source, step, join_counts, X=False))
    return values(state)


def _count_digits(piece: Piece, state: Search) -> Array:
    return counts(piece.y, piece.weight, state)


def absolute_deviation(source: RowSource | DaskRows, centre: float, total: float) -> float:
    """Weighted mean of |y - centre|; `total` is the weight of all rows."""

    def step(piece: Piece) -> float:
        distance = np.abs(piece.y - centre)
        return float(distance.sum() if piece.weight is None else piece.weight @ distance)

    return fold(source, step, math.fsum, X=False) / total


def labels(source: RowSource | DaskRows, most: int) -> Array:
    """Sorted distinct values of y over rows of positive weight; only the first most + 1 where there are more."""

    def step(piece: Piece) -> Array:
        return np.unique(piece.y if piece.weight is None else piece.y[piece.weight > 0])[: most + 1]

    return fold(source, step, lambda parts: np.unique(np.concatenate(parts))[: most + 1], X=False)
