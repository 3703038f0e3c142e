"""The active set: which rows are solved for, the linear term that the others leave behind, and the check of them all.

`screen` splits all rows by the distance of their residuals from a kink: beyond the band a row is screened, its dual
fixed at the slope of the loss there; within, it is active. `tighten` screens active rows again at another fit, and
`expand_active` moves screened rows back into the active set. Each takes at most one pass over the rows. Per-row arrays
stay with the row blocks, and active rows stay where the rows are: in this process, or with one worker of a cluster.

`verify` is the KKT check of a solution: one more pass over all rows, from which its duality gap follows. For a screened
row the KKT condition is that its residual lies on the linear segment whose slope is its fixed dual v_i: then loss(r) +
conjugate(v) - v r = 0. A row off its segment has a positive Fenchel gap, so violations are not only found but priced:
the mean of these gaps is the first part of the duality gap (`objective.duality_gap`), the distance of Phi'(w v)/W from
2 alpha u the second.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from quernel.data import Block, BlockState, RowStateLike, sum_tuples
from quernel.losses import Loss
from quernel.objective import InMemoryProblem, Problem, ScreenedRows, require_finite

Array = NDArray[np.floating]
Index = NDArray[np.intp]
Mask = NDArray[np.bool_]

# From this many columns on, their screened rows are summed jointly (`screen_rows_together`).
JOINT_SUMS_FROM = 3


@dataclass(frozen=True, eq=False)
class ActiveRows:
    """The active rows of one column: a of them.

    Attributes
    ----------
    index : array of shape (a,)
        Positions among all rows.
    features : list of arrays
        Features of the first rows, in pieces; those of the rest are gathered when the column is solved. Features that
        would have to be recomputed are kept from the pass that found the rows; stored ones are gathered on demand and,
        with a basis, kept from then on. Out of core the raw rows are kept instead, and mapped again for each solve.
    target, share : arrays of shape (a,)
        Targets, and weights w_i / W.
    anchor : array of shape (a,)
        Multipliers (duals) from which the next solve starts.
    """

    index: Index
    features: list[Array]
    target: Array
    share: Array
    anchor: Array


def _concatenate(parts: list[ActiveRows]) -> ActiveRows:
    """One set of the rows of several; pieces of features are not copied."""
    index, target, share, anchor = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("index", "target", "share", "anchor")
    )
    features = [piece for part in parts for piece in part.features]
    return ActiveRows(index, features, target, share, anchor)


@dataclass(frozen=True, eq=False)
class ActiveSet:
    """The active rows of all columns, and their sums.

    Attributes
    ----------
    rows : list of ActiveRows, one per column
        Or a handle to such a list on a worker.
    phi_t_dual, mean_dual : arrays of shape (M, q) and (q,)
        Phi'(w s v)/W and sum w s v / W over these rows with the slopes v at the fit where they were last screened (0 on
        curved pieces): added to those of the screened rows they give the full gradient.
    count : array of shape (q,)
        Number of active rows.
    min_dual, max_dual : arrays of shape (q,)
        Range of sum w s v / W over all duals v in their box.
    """

    rows: Any
    phi_t_dual: Array
    mean_dual: Array
    count: Array
    min_dual: Array
    max_dual: Array


def scatter_duals(rows: list[ActiveRows], starts: Index) -> list[list[tuple[int, Index, Array]]]:
    """Split the duals of active rows by row block: a list of (column, rows, duals) for each block start."""
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
    problem: InMemoryProblem, column: Index, screened: ScreenedRows, active_rows: ActiveRows, basis: Array | None
) -> InMemoryProblem:
    """The active-set problem of one column: active rows, and the screened ones as a linear term; in a basis, if any."""
    screened = screened.take(column)
    return InMemoryProblem(
        problem.rows.build_subset(
            active_rows.index, active_rows.features, active_rows.target, active_rows.share, basis
        ),
        problem.loss.take(column),
        problem.alpha[column],
        fit_intercept=problem.fit_intercept,
        screened=screened if basis is None else screened.project(basis),
    )


def screen(
    problem: Problem, state: RowStateLike, coef: Array, intercept: Array, band: Array, basis: Array | None
) -> tuple[Array, ScreenedRows, ActiveSet]:
    """Screen all rows at a fit, in one pass; return F (q,), the linear term of the screened rows, and the active set.

    Rows with a residual within `band` (q,) of a kink, or on a curved piece of the loss, are active.
    """
    storage = _RowStorage(basis, problem.rows.cached)
    (loss, phi_t_dual, mean_dual, constant, *known), rows = problem.rows.map_reduce_split(
        _screen_block, state, (problem.loss, coef, intercept, band, storage), reduce=_reduce
    )
    require_finite(loss)
    objective = loss + problem.alpha * np.einsum("ij,ij->j", coef, coef)
    return objective, ScreenedRows(phi_t_dual, mean_dual, constant), ActiveSet(rows, *known)


class ScreeningBands(NamedTuple):
    """Bands around the kinks within which rows are active, each row with a width of its own.

    With J draws of the error of a fit, errors (q, J, M) of coefficients and shifts (q, J) of intercepts, a row has the
    width

        band_i = sqrt(sum_j (phi_i'errors_j + shift_j)^2),     clipped to [narrowest, widest], each of shape (q,).
    """

    widest: Array
    narrowest: Array
    errors: Array
    shifts: Array

    @classmethod
    def uniform(cls, band: Array, n_features: int, draws: int = 0) -> ScreeningBands:
        """The same band (q,) for all rows of a column."""
        return cls(band, band, np.zeros((len(band), draws, n_features)), np.zeros((len(band), draws)))


def tighten(
    problem: Problem,
    state: RowStateLike,
    screened: ScreenedRows | None,
    coef: Array,
    intercept: Array,
    bands: ScreeningBands,
    basis: Array | None,
) -> tuple[ScreenedRows, ActiveSet]:
    """Screen the active rows again, at another fit and within its bands; other rows are not read.

    With `screened=None` all rows count as active before, so that all are screened anew.
    """
    args = (problem.loss, coef, intercept, bands, _RowStorage(basis, problem.rows.cached), screened is None)
    (phi_t_dual, mean_dual, constant, *known), rows = problem.rows.map_reduce_split(
        _tighten_block, state, args, reduce=_reduce
    )
    state.sweeps -= 1  # the caller counts the rows that were read
    if screened is not None:
        phi_t_dual = screened.phi_t_dual + phi_t_dual
        mean_dual, constant = screened.mean_dual + mean_dual, screened.constant + constant
    return ScreenedRows(phi_t_dual, mean_dual, constant), ActiveSet(rows, *known)


@dataclass(frozen=True, eq=False)
class _RowStorage:
    """What to keep of active rows: raw rows out of core, nothing where all features are stored, else their features."""

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
    """Screen the rows of one block: sums, and its active rows."""
    from quernel.objective.numba_kernels import screen_rows, screen_rows_together

    loss, coef, intercept, band, storage = args
    m, q = len(block.share), len(band)
    residual, dual, (active, off_segment) = np.empty((q, m)), np.empty((q, m)), np.zeros((2, q, m), dtype=bool)
    phi_t_dual, active_phi_t_dual = np.zeros((2, *coef.T.shape))
    mean_dual, active_mean_dual, constant, value = np.zeros((4, q))
    features, (offset, sign) = np.ascontiguousarray(block.features), _signed_targets(block, loss)
    fit = _SegmentedFit.from_fit(coef, intercept, loss)
    found = residual, dual, active, phi_t_dual, active_phi_t_dual, mean_dual, active_mean_dual, constant, value
    if q >= JOINT_SUMS_FROM and _shares_target(loss, block, fit):
        screen_rows_together(features, offset, block.share, *fit, band, *found)
    else:
        screen_rows(features, offset, sign, block.share, *fit, band, *found)
    state.update(residual=residual.T, dual=dual.T, active=active.T, off_segment=off_segment.T)
    rows = _collect_active(block, loss, active, storage)
    value += _off_segment_rows(block, loss, residual, dual, active)[0]
    sums = value, phi_t_dual.T, mean_dual, constant, active_phi_t_dual.T, active_mean_dual
    return (*sums, *_summarize(loss, rows)), rows


def _collect_active(block: Block, loss: Loss, active: Mask, storage: _RowStorage) -> list[ActiveRows]:
    """The active rows of a block, for each column, with multipliers at the midpoint of their box.

    Nothing is known of their duals but that they are near a kink, where the dual may be anywhere in the box.
    """
    chosen, (low, high) = [np.flatnonzero(one) for one in active], loss.domain
    return [
        _take_rows(block, k, index, (low[k] + high[k]) / 2, storage(block, index)) for k, index in enumerate(chosen)
    ]


def _tighten_block(
    block: Block, state: BlockState, args: tuple[Loss, Array, Array, ScreeningBands, _RowStorage, bool]
) -> tuple[tuple[Array, ...], list[ActiveRows]]:
    """Screen the active rows of one block again; residuals and duals of all others are left as they are."""
    from quernel.objective.numba_kernels import screen_active_rows

    loss, coef, intercept, bands, storage, all_rows = args
    residual, dual, active = (state[name].T for name in ("residual", "dual", "active"))
    active |= all_rows
    phi_t_dual, active_phi_t_dual = np.zeros((2, *coef.T.shape))
    mean_dual, active_mean_dual, constant = np.zeros((3, len(intercept)))
    fit = _SegmentedFit.from_fit(coef, intercept, loss)
    screen_active_rows(
        np.ascontiguousarray(block.features), *_signed_targets(block, loss), block.share, *fit, *bands, residual, dual,
        active, phi_t_dual, active_phi_t_dual, mean_dual, active_mean_dual, constant,
    )  # fmt: skip
    rows = _collect_active(block, loss, active, storage)
    return (phi_t_dual.T, mean_dual, constant, active_phi_t_dual.T, active_mean_dual, *_summarize(loss, rows)), rows


def _take_rows(block: Block, k: int, index: Index, anchor: Array | float, features: list[Array]) -> ActiveRows:
    """The rows of a block at `index`, as active rows of column k, which know where in the table they come from."""
    anchors = np.broadcast_to(anchor, block.share.shape)[index]
    target = block.targets[index, k % block.targets.shape[1]]  # a target shared by all columns, or one per column
    return ActiveRows(block.start + index, features, target, block.share[index], anchors)


def _summarize(loss: Loss, rows: list[ActiveRows]) -> tuple[Array, Array, Array]:
    """count, min_dual and max_dual of `ActiveSet`, for these rows.

    The last two are what the active duals can add up to: whether they can balance those of the screened rows.
    """
    count, min_dual, max_dual = np.zeros((3, len(rows)))
    for k, (low, high) in enumerate(zip(*loss.domain, strict=True)):
        _, sign = loss.margin_transform(rows[k].target)
        ends = rows[k].share * np.outer([low, high], np.broadcast_to(sign, rows[k].share.shape))
        count[k], min_dual[k], max_dual[k] = len(rows[k].target), ends.min(axis=0).sum(), ends.max(axis=0).sum()
    return count, min_dual, max_dual


def _reduce(answers: list[tuple[Any, list[ActiveRows]]]) -> tuple[Any, list[ActiveRows]]:
    """Reduce step: add up the sums of all blocks, and concatenate the active rows of each column."""
    sums, rows = zip(*answers, strict=True)
    return sum_tuples(list(sums)), [_concatenate(list(parts)) for parts in zip(*rows, strict=True)]


def expand_active(
    problem: Problem,
    state: RowStateLike,
    screened: ScreenedRows,
    active_set: ActiveSet,
    band: Array,
    basis: Array | None,
) -> tuple[ScreenedRows, ActiveSet]:
    """Move screened rows within `band` (q,) of a kink, and those found off their segment, into the active set.

    A column with a negative band is left as it is. The rows' terms are subtracted from those of the screened rows.
    """
    storage = _RowStorage(basis, problem.rows.cached)
    (phi_t_dual, mean_dual, constant, *known), more = problem.rows.map_reduce_split(
        _expand_block, state, (problem.loss, band, storage), reduce=_reduce
    )
    state.sweeps -= problem.rows.cached  # not a full pass: stored features are read for few rows only
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
    """For `run_at`: the merged active rows stay where they are."""
    return [_concatenate([one, other]) for one, other in zip(old, new, strict=True)], None


def _expand_block(
    block: Block, state: BlockState, args: tuple[Loss, Array, _RowStorage]
) -> tuple[tuple[Array, ...], list[ActiveRows]]:
    """Screened rows of one block that become active, and the terms to subtract for them.

    Their multipliers are the duals they had while screened: the best guess, at an end of the box.
    """
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
    """What these rows of one column contributed to `ScreenedRows` (phi_t_dual, mean_dual, constant)."""
    offset, sign = loss.margin_transform(rows.target)
    weighted = rows.share * rows.anchor
    constant = (
        weighted @ np.broadcast_to(offset, weighted.shape) - rows.share @ loss.conjugate(rows.anchor[:, None])[:, 0]
    )
    features = block.features[rows.index - block.start]
    return (weighted * sign) @ features, float(np.sum(weighted * sign)), float(constant)


@dataclass(frozen=True, eq=False)
class KktCheck:
    """Outcome of a KKT check, one entry per column.

    Attributes
    ----------
    loss : array of shape (q,)
        Mean loss over all rows.
    fenchel_gap : array of shape (q,)
        mean(loss(r) + conjugate(v) - v r) over all rows.
    phi_t_dual, mean_dual : arrays of shape (M, q) and (q,)
        The active rows' part of Phi'(w s v)/W and of sum w s v / W.
    worst_violation : array of shape (q,)
        Largest distance from a kink of a screened row that is off its segment.
    """

    loss: Array
    fenchel_gap: Array
    phi_t_dual: Array
    mean_dual: Array
    worst_violation: Array


def verify(problem: Problem, state: RowStateLike, coef: Array, intercept: Array, duals: Any) -> KktCheck:
    """Check all rows at (coef, intercept), with new duals for the active ones (from `scatter_duals`), in one pass."""
    args = (problem.loss, coef, intercept)
    return KktCheck(*problem.rows.map_reduce(_check_block, state, args, reduce=_reduce_checks, per_block_args=duals))


def _reduce_checks(answers: list[tuple[Array, ...]]) -> tuple[Array, ...]:
    """Reduce step: add up sums, take the maximum of the violations."""
    *sums, worst_violation = zip(*answers, strict=True)
    return *sum_tuples(list(zip(*sums, strict=True))), np.max(worst_violation, axis=0)


def _check_block(
    block: Block, state: BlockState, args: tuple[Loss, Array, Array], duals: list[tuple[int, Index, Array]]
) -> tuple[Array, ...]:
    """Check the rows of one block, after storing its active rows' new duals."""
    from quernel.objective.numba_kernels import verify_rows

    loss, coef, intercept = args
    for k, index, new in duals:
        state["dual"][index - block.start, k] = new
    residual, dual, active, off_segment = (state[name].T for name in ("residual", "dual", "active", "off_segment"))
    phi_t_dual, (mean_dual, on_segment_loss, worst_violation) = np.zeros(coef.T.shape), np.zeros((3, len(dual)))
    fit = _SegmentedFit.from_fit(coef, intercept, loss)
    verify_rows(
        np.ascontiguousarray(block.features), *_signed_targets(block, loss), block.share, *fit,
        dual, active, residual, off_segment, phi_t_dual, mean_dual, on_segment_loss, worst_violation,
    )  # fmt: skip
    off_segment_loss, fenchel_gap = _off_segment_rows(block, loss, residual, dual, off_segment)
    return on_segment_loss + off_segment_loss, fenchel_gap, phi_t_dual.T, mean_dual, worst_violation


def recheck_changed(problem: Problem, state: RowStateLike, before: KktCheck, duals: Any) -> KktCheck:
    """The check of the same fit with other duals for the active rows; only rows whose duals have changed are read."""
    fenchel_gap, phi_t_dual, mean_dual = problem.rows.map_reduce(
        _recheck_block, state, problem.loss, reduce=sum_tuples, per_block_args=duals
    )
    state.sweeps -= 1
    return KktCheck(
        before.loss, fenchel_gap, before.phi_t_dual + phi_t_dual, before.mean_dual + mean_dual, before.worst_violation
    )


def _recheck_block(
    block: Block, state: BlockState, loss: Loss, duals: list[tuple[int, Index, Array]]
) -> tuple[Array, Array, Array]:
    """Fenchel gaps of one block with new duals, and the change of the active rows' sums.

    At the same fit residuals and losses are the same: rows whose dual has not changed add nothing new.
    """
    residual, dual, active, off_segment = (state[name].T for name in ("residual", "dual", "active", "off_segment"))
    phi_t_dual, mean_dual = np.zeros((block.features.shape[1], len(dual))), np.zeros(len(dual))
    for k, index, new in duals:
        change, rows = new - dual[k, index - block.start], index - block.start
        dual[k, rows] = new
        moved = rows[change != 0]
        _, sign = loss.margin_transform(block.targets[moved, k % block.targets.shape[1]])
        weighted = block.share[moved] * change[change != 0] * sign
        phi_t_dual[:, k] += weighted @ block.features[moved]
        mean_dual[k] += weighted.sum()
    return _off_segment_rows(block, loss, residual, dual, active | off_segment)[1], phi_t_dual, mean_dual


class _SegmentedFit(NamedTuple):
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
    def from_fit(cls, coef: Array, intercept: Array, loss: Loss) -> _SegmentedFit:
        """From coefficients of shape (M, q)."""
        knots, slopes = loss.segments
        return cls(np.ascontiguousarray(coef.T), intercept, knots, slopes, loss.conjugate(slopes.T).T.copy())


def _off_segment_rows(block: Block, loss: Loss, residual: Array, dual: Array, off_segment: Mask) -> tuple[Array, Array]:
    """Mean loss and mean Fenchel gap loss + conjugate(v) - v r of the marked rows (q, m), off their dual's segment.

    Both of shape (q,). On its segment a row has no Fenchel gap, and its loss is summed by the compiled passes. The rows
    here are few, and need not lie on lines: `loss` itself is evaluated, curved pieces included.
    """
    total, fenchel_gap = np.empty((2, len(residual)))
    for k in range(len(residual)):
        rows, one = np.flatnonzero(off_segment[k]), loss.take(np.array([k]))
        r, v = residual[k, rows, None], dual[k, rows, None]
        value = one.value(r)
        total[k] = block.share[rows] @ value[:, 0]
        fenchel_gap[k] = block.share[rows] @ (value + one.conjugate(v) - v * r)[:, 0]
    return total, fenchel_gap


def _signed_targets(block: Block, loss: Loss) -> tuple[Array, Array]:
    """Offset and sign of `Loss.margin_transform` for every row and column, each of shape (q, m)."""
    shape = (len(block.share), len(loss.domain[0]))
    offset, sign = loss.margin_transform(block.targets)
    return np.broadcast_to(offset, shape).T, np.broadcast_to(sign, shape).T


def _shares_target(loss: Loss, block: Block, fit: _SegmentedFit) -> bool:
    """Whether all columns share one target and have two-segment losses, as quantile levels do.

    Then `screen_rows_together` adds the features of a row once instead of once per level.
    """
    return not loss.margin and block.target.ndim == 1 and fit.knots.shape[1] == 1 and not np.isnan(fit.slopes).any()
