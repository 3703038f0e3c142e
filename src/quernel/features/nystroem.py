"""Nystroem features: a low-rank approximation of the kernel from a subset of the rows, the landmarks.

With landmarks P, the approximation is  K(x, P) K(P, P)^-1 K(P, z),  the kernel of the projection on the span of the
functions K(., p). It is exact on the landmarks and never exceeds K on the diagonal.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import cho_factor, cho_solve, eigh
from sklearn.base import BaseEstimator, TransformerMixin

from quernel._threads import strips
from quernel.features.random import as_generator
from quernel.features.sampling import hash_sample_indices
from quernel.kernels import Kernel, resolve

Array = NDArray[np.floating]
Index = NDArray[np.intp]

LANDMARKS = ("uniform", "distinct", "leverage", "greedy")
# Eigenvalues of the landmarks' Gram matrix below this share of the largest are rounding error, and dropped.
FLOOR = 1e-13


class Nystroem(TransformerMixin, BaseEstimator):
    """Approximate a kernel by its projection on landmarks (Williams and Seeger, 2001).

    phi(x) = D^-1/2 V'K(P, x)  with the eigendecomposition  V D V' = K(P, P)  of the Gram matrix of the landmarks P.

    Parameters
    ----------
    kernel : str or kernel object, default="gaussian"
    n_components : int, default=100
        The number of landmarks. Eigenvalues that are zero to working precision are dropped, so there may be fewer
        features.
    landmarks : {"uniform", "distinct", "leverage", "greedy"}, default="uniform"
        How landmarks are chosen. "uniform": a random sample of the rows. "distinct": a sample of distinct rows by
        hashing, which depends neither on a seed nor on the order, the repetitions or the units of the data. "leverage":
        by ridge leverage scores, estimated on growing samples (the recursive method of Musco and Musco, 2017).
        "greedy": repeatedly the row with the largest approximation error (pivoted Cholesky).
    alpha : float or None
        For "leverage": the ridge penalty of the scores.
    random_state : int, numpy Generator, numpy RandomState or None
        Seed or generator of the choice of landmarks.

    Attributes
    ----------
    landmarks_ : ndarray of shape (n_landmarks, n_columns)
        The rows chosen.
    projection_ : ndarray of shape (n_landmarks, n_components_)
        V D^-1/2.
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
        random_state: Any = None,
    ) -> None:
        self.kernel = kernel
        self.n_components = n_components
        self.landmarks = landmarks
        self.alpha = alpha
        self.random_state = random_state

    def fit(self, X: Array, y: Any = None, sample_weight: ArrayLike | None = None) -> Self:  # noqa: ARG002
        """Choose the landmarks among the rows of X and decompose their Gram matrix.

        Rows of weight 0 are never chosen; "uniform" and "leverage" sample in proportion to the weights.
        """
        kernel, rng = self._check(), as_generator(self.random_state)
        weight = np.ones(len(X)) if sample_weight is None else np.asarray(sample_weight, dtype=float)
        X, weight = np.asarray(X)[weight > 0], weight[weight > 0]
        size = min(self.n_components, len(X))
        if self.landmarks == "uniform":
            chosen = rng.choice(len(X), size, replace=False, p=weight / weight.sum())
        elif self.landmarks == "distinct":
            chosen = hash_sample_indices(X, size)
        elif self.landmarks == "greedy":
            chosen = _choose_greedily(kernel, X, size)
        else:
            assert self.alpha is not None
            chosen = _choose_by_leverage(kernel, X, weight / weight.sum(), size, self.alpha, rng)
        self.landmarks_ = np.array(X[chosen], dtype=float)
        eigenvalues, eigenvectors = eigh(kernel.gram(self.landmarks_, self.landmarks_))
        kept = eigenvalues > FLOOR * eigenvalues[-1]
        self.projection_ = eigenvectors[:, kept] / np.sqrt(eigenvalues[kept])
        self.n_components_ = int(kept.sum())
        return self

    def transform(self, X: Array, *, dtype: Any = float) -> Array:
        """phi(x) = D^-1/2 V'K(P, x), shape (n, n_components_), computed in double precision and stored as `dtype`."""
        Phi = np.empty((len(X), self.n_components_), dtype=dtype)
        for strip in strips(*Phi.shape):
            np.matmul(self._cross_gram(X[strip]), self.projection_, out=Phi[strip], casting="same_kind")
        return Phi

    def curves(self, X: Array, coef: Array) -> Array:
        """Predictions  phi(x)'u = K(x, P) V D^-1/2 u  for every column u of `coef`, without computing the features."""
        return self._cross_gram(X) @ (self.projection_ @ coef)

    def _cross_gram(self, X: Array) -> Array:
        """K(x, P), shape (n, n_landmarks)."""
        return resolve(self.kernel).gram(np.asarray(X, dtype=float), self.landmarks_)

    def _check(self) -> Kernel:
        """Validate the parameters and return the kernel."""
        kernel = resolve(self.kernel)
        kernel.check_diagonal()
        if self.landmarks not in LANDMARKS:
            known = ", ".join(repr(name) for name in LANDMARKS)
            raise ValueError(f"Unknown landmarks {self.landmarks!r}. Known: {known}.")
        if self.landmarks == "leverage" and not (self.alpha is not None and 0 < self.alpha < np.inf):
            raise ValueError(
                f"landmarks='leverage' needs alpha, the ridge penalty of the fit that will follow; got {self.alpha!r}."
            )
        return kernel


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
        landmark_weight = _lookup_weights(landmarks, rows, weight)
        score = row_leverage_scores(kernel, X[rows], weight, X[landmarks], landmark_weight, inclusion, alpha)
        if m == len(X):
            return rows[rng.choice(m, size, replace=False, p=score / score.sum())]
        inclusion = np.minimum(1.0, size * score / score.sum())
        kept = rng.random(m) < inclusion
        landmarks, inclusion = rows[kept], inclusion[kept]


def _lookup_weights(landmarks: Index, rows: Index, weight: Array) -> Array:
    """The entries of `weight`, which belongs to `rows`, for the landmarks, which are among the rows."""
    sorter = np.argsort(rows)
    return weight[sorter[np.searchsorted(rows, landmarks, sorter=sorter)]]


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
    def of(cls, features: Nystroem, coef: Array) -> tuple[LandmarkPredictor, Array]:
        """A predictor with the landmarks of a fitted `Nystroem` map, and `coef` converted to its features."""
        predictor = cls(features.kernel)
        predictor.landmarks_, predictor.n_components_ = features.landmarks_, len(features.landmarks_)
        return predictor, features.projection_ @ coef

    def transform(self, X: Array) -> Array:
        """K(x, P), shape (n, n_components_)."""
        return resolve(self.kernel).gram(np.asarray(X, dtype=float), self.landmarks_)

    def making_the_kernel(self) -> Nystroem:
        """A `Nystroem` map with the same landmarks, whose features reproduce the kernel."""
        return Nystroem(self.kernel, self.n_components_, landmarks="distinct").fit(self.landmarks_)
