"""The few directions of the feature space that matter.

Features of a smooth kernel are nearly dependent. A direction in which they vary little can gain little: with duals v,
leaving out what features E a projection misses costs |E'v / n|^2 / (4 alpha), and because at the optimum v is noise to
every direction that is not worth fitting, that is about  var(v) trace(E'E / n) / (4 alpha n).  So for many rows, most
directions below alpha can go. What they really cost is in the certificate, which is taken over all features.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dpstrf

from quernel._threads import spread
from quernel.features.blocks import blocks
from quernel.objective import Problem
from quernel.objective.duality_gap import dual_variance

Array = NDArray[np.floating]

# What left-out directions may cost, as a share of the tolerance: much less than what the rest of the gap takes.
COST = 0.05
# Duals are noise to a left-out direction only so far: their correlation with it is not counted on to be below this. The
# best function of a margin loss with a kink is a step: to the directions that make it sharp, duals are far from noise.
SIGNAL, SIGNAL_OF_STEPS = 0.002, 0.016
# A basis that keeps more than this share of the features saves too little.
MAX_BASIS_SHARE = 0.8


@dataclass(frozen=True, eq=False)
class Directions:
    """Orthonormal directions (M, r) in the order of what they matter.

    The first k of them leave no feature with more than left[k - 1] of its mean square.
    """

    basis: Array
    left: Array

    def needed(self, problem: Problem, n_rows: int, tol: float, null_objective: Array) -> int:
        """How many suffice for `n_rows` rows like these and a relative gap of `tol`."""
        variance = np.maximum(dual_variance(problem), np.finfo(float).tiny)
        signal = SIGNAL_OF_STEPS if problem.loss.margin and not np.all(problem.loss.smoothing_width > 0) else SIGNAL
        spare = COST * 4 * tol * min(n_rows, signal**-2) * float(np.min(problem.alpha * null_objective / variance))
        return min(int(np.count_nonzero(self.left > spare / len(self.basis))) + 1, len(self.left))


def directions(features: Array, share: Array, threads: int = 1) -> Directions:
    """Of these rows' features, by pivoted Cholesky of their second moments: gram[pivots, pivots] = R'R."""
    gram = _second_moments(features, share, threads)
    factor, pivots, rank, _ = dpstrf(gram, tol=np.finfo(float).eps * max(np.trace(gram), np.finfo(float).tiny))
    R = np.triu(factor[: max(rank, 1)])
    R[:, pivots - 1] = R.copy()
    # The next pivot is the largest mean square that is left.
    left = np.append(np.diag(factor)[1 : len(R)] ** 2, 0.0)
    return Directions(np.linalg.qr(R.T)[0], left)


def _second_moments(features: Array, share: Array, threads: int) -> Array:
    """Phi' diag(share) Phi."""

    def moments(part: slice) -> Array:
        scaled = features[part] * np.sqrt(share[part])[:, None]
        return scaled.T @ scaled  # of one array: half the work

    n_rows, n_features = features.shape
    return np.sum(spread(moments, blocks(n_rows, n_features, threads), threads), axis=0)


def principal_basis(sample: Problem, n_rows: int, tol: float, null_objective: Array) -> Array | None:
    """A basis (M, k) of all that can matter for `n_rows` rows like the sample's, or None where k is near M."""
    features = sample.rows.as_array("A basis needs the sample's features")
    found = directions(features, sample.rows.share, sample.rows.threads)
    k = found.needed(sample, n_rows, tol, null_objective)
    return None if k > MAX_BASIS_SHARE * len(found.basis) else np.ascontiguousarray(found.basis[:, :k])
