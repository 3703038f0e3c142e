"""Complexities of a kernel on data: effective dimension, ridge leverage scores, local Rademacher complexity.

With C = Phi'Phi/n, or K/n (with weights, sums over rows become weighted means),

    N(alpha)          = Tr((C + alpha I)^-1 C)                               (`def2`)
    N_infinity(alpha) = sup over w of |(L + alpha I)^-1/2 phi(., w)|^2       (`ass5`)
    R(delta)          = sqrt((1/n) sum over j of min(mu_j, delta^2))         (`lemA.2.5`)

are the degrees of freedom of a ridge regression, the leverage of its worst feature, and how well functions near a
centre can fit random signs; mu_j are the eigenvalues of C.

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
    return as_scalar((mu / (mu + alpha[..., None])).sum(axis=-1))


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
    return as_scalar(leverage_scores(features, gram=gram, alpha=alpha, sample_weight=sample_weight).max(axis=-1))


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


def as_scalar(value: Array) -> float | Array:
    """A float if the arguments were numbers, otherwise the array."""
    return float(value) if np.ndim(value) == 0 else value


def check_one_alpha(alpha: float) -> float:
    """A ridge weight as a float, or ValueError unless it is one positive number."""
    if np.ndim(alpha) != 0:
        raise ValueError(f"alpha must be one number here; got {alpha!r}.")
    return float(check_alpha(alpha))


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


def local_rademacher_complexity(
    features: ArrayLike | None = None,
    *,
    gram: ArrayLike | None = None,
    eigenvalues: ArrayLike | None = None,
    radius: ArrayLike,
    n: int | None = None,
) -> float | Array:
    """R(delta) = sqrt((1/n) sum over j of min(mu_j, delta^2)), with the eigenvalues mu_j of L_M or L_K.

    The largest mean of s_i g(x_i) over functions g with L2 norm at most delta and kernel norm at most 1, s_i = +-1 by
    coin flips, is at most sqrt(2) R(delta) in expectation. And n R(sqrt alpha)^2 / alpha lies between the effective
    dimension N(alpha) and twice that.

    Parameters
    ----------
    features, gram, eigenvalues : give one of the three: features (n, M) or a Gram matrix (n, n), whose eigenvalues on
        these rows stand for those of the distribution as in `effective_dimension`, or its own, such as those of
        `SplinePopulation`
    radius : delta, positive, or an array of such
    n : number of rows; None is that of the features or the Gram matrix

    Examples
    --------
    >>> round(local_rademacher_complexity(eigenvalues=[1.0, 0.25, 0.04], radius=0.5, n=100), 6)  # 0.25 + 0.25 + 0.04
    0.073485
    """
    if (features is not None) + (gram is not None) + (eigenvalues is not None) != 1:
        raise ValueError("Give features (n, M), gram=(n, n) or eigenvalues=, one of the three.")
    mu = spectrum(features, gram=gram) if eigenvalues is None else np.ravel(np.asarray(eigenvalues, dtype=float))
    if not np.all(np.isfinite(mu) & (mu >= 0)):
        raise ValueError(f"eigenvalues must be finite and none negative; got {eigenvalues!r}.")
    delta = np.asarray(radius, dtype=float)
    if delta.size == 0 or not np.all(np.isfinite(delta) & (delta > 0)):
        raise ValueError(f"radius must be positive and finite; got {radius!r}.")
    n_rows = _resolve_n(n, features if gram is None else gram)
    value = np.sqrt(np.minimum(mu, delta[..., None] ** 2).sum(axis=-1) / n_rows)
    return as_scalar(value)


def _resolve_n(n: int | None, matrix: ArrayLike | None) -> int:
    """Number of rows, given or that of the matrix; ValueError if neither."""
    if n is None and matrix is None:
        raise ValueError("Eigenvalues do not tell the number of rows: give n.")
    count = len(np.asarray(matrix)) if n is None else n
    if not count >= 1:
        raise ValueError(f"n must be a number of rows, 1 or more; got {n!r}.")
    return count
