"""Similarity of operators: how close L_M over random features is to L_K, and C_MD over a sample of rows to C_M.

The paper bounds the random-feature and the empirical error through these norms (`lemC.1` to `lemC.4`). Here they are
measured on a known distribution of rows, and bounded as in the lemmas.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quernel.data.design_matrix import FeatureMap
from quernel.theory.decomposition import check_lemma, check_ranges
from quernel.theory.dimensions import check_one_alpha
from quernel.theory.populations import Population

Array = NDArray[np.floating]


@dataclass(frozen=True)
class OperatorSimilarity:
    """Norms that compare an average B with its mean A at the ridge weight alpha, or bounds on them.

        difference = |(A + alpha I)^-1/2 (A - B) (A + alpha I)^-1/2|
        one_sided  = |(A + alpha I)^-1/2 (A - B)|
        ratio      = |(A + alpha I)^1/2 (B + alpha I)^-1/2|

    The ratio is at most (1 - difference)^-1/2 (`lemD.3`). one_sided is None where the paper has no bound.
    """

    difference: float
    one_sided: float | None
    ratio: float


def feature_similarity(population: Population, feature_map: FeatureMap, *, alpha: float) -> OperatorSimilarity:
    """A = L_K, the operator of the kernel, and B = L_M, that of the features (`lemC.1`, `lemC.2`, `lemC.2p`).

    Parameters
    ----------
    population : the distribution of rows and the kernel: `SplinePopulation` (exact) or `SampledPopulation`
    feature_map : fitted features of that kernel, an object with `transform` and `n_components_`
    alpha : ridge weight

    Examples
    --------
    >>> spline = SplinePopulation(r=0.5, gamma=0.25, n_frequencies=20)
    >>> few, many = (feature_similarity(spline, spline.features(M, random_state=0), alpha=1e-2) for M in (100, 10_000))
    >>> many.difference < few.difference
    True
    """
    S = population.feature_vectors(feature_map)
    return compare_operators(population.operator, S @ S.T, check_one_alpha(alpha))


def sample_similarity(
    population: Population, feature_map: FeatureMap, X: ArrayLike, *, alpha: float
) -> OperatorSimilarity:
    """A = C_M, the covariance of the features over the distribution of rows, and B = C_MD, that in a sample X (n, d).

    difference is the paper's R_MD (`lemC.3`), ratio its Q_MD (`lemC.4`). Parameters are those of `feature_similarity`.
    """
    S, Phi = population.feature_vectors(feature_map), feature_map.transform(np.asarray(X, dtype=float))
    return compare_operators(S.T @ S, Phi.T @ Phi / len(Phi), check_one_alpha(alpha))


def feature_similarity_bound(
    M: int,
    alpha: float,
    *,
    dimension: float,
    max_dimension: float,
    kappa: float = 1.0,
    delta: float = 0.05,
    trace: float | None = None,
) -> OperatorSimilarity:
    """What `lemC.1` to `lemC.2p` promise of `feature_similarity`, each with probability 1 - delta.

    With l = log(2/delta):

        difference <= 2 (N_infinity + 1) l / M + sqrt(2 N_infinity l / M)
        one_sided  <= 4 kappa sqrt(N_infinity) l / M + sqrt(4 kappa^2 N l / M)
        ratio      <= (1 - difference)^-1/2

    With M >= 16 (N_infinity + 1) l these are at most 1/2 and sqrt 2, as `lemC.2` says. The first line is the paper's
    and is not proved: an operator norm of many dimensions needs their logarithm. Give `trace` for the inequality of
    Rudi and Rosasco (2017, proposition 6), which the paper quotes without it, for alpha up to the largest eigenvalue:

        difference <= 2 (N_infinity + 1) l' / (3M) + sqrt(2 N_infinity l' / M),   l' = log(4 trace / (alpha delta))

    Parameters
    ----------
    M : number of features
    alpha : ridge weight
    dimension, max_dimension : N(alpha) and N_infinity(alpha)
    kappa : bound on |phi(x, w)|, at least 1
    delta : probability with which each bound may fail
    trace : of L_K, the mean of K(x, x); None for the paper's own bound

    Examples
    --------
    >>> round(feature_similarity_bound(2000, 1e-2, dimension=5.0, max_dimension=5.0).difference, 3)
    0.158
    """
    _check_count(M, "M")
    check_lemma(alpha, kappa, delta)
    check_ranges(
        dimension=(dimension, 0 < dimension < math.inf, "positive"),
        max_dimension=(max_dimension, 0 < max_dimension < math.inf, "positive"),
    )
    log = math.log(2 / delta)
    one_sided = 4 * kappa * math.sqrt(max_dimension) * log / M + math.sqrt(4 * kappa**2 * dimension * log / M)
    difference = _difference_bound(M, max_dimension, alpha, delta, trace)
    return OperatorSimilarity(difference, one_sided, _ratio_bound(difference))


def sample_similarity_bound(
    n: int, alpha: float, *, kappa: float = 1.0, delta: float = 0.05, trace: float | None = None
) -> OperatorSimilarity:
    """What `lemC.3` and `lemC.4` promise of `sample_similarity`, with probability 1 - delta.

    The bounds on difference and ratio are those of `feature_similarity_bound`, with n for M and kappa^2 / alpha for
    N_infinity. trace is that of C_M, at most kappa^2; None for the paper's own bound.
    """
    _check_count(n, "n")
    check_lemma(alpha, kappa, delta)
    difference = _difference_bound(n, kappa**2 / alpha, alpha, delta, trace)
    return OperatorSimilarity(difference, None, _ratio_bound(difference))


def compare_operators(A: Array, B: Array, alpha: float) -> OperatorSimilarity:
    """The three norms for positive semidefinite A and B, computed in the eigenbasis of A."""
    mu, vectors = np.linalg.eigh(A)
    root = np.sqrt(np.maximum(mu, 0) + alpha)
    one_sided = vectors.T @ (A - B) @ vectors / root[:, None]
    spectrum = np.linalg.eigvalsh(one_sided / root)
    # (A + alpha)^1/2 (B + alpha)^-1 (A + alpha)^1/2 = (I - D)^-1 with D the whitened difference A - B; spectrum[-1] is
    # the largest eigenvalue of D.
    ratio = 1 / math.sqrt(1 - spectrum[-1])
    return OperatorSimilarity(float(np.abs(spectrum).max()), float(np.linalg.norm(one_sided, 2)), ratio)


def _difference_bound(count: int, max_dimension: float, alpha: float, delta: float, trace: float | None) -> float:
    """`lemD.5` (a Bernstein inequality for operators), as printed or, given the trace, as proved."""
    if trace is None:
        log, factor = math.log(2 / delta), 1.0
    else:
        check_ranges(trace=(trace, alpha <= trace < math.inf, "alpha or more"))
        log, factor = math.log(4 * trace / (alpha * delta)), 1 / 3
    return factor * 2 * (max_dimension + 1) * log / count + math.sqrt(2 * max_dimension * log / count)


def _ratio_bound(difference: float) -> float:
    """Bound on the ratio from that on the difference: `lemD.3`."""
    return 1 / math.sqrt(1 - difference) if difference < 1 else math.inf


def _check_count(count: int, name: str) -> None:
    """ValueError unless 1 or more."""
    check_ranges(**{name: (count, 1 <= count < math.inf, "1 or more")})
