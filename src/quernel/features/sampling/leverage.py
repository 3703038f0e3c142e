"""Data-dependent sampling of random features by ridge leverage scores.

(The paper's Example 1 and its "Effect of sampling strategy".) The ridge leverage score of a feature with values phi on
the n rows,  s = phi'(K + alpha n I)^-1 phi,  says how much it matters to a ridge regression of penalty alpha. From a
pool of independent features, M are sampled with probability q in proportion to s and weighted by 1 / sqrt(M q), which
is importance sampling: still unbiased, with less error in the directions that such a fit can resolve.
Scores depend on the rows and on alpha, never on a target or a loss.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import cholesky, solve, solve_triangular

from quernel.features.hash_sample import distinct_rows
from quernel.features.sampling.draw import Array, Draw, Index, draw_features, draw_uniform
from quernel.kernels import Kernel

# How K is given to the scores: approximated by the features of the pool, or as the Gram matrix of the kernel.
SCORES = ("features", "gram")
# Default size of the pool, as a multiple of the features sampled from it.
POOL_FACTOR = 10
# Largest number of distinct rows on which the scores are computed; more of them would hardly change the scores.
MAX_SCORE_ROWS = 1000


def draw_by_leverage(
    kernel: Kernel,
    rng: np.random.Generator,
    n_components: int,
    X: Array,
    *,
    alpha: float,
    share: Array | None = None,
    center: Array | None = None,
    pool_size: int | None = None,
    scores: str = "features",
    replacement: bool = True,
) -> Draw:
    """Draw a pool of features and sample M of them by their ridge leverage scores on (a subset of) the rows of X.

    Parameters
    ----------
    X : array of shape (n, d)
    alpha : float
        Ridge penalty of the fit that will follow.
    share : array of shape (n,) or None
        Row weights; rows of weight 0 are ignored.
    center : array of shape (d,) or None
        Origin of the phases; see `Draw.recenter`.
    pool_size : int or None
        None: 10 times `n_components`.
    scores : {"features", "gram"}
        Whether K in the scores is Phi Phi' of the pool or the kernel's Gram matrix.
    replacement : bool
        Whether a feature may be drawn repeatedly.
    """
    size = max(POOL_FACTOR * n_components if pool_size is None else pool_size, n_components)
    pool = draw_features(kernel, draw_uniform, rng, size, X.shape[1]).recenter(kernel, center)
    share = np.full(len(X), 1 / len(X)) if share is None else share
    rows, weight = distinct_rows(X[share > 0], share[share > 0], MAX_SCORE_ROWS)
    weight = weight / weight.sum()
    Phi = pool.evaluate_unweighted(kernel, rows) * pool.weights
    score = leverage_scores(Phi, weight, alpha, kernel.gram(rows, rows) if scores == "gram" else None)
    probability = score / score.sum() if score.sum() > 0 else np.full(size, 1 / size)
    sample = sample_with_replacement if replacement else sample_without_replacement
    return pool.take(*sample(rng, probability, n_components))


def leverage_scores(Phi: Array, share: Array, alpha: float, gram: Array | None = None) -> Array:
    """Ridge leverage scores  phi'(K + alpha n I)^-1 phi  of every column phi of Phi, shape (M,).

    With row weights `share` (n,), which sum to one in place of 1/n, and S = diag(share):  the diagonal of
    F'(S^1/2 K S^1/2 + alpha I)^-1 F,  F = S^1/2 Phi.  Without a Gram matrix K = Phi Phi'; then they are the diagonal
    of  C (C + alpha I)^-1,  C = Phi' S Phi, lie between 0 and 1, and sum to the effective dimension. Of the two forms
    the one with the smaller matrix is computed.
    """
    root = np.sqrt(share)[:, None]
    F = root * Phi
    if gram is None and F.shape[1] <= F.shape[0]:
        C = F.T @ F
        return np.diag(solve(C + alpha * np.eye(len(C)), C, assume_a="pos"))
    K = F @ F.T if gram is None else root * gram * root.T
    lower = cholesky(K + alpha * np.eye(len(K)), lower=True)
    solved = solve_triangular(lower, F, lower=True)
    return np.einsum("ij,ij->j", solved, solved)


def sample_with_replacement(rng: np.random.Generator, probability: Array, size: int) -> tuple[Index, Array]:
    """Independent draws: indices, and factors 1 / sqrt(M q) of the weights, so that E sum factor^2 a = sum a."""
    index = np.sort(rng.choice(len(probability), size, p=probability))
    return index, 1 / np.sqrt(size * probability[index])


def sample_without_replacement(rng: np.random.Generator, probability: Array, size: int) -> tuple[Index, Array]:
    """Distinct features: indices, and factors 1 / sqrt(p), with p their inclusion probabilities (Horvitz-Thompson).

    The pivotal method (Deville and Tille, 1998): two undecided features compete for the sum of their probabilities,
    until one of them is excluded (probability 0) or included (1); the other goes on to compete with the next. Each duel
    leaves expectations unchanged, so every feature is included with exactly its probability. The estimate is never less
    precise than from independent draws.
    """
    inclusion = inclusion_probabilities(probability, size)
    current = inclusion.copy()
    undecided = 0
    for rival in range(1, len(inclusion)):
        a, b = current[undecided], current[rival]
        total = a + b
        if total <= 1:  # one is excluded, the other takes over the whole sum
            rival_wins = rng.random() * total < b
            winner, loser = (rival, undecided) if rival_wins else (undecided, rival)
            current[winner], current[loser] = total, 0.0
            undecided = winner
        else:  # one is included, the other keeps what is left
            first_wins = rng.random() * (2 - total) < 1 - b
            winner, rest = (undecided, rival) if first_wins else (rival, undecided)
            current[winner], current[rest] = 1.0, total - 1
            undecided = rest
    index = np.sort(np.argsort(-current, kind="stable")[:size])
    kept = inclusion[index]  # 0 where the pool has fewer than M features that differ from 0 on the rows
    return index, np.divide(1, np.sqrt(kept), out=np.zeros(size), where=kept > 0)


def inclusion_probabilities(probability: Array, size: int) -> Array:
    """min(1, c q)  with c such that the sum is `size`.

    Found by fixing the features whose probability exceeds 1 at 1 and rescaling the others, until none exceeds it.
    """
    inclusion = np.minimum(size * probability, 1.0)
    for _ in range(len(inclusion)):
        certain = inclusion >= 1
        remaining = probability[~certain].sum()
        if remaining <= 0:
            break
        inclusion = np.where(certain, 1.0, (size - certain.sum()) * probability / remaining)
        if np.all(inclusion <= 1):
            break
        inclusion = np.minimum(inclusion, 1.0)
    return inclusion
