"""Rows in doubt, and rows that are settled.

`screen` sorts all rows by their residuals at a fit, `verify` looks at every row again at another one, and `doubt_more`
takes further rows into doubt. Each is one sweep or less; what they know of single rows stays with the blocks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from quernel.features.blocks import strips
from quernel.losses import Loss
from quernel.problem import Problem, Settled
from quernel.rows import ArrayRows, Block, BlockMemory, LiftedRows, Memory

Array = NDArray[np.floating]
Index = NDArray[np.intp]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Doubtful:
    """The rows of one column that are in doubt: where they are, their features, target, share of weight and anchor.

    Features are by far the largest part. Where all are stored they are picked up only while the column is solved, and
    this list is empty; otherwise they are kept in the pieces in which they were met.
    """

    index: Index
    features: list[Array]
    target: Array
    share: Array
    anchor: Array

    def and_also(self, others: Doubtful) -> Doubtful:
        """These rows and others."""
        return _together([self, others])


def _together(parts: list[Doubtful]) -> Doubtful:
    index, target, share, anchor = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("index", "target", "share", "anchor")
    )
    features = [piece for part in parts for piece in part.features if len(piece)]
    return Doubtful(index, features, target, share, anchor)


def small_problem(problem: Problem, column: Index, settled: Settled, doubtful: Doubtful) -> Problem:
    """One column on its rows in doubt, the settled ones as a linear term."""
    features = doubtful.features or problem.rows.pick(doubtful.index)
    source = ArrayRows(features[0], doubtful.target)
    rows = LiftedRows(source, features=features, share=doubtful.share, threads=problem.rows.threads)
    return Problem(
        rows,
        problem.loss.take(column),
        problem.alpha[column],
        fit_intercept=problem.fit_intercept,
        settled=settled.take(column),
    )


def screen(
    problem: Problem, memory: Memory, coef: Array, intercept: Array, band: Array
) -> tuple[Array, Settled, list[Doubtful]]:
    """F, and all rows sorted into settled and doubtful by their residuals at (coef, intercept): one sweep."""
    answers = problem.rows.fold(_screen_block, memory, (problem.loss, coef, intercept, band, not problem.rows.cached))
    loss, force, balance, level = (sum(parts) for parts in zip(*(sums for sums, _ in answers), strict=True))
    objective = loss + problem.alpha * np.einsum("ij,ij->j", coef, coef)
    return objective, Settled(force, balance, level), _gathered(problem, [rows for _, rows in answers])


def _screen_block(
    block: Block, memory: BlockMemory, message: tuple[Loss, Array, Array, Array, bool]
) -> tuple[tuple[Array, ...], list[Doubtful]]:
    loss, coef, intercept, band, keep = message
    q = len(band)
    residual = np.empty((len(block.target), q), order="F")
    dual, doubt = np.empty_like(residual), np.empty(residual.shape, dtype=bool, order="F")
    value, force, balance, level = np.zeros(q), np.zeros_like(coef), np.zeros(q), np.zeros(q)
    for strip in strips(*block.features.shape):  # everything is read from memory once, and from cache the second time
        features, target, share = block.features[strip], block.target[strip], block.share[strip]
        r = target[:, None] - (coef.T @ features.T).T - intercept
        near = loss.near_kink(r, band)
        v = np.where(near, 0, loss.slope(r))
        weighted = v * share[:, None]
        value += share @ loss.value(r)
        force += (weighted.T @ features).T
        balance += weighted.sum(axis=0)
        level += target @ weighted
        residual[strip], dual[strip], doubt[strip] = r, v, near
    memory["residual"], memory["dual"], memory["doubt"] = residual, dual, doubt
    sums = (value, force, balance, level)
    low, high = loss.domain
    return sums, [_pick(block, doubt[:, k], (low[k] + high[k]) / 2, keep) for k in range(len(low))]


def _pick(block: Block, chosen: Mask, anchor: Array | float, keep: bool) -> Doubtful:
    index = np.flatnonzero(chosen)
    anchors = np.broadcast_to(anchor, chosen.shape)[index]
    features = [block.features[index]] if keep else []
    return Doubtful(index, features, block.target[index], block.share[index], anchors)


def _gathered(problem: Problem, answers: list[list[Doubtful]]) -> list[Doubtful]:
    """The doubtful rows of each column over all blocks, numbered through."""
    return [
        _together(
            [
                replace(block[k], index=block[k].index + span.start)
                for block, span in zip(answers, problem.rows.spans, strict=True)
            ]
        )
        for k in range(problem.n_columns)
    ]


def verify(problem: Problem, memory: Memory, coef: Array, intercept: Array) -> tuple[Array, Array, Array]:
    """The mean loss, what settled rows add to the gap, and how far any of them is on the wrong side: one sweep."""
    answers = problem.rows.fold(_verify_block, memory, (problem.loss, coef, intercept))
    losses, slacks, farthest = zip(*answers, strict=True)
    return sum(losses), sum(slacks), np.max(farthest, axis=0)


def _verify_block(block: Block, memory: BlockMemory, message: tuple[Loss, Array, Array]) -> tuple[Array, Array, Array]:
    loss, coef, intercept = message
    memory["change"] = np.empty_like(memory["residual"])
    total, missed, farthest = np.zeros_like(intercept), np.zeros_like(intercept), np.zeros_like(intercept)
    for strip in strips(*block.features.shape):
        r = block.target[strip, None] - (coef.T @ block.features[strip].T).T - intercept
        value, v = loss.value(r), memory["dual"][strip]
        slack = np.where(memory["doubt"][strip], 0, value + loss.conjugate(v) - v * r)
        total += block.share[strip] @ value
        missed += block.share[strip] @ slack
        farthest = np.maximum(farthest, np.where(slack > 0, np.abs(r), 0).max(axis=0))
        np.subtract(memory["residual"][strip], r, out=memory["change"][strip])
        memory["residual"][strip] = r
    return total, missed, farthest


def doubt_more(
    problem: Problem, memory: Memory, settled: Settled, doubtful: list[Doubtful], band: Array
) -> tuple[Settled, list[Doubtful]]:
    """Doubt the rows within the band of the fit, and those that changed sides, too; none where the band is negative."""
    answers = problem.rows.fold(_doubt_block, memory, (problem.loss, band, not problem.rows.cached))
    memory.sweeps -= problem.rows.cached  # of few rows only, unless all features were computed again for it
    force, balance, level = (sum(parts) for parts in zip(*(sums for sums, _ in answers), strict=True))
    more = _gathered(problem, [rows for _, rows in answers])
    settled = Settled(settled.force - force, settled.balance - balance, settled.level - level)
    return settled, [old.and_also(new) for old, new in zip(doubtful, more, strict=True)]


def _doubt_block(
    block: Block, memory: BlockMemory, message: tuple[Loss, Array, bool]
) -> tuple[tuple[Array, ...], list[Doubtful]]:
    loss, band, keep = message
    residual, dual, known = memory["residual"], memory["dual"], memory["doubt"]
    fresh = ~known & (loss.near_kink(residual, band) | ((dual * residual < 0) & (band > 0)))
    rows = [_pick(block, fresh[:, k], dual[:, k], keep) for k in range(fresh.shape[1])]
    weighted = [part.share * part.anchor for part in rows]
    sums = (
        np.column_stack([w @ block.features[part.index] for w, part in zip(weighted, rows, strict=True)]),
        np.array([w.sum() for w in weighted]),
        np.array([w @ part.target for w, part in zip(weighted, rows, strict=True)]),
    )
    memory["doubt"] = known | fresh
    memory["dual"] = np.where(fresh, 0, dual)
    return sums, rows
