"""All fits of the paper's grid of ridge weights, for any loss: to be chosen from on rows that they have not seen."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quernel.losses import Loss
from quernel.paper.experiment import NEWTON
from quernel.paper.grids import solve_grid
from quernel.paper.validated import ALPHAS
from quernel.problem import Problem
from quernel.rows import ArrayRows, LiftedRows
from quernel.rows.lifted import FeatureMap
from quernel.solvers import SOLVERS

Array = NDArray[np.floating]

VALIDATION = 1000
TOL = 1e-5


@dataclass(frozen=True, eq=False)
class Fits:
    """One fit of a loss per ridge weight on the same features: alphas (a,), coef (a, M)."""

    feature_map: FeatureMap
    loss: Loss
    alphas: Array
    coef: Array

    def predict(self, X: Array) -> Array:
        """All fits at these rows, shape (n, a)."""
        return self.feature_map.transform(X) @ self.coef.T

    def best_on(self, X: Array, y: Array) -> int:
        """Which fit has the least mean loss on these rows."""
        offset, sign = self.loss.frame(y[:, None])
        return int(np.argmin(np.mean(self.loss.value(offset - sign * self.predict(X)), axis=0)))


def fit_each(
    feature_map: FeatureMap,
    X: Array,
    y: Array,
    loss: Loss,
    alphas: Array = ALPHAS,
    *,
    tol: float = TOL,
    warm: bool = True,
    solver: str = NEWTON,
) -> Fits:
    """Fit the loss, of one column, at every weight, without intercept as in the paper.

    `warm` starts each of Newton's fits from the one before. Features with poles make that slower than to begin anew.
    """
    rows = LiftedRows(ArrayRows(X, y), features=feature_map.transform(X))
    if warm or solver != NEWTON:
        problem = Problem(rows, loss, float(alphas[0]), fit_intercept=False)
        coef = solve_grid(problem, alphas, tol=tol, solver=solver).coef[:, :, 0]
    else:
        problems = (Problem(rows, loss, float(alpha), fit_intercept=False) for alpha in alphas)
        coef = np.stack([SOLVERS[NEWTON](problem, tol=tol).coef[:, 0] for problem in problems])
    return Fits(feature_map, loss, np.asarray(alphas), coef)
