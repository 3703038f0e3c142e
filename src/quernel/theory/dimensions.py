"""Effective dimension and ridge leverage scores: degrees of freedom, on average and at the worst feature.

With C = Phi'Phi/n, or K/n (with weights, sums over rows become weighted means),

    N(alpha)          = Tr((C + alpha I)^-1 C)                               (`def2`)
    N_infinity(alpha) = sup over w of |(L + alpha I)^-1/2 phi(., w)|^2       (`ass5`)

Features are those of the library, phi(x, w_j) / sqrt(M), so that Phi Phi' approximates the Gram matrix.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.floating]


def effective_dimension(
    features: ArrayLike | None = None,
    *,
    gram: ArrayLike | None = None,
    alpha: ArrayLike,
    sample_weight: ArrayLike | None = None,
) -> float | Array:
    """Effective dimension N(alpha) = Tr((C + alpha I)^-1 C), from features Phi (n, M) or a Gram matrix K (n, n).

    Parameters
    ----------
    features, gram : give one of the two
    alpha : positive ridge weight, or an array of them, which share one eigendecomposition
    sample_weight : array of shape (n,), or None for equal weights

    Examples
    --------
    >>> effective_dimension(2 * np.eye(4), alpha=1.0)
    2.0
    """
    alpha = check_alpha(alpha)
    mu = spectrum(features, gram=gram, sample_weight=sample_weight)
    return _as_scalar((mu / (mu + alpha[..., None])).sum(axis=-1))


def leverage_scores(
    features: ArrayLike, *, gram: ArrayLike | None = None, alpha: ArrayLike, sample_weight: ArrayLike | None = None
) -> Array:
    """Ridge leverage scores |(L + alpha I)^-1/2 phi(., w_j)|^2 of the features, shape (M,), or alpha.shape + (M,).

    L is the operator of the Gram matrix if one is given, and otherwise of the features' own K_M = Phi Phi'; the mean of
    the scores is then the effective dimension of K_M.
    """
    alpha = check_alpha(alpha)
    Phi, share = _check_rows(features, "features", sample_weight)
    n, M = Phi.shape
    Phi = np.sqrt(share)[:, None] * Phi
    if gram is None and n >= M:
        mu, vectors = np.linalg.eigh(Phi.T @ Phi)
        shrinkage = np.maximum(mu, 0) / (np.maximum(mu, 0) + alpha[..., None])
        return M * shrinkage @ (vectors**2).T
    K = Phi @ Phi.T if gram is None else _weighted_gram(gram, share)
    mu, vectors = np.linalg.eigh(K)
    return M * (1 / (np.maximum(mu, 0) + alpha[..., None])) @ (vectors.T @ Phi) ** 2


def max_dimension(
    features: ArrayLike, *, gram: ArrayLike | None = None, alpha: ArrayLike, sample_weight: ArrayLike | None = None
) -> float | Array:
    """Maximal dimension N_infinity(alpha): the largest leverage score among the features given.

    The supremum over all features is at least this; give many, and the Gram matrix where it can be had.
    """
    return _as_scalar(leverage_scores(features, gram=gram, alpha=alpha, sample_weight=sample_weight).max(axis=-1))


def spectrum(
    features: ArrayLike | None = None, *, gram: ArrayLike | None = None, sample_weight: ArrayLike | None = None
) -> Array:
    """Eigenvalues of C, clipped at 0, in descending order.

    Of features, the smaller of Phi'Phi/n and Phi Phi'/n is decomposed: both have the same nonzero eigenvalues.
    """
    if (features is None) == (gram is None):
        raise ValueError("Give either features (n, M) or gram=(n, n), one of the two.")
    if gram is not None:
        K, share = _check_rows(gram, "gram", sample_weight)
        smaller = _weighted_gram(K, share)
    else:
        assert features is not None
        Phi, share = _check_rows(features, "features", sample_weight)
        Phi = np.sqrt(share)[:, None] * Phi
        smaller = Phi @ Phi.T if Phi.shape[0] < Phi.shape[1] else Phi.T @ Phi
    return np.maximum(np.linalg.eigvalsh(smaller), 0)[::-1]


def check_alpha(alpha: ArrayLike) -> Array:
    """Ridge weights as an array, or ValueError unless positive and finite."""
    try:
        values = np.asarray(alpha, dtype=float)
    except (TypeError, ValueError) as error:
        raise ValueError(f"alpha must hold numbers: {error}.") from error
    if values.size == 0 or not np.all(np.isfinite(values) & (values > 0)):
        raise ValueError(f"alpha must be positive and finite; got {alpha!r}.")
    return values


def _weighted_gram(gram: ArrayLike, share: Array) -> Array:
    """W^1/2 K W^1/2, W the diagonal matrix of the rows' shares of the weight."""
    K = np.asarray(gram, dtype=float)
    if K.shape != (len(share), len(share)):
        raise ValueError(f"gram must have shape ({len(share)}, {len(share)}), rows by rows; got {K.shape}.")
    root = np.sqrt(share)
    return root[:, None] * K * root


def _check_rows(matrix: ArrayLike, name: str, sample_weight: ArrayLike | None) -> tuple[Array, Array]:
    """The matrix as an array, and each row's share of the total weight."""
    A = np.asarray(matrix, dtype=float)
    if A.ndim != 2 or 0 in A.shape or not np.isfinite(A).all():
        raise ValueError(f"{name} must be a matrix of finite numbers, one row per observation; got shape {A.shape}.")
    weight = np.ones(len(A)) if sample_weight is None else np.asarray(sample_weight, dtype=float)
    if weight.shape != (len(A),) or not np.all(np.isfinite(weight) & (weight >= 0)) or not weight.any():
        raise ValueError(f"sample_weight must hold {len(A)} numbers, none negative, not all 0; got {sample_weight!r}.")
    return A, weight / weight.sum()


def _as_scalar(value: Array) -> float | Array:
    """A float if alpha was a number, otherwise the array."""
    return float(value) if np.ndim(value) == 0 else value
