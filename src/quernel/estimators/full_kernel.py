"""Exact kernel regression: features enough that what they miss of the kernel is within the tolerance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from quernel.data import ArrayRows, InMemoryDesign, memory_budget
from quernel.features import PivotedCholesky
from quernel.features.cholesky import FLOOR
from quernel.kernels import Kernel
from quernel.objective.duality_gap import low_rank_bound, relative
from quernel.solvers import Result

Array = NDArray[np.floating]

FIRST_CUT = 1e-10
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
    """Factor the kernel and solve, each to half of the tolerance; the gap that is reported holds for the whole kernel.

    How much of the kernel may be left out depends on the duals, so the first cut is a guess: where what it left out
    turns out to matter, a finer factor is made, fine enough by what the first solve has shown.
    """
    share = source.share()
    # While it grows, the factor is held up to three times over.
    most = int(memory_budget(max_memory) / (3 * 8 * source.n_rows))
    # Duals of size one and an objective of the size of the penalty's own scale: a guess that is rarely refined twice.
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
        missed = missed.reshape(len(result.objective), -1).sum(axis=1)  # columns may be one problem
        scale = np.maximum(result.objective, result.null_objective / 1000)
        excess = np.max(np.divide(missed, scale * tol / 2, out=np.zeros_like(missed), where=scale > 0))
        if excess <= 1 or cut <= FLOOR:
            break
        cut = max(cut / (2 * excess), FLOOR)
        del features
    gap = result.gap + missed
    return feature_map, replace(result, gap=gap, relative_gap=relative(gap, result.objective, result.null_objective))
