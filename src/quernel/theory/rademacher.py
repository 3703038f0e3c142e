"""Local Rademacher complexity (`lemA.2.5`): how well functions near a centre can fit random signs."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quernel.theory.dimensions import spectrum

Array = NDArray[np.floating]


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
        these rows stand for those of the law as in `effective_dimension`, or the law's own, such as those of
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
    return float(value) if delta.ndim == 0 else value


def _resolve_n(n: int | None, matrix: ArrayLike | None) -> int:
    """Number of rows, given or that of the matrix; ValueError if neither."""
    if n is None and matrix is None:
        raise ValueError("Eigenvalues do not tell the number of rows: give n.")
    count = len(np.asarray(matrix)) if n is None else n
    if not count >= 1:
        raise ValueError(f"n must be a number of rows, 1 or more; got {n!r}.")
    return count
