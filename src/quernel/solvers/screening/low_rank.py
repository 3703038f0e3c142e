"""Low-rank basis of the features: a pivoted Cholesky decomposition that keeps the directions that matter.

Features of a smooth kernel are nearly collinear, and a direction in which they vary little can gain little. Let E be
what a projection misses of the features. With duals v, leaving E out costs at most |E'v / n|^2 / (4 alpha) of the
objective; at the optimum v is noise to every direction that is not worth fitting, so this is about var(v) trace(E'E /
n) / (4 alpha n). Hence for many rows, most directions with eigenvalues below alpha can go. Their actual cost is part of
the certificate, which is always taken over all features.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dpstrf

from quernel._threads import blocks, parallel_map
from quernel.objective import InMemoryProblem, Problem
from quernel.objective.duality_gap import dual_variance

Array = NDArray[np.floating]

# Expected cost of the directions left out, as a share of the tolerance.
COST = 0.05
# Floor on the assumed correlation of duals with a direction left out, which is noise only up to a point. It is higher
# for margin losses with a kink: their population minimiser is a step function, and duals correlate with what sharpens
# it.
SIGNAL, SIGNAL_OF_STEPS = 0.002, 0.016
# A basis of more than this share of the features does not pay.
MAX_BASIS_SHARE = 0.8


@dataclass(frozen=True, eq=False)
class Directions:
    """Orthonormal directions `basis` (M, r) in order of importance.

    After projection on the first k of them, the largest residual mean square of a feature is left[k - 1].
    """

    basis: Array
    left: Array

    def needed(self, problem: Problem, n_rows: int, tol: float, null_objective: Array) -> int:
        """Number of directions that suffice for `n_rows` rows like these and a relative gap of `tol`."""
        variance = np.maximum(dual_variance(problem), np.finfo(float).tiny)
        signal = SIGNAL_OF_STEPS if problem.loss.margin and not np.all(problem.loss.smoothing_width > 0) else SIGNAL
        spare = COST * 4 * tol * min(n_rows, signal**-2) * float(np.min(problem.alpha * null_objective / variance))
        return min(int(np.count_nonzero(self.left > spare / len(self.basis))) + 1, len(self.left))


def directions(features: Array, share: Array, threads: int = 1) -> Directions:
    """Directions of these features (n, M) by pivoted Cholesky of their weighted Gram matrix.

    gram[pivots, pivots] = R'R, with pivots in order of the largest residual; the columns of R' are orthonormalised.
    """
    gram = _second_moments(features, share, threads)
    factor, pivots, rank, _ = dpstrf(gram, tol=np.finfo(float).eps * max(np.trace(gram), np.finfo(float).tiny))
    R = np.triu(factor[: max(rank, 1)])
    R[:, pivots - 1] = R.copy()
    # The square of the next pivot is the largest residual mean square.
    left = np.append(np.diag(factor)[1 : len(R)] ** 2, 0.0)
    return Directions(np.linalg.qr(R.T)[0], left)


def _second_moments(features: Array, share: Array, threads: int) -> Array:
    """Phi' diag(share) Phi."""

    def moments(part: slice) -> Array:
        scaled = features[part] * np.sqrt(share[part])[:, None]
        return scaled.T @ scaled  # BLAS syrk: half the work of a general product

    n_rows, n_features = features.shape
    return np.sum(parallel_map(moments, blocks(n_rows, n_features, threads), threads), axis=0)


def principal_basis(sample: InMemoryProblem, n_rows: int, tol: float, null_objective: Array) -> Array | None:
    """A basis (M, k) for problems of `n_rows` rows like the sample's, or None where k is close to M."""
    features = sample.rows.as_array("A basis needs the sample's features")
    found = directions(features, sample.rows.share, sample.rows.threads)
    k = found.needed(sample, n_rows, tol, null_objective)
    return None if k > MAX_BASIS_SHARE * len(found.basis) else np.ascontiguousarray(found.basis[:, :k])
