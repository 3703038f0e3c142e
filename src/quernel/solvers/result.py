"""What a solver returns, and the best in which it is written down."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from quernel.data import RowState
from quernel.objective import Problem
from quernel.objective.duality_gap import Certificate, NullModel, certify, null_model
from quernel.solvers.progress import Progress, report

Array = NDArray[np.floating]


@dataclass(frozen=True, eq=False)
class InitialPoint:
    """Coefficients (M, q) and intercepts (q,), found on `n_rows` rows with about so many parameters in use.

    From these follows how far it may be from the solution; where that is known better, `band` (q,) is the size of
    residual below which rows are active. One that is `solved` needs only to be proved, if it can be: it was found for
    features that are nearly these.
    """

    coef: Array
    intercept: Array
    n_rows: int
    parameters: float
    band: Array | None = None
    solved: bool = False

    @classmethod
    def solution(cls, coef: Array, intercept: Array, n_rows: int, parameters: float, tol: float) -> InitialPoint:
        """One that lacks no more than a share `tol` of F, about what a fit to `parameters / tol` rows lacks."""
        return cls(coef, intercept, max(n_rows, int(parameters / tol)), parameters, solved=True)


# Is told how far a solve has come, to write it down.
Callback = Callable[[InitialPoint], None]


class Status(Enum):
    """How a column's solve ended."""

    CONVERGED = "converged"
    ITERATION_LIMIT = "iteration limit"


@dataclass(frozen=True, eq=False)
class Result:
    """The fits of q columns and what is known about them.

    coef (M, q), intercept (q,) and dual (n, q), or (0, q) of rows that are far away and keep it; objective F, gap >=
    F - min F and relative_gap, each (q,); null_objective F0 (q,); status and iterations per column; sweeps, counted in
    passes over all rows' features; hessian_rows that entered second derivatives; doubtful, the number of rows of each
    column that screening left in the last stage (empty where nothing was screened); parameters, about how many of them
    the fits use (0: not known).
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
    doubtful: tuple[int, ...] = ()
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


def statuses(relative_gap: Array, tol: float) -> tuple[Status, ...]:
    """The status that follows from each gap."""
    return tuple(Status.CONVERGED if gap <= tol else Status.ITERATION_LIMIT for gap in relative_gap)


def recertify(problem: Problem, result: Result, tol: float) -> Result:
    """The same fits and duals, with the certificate that this problem gives them."""
    state = problem.rows.new_memory(anchor=result.dual)
    problem.set_coefficients(state, result.coef, result.intercept)
    known = certify(problem, state, result.coef, result.intercept, null_model(problem))
    return replace(
        result,
        objective=known.objective,
        gap=known.gap,
        relative_gap=known.relative,
        status=statuses(known.relative, tol),
        sweeps=result.sweeps + state.sweeps,
    )


def after(first: Result | None, then: Result) -> Result:
    """The later result, with the work of both."""
    if first is None:
        return then
    return replace(
        then,
        iterations=then.iterations + first.iterations,
        sweeps=then.sweeps + first.sweeps,
        hessian_rows=then.hessian_rows + first.hessian_rows,
    )


class BestIterate:
    """The best certified point of every column so far; it starts with the constant fit where that is the minimum."""

    def __init__(self, problem: Problem, null: NullModel, tol: float) -> None:
        q = problem.n_columns
        self.tol = tol
        self.null = null
        self.coef = np.zeros((problem.rows.n_features, q))
        self.intercept = null.constant.copy()
        self.dual = np.zeros((problem.rows.n_rows if problem.rows.near else 0, q))
        self.objective = null.objective.copy()
        self.gap = null.objective.copy()
        self.relative_gap = np.where(null.objective > 0, np.inf, 0.0)
        self.iterations = np.zeros(q, dtype=np.intp)
        self.sweeps = 0.0
        self.hessian_rows = 0

    def update(
        self,
        index: NDArray[np.intp],
        coef: Array,
        intercept: Array,
        state: RowState,
        certificate: Certificate,
        iteration: int,
    ) -> None:
        """Write down the columns whose certificate is better than the one on record."""
        better = np.flatnonzero(certificate.relative < self.relative_gap[index])
        place = index[better]
        self.coef[:, place] = coef[:, better]
        self.intercept[place] = intercept[better]
        if len(self.dual):
            self.dual[:, place] = state.collect("anchor")[:, better]
        self.objective[place] = certificate.objective[better]
        self.gap[place] = certificate.gap[better]
        self.relative_gap[place] = certificate.relative[better]
        self.iterations[index] = iteration
        if len(better):
            report(Progress(iteration, len(index), float(np.max(self.relative_gap))))

    def result(self) -> Result:
        """The record as it stands; no gap is known better than the rounding of the objective."""
        rounding = np.finfo(float).eps
        gap = np.maximum(self.gap, rounding * self.objective)
        rel = np.where(self.null.objective > 0, np.maximum(self.relative_gap, rounding), 0.0)
        return Result(
            self.coef, self.intercept, self.dual, self.objective, gap, rel, self.null.objective,
            statuses(rel, self.tol), self.iterations, self.sweeps, self.hessian_rows,
        )  # fmt: skip
