"""Block-tridiagonal Cholesky: the Newton system of levels that are coupled with their neighbours.

With L_k the weighted features of the active rows of level k, and T_k those of its active constraints with level k + 1,
the Hessian has the blocks

    2 alpha I + L_k'L_k + T_k'T_k + T_(k-1)'T_(k-1)     on the diagonal,     -T_k'T_k     beside it.

Block elimination from the first level on replaces the last term by  T' (I - T A^-1 T') T,  where A is the eliminated
block before. With I - T A^-1 T' = C C' that is (C'T)'(C'T): further rows, as many as there are active constraints,
which are few. So no block is ever a difference, which would lose digits, and each is factorized once.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.blas import dsyrk, dtrmm, dtrsm
from scipy.linalg.lapack import dpotrf, dpotrs

Array = NDArray[np.floating]


class BlockTridiagonal:
    """The Hessian in the coordinates (u_k, b_k) of the levels, by one Cholesky factor per level.

    Parameters
    ----------
    features : array of shape (N, M)
    alphas : array of shape (q,)
    fit_intercept : bool
    losses, constraints : arrays of shape (N, q) and (N, q - 1)
        Second derivatives of each row's smoothed losses and constraints.
    fallback : float
        Diagonal entry of an intercept without active rows.
    """

    def __init__(
        self, features: Array, alphas: Array, fit_intercept: bool, losses: Array, constraints: Array, fallback: float
    ) -> None:
        self._factors: list[Array] = []
        self._couplings: list[Array] = []
        carried = np.empty((0, features.shape[1] + 1))  # C'T of the level before
        for k, alpha in enumerate(alphas):
            rows = [carried, _weighted_rows(features, fit_intercept, losses[:, k])]
            if k < constraints.shape[1]:
                coupling = _compress_rows(_weighted_rows(features, fit_intercept, constraints[:, k]))
                rows.append(coupling)
                self._couplings.append(coupling)
            self._factors.append(factor := _cholesky(_block(np.vstack(rows), alpha, fallback)))
            if k < constraints.shape[1]:
                carried = _eliminate(factor, coupling)

    def solve(self, right: Array) -> Array:
        """Hessian^-1 right, (M + 1, q)."""
        answer = right.copy()
        for k, factor in enumerate(self._factors):
            if k:
                answer[:, k] += self._couplings[k - 1].T @ (self._couplings[k - 1] @ answer[:, k - 1])
            answer[:, k] = _solve_block(factor, answer[:, k])
        for k in range(len(self._factors) - 2, -1, -1):
            back = self._couplings[k].T @ (self._couplings[k] @ answer[:, k + 1])
            answer[:, k] += _solve_block(self._factors[k], back)
        return answer


def _weighted_rows(features: Array, fit_intercept: bool, weight: Array) -> Array:
    """sqrt(weight_i) (phi_i, 1),  or without intercept (phi_i, 0),  of the rows that have weight."""
    rows = np.flatnonzero(weight)
    root = np.sqrt(weight[rows])
    answer = np.empty((len(rows), features.shape[1] + 1))
    np.multiply(features[rows], root[:, None], out=answer[:, :-1])
    answer[:, -1] = root if fit_intercept else 0
    return answer


def _compress_rows(rows: Array) -> Array:
    """At most M + 1 rows with the same Gram matrix, by QR."""
    return np.asarray(np.linalg.qr(rows, mode="r")) if len(rows) > rows.shape[1] else rows


def _block(rows: Array, alpha: float, fallback: float) -> Array:
    """2 alpha I + rows'rows (lower triangle); no ridge on the intercept."""
    block = dsyrk(1.0, rows.T, lower=1)
    block[np.diag_indices(len(block) - 1)] += 2 * alpha
    if block[-1, -1] == 0:  # no active row: keep the intercept determined
        block[-1, -1] = fallback
    return block


def _eliminate(factor: Array, coupling: Array) -> Array:
    """C'T, where C C' = I - T A^-1 T' and A = factor factor'."""
    if len(coupling) == 0:
        return coupling
    inner = dtrsm(1.0, factor, coupling.T, lower=1)
    rest = dsyrk(-1.0, inner, trans=1, lower=1, beta=1.0, c=np.eye(len(coupling)))
    return dtrmm(1.0, _cholesky(rest), coupling.T, side=1, lower=1).T


def _cholesky(block: Array) -> Array:
    """Cholesky factor, with jitter on the diagonal where rounding has made the block indefinite."""
    more = 0.0
    for _ in range(20):
        factor, failed = dpotrf(block + more * np.eye(len(block)) if more else block, lower=1)
        if not failed:
            return factor
        more = max(10 * more, 1e-15 * float(np.trace(block)) / len(block))
    raise np.linalg.LinAlgError("The Newton system of the joint levels cannot be factored.")


def _solve_block(factor: Array, right: Array) -> Array:
    """Solve with the Cholesky factor of one block."""
    return dpotrs(factor, right, lower=1)[0]
