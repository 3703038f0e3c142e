"""The few directions of the feature space that matter.

Features of a smooth kernel are nearly dependent. A direction in which they vary little can gain little: with duals v,
leaving out what features E a projection misses costs |E'v / n|^2 / (4 alpha), and because at the optimum v is noise to
every direction that is not worth fitting, that is about  var(v) trace(E'E / n) / (4 alpha n).  So for many rows, most
directions below alpha can go. What they really cost is in the certificate, which is taken over all features.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dpstrf

from quernel.certificate import dual_variance
from quernel.problem import Problem

Array = NDArray[np.floating]

# What left-out directions may cost, as a share of the tolerance: much less than what the rest of the gap takes.
COST = 0.05
# A basis that keeps more than this share of the features saves too little.
MOST = 0.8


def principal_basis(sample: Problem, n_rows: int, tol: float, null_objective: Array) -> Array | None:
    """An orthonormal basis (M, k) of all that can matter for `n_rows` rows like these, or None where k is near M."""
    variance = np.maximum(dual_variance(sample), np.finfo(float).tiny)
    spare = COST * 4 * tol * n_rows * float(np.min(sample.alpha * null_objective / variance))
    features = sample.rows.resident("A basis needs the sample's features")
    weighted = features * sample.rows.share[:, None]
    gram = weighted.T @ features
    M = len(gram)
    # Pivoted Cholesky: gram[pivots, pivots] = R'R up to the rank at which no remaining diagonal exceeds its allowance.
    factor, pivots, rank, _ = dpstrf(gram, tol=max(spare / M, np.finfo(float).eps * np.trace(gram)))
    if rank > MOST * M:
        return None
    R = np.triu(factor[: max(rank, 1)])
    R[:, pivots - 1] = R.copy()
    return np.linalg.qr(R.T)[0]
