"""Regularisation paths: fits at every pair of a ridge penalty alpha and a quantile level, each with its duality gap.

The fits share the rows, so they share work. Which way pays depends on the shape of the problem:

- sequential: a small problem goes along the path from the largest alpha to the smallest, all levels at a time, each fit
  warm-started from the one before. The features are rotated once into a low-rank basis, ordered by importance (see
  `quernel.solvers.screening.sampling`), of which every alpha uses only as many directions as it needs;
- simultaneous: with few rows per feature, fits at small alphas interpolate many of the rows and a warm start does not
  help: all (alpha, level) pairs become columns of one problem, in the same low-rank basis;
- screened: a large problem hands groups of pairs, as columns of one problem each, to the screened solver, which then
  reads the features once for the whole group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quernel._machine import single_threaded_blas
from quernel.data import ArrayRows, InMemoryDesign
from quernel.losses import Loss, Pinball
from quernel.objective import InMemoryProblem, Problem
from quernel.objective.duality_gap import NullModel, null_model
from quernel.solvers import newton, screening
from quernel.solvers.progress import stop_requested
from quernel.solvers.result import Limits, Result, recertify
from quernel.solvers.screening.sampling import directions

__all__ = ["Grid", "solve", "solve_folds"]

Array = NDArray[np.floating]


@dataclass(frozen=True)
class _PathOptions:
    """What the choice of a strategy, and the strategies themselves, depend on."""

    # The smoothing width of a warm start is in proportion to this quantile of the residuals' distances to the loss's
    # knots, on about so many rows. A larger width tolerates a start farther from the solution, but takes more steps.
    warm_start_quantile: float = 0.2
    warm_start_rows: int = 4000
    # Fewer rows per feature than this: warm starts do not help, and the fits are made simultaneously.
    min_rows_per_feature: int = 8
    # Largest ratio of two alphas in one group: alphas further apart need too different directions to share a basis.
    max_alpha_ratio: float = 30.0
    # Largest number of floats held per group: residuals, dual variables and changes of all rows and columns.
    max_group_floats: int = 100_000_000


_OPTIONS = _PathOptions()


@dataclass(frozen=True, eq=False)
class Grid:
    """Fits at every pair of a penalties and q levels.

    Attributes
    ----------
    alphas : array of shape (a,)
        In the order in which they were given.
    coef : array of shape (a, M, q)
        Coefficients of the M features.
    intercept, objective : arrays of shape (a, q)
        The objective F is that of `quernel.objective.Problem`.
    gap, relative_gap : arrays of shape (a, q)
        The duality gap, an upper bound of F - min F, and the same relative to max(F, F0 / 1000), where F0 is the
        objective of the null model (an intercept only).
    iterations : array of int of shape (a, q)
        Newton iterations.
    sweeps : float
        Work, counted in passes over the features of all rows.
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
        """Predictions  Phi u + b  of every fit for features Phi (n, M); shape (a, n, q)."""
        return features @ self.coef + self.intercept[:, None, :]


def solve(
    problem: Problem,
    alphas: ArrayLike,
    levels: ArrayLike | None = None,
    *,
    tol: float = 1e-6,
    max_iter: int = 1000,
) -> Grid:
    """Solve a problem at every pair of a ridge penalty and a quantile level.

    Parameters
    ----------
    problem : Problem
        Its rows and its choice of an intercept are used, and its loss if `levels` is None; its own alpha is ignored.
        Targets of shape (n, q) give each level a target of its own.
    alphas : array-like of shape (a,), positive
        Ridge penalties, in any order.
    levels : array-like of shape (q,) or None
        Quantile levels; None keeps the problem's loss.
    tol : float, default=1e-6
        Relative duality gap at which a fit has converged.
    max_iter : int, default=1000
        Newton iterations of each solve.

    Returns
    -------
    Grid
    """
    penalties = np.asarray(alphas, dtype=float)
    if penalties.ndim != 1 or len(penalties) == 0 or not np.all((penalties > 0) & np.isfinite(penalties)):
        raise ValueError(f"alphas must be a list of positive, finite numbers; got {alphas!r}.")
    loss: Loss = problem.loss if levels is None else Pinball(np.asarray(levels, dtype=float))
    rows = problem.rows.in_memory("A path of fits needs its rows in memory", instead="one alpha at a time")
    at_any_alpha = InMemoryProblem(rows, loss, 1.0, fit_intercept=problem.fit_intercept)
    descending = np.argsort(-penalties, kind="stable")
    with single_threaded_blas(rows.n_rows, rows.n_features) as rows.threads:
        results, sweeps = _solve_descending(at_any_alpha, penalties[descending], Limits(tol, max_iter))
    as_given = np.argsort(descending)
    coef, intercept, objective, gap, relative_gap, iterations = (
        np.stack([getattr(result, name) for result in results])[as_given]
        for name in ("coef", "intercept", "objective", "gap", "relative_gap", "iterations")
    )
    return Grid(penalties, coef, intercept, objective, gap, relative_gap, iterations, sweeps)


def solve_folds(
    problem: Problem, alphas: ArrayLike, levels: ArrayLike | None, folds: Sequence[NDArray[np.intp]], **options: float
) -> Iterator[Grid]:
    """Solve the grid on the rows of each fold in turn, as for cross-validation.

    The features of all rows are computed once. `folds` are the row indices to fit on; further keyword arguments are
    those of `solve`.
    """
    all_rows = problem.rows.in_memory("Folds need their rows in memory", instead="a row source per fold")
    features, source = all_rows.take_rows(np.arange(all_rows.n_rows)), all_rows.source
    for fold in folds:
        weight = None if source.weight is None else source.weight[fold]
        rows = InMemoryDesign(ArrayRows(features[fold], source.y[fold], weight), features=features[fold])
        fold_problem = Problem(rows, problem.loss, problem.alpha, fit_intercept=problem.fit_intercept)
        yield solve(fold_problem, alphas, levels, **options)  # type: ignore[arg-type]


# Solves the problem of a group of alphas, given the result of the group before.
_GroupSolver = Callable[[Problem, Result | None], Result]


def _solve_descending(problem: InMemoryProblem, alphas: Array, limits: Limits) -> tuple[list[Result], float]:
    """Solve at descending alphas: one Result per alpha, with a column per level, and the passes it took."""
    groups, solve_group = _choose_strategy(problem, alphas, limits)
    results, sweeps, result = [], 0.0, None
    for group in groups:
        result = solve_group(_stack_columns(problem, group), result)
        results += _split_columns(result, len(group))
        sweeps += result.sweeps
    return results, sweeps


def _choose_strategy(problem: InMemoryProblem, alphas: Array, limits: Limits) -> tuple[Iterable[Array], _GroupSolver]:
    """Which alphas are solved as columns of one problem, and how; see the module's docstring."""
    rows, floats = problem.rows, 3 * problem.rows.n_rows * problem.n_columns  # of one alpha
    own_targets = (
        rows.target.ndim == 2
    )  # a target per level: a problem with a column per pair would have to repeat them
    few_rows = rows.n_rows < _OPTIONS.min_rows_per_feature * rows.n_features
    if not (own_targets or few_rows or screening.is_small(problem)):  # screened
        groups = _group_alphas(alphas, max(1, _OPTIONS.max_group_floats // floats))
        return groups, lambda group, _: screening.solve(group, tol=limits.tol, max_iter=limits.max_iter)
    rotated = _RotatedRows(rows)
    if few_rows and not own_targets:  # simultaneous: as few problems as memory allows
        n_groups = -(-floats * len(alphas) // _OPTIONS.max_group_floats)
        return np.array_split(alphas, n_groups), lambda group, _: rotated.solve(group, limits)
    return alphas[:, None], lambda group, before: rotated.solve(group, limits, before)  # sequential


class _RotatedRows:
    """Rows whose features are rotated into a low-rank basis, the most important direction first.

    A fit within the first k directions is a problem with k features, and  u = basis[:, :k] u_k  are its coefficients
    for the original features. What the other directions would have gained is seen in the duality gap, which is
    recomputed over all features.
    """

    def __init__(self, rows: InMemoryDesign) -> None:
        features = rows.take_rows(np.arange(rows.n_rows))
        self._rows, self._directions = rows, directions(features, rows.share)
        self._features = features @ self._directions.basis
        self._null: NullModel | None = None

    def solve(self, problem: Problem, limits: Limits, previous: Result | None = None) -> Result:
        """Solve all columns within as many directions as they need, warm-started from `previous` if given.

        If the gap over all features exceeds `tol` although the reduced problem has converged, directions that matter
        were left out: the full problem is then solved, warm-started from the reduced fit.
        """
        self._null = null = null_model(problem, self._null)
        tol, max_iter = limits.tol, limits.max_iter
        k = self._directions.needed(problem, self._rows.n_rows, tol, null.objective)
        features, basis = np.ascontiguousarray(self._features[:, :k]), self._directions.basis[:, :k]
        reduced_rows = InMemoryDesign(ArrayRows(features, self._rows.target), features=features, share=self._rows.share)
        reduced = problem.on(reduced_rows)
        start, reduced_null = None, null_model(reduced, null)
        if previous is not None:
            start = _warm_start(reduced, replace(previous, coef=basis.T @ previous.coef), reduced_null)
        start = newton.cold_start(reduced, reduced_null) if start is None else start
        # Half of the tolerance is for the reduced problem, half for the directions left out.
        reduced_fit = newton.solve(reduced, tol=tol / 2, max_iter=max_iter, start=start, polish=False)
        result = recertify(problem, replace(reduced_fit, coef=basis @ reduced_fit.coef), tol, null)
        sweeps = reduced_fit.sweeps * k / self._rows.n_features
        if not stop_requested() and np.any(result.relative_gap > tol) and reduced_fit.converged:
            widths = _smoothing_widths(problem, result)
            full_start = newton.Start(result.coef, result.intercept, result.dual, widths, null)
            result = newton.solve(problem, tol=tol, max_iter=max_iter, start=full_start, polish=False)
            sweeps += result.sweeps
        return replace(result, sweeps=sweeps)


def _warm_start(problem: Problem, previous: Result, null: NullModel) -> newton.Start | None:
    """The solver's start from the fit at another alpha; None where that tells no smoothing width."""
    width = _smoothing_widths(problem, previous)
    return screening.warm_start(problem, previous, width, lambda: null) if np.all(width > 0) else None


def _smoothing_widths(problem: Problem, previous: Result) -> Array:
    """Smoothing widths (q,) at which some rows are within reach of a knot: a quantile of |residual - knot|."""
    subsample = slice(None, None, max(problem.rows.n_rows // _OPTIONS.warm_start_rows, 1))
    state = problem.rows.new_state()
    problem.set_coefficients(state, previous.coef, previous.intercept)
    distance = problem.loss.distance_to_knot(state.collect("residual")[subsample])
    if not np.isfinite(distance).all():  # a loss without knots is smooth by itself
        return np.zeros(problem.loss.n_columns)
    return np.quantile(distance, _OPTIONS.warm_start_quantile, axis=0)


def _stack_columns(problem: InMemoryProblem, alphas: Array) -> Problem:
    """One problem with a column for every (alpha, level): all levels at the first alpha, then at the next."""
    levels, repeated = np.tile(np.arange(problem.n_columns), len(alphas)), np.repeat(alphas, problem.n_columns)
    return Problem(problem.rows, problem.loss.take(levels), repeated, fit_intercept=problem.fit_intercept)


def _split_columns(result: Result, n_alphas: int) -> list[Result]:
    """The inverse of `_stack_columns`: one result per alpha, with a column per level."""
    return [result.take(columns) for columns in np.split(np.arange(len(result.gap)), n_alphas)]


def _group_alphas(alphas: Array, max_size: int) -> Iterator[Array]:
    """Split descending alphas into groups of at most `max_size` whose alphas are not too far apart."""
    start = 0
    for k in range(1, len(alphas) + 1):
        if k == len(alphas) or k - start == max_size or alphas[start] > _OPTIONS.max_alpha_ratio * alphas[k]:
            yield alphas[start:k]
            start = k
