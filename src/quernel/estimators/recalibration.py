"""Shifts by which quantile levels hold on new rows: leave-one-out residuals, without refitting.

A flexible fit is closer to its training rows than to new ones, so that its outer levels are too narrow. What a row does
to the fit at its own place follows from the optimality conditions (the span of Vapnik and Chapelle 2000). With
psi = (phi, c), c a constant for the intercept, and dual variables v the solution is

    u = sum_i beta_i psi_i,        beta_i = share_i v_i / (2 alpha).

Rows on a side of the curve have v at a bound; the active rows A, with v strictly inside, are interpolated. Leaving
out a row is about one Newton step: with K = Psi_B Psi_B' of rows B near the curve and D a diagonal, the leave-one-out
residual is

    row i not in B:    r_i + beta_i (|psi_i|^2 - k_i' (K + D)^-1 k_i),      k_i = Psi_B psi_i,
    row i in B:        r_i + beta_i (1 / ((K + D)^-1)_ii - D_ii).

One Cholesky factor of K + D serves all rows.

*Up to some thousand rows* (`leave_one_out_moves`) B are the rows with |r| <= d, whose density 1 / (2 d) is the
curvature of the loss, hence D = diag(4 alpha d / share). Rows within a move's length of the curve are crossed on the
way, so that d is the root mean square of the moves, a fixed point that a few rounds find. On tables of 60 to 100 rows
shifts are mostly within a fifth of those of actual refits, and as often above as below.

*For more rows* (`_Moves`) B are the active rows, and D = 0: the others stay where they are. Residuals of rows not in A
keep their sign, so that a sample of these rows, next to all of A, determines the shift well; the curvature would need
all rows near the curve. On the way rows of the other side would be crossed, and resist: the move is too long. The best
step in its direction, by an exact line search in which crossed rows change sides, is too short, since they could become
active instead. The geometric mean of the two is taken.

Row i of m leave-one-out residuals is at the level i / (m + 1): then a new row is below the quantile with the
probability of the level, on average.

Under shape constraints those that bind stay as they are when a row is left out: features are projected onto what they
leave free, of which alone a row moves the fit.

Where some of the rows are the landmarks of the features, these are unlike new rows: their features are longer (|phi|^2
is all of K(x, x)), so that without them the fit is further away. Then only the other rows count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular
from scipy.linalg.lapack import dpotrf, dpotri

from quernel._machine import single_threaded_blas
from quernel.data import ArrayRows
from quernel.estimators.solve import Solution
from quernel.features import PivotedCholesky
from quernel.features.landmarks import row_hash
from quernel.losses import Pinball
from quernel.solvers.result import Status

Array = NDArray[np.floating]
Index = NDArray[np.intp]


@dataclass(frozen=True)
class RecalibrationOptions:
    """Constants of the shifts."""

    min_rows: int = 10  # with fewer distinct rows nothing is shifted
    min_active_share: float = 0.002  # with fewer active rows the fit is as close to new rows as to its own
    margin: float = 1e-5  # by which active rows are inside the box: dual variables at a bound are off it by about `tol`
    min_others: int = 200  # with fewer rows that are no landmarks, landmarks count as well
    max_near: int = 2000  # with so many distinct rows at most, all of them are looked at
    min_near: int = 20  # rows near the curve, at least: of fewer the curvature is noise
    max_rounds: int = 4  # of the fixed point of d, ...
    width_tolerance: float = 0.1  # ... which ends when d changes by no more than this part
    sampled: int = 600  # of more rows, those on the sides of the curve, at most ...
    crossed: int = 400  # ... of which so many stand for those that may be crossed
    bisections: int = 12  # of the line search
    intercept: float = 10.0  # c, in units of the largest |phi|: so large that the penalty on c hardly matters
    jitter: float = 1e-10  # added to the diagonal of K, as a share of its mean


OPTIONS = RecalibrationOptions()


def level_shifts(
    rows: ArrayRows,
    centre: float,
    loss: Pinball,
    alpha: float,
    intercept: bool,
    fit: Solution,
    held: Sequence[Array] | None = None,
) -> Array:
    """What to add to the predictions of each level, (q,), so that it holds: a quantile of leave-one-out residuals.

    Parameters
    ----------
    rows : ArrayRows, the training rows, with y - centre for y
    centre : float
    loss : Pinball, of q levels
    alpha, intercept : ridge weight, and whether there is an intercept
    fit : the solution, with dual variables (n, q)
    held : q arrays of shape (M, k), orthonormal bases of the directions that constraints hold; or None without any
    """
    result, share = fit.result, rows.share()
    if Status.STOPPED in result.status:  # no time is left, and what is known of single rows holds at the optimum
        return np.zeros(loss.n_columns)
    if result.dual.shape != (rows.n_rows, loss.n_columns) or not np.all(result.null_objective > 0):
        return np.zeros(loss.n_columns)
    active = loss.strictly_inside(result.dual, OPTIONS.margin)
    if active.mean(axis=0).max() < OPTIONS.min_active_share:
        return np.zeros(loss.n_columns)
    table = _DistinctRows(rows, share)
    if len(table.first) < OPTIONS.min_rows:
        return np.zeros(loss.n_columns)
    exact = isinstance(fit.feature_map, PivotedCholesky)  # has all of K(x, x) for all rows
    is_landmark = table.find(None if exact else getattr(fit.feature_map, "landmarks_", None))
    few, products = len(table.first) <= OPTIONS.max_near, None
    with single_threaded_blas(0, 0):
        shifts = []
        for k, level in enumerate(loss.levels):
            beta = table.total(share * result.dual[:, k]) / (2 * alpha)
            inside = table.total(active[:, k]) > 0
            if not few or products is None or held is not None:
                picked = np.arange(len(inside)) if few else np.r_[np.flatnonzero(inside), table.sample(~inside)]
                Phi = fit.feature_map.transform(np.asarray(rows.X[table.first[picked]], dtype=float))
            residual = rows.y[table.first[picked]] - Phi @ result.coef[:, k] - (result.intercept[k] - centre)
            residual[inside[picked]] = 0.0  # but for the tolerance of the solver
            weight = table.weights(picked, np.sign(beta) * ~inside + 3 * is_landmark)
            if held is not None:
                Phi, products = Phi - (Phi @ held[k]) @ held[k].T, None
            if few:
                products = _products(Phi, intercept) if products is None else products
                move = leave_one_out_moves(products, alpha, beta, residual, weight)
            else:
                # A row of share s and dual v pulls with s v = 2 alpha beta.
                moves = _Moves(Phi, intercept, beta[picked], residual, weight, int(inside.sum()))
                move = moves.leave_one_out(2 * alpha * np.abs(beta[picked]))
            counts = ~is_landmark[picked]
            shifts.append(unbiased_quantile((residual + move)[counts], weight[counts], float(level)))
    return np.array(shifts)


class _DistinctRows:
    """Distinct rows (x, y): `first` (m,), an index of each, and their total shares (m,).

    A row that is repeated is left out with its copies, so that repeating is equivalent to weighting.
    """

    def __init__(self, rows: ArrayRows, share: Array) -> None:
        X = np.asarray(rows.X, dtype=float)
        codes = row_hash(np.column_stack([X, rows.y]))
        _, self.first, self._group = np.unique(codes, return_index=True, return_inverse=True)
        self._code = row_hash(X[self.first])
        self.share = self.total(share)

    def total(self, values: Array | NDArray[np.bool_]) -> Array:
        """Sum of values (n,) over the copies of each distinct row, shape (m,)."""
        return np.bincount(self._group, weights=values, minlength=len(self.first)).astype(float)

    def find(self, landmarks: Array | None) -> NDArray[np.bool_]:
        """Which distinct rows (m,) are landmarks; none if there are no, or hardly any, others."""
        if landmarks is None:
            return np.zeros(len(self.first), dtype=bool)
        found = np.isin(self._code, row_hash(np.asarray(landmarks, dtype=float)))
        return found if np.sum(~found) >= OPTIONS.min_others else np.zeros_like(found)

    def weights(self, picked: Index, stratum: Array) -> Array:
        """Weights (p,) of the picked rows, such that those of each stratum (m,) add up to its share of all rows."""
        weight, own = self.share[picked], stratum[picked]
        for one in np.unique(own):
            weight[own == one] *= self.share[stratum == one].sum() / weight[own == one].sum()
        return weight

    def sample(self, among: NDArray[np.bool_]) -> Index:
        """Some of these distinct rows, the same ones in whatever order they were given."""
        some = np.flatnonzero(among)
        return some[np.argsort(self._code[some], kind="stable")[: OPTIONS.sampled]]


def _products(Phi: Array, intercept: bool) -> Array:
    """Psi Psi' of rows (m, M), shape (m, m)."""
    products = Phi @ Phi.T
    return products + OPTIONS.intercept**2 * (float(products.diagonal().max()) or 1.0) if intercept else products


def leave_one_out_moves(products: Array, alpha: float, beta: Array, residual: Array, weight: Array) -> Array:
    """How much the residual of each row (m,) grows when it is left out; `products` (m, m) is Psi Psi'."""
    own, distance = products.diagonal(), np.abs(residual)
    least = float(np.sort(distance)[min(OPTIONS.min_near, len(distance)) - 1])
    width = max(least, float(np.median(distance)) / 2)
    move: Array = np.zeros(len(own))
    for _ in range(OPTIONS.max_rounds):
        near = distance <= width
        D = 4 * alpha * width / weight[near]
        K = np.asfortranarray(products[np.ix_(near, near)])
        K[np.diag_indices_from(K)] += D + OPTIONS.jitter * own.mean()
        factor, failed = dpotrf(K, lower=1, overwrite_a=1)
        if failed:  # not finite, or far from a solution: nothing is known of the effect of single rows
            return np.zeros(len(own))
        half = solve_triangular(factor, products[np.ix_(near, ~near)], lower=True)
        apart = np.empty(len(own))
        apart[~near] = own[~near] - np.einsum("ij,ij->j", half, half)
        apart[near] = 1 / dpotri(factor, lower=1, overwrite_c=1)[0].diagonal() - D
        move = beta * np.maximum(apart, 0.0)
        before, width = width, max(least, float(np.sqrt(weight @ move**2 / weight.sum())))
        if abs(width - before) <= OPTIONS.width_tolerance * before:
            break
    return move


class _Moves:
    """As `leave_one_out_moves`, from a sample of rows: of m rows the first `n_active` are those of A."""

    def __init__(self, Phi: Array, intercept: bool, beta: Array, residual: Array, weight: Array, n_active: int) -> None:
        self.residual, self.weight, self.A, self.rest = residual, weight, slice(0, n_active), slice(n_active, None)
        norms = np.einsum("ij,ij->i", Phi, Phi)
        square = (OPTIONS.intercept**2 * norms.max(initial=0.0) or 1.0) if intercept else 0.0
        K = Phi[self.A] @ Phi[self.A].T + square
        K[np.diag_indices(n_active)] += OPTIONS.jitter * (norms.mean() + square)
        factor, failed = dpotrf(K, lower=1)
        self.own, self.others = np.zeros(len(Phi)), np.zeros((len(Phi), 0))
        if failed:  # not finite, or far from a solution: nothing is known of the effect of single rows
            return
        # Of the rows themselves.
        half = solve_triangular(factor, Phi[self.A] @ Phi[self.rest].T + square, lower=True)
        apart = norms[self.rest] + square - np.einsum("ij,ij->j", half, half)
        self.own[self.rest] = beta[self.rest] * np.maximum(apart, 0.0)
        self.own[self.A] = beta[self.A] / np.diag(dpotri(factor, lower=1)[0])
        # Of rows that may be crossed, as columns: the kernel without what A explains, and interpolation weights of A.
        some = slice(n_active, n_active + OPTIONS.crossed)
        explained = half[:, : OPTIONS.crossed]
        between = Phi[self.rest] @ Phi[some].T + square - half.T @ explained
        weights = solve_triangular(factor, explained, lower=True, trans="T")
        self.others = np.vstack([self.own[self.A, None] * weights, beta[self.rest, None] * between])
        np.fill_diagonal(self.others[self.rest], 0.0)  # a row that is left out is not crossed

    def leave_one_out(self, pull: Array) -> Array:
        """How much residuals (m,) grow; `pull` (m,) is the slope of the objective that a row takes with it."""
        return np.sqrt(self._best_step(pull * np.abs(self.own))) * self.own

    def _best_step(self, slope: Array) -> Array:
        """The t in (0, 1] (m,) that minimises the objective without the row; t = 1 is the move if no row is crossed.

        Its derivative is  slope (t - 1)  plus  weight |move|  of every row that was crossed.
        """
        columns = slice(self.A.stop, self.A.stop + self.others.shape[1])
        residual, weight = self.residual[columns], self.weight[columns] * self._rest_share(columns)
        with np.errstate(divide="ignore", invalid="ignore"):
            crossing = -residual / self.others
        crossing = np.where((crossing > 0) & (crossing < 1), crossing, np.inf)
        cost, low, high = weight * np.abs(self.others), np.zeros(len(slope)), np.ones(len(slope))
        for _ in range(OPTIONS.bisections):
            middle = (low + high) / 2
            resists = np.sum(cost, axis=1, where=crossing < middle[:, None]) >= slope * (1 - middle)
            low, high = np.where(resists, low, middle), np.where(resists, middle, high)
        return high

    def _rest_share(self, columns: slice) -> float:
        """Weight of all rows that are not active, over that of those that stand for them."""
        return float(self.weight[self.rest].sum() / max(self.weight[columns].sum(), 1e-300))


def unbiased_quantile(values: Array, weight: Array, level: float) -> float:
    """Weighted quantile of values (m,), linear between them, hence continuous in values and weights.

    Row i of m equal weights is at the level i / (m + 1) (Weibull); m is Kish's number of rows, (sum w)^2 / sum w^2.
    """
    order = np.argsort(values)
    share = weight[order] / weight.sum()
    middle = np.cumsum(share) - share / 2
    return float(np.interp(level, 0.5 + (middle - 0.5) / (1 + share @ share), values[order]))
