"""Features from landmarks: a low-rank approximation of the kernel from a subset of the rows.

With landmarks P, the approximation is  K(x, P) K(P, P)^-1 K(P, z),  the kernel of the projection on the span of the
functions K(., p). It is exact on the landmarks and never exceeds K on the diagonal. `Nystroem` takes a given number of
landmarks. `PivotedCholesky` takes as many as are needed to reproduce the kernel to a tolerance: the Gram matrix of a
smooth kernel has rapidly decaying eigenvalues, so that  K = G G' + E  with a narrow G (n, rank) and a negligible E.
This is how `n_components="exact"` fits: by features, but with a known and tiny error.

Samples of distinct rows, landmarks and others, are made by hashing: each row is hashed to 64 bits, and the rows with
the smallest hashes are the sample (bottom-k sampling). It needs no seed, and shuffling the rows, or replacing weights
by repeated rows, gives the same one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray
from scipy.linalg import cho_factor, cho_solve, eigh, solve_triangular
from scipy.linalg.blas import dtrmm
from scipy.linalg.lapack import dpocon, dpotrf, dpstrf, dtrtri
from sklearn.base import BaseEstimator, TransformerMixin

from quernel._machine import single_threaded_blas, strips
from quernel._validation import check_choice
from quernel.kernels import Kernel, ShiftInvariantKernel, resolve
from quernel.kernels.base import Seed, as_generator
from quernel.kernels.fourier import prepare_distances

Array = NDArray[np.floating]
Index = NDArray[np.intp]

LANDMARKS = ("uniform", "distinct", "kmeans", "leverage", "greedy")
# Steps of k-means, and rows per landmark that it sees at most.
KMEANS_STEPS, KMEANS_ROWS = 4, 16
# Eigenvalues of the landmarks' Gram matrix below this share of the largest are rounding error, and dropped.
FLOOR = 1e-13
# Reciprocal of the condition number above which its Cholesky factor is taken, a tenth of the time.
WELL_CONDITIONED = 1e-12


class Nystroem(TransformerMixin, BaseEstimator):
    """Approximate a kernel by its projection on landmarks (Williams and Seeger, 2001).

    phi(x) = B'K(P, x)  with  B B' = K(P, P)^-1  for the Gram matrix of the landmarks P: B = L^-T by its Cholesky
    factor L or, where it is nearly singular, V D^-1/2 by its eigendecomposition V D V'.

    Parameters
    ----------
    kernel : str or kernel object, default="gaussian"
    n_components : int, default=100
        The number of landmarks. Eigenvalues that are zero to working precision are dropped, so there may be fewer
        features.
    landmarks : {"uniform", "distinct", "kmeans", "leverage", "greedy"}, default="uniform"
        How landmarks are chosen. "uniform": a random sample of the rows. "distinct": a sample of distinct rows by
        hashing, which depends neither on a seed nor on the order, the repetitions or the units of the data. "kmeans":
        from there, a few steps of k-means in units of the bandwidths, which serves tables of many rows per landmark
        (Zhang, Tsang and Kwok, 2008); for kernels with bandwidths. "leverage": by ridge leverage scores, estimated on
        growing samples (the recursive method of Musco and Musco, 2017).
        "greedy": repeatedly the row with the largest approximation error (pivoted Cholesky).
    alpha : float or None
        For "leverage": the ridge penalty of the scores.
    random_state : int, numpy Generator, numpy RandomState or None
        Seed or generator of the choice of landmarks.
    nugget : float, default=0.0
        Added to the diagonal of K(P, P), as a share of its mean. Features of a kernel with fast decaying eigenvalues
        keep more digits that way, and lose its finest detail.

    Attributes
    ----------
    landmarks_ : ndarray of shape (n_landmarks, n_columns)
        The rows chosen or, of k-means, the centres.
    projection_ : ndarray of shape (n_landmarks, n_components_)
        B.
    n_components_ : int
        The number of features.
    """

    def __init__(
        self,
        kernel: str | Kernel = "gaussian",
        n_components: int = 100,
        *,
        landmarks: str = "uniform",
        alpha: float | None = None,
        random_state: Seed = None,
        nugget: float = 0.0,
    ) -> None:
        self.kernel = kernel
        self.n_components = n_components
        self.landmarks = landmarks
        self.alpha = alpha
        self.random_state = random_state
        self.nugget = nugget

    def fit(self, X: Array, y: Any = None, sample_weight: ArrayLike | None = None) -> Self:  # noqa: ARG002
        """Choose the landmarks among the rows of X and decompose their Gram matrix.

        Rows of weight 0 are never chosen; "uniform" and "leverage" sample in proportion to the weights.
        """
        kernel = self._check()
        weight = np.ones(len(X)) if sample_weight is None else np.asarray(sample_weight, dtype=float)
        X, weight = np.asarray(X)[weight > 0], weight[weight > 0]
        size = min(self.n_components, len(X))
        if self.landmarks == "uniform":
            rng = as_generator(self.random_state)
            chosen = rng.choice(len(X), size, replace=False, p=weight / weight.sum())
        elif self.landmarks == "distinct":
            chosen, _ = sample_by_rank(X, weight, size)
        elif self.landmarks == "greedy":
            chosen = _choose_greedily(kernel, X, size)
        elif self.landmarks == "kmeans":
            chosen, total = sample_by_rank(X, weight, KMEANS_ROWS * size)
        else:
            assert self.alpha is not None
            rng = as_generator(self.random_state)
            chosen = _choose_by_leverage(kernel, X, weight / weight.sum(), size, self.alpha, rng)
        self.landmarks_ = np.array(X[chosen], dtype=float)
        if self.landmarks == "kmeans":
            scale = next(
                part.scale(X.shape[1]) for _, part in kernel.summands if isinstance(part, ShiftInvariantKernel)
            )
            self.landmarks_ = _average_clusters(self.landmarks_, total, scale, size)
        gram = kernel.gram(self.landmarks_, self.landmarks_)
        if self.nugget:
            gram[np.diag_indices_from(gram)] += self.nugget * gram.diagonal().mean()
        self.projection_, self._triangular = _invert_root(gram)
        self.n_components_ = int(self.projection_.shape[1])
        return self

    def transform(self, X: Array, *, dtype: DTypeLike = float) -> Array:
        """phi(x) = B'K(P, x), shape (n, n_components_), computed in double precision and stored as `dtype`."""
        Phi = np.empty((len(X), self.n_components_), dtype=dtype)
        for strip in strips(*Phi.shape):
            cross = self._cross_gram(X[strip])
            if self._triangular:  # half of the operations
                Phi[strip] = dtrmm(1.0, self.projection_, cross.T, trans_a=1, overwrite_b=1).T
            else:
                np.matmul(cross, self.projection_, out=Phi[strip], casting="same_kind")
        return Phi

    def curves(self, X: Array, coef: Array) -> Array:
        """Predictions  phi(x)'u = K(x, P) B u  for every column u of `coef`, without computing the features."""
        predictor, weights = _convert_once(self, coef)  # as saved models predict: to the same bits
        return predictor.curves(X, weights)

    def prepare(self, n_rows: int) -> None:
        """Load compiled code if that pays for a total of `n_rows` rows, transformed in one call or in many."""
        prepare_distances(n_rows, *self.landmarks_.shape)

    def _cross_gram(self, X: Array) -> Array:
        """K(x, P), shape (n, n_landmarks)."""
        return resolve(self.kernel).gram(np.asarray(X, dtype=float), self.landmarks_)

    def _check(self) -> Kernel:
        """Validate the parameters and return the kernel."""
        kernel = resolve(self.kernel)
        kernel.check_diagonal()
        check_choice("landmarks", self.landmarks, LANDMARKS)
        if self.landmarks == "kmeans" and not kernel.takes_bandwidth:
            raise ValueError(f"landmarks='kmeans' needs a kernel with bandwidths; got {kernel!r}.")
        if self.landmarks == "leverage" and not (self.alpha is not None and 0 < self.alpha < np.inf):
            raise ValueError(
                f"landmarks='leverage' needs alpha, the ridge penalty of the fit that will follow; got {self.alpha!r}."
            )
        return kernel


def distinct_rows(X: Array, share: Array, limit: int) -> tuple[Array, Array]:
    """Up to `limit` distinct rows of X, shape (m, d), and the total weight of the rows equal to each, shape (m,)."""
    sampled, codes = sample_of_rows(X, limit)
    _, first, group = np.unique(codes, return_index=True, return_inverse=True)
    return np.asarray(X[sampled[first]], dtype=float), np.bincount(group, weights=share[sampled]).astype(float)


def sample_by_rank(X: Array, weight: Array, limit: int) -> tuple[Index, Array]:
    """Indices of up to `limit` distinct rows and the total weight of the rows equal to each.

    Unlike `sample_of_rows` invariant to the units of the columns, too: ranks within each column are hashed instead of
    values, which costs a sort of every column.
    """
    ranks = [np.unique(column, return_inverse=True)[1].astype(float) for column in np.asarray(X).T]
    _, first, group = np.unique(row_hash(np.column_stack(ranks)), return_index=True, return_inverse=True)
    return first[:limit], np.bincount(group, weight).astype(float)[:limit]


def sample_of_rows(X: Array, limit: int) -> tuple[NDArray[np.intp], NDArray[np.uint64]]:
    """Sample up to `limit` distinct rows, with all their duplicates, by the smallest hashes.

    Returns
    -------
    indices : array of int of shape (m,), ascending
        The sampled rows and all rows equal to them; m may exceed `limit`.
    codes : array of uint64 of shape (m,)
        Their hashes: equal rows have equal hashes.
    """
    codes = row_hash(X)
    # Among the 4 `limit` smallest hashes there are usually `limit` distinct ones: no need to sort all of them.
    smallest = np.sort(np.partition(codes, 4 * limit)[: 4 * limit]) if len(codes) > 8 * limit else np.sort(codes)
    distinct = np.unique(smallest)
    if len(distinct) < limit < len(smallest) < len(codes):  # too many duplicates: all hashes are needed after all
        distinct = np.unique(codes)
    threshold = distinct[:limit][-1]
    indices = np.flatnonzero(codes <= threshold)
    return indices, codes[indices]


def row_hash(X: Array) -> NDArray[np.uint64]:
    """A 64-bit hash of the values of each row (splitmix64, column by column), shape (n,)."""
    code = np.zeros(len(X), dtype=np.uint64)
    for column in np.asarray(X, dtype=float).T:
        code += (column + 0.0).view(np.uint64) + np.uint64(0x9E3779B97F4A7C15)  # + 0.0 turns -0.0 into 0.0
        code = (code ^ (code >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        code = (code ^ (code >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        code ^= code >> np.uint64(31)
    return code


def _invert_root(gram: Array) -> tuple[Array, bool]:
    """B with B B' = gram^-1, without directions of rounding error, and whether it is (upper) triangular."""
    size, (factor, failed) = np.abs(gram).sum(axis=0).max(), dpotrf(gram, lower=1)
    if not failed and dpocon(factor, size, uplo="L")[0] > WELL_CONDITIONED:
        return np.asfortranarray(dtrtri(factor, lower=1)[0].T), True
    eigenvalues, eigenvectors = eigh(gram)
    kept = eigenvalues > FLOOR * eigenvalues[-1]
    return eigenvectors[:, kept] / np.sqrt(eigenvalues[kept]), False


def _average_clusters(rows: Array, weight: Array, scale: Array, size: int) -> Array:
    """Weighted means of the clusters that k-means finds in rows (n, d), divided by `scale` (d,); the first are seeds.

    Distances are those of rows in single precision, so that rounding errors of other units do not matter.
    """
    scaled = ((rows - rows.mean(axis=0)) / scale).astype(np.float32)
    centers, means = scaled[:size], rows[:size]
    for _ in range(KMEANS_STEPS):
        half = np.sum(centers**2, axis=1) / 2
        parts = [np.argmax(scaled[strip] @ centers.T - half, axis=1) for strip in strips(len(rows), len(centers))]
        nearest = np.concatenate(parts)
        total = np.bincount(nearest, weight, minlength=len(centers))
        sums = np.column_stack([np.bincount(nearest, weight * column, minlength=len(centers)) for column in rows.T])
        means = np.where(total[:, None] > 0, sums / np.maximum(total, np.finfo(float).tiny)[:, None], means)
        centers = ((means - rows.mean(axis=0)) / scale).astype(np.float32)
    return means


def _choose_greedily(kernel: Kernel, X: Array, size: int) -> Index:
    """Pivoted Cholesky, one pivot at a time: repeatedly the row with the largest residual K(x, x) - |g(x)|^2.

    G (n, rank) is the Cholesky factor so far, with rows g(x): K is about G G'.
    """
    residual = kernel.diagonal(X)
    enough = FLOOR * residual.max()
    G, pivots = np.zeros((len(X), size)), []
    for rank in range(size):
        pivot = int(np.argmax(residual))
        if residual[pivot] <= enough:
            break
        column = kernel.gram(X, X[[pivot]])[:, 0] - G[:, :rank] @ G[pivot, :rank]
        G[:, rank] = column / np.sqrt(column[pivot])
        residual = np.maximum(residual - G[:, rank] ** 2, 0)
        residual[pivot] = 0
        pivots.append(pivot)
    return np.array(pivots, dtype=np.intp)


def _choose_by_leverage(
    kernel: Kernel, X: Array, share: Array, size: int, alpha: float, rng: np.random.Generator
) -> Index:
    """Recursive leverage-score sampling (Musco and Musco, 2017).

    Scores are estimated on samples of doubling size, each with the landmarks that were sampled by the scores before;
    the last sample is all rows, and its scores choose the landmarks.
    """
    order = rng.permutation(len(X))
    m = min(len(X), 2 * size)
    landmarks, inclusion = order[:m], np.ones(m)
    while True:
        m = min(len(X), 2 * m)
        rows = order[:m]
        weight = share[rows] / share[rows].sum()
        landmark_weight = share[landmarks] / share[rows].sum()
        score = row_leverage_scores(kernel, X[rows], weight, X[landmarks], landmark_weight, inclusion, alpha)
        if m == len(X):
            return rows[rng.choice(m, size, replace=False, p=score / score.sum())]
        inclusion = np.minimum(1.0, size * score / score.sum())
        kept = rng.random(m) < inclusion
        landmarks, inclusion = rows[kept], inclusion[kept]


def row_leverage_scores(
    kernel: Kernel, X: Array, weight: Array, landmarks: Array, landmark_weight: Array, inclusion: Array, alpha: float
) -> Array:
    """Upper bounds of the ridge leverage scores of the rows of X, from landmarks P; shape (n,).

    w_x [K(x, x) - K(x, P) (K(P, P) + alpha diag(inclusion / w_P))^-1 K(P, x)] / alpha,

    with weights w that sum to one over the rows, and `inclusion` the probability with which each landmark was sampled.
    With all rows as landmarks and probabilities 1 these are the scores themselves.
    """
    cross = kernel.gram(X, landmarks)
    system = kernel.gram(landmarks, landmarks) + alpha * np.diag(inclusion / landmark_weight)
    explained = np.einsum("ij,ji->i", cross, cho_solve(cho_factor(system), cross.T))
    return weight * np.maximum(kernel.diagonal(X) - explained, 1e-15) / alpha


class LandmarkPredictor(BaseEstimator):
    """Kernel values at landmarks,  phi(x) = K(P, x),  as features for the predictions of a fitted `Nystroem` model.

    They are a linear transformation of the features of `Nystroem`, with the same predictions, but phi(x)'phi(z) is not
    the kernel, so they are not for fitting. In return they need no (landmarks, landmarks) projection matrix, which
    would be most of a model file.

    Attributes
    ----------
    landmarks_ : ndarray of shape (n_components_, n_columns)
    n_components_ : int
        The number of landmarks.
    """

    def __init__(self, kernel: str | Kernel = "gaussian") -> None:
        self.kernel = kernel

    @classmethod
    def from_nystroem(cls, features: Nystroem, coef: Array) -> tuple[LandmarkPredictor, Array]:
        """A predictor with the landmarks of a fitted `Nystroem` map, and `coef` converted to its features."""
        predictor = cls(features.kernel)
        predictor.landmarks_, predictor.n_components_ = features.landmarks_, len(features.landmarks_)
        return predictor, features.projection_ @ coef

    def transform(self, X: Array) -> Array:
        """K(x, P), shape (n, n_components_)."""
        return resolve(self.kernel).gram(np.asarray(X, dtype=float), self.landmarks_)

    def curves(self, X: Array, coef: Array) -> Array:
        """Predictions  phi(x)'u  for every column u of `coef`, (n, q), by strips whose features stay in cache."""
        out = np.empty((len(X), coef.shape[1]))
        for strip in strips(len(X), self.n_components_):
            out[strip] = self.transform(X[strip]) @ coef
        return out

    def prepare(self, n_rows: int) -> None:
        """Load compiled code if that pays for a total of `n_rows` rows, transformed in one call or in many."""
        prepare_distances(n_rows, *self.landmarks_.shape)

    def to_nystroem(self) -> Nystroem:
        """A `Nystroem` map with the same landmarks, whose features reproduce the kernel."""
        return Nystroem(self.kernel, self.n_components_, landmarks="distinct").fit(self.landmarks_)


# Predictors of fitted `Nystroem` maps with the coefficients they were made for; `predict` must not change the model.
_converted: WeakKeyDictionary[Nystroem, tuple[Array, LandmarkPredictor, Array]] = WeakKeyDictionary()


def _convert_once(features: Nystroem, coef: Array) -> tuple[LandmarkPredictor, Array]:
    """`LandmarkPredictor.from_nystroem`, remembered: for a single row it takes most of the time of a prediction."""
    known = _converted.get(features)
    if known is None or known[1].landmarks_ is not features.landmarks_ or not np.array_equal(known[0], coef):
        known = coef.copy(), *LandmarkPredictor.from_nystroem(features, coef)
        _converted[features] = known
    return known[1], known[2]


@dataclass(frozen=True)
class CholeskyOptions:
    """Constants of pivoted Cholesky."""

    # Below this share of the trace, the residual of the kernel is rounding error.
    floor: float = 1e-14
    # Candidates per block: larger blocks mean more work in matrix products but less greedy pivots.
    block_size: int = 128
    # Pivots of a block are taken while they are at least this share of its first: smaller makes fewer, less greedy
    # blocks.
    min_pivot_ratio: float = 0.03


CHOLESKY = CholeskyOptions()


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
        with single_threaded_blas(len(X), CHOLESKY.block_size):
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
        enough = max(self.tol, CHOLESKY.floor) * (weight @ residual)
        limit = n if self.max_components is None else min(n, self.max_components)

        # A fixed seed: it decides only which landmarks come first, and fits must not vary.
        rng = np.random.default_rng(0)
        G: Array = np.empty((n, min(limit, CHOLESKY.block_size)), order="F")
        pivots: list[int] = []
        while weight @ residual > enough and len(pivots) < limit:
            rank = len(pivots)
            candidates = _choose_candidates(residual, rng)
            known = G[candidates, :rank]
            candidate_residual = kernel.gram(X[candidates], X[candidates]) - known @ known.T
            chosen, lower = _factor_leading_pivots(
                candidate_residual, CHOLESKY.floor * diagonal[candidates].max(), limit - rank
            )
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
    """Indices of up to CHOLESKY.block_size candidates, by descending residual.

    A quarter are the rows with the largest residuals, which tend to lie close together; the others are drawn with
    probability in proportion to the residual (as in randomly pivoted Cholesky).
    """
    if np.count_nonzero(residual) <= CHOLESKY.block_size:
        return np.argsort(-residual, kind="stable")[: np.count_nonzero(residual)]
    largest = np.argpartition(-residual, CHOLESKY.block_size // 4)[: CHOLESKY.block_size // 4]
    cumulative = np.cumsum(residual)
    drawn = np.searchsorted(cumulative, rng.random(CHOLESKY.block_size - len(largest)) * cumulative[-1], side="right")
    both = np.unique(np.concatenate([largest, np.minimum(drawn, len(residual) - 1)]))
    return both[np.argsort(-residual[both], kind="stable")]


def _factor_leading_pivots(matrix: Array, floor: float, limit: int) -> tuple[NDArray[np.intp], Array]:
    """Pivots of a small matrix while they are at least a share of the first, and their lower Cholesky factor.

    Candidates of one block may be close to one another: once the first of a cluster is a pivot, the others have little
    residual left, and the next pivots are better chosen anew from all rows. (LAPACK's pstrf stops at a tolerance.)
    """
    smallest_pivot = max(CHOLESKY.min_pivot_ratio * np.diag(matrix).max(), floor)
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
