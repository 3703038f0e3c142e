"""Learning curves: the excess risk of fits with random features against the number of rows, for any loss (`thm3`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quernel.data import ArrayRows, InMemoryDesign
from quernel.losses import Loss
from quernel.objective import Problem
from quernel.solvers import SOLVERS
from quernel.theory.noise_models import Labels, Noise, NoiseModel, is_margin_loss
from quernel.theory.populations import SplinePopulation

Array = NDArray[np.floating]

# Points of the midpoint rule in x over which risks are averaged.
N_GRID = 1000


@dataclass(frozen=True)
class ExcessRisk:
    """Point of a learning curve: n rows, M features, ridge weight alpha, mean excess risk and its standard error."""

    n: int
    M: int
    alpha: float
    risk: float
    error: float


def excess_risk_curve(
    population: SplinePopulation,
    loss: Loss,
    sizes: Sequence[int],
    *,
    alpha: Callable[[int], float],
    features: Callable[[int], int],
    noise: Callable[[Array], Array] | None = None,
    likely: float | None = None,
    repetitions: int = 10,
    random_state: int = 0,
    tol: float = 1e-6,
) -> list[ExcessRisk]:
    """The excess risk of fits at growing numbers of rows, to y = f*(x) + noise or to labels -1 and +1.

    Parameters
    ----------
    population : the law of rows and f*
    loss : any of `quernel.losses`, of one column
    sizes : numbers of rows
    alpha, features : the ridge weight and the number of features for n rows, such as `regularization` and
        `features_needed` with exponents filled in
    noise : for a loss of the residual: quantile function of the noise, see `Noise`
    likely : for a loss of the margin: probability of the more likely label, see `Labels`. With it, and the hinge needs
        it, f* is no longer the population's function but a step, which lies outside the kernel's space: the curve is
        measured all the same, but no theorem gives its rate (see `Labels`)
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

    Labels, of which the population's function is the log odds:

    >>> from quernel.losses import Logistic
    >>> few, many = excess_risk_curve(law, Logistic(), [100, 1000], repetitions=3, **how)
    >>> many.risk < few.risk
    True
    """
    if repetitions < 2:
        raise ValueError(f"repetitions must be at least 2, for a standard error; got {repetitions!r}.")
    model = _make_noise_model(loss, noise, likely)
    x = (np.arange(N_GRID)[:, None] + 0.5) / N_GRID
    target, curve = population.target(x), []
    model.minimiser(target)  # raises for a target that the model cannot have, before any fit
    for n in sizes:
        M, ridge, risks = int(features(n)), float(alpha(n)), []
        for rng in np.random.default_rng([random_state, n]).spawn(repetitions):
            X = rng.random((n, 1))
            y = model.draw(population.target(X), rng)
            feature_map = population.features(M, rng)
            Phi = feature_map.transform(X)
            problem = Problem(InMemoryDesign(ArrayRows(X, y), features=Phi), loss, ridge, fit_intercept=False)
            coef = SOLVERS["newton"](problem, tol=tol).coef[:, 0]
            risks.append(model.excess_risk(feature_map.transform(x) @ coef, target))
        error = float(np.std(risks, ddof=1) / np.sqrt(repetitions))
        curve.append(ExcessRisk(int(n), M, ridge, float(np.mean(risks)), error))
    return curve


def _make_noise_model(loss: Loss, noise: Callable[[Array], Array] | None, likely: float | None) -> NoiseModel:
    """`Labels` for a loss of the margin, `Noise` for one of the residual."""
    if is_margin_loss(loss):
        if noise is not None:
            raise ValueError(f"{type(loss).__name__} is a loss of labels -1 and +1, which have no noise: leave it out.")
        return Labels(loss, likely)
    if likely is not None or noise is None:
        raise ValueError(
            f"{type(loss).__name__} is a loss of the residual: give noise, such as scipy.stats.norm(scale=0.1).ppf, "
            "and leave out likely, which is for labels -1 and +1."
        )
    return Noise(loss, noise)
