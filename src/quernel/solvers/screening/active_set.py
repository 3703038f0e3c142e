"""Rows in doubt, and rows that are settled.

`screen` sorts all rows by their residuals at a fit, `narrow` sorts those in doubt again at another one, and
`expand_active` takes further rows into doubt. Each is one sweep or less; what they know of single rows stays with the
blocks, and the rows in doubt stay together where the rows are: in this process, or with one worker of a cluster.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from quernel._threads import spread
from quernel.data import ArrayRows, Block, BlockState, InMemoryDesign, RowState, total
from quernel.losses import Loss
from quernel.objective.problem import Problem, ScreenedRows, require_finite
from quernel.objective.segments import Fit, alike, framed, off_segment_rows

Array = NDArray[np.floating]
Index = NDArray[np.intp]
Mask = NDArray[np.bool_]

# From so many columns on their settled rows are added up together.
TOGETHER = 3


@dataclass(frozen=True, eq=False)
class ActiveRows:
    """The rows of one column that are in doubt: where they are, their features, target, share of weight and anchor.

    Features are by far the largest part. Where they would have to be computed again they are kept, in the pieces in
    which they were met; stored ones are picked up when the column is solved, and kept from then on within a basis. Of
    rows that are far away the raw rows are kept instead, and lifted again while the column is solved. What is kept is
    that of the first rows; the others are picked up.
    """

    index: Index
    features: list[Array]
    target: Array
    share: Array
    anchor: Array


def _together(parts: list[ActiveRows]) -> ActiveRows:
    index, target, share, anchor = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("index", "target", "share", "anchor")
    )
    features = [piece for part in parts for piece in part.features]
    return ActiveRows(index, features, target, share, anchor)


@dataclass(frozen=True, eq=False)
class ActiveSet:
    """The rows in doubt of all columns, where they are, and what is known of them here, one entry per column.

    `rows` is a list of `ActiveRows`, or a handle to one that is elsewhere. force (M, q) and balance are what they would
    add to the settled rows on the sides on which they were seen last, on curved pieces nothing. count is their number;
    the sum of their shares times signs and duals can be anything from least to most.
    """

    rows: Any
    force: Array
    balance: Array
    count: Array
    least: Array
    most: Array


def scatter_duals(rows: list[ActiveRows], starts: Index) -> list[list[tuple[int, Index, Array]]]:
    """For each of the blocks that start at these rows: (column, rows, duals) of its rows in doubt."""
    blocks: list[list[tuple[int, Index, Array]]] = [[] for _ in starts]
    for k, column in enumerate(rows):
        block = np.searchsorted(starts, column.index, side="right") - 1
        order = np.argsort(block, kind="stable")
        cuts = np.searchsorted(block[order], np.arange(1, len(starts)))
        for b, part in enumerate(np.split(order, cuts)):
            if len(part):
                blocks[b].append((k, column.index[part], column.anchor[part]))
    return blocks


def small_problem(
    problem: Problem, column: Index, settled: ScreenedRows, doubtful: ActiveRows, basis: Array | None
) -> Problem:
    """One column on its rows in doubt, the settled ones as a linear term, within a basis if there is one."""
    settled = settled.take(column)
    return Problem(
        _lifted(problem.rows, doubtful, basis),
        problem.loss.take(column),
        problem.alpha[column],
        fit_intercept=problem.fit_intercept,
        settled=settled if basis is None else settled.within(basis),
    )


def _lifted(rows: InMemoryDesign, doubtful: ActiveRows, basis: Array | None) -> InMemoryDesign:
    """The rows in doubt, from whatever was kept of them."""
    kept, threads = doubtful.features, rows.threads
    if not rows.near:
        return rows.lift(np.concatenate(kept), doubtful.target, doubtful.share, basis)  # type: ignore[attr-defined]
    rest = doubtful.index[sum(len(piece) for piece in kept) :]
    features = _stacked([*kept, rows.pick(rest, basis)] if len(rest) or not kept else kept, threads)
    return InMemoryDesign(
        ArrayRows(features, doubtful.target), features=features, share=doubtful.share, threads=threads
    )


def _stacked(pieces: list[Array], threads: int) -> Array:
    """np.concatenate by several threads, and no copy of one: most of its time is the system's, for fresh memory."""
    if len(pieces) == 1:
        return pieces[0]
    ends = np.cumsum([len(piece) for piece in pieces])
    whole = np.empty((ends[-1], pieces[0].shape[1]), dtype=pieces[0].dtype)

    def put(piece: Array, end: int) -> None:
        whole[end - len(piece) : end] = piece

    spread(lambda part: put(*part), zip(pieces, ends, strict=True), threads)
    return whole


def screen(
    problem: Problem, memory: RowState, coef: Array, intercept: Array, band: Array, basis: Array | None
) -> tuple[Array, ScreenedRows, ActiveSet]:
    """F, and all rows sorted into settled and doubtful by their residuals at (coef, intercept): one sweep."""
    keep = _RowStorage(basis, problem.rows.cached)
    (loss, force, balance, level, *known), rows = problem.rows.map_reduce_split(
        _screen_block, memory, (problem.loss, coef, intercept, band, keep), join=_gathered
    )
    require_finite(loss)
    objective = loss + problem.alpha * np.einsum("ij,ij->j", coef, coef)
    return objective, ScreenedRows(force, balance, level), ActiveSet(rows, *known)


class ScreeningBands(NamedTuple):
    """Within which distance from a kink rows are in doubt: each within an error of its own.

    errors (q, J, M) and shifts (q, J) are what coefficients and intercepts may be off by. A row is in doubt within the
    root of the sum of squares of its J errors; within narrowest (q,) anyway, and never beyond widest (q,).
    """

    widest: Array
    narrowest: Array
    errors: Array
    shifts: Array

    @classmethod
    def alike(cls, band: Array, n_features: int, draws: int = 0) -> ScreeningBands:
        """The same band for all rows of a column."""
        return cls(band, band, np.zeros((len(band), draws, n_features)), np.zeros((len(band), draws)))


def narrow(
    problem: Problem,
    memory: RowState,
    settled: ScreenedRows | None,
    coef: Array,
    intercept: Array,
    bands: ScreeningBands,
    basis: Array | None,
) -> tuple[ScreenedRows, ActiveSet]:
    """Look at the rows in doubt, and at no others, at another fit, and settle those that are outside of its bands.

    Where no rows are given as settled, all are in doubt again.
    """
    message = (problem.loss, coef, intercept, bands, _RowStorage(basis, problem.rows.cached), settled is None)
    (force, balance, level, *known), rows = problem.rows.map_reduce_split(
        _narrow_block, memory, message, join=_gathered
    )
    memory.sweeps -= 1  # the caller knows of how many rows
    if settled is not None:
        force, balance, level = settled.force + force, settled.balance + balance, settled.level + level
    return ScreenedRows(force, balance, level), ActiveSet(rows, *known)


@dataclass(frozen=True, eq=False)
class _RowStorage:
    """What to keep of doubtful rows: raw rows, if they are far away; nothing, if features are stored; or features."""

    basis: Array | None
    stored: bool

    def __call__(self, block: Block, index: Index) -> list[Array]:
        if block.raw is not None:
            return [block.raw[index]]
        if len(index) == 0 or self.stored:
            return []
        return [block.features[index] if self.basis is None else block.features[index] @ self.basis]


def _screen_block(
    block: Block, memory: BlockState, message: tuple[Loss, Array, Array, Array, _RowStorage]
) -> tuple[tuple[Array, ...], list[ActiveRows]]:
    from quernel.objective.numba_kernels import screen_rows, sort_rows_together

    loss, coef, intercept, band, keep = message
    m, q = len(block.share), len(band)
    residual, dual, (doubt, odd) = np.empty((q, m)), np.empty((q, m)), np.zeros((2, q, m), dtype=bool)
    (force, open_force), (balance, open_balance, level, value) = np.zeros((2, *coef.T.shape)), np.zeros((4, q))
    features, (offset, sign) = np.ascontiguousarray(block.features), framed(block, loss)
    fit = Fit.of(coef, intercept, loss)
    found = residual, dual, doubt, force, open_force, balance, open_balance, level, value
    if q >= TOGETHER and alike(loss, block, fit):
        sort_rows_together(features, offset, block.share, *fit, band, *found)
    else:
        screen_rows(features, offset, sign, block.share, *fit, band, *found)
    memory.update(residual=residual.T, dual=dual.T, doubt=doubt.T, odd=odd.T)
    rows = _undecided(block, loss, doubt, keep)
    value += off_segment_rows(block, loss, residual, dual, doubt)[0]
    return (value, force.T, balance, level, open_force.T, open_balance, *_known(loss, rows)), rows


def _undecided(block: Block, loss: Loss, doubt: Mask, keep: _RowStorage) -> list[ActiveRows]:
    """The rows of a block that are in doubt, of each column, with duals that take no side."""
    chosen, (low, high) = [np.flatnonzero(one) for one in doubt], loss.domain
    return [_pick(block, k, index, (low[k] + high[k]) / 2, keep(block, index)) for k, index in enumerate(chosen)]


def _narrow_block(
    block: Block, memory: BlockState, message: tuple[Loss, Array, Array, ScreeningBands, _RowStorage, bool]
) -> tuple[tuple[Array, ...], list[ActiveRows]]:
    from quernel.objective.numba_kernels import screen_active_rows

    loss, coef, intercept, bands, keep, everyone = message
    residual, dual, doubt = (memory[name].T for name in ("residual", "dual", "doubt"))
    doubt |= everyone
    (force, open_force), (balance, open_balance, level) = np.zeros((2, *coef.T.shape)), np.zeros((3, len(intercept)))
    screen_active_rows(
        np.ascontiguousarray(block.features), *framed(block, loss), block.share, *Fit.of(coef, intercept, loss),
        *bands, residual, dual, doubt, force, open_force, balance, open_balance, level,
    )  # fmt: skip
    rows = _undecided(block, loss, doubt, keep)
    return (force.T, balance, level, open_force.T, open_balance, *_known(loss, rows)), rows


def _pick(block: Block, k: int, index: Index, anchor: Array | float, features: list[Array]) -> ActiveRows:
    anchors = np.broadcast_to(anchor, block.share.shape)[index]
    target = block.targets[index, k % block.targets.shape[1]]  # the only one, or the column's own
    return ActiveRows(block.start + index, features, target, block.share[index], anchors)


def _known(loss: Loss, rows: list[ActiveRows]) -> tuple[Array, Array, Array]:
    """What `ActiveSet` says of these rows."""
    count, least, most = np.zeros((3, len(rows)))
    for k, (low, high) in enumerate(zip(*loss.domain, strict=True)):
        _, sign = loss.margin_transform(rows[k].target)
        ends = rows[k].share * np.outer([low, high], np.broadcast_to(sign, rows[k].share.shape))
        count[k], least[k], most[k] = len(rows[k].target), ends.min(axis=0).sum(), ends.max(axis=0).sum()
    return count, least, most


def _gathered(answers: list[tuple[Any, list[ActiveRows]]]) -> tuple[Any, list[ActiveRows]]:
    """Sums of all blocks, and the doubtful rows of each column over all of them."""
    sums, rows = zip(*answers, strict=True)
    return total(list(sums)), [_together(list(parts)) for parts in zip(*rows, strict=True)]


def expand_active(
    problem: Problem, memory: RowState, settled: ScreenedRows, doubts: ActiveSet, band: Array, basis: Array | None
) -> tuple[ScreenedRows, ActiveSet]:
    """Doubt the rows within the band of the fit, and those that changed sides, too; none where the band is negative."""
    keep = _RowStorage(basis, problem.rows.cached)
    (force, balance, level, *known), more = problem.rows.map_reduce_split(
        _doubt_block, memory, (problem.loss, band, keep), join=_gathered
    )
    memory.sweeps -= problem.rows.cached  # of few rows only, unless all features were computed again for it
    settled = ScreenedRows(settled.force - force, settled.balance - balance, settled.level - level)
    rows, _ = problem.rows.run_at(_both, doubts.rows, more)
    count, least, most = known
    return settled, ActiveSet(
        rows,
        doubts.force + force,
        doubts.balance + balance,
        doubts.count + count,
        doubts.least + least,
        doubts.most + most,
    )


def _both(old: list[ActiveRows], new: list[ActiveRows]) -> tuple[list[ActiveRows], None]:
    return [_together([one, other]) for one, other in zip(old, new, strict=True)], None


def _doubt_block(
    block: Block, memory: BlockState, message: tuple[Loss, Array, _RowStorage]
) -> tuple[tuple[Array, ...], list[ActiveRows]]:
    loss, band, keep = message
    residual, dual, known = memory["residual"], memory["dual"], memory["doubt"]
    fresh = ~known & ((loss.distance_to_knot(residual) <= band) | (memory["odd"] & (band > 0)))
    chosen = [np.flatnonzero(fresh[:, k]) for k in range(fresh.shape[1])]
    rows = [_pick(block, k, index, dual[:, k], keep(block, index)) for k, index in enumerate(chosen)]
    parts = [_settled_part(block, loss.take(np.array([k])), part) for k, part in enumerate(rows)]
    force, balance, level = zip(*parts, strict=True)
    sums = (np.column_stack(force), np.array(balance), np.array(level), *_known(loss, rows))
    memory["doubt"] = known | fresh
    memory["dual"] = np.where(fresh, 0, dual)
    return sums, rows


def _settled_part(block: Block, loss: Loss, rows: ActiveRows) -> tuple[Array, float, float]:
    """What these rows of one column added to force, balance and level when they were settled."""
    offset, sign = loss.margin_transform(rows.target)
    weighted = rows.share * rows.anchor
    level = weighted @ np.broadcast_to(offset, weighted.shape) - rows.share @ loss.conjugate(rows.anchor[:, None])[:, 0]
    features = block.features[rows.index - block.start]
    return (weighted * sign) @ features, float(np.sum(weighted * sign)), float(level)
