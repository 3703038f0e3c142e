"""ADMM, the paper's solver, with the proximal operator of the loss (Boyd et al. 2011, section 3).

Split off the residuals z = offset - sign f of f = Phi u + b: that is y - f or, for a margin loss, 1 - y f (see
`Loss.margin_transform`). With a penalty rho and scaled duals s, each iteration does

    (u, b) = argmin  alpha u'u + (rho/2) mean (sign (offset - z + s) - f)^2          a ridge regression, factored once
    r      = 1.6 (offset - sign f) - 0.6 z                                           over-relaxation
    z      = prox of loss/rho at r + s
    s      = s + r - z

The first step minimises  mean (offset - sign f - z + s)^2,  a ridge regression because sign^2 = 1. One
eigendecomposition of the (centred) Gram matrix serves every column, alpha and rho, so rho may adapt to the residuals at
no cost. Sample weights enter the penalty as they enter the loss, so that the proximal step does not depend on them.
Columns stop one by one, when their duality gap is small enough.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quernel.objective import InMemoryProblem, Problem, take_columns
from quernel.objective.duality_gap import NullModel, certify, null_model
from quernel.solvers.progress import stop_requested
from quernel.solvers.result import BestIterate, Result

Array = NDArray[np.floating]


@dataclass(frozen=True)
class AdmmOptions:
    """Over-relaxation, and how the penalty adapts."""

    relaxation: float = 1.6
    # The penalty is doubled or halved when the primal residual is this many times the dual one, or the reverse.
    imbalance: float = 5.0
    # Iterations between checks for convergence.
    check_every: int = 25
    # Intervals between changes of the penalty grow by this factor: iterates could cycle if it never came to rest.
    interval_growth: float = 1.2


OPTIONS = AdmmOptions()


class _Ridge:
    """argmin over (u, b) of  ridge u'u + mean (target - Phi u - b)^2,  for many targets and ridges on the same rows.

    In the eigenvectors' coordinates a ridge only changes a diagonal: new targets and penalties cost products alone.

    By the eigendecomposition of the centred features' Gram matrix (M, M) or, with fewer rows than features, (n, n).
    """

    def __init__(self, features: Array, share: Array, fit_intercept: bool) -> None:
        self.mean = share @ features if fit_intercept else np.zeros(features.shape[1])
        self.share, self.fit_intercept, self.root = share, fit_intercept, np.sqrt(share)
        self.centred = (features - self.mean) * self.root[:, None]
        self.dual = self.centred.shape[0] < self.centred.shape[1]
        gram = self.centred @ self.centred.T if self.dual else self.centred.T @ self.centred
        values, self.vectors = np.linalg.eigh(gram)
        self.values = np.maximum(values, 0)
        self.centred *= 1.0 if self.dual else self.root[:, None]

    def solve(self, target: Array, ridge: Array) -> tuple[Array, Array]:
        """Coefficients (M, q) and intercepts (q,)."""
        middle = self.share @ target if self.fit_intercept else np.zeros(target.shape[1])
        shrunk = self.values[:, None] + ridge
        if self.dual:
            inner = self.vectors @ ((self.vectors.T @ ((target - middle) * self.root[:, None])) / shrunk)
            coef = self.centred.T @ inner
        else:  # features are centred and weighted, so the mean of the target drops out
            coef = self.vectors @ ((self.vectors.T @ (self.centred.T @ target)) / shrunk)
        return coef, middle - self.mean @ coef


@dataclass
class _Columns:
    """Mutable state of the columns that have not converged: z and s are (n, q), rho (q,)."""

    problem: InMemoryProblem
    null: NullModel
    index: NDArray[np.intp]
    z: Array
    s: Array
    rho: Array

    def __post_init__(self) -> None:
        target = self.problem.rows.target
        self.offset, self.sign = self.problem.loss.margin_transform(target if target.ndim == 2 else target[:, None])

    def residual(self, prediction: Array) -> Array:
        """offset - sign f, overwriting f."""
        prediction *= self.sign
        return np.subtract(self.offset, prediction, out=prediction)

    def take(self, columns: NDArray[np.intp]) -> _Columns:
        """Some of the columns."""
        return take_columns(self, columns)


def solve(problem: Problem, *, tol: float = 1e-4, max_iter: int = 1000) -> Result:
    """Minimise F for every column to a relative duality gap of at most `tol`, in at most `max_iter` iterations."""
    reason = "The admm solver keeps all features in memory"
    problem = problem.in_memory(reason)
    features = problem.rows.as_array(reason)
    null = null_model(problem)
    best = BestIterate(problem, null, tol)
    best.sweeps = 2
    columns = _initialize(problem, null)
    if len(columns.index) == 0 or stop_requested():
        return best.result()
    ridge, next_change = _Ridge(features, problem.rows.share, problem.fit_intercept), 0.0
    for iteration in range(1, max_iter + 1):
        ridge_target = columns.offset - columns.z
        ridge_target += columns.s
        ridge_target *= columns.sign
        coef, intercept = ridge.solve(ridge_target, 2 * columns.problem.alpha / columns.rho)
        if not (np.isfinite(coef).all() and np.isfinite(intercept).all()):  # a ridge too weak for these features
            break
        residual = columns.residual(features @ coef + intercept)
        moved = OPTIONS.relaxation * residual
        moved += (1 - OPTIONS.relaxation) * columns.z
        moved += columns.s
        before, s_before, columns.z = columns.z, columns.s, columns.problem.loss.prox(moved, 1 / columns.rho)
        columns.s = np.subtract(moved, columns.z, out=moved)
        best.sweeps += 2
        last = iteration == max_iter or stop_requested()
        if iteration % OPTIONS.check_every != 0 and not last:
            continue
        primal, dual = _distances(columns, residual, before)
        ready = np.flatnonzero((np.maximum(primal, dual) <= np.sqrt(tol)) | last)
        if len(ready):
            # Duals implied by the ridge step: balanced, and with Phi'(w sign v)/W = 2 alpha u.
            implied = columns.rho * (residual - before + s_before)
            _record(columns.take(ready), best, coef[:, ready], intercept[ready], implied[:, ready], iteration)
        if iteration >= next_change:
            next_change = OPTIONS.interval_growth * iteration
            scale = np.where(
                primal > OPTIONS.imbalance * dual, 2.0, np.where(dual > OPTIONS.imbalance * primal, 0.5, 1.0)
            )
            columns.rho, columns.s = columns.rho * scale, columns.s / scale
        if len(ready):
            columns = columns.take(np.flatnonzero(best.relative_gap[columns.index] > tol))
        if len(columns.index) == 0 or last:
            break
    return best.result()


def _initialize(problem: InMemoryProblem, null: NullModel) -> _Columns:
    """The columns that a constant does not fit exactly, each at its best constant."""
    index = np.flatnonzero(null.objective > 0)
    nothing = np.zeros((problem.rows.n_rows, len(index)))
    # rho = 1 / F0, because residuals are of the order of F0 and duals of the order of one.
    columns = _Columns(problem.take(index), null.take(index), index, nothing, nothing, 1 / null.objective[index])
    columns.z = columns.residual(nothing + columns.null.constant)
    return columns


def _distances(columns: _Columns, residual: Array, before: Array) -> tuple[Array, Array]:
    """Primal and dual residual (q,): relative distance of z from the residuals, and change of rho z.

    The stopping rule of Boyd et al. (2011, section 3.3) is on both; here they say when to try a certificate.
    """
    share = columns.problem.rows.share
    primal = np.sqrt(share @ (residual - columns.z) ** 2) / np.sqrt(share @ columns.z**2 + columns.null.objective**2)
    return primal, np.sqrt(share @ (columns.rho * (columns.z - before)) ** 2)


def _record(
    columns: _Columns, best: BestIterate, coef: Array, intercept: Array, implied: Array, iteration: int
) -> None:
    """Certify the iterate with the implied duals, scaled towards zero until all are in their box.

    One common factor keeps them balanced and parallel to u, which costs (1 - factor)^2 alpha u'u; clipping the few that
    are outside would cost |change|^2 / (4 alpha), far more when alpha is tiny. Where zero itself is an end of the box,
    as for margin losses, duals beyond it can only be clipped, and `certify` balances the others again. The change is no
    larger than the distance to the optimal duals, which are in the box, and vanishes with it.
    """
    low, high = columns.problem.loss.domain
    above = np.max(implied / high, axis=0)
    below = np.max(np.divide(implied, low, out=np.zeros_like(implied), where=low < 0), axis=0)
    anchor = np.clip(implied / np.maximum(1, np.maximum(above, below)), low, high)
    state, intercept = columns.problem.rows.new_state(anchor=anchor), columns.problem.round_intercept(coef, intercept)
    columns.problem.set_coefficients(state, coef, intercept)
    certificate = certify(columns.problem, state, coef, intercept, columns.null)
    best.update(columns.index, coef, intercept, state, certificate, iteration)
    best.sweeps += state.sweeps
