"""Shifts by which quantile levels hold on new rows: leave-one-out residuals, without refitting.

A flexible fit is closer to its training rows than to new ones, so that its outer levels are too narrow. What a row does
to the fit at its own place follows from the optimality conditions (the span of Vapnik and Chapelle 2000). With
psi = (phi, c), c a constant for the intercept, and dual variables v the solution is

    u = sum_i beta_i psi_i,        beta_i = share_i v_i / (2 alpha).

Rows on a side of the curve have v at a bound; the active rows A, with v strictly inside, are interpolated. While a row
is left out the others stay where they are, so that the leave-one-out residual is, with K = Psi_A Psi_A',

    row i not in A:    r_i + beta_i (|psi_i|^2 - psi_i' Psi_A' K^-1 Psi_A psi_i),
    row i in A:        beta_i / (K^-1)_ii.

One Cholesky factor of K serves all rows. Residuals of rows not in A keep their sign, so that a sample of these rows,
next to all of A, determines the shift well.

On the way rows of the other side would be crossed, and resist: the move above is too long, by the more the fewer rows
are active. The best step in its direction, by an exact line search in which crossed rows change sides, is too short,
since they could become active instead. The geometric mean of the two is taken; on tables of 60 to 150 rows the shifts
are then mostly within a third of those of actual refits, where full moves give up to three times as much.

Where some of the rows are the landmarks of the features, these are unlike new rows: their features are longer (|phi|^2
is all of K(x, x)), so that without them the fit is further away. Then only the other rows count.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular
from scipy.linalg.lapack import dpotrf, dpotri

from quernel._threads import single_threaded_blas
from quernel.data import ArrayRows
from quernel.estimators.solve import Solution
from quernel.features import PivotedCholesky
from quernel.features.sampling import row_hash
from quernel.losses import Pinball
from quernel.solvers.result import Status

Array = NDArray[np.floating]
Index = NDArray[np.intp]


@dataclass(frozen=True)
class RecalibrationOptions:
    """Constants of the shifts."""

    min_rows: int = 10  # with fewer distinct rows nothing is shifted
    min_active_share: float = 0.002  # with fewer active rows the fit is as close to new rows as to its own
    min_others: int = 200  # with fewer rows that are no landmarks, landmarks count as well
    sampled: int = 600  # rows on the sides of the curve, at most ...
    crossed: int = 400  # ... of which so many stand for those that may be crossed
    bisections: int = 12  # of the line search
    intercept: float = 10.0  # c, in units of the largest |phi|: so large that the penalty on c hardly matters
    jitter: float = 1e-10  # added to the diagonal of K, as a share of its mean


OPTIONS = RecalibrationOptions()


def level_shifts(rows: ArrayRows, centre: float, loss: Pinball, alpha: float, intercept: bool, fit: Solution) -> Array:
    """What to add to the predictions of each level, (q,), so that it holds: a quantile of leave-one-out residuals.

    Parameters
    ----------
    rows : ArrayRows, the training rows, with y - centre for y
    centre : float
    loss : Pinball, of q levels
    alpha, intercept : ridge weight, and whether there is an intercept
    fit : the solution, with dual variables (n, q)
    """
    result, share = fit.result, rows.share()
    if Status.STOPPED in result.status:  # no time is left, and what is known of single rows holds at the optimum
        return np.zeros(loss.n_columns)
    if result.dual.shape != (rows.n_rows, loss.n_columns) or not np.all(result.null_objective > 0):
        return np.zeros(loss.n_columns)
    active = loss.strictly_inside(result.dual)
    if active.mean(axis=0).max() < OPTIONS.min_active_share:
        return np.zeros(loss.n_columns)
    table = _DistinctRows(rows, share)
    if len(table.first) < OPTIONS.min_rows:
        return np.zeros(loss.n_columns)
    exact = isinstance(fit.feature_map, PivotedCholesky)  # has all of K(x, x) for all rows
    is_landmark = table.find(None if exact else getattr(fit.feature_map, "landmarks_", None))
    with single_threaded_blas(0, 0):
        shifts = []
        for k, level in enumerate(loss.levels):
            beta = table.total(share * result.dual[:, k]) / (2 * alpha)
            inside = table.total(active[:, k]) > 0
            picked = np.r_[np.flatnonzero(inside), table.sample(~inside)]
            Phi = fit.feature_map.transform(np.asarray(rows.X[table.first[picked]], dtype=float))
            residual = rows.y[table.first[picked]] - Phi @ result.coef[:, k] - (result.intercept[k] - centre)
            weight = table.weights(picked, np.sign(beta) * ~inside + 3 * is_landmark)
            move = _Moves(Phi, intercept, beta[picked], residual, weight, int(inside.sum()))
            # A row of share s and dual v pulls with s v = 2 alpha beta.
            left_out = move.leave_one_out(2 * alpha * np.abs(beta[picked]))
            counts = ~is_landmark[picked]
            shifts.append(interpolated_quantile(left_out[counts], weight[counts], float(level)))
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


class _Moves:
    """How residuals of one level move when a row is left out; of m rows the first `n_active` are those of A."""

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
        """Leave-one-out residuals (m,); `pull` (m,) is the slope of the objective that a row takes with it."""
        start = self.residual.copy()
        start[self.A] = 0.0
        return start + np.sqrt(self._best_step(pull * np.abs(self.own))) * self.own

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


def interpolated_quantile(values: Array, weight: Array, level: float) -> float:
    """Weighted quantile of values (m,), linear between them (Hazen), hence continuous in values and weights."""
    order = np.argsort(values)
    cumulated = np.cumsum(weight[order])
    return float(np.interp(level, (cumulated - weight[order] / 2) / cumulated[-1], values[order]))
