"""Error decomposition of a fit (`lemA.1.1`): a chain of four estimators from the fit to the true function f*.

    f_MD  --least_squares-->  f_MD'  --empirical-->  f_M  --random_feature-->  f_K  --approximation-->  f*

f_MD is the fit, f_MD' the ridge regression of the noiseless f*(x_i) on the same features and rows, f_M that over the
law of rows, f_K that with the exact kernel. The L2 norms of the four steps add up to a bound on |f_MD - f*|.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quernel.data import ArrayRows, InMemoryDesign
from quernel.data.design_matrix import FeatureMap
from quernel.losses import Loss, Pinball
from quernel.objective import Problem
from quernel.solvers import SOLVERS, Result
from quernel.theory.dimensions import check_alpha
from quernel.theory.populations import Population

Array = NDArray[np.floating]


@dataclass(frozen=True)
class ErrorDecomposition:
    """L2 norms of the steps from a fit to the true function.

    Attributes
    ----------
    total : float
        |f_MD - f*|, at most the sum of the four others.
    least_squares : float
        |f_MD - f_MD'|, from the fitted loss to least squares without noise on the same rows.
    empirical : float
        |f_MD' - f_M|, from the sample of rows to their law.
    random_feature : float
        |f_M - f_K|, from the random features to the kernel.
    approximation : float
        |f_K - f*|, the bias of the ridge penalty.
    """

    total: float
    least_squares: float
    empirical: float
    random_feature: float
    approximation: float

    @property
    def bound(self) -> float:
        """Sum of the four terms, at least `total` by the triangle inequality."""
        return self.least_squares + self.empirical + self.random_feature + self.approximation


def error_decomposition(
    population: Population,
    feature_map: FeatureMap,
    X: ArrayLike,
    y: ArrayLike,
    *,
    alpha: float,
    loss: Loss | None = None,
    tol: float = 1e-8,
    max_iter: int = 1000,
    solver: Callable[..., Result] = SOLVERS["newton"],
) -> ErrorDecomposition:
    """Split the error of the fit to (X, y) as `lemA.1.1` does (and `thm3`'s proof, for another loss).

    Parameters
    ----------
    population : the law behind the rows: `SplinePopulation` (exact) or `SampledPopulation` (large-sample quadrature)
    feature_map : fitted features, an object with `transform` and `n_components_`
    X, y : training rows (n, d) and targets (n,); the fit has no intercept, as in the paper
    alpha : ridge weight of all four estimators
    loss : the loss fitted, of one column; None is the check loss at level 1/2. f* must be its population minimiser
    tol, max_iter : for the solver
    solver : a value of `quernel.solvers.SOLVERS`, or a function like them

    Examples
    --------
    >>> law = SplinePopulation(r=0.5, gamma=0.25)
    >>> X, y = law.sample(500, random_state=0)
    >>> parts = error_decomposition(law, law.features(50, random_state=1), X, y, alpha=1e-3)
    >>> parts.total <= parts.bound
    True
    """
    if np.ndim(alpha) != 0:
        raise ValueError(f"alpha must be one number here; got {alpha!r}.")
    alpha = float(check_alpha(alpha))
    X, y = np.asarray(X, dtype=float), np.asarray(y, dtype=float)
    if X.ndim != 2 or y.shape != (len(X),):
        raise ValueError(f"X must have shape (n, d) and y (n,); got {X.shape} and {y.shape}.")
    Phi, S = feature_map.transform(X), population.feature_vectors(feature_map)
    truth = population.target_vector
    fitted = S @ _fit(Phi, X, y, alpha, loss, solver, tol, max_iter)
    on_rows = S @ _ridge(Phi / np.sqrt(len(X)), population.target(X) / np.sqrt(len(X)), alpha)
    on_features = S @ _ridge(S, truth, alpha)
    on_kernel = population.shrunk_target(alpha)
    chain = [fitted, on_rows, on_features, on_kernel, truth]
    steps = [float(np.linalg.norm(a - b)) for a, b in pairwise(chain)]
    return ErrorDecomposition(float(np.linalg.norm(fitted - truth)), *steps)


def _ridge(A: Array, b: Array, alpha: float) -> Array:
    """Ridge regression: argmin over u of |A u - b|^2 + alpha |u|^2, by the smaller of primal and dual system."""
    if len(A) < A.shape[1]:
        return A.T @ np.linalg.solve(A @ A.T + alpha * np.eye(len(A)), b)
    return np.linalg.solve(A.T @ A + alpha * np.eye(A.shape[1]), A.T @ b)


def _fit(
    Phi: Array,
    X: Array,
    y: Array,
    alpha: float,
    loss: Loss | None,
    solver: Callable[..., Result],
    tol: float,
    max_iter: int,
) -> Array:
    """Coefficients (M,) of the fitted loss."""
    loss = Pinball(np.array([0.5])) if loss is None else loss
    problem = Problem(InMemoryDesign(ArrayRows(X, y), features=Phi), loss, alpha, fit_intercept=False)
    if problem.n_columns != 1:
        raise ValueError(f"The loss must have one column; got {problem.n_columns}. Decompose one level at a time.")
    return solver(problem, tol=tol, max_iter=max_iter).coef[:, 0]
