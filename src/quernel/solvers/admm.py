"""The paper's solver: alternating directions with the proximal operator of the loss (Boyd et al. 2011, section 3).

Split off the residuals z = offset - sign f of f = Phi u + b: that is y - f or, for a loss of the margin, 1 - y f (see
`Loss.margin_transform`). With a penalty rho and scaled duals s, each round does

    (u, b) = argmin  alpha u'u + (rho/2) mean (sign (offset - z + s) - f)^2          a ridge regression, factored once
    r      = 1.6 (offset - sign f) - 0.6 z                                           over-relaxation
    z      = prox of loss/rho at r + s
    s      = s + r - z

The first step is that of the residuals, because sign^2 = 1. The eigendecomposition of the (centred) Gram matrix serves
every column, ridge weight and penalty, so rho may adapt to the residuals at no cost. Weights enter the penalty as they
enter the loss, so that the proximal step does not depend on them. A column is done when its certificate says so, and
the others go on without it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quernel.objective import Problem
from quernel.objective.duality_gap import NullModel, certify, null_model
from quernel.solvers.result import BestIterate, Result

Array = NDArray[np.floating]

RELAXATION = 1.6
# The penalty is doubled or halved when one residual is this many times the other, at ever longer intervals: one that
# never came to rest could carry the iterates round in a circle.
IMBALANCE = 5.0
CHECK_EVERY = 25
INTERVAL_GROWTH = 1.2


class _Ridge:
    """argmin over (u, b) of  ridge u'u + mean (target - Phi u - b)^2,  for many targets and ridges on the same rows."""

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
        else:  # centred features times shares: the target's own mean does not matter to them
            coef = self.vectors @ ((self.vectors.T @ (self.centred.T @ target)) / shrunk)
        return coef, middle - self.mean @ coef


@dataclass
class _Columns:
    """The columns still being worked on, and all that changes while they are; z and s are (n, q), rho (q,)."""

    problem: Problem
    null: NullModel
    index: NDArray[np.intp]
    z: Array
    s: Array
    rho: Array

    def __post_init__(self) -> None:
        target = self.problem.rows.target
        self.offset, self.sign = self.problem.loss.margin_transform(target if target.ndim == 2 else target[:, None])

    def residual(self, prediction: Array) -> Array:
        """offset - sign f, in place of f."""
        prediction *= self.sign
        return np.subtract(self.offset, prediction, out=prediction)

    def take(self, columns: NDArray[np.intp]) -> _Columns:
        """Some of them."""
        return _Columns(
            self.problem.take(columns),
            self.null.take(columns),
            self.index[columns],
            self.z[:, columns],
            self.s[:, columns],
            self.rho[columns],
        )


def solve(problem: Problem, *, tol: float = 1e-4, max_iter: int = 1000) -> Result:
    """Minimise F for every column to a relative gap of at most `tol`, in at most `max_iter` rounds."""
    features = problem.rows.as_array("The admm solver keeps all features in memory")
    null = null_model(problem)
    best = BestIterate(problem, null, tol)
    best.sweeps = 2
    at = _begin(problem, null)
    if len(at.index) == 0:
        return best.result()
    ridge, next_change = _Ridge(features, problem.rows.share, problem.fit_intercept), 0.0
    for iteration in range(1, max_iter + 1):
        ridge_target = at.offset - at.z
        ridge_target += at.s
        ridge_target *= at.sign
        coef, intercept = ridge.solve(ridge_target, 2 * at.problem.alpha / at.rho)
        residual = at.residual(features @ coef + intercept)
        moved = RELAXATION * residual
        moved += (1 - RELAXATION) * at.z
        moved += at.s
        before, s_before, at.z = at.z, at.s, at.problem.loss.prox(moved, 1 / at.rho)
        at.s = np.subtract(moved, at.z, out=moved)
        best.sweeps += 2
        last = iteration == max_iter
        if iteration % CHECK_EVERY != 0 and not last:
            continue
        primal, dual = _distances(at, residual, before)
        ready = np.flatnonzero((np.maximum(primal, dual) <= np.sqrt(tol)) | last)
        if len(ready):
            # The duals of the ridge step: balanced, and Phi'(w sign v)/W = 2 alpha u.
            implied = at.rho * (residual - before + s_before)
            _record(at.take(ready), best, coef[:, ready], intercept[ready], implied[:, ready], iteration)
        if iteration >= next_change:
            next_change = INTERVAL_GROWTH * iteration
            scale = np.where(primal > IMBALANCE * dual, 2.0, np.where(dual > IMBALANCE * primal, 0.5, 1.0))
            at.rho, at.s = at.rho * scale, at.s / scale
        if len(ready):
            at = at.take(np.flatnonzero(best.relative_gap[at.index] > tol))
        if len(at.index) == 0:
            break
    return best.result()


def _begin(problem: Problem, null: NullModel) -> _Columns:
    """All columns but those that a constant fits exactly, each at its best constant."""
    index = np.flatnonzero(null.objective > 0)
    nothing = np.zeros((problem.rows.n_rows, len(index)))
    # Residuals are of the size of F0, duals of the size of one.
    at = _Columns(problem.take(index), null.take(index), index, nothing, nothing, 1 / null.objective[index])
    at.z = at.residual(nothing + at.null.constant)
    return at


def _distances(at: _Columns, residual: Array, before: Array) -> tuple[Array, Array]:
    """How far z is from the residuals, and how far it moved, on scales of their own."""
    share = at.problem.rows.share
    primal = np.sqrt(share @ (residual - at.z) ** 2) / np.sqrt(share @ at.z**2 + at.null.objective**2)
    return primal, np.sqrt(share @ (at.rho * (at.z - before)) ** 2)


def _record(at: _Columns, best: BestIterate, coef: Array, intercept: Array, implied: Array, iteration: int) -> None:
    """Certify the point with the implied duals, drawn towards zero until none of them is past an end of its box.

    Drawing them all by one factor keeps them balanced and parallel to u, which costs (1 - factor)^2 alpha u'u; clipping
    the few that are outside would cost |change|^2 / (4 alpha), far more when alpha is tiny. Where zero itself is an
    end, as for losses of the margin, duals past it can only be clipped, and `certify` balances the others anew. The
    change is no larger than the distance to the best duals, which are in the box, and vanishes with it.
    """
    low, high = at.problem.loss.domain
    above = np.max(implied / high, axis=0)
    below = np.max(np.divide(implied, low, out=np.zeros_like(implied), where=low < 0), axis=0)
    anchor = np.clip(implied / np.maximum(1, np.maximum(above, below)), low, high)
    state = at.problem.rows.new_memory(anchor=anchor)
    at.problem.set_coefficients(state, coef, intercept)
    certificate = certify(at.problem, state, coef, intercept, at.null)
    best.update(at.index, coef, intercept, state, certificate, iteration)
    best.sweeps += state.sweeps
