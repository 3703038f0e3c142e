"""The Newton system of levels that are coupled with their neighbours.

The Hessian of the levels is block-tridiagonal. With L_k the weighted features of the rows that hold level k, and T_k
those on which it meets the next, its blocks are

    2 alpha I + L_k'L_k + T_k'T_k + T_(k-1)'T_(k-1)     on the diagonal,     -T_k'T_k     beside it.

Elimination from the first level on replaces the last term by  T' (I - T A^-1 T') T,  where A is what has become of the
block before. With I - T A^-1 T' = C C' that is the square of C'T: more rows, as many as levels meet on, which are few.
So no block is ever a difference, and each is factored once.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.blas import dsyrk, dtrmm, dtrsm
from scipy.linalg.lapack import dpotrf, dpotrs

Array = NDArray[np.floating]


class BlockTridiagonal:
    """The Hessian in the coordinates (u_k, b_k) of the levels, with a Cholesky factor for each.

    losses (N, q) and constraints (N, q - 1) are the second derivatives of the smoothed losses and constraints, by row;
    `fallback` is what holds an intercept that no row does.
    """

    def __init__(
        self, features: Array, alphas: Array, fit_intercept: bool, losses: Array, constraints: Array, fallback: float
    ) -> None:
        self._factors: list[Array] = []
        self._ties: list[Array] = []
        left = np.empty((0, features.shape[1] + 1))  # C'T of the level before
        for k, alpha in enumerate(alphas):
            rows = [left, _weighted_rows(features, fit_intercept, losses[:, k])]
            if k < constraints.shape[1]:
                rows.append(
                    constraint_weight := _compress_rows(_weighted_rows(features, fit_intercept, constraints[:, k]))
                )
                self._ties.append(constraint_weight)
            self._factors.append(factor := _cholesky(_block(np.vstack(rows), alpha, fallback)))
            if k < constraints.shape[1]:
                left = _eliminate(factor, constraint_weight)

    def solve(self, right: Array) -> Array:
        """Hessian^-1 right, (M + 1, q)."""
        answer = right.copy()
        for k, factor in enumerate(self._factors):
            if k:
                answer[:, k] += self._ties[k - 1].T @ (self._ties[k - 1] @ answer[:, k - 1])
            answer[:, k] = _solve_block(factor, answer[:, k])
        for k in range(len(self._factors) - 2, -1, -1):
            back = self._ties[k].T @ (self._ties[k] @ answer[:, k + 1])
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
    """As few rows with the same square."""
    return np.asarray(np.linalg.qr(rows, mode="r")) if len(rows) > rows.shape[1] else rows


def _block(rows: Array, alpha: float, fallback: float) -> Array:
    """2 alpha I + rows'rows, its lower triangle."""
    block = dsyrk(1.0, rows.T, lower=1)
    block[np.diag_indices(len(block) - 1)] += 2 * alpha
    if block[-1, -1] == 0:  # no row holds the intercept: as if one did
        block[-1, -1] = fallback
    return block


def _eliminate(factor: Array, constraint_weight: Array) -> Array:
    """C'T, where C C' = I - T A^-1 T' and A = factor factor'."""
    if len(constraint_weight) == 0:
        return constraint_weight
    inner = dtrsm(1.0, factor, constraint_weight.T, lower=1)
    rest = dsyrk(-1.0, inner, trans=1, lower=1, beta=1.0, c=np.eye(len(constraint_weight)))
    return dtrmm(1.0, _cholesky(rest), constraint_weight.T, side=1, lower=1).T


def _cholesky(block: Array) -> Array:
    """Cholesky factor; where rounding has made the block indefinite, of one with a little more on its diagonal."""
    more = 0.0
    for _ in range(20):
        factor, failed = dpotrf(block + more * np.eye(len(block)) if more else block, lower=1)
        if not failed:
            return factor
        more = max(10 * more, 1e-15 * float(np.trace(block)) / len(block))
    raise np.linalg.LinAlgError("The Newton system of the joint levels cannot be factored.")


def _solve_block(factor: Array, right: Array) -> Array:
    return dpotrs(factor, right, lower=1)[0]
