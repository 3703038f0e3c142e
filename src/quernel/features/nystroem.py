"""Nystroem features: the kernel seen through some of the rows."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import cho_factor, cho_solve, eigh
from sklearn.base import BaseEstimator, TransformerMixin

from quernel.features.blocks import strips
from quernel.features.hash_sample import hash_sample_indices
from quernel.features.random import as_generator
from quernel.kernels import Kernel, resolve

Array = NDArray[np.floating]
Index = NDArray[np.intp]

LANDMARKS = ("uniform", "distinct", "leverage", "greedy")
# Directions of the landmarks' Gram matrix below this share of the largest are rounding error.
FLOOR = 1e-13


class Nystroem(TransformerMixin, BaseEstimator):
    """phi(x) = D^-1/2 V'K(P, x)  with  V D V' = K(P, P): the kernel's projection on the landmarks P.

    Parameters
    ----------
    kernel : str or kernel object, default="gaussian"
    n_components : int, default=100
        The number of landmarks. Directions that they do not resolve are left out of the features.
    landmarks : {"uniform", "distinct", "leverage", "greedy"}, default="uniform"
        "uniform" takes rows at random; "distinct" different rows, as good as at random, but the same in whatever order
        and units they come and however often each is repeated; "leverage" by their ridge
        leverage scores, estimated on growing samples (the recursive method of Musco and Musco, 2017);
        "greedy" the row worst represented so far, again and again.
    alpha : float or None
        The ridge weight of the leverage scores.
    random_state : int, numpy Generator, numpy RandomState or None

    Attributes
    ----------
    landmarks_ : ndarray of shape (n_landmarks, n_columns)
    projection_ : ndarray of shape (n_landmarks, n_components_)
        V D^-1/2.
    n_components_ : int
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
        """Choose the landmarks; rows of weight 0 are none, and for "uniform" and "leverage" weight is chance."""
        kernel, rng = self._check(), as_generator(self.random_state)
        weight = np.ones(len(X)) if sample_weight is None else np.asarray(sample_weight, dtype=float)
        X, weight = np.asarray(X)[weight > 0], weight[weight > 0]
        size = min(self.n_components, len(X))
        if self.landmarks == "uniform":
            chosen = rng.choice(len(X), size, replace=False, p=weight / weight.sum())
        elif self.landmarks == "distinct":
            chosen = hash_sample_indices(X, size)
        elif self.landmarks == "greedy":
            chosen = _greedy(kernel, X, size)
        else:
            assert self.alpha is not None
            chosen = _by_leverage(kernel, X, weight / weight.sum(), size, self.alpha, rng)
        self.landmarks_ = np.array(X[chosen], dtype=float)
        value, vector = eigh(kernel.gram(self.landmarks_, self.landmarks_))
        kept = value > FLOOR * value[-1]
        self.projection_ = vector[:, kept] / np.sqrt(value[kept])
        self.n_components_ = int(kept.sum())
        return self

    def transform(self, X: Array, *, dtype: Any = float) -> Array:
        """phi(x) = D^-1/2 V'K(P, x), shape (n, n_components_), computed in double precision and kept as `dtype`."""
        Phi = np.empty((len(X), self.n_components_), dtype=dtype)
        for strip in strips(*Phi.shape):
            np.matmul(self._across(X[strip]), self.projection_, out=Phi[strip], casting="same_kind")
        return Phi

    def curves(self, X: Array, coef: Array) -> Array:
        """phi(x)'u = K(x, P) V D^-1/2 u for every column u of `coef`, without the features."""
        return self._across(X) @ (self.projection_ @ coef)

    def _across(self, X: Array) -> Array:
        return resolve(self.kernel).gram(np.asarray(X, dtype=float), self.landmarks_)

    def _check(self) -> Kernel:
        kernel = resolve(self.kernel)
        kernel.check_diagonal()
        if self.landmarks not in LANDMARKS:
            known = ", ".join(repr(name) for name in LANDMARKS)
            raise ValueError(f"Unknown landmarks {self.landmarks!r}. Known: {known}.")
        if self.landmarks == "leverage" and not (self.alpha is not None and 0 < self.alpha < np.inf):
            raise ValueError(
                f"landmarks='leverage' needs alpha, the ridge weight of the fit that will follow; got {self.alpha!r}."
            )
        return kernel


def _greedy(kernel: Kernel, X: Array, size: int) -> Index:
    """The rows with the largest residual diagonal, one after the other: the pivots of a Cholesky factor."""
    residual = kernel.diagonal(X)
    enough = FLOOR * residual.max()
    G, chosen = np.zeros((len(X), size)), []
    for rank in range(size):
        best = int(np.argmax(residual))
        if residual[best] <= enough:
            break
        column = kernel.gram(X, X[[best]])[:, 0] - G[:, :rank] @ G[best, :rank]
        G[:, rank] = column / np.sqrt(column[best])
        residual = np.maximum(residual - G[:, rank] ** 2, 0)
        residual[best] = 0
        chosen.append(best)
    return np.array(chosen, dtype=np.intp)


def _by_leverage(kernel: Kernel, X: Array, share: Array, size: int, alpha: float, rng: np.random.Generator) -> Index:
    """Rows drawn by scores that are estimated on samples of doubling size, each through the landmarks of the last."""
    order = rng.permutation(len(X))
    m = min(len(X), 2 * size)
    landmarks, chance = order[:m], np.ones(m)
    while True:
        m = min(len(X), 2 * m)
        rows = order[:m]
        weight = share[rows] / share[rows].sum()
        score = row_leverage(kernel, X[rows], weight, X[landmarks], weight_of(landmarks, rows, weight), chance, alpha)
        if m == len(X):
            return rows[rng.choice(m, size, replace=False, p=score / score.sum())]
        chance = np.minimum(1.0, size * score / score.sum())
        kept = rng.random(m) < chance
        landmarks, chance = rows[kept], chance[kept]


def weight_of(landmarks: Index, rows: Index, weight: Array) -> Array:
    """The landmarks' entries of `weight`, which belongs to `rows`."""
    where = np.argsort(rows)
    return weight[where[np.searchsorted(rows, landmarks, sorter=where)]]


def row_leverage(
    kernel: Kernel, X: Array, weight: Array, landmarks: Array, landmark_weight: Array, chance: Array, alpha: float
) -> Array:
    """w_x [K(x, x) - K(x, P)(K(P, P) + alpha diag(chance / w_P))^-1 K(P, x)] / alpha: no less than the true score."""
    across = kernel.gram(X, landmarks)
    system = kernel.gram(landmarks, landmarks) + alpha * np.diag(chance / landmark_weight)
    explained = np.einsum("ij,ji->i", across, cho_solve(cho_factor(system), across.T))
    return weight * np.maximum(kernel.diagonal(X) - explained, 1e-15) / alpha


class LandmarkPredictor(BaseEstimator):
    """phi(x) = K(P, x) for landmarks P.

    Unlike the features of `Nystroem`, of which these are a linear map, they do not make the kernel: they are for
    predictions, not for fits. But they need no matrix of landmarks x landmarks, which would be most of a model file.

    Attributes
    ----------
    landmarks_ : ndarray of shape (n_components_, n_columns)
    n_components_ : int
    """

    def __init__(self, kernel: str | Kernel = "gaussian") -> None:
        self.kernel = kernel

    @classmethod
    def of(cls, features: Nystroem, coef: Array) -> tuple[LandmarkPredictor, Array]:
        """The same curves: their features, and coefficients for these."""
        values = cls(features.kernel)
        values.landmarks_, values.n_components_ = features.landmarks_, len(features.landmarks_)
        return values, features.projection_ @ coef

    def transform(self, X: Array) -> Array:
        """K(x, P), shape (n, n_components_)."""
        return resolve(self.kernel).gram(np.asarray(X, dtype=float), self.landmarks_)

    def making_the_kernel(self) -> Nystroem:
        """Features of the same landmarks that make the kernel."""
        return Nystroem(self.kernel, self.n_components_, landmarks="distinct").fit(self.landmarks_)
