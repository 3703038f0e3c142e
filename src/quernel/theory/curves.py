"""How the excess risk of a fit falls with the number of rows, for any loss (`thm3`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quernel.losses import Loss
from quernel.problem import Problem
from quernel.rows import ArrayRows, LiftedRows
from quernel.solvers import SOLVERS
from quernel.theory.populations import SplinePopulation

Array = NDArray[np.floating]

# Points of the noise's law, and of x, at which risks are averaged.
NODES = 401
GRID = 1000


@dataclass(frozen=True)
class ExcessRisk:
    """One point of a curve: n rows, M features, ridge weight alpha, and the mean excess risk with its error."""

    n: int
    M: int
    alpha: float
    risk: float
    error: float


def excess_risk(loss: Loss, deviation: ArrayLike, noise: ArrayLike) -> float:
    """E loss(y - f) - min over f, for the deviations f - f* at some rows and the noise y - f* that is the same at all.

    Exact but for the finite number of noise values: differences are taken value by value, so that nothing is lost to
    the size of the risk itself. Noise is read as centred: its best constant under the loss counts as f*.
    """
    deviation, noise = np.ravel(np.asarray(deviation, dtype=float)), np.ravel(np.asarray(noise, dtype=float))
    if loss.margin or loss.n_columns != 1:
        raise ValueError(f"excess_risk needs a loss of the residual with one column; got {loss!r}.")
    centred = noise - loss.best_constant(noise, np.full(len(noise), 1 / len(noise)))[0]
    moved = loss.value((centred[None, :] - deviation[:, None]).reshape(-1, 1))
    return float(np.mean(moved) - np.mean(loss.value(centred[:, None])))


def excess_risk_curve(
    population: SplinePopulation,
    loss: Loss,
    sizes: Sequence[int],
    *,
    alpha: Callable[[int], float],
    features: Callable[[int], int],
    noise: Callable[[Array], Array],
    repetitions: int = 10,
    random_state: int = 0,
    tol: float = 1e-6,
) -> list[ExcessRisk]:
    """The excess risk of fits to y = f*(x) + noise, at growing numbers of rows.

    Parameters
    ----------
    population : the law of rows and f*
    loss : any loss of the residual, of one column
    sizes : numbers of rows
    alpha, features : the ridge weight and the number of features for n rows, such as `regularization` and
        `features_needed` with exponents filled in
    noise : quantile function of the noise: levels in (0, 1) to values, such as ``scipy.stats.norm(scale=0.1).ppf``
    repetitions, random_state, tol : how many draws of rows and features, their seed, and the solver's tolerance

    Examples
    --------
    >>> from scipy.stats import norm
    >>> from quernel.losses import Huber
    >>> law = SplinePopulation(r=0.5, gamma=0.25)
    >>> how = {"alpha": lambda n: n**-0.8, "features": lambda n: int(2 * n**0.4)}
    >>> few, many = excess_risk_curve(law, Huber(0.1), [100, 1000], noise=norm(scale=0.1).ppf, repetitions=3, **how)
    >>> many.risk < few.risk
    True
    """
    if repetitions < 2:
        raise ValueError(f"repetitions must be at least 2, for a standard error; got {repetitions!r}.")
    values = np.asarray(noise((np.arange(NODES) + 0.5) / NODES), dtype=float)
    center = loss.best_constant(values, np.full(NODES, 1 / NODES))[0]
    x = (np.arange(GRID)[:, None] + 0.5) / GRID
    truth, curve = population.target(x), []
    for n in sizes:
        M, ridge, risks = int(features(n)), float(alpha(n)), []
        for rng in np.random.default_rng([random_state, n]).spawn(repetitions):
            X = rng.random((n, 1))
            y = population.target(X) + np.asarray(noise(rng.random(n))) - center
            lift = population.features(M, rng)
            Phi = lift.transform(X)
            problem = Problem(LiftedRows(ArrayRows(X, y), features=Phi), loss, ridge, fit_intercept=False)
            coef = SOLVERS["newton"](problem, tol=tol).coef[:, 0]
            risks.append(excess_risk(loss, lift.transform(x) @ coef - truth, values))
        error = float(np.std(risks, ddof=1) / np.sqrt(repetitions))
        curve.append(ExcessRisk(int(n), M, ridge, float(np.mean(risks)), error))
    return curve
