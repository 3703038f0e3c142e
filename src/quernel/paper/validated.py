"""The paper's way to fit: every ridge weight of a grid, and for each level the one that is best on a validation set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quernel.losses import Pinball
from quernel.paper.experiment import NEWTON
from quernel.paper.grids import solve_each, solve_grid
from quernel.problem import Problem
from quernel.rows import ArrayRows, LiftedRows

Array = NDArray[np.floating]

LEVELS = (0.1, 0.25, 0.5, 0.75, 0.9)
# {10^(s/2): s = -20, ..., 2}, as in section 5 and the appendix.
ALPHAS = 10.0 ** (0.5 * np.arange(-20, 3))
# Relative duality gaps of the fits that are chosen, and of those chosen from: at 1e-5 validation chooses as at 1e-6, at
# 1e-3 now and then another weight. ADMM would need too many rounds for the former.
TOL = 1e-6
GRID_TOL = {NEWTON: 1e-5, "admm": 1e-3}
MAX_ITER = 500


@dataclass(frozen=True, eq=False)
class Chosen:
    """Per level: the ridge weight that validation chose, its coefficients (M, q), and the certified relative gap.

    `grid` (a, M, q) are the coefficients at all weights, less exact.
    """

    alpha: Array
    coef: Array
    gap: Array
    grid: Array


def fit_and_choose(
    train: Array,
    y: Array,
    validation: Array,
    y_validation: Array,
    levels: Sequence[float],
    *,
    grid_tol: float | None = None,
    tol: float = TOL,
    solver: str = NEWTON,
) -> Chosen:
    """Fit on the features `train` (n, M) at every ridge weight, without intercept, and choose on `validation`.

    Targets are (n,), the same for all levels, or (n, q), one column per level. The grid is solved to `grid_tol`
    (None: that of the solver), and the fits that were chosen to `tol`.
    """
    problem = _problem(train, y, levels)
    grid_tol = GRID_TOL[solver] if grid_tol is None else grid_tol
    grid = solve_grid(problem, ALPHAS, tol=grid_tol, max_iter=MAX_ITER, solver=solver)
    held_out = y_validation if y_validation.ndim == 2 else y_validation[:, None]
    best = np.argmin(pinball(held_out - grid.predict(validation), np.asarray(levels)).mean(axis=1), axis=0)
    if solver != NEWTON:
        fits = solve_each(problem, ALPHAS[best], tol=tol, solver=solver)
        return Chosen(ALPHAS[best], fits.coef, fits.relative_gap, grid.coef)
    parts = []
    for alpha, column in zip(ALPHAS[best], range(len(levels)), strict=True):
        own = _problem(train, y[:, column] if y.ndim == 2 else y, levels[column : column + 1])
        parts.append(solve_grid(own, np.array([alpha]), tol=tol, max_iter=MAX_ITER))
    coef = np.stack([part.coef[0, :, 0] for part in parts], axis=1)
    return Chosen(ALPHAS[best], coef, np.array([part.relative_gap[0, 0] for part in parts]), grid.coef)


def _problem(features: Array, y: Array, levels: Sequence[float]) -> Problem:
    rows = LiftedRows(ArrayRows(features, y), features=features)
    return Problem(rows, Pinball(np.asarray(levels)), 1.0, fit_intercept=False)


def pinball(residual: Array, levels: Array) -> Array:
    """max(tau r, (tau - 1) r), levels along the last axis."""
    return np.maximum(levels * residual, (levels - 1) * residual)
