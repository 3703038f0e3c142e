"""Pivoted Cholesky: features that reproduce the kernel to a tolerance, with as low a rank as the data allow.

The Gram matrix K of smooth kernels has rapidly decaying eigenvalues, so that  K = G G' + E  with a narrow G (n, rank)
and a negligible E. This is how `n_components="exact"` fits: by features, but with a known and tiny error.
"""

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

# Below this share of the trace, the residual of the kernel is rounding error.
FLOOR = 1e-14
# Candidates per block: larger blocks mean more work in matrix products but less greedy pivots.
BLOCK_SIZE = 128
# Pivots of a block are taken while they are at least this share of its first: smaller makes fewer, less greedy blocks.
MIN_PIVOT_RATIO = 0.03


class PivotedCholesky(TransformerMixin, BaseEstimator):
    """Low-rank features of a kernel by blocked pivoted Cholesky.

    K = G G' + E  on the training rows, with E positive semidefinite and its (weighted) mean diagonal at most `tol`
    times that of K. Rows with a large diagonal of E become landmarks P, a block at a time, until the trace of E is
    small enough. The rows of G are the features of the training rows, and  phi(x) = L^-1 K(P, x)  with  L L' = K(P, P)
    those of any row. A model fitted on G is kernel quantile regression itself, up to the effect of E, which is known.

    Parameters
    ----------
    kernel : str or kernel object, default="gaussian"
    tol : float, default=1e-10
        Mean diagonal of E, relative to that of K, at which to stop; values below 1e-14 count as 1e-14.
    max_components : int or None
        Largest rank allowed; None means the number of rows.

    Attributes
    ----------
    landmarks_ : ndarray of shape (n_components_, n_columns)
        The pivots, in the order in which they were chosen.
    factor_ : ndarray of shape (n_components_, n_components_)
        The lower triangular L.
    residual_ : ndarray of shape (n,)
        The diagonal of E, bounded below by rounding error.
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
        """Choose the landmarks; rows of weight 0 are never chosen."""
        self.fit_transform(X, y, sample_weight)
        return self

    def fit_transform(self, X: Array, y: Any = None, sample_weight: ArrayLike | None = None) -> Array:  # noqa: ARG002
        """Choose the landmarks and return G, shape (n, rank)."""
        with single_threaded_blas(len(X), BLOCK_SIZE):
            return self._factorize(np.asarray(X), sample_weight)

    def _factorize(self, X: Array, sample_weight: ArrayLike | None) -> Array:
        """Blocks of pivots until the weighted trace of E is small enough; sets the attributes and returns G.

        For each block: choose candidates by their residual; run pivoted Cholesky on their residual Gram matrix, which
        gives new landmarks and the triangular factor `lower`; extend G by  (K(X, P_new) - G G_new') lower^-T.
        """
        kernel, n = resolve(self.kernel), len(X)
        weight = np.ones(n) if sample_weight is None else np.asarray(sample_weight, dtype=float)
        diagonal = kernel.diagonal(X)
        residual = np.where(weight > 0, diagonal, 0.0)
        enough = max(self.tol, FLOOR) * (weight @ residual)
        limit = n if self.max_components is None else min(n, self.max_components)

        rng = np.random.default_rng(
            0
        )  # a fixed seed: it decides only which landmarks come first, and fits must not vary
        G: Array = np.empty((n, min(limit, BLOCK_SIZE)), order="F")
        pivots: list[int] = []
        while weight @ residual > enough and len(pivots) < limit:
            rank = len(pivots)
            candidates = _choose_candidates(residual, rng)
            known = G[candidates, :rank]
            candidate_residual = kernel.gram(X[candidates], X[candidates]) - known @ known.T
            chosen, lower = _factor_leading_pivots(candidate_residual, FLOOR * diagonal[candidates].max(), limit - rank)
            if len(chosen) == 0:
                break
            landmarks = candidates[chosen]
            columns = kernel.gram(X, X[landmarks])
            columns -= G[:, :rank] @ known[chosen].T
            G = _ensure_capacity(G, rank + len(chosen))
            new = G[:, rank : rank + len(chosen)]
            new[:] = solve_triangular(lower, columns.T, lower=True, check_finite=False, overwrite_b=True).T
            pivots += landmarks.tolist()
            residual -= np.einsum("ij,ij->i", new, new)
            # A landmark is reproduced exactly; what rounding leaves of it must not make it a candidate again.
            residual[landmarks] = 0
            np.maximum(residual, 0, out=residual)

        self.n_components_ = len(pivots)
        self.landmarks_ = np.array(X[pivots])
        self.factor_ = np.tril(G[pivots, : len(pivots)])
        # Rounding error of so many subtractions: smaller residuals than this are not known.
        rounding = np.sqrt(max(len(pivots), 1)) * np.finfo(float).eps
        self.residual_ = np.maximum(residual, rounding * diagonal)
        self.residual_trace_ = float(self.residual_.sum())
        return np.ascontiguousarray(G[:, : len(pivots)])

    def transform(self, X: Array) -> Array:
        """Features  phi(x) = L^-1 K(P, x)  of the rows of X, shape (n, rank)."""
        cross = resolve(self.kernel).gram(self.landmarks_, X)
        return np.ascontiguousarray(solve_triangular(self.factor_, cross, lower=True, check_finite=False).T)


def _choose_candidates(residual: Array, rng: np.random.Generator) -> NDArray[np.intp]:
    """Indices of up to BLOCK_SIZE candidates, by descending residual.

    A quarter are the rows with the largest residuals, which tend to lie close together; the others are drawn with
    probability in proportion to the residual (as in randomly pivoted Cholesky).
    """
    if np.count_nonzero(residual) <= BLOCK_SIZE:
        return np.argsort(-residual, kind="stable")[: np.count_nonzero(residual)]
    largest = np.argpartition(-residual, BLOCK_SIZE // 4)[: BLOCK_SIZE // 4]
    cumulative = np.cumsum(residual)
    drawn = np.searchsorted(cumulative, rng.random(BLOCK_SIZE - len(largest)) * cumulative[-1], side="right")
    both = np.unique(np.concatenate([largest, np.minimum(drawn, len(residual) - 1)]))
    return both[np.argsort(-residual[both], kind="stable")]


def _factor_leading_pivots(matrix: Array, floor: float, limit: int) -> tuple[NDArray[np.intp], Array]:
    """Pivots of a small matrix while they are at least a share of the first, and their lower Cholesky factor.

    Candidates of one block may be close to one another: once the first of a cluster is a pivot, the others have little
    residual left, and the next pivots are better chosen anew from all rows. (LAPACK's pstrf stops at a tolerance.)
    """
    smallest_pivot = max(MIN_PIVOT_RATIO * np.diag(matrix).max(), floor)
    factor, pivots, rank, _ = dpstrf(matrix, lower=1, tol=smallest_pivot)
    rank = min(rank, limit) if np.diag(matrix).max() > floor else 0
    return pivots[:rank] - 1, np.tril(factor[:rank, :rank])


def _ensure_capacity(G: Array, columns: int) -> Array:
    """G, or a copy with room for the columns: at least half as wide again, so that copies are rare."""
    if columns <= G.shape[1]:
        return G
    wider = np.empty((len(G), max(columns, G.shape[1] + G.shape[1] // 2)), order="F")
    wider[:, : G.shape[1]] = G
    return wider
