"""One repetition of the appendix's simulations: rows to train, validate and test on, and the true risk of a fit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri
from scipy.stats import norm

from quernel.datasets import make_heteroscedastic, make_homoscedastic
from quernel.kernels import Gaussian
from quernel.paper.experiment import NEWTON, Row
from quernel.paper.risk import normal_excess_risk
from quernel.paper.validated import LEVELS, Chosen, fit_and_choose, pinball

Array = NDArray[np.floating]

SIMULATIONS = ("homoscedastic", "heteroscedastic")
VALIDATION, TEST = 1000, 10_000
# One in so many test rows is enough to find the weight of least true risk, for no noise enters.
SPARSE = 5
# The paper's exp(-|x - z|^2 / 2).
KERNEL = Gaussian(1.0)
# Mean of the noise's scale: 1, and that of 1 + mean(x).
MEAN_SCALE = {"homoscedastic": 1.0, "heteroscedastic": 1.5}


@dataclass(frozen=True, eq=False)
class Trial:
    """X (n, 3); y (n,), or (n, q) where the law of y depends on the level; truth (n, q); scale (n,) of the noise.

    The first n_train rows are for training, the next 1,000 for validation, the last 10,000 for the test. `solver` fits.
    """

    n_train: int
    X: Array
    y: Array
    truth: Array
    scale: Array
    solver: str = NEWTON

    @property
    def train(self) -> slice:
        """Rows to fit."""
        return slice(self.n_train)

    @property
    def validation(self) -> slice:
        """Rows to choose the ridge weight on."""
        return slice(self.n_train, self.n_train + VALIDATION)

    @property
    def test(self) -> slice:
        """Rows to judge on."""
        return slice(self.n_train + VALIDATION, None)

    def choose(self, train: Array, validation: Array) -> Chosen:
        """The fit on these features of the training rows that is best on those of the validation rows."""
        y, held_out = self.y[self.train], self.y[self.validation]
        return fit_and_choose(train, y, validation, held_out, LEVELS, solver=self.solver)

    def judged(self, chosen: Chosen, test: Array) -> list[Row]:
        """Per level: PQE and excess risk on these features of the test rows, the ridge weight and the gap.

        `least_excess` is that of the weight with the least true risk, which no validation set could choose so well.
        """
        levels, predicted = np.asarray(LEVELS), test @ chosen.coef
        y, scale = self.y[self.test], self.scale[self.test]
        pqe = pinball((y if y.ndim == 2 else y[:, None]) - predicted, levels).mean(axis=0)
        excess = normal_excess_risk(predicted - self.truth[self.test], scale[:, None], levels).mean(axis=0)
        some = slice(self.test.start, None, SPARSE)
        deviation = test[::SPARSE] @ chosen.grid - self.truth[some]
        least = normal_excess_risk(deviation, self.scale[some, None], levels).mean(axis=1).min(axis=0)
        return [
            {
                "level": LEVELS[k],
                "pqe": pqe[k],
                "excess": excess[k],
                "least_excess": least[k],
                "alpha": chosen.alpha[k],
                "gap": chosen.gap[k],
            }
            for k in range(len(LEVELS))
        ]


def make_trial(simulation: str, n_train: int, rng: np.random.Generator, solver: str = NEWTON) -> Trial:
    """Rows of a simulation; in the heteroscedastic one the law, and so y, depends on the level to be estimated."""
    n, levels = n_train + VALIDATION + TEST, np.asarray(LEVELS)
    if simulation == "homoscedastic":
        X, y, quantile = make_homoscedastic(n, random_state=rng)
        return Trial(n_train, X, y, quantile(X, levels), np.ones(n), solver)
    X, y, law = make_heteroscedastic(n, 0.5, random_state=rng)
    location, scale = law.location(X), law.scale(X)  # type: ignore[attr-defined]
    # Noise e - F^-1(tau) instead of e: the same rows, under the law of each level.
    moved = y[:, None] - scale[:, None] * ndtri(levels)
    return Trial(n_train, X, moved, np.repeat(location[:, None], len(levels), axis=1), scale, solver)


def bayes_risk(simulation: str, level: float) -> float:
    """The least expected PQE that any method can have: E s times the density at the level's normal quantile."""
    return MEAN_SCALE[simulation] * norm.pdf(norm.ppf(level))
