"""Sampling strategies: how the frequencies of random features are drawn.

All are unbiased, E phi(x)'phi(z) = K(x, z), but their variances differ:

- "uniform"     independent draws from the kernel's spectral measure (Rahimi and Recht, 2007);
- "orthogonal"  frequencies that are orthogonal within blocks (Yu et al., 2016);
- "qmc"         frequencies from a low-discrepancy sequence, quasi-Monte Carlo (Avron et al., 2016);
- "leverage"    a subset of a larger pool, sampled by ridge leverage scores on the data.

A `Draw` holds the random numbers of M features and evaluates them. A strategy draws frequencies and phases for one
kernel; `draw_features` applies it to every summand of a sum of kernels.

Leverage sampling is the paper's Example 1 and its "Effect of sampling strategy". The ridge leverage score of a feature
with values phi on the n rows,  s = phi'(K + alpha n I)^-1 phi,  says how much it matters to a ridge regression of
penalty alpha. From a pool of independent features, M are sampled with probability q in proportion to s and weighted by
1 / sqrt(M q), which is importance sampling: still unbiased, with less error in the directions that such a fit can
resolve. Scores depend on the rows and on alpha, never on a target or a loss.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cholesky, solve, solve_triangular
from scipy.stats import qmc

from quernel.features.landmarks import distinct_rows
from quernel.kernels import Kernel, RandomFeatureKernel, ShiftInvariantKernel
from quernel.kernels.base import spawn_rng

Array = NDArray[np.floating]
Index = NDArray[np.intp]
# (kernel, rng, n_components, n_columns) -> frequencies (d, M) and phases (M,).
Strategy = Callable[[RandomFeatureKernel, np.random.Generator, int, int], tuple[Array, Array]]
# Bits of a point of the Sobol sequence; doubles have 53.
SOBOL_BITS = 52
# How K is given to the scores: approximated by the features of the pool, or as the Gram matrix of the kernel.
SCORES = ("features", "gram")
# Default size of the pool, as a multiple of the features sampled from it.
POOL_FACTOR = 10
# Largest number of distinct rows on which the scores are computed; more of them would hardly change the scores.
MAX_SCORE_ROWS = 1000


@dataclass(frozen=True, eq=False)
class Draw:
    """The random numbers of M features  phi_m(x) = weight_m wave(x, frequency_m, phase_m).

    `wave` is that of the summand of the kernel to which feature m belongs. The weights are such that E Phi Phi' = K,
    the Gram matrix; for one kernel and independent draws they are 1 / sqrt(M).

    Attributes
    ----------
    frequencies : array of shape (d, M)
    phases, weights : arrays of shape (M,)
    terms : array of int of shape (M,)
        Index of the summand of each feature.
    """

    frequencies: Array
    phases: Array
    weights: Array
    terms: Index

    def recenter(self, kernel: Kernel, center: Array | None) -> Draw:
        """Features of x - center, by shifting phases:  cos(w'(x - c) + b) = cos(w'x + (b - w'c)).

        Features of kernels that are not shift-invariant stay as they are.
        """
        if center is None:
            return self
        is_cosine = np.array([isinstance(part, ShiftInvariantKernel) for _, part in kernel.summands])[self.terms]
        shifted = (self.phases - np.asarray(center, dtype=float) @ self.frequencies) % (2 * np.pi)
        return replace(self, phases=np.where(is_cosine, shifted, self.phases))

    def take(self, index: Index, factor: Array) -> Draw:
        """Some of the features, by index, with each weight multiplied by a factor."""
        return Draw(self.frequencies[:, index], self.phases[index], self.weights[index] * factor, self.terms[index])

    def evaluate_unweighted(self, kernel: Kernel, X: Array) -> Array:
        """The features of the rows of X without their weights, shape (n, M)."""
        if len(kernel.summands) == 1:
            return _require_random_features(kernel.summands[0][1]).wave(X, self.frequencies, self.phases)
        Phi = np.empty((len(X), len(self.phases)))
        for term, (_, part) in enumerate(kernel.summands):
            own = self.terms == term
            Phi[:, own] = _require_random_features(part).wave(X, self.frequencies[:, own], self.phases[own])
        return Phi


def draw_features(
    kernel: Kernel, strategy: Strategy, rng: np.random.Generator, n_components: int, n_columns: int
) -> Draw:
    """Draw M features of a kernel; for a sum of kernels, M_k of each in proportion to its coefficient c_k.

    The counts M_k are fixed rather than random (stratified sampling): features of summand k are weighted by
    sqrt(c_k / M_k), so that each summand is estimated without bias by its own features, and no variance comes from the
    counts.
    """
    coefficients = np.array([coefficient for coefficient, _ in kernel.summands])
    counts = allocate_components(coefficients, n_components)
    drawn = [
        strategy(_require_random_features(part), rng, int(count), n_columns)
        for count, (_, part) in zip(counts, kernel.summands, strict=True)
    ]
    return Draw(
        np.ascontiguousarray(np.hstack([frequencies for frequencies, _ in drawn])),
        np.concatenate([phases for _, phases in drawn]),
        np.repeat(np.sqrt(coefficients / counts), counts),
        np.repeat(np.arange(len(counts)), counts),
    )


def allocate_components(coefficients: Array, n_components: int) -> Index:
    """Integers >= 1 that sum to M, as close to proportional to the coefficients as rounding allows.

    One for each summand first, then the rest by the largest-remainder method.
    """
    n = len(coefficients)
    if n_components < n:
        raise ValueError(
            f"A sum of {n} kernels needs at least one random feature for each; got n_components={n_components}."
        )
    exact = (n_components - n) * coefficients / coefficients.sum()
    counts = np.floor(exact).astype(np.intp)
    largest_remainders = np.argsort(counts - exact, kind="stable")[: n_components - n - counts.sum()]
    counts[largest_remainders] += 1
    return counts + 1


def _require_random_features(kernel: Kernel) -> RandomFeatureKernel:
    """The kernel itself, typed; users' kernels were checked by `RandomFeatures.check`."""
    assert isinstance(kernel, RandomFeatureKernel)
    return kernel


def pair_cosine_sine(frequencies: Array, phases: Array, n_components: int) -> tuple[Array, Array]:
    """Use every frequency twice, with phases a quarter turn apart: a cosine and a sine; M = `n_components` in all.

    cos(a) cos(b) + sin(a) sin(b) = cos(a - b) contains no phase, which removes the variance of the phases from
    phi(x)'phi(z).
    """
    phases = np.column_stack([phases, phases - np.pi / 2]).ravel()
    return np.repeat(frequencies, 2, axis=1)[:, :n_components], phases[:n_components]


def draw_uniform(
    kernel: RandomFeatureKernel, rng: np.random.Generator, n_components: int, n_columns: int
) -> tuple[Array, Array]:
    """Independent frequencies and phases; under one seed, those for M are the first M of those for more."""
    frequencies = kernel.frequencies(spawn_rng(rng), n_components, n_columns)
    return frequencies, kernel.phases_at(spawn_rng(rng).random(n_components))


def draw_orthogonal(
    kernel: RandomFeatureKernel, rng: np.random.Generator, n_components: int, n_columns: int
) -> tuple[Array, Array]:
    """Orthogonal random features (Yu et al., 2016); cosine and sine of each frequency where the kernel has both."""
    n_frequencies = (n_components + 1) // 2 if kernel.paired else n_components
    normal = orthogonal_normals(rng, n_columns, n_frequencies)
    frequencies = kernel.frequencies_from(normal, rng.random((kernel.n_mixing(n_columns), n_frequencies)))
    phases = kernel.phases_at(rng.random(n_frequencies))
    return pair_cosine_sine(frequencies, phases, n_components) if kernel.paired else (frequencies, phases)


def orthogonal_normals(rng: np.random.Generator, n_columns: int, n_frequencies: int) -> Array:
    """Columns that are standard normal each, but orthogonal within blocks of d; shape (d, M).

    Orthonormal directions, each multiplied by an independent chi(d) length: that of a standard normal vector.
    """
    block_sizes = [min(n_columns, n_frequencies - start) for start in range(0, n_frequencies, n_columns)]
    directions = np.hstack([_draw_orthonormal(rng, n_columns, size) for size in block_sizes])
    return directions * np.sqrt(rng.chisquare(n_columns, n_frequencies))


def _draw_orthonormal(rng: np.random.Generator, n_columns: int, size: int) -> Array:
    """`size` columns of a uniformly (Haar) distributed random orthogonal matrix, by QR of a Gaussian one."""
    Q, R = np.linalg.qr(rng.standard_normal((n_columns, size)))
    return Q * np.sign(np.diag(R))  # fixes the signs, without which the distribution would depend on the QR algorithm


def draw_qmc(
    kernel: RandomFeatureKernel, rng: np.random.Generator, n_components: int, n_columns: int
) -> tuple[Array, Array]:
    """Frequencies at the points of a scrambled Sobol sequence; cosine and sine of each where the kernel has both.

    For kernels without pairs the phase is one more dimension of the sequence.
    """
    if kernel.paired:
        n_frequencies = (n_components + 1) // 2
        points = draw_sobol(rng, n_frequencies, kernel.cube_dimension(n_columns))
        phases = kernel.phases_at(rng.random(n_frequencies))
        return pair_cosine_sine(kernel.frequencies_at(points, n_columns), phases, n_components)
    *cube, last = draw_sobol(rng, n_components, kernel.cube_dimension(n_columns) + 1)
    return kernel.frequencies_at(np.array(cube), n_columns), kernel.phases_at(last)


def draw_sobol(rng: np.random.Generator, n_points: int, dimension: int) -> Array:
    """The first points of a scrambled Sobol sequence in the open unit cube, shape (dimension, n_points).

    Points are kept off the faces of the cube, where inverse distribution functions are infinite.
    """
    if dimension > qmc.Sobol.MAXDIM:
        raise ValueError(
            f"sampling='qmc' needs a sequence in {dimension} dimensions, and {qmc.Sobol.MAXDIM} is the most there is. "
            "Use sampling='orthogonal'."
        )
    sequence = qmc.Sobol(dimension, scramble=True, bits=SOBOL_BITS, seed=rng)
    points = sequence.random_base2(int(n_points - 1).bit_length())[:n_points]
    return np.clip(points.T, 2.0 ** -(SOBOL_BITS + 1), 1 - 2.0 ** -(SOBOL_BITS + 1))


# Data-independent strategies, by the name that users give as `sampling`.
STRATEGIES: dict[str, Strategy] = {"uniform": draw_uniform, "orthogonal": draw_orthogonal, "qmc": draw_qmc}
SAMPLINGS = (*STRATEGIES, "leverage")


def leverage_probabilities(
    pool: Draw, kernel: Kernel, X: Array, share: Array | None, alpha: float, *, of_gram: bool = False
) -> Array:
    """Probabilities (pool size,) in proportion to the ridge leverage scores of a pool's features on rows of X.

    Parameters
    ----------
    X : array of shape (n, d)
    share : array of shape (n,) or None
        Row weights; rows of weight 0 are ignored.
    alpha : float
        Ridge penalty of the fit that will follow.
    of_gram : bool
        Whether K in the scores is the kernel's Gram matrix, rather than Phi Phi' of the pool.
    """
    share = np.full(len(X), 1 / len(X)) if share is None else share
    rows, weight = distinct_rows(X[share > 0], share[share > 0], MAX_SCORE_ROWS)
    weight = weight / weight.sum()
    Phi = pool.evaluate_unweighted(kernel, rows) * pool.weights
    score = leverage_scores(Phi, weight, alpha, kernel.gram(rows, rows) if of_gram else None)
    return score / score.sum() if score.sum() > 0 else np.full(len(score), 1 / len(score))


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
