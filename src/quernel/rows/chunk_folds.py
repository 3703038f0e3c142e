"""One pass over the raw rows of Dask collections: chunks are looked at where they are, and only answers move."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from quernel.rows.dask import DaskRows
from quernel.rows.sources import Piece

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
