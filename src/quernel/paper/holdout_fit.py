"""The paper's way to fit: every ridge weight of a grid, and for each level the one that is best on a validation set."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quernel import paths
from quernel.data import ArrayRows, InMemoryDesign
from quernel.data.design_matrix import FeatureMap
from quernel.losses import Loss, Pinball
from quernel.objective import Problem
from quernel.paper.experiment import NEWTON
from quernel.solvers import SOLVERS, Result

Array = NDArray[np.floating]
# By tolerance: how many fits were asked for it, how many of them stopped short of it, and the largest relative gap.
GapStats = dict[str, tuple[int, int, float]]

# Of ADMM, at most: hard fits take a few thousand.
ADMM_MAX_ITER = 5000

_gaps: ContextVar[GapStats | None] = ContextVar("quernel_gaps", default=None)


def solve_grid(
    problem: Problem, alphas: Array, *, tol: float, max_iter: int = 1000, solver: str = NEWTON
) -> paths.Grid:
    """The problem at every one of these ridge weights, to a relative gap of at most `tol`.

    `max_iter` is for Newton's method. ADMM has a limit of its own and may stop short, see `gaps_of_fits`; it takes all
    weights together, as columns of one problem that share its eigendecomposition. (To begin at the fit before saves
    it next to no rounds.)
    """
    if solver == NEWTON:
        return paths.solve(problem, alphas, tol=tol, max_iter=max_iter)
    count, columns = len(alphas), np.tile(np.arange(problem.n_columns), len(alphas))
    fits = solve_per_column(problem.take(columns), np.repeat(alphas, problem.n_columns), tol=tol, solver=solver)
    rows = {
        name: getattr(fits, name).reshape(count, -1)
        for name in ("intercept", "objective", "gap", "relative_gap", "iterations")
    }
    coef = fits.coef.reshape(-1, count, problem.n_columns).transpose(1, 0, 2)
    return paths.Grid(np.asarray(alphas, dtype=float), np.ascontiguousarray(coef), **rows, sweeps=fits.sweeps)


def solve_per_column(problem: Problem, alphas: Array, *, tol: float, solver: str) -> Result:
    """The problem with a ridge weight of its own for every column."""
    own = Problem(problem.rows, problem.loss, alphas, fit_intercept=problem.fit_intercept)
    return solver_function(solver)(own, tol=tol, max_iter=ADMM_MAX_ITER)


def solver_function(name: str) -> Callable[..., Result]:
    """A solver as a function of a problem, `tol` and `max_iter`; ADMM has the rounds that it needs."""
    return SOLVERS[NEWTON] if name == NEWTON else _admm


def _admm(problem: Problem, *, tol: float, max_iter: int = ADMM_MAX_ITER) -> Result:
    found = SOLVERS["admm"](problem, tol=tol, max_iter=max(max_iter, ADMM_MAX_ITER))
    gaps = _gaps.get()
    if gaps is not None:
        worst = (problem.n_columns, int(np.sum(found.relative_gap > tol)), float(found.relative_gap.max()))
        gaps[f"{tol:g}"] = merge_gap_stats(gaps.get(f"{tol:g}"), worst)
    return found


def merge_gap_stats(some: tuple[int, int, float] | None, more: tuple[int, int, float]) -> tuple[int, int, float]:
    """What is known of two sets of fits together."""
    return more if some is None else (some[0] + more[0], some[1] + more[1], max(some[2], more[2]))


@contextmanager
def record_gaps() -> Iterator[GapStats]:
    """Collect what ADMM certifies inside this block."""
    gaps: GapStats = {}
    token = _gaps.set(gaps)
    try:
        yield gaps
    finally:
        _gaps.reset(token)


LEVELS = (0.1, 0.25, 0.5, 0.75, 0.9)
# {10^(s/2): s = -20, ..., 2}, as in section 5 and the appendix.
ALPHAS = 10.0 ** (0.5 * np.arange(-20, 3))
# Relative duality gaps of the fits that are chosen, and of those chosen from: at 1e-5 validation chooses as at 1e-6, at
# 1e-3 now and then another weight. ADMM would need too many rounds for the former.
TOL = 1e-6
GRID_TOL = {NEWTON: 1e-5, "admm": 1e-3}
MAX_ITER = 500


@dataclass(frozen=True, eq=False)
class SelectedFit:
    """Per level: the ridge weight that validation chose, its coefficients (M, q), and the certified relative gap.

    `grid` (a, M, q) are the coefficients at all weights, less exact.
    """

    alpha: Array
    coef: Array
    gap: Array
    grid: Array


def fit_and_select(
    train: Array,
    y: Array,
    validation: Array,
    y_validation: Array,
    levels: Sequence[float],
    *,
    grid_tol: float | None = None,
    tol: float = TOL,
    solver: str = NEWTON,
) -> SelectedFit:
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
        fits = solve_per_column(problem, ALPHAS[best], tol=tol, solver=solver)
        return SelectedFit(ALPHAS[best], fits.coef, fits.relative_gap, grid.coef)
    parts = []
    for alpha, column in zip(ALPHAS[best], range(len(levels)), strict=True):
        own = _problem(train, y[:, column] if y.ndim == 2 else y, levels[column : column + 1])
        parts.append(solve_grid(own, np.array([alpha]), tol=tol, max_iter=MAX_ITER))
    coef = np.stack([part.coef[0, :, 0] for part in parts], axis=1)
    return SelectedFit(ALPHAS[best], coef, np.array([part.relative_gap[0, 0] for part in parts]), grid.coef)


def _problem(features: Array, y: Array, levels: Sequence[float]) -> Problem:
    rows = InMemoryDesign(ArrayRows(features, y), features=features)
    return Problem(rows, Pinball(np.asarray(levels)), 1.0, fit_intercept=False)


def pinball(residual: Array, levels: Array) -> Array:
    """max(tau r, (tau - 1) r), levels along the last axis."""
    return np.maximum(levels * residual, (levels - 1) * residual)


VALIDATION = 1000
FIT_TOL = 1e-5


@dataclass(frozen=True, eq=False)
class RidgePath:
    """One fit of a loss per ridge weight on the same features: alphas (a,), coef (a, M)."""

    feature_map: FeatureMap
    loss: Loss
    alphas: Array
    coef: Array

    def predict(self, X: Array) -> Array:
        """All fits at these rows, shape (n, a)."""
        return self.feature_map.transform(X) @ self.coef.T

    def select_on(self, X: Array, y: Array) -> int:
        """Which fit has the least mean loss on these rows."""
        offset, sign = self.loss.margin_transform(y[:, None])
        return int(np.argmin(np.mean(self.loss.value(offset - sign * self.predict(X)), axis=0)))


def fit_ridge_path(
    feature_map: FeatureMap,
    X: Array,
    y: Array,
    loss: Loss,
    alphas: Array = ALPHAS,
    *,
    tol: float = FIT_TOL,
    warm: bool = True,
    solver: str = NEWTON,
) -> RidgePath:
    """Fit the loss, of one column, at every weight, without intercept as in the paper.

    `warm` starts each of Newton's fits from the one before. Features with poles make that slower than to begin anew.
    """
    rows = InMemoryDesign(ArrayRows(X, y), features=feature_map.transform(X))
    if warm or solver != NEWTON:
        problem = Problem(rows, loss, float(alphas[0]), fit_intercept=False)
        coef = solve_grid(problem, alphas, tol=tol, solver=solver).coef[:, :, 0]
    else:
        problems = (Problem(rows, loss, float(alpha), fit_intercept=False) for alpha in alphas)
        coef = np.stack([SOLVERS[NEWTON](problem, tol=tol).coef[:, 0] for problem in problems])
    return RidgePath(feature_map, loss, np.asarray(alphas), coef)
