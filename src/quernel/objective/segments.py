"""Fits and losses as the compiled passes of `numba_kernels` take them: linear segments, offsets and signs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quernel.data import Block
from quernel.losses import Loss

Array = NDArray[np.floating]
Mask = NDArray[np.bool_]


class SegmentedFit(NamedTuple):
    """A fit and the segments of its loss.

    coef (q, M), intercept (q,); knots (q, K), and between them slopes v (q, K + 1) with offsets conjugate(v), so that
    the loss is v r - conjugate(v) there; nan where it is curved.
    """

    coef: Array
    intercept: Array
    knots: Array
    slopes: Array
    offsets: Array

    @classmethod
    def from_fit(cls, coef: Array, intercept: Array, loss: Loss) -> SegmentedFit:
        """From coefficients of shape (M, q)."""
        knots, slopes = loss.segments
        return cls(np.ascontiguousarray(coef.T), intercept, knots, slopes, loss.conjugate(slopes.T).T.copy())


def off_segment_rows(block: Block, loss: Loss, residual: Array, dual: Array, off_segment: Mask) -> tuple[Array, Array]:
    """Mean loss and mean Fenchel gap loss + conjugate(v) - v r of the marked rows (q, m), off their dual's segment.

    Both of shape (q,). On its segment a row has no Fenchel gap, and its loss is summed by the compiled passes.
    """
    total, fenchel_gap = np.empty((2, len(residual)))
    for k in range(len(residual)):
        rows, one = np.flatnonzero(off_segment[k]), loss.take(np.array([k]))
        r, v = residual[k, rows, None], dual[k, rows, None]
        value = one.value(r)
        total[k] = block.share[rows] @ value[:, 0]
        fenchel_gap[k] = block.share[rows] @ (value + one.conjugate(v) - v * r)[:, 0]
    return total, fenchel_gap


def signed_targets(block: Block, loss: Loss) -> tuple[Array, Array]:
    """Offset and sign of `Loss.margin_transform` for every row and column, each of shape (q, m)."""
    shape = (len(block.share), len(loss.domain[0]))
    offset, sign = loss.margin_transform(block.targets)
    return np.broadcast_to(offset, shape).T, np.broadcast_to(sign, shape).T


def shares_target(loss: Loss, block: Block, fit: SegmentedFit) -> bool:
    """Whether all columns share one target and have two-segment losses, as quantile levels do."""
    return not loss.margin and block.target.ndim == 1 and fit.knots.shape[1] == 1 and not np.isnan(fit.slopes).any()
