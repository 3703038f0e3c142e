"""Grids of ridge weights by the solver that a run asks for: Newton's method, or the paper's own, ADMM."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np
from numpy.typing import NDArray

from quernel import paths
from quernel.paper.experiment import NEWTON
from quernel.problem import Problem
from quernel.solvers import SOLVERS, Result

Array = NDArray[np.floating]
# By tolerance: how many fits were asked for it, how many of them stopped short of it, and the largest relative gap.
Gaps = dict[str, tuple[int, int, float]]

# Of ADMM, at most: hard fits take a few thousand.
ROUNDS = 5000

_gaps: ContextVar[Gaps | None] = ContextVar("quernel_gaps", default=None)


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
    fits = solve_each(problem.take(columns), np.repeat(alphas, problem.n_columns), tol=tol, solver=solver)
    rows = {
        name: getattr(fits, name).reshape(count, -1)
        for name in ("intercept", "objective", "gap", "relative_gap", "iterations")
    }
    coef = fits.coef.reshape(-1, count, problem.n_columns).transpose(1, 0, 2)
    return paths.Grid(np.asarray(alphas, dtype=float), np.ascontiguousarray(coef), **rows, sweeps=fits.sweeps)


def solve_each(problem: Problem, alphas: Array, *, tol: float, solver: str) -> Result:
    """The problem with a ridge weight of its own for every column."""
    own = Problem(problem.rows, problem.loss, alphas, fit_intercept=problem.fit_intercept)
    return solver_function(solver)(own, tol=tol, max_iter=ROUNDS)


def solver_function(name: str) -> Callable[..., Result]:
    """A solver as a function of a problem, `tol` and `max_iter`; ADMM has the rounds that it needs."""
    return SOLVERS[NEWTON] if name == NEWTON else _admm


def _admm(problem: Problem, *, tol: float, max_iter: int = ROUNDS) -> Result:
    found = SOLVERS["admm"](problem, tol=tol, max_iter=max(max_iter, ROUNDS))
    gaps = _gaps.get()
    if gaps is not None:
        worst = (problem.n_columns, int(np.sum(found.relative_gap > tol)), float(found.relative_gap.max()))
        gaps[f"{tol:g}"] = joined(gaps.get(f"{tol:g}"), worst)
    return found


def joined(some: tuple[int, int, float] | None, more: tuple[int, int, float]) -> tuple[int, int, float]:
    """What is known of two sets of fits together."""
    return more if some is None else (some[0] + more[0], some[1] + more[1], max(some[2], more[2]))


@contextmanager
def gaps_of_fits() -> Iterator[Gaps]:
    """Collect what ADMM certifies inside this block."""
    gaps: Gaps = {}
    token = _gaps.set(gaps)
    try:
        yield gaps
    finally:
        _gaps.reset(token)
