"""Where Newton's method starts on problems with few rows per feature: at ridge regression on a sample of the rows.

From the best constant the first steps have nearly all rows active, each as expensive as ridge regression on all of
them. The residuals of ridge regression, even on a sample, show which rows are far from their quantile.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quernel.data.design_matrix import stratified_indices
from quernel.losses import weighted_quantiles
from quernel.objective import Curvature, InMemoryProblem
from quernel.objective.active_gram import ActiveGram
from quernel.objective.null_model import weak_ridge
from quernel.solvers.linear_system import NewtonSystem
from quernel.solvers.newton import Start, cold_start

Array = NDArray[np.floating]


@dataclass(frozen=True)
class RidgeStartOptions:
    """When to start from ridge regression, and how."""

    rows_per_feature: int = 4  # of the sample ...
    share: float = 2 / 3  # ... and of all rows, at most
    min_rows_per_feature: int = 2  # of all rows
    least: int = 2_000_000  # feature entries of all rows: on fewer it saves nothing
    width: float = 0.15  # smoothing width of the first step, as a share of that at the best constant


OPTIONS = RidgeStartOptions()


def ridge_start(problem: InMemoryProblem) -> Start:
    """The start of a solve: ridge regression on a sample where that pays, else the best constant."""
    start, rows = cold_start(problem), problem.rows
    n, M = rows.n_rows, rows.n_features
    size = int(min(OPTIONS.rows_per_feature * M, OPTIONS.share * n))
    large = n >= OPTIONS.min_rows_per_feature * M and n * M > OPTIONS.least
    two_piece = problem.loss.is_two_piece and not problem.loss.margin and rows.target.ndim == 1
    if not (large and two_piece and rows.random_access and np.ptp(problem.alpha) == 0) or weak_ridge(
        problem, start.null
    ):
        return start
    Phi, y = rows.as_array("A sample is kept"), rows.target
    sample, gram = np.sort(stratified_indices(n, size, np.random.default_rng(0))), ActiveGram(rows)
    gram.update(sample, rows.threads)
    scale = 1 / (float(start.width.mean()) * gram.total)
    curvature = Curvature(np.empty(0), gram=gram.gram, cross=gram.cross, total=gram.total, scale=scale)
    weighted = scale * rows.share[sample] * y[sample]
    system = NewtonSystem(curvature, float(problem.alpha[0]), problem.fit_intercept)
    coef, intercept = system.direction(-(weighted @ Phi[sample]), -float(weighted.sum()))
    residual = y - Phi @ coef - intercept
    low, high = problem.loss.domain
    shift: Array = np.zeros(problem.n_columns)
    if problem.fit_intercept:
        shift = weighted_quantiles(residual, rows.share, high / (high - low))
    width = OPTIONS.width * start.width
    anchor = np.asfortranarray(np.clip((residual[:, None] - shift) / width, low, high))
    return Start(np.tile(coef[:, None], problem.n_columns), intercept + shift, anchor, width, start.null)
