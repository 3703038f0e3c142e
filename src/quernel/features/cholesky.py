"""Pivoted Cholesky: the features of the kernel itself, as many as the data need."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import solve_triangular
from scipy.linalg.lapack import dpstrf
from sklearn.base import BaseEstimator, TransformerMixin

from quernel._threads import single_threaded_blas
from quernel.kernels import Kernel, resolve

Array = NDArray[np.floating]

# Below this share of the trace, what is left of the kernel is rounding error.
FLOOR = 1e-14
CANDIDATES = 128
WORTHWHILE = 0.03


class PivotedCholesky(TransformerMixin, BaseEstimator):
    """K = G G' + E with E positive semidefinite and its (weighted) mean diagonal at most `tol` of that of K.

    Rows with the largest diagonal of E become landmarks P, a block at a time, until the trace of E is small enough.
    G are the features of the training rows, and  phi(x) = L^-1 K(P, x)  with  L L' = K(P, P)  those of any row: a model
    fitted on G is kernel quantile regression itself, up to the effect of E, which is known.

    Parameters
    ----------
    kernel : str or kernel object, default="gaussian"
    tol : float, default=1e-10
        Mean diagonal of E, relative to that of K, at which to stop; never below 1e-14.
    max_components : int or None
        Largest rank allowed (None: the number of rows).

    Attributes
    ----------
    landmarks_ : ndarray of shape (n_components_, n_columns)
    factor_ : ndarray of shape (n_components_, n_components_), lower triangular
    residual_ : ndarray of shape (n,)
        Diagonal of E.
    residual_trace_ : float
        Its sum.
    n_components_ : int
        The rank reached.
    """

    def __init__(
        self, kernel: str | Kernel = "gaussian", *, tol: float = 1e-10, max_components: int | None = None
    ) -> None:
        self.kernel = kernel
        self.tol = tol
        self.max_components = max_components

    def fit(self, X: Array, y: Any = None, sample_weight: ArrayLike | None = None) -> Self:
        """Choose the landmarks."""
        self.fit_transform(X, y, sample_weight)
        return self

    def fit_transform(self, X: Array, y: Any = None, sample_weight: ArrayLike | None = None) -> Array:  # noqa: ARG002
        """Choose the landmarks and return G, shape (n, rank)."""
        with single_threaded_blas(len(X), CANDIDATES):
            return self._factor(np.asarray(X), sample_weight)

    def _factor(self, X: Array, sample_weight: ArrayLike | None) -> Array:
        kernel, n = resolve(self.kernel), len(X)
        weight = np.ones(n) if sample_weight is None else np.asarray(sample_weight, dtype=float)
        diagonal = kernel.diagonal(X)
        residual = np.where(weight > 0, diagonal, 0.0)
        enough = max(self.tol, FLOOR) * (weight @ residual)
        limit = n if self.max_components is None else min(n, self.max_components)

        rng = np.random.default_rng(0)  # only the order of the landmarks depends on it, and they must not vary
        G: Array = np.empty((n, min(limit, CANDIDATES)), order="F")
        pivots: list[int] = []
        while weight @ residual > enough and len(pivots) < limit:
            rank = len(pivots)
            candidates = _candidates(residual, rng)
            known = G[candidates, :rank]
            small = kernel.gram(X[candidates], X[candidates]) - known @ known.T
            chosen, lower = _leading_cholesky(small, FLOOR * diagonal[candidates].max(), limit - rank)
            if len(chosen) == 0:
                break
            landmarks = candidates[chosen]
            columns = kernel.gram(X, X[landmarks])
            columns -= G[:, :rank] @ known[chosen].T
            G = _with_room(G, rank + len(chosen))
            new = G[:, rank : rank + len(chosen)]
            new[:] = solve_triangular(lower, columns.T, lower=True, check_finite=False, overwrite_b=True).T
            pivots += landmarks.tolist()
            residual -= np.einsum("ij,ij->i", new, new)
            # A landmark is represented exactly; what rounding leaves of it must not make it a candidate again.
            residual[landmarks] = 0
            np.maximum(residual, 0, out=residual)

        self.n_components_ = len(pivots)
        self.landmarks_ = np.array(X[pivots])
        self.factor_ = np.tril(G[pivots, : len(pivots)])
        # What so many subtractions leave in floating point is not known better than this.
        rounding = np.sqrt(max(len(pivots), 1)) * np.finfo(float).eps
        self.residual_ = np.maximum(residual, rounding * diagonal)
        self.residual_trace_ = float(self.residual_.sum())
        return np.ascontiguousarray(G[:, : len(pivots)])

    def transform(self, X: Array) -> Array:
        """phi(x) = L^-1 K(P, x), shape (n, rank)."""
        cross = resolve(self.kernel).gram(self.landmarks_, X)
        return np.ascontiguousarray(solve_triangular(self.factor_, cross, lower=True, check_finite=False).T)


def _candidates(residual: Array, rng: np.random.Generator) -> NDArray[np.intp]:
    """The rows with the largest residuals, and others drawn by their residual: the largest alone lie close together."""
    if np.count_nonzero(residual) <= CANDIDATES:
        return np.argsort(-residual, kind="stable")[: np.count_nonzero(residual)]
    largest = np.argpartition(-residual, CANDIDATES // 4)[: CANDIDATES // 4]
    reached = np.cumsum(residual)
    drawn = np.searchsorted(reached, rng.random(CANDIDATES - len(largest)) * reached[-1], side="right")
    both = np.unique(np.concatenate([largest, np.minimum(drawn, len(residual) - 1)]))
    return both[np.argsort(-residual[both], kind="stable")]


def _leading_cholesky(matrix: Array, floor: float, limit: int) -> tuple[NDArray[np.intp], Array]:
    """Greedy pivots of a small matrix while they stay within a share of the first, and their Cholesky factor.

    Candidates of one block may be close to one another: after the first of a cluster is taken, the others have little
    left, and are better chosen anew from all rows.
    """
    enough = max(WORTHWHILE * np.diag(matrix).max(), floor)
    factor, pivots, rank, _ = dpstrf(matrix, lower=1, tol=enough)
    rank = min(rank, limit) if np.diag(matrix).max() > floor else 0
    return pivots[:rank] - 1, np.tril(factor[:rank, :rank])


def _with_room(G: Array, columns: int) -> Array:
    """G, or a wider copy of it when the columns do not fit."""
    if columns <= G.shape[1]:
        return G
    wider = np.empty((len(G), max(columns, G.shape[1] + G.shape[1] // 2)), order="F")
    wider[:, : G.shape[1]] = G
    return wider
