"""The Newton system of levels that are coupled with their neighbours."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dpotrf, dpotrs

Array = NDArray[np.floating]


class BlockTridiagonal:
    """The Hessian in the coordinates (u_k, b_k) of the levels, with a Cholesky factor for each.

    losses (N, q) and ties (N, q - 1) are the second derivatives of the smoothed losses and constraints, by row; `spare`
    is what holds an intercept that no row does.
    What couples a level with the next is -T'T, where T are the weighted features of the rows on which they meet: few.
    """

    def __init__(
        self, features: Array, alphas: Array, fit_intercept: bool, losses: Array, ties: Array, spare: float
    ) -> None:
        weight = losses.copy()
        weight[:, :-1] += ties
        weight[:, 1:] += ties
        self._factors: list[Array] = []
        self._ties: list[Array] = []
        for k, alpha in enumerate(alphas):
            rows = _weighted(features, fit_intercept, weight[:, k])
            block = rows.T @ rows
            block[np.diag_indices(len(block) - 1)] += 2 * alpha
            if block[-1, -1] == 0:  # no row holds the intercept: as if one did
                block[-1, -1] = spare
            if k:
                tie = self._ties[-1]
                block -= tie.T @ (tie @ _solved(self._factors[-1], tie.T)) @ tie
            self._factors.append(_factored(block))
            if k < ties.shape[1]:
                tie = _weighted(features, fit_intercept, ties[:, k])
                self._ties.append(np.asarray(np.linalg.qr(tie, mode="r")) if len(tie) > tie.shape[1] else tie)

    def solve(self, right: Array) -> Array:
        """Hessian^-1 right, (M + 1, q)."""
        answer = right.copy()
        for k, factor in enumerate(self._factors):
            if k:
                answer[:, k] += self._ties[k - 1].T @ (self._ties[k - 1] @ answer[:, k - 1])
            answer[:, k] = _solved(factor, answer[:, k])
        for k in range(len(self._factors) - 2, -1, -1):
            back = self._ties[k].T @ (self._ties[k] @ answer[:, k + 1])
            answer[:, k] += _solved(self._factors[k], back)
        return answer


def _weighted(features: Array, fit_intercept: bool, weight: Array) -> Array:
    """sqrt(weight_i) (phi_i, 1),  or without intercept (phi_i, 0),  of the rows that have weight."""
    rows = np.flatnonzero(weight)
    root = np.sqrt(weight[rows])
    answer = np.empty((len(rows), features.shape[1] + 1))
    np.multiply(features[rows], root[:, None], out=answer[:, :-1])
    answer[:, -1] = root if fit_intercept else 0
    return answer


def _factored(block: Array) -> Array:
    """Cholesky factor; where rounding has made the block indefinite, of one with a little more on its diagonal."""
    more = 0.0
    for _ in range(20):
        factor, failed = dpotrf(block + more * np.eye(len(block)), lower=1)
        if not failed:
            return factor
        more = max(10 * more, 1e-15 * float(np.trace(block)) / len(block))
    raise np.linalg.LinAlgError("The Newton system of the joint levels cannot be factored.")


def _solved(factor: Array, right: Array) -> Array:
    return dpotrs(factor, right, lower=1)[0]
