"""What the automatic choices need to know of rows that are met only as a stream.

Each statistic is a pure function of a block and a join of its answers, in a file of its own: `moments`, `sample`,
`quantiles`. Whoever has the rows elsewhere, such as on a cluster, calls the same functions there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from quernel.data.dask import DaskRows
from quernel.data.hash_sample import Sample, join_samples, sample
from quernel.data.progress import begin_pass
from quernel.data.sources import Array, Piece, RowSource
from quernel.data.statistics import Moments, checked_total, join_moments, moments
from quernel.data.streaming_quantiles import counts, join_counts, narrowed, search, values

Answer = TypeVar("Answer")

# So many answers are joined at a time.
FAN_IN = 8


def fold_chunks(
    source: DaskRows, step: Callable[[Piece], Answer], join: Callable[[Sequence[Answer]], Answer], *, X: bool = True
) -> Answer:
    """The step's answers for all chunks, joined in a tree; X=False looks at target and weight only."""
    from dask import compute, delayed

    look, together = delayed(step, pure=False), delayed(join, pure=False)
    answers = [look(piece) for piece in (source.chunks() if X else _sides(source))]
    while len(answers) > FAN_IN:
        answers = [together(answers[k : k + FAN_IN]) for k in range(0, len(answers), FAN_IN)]
    return join(compute(*answers))


def _sides(source: DaskRows) -> list[Any]:
    """Target and weight of every chunk that has rows."""
    from dask import delayed

    side = delayed(_side, pure=False)
    targets = np.ravel(source.y.to_delayed()).tolist()
    weights = [None] * len(targets) if source.weight is None else source.weight.to_delayed().tolist()
    lengths = source.X.chunks[0]
    return [side(y, weight) for y, weight, n in zip(targets, weights, lengths, strict=True) if n > 0]


def _side(y: Any, weight: Any) -> Piece:
    return Piece(None, np.asarray(y, dtype=float), None if weight is None else np.asarray(weight, dtype=float))


# Answers of blocks that are joined at a time, so that they never pile up.
JOINED = 16


@dataclass(frozen=True, eq=False)
class Summary:
    """Moments and sample of all rows."""

    moments: Moments
    sample: Sample


def fold(
    source: RowSource | DaskRows,
    step: Callable[[Piece], Answer],
    join: Callable[[Sequence[Answer]], Answer],
    *,
    X: bool = True,
) -> Answer:
    """The step's answers for all blocks of the source, joined; in one pass."""
    if isinstance(source, DaskRows):
        return fold_chunks(source, step, join, X=X)
    answers: list[Answer] = []
    count_rows = begin_pass(source.n_rows) if X else None
    for piece in source.stream(range(len(source.spans)), X=X):
        answers.append(step(piece))
        if count_rows is not None:
            count_rows(len(piece.y))
        if len(answers) == JOINED:
            answers = [join(answers)]
    return join(answers)


def summarise(source: RowSource | DaskRows, limit: int) -> Summary:
    """Moments, and a sample of up to `limit` different x with all their y: one pass over the rows."""

    def step(piece: Piece) -> Summary:
        assert piece.X is not None
        return Summary(moments(piece.X, piece.weight), sample(piece.X, piece.y, piece.weight, limit))

    found = fold(source, step, join_summaries)
    checked_total(found.moments)
    return found


def join_summaries(parts: Sequence[Summary]) -> Summary:
    """The summary of all rows of the parts."""
    return Summary(join_moments([part.moments for part in parts]), join_samples([part.sample for part in parts]))


def quantiles(source: RowSource | DaskRows, levels: Array, total: float) -> Array:
    """Weighted quantiles of y, exact, as `losses.weighted_quantiles` has them; `total` is the weight of all rows."""
    state = search(np.asarray(levels, dtype=float), total)
    while not state.done:
        found = fold(source, lambda piece, at=state: counts(piece.y, piece.weight, at), join_counts, X=False)  # type: ignore[misc]
        state = narrowed(state, found)
    return values(state)


def absolute_deviation(source: RowSource | DaskRows, centre: float, total: float) -> float:
    """The weighted mean of |y - centre|."""

    def step(piece: Piece) -> float:
        distance = np.abs(piece.y - centre)
        return float(distance.sum() if piece.weight is None else piece.weight @ distance)

    return fold(source, step, math.fsum, X=False) / total


def labels(source: RowSource | DaskRows, most: int) -> Array:
    """The different values of y in rows of positive weight, in order; where there are more, the first most + 1."""

    def step(piece: Piece) -> Array:
        return np.unique(piece.y if piece.weight is None else piece.y[piece.weight > 0])[: most + 1]

    return fold(source, step, lambda parts: np.unique(np.concatenate(parts))[: most + 1], X=False)
