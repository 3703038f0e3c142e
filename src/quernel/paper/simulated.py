"""One repetition of the appendix's simulations: training, validation and test rows, and the true risk of a fit.

The noise is normal and its scale known, so that the excess risk E rho(y - f) - E rho(y - f*) of a fit f has a closed
form given x: no noise of test targets enters it, only the test points x. Bounds on the PQE (the paper's word for the
mean pinball loss on test rows) follow from the same formulas.
"""

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
    """Excess pinball risk of a deviation d = f - f* from the true quantile, for normal noise of scale s:

        E rho(s (e - z) - d) - E rho(s (e - z)) = s [F'(t) - F'(z) + t (F(t) - tau)],   t = z + d / s,

    with e standard normal, F its distribution function and z = F^-1(tau). Arrays broadcast.
    """
    z = ndtri(level)
    t = z + deviation / scale
    return scale * (_density(t) - _density(z) + t * (ndtr(t) - level))


def normal_loss_moments(quantile: float | Array, level: float) -> tuple[Array, Array]:
    """First and second moment of the pinball loss of e - t, e standard normal with distribution function F:

    E rho(e - t)   = F'(t) + t (F(t) - tau),
    E rho(e - t)^2 = tau^2 [(1 + t^2) (1 - F(t)) - t F'(t)] + (1 - tau)^2 [(1 + t^2) F(t) + t F'(t)].
    """
    t = np.asarray(quantile)
    below, density, square = ndtr(t), _density(t), 1 + np.square(t)
    second = level**2 * (square * (1 - below) - t * density) + (1 - level) ** 2 * (square * below + t * density)
    return density + t * (below - level), second


def _density(z: Array | float) -> Array:
    """Standard normal density."""
    return np.exp(-np.square(z) / 2) / np.sqrt(2 * np.pi)


SIMULATIONS = ("homoscedastic", "heteroscedastic")
N_VALIDATION, N_TEST = 1000, 10_000
# Every fifth test row is enough to find the ridge weight of least excess risk, which no noise of y enters.
EVERY = 5
# The paper's kernel exp(-|x - z|^2 / 2).
KERNEL = Gaussian(1.0)
# Mean of the noise's scale and of its square: 1, and those of 1 + mean(x) over three uniform coordinates.
MEAN_SCALE = {"homoscedastic": 1.0, "heteroscedastic": 1.5}
MEAN_SQUARE_SCALE = {"homoscedastic": 1.0, "heteroscedastic": 1.5**2 + 1 / 36}
# Nodes of the Gauss-Legendre rule in each coordinate of x and in beta: the bounds are exact to ten digits.
NODES = 20
# Newton iterations for a conditional quantile, started at the centre of its law: three suffice.
STEPS = 8


@dataclass(frozen=True, eq=False)
class Trial:
    """One repetition of a simulation: rows, targets, true quantiles and the scale of the noise.

    The first n_train rows are for training, the next 1,000 for validation, the last 10,000 for the test.

    Attributes
    ----------
    n_train : int
    X : ndarray of shape (n, 3)
    y : ndarray of shape (n,), or (n, q) where the law of y depends on the quantile level
    truth : ndarray of shape (n, q)
        True conditional quantiles.
    scale : ndarray of shape (n,)
        Standard deviation of the noise at each row.
    solver : str
        "newton" or "admm".
    """

    n_train: int
    X: Array
    y: Array
    truth: Array
    scale: Array
    solver: str = NEWTON

    @property
    def train(self) -> slice:
        """Slice of the training rows."""
        return slice(self.n_train)

    @property
    def validation(self) -> slice:
        """Slice of the rows on which the ridge weight is selected."""
        return slice(self.n_train, self.n_train + N_VALIDATION)

    @property
    def test(self) -> slice:
        """Slice of the rows on which a fit is evaluated."""
        return slice(self.n_train + N_VALIDATION, None)

    def fit_and_select_alpha(self, train: Array, validation: Array) -> SelectedFit:
        """Fit on these features of the training rows, with the ridge weight that validation selects."""
        y, held_out = self.y[self.train], self.y[self.validation]
        return fit_and_select(train, y, validation, held_out, LEVELS, solver=self.solver)

    def evaluate(self, selected: SelectedFit, test: Array) -> list[Row]:
        """Evaluate a fit on these features of the test rows: one row of results per quantile level.

        `pqe` is the mean pinball loss, `excess` the excess risk. `least_excess` is the least excess risk over the whole
        grid of ridge weights: an oracle that separates what the features cost from what selection on noisy rows costs.
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
    """Draw one repetition of a simulation, "homoscedastic" or "heteroscedastic".

    In the heteroscedastic one the noise is e - F^-1(tau): the law of y, and so y, depends on the quantile level to be
    estimated. All levels share the same rows and the same e.
    """
    n, levels = n_train + N_VALIDATION + N_TEST, np.asarray(LEVELS)
    if simulation == "homoscedastic":
        X, y, quantile = make_homoscedastic(n, random_state=rng)
        return Trial(n_train, X, y, quantile(X, levels), np.ones(n), solver)
    X, y, law = make_heteroscedastic(n, 0.5, random_state=rng)
    location, scale = law.location(X), law.scale(X)  # type: ignore[attr-defined]
    # Replace the noise e by e - F^-1(tau), one column per level, so that `location` is the quantile at every level.
    moved = y[:, None] - scale[:, None] * ndtri(levels)
    return Trial(n_train, X, moved, np.repeat(location[:, None], len(levels), axis=1), scale, solver)


def bayes_risk(simulation: str, level: float) -> float:
    """Least expected PQE of any method: E s F'(F^-1(tau)), the mean noise scale times a normal density."""
    return MEAN_SCALE[simulation] * norm.pdf(norm.ppf(level))


class Bound(NamedTuple):
    """Least expected PQE, and the standard deviation of the true quantile's PQE over test sets of 10,000 rows."""

    risk: float
    test_sd: float


def bound(simulation: str, level: float) -> Bound:
    """Bayes risk of a simulation, and the standard deviation of the true quantile's PQE on one test set."""
    _, second = normal_loss_moments(ndtri(level), level)
    risk = float(bayes_risk(simulation, level))
    return Bound(risk, _test_sd(risk, MEAN_SQUARE_SCALE[simulation] * float(second)))


@cache
def bound_with_row_betas(level: float) -> Bound:
    """`bound` for the heteroscedastic simulation read literally: one beta ~ U(0, 1) per row, which no method observes.

    Given x, y = S b + s (e - z) with S = sum_j sin(2 pi x_j), s = 1 + mean(x) and b uniform on [0, 1]. The conditional
    quantile is found by Newton's method on its distribution function; the loss is integrated over b and x by a product
    Gauss-Legendre rule.
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
    """Standard deviation of the mean of `TEST` losses with these first two moments."""
    return float(np.sqrt((second - mean**2) / N_TEST))
