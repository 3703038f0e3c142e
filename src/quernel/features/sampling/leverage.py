"""Leverage-score sampling of features (the paper's Example 1 and its "Effect of sampling strategy").

A feature has a high score where the data tell it apart from the others:  s = phi'(K + alpha n I)^-1 phi. Of a pool of
features drawn as usual, M are sampled with probability q in proportion to s and weighted by 1/sqrt(q): the kernel is
still met on average, and better in the directions that a fit with ridge weight alpha can resolve. Scores depend on the
rows and on alpha, never on a target or a loss.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import cholesky, solve, solve_triangular

from quernel.features.hash_sample import distinct_rows
from quernel.features.sampling.draw import Array, Draw, Index, draw, uniform
from quernel.kernels import Kernel

SCORES = ("features", "gram")
# The pool is so many times as large as what is kept of it.
POOL = 10
# Rows on which the scores are computed; more of them would hardly change them.
ROWS = 1000


def leverage(
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
    """M features of a pool, sampled by their ridge leverage scores on (some of) the rows of X."""
    size = max(POOL * n_components if pool_size is None else pool_size, n_components)
    pool = draw(kernel, uniform, rng, size, X.shape[1]).centered(kernel, center)
    share = np.full(len(X), 1 / len(X)) if share is None else share
    rows, weight = distinct_rows(X[share > 0], share[share > 0], ROWS)
    weight = weight / weight.sum()
    Phi = pool.waves(kernel, rows) * pool.weights
    score = leverage_scores(Phi, weight, alpha, kernel.gram(rows, rows) if scores == "gram" else None)
    probability = score / score.sum() if score.sum() > 0 else np.full(size, 1 / size)
    sample = with_replacement if replacement else without_replacement
    return pool.take(*sample(rng, probability, n_components))


def leverage_scores(Phi: Array, share: Array, alpha: float, gram: Array | None = None) -> Array:
    """phi'(K + alpha n I)^-1 phi for every column phi of Phi; without K, Phi Phi' stands for it.

    Then they are the diagonal of  C (C + alpha I)^-1,  C = Phi' diag(share) Phi:  between 0 and 1, and their sum is the
    effective dimension.
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


def with_replacement(rng: np.random.Generator, probability: Array, size: int) -> tuple[Index, Array]:
    """Independent draws, and the factor 1/sqrt(M q) of each weight: E sum factor^2 a = sum a."""
    index = np.sort(rng.choice(len(probability), size, p=probability))
    return index, 1 / np.sqrt(size * probability[index])


def without_replacement(rng: np.random.Generator, probability: Array, size: int) -> tuple[Index, Array]:
    """Different features, each with a chance p in proportion to q (but at most 1), and factors 1/sqrt(p).

    The pivotal method: two features fight for their chances until one has none left or is certain; the chances of all
    others are untouched, so each is kept with exactly its chance. It is never less precise than independent draws.
    """
    chance = inclusion(probability, size)
    undecided = chance.copy()
    fighter = 0
    for rival in range(1, len(chance)):
        a, b = undecided[fighter], undecided[rival]
        total = a + b
        if total <= 1:  # one of them loses all
            loses = rng.random() * total < b
            winner, loser = (rival, fighter) if loses else (fighter, rival)
            undecided[winner], undecided[loser] = total, 0.0
            fighter = winner
        else:  # one of them is certain
            first_wins = rng.random() * (2 - total) < 1 - b
            winner, rest = (fighter, rival) if first_wins else (rival, fighter)
            undecided[winner], undecided[rest] = 1.0, total - 1
            fighter = rest
    index = np.sort(np.argsort(-undecided, kind="stable")[:size])
    kept = chance[index]  # 0 where the pool has fewer than M features that differ from 0 on the rows
    return index, np.divide(1, np.sqrt(kept), out=np.zeros(size), where=kept > 0)


def inclusion(probability: Array, size: int) -> Array:
    """min(1, c q) with c such that the sum is `size`."""
    chance = np.minimum(size * probability, 1.0)
    for _ in range(len(chance)):
        certain = chance >= 1
        free = probability[~certain].sum()
        if free <= 0:
            break
        chance = np.where(certain, 1.0, (size - certain.sum()) * probability / free)
        if np.all(chance <= 1):
            break
        chance = np.minimum(chance, 1.0)
    return chance
