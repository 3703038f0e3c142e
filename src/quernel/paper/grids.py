"""Grids of ridge weights by the solver that a run asks for: Newton's method, or the paper's ADMM."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from quernel import paths
from quernel.paper.experiment import NEWTON
from quernel.problem import Problem
from quernel.solvers import SOLVERS, Result

Array = NDArray[np.floating]


def solve_grid(
    problem: Problem, alphas: Array, *, tol: float, max_iter: int = 1000, solver: str = NEWTON
) -> paths.Grid:
    """The problem at every one of these ridge weights, to a relative gap of at most `tol` if the solver gets there."""
    if solver == NEWTON:
        return paths.solve(problem, alphas, tol=tol, max_iter=max_iter)
    fits = [SOLVERS[solver](_at(problem, float(alpha)), tol=tol, max_iter=max_iter) for alpha in alphas]
    names = ("coef", "intercept", "objective", "gap", "relative_gap", "iterations")
    stacked = {name: np.stack([getattr(fit, name) for fit in fits]) for name in names}
    return paths.Grid(np.asarray(alphas), **stacked, sweeps=sum(fit.sweeps for fit in fits))


def solver_function(name: str) -> Callable[..., Result]:
    """The solver of this name, as a function of a problem, `tol` and `max_iter`."""
    return SOLVERS[name]


def _at(problem: Problem, alpha: float) -> Problem:
    return Problem(problem.rows, problem.loss, alpha, fit_intercept=problem.fit_intercept)
