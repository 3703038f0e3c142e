"""n_components="exact": solve with the full kernel, through a pivoted Cholesky factor of sufficient rank.

The factor Phi Phi' approximates the kernel matrix K from below. What the truncation can change in the objective is
bounded from the dual variables and the residual diagonal (`objective.duality_gap.low_rank_bound`), and this bound is
added to the duality gap: the gap then holds for all functions of the kernel's RKHS.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from quernel.data import ArrayRows, InMemoryDesign, memory_budget
from quernel.features import PivotedCholesky
from quernel.features.landmarks import FLOOR
from quernel.kernels import Kernel
from quernel.objective.duality_gap import low_rank_bound, relative
from quernel.solvers import Result

Array = NDArray[np.floating]

# Largest first tolerance of the pivoted Cholesky factorisation.
FIRST_CUT = 1e-10
# Refinements of the factor at most.
MAX_TRIALS = 5


def solve_full_kernel(
    source: ArrayRows,
    kernel: Kernel,
    alpha: float,
    tol: float,
    solve: Callable[[InMemoryDesign, float], Result],
    *,
    max_memory: int | None = None,
) -> tuple[PivotedCholesky, Result]:
    """Factor the kernel matrix and solve, each to half of the tolerance; the gap returned holds for the full kernel.

    The admissible truncation depends on the dual variables, so the first tolerance `cut` is a guess. If the truncation
    turns out to matter, the factorisation is repeated with a tolerance derived from the duals just found.
    """
    share = source.share()
    # While it grows, up to three copies of the factor are in memory.
    most = int(memory_budget(max_memory) / (3 * 8 * source.n_rows))
    # The initial guess assumes dual variables of size 1; it is rarely refined twice.
    cut = min(FIRST_CUT, max(alpha * tol, FLOOR))
    for _ in range(MAX_TRIALS):
        feature_map = PivotedCholesky(kernel, tol=cut, max_components=most)
        features = feature_map.fit_transform(source.X, sample_weight=source.weight)
        if feature_map.n_components_ >= most:
            raise ValueError(
                f'n_components="exact" needs more than {most:,} features for {source.n_rows:,} rows with this kernel, '
                "more than memory allows. Use random features (n_components=1000, say), a larger bandwidth, a smoother "
                "kernel, or raise max_memory."
            )
        result = solve(InMemoryDesign(source, features=features), tol / 2)
        missed = low_rank_bound(result.dual, share, feature_map.residual_, np.asarray(alpha))
        missed = missed.reshape(len(result.objective), -1).sum(axis=1)  # several columns may form one problem
        scale = np.maximum(result.objective, result.null_objective / 1000)
        excess = np.max(np.divide(missed, scale * tol / 2, out=np.zeros_like(missed), where=scale > 0))
        if excess <= 1 or cut <= FLOOR:
            break
        cut = max(cut / (2 * excess), FLOOR)
        del features
    gap = result.gap + missed
    return feature_map, replace(result, gap=gap, relative_gap=relative(gap, result.objective, result.null_objective))
