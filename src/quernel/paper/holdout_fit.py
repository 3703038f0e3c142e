"""The paper's tuning: fit every ridge weight of a grid, and select the best one by its loss on a validation set.

Fits have no intercept, as in the paper. The grid may be solved by Newton's method (the library's) or by ADMM (the
paper's algorithm); both stop at a certified relative duality gap. `fit_and_select` serves the simulations and the used
cars, with several quantile levels and precomputed features; `fit_ridge_path` serves one loss with a feature map.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator

from quernel import paths
from quernel.data import ArrayRows, InMemoryDesign
from quernel.data.design_matrix import FeatureMap
from quernel.losses import Loss, Pinball
from quernel.objective import Problem
from quernel.paper.experiment import NEWTON
from quernel.solvers import SOLVERS, Result

Array = NDArray[np.floating]
# Tolerance (as text) to: number of fits, number of those that stopped above it, largest relative duality gap.
GapStats = dict[str, tuple[int, int, float]]

LEVELS = (0.1, 0.25, 0.5, 0.75, 0.9)
# The paper's grid of ridge weights, {10^(s/2): s = -20, ..., 2}, section 5 and appendix.
ALPHAS = 10.0 ** (0.5 * np.arange(-20, 3))
# Validation rows of all simulations.
N_VALIDATION = 1000


@dataclass(frozen=True)
class HoldoutFitOptions:
    """Tolerances, as relative duality gaps, and iteration limits: digits of the selected fits against time."""

    tol: float = 1e-6  # of the fits that validation selects
    path_tol: float = 1e-5  # of `fit_ridge_path`
    # Of the grid in `fit_and_select`. At 1e-5 validation selects the same weights as at 1e-6; at 1e-3 now and then
    # another one, but ADMM would need too many iterations for less.
    newton_grid_tol: float = 1e-5
    admm_grid_tol: float = 1e-3
    max_iter: int = 500  # Newton steps of one fit in `fit_and_select`
    admm_max_iter: int = 5000  # hard fits take a few thousand


OPTIONS = HoldoutFitOptions()
_gaps: ContextVar[GapStats | None] = ContextVar("quernel_gaps", default=None)


def solve_grid(
    problem: Problem, alphas: Array, *, tol: float, max_iter: int = 1000, solver: str = NEWTON
) -> paths.Grid:
    """Solve the problem at every ridge weight to a relative duality gap of at most `tol`.

    Newton's method follows the grid with warm starts (`quernel.paths.solve`), each fit limited to `max_iter`
    iterations. ADMM solves all weights at once, as columns of one problem that share one eigendecomposition; a warm
    start from the neighbouring weight would save it next to no iterations. It may stop above `tol`: see `record_gaps`.
    """
    if solver == NEWTON:
        return paths.solve(problem, alphas, tol=tol, max_iter=max_iter)
    count, columns = len(alphas), np.tile(np.arange(problem.n_columns), len(alphas))
    fits = _solve_per_column(problem.take(columns), np.repeat(alphas, problem.n_columns), tol=tol, solver=solver)
    rows = {
        name: getattr(fits, name).reshape(count, -1)
        for name in ("intercept", "objective", "gap", "relative_gap", "iterations")
    }
    coef = fits.coef.reshape(-1, count, problem.n_columns).transpose(1, 0, 2)
    return paths.Grid(np.asarray(alphas, dtype=float), np.ascontiguousarray(coef), **rows, sweeps=fits.sweeps)


def _solve_per_column(problem: Problem, alphas: Array, *, tol: float, solver: str) -> Result:
    """Solve the problem with one ridge weight per column; alphas has shape (n_columns,)."""
    own = Problem(problem.rows, problem.loss, alphas, fit_intercept=problem.fit_intercept)
    return solver_function(solver)(own, tol=tol, max_iter=OPTIONS.admm_max_iter)


def solver_function(name: str) -> Callable[..., Result]:
    """The solver of this name as a function of a problem, `tol` and `max_iter`."""
    return PAPER_SOLVERS[name]


def _solve_by_admm(problem: Problem, *, tol: float, max_iter: int = 0) -> Result:
    """ADMM with at least `admm_max_iter` iterations allowed; its gaps are added to those of `record_gaps`, if any."""
    result = SOLVERS["admm"](problem, tol=tol, max_iter=max(max_iter, OPTIONS.admm_max_iter))
    gaps = _gaps.get()
    if gaps is not None:
        stats = (problem.n_columns, int(np.sum(result.relative_gap > tol)), float(result.relative_gap.max()))
        gaps[f"{tol:g}"] = merge_gap_stats(gaps.get(f"{tol:g}"), stats)
    return result


# The solvers of the reproduction, by name.
PAPER_SOLVERS: dict[str, Callable[..., Result]] = {NEWTON: SOLVERS[NEWTON], "admm": _solve_by_admm}


def merge_gap_stats(some: tuple[int, int, float] | None, more: tuple[int, int, float]) -> tuple[int, int, float]:
    """Statistics (fits, fits above the tolerance, largest gap) of two sets of fits together."""
    return more if some is None else (some[0] + more[0], some[1] + more[1], max(some[2], more[2]))


@contextmanager
def record_gaps() -> Iterator[GapStats]:
    """Context manager that collects the duality gaps of all ADMM fits made inside it, by tolerance."""
    gaps: GapStats = {}
    token = _gaps.set(gaps)
    try:
        yield gaps
    finally:
        _gaps.reset(token)


@dataclass(frozen=True, eq=False)
class SelectedFit:
    """Per quantile level, the fit that validation selected.

    Attributes
    ----------
    alpha : ndarray of shape (q,)
        Selected ridge weight.
    coef : ndarray of shape (M, q)
    gap : ndarray of shape (q,)
        Certified relative duality gap of the selected fit.
    grid : ndarray of shape (a, M, q)
        Coefficients at all ridge weights, solved to the looser tolerance of the grid.
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
    solver: str = NEWTON,
) -> SelectedFit:
    """Fit every ridge weight, and solve to `OPTIONS.tol` the one of least mean loss on the validation set, per level.

    Parameters
    ----------
    train, validation : arrays of shape (n, M) and (n_validation, M), features
    y, y_validation : targets, of shape (n,) if all levels share them, or (n, q) with one column per level
    levels : quantile levels
    grid_tol : relative duality gap of the fits on the grid; None is that of `OPTIONS` for this solver
    solver : "newton" or "admm"
    """
    problem = make_problem(train, y, levels)
    if grid_tol is None:
        grid_tol = OPTIONS.newton_grid_tol if solver == NEWTON else OPTIONS.admm_grid_tol
    grid = solve_grid(problem, ALPHAS, tol=grid_tol, max_iter=OPTIONS.max_iter, solver=solver)
    held_out = y_validation if y_validation.ndim == 2 else y_validation[:, None]
    best = np.argmin(pinball(held_out - grid.predict(validation), np.asarray(levels)).mean(axis=1), axis=0)
    if solver != NEWTON:
        fits = _solve_per_column(problem, ALPHAS[best], tol=OPTIONS.tol, solver=solver)
        return SelectedFit(ALPHAS[best], fits.coef, fits.relative_gap, grid.coef)
    parts = []
    for alpha, column in zip(ALPHAS[best], range(len(levels)), strict=True):
        own = make_problem(train, y[:, column] if y.ndim == 2 else y, levels[column : column + 1])
        parts.append(solve_grid(own, np.array([alpha]), tol=OPTIONS.tol, max_iter=OPTIONS.max_iter))
    coef = np.stack([part.coef[0, :, 0] for part in parts], axis=1)
    return SelectedFit(ALPHAS[best], coef, np.array([part.relative_gap[0, 0] for part in parts]), grid.coef)


def transform_parts(features: BaseEstimator, parts: Sequence[Array]) -> list[Array]:
    """Features of training, validation and test rows, fitted to the training rows."""
    train, *others = parts
    return [features.fit_transform(train), *(features.transform(part) for part in others)]


def make_problem(features: Array, y: Array, levels: Sequence[float], *, fit_intercept: bool = False) -> Problem:
    """The quantile regression problem on these features; its ridge weight is set by the grid."""
    rows = InMemoryDesign(ArrayRows(features, y), features=features)
    return Problem(rows, Pinball(np.asarray(levels)), 1.0, fit_intercept=fit_intercept)


def pinball(residual: Array, levels: float | Array) -> Array:
    """Pinball loss max(tau r, (tau - 1) r), quantile levels along the last axis."""
    return np.maximum(levels * residual, (levels - 1) * residual)


@dataclass(frozen=True, eq=False)
class RidgePath:
    """Fits of one loss at a grid of ridge weights on the same features: alphas (a,), coef (a, M)."""

    feature_map: FeatureMap
    loss: Loss
    alphas: Array
    coef: Array

    def predict(self, X: Array) -> Array:
        """Predictions of all fits at these rows, shape (n, a)."""
        return self.feature_map.transform(X) @ self.coef.T

    def select_on(self, X: Array, y: Array) -> int:
        """Index of the fit with the least mean loss on these rows."""
        offset, sign = self.loss.margin_transform(y[:, None])
        return int(np.argmin(np.mean(self.loss.value(offset - sign * self.predict(X)), axis=0)))


def fit_ridge_path(
    feature_map: FeatureMap,
    rows: ArrayRows,
    loss: Loss,
    alphas: Array = ALPHAS,
    *,
    tol: float = OPTIONS.path_tol,
    warm: bool = True,
    solver: str = NEWTON,
) -> RidgePath:
    """Fit a loss of one column at every ridge weight, without intercept.

    Parameters
    ----------
    feature_map : fitted features
    rows : training rows, X (n, d) and targets (n,)
    loss : any of `quernel.losses`, of one column
    alphas : ridge weights
    tol : relative duality gap
    warm : whether each Newton fit starts from the one before. With features that have poles, cold starts are faster
    solver : "newton" or "admm"
    """
    design = InMemoryDesign(rows, features=feature_map.transform(rows.X))
    if warm or solver != NEWTON:
        problem = Problem(design, loss, float(alphas[0]), fit_intercept=False)
        coef = solve_grid(problem, alphas, tol=tol, solver=solver).coef[:, :, 0]
    else:
        problems = (Problem(design, loss, float(alpha), fit_intercept=False) for alpha in alphas)
        coef = np.stack([SOLVERS[NEWTON](problem, tol=tol).coef[:, 0] for problem in problems])
    return RidgePath(feature_map, loss, np.asarray(alphas), coef)
