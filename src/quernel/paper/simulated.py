"""One repetition of the appendix's simulations: rows to train, validate and test on, and the true risk of a fit."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri
from scipy.stats import norm

from quernel.datasets import make_heteroscedastic, make_homoscedastic
from quernel.kernels import Gaussian
from quernel.paper.experiment import NEWTON, Row
from quernel.paper.holdout_fit import LEVELS, SelectedFit, fit_and_select, pinball

Array = NDArray[np.floating]


def normal_excess_risk(deviation: Array, scale: float | Array, level: float | Array) -> Array:
    """E rho(s (e - z) - d) - E rho(s (e - z)) for e standard normal, z its quantile at the level, d = f - f*:

    s [F'(t) - F'(z) + t (F(t) - tau)]  with  t = z + d / s.
    """
    z = ndtri(level)
    t = z + deviation / scale
    return scale * (_density(t) - _density(z) + t * (ndtr(t) - level))


def normal_loss_moments(quantile: float | Array, level: float) -> tuple[Array, Array]:
    """E rho(e - t) and E rho(e - t)^2 for e standard normal:

    F'(t) + t (F(t) - tau)  and  tau^2 [(1 + t^2) (1 - F(t)) - t F'(t)] + (1 - tau)^2 [(1 + t^2) F(t) + t F'(t)].
    """
    t = np.asarray(quantile)
    below, density, square = ndtr(t), _density(t), 1 + np.square(t)
    second = level**2 * (square * (1 - below) - t * density) + (1 - level) ** 2 * (square * below + t * density)
    return density + t * (below - level), second


def _density(z: Array | float) -> Array:
    return np.exp(-np.square(z) / 2) / np.sqrt(2 * np.pi)


SIMULATIONS = ("homoscedastic", "heteroscedastic")
VALIDATION, TEST = 1000, 10_000
# One in so many test rows is enough to find the weight of least true risk, for no noise enters.
EVERY = 5
# The paper's exp(-|x - z|^2 / 2).
KERNEL = Gaussian(1.0)
# Mean of the noise's scale and of its square: 1, and those of 1 + mean(x) over three uniform coordinates.
MEAN_SCALE = {"homoscedastic": 1.0, "heteroscedastic": 1.5}
MEAN_SQUARE_SCALE = {"homoscedastic": 1.0, "heteroscedastic": 1.5**2 + 1 / 36}
# Points of the Gauss-Legendre rule in each coordinate of x and in beta: the bounds are exact to ten digits.
NODES = 20
# Newton steps from the middle of the law of a row: three suffice.
STEPS = 8


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

    def fit_and_select_alpha(self, train: Array, validation: Array) -> SelectedFit:
        """The fit on these features of the training rows that is best on those of the validation rows."""
        y, held_out = self.y[self.train], self.y[self.validation]
        return fit_and_select(train, y, validation, held_out, LEVELS, solver=self.solver)

    def evaluate(self, selected: SelectedFit, test: Array) -> list[Row]:
        """Per level: PQE and excess risk on these features of the test rows, the ridge weight and the gap.

        `least_excess` is that of the weight with the least true risk, which no validation set could choose so well.
        """
        levels, predicted = np.asarray(LEVELS), test @ selected.coef
        y, scale = self.y[self.test], self.scale[self.test]
        pqe = pinball((y if y.ndim == 2 else y[:, None]) - predicted, levels).mean(axis=0)
        excess = normal_excess_risk(predicted - self.truth[self.test], scale[:, None], levels).mean(axis=0)
        some = slice(self.test.start, None, EVERY)
        deviation = test[::EVERY] @ selected.grid - self.truth[some]
        least = normal_excess_risk(deviation, self.scale[some, None], levels).mean(axis=1).min(axis=0)
        return [
            {
                "level": LEVELS[k],
                "pqe": pqe[k],
                "excess": excess[k],
                "least_excess": least[k],
                "alpha": selected.alpha[k],
                "gap": selected.gap[k],
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


class Bound(NamedTuple):
    """The least expected PQE, and the standard deviation of the PQE of the true quantiles on one test set."""

    risk: float
    test_sd: float


def bound(simulation: str, level: float) -> Bound:
    """`bayes_risk`, and how far the mean loss on 10,000 test rows of even the true quantile strays from it."""
    _, second = normal_loss_moments(ndtri(level), level)
    risk = float(bayes_risk(simulation, level))
    return Bound(risk, _test_sd(risk, MEAN_SQUARE_SCALE[simulation] * float(second)))


@cache
def bound_with_row_betas(level: float) -> Bound:
    """The same for the heteroscedastic case with one beta ~ U(0, 1) per row, which no method sees.

    Given x, y is S b + s (e - z) with S = sum_j sin(2 pi x_j), s = 1 + mean(x) and b uniform: its quantile is found by
    Newton's method, and the loss is integrated over b and x by the Gauss-Legendre rule.
    """
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    nodes, weights = (nodes + 1) / 2, weights / 2
    x = np.stack(np.meshgrid(nodes, nodes, nodes), axis=-1).reshape(-1, 3)
    mass = np.multiply.outer(np.multiply.outer(weights, weights), weights).ravel()
    wave, scale, z = np.sin(2 * np.pi * x).sum(axis=1)[:, None], 1 + x.mean(axis=1), ndtri(level)
    quantile = wave[:, 0] / 2
    for _ in range(STEPS):
        t = z + (quantile[:, None] - wave * nodes) / scale[:, None]
        quantile -= scale * (ndtr(t) @ weights - level) / (norm.pdf(t) @ weights)
    first, second = normal_loss_moments(z + (quantile[:, None] - wave * nodes) / scale[:, None], level)
    risk = float(mass @ (scale * (first @ weights)))
    return Bound(risk, _test_sd(risk, float(mass @ (scale**2 * (second @ weights)))))


def _test_sd(mean: float, second: float) -> float:
    return float(np.sqrt((second - mean**2) / TEST))
