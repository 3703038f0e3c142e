"""What a solver returns, and the record of its best certified iterate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quernel.data import RowStateLike
from quernel.objective import Problem
from quernel.objective.duality_gap import (
    Certificate,
    NullModel,
    certify,
    certify_gradient,
    full_gradient,
    null_model,
    relative,
)
from quernel.solvers.progress import Progress, report, stop_requested

Array = NDArray[np.floating]


@dataclass(frozen=True, eq=False)
class InitialPoint:
    """A warm start: a fit, and what its distance from the solution can be estimated from.

    Attributes
    ----------
    coef, intercept : arrays of shape (M, q) and (q,)
    n_rows : int
        Rows to which it was fitted.
    parameters : float
        Effective degrees of freedom of the fit.
    band : array of shape (q,) or None
        Distance from a kink within which rows are active, where that is known better than from `n_rows`.
    solved : bool
        Whether it may be the solution already, and only needs a certificate; e.g. that of nearly the same features.
    """

    coef: Array
    intercept: Array
    n_rows: int
    parameters: float
    band: Array | None = None
    solved: bool = False

    @classmethod
    def solution(cls, coef: Array, intercept: Array, n_rows: int, parameters: float, tol: float) -> InitialPoint:
        """A point whose F is within a share `tol` of the minimum.

        That is about the error of a fit to `parameters / tol` rows, which stands for `n_rows` where it is larger.
        """
        return cls(coef, intercept, max(n_rows, int(parameters / tol)), parameters, solved=True)


# copy_duals(columns, out, places): see `BestIterate.record`.
CopyDuals = Callable[[NDArray[np.intp], Array, NDArray[np.intp]], None]
# Called with intermediate fits from which a solve can be continued.
Callback = Callable[[InitialPoint], None]


@dataclass(frozen=True)
class Limits:
    """When a solve ends: at a relative duality gap of `tol`, or after `max_iter` iterations of each column."""

    tol: float
    max_iter: int


class Status(Enum):
    """How a column's solve ended."""

    CONVERGED = "converged"
    ITERATION_LIMIT = "iteration limit"
    STOPPED = "stopped"


@dataclass(frozen=True, eq=False)
class Result:
    """The fits of q columns, with their certificates and the work done.

    Attributes
    ----------
    coef, intercept : arrays of shape (M, q) and (q,)
    dual : array of shape (n, q)
        Duals that prove the gap; (0, q) out of core, where they stay with the rows.
    objective, gap, relative_gap : arrays of shape (q,)
        F, a bound gap >= F - min F, and the gap relative to max(F, F0 / 1000).
    null_objective : array of shape (q,)
        F0, the objective of the best constant.
    status : tuple of Status
        One per column.
    iterations : array of shape (q,)
        Newton steps or rounds of ADMM.
    sweeps : float
        Passes over the features of all rows.
    hessian_rows : int
        Rows summed into Hessians.
    active_rows : tuple of int
        Active rows of each column in the last stage of screening; empty where nothing was screened.
    parameters : float
        Effective degrees of freedom of the fits; 0 if unknown.
    """

    coef: Array
    intercept: Array
    dual: Array
    objective: Array
    gap: Array
    relative_gap: Array
    null_objective: Array
    status: tuple[Status, ...]
    iterations: NDArray[np.intp]
    sweeps: float
    hessian_rows: int
    active_rows: tuple[int, ...] = ()
    parameters: float = 0.0

    def take(self, columns: NDArray[np.intp]) -> Result:
        """The fits of some of the columns; the work remains that of all."""
        arrays = ("coef", "intercept", "dual", "objective", "gap", "relative_gap", "null_objective", "iterations")
        some = {name: getattr(self, name)[..., columns] for name in arrays}
        return replace(self, status=tuple(self.status[k] for k in columns), **some)

    @property
    def converged(self) -> bool:
        """Whether every column reached its tolerance."""
        return all(status is Status.CONVERGED for status in self.status)


@dataclass(frozen=True)
class Solver:
    """A solver, called like a function, and what it can do: ask this before the first pass, not for its name.

    Attributes
    ----------
    solve : callable
        solve(problem, *, tol, max_iter) -> Result, with further arguments for what it can do.
    warm_starts : bool
        Whether it takes `initial`, an `InitialPoint`, and hands intermediate ones to `callback`.
    out_of_core : bool
        Whether it makes passes over row blocks, wherever they are; if not, all features must be one array in memory.
    float32 : bool
        Whether it works on float32 features.
    polishes : bool
        Whether it continues small problems below `tol` down to rounding error, unless `polish=False`.
    """

    solve: Callable[..., Result]
    warm_starts: bool = False
    out_of_core: bool = False
    float32: bool = False
    polishes: bool = False

    def __call__(
        self,
        problem: Problem,
        *,
        tol: float = 1e-6,
        max_iter: int = 1000,
        initial: InitialPoint | None = None,
        callback: Callback | None = None,
        polish: bool = True,
        **options: Any,
    ) -> Result:
        """Minimise F for every column to a relative duality gap of at most `tol`.

        `initial`, `callback` and `polish` save work or digits only: solvers that cannot use them go without.
        """
        if self.warm_starts:
            options |= {"initial": initial, "callback": callback}
        if self.polishes:
            options |= {"polish": polish}
        return self.solve(problem, tol=tol, max_iter=max_iter, **options)


def statuses(relative_gap: Array, tol: float) -> tuple[Status, ...]:
    """Converged where the relative gap is at most `tol`."""
    otherwise = Status.STOPPED if stop_requested() else Status.ITERATION_LIMIT
    return tuple(Status.CONVERGED if gap <= tol else otherwise for gap in relative_gap)


def or_null(result: Result, constant: Array, tol: float) -> Result:
    """The result or, in columns where it is better, the null model, with the constants of all outputs.

    Any certificate bounds min F from below by  F - gap,  and duals of zero by 0, since losses are not negative; the
    better bound is kept.
    """
    null = result.null_objective
    known = np.isfinite(result.objective) & np.isfinite(result.gap)
    worse = ~(result.objective <= null)
    objective = np.where(worse, null, result.objective)
    proved = np.where(known, result.gap - np.where(known, result.objective - objective, 0), np.inf)
    no_bound = ~(proved <= objective)
    gap = np.where(no_bound, objective, np.maximum(proved, np.finfo(float).eps * objective))
    rel = relative(gap, objective, null)
    return replace(
        result,
        coef=np.where(worse, 0.0, result.coef),
        intercept=np.where(worse, constant, result.intercept),
        dual=np.where(no_bound, 0.0, result.dual),
        objective=objective,
        gap=gap,
        relative_gap=rel,
        status=statuses(rel, tol),
    )


def recertify(problem: Problem, result: Result, tol: float, null: NullModel | None = None) -> Result:
    """The same fits and duals, with their duality gap in this problem; its null model where that is better."""
    state, null = problem.rows.new_state(anchor=result.dual), null or null_model(problem)
    problem.set_coefficients(state, result.coef, result.intercept)
    known = certify(problem, state, result.coef, result.intercept, null)
    sweeps = result.sweeps + state.sweeps
    found = replace(result, objective=known.objective, gap=known.gap, null_objective=null.objective, sweeps=sweeps)
    return or_null(found, null.constant, tol)


def certify_point(problem: Problem, coef: Array, intercept: Array, null: NullModel, tol: float) -> Result:
    """A fit as a result, certified with the slopes of the loss as duals, in one pass over the rows."""
    state, best = problem.rows.new_state(), BestIterate(problem, null, tol)
    intercept = problem.round_intercept(coef, intercept)
    gradient = full_gradient(problem, state, coef, intercept)
    found = certify_gradient(problem, state, gradient, coef, intercept, null)
    best.update(np.arange(problem.n_columns), coef, intercept, state, found, 0)
    return replace(best.result(), sweeps=state.sweeps)


def after(first: Result | None, then: Result) -> Result:
    """The later result, with the work of both added up."""
    if first is None:
        return then
    return replace(
        then,
        iterations=then.iterations + first.iterations,
        sweeps=then.sweeps + first.sweeps,
        hessian_rows=then.hessian_rows + first.hessian_rows,
    )


class BestIterate:
    """The lowest objective and the highest lower bound of every column so far; at first those of the null model.

    The bound need not be that of the fit: duals of one iterate prove  min F >= F - gap  whatever the coefficients, so
    that the gap of the lowest F is its distance from the highest bound. No fit is ever worse than the null model,
    unless `from_null` is False: then the first certificate is taken, whatever it is.
    """

    def __init__(self, problem: Problem, null: NullModel, tol: float, *, from_null: bool = True) -> None:
        q = problem.n_columns
        self.tol = tol
        self.null = null
        self.coef = np.zeros((problem.rows.n_features, q))
        self.intercept = null.constant.copy()
        self.dual = np.zeros((problem.rows.n_duals, q), order="F")
        # Losses are not negative, so that duals of zero bound min F by 0. A problem with screened rows is only a model
        # of F, of which the null model says nothing.
        self.is_null = np.full(q, from_null and problem.screened is None)
        self.objective = np.where(self.is_null, null.objective, np.inf)
        self.error = np.where(self.is_null, null.error, 0.0)
        self.gap = self.objective + self.error
        self.relative_gap = self._relative()
        self.iterations = np.zeros(q, dtype=np.intp)
        self.sweeps = 0.0
        self.hessian_rows = 0

    def _relative(self) -> Array:
        """The gap relative to max(F, F0 / 1000), (q,)."""
        with np.errstate(invalid="ignore"):  # inf / inf before the first certificate
            rel = relative(self.gap, self.objective, self.null.objective)
        return np.where(np.isnan(rel), np.inf, rel)

    def record(
        self, index: NDArray[np.intp], fit: tuple[Array, Array], certificate: Certificate, copy_duals: CopyDuals
    ) -> NDArray[np.bool_]:
        """Record a certified fit (coef, intercept) of the columns `index`; returns where F or its bound has improved.

        copy_duals(columns, out, places) copies the duals of the fit: those at the positions `columns` of `index` to
        the columns `places` of `out` (n, q).
        """
        (coef, intercept), objective, gap = fit, certificate.objective, certificate.gap
        known, errors = self.objective[index], self.error[index] + certificate.error
        # Lower than the null model beyond doubt; among other fits rounding may decide.
        lower = np.where(self.is_null[index], objective + errors < known, objective < known)
        least = np.where(lower, objective, known)
        with np.errstate(invalid="ignore"):  # inf - inf
            before = np.where(lower, self.gap[index] - (known - objective) + errors, self.gap[index])
            proved = np.where(lower, gap, gap - (objective - known) + errors)
        tighter = proved < np.where(np.isnan(before), np.inf, before)
        place = index[lower]
        self.coef[:, place], self.intercept[place] = coef[:, lower], intercept[lower]
        copy_duals(np.flatnonzero(tighter), self.dual, index[tighter])
        smallest = np.where(tighter, proved, np.where(np.isnan(before), np.inf, before))
        self.objective[index] = least
        self.error[index] = np.where(lower, certificate.error, self.error[index])
        self.gap[index] = np.maximum(smallest, self.error[index])
        self.is_null[index] &= ~lower
        self.relative_gap = self._relative()
        return lower | tighter

    def update(
        self,
        index: NDArray[np.intp],
        coef: Array,
        intercept: Array,
        state: RowStateLike,
        certificate: Certificate,
        iteration: int,
    ) -> None:
        """Record a fit of the columns `index` that was certified with the multipliers of `state`."""
        before = np.max(self.relative_gap)
        self.record(index, (coef, intercept), certificate, partial(state.copy_columns, "anchor"))
        self.iterations[index] = iteration
        if (now := float(np.max(self.relative_gap))) < before or iteration == 0:
            report(Progress(iteration, len(index), now))

    def result(self) -> Result:
        """The result so far."""
        rel = self.relative_gap
        return Result(
            self.coef, self.intercept, self.dual, self.objective, self.gap, rel, self.null.objective,
            statuses(rel, self.tol), self.iterations, self.sweeps, self.hessian_rows,
        )  # fmt: skip
