"""The paper's solver: alternating directions with the proximal operator of the loss (Boyd et al. 2011, section 3).

Split off the residuals z = y - Phi u - b. With a penalty rho and scaled duals s, each round does

    (u, b) = argmin  alpha u'u + (rho/2) mean (y - Phi u - b - z + s)^2          a ridge regression, factored once
    r      = 1.6 (y - Phi u - b) - 0.6 z                                         over-relaxation
    z      = prox of loss/rho at r + s
    s      = s + r - z

The eigendecomposition of the (centred) Gram matrix serves every penalty, so rho may adapt to the residuals at no cost.
Weights enter the penalty as they enter the loss, so that the proximal step does not depend on them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quernel.certificate import NullModel, certify, null_model
from quernel.losses import Loss
from quernel.problem import Problem
from quernel.solvers.result import Ledger, Result

Array = NDArray[np.floating]

RELAXATION = 1.6
# The penalty is doubled or halved when one residual is this many times the other, at ever longer intervals: one that
# never came to rest could carry the iterates round in a circle.
IMBALANCE = 5.0
CHECK_EVERY = 25
LONGER = 1.2


class _Ridge:
    """argmin over (u, b) of  ridge u'u + mean (target - Phi u - b)^2,  for many targets and ridges."""

    def __init__(self, features: Array, share: Array, fit_intercept: bool) -> None:
        self.mean = share @ features if fit_intercept else np.zeros(features.shape[1])
        self.features, self.share, self.fit_intercept = features, share, fit_intercept
        self.root = np.sqrt(share)
        centred = (features - self.mean) * self.root[:, None]
        self.dual = centred.shape[0] < centred.shape[1]
        gram = centred @ centred.T if self.dual else centred.T @ centred
        values, self.vectors = np.linalg.eigh(gram)
        self.values = np.maximum(values, 0)

    def solve(self, target: Array, ridge: Array) -> tuple[Array, Array]:
        """Coefficients (M, q) and intercepts (q,)."""
        middle = self.share @ target if self.fit_intercept else np.zeros(target.shape[1])
        weighted = (target - middle) * self.share[:, None]
        if self.dual:
            root = (target - middle) * self.root[:, None]
            inner = self.vectors @ ((self.vectors.T @ root) / (self.values[:, None] + ridge))
            inner *= self.root[:, None]
            coef = self.features.T @ inner - np.outer(self.mean, inner.sum(axis=0))
        else:
            right = self.features.T @ weighted - np.outer(self.mean, weighted.sum(axis=0))
            coef = self.vectors @ ((self.vectors.T @ right) / (self.values[:, None] + ridge))
        return coef, middle - self.mean @ coef


def check_loss(loss: Loss) -> None:
    """Refuse a loss whose duals cannot be drawn towards zero from both sides, which the certificate needs."""
    low, high = loss.domain
    if not (np.all(low < 0) and np.all(high > 0)):
        raise ValueError(
            f"The admm solver needs a loss of the residual, with slopes of either sign; {type(loss).__name__} is a "
            "loss of the margin. Use solver='newton'."
        )


def solve(problem: Problem, *, tol: float = 1e-4, max_iter: int = 1000) -> Result:
    """Minimise F for every column to a relative gap of at most `tol`, in at most `max_iter` rounds."""
    check_loss(problem.loss)
    rows = problem.rows
    features = rows.resident("The admm solver keeps all features in memory")
    null = null_model(problem)
    ledger = Ledger(problem, null, tol)
    index = np.flatnonzero(null.objective > 0)
    if len(index) == 0:
        return ledger.result()
    problem, null = problem.take(index), null.take(index)
    loss, target, share = problem.loss, rows.target[:, None], rows.share
    ridge = _Ridge(features, share, problem.fit_intercept)

    rho = 1 / null.objective  # residuals are of the size of F0, duals of the size of one
    z = target - np.tile(null.constant, (rows.n_rows, 1))
    s = np.zeros_like(z)
    ledger.sweeps, next_change = 2, 0.0
    for iteration in range(1, max_iter + 1):
        aim = target - z + s
        coef, intercept = ridge.solve(aim, 2 * problem.alpha / rho)
        residual = target - features @ coef - intercept
        relaxed = RELAXATION * residual + (1 - RELAXATION) * z
        before, z = z, loss.prox(relaxed + s, 1 / rho)
        implied = rho * (residual - before + s)  # the duals of the ridge step: balanced, and Phi'(w v)/W = 2 alpha u
        s = s + relaxed - z
        ledger.sweeps += 2
        if iteration % CHECK_EVERY == 0 or iteration == max_iter:
            primal = np.sqrt(share @ (residual - z) ** 2) / np.sqrt(share @ z**2 + null.objective**2)
            dual = np.sqrt(share @ (rho * (z - before)) ** 2)
            if np.maximum(primal, dual).min() <= np.sqrt(tol) or iteration == max_iter:
                _record(problem, null, ledger, index, coef, intercept, implied, iteration)
                if np.all(ledger.relative_gap <= tol):
                    break
            if iteration >= next_change:
                next_change = LONGER * iteration
                scale = np.where(primal > IMBALANCE * dual, 2.0, np.where(dual > IMBALANCE * primal, 0.5, 1.0))
                rho, s = rho * scale, s / scale
    return ledger.result()


def _record(
    problem: Problem,
    null: NullModel,
    ledger: Ledger,
    index: NDArray[np.intp],
    coef: Array,
    intercept: Array,
    implied: Array,
    iteration: int,
) -> None:
    """Certify the point with the implied duals, drawn towards zero until all of them are inside their box.

    Drawing them all by one factor keeps them balanced and parallel to u, which costs (1 - factor)^2 alpha u'u; clipping
    the few that are outside would cost |change|^2 / (4 alpha), far more when alpha is tiny.
    """
    low, high = problem.loss.domain
    inside = 1 / np.maximum(1, np.maximum(np.max(implied / high, axis=0), np.max(implied / low, axis=0)))
    memory = problem.rows.new_memory(anchor=np.clip(implied * inside, low, high))
    problem.place(memory, coef, intercept)
    certificate = certify(problem, memory, coef, intercept, null)
    ledger.enter(index, coef, intercept, memory, certificate, iteration)
    ledger.sweeps += memory.sweeps
