"""Active rows, and rows that are screened.

`screen` sorts all rows by their residuals at a fit, `tighten` sorts those active again at another one, and
`expand_active` takes further rows into active. Each is one sweep or less; what they know of single rows stays with the
blocks, and the active rows stay together where the rows are: in this process, or with one worker of a cluster.
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
from quernel.objective.segments import SegmentedFit, off_segment_rows, shares_target, signed_targets

Array = NDArray[np.floating]
Index = NDArray[np.intp]
Mask = NDArray[np.bool_]

# From so many columns on their screened rows are added up together.
JOINT_SUMS_FROM = 3


@dataclass(frozen=True, eq=False)
class ActiveRows:
    """The rows of one column that are active: where they are, their features, target, share of weight and anchor.

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


def _concatenate(parts: list[ActiveRows]) -> ActiveRows:
    index, target, share, anchor = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("index", "target", "share", "anchor")
    )
    features = [piece for part in parts for piece in part.features]
    return ActiveRows(index, features, target, share, anchor)


@dataclass(frozen=True, eq=False)
class ActiveSet:
    """The active rows of all columns, where they are, and what is known of them here, one entry per column.

    `rows` is a list of `ActiveRows`, or a handle to one that is elsewhere. phi_t_dual (M, q) and mean_dual are what they would
    add to the screened rows on the sides on which they were seen last, on curved pieces nothing. count is their number;
    the sum of their shares times signs and duals can be anything from min_dual to max_dual.
    """

    rows: Any
    phi_t_dual: Array
    mean_dual: Array
    count: Array
    min_dual: Array
    max_dual: Array


def scatter_duals(rows: list[ActiveRows], starts: Index) -> list[list[tuple[int, Index, Array]]]:
    """For each of the blocks that start at these rows: (column, rows, duals) of its active rows."""
    blocks: list[list[tuple[int, Index, Array]]] = [[] for _ in starts]
    for k, column in enumerate(rows):
        block = np.searchsorted(starts, column.index, side="right") - 1
        order = np.argsort(block, kind="stable")
        cuts = np.searchsorted(block[order], np.arange(1, len(starts)))
        for b, part in enumerate(np.split(order, cuts)):
            if len(part):
                blocks[b].append((k, column.index[part], column.anchor[part]))
    return blocks


def active_problem(
    problem: Problem, column: Index, screened: ScreenedRows, active_rows: ActiveRows, basis: Array | None
) -> Problem:
    """One column on its active rows, the screened ones as a linear term, within a basis if there is one."""
    screened = screened.take(column)
    return Problem(
        _active_design(problem.rows, active_rows, basis),
        problem.loss.take(column),
        problem.alpha[column],
        fit_intercept=problem.fit_intercept,
        screened=screened if basis is None else screened.within(basis),
    )


def _active_design(rows: InMemoryDesign, active_rows: ActiveRows, basis: Array | None) -> InMemoryDesign:
    """The active rows, from whatever was kept of them."""
    kept, threads = active_rows.features, rows.threads
    if not rows.near:
        return rows.lift(np.concatenate(kept), active_rows.target, active_rows.share, basis)  # type: ignore[attr-defined]
    rest = active_rows.index[sum(len(piece) for piece in kept) :]
    features = _parallel_concatenate([*kept, rows.pick(rest, basis)] if len(rest) or not kept else kept, threads)
    return InMemoryDesign(
        ArrayRows(features, active_rows.target), features=features, share=active_rows.share, threads=threads
    )


def _parallel_concatenate(pieces: list[Array], threads: int) -> Array:
    """np.concatenate by several threads, and no copy of one: max_dual of its time is the system's, for fresh memory."""
    if len(pieces) == 1:
        return pieces[0]
    ends = np.cumsum([len(piece) for piece in pieces])
    whole = np.empty((ends[-1], pieces[0].shape[1]), dtype=pieces[0].dtype)

    def put(piece: Array, end: int) -> None:
        whole[end - len(piece) : end] = piece

    spread(lambda part: put(*part), zip(pieces, ends, strict=True), threads)
    return whole


def screen(
    problem: Problem, state: RowState, coef: Array, intercept: Array, band: Array, basis: Array | None
) -> tuple[Array, ScreenedRows, ActiveSet]:
    """F, and all rows sorted into screened and active_rows by their residuals at (coef, intercept): one sweep."""
    storage = _RowStorage(basis, problem.rows.cached)
    (loss, phi_t_dual, mean_dual, constant, *known), rows = problem.rows.map_reduce_split(
        _screen_block, state, (problem.loss, coef, intercept, band, storage), join=_reduce
    )
    require_finite(loss)
    objective = loss + problem.alpha * np.einsum("ij,ij->j", coef, coef)
    return objective, ScreenedRows(phi_t_dual, mean_dual, constant), ActiveSet(rows, *known)


class ScreeningBands(NamedTuple):
    """Within which distance from a kink rows are active: each within an error of its own.

    errors (q, J, M) and shifts (q, J) are what coefficients and intercepts may be off by. A row is active within the
    root of the sum of squares of its J errors; within narrowest (q,) anyway, and never beyond widest (q,).
    """

    widest: Array
    narrowest: Array
    errors: Array
    shifts: Array

    @classmethod
    def uniform(cls, band: Array, n_features: int, draws: int = 0) -> ScreeningBands:
        """The same band for all rows of a column."""
        return cls(band, band, np.zeros((len(band), draws, n_features)), np.zeros((len(band), draws)))


def tighten(
    problem: Problem,
    state: RowState,
    screened: ScreenedRows | None,
    coef: Array,
    intercept: Array,
    bands: ScreeningBands,
    basis: Array | None,
) -> tuple[ScreenedRows, ActiveSet]:
    """Look at the active rows, and at no others, at another fit, and settle those that are outside of its bands.

    Where no rows are given as screened, all are active again.
    """
    args = (problem.loss, coef, intercept, bands, _RowStorage(basis, problem.rows.cached), screened is None)
    (phi_t_dual, mean_dual, constant, *known), rows = problem.rows.map_reduce_split(
        _tighten_block, state, args, join=_reduce
    )
    state.sweeps -= 1  # the caller knows of how many rows
    if screened is not None:
        phi_t_dual, mean_dual, constant = (
            screened.phi_t_dual + phi_t_dual,
            screened.mean_dual + mean_dual,
            screened.constant + constant,
        )
    return ScreenedRows(phi_t_dual, mean_dual, constant), ActiveSet(rows, *known)


@dataclass(frozen=True, eq=False)
class _RowStorage:
    """What to storage of active rows: raw rows, if they are far away; nothing, if features are stored; or features."""

    basis: Array | None
    stored: bool

    def __call__(self, block: Block, index: Index) -> list[Array]:
        if block.raw is not None:
            return [block.raw[index]]
        if len(index) == 0 or self.stored:
            return []
        return [block.features[index] if self.basis is None else block.features[index] @ self.basis]


def _screen_block(
    block: Block, state: BlockState, args: tuple[Loss, Array, Array, Array, _RowStorage]
) -> tuple[tuple[Array, ...], list[ActiveRows]]:
    from quernel.objective.numba_kernels import screen_rows, screen_rows_together

    loss, coef, intercept, band, storage = args
    m, q = len(block.share), len(band)
    residual, dual, (active, off_segment) = np.empty((q, m)), np.empty((q, m)), np.zeros((2, q, m), dtype=bool)
    (phi_t_dual, active_phi_t_dual), (mean_dual, active_mean_dual, constant, value) = (
        np.zeros((2, *coef.T.shape)),
        np.zeros((4, q)),
    )
    features, (offset, sign) = np.ascontiguousarray(block.features), signed_targets(block, loss)
    fit = SegmentedFit.from_fit(coef, intercept, loss)
    found = residual, dual, active, phi_t_dual, active_phi_t_dual, mean_dual, active_mean_dual, constant, value
    if q >= JOINT_SUMS_FROM and shares_target(loss, block, fit):
        screen_rows_together(features, offset, block.share, *fit, band, *found)
    else:
        screen_rows(features, offset, sign, block.share, *fit, band, *found)
    state.update(residual=residual.T, dual=dual.T, active=active.T, off_segment=off_segment.T)
    rows = _collect_active(block, loss, active, storage)
    value += off_segment_rows(block, loss, residual, dual, active)[0]
    return (
        value,
        phi_t_dual.T,
        mean_dual,
        constant,
        active_phi_t_dual.T,
        active_mean_dual,
        *_summarize(loss, rows),
    ), rows


def _collect_active(block: Block, loss: Loss, active: Mask, storage: _RowStorage) -> list[ActiveRows]:
    """The rows of a block that are active, of each column, with duals that take no side."""
    chosen, (low, high) = [np.flatnonzero(one) for one in active], loss.domain
    return [
        _take_rows(block, k, index, (low[k] + high[k]) / 2, storage(block, index)) for k, index in enumerate(chosen)
    ]


def _tighten_block(
    block: Block, state: BlockState, args: tuple[Loss, Array, Array, ScreeningBands, _RowStorage, bool]
) -> tuple[tuple[Array, ...], list[ActiveRows]]:
    from quernel.objective.numba_kernels import screen_active_rows

    loss, coef, intercept, bands, storage, all_rows = args
    residual, dual, active = (state[name].T for name in ("residual", "dual", "active"))
    active |= all_rows
    (phi_t_dual, active_phi_t_dual), (mean_dual, active_mean_dual, constant) = (
        np.zeros((2, *coef.T.shape)),
        np.zeros((3, len(intercept))),
    )
    screen_active_rows(
        np.ascontiguousarray(block.features), *signed_targets(block, loss), block.share, *SegmentedFit.from_fit(coef, intercept, loss),
        *bands, residual, dual, active, phi_t_dual, active_phi_t_dual, mean_dual, active_mean_dual, constant,
    )  # fmt: skip
    rows = _collect_active(block, loss, active, storage)
    return (phi_t_dual.T, mean_dual, constant, active_phi_t_dual.T, active_mean_dual, *_summarize(loss, rows)), rows


def _take_rows(block: Block, k: int, index: Index, anchor: Array | float, features: list[Array]) -> ActiveRows:
    anchors = np.broadcast_to(anchor, block.share.shape)[index]
    target = block.targets[index, k % block.targets.shape[1]]  # the only one, or the column's own
    return ActiveRows(block.start + index, features, target, block.share[index], anchors)


def _summarize(loss: Loss, rows: list[ActiveRows]) -> tuple[Array, Array, Array]:
    """What `ActiveSet` says of these rows."""
    count, min_dual, max_dual = np.zeros((3, len(rows)))
    for k, (low, high) in enumerate(zip(*loss.domain, strict=True)):
        _, sign = loss.margin_transform(rows[k].target)
        ends = rows[k].share * np.outer([low, high], np.broadcast_to(sign, rows[k].share.shape))
        count[k], min_dual[k], max_dual[k] = len(rows[k].target), ends.min(axis=0).sum(), ends.max(axis=0).sum()
    return count, min_dual, max_dual


def _reduce(answers: list[tuple[Any, list[ActiveRows]]]) -> tuple[Any, list[ActiveRows]]:
    """Sums of all blocks, and the active rows of each column over all of them."""
    sums, rows = zip(*answers, strict=True)
    return total(list(sums)), [_concatenate(list(parts)) for parts in zip(*rows, strict=True)]


def expand_active(
    problem: Problem, state: RowState, screened: ScreenedRows, active_set: ActiveSet, band: Array, basis: Array | None
) -> tuple[ScreenedRows, ActiveSet]:
    """Doubt the rows within the band of the fit, and those that changed sides, too; none where the band is negative."""
    storage = _RowStorage(basis, problem.rows.cached)
    (phi_t_dual, mean_dual, constant, *known), more = problem.rows.map_reduce_split(
        _expand_block, state, (problem.loss, band, storage), join=_reduce
    )
    state.sweeps -= problem.rows.cached  # of few rows only, unless all features were computed again for it
    screened = ScreenedRows(
        screened.phi_t_dual - phi_t_dual, screened.mean_dual - mean_dual, screened.constant - constant
    )
    rows, _ = problem.rows.run_at(_merge, active_set.rows, more)
    count, min_dual, max_dual = known
    return screened, ActiveSet(
        rows,
        active_set.phi_t_dual + phi_t_dual,
        active_set.mean_dual + mean_dual,
        active_set.count + count,
        active_set.min_dual + min_dual,
        active_set.max_dual + max_dual,
    )


def _merge(old: list[ActiveRows], new: list[ActiveRows]) -> tuple[list[ActiveRows], None]:
    return [_concatenate([one, other]) for one, other in zip(old, new, strict=True)], None


def _expand_block(
    block: Block, state: BlockState, args: tuple[Loss, Array, _RowStorage]
) -> tuple[tuple[Array, ...], list[ActiveRows]]:
    loss, band, storage = args
    residual, dual, known = state["residual"], state["dual"], state["active"]
    fresh = ~known & ((loss.distance_to_knot(residual) <= band) | (state["off_segment"] & (band > 0)))
    chosen = [np.flatnonzero(fresh[:, k]) for k in range(fresh.shape[1])]
    rows = [_take_rows(block, k, index, dual[:, k], storage(block, index)) for k, index in enumerate(chosen)]
    parts = [_screened_terms(block, loss.take(np.array([k])), part) for k, part in enumerate(rows)]
    phi_t_dual, mean_dual, constant = zip(*parts, strict=True)
    sums = (np.column_stack(phi_t_dual), np.array(mean_dual), np.array(constant), *_summarize(loss, rows))
    state["active"] = known | fresh
    state["dual"] = np.where(fresh, 0, dual)
    return sums, rows


def _screened_terms(block: Block, loss: Loss, rows: ActiveRows) -> tuple[Array, float, float]:
    """What these rows of one column added to phi_t_dual, mean_dual and constant when they were screened."""
    offset, sign = loss.margin_transform(rows.target)
    weighted = rows.share * rows.anchor
    constant = (
        weighted @ np.broadcast_to(offset, weighted.shape) - rows.share @ loss.conjugate(rows.anchor[:, None])[:, 0]
    )
    features = block.features[rows.index - block.start]
    return (weighted * sign) @ features, float(np.sum(weighted * sign)), float(constant)
