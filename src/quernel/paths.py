"""Whole grids of fits over the same rows: every ridge weight with every level, each with its certificate.

A small problem follows the ridge weight from large to small, all levels together: its rows are turned once into the
directions that matter (see `solvers.compression`), each weight uses as many of them as it needs, and starts from the
fit before. With few rows for every feature, fits at small weights go through many of the rows, and the fit before is no
guide: all (weight, level) pairs then go abreast, as columns of one problem. A large problem hands whole groups of pairs
to the screened solver, whose sweeps they share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quernel._threads import single_threaded_blas
from quernel.data import ArrayRows, InMemoryDesign
from quernel.losses import Loss, Pinball
from quernel.objective import Problem
from quernel.objective.duality_gap import null_model
from quernel.solvers import newton
from quernel.solvers.result import Result, recertify
from quernel.solvers.screening import driver
from quernel.solvers.screening.low_rank import directions

Array = NDArray[np.floating]

# The next weight's widths: the size of residual below which this share of rows lies.
WARM_SHARE = 0.2
WARM_ROWS = 4000
# With fewer rows for every feature than this, nothing is gained from the fit before.
FEW_ROWS = 8
# Weights further apart need too different directions to share a basis.
GROUP_RANGE = 30.0
# Numbers that a large grid may hold for its rows at a time (residuals, duals and changes of all its columns).
GROUP_SIZE = 100_000_000


@dataclass(frozen=True, eq=False)
class Grid:
    """Fits at a weights and q levels: coef (a, M, q); intercept, objective, gap and relative_gap (a, q).

    gap >= F - min F; sweeps counts passes over all rows' features; iterations (a, q) are Newton's.
    """

    alphas: Array
    coef: Array
    intercept: Array
    objective: Array
    gap: Array
    relative_gap: Array
    iterations: NDArray[np.intp]
    sweeps: float

    def predict(self, features: Array) -> Array:
        """Phi u + b of every fit, shape (a, n, q)."""
        return features @ self.coef + self.intercept[:, None, :]


def solve(
    problem: Problem,
    alphas: ArrayLike,
    levels: ArrayLike | None = None,
    *,
    tol: float = 1e-6,
    max_iter: int = 1000,
) -> Grid:
    """The problem at every one of these ridge weights and levels, to a relative gap of at most `tol`.

    Parameters
    ----------
    problem : Problem
        Its rows and intercept are used, and its loss if there are no levels; its own alpha is not. Targets (n, q) give
        each level its own.
    alphas : array-like of shape (a,), positive
    levels : array-like of shape (q,) or None
        Quantile levels; None keeps the problem's loss.
    """
    weights = np.asarray(alphas, dtype=float)
    if weights.ndim != 1 or len(weights) == 0 or not np.all((weights > 0) & np.isfinite(weights)):
        raise ValueError(f"alphas must be a list of positive, finite numbers; got {alphas!r}.")
    loss: Loss = problem.loss if levels is None else Pinball(np.asarray(levels, dtype=float))
    order = np.argsort(-weights, kind="stable")
    walk = _way(problem)
    with single_threaded_blas(problem.rows.n_rows, problem.rows.n_features) as problem.rows.threads:
        cells, sweeps = walk(problem.rows, loss, weights[order], problem.fit_intercept, tol, max_iter)
    back = np.argsort(order)
    coef, intercept, objective, gap, relative_gap, iterations = (
        np.stack([getattr(cell, name) for cell in cells])[back]
        for name in ("coef", "intercept", "objective", "gap", "relative_gap", "iterations")
    )
    return Grid(weights, coef, intercept, objective, gap, relative_gap, iterations, sweeps)


def solve_folds(
    problem: Problem, alphas: ArrayLike, levels: ArrayLike | None, folds: Sequence[NDArray[np.intp]], **options: float
) -> Iterator[Grid]:
    """The grid on the rows of each fold in turn; the features of all rows are computed once."""
    everything = problem.rows.pick(np.arange(problem.rows.n_rows))
    source = problem.rows.source
    for fold in folds:
        weight = None if source.weight is None else source.weight[fold]
        rows = InMemoryDesign(ArrayRows(everything[fold], source.y[fold], weight), features=everything[fold])
        part = Problem(rows, problem.loss, problem.alpha, fit_intercept=problem.fit_intercept)
        yield solve(part, alphas, levels, **options)  # type: ignore[arg-type]


def _way(problem: Problem) -> Callable[..., tuple[list[Result], float]]:
    """How to go through the grid."""
    if problem.rows.target.ndim == 2:  # columns of one problem would have to repeat targets of their own
        return _follow
    if problem.rows.n_rows < FEW_ROWS * problem.rows.n_features:
        return _abreast
    return _follow if driver.is_small(problem) else _together


def _follow(
    rows: InMemoryDesign, loss: Loss, alphas: Array, fit_intercept: bool, tol: float, max_iter: int
) -> tuple[list[Result], float]:
    """One weight after the other, from the largest."""
    turned = _Turned(rows)
    cells: list[Result] = []
    for alpha in alphas:
        whole = Problem(rows, loss, alpha, fit_intercept=fit_intercept)
        cells.append(turned.solve(whole, tol, max_iter, cells[-1] if cells else None))
    return cells, sum(cell.sweeps for cell in cells)


def _abreast(
    rows: InMemoryDesign, loss: Loss, alphas: Array, fit_intercept: bool, tol: float, max_iter: int
) -> tuple[list[Result], float]:
    """All weights at once, each from the best constant."""
    turned = _Turned(rows)
    cells, sweeps = [], 0.0
    for group in np.array_split(alphas, -(-3 * rows.n_rows * loss.n_columns * len(alphas) // GROUP_SIZE)):
        answer = turned.solve(_columns(rows, loss, group, fit_intercept), tol, max_iter)
        cells += _cells(answer, len(group))
        sweeps += answer.sweeps
    return cells, sweeps


class _Turned:
    """Rows whose features are turned into the directions that matter, the most important first."""

    def __init__(self, rows: InMemoryDesign) -> None:
        features = rows.pick(np.arange(rows.n_rows))
        self._rows, self._found = rows, directions(features, rows.share)
        self._features = features @ self._found.basis

    def solve(self, whole: Problem, tol: float, max_iter: int, before: Result | None = None) -> Result:
        """All columns of the problem, within as many directions as they need; from another fit, if there is one."""
        null = null_model(whole)
        k = self._found.needed(whole, self._rows.n_rows, tol, null.objective)
        features, basis = np.ascontiguousarray(self._features[:, :k]), self._found.basis[:, :k]
        few = InMemoryDesign(ArrayRows(features, self._rows.target), features=features, share=self._rows.share)
        small = Problem(few, whole.loss, whole.alpha, fit_intercept=whole.fit_intercept)
        start = None if before is None else _warm_start(small, replace(before, coef=basis.T @ before.coef))
        answer = newton.solve(small, tol=tol / 2, max_iter=max_iter, start=start, polish=False)
        cell = recertify(whole, replace(answer, coef=basis @ answer.coef), tol)
        work = answer.sweeps * k / self._rows.n_features
        if np.any(cell.relative_gap > tol) and answer.converged:  # directions were left out that do matter
            begin = newton.Start(cell.coef, cell.intercept, cell.dual, _widths(whole, cell), null)
            cell = newton.solve(whole, tol=tol, max_iter=max_iter, start=begin, polish=False)
            work += cell.sweeps
        return replace(cell, sweeps=work)


def _warm_start(problem: Problem, guess: Result) -> newton.Start | None:
    """From the fit at the weight before, as smooth as the way to go is long."""
    width = _widths(problem, guess)
    return driver.warm_start(problem, guess, width) if np.all(width > 0) else None


def _widths(problem: Problem, guess: Result) -> Array:
    some = slice(None, None, max(problem.rows.n_rows // WARM_ROWS, 1))
    memory = problem.rows.new_memory()
    problem.set_coefficients(memory, guess.coef, guess.intercept)
    distance = problem.loss.distance_to_knot(memory.collect("residual")[some])
    if not np.isfinite(distance).all():  # a loss without knots is smooth by itself
        return np.zeros(problem.loss.n_columns)
    return np.quantile(distance, WARM_SHARE, axis=0)


def _together(
    rows: InMemoryDesign, loss: Loss, alphas: Array, fit_intercept: bool, tol: float, max_iter: int
) -> tuple[list[Result], float]:
    """Groups of weights as columns of one problem each."""
    cells, sweeps = [], 0.0
    for group in _groups(alphas, max(1, GROUP_SIZE // (3 * rows.n_rows * loss.n_columns))):
        answer = driver.solve(_columns(rows, loss, group, fit_intercept), tol=tol, max_iter=max_iter)
        cells += _cells(answer, len(group))
        sweeps += answer.sweeps
    return cells, sweeps


def _columns(rows: InMemoryDesign, loss: Loss, alphas: Array, fit_intercept: bool) -> Problem:
    """One problem with a column for every pair: all levels at the first weight, then at the next."""
    levels = np.tile(np.arange(loss.n_columns), len(alphas))
    return Problem(rows, loss.take(levels), np.repeat(alphas, loss.n_columns), fit_intercept=fit_intercept)


def _cells(answer: Result, count: int) -> list[Result]:
    """What was found at each of so many weights."""
    return [answer.take(levels) for levels in np.split(np.arange(len(answer.gap)), count)]


def _groups(alphas: Array, most: int) -> Iterator[Array]:
    """Falling weights, cut where a group would be too many or too far apart."""
    start = 0
    for k in range(1, len(alphas) + 1):
        if k == len(alphas) or k - start == most or alphas[start] > GROUP_RANGE * alphas[k]:
            yield alphas[start:k]
            start = k
