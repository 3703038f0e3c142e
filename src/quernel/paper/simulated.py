"""The paper's simulations: one repetition of those of the appendix, the spline design, and the true risk of a fit.

The noise is normal and its scale known, so that the excess risk E rho(y - f) - E rho(y - f*) of a fit f has a closed
form given x: no noise of test targets enters it, only the test points x. Bounds on the PQE (the paper's word for the
mean pinball loss on test rows) follow from the same formulas.

The spline design has x uniform on [0, 1], the periodic spline kernel Lambda_(1/gamma) and a target of source exponent
r; its capacity exponent and the compatibility of its features are gamma. Formulas of the theorem are also evaluated
outside of its range 2r + gamma >= 1, where some of the paper's settings lie.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri
from scipy.stats import norm
from sklearn.base import BaseEstimator

from quernel.datasets import make_heteroscedastic, make_homoscedastic
from quernel.datasets.simulations import HeteroscedasticQuantile
from quernel.features import RandomFeatures
from quernel.kernels import Gaussian, PeriodicSpline
from quernel.paper.experiment import NEWTON, Row
from quernel.paper.holdout_fit import LEVELS, N_VALIDATION, fit_and_select, pinball, transform_parts
from quernel.theory import OutsideTheoryWarning, feature_exponent, learning_rate, regularization

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
N_TEST = 10_000
# The paper's kernel exp(-|x - z|^2 / 2).
KERNEL = Gaussian(1.0)
# Mean of the noise's scale and of its square: 1, and those of 1 + mean(x) over three uniform coordinates.
MEAN_SCALE = {"homoscedastic": 1.0, "heteroscedastic": 1.5}
MEAN_SQUARE_SCALE = {"homoscedastic": 1.0, "heteroscedastic": 1.5**2 + 1 / 36}


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

    def transform(self, features: BaseEstimator) -> list[Array]:
        """Features of training, validation and test rows, fitted to the training rows."""
        return transform_parts(features, [self.X[part] for part in (self.train, self.validation, self.test)])

    def evaluate(self, method: str, features: Sequence[Array]) -> list[Row]:
        """Fit on features of the training rows, and evaluate on the test rows: one row of results per quantile level.

        `pqe` is the mean pinball loss, `excess` the excess risk, with the ridge weight that validation selects.
        `least_excess` is the least excess risk over the whole grid of ridge weights: an oracle that separates what the
        features cost from what selection on noisy rows costs.
        """
        train, validation, test = features
        y = self.y[self.train], self.y[self.validation], self.y[self.test]
        selected = fit_and_select(train, y[0], validation, y[1], LEVELS, solver=self.solver)
        levels, predicted = np.asarray(LEVELS), test @ selected.coef
        pqe = pinball((y[2] if y[2].ndim == 2 else y[2][:, None]) - predicted, levels).mean(axis=0)
        scale, truth = self.scale[self.test, None], self.truth[self.test]
        excess = normal_excess_risk(predicted - truth, scale, levels).mean(axis=0)
        # Every fifth test row is enough to find the weight of least excess risk, which no noise of y enters.
        deviation = test[::5] @ selected.grid - truth[::5]
        least = normal_excess_risk(deviation, scale[::5], levels).mean(axis=1).min(axis=0)
        columns = {"level": LEVELS, "pqe": pqe, "excess": excess, "least_excess": least}
        columns |= {"alpha": selected.alpha, "gap": selected.gap}
        return [{"method": method, **{name: column[k] for name, column in columns.items()}} for k in range(len(LEVELS))]


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
    assert isinstance(law, HeteroscedasticQuantile)
    location, scale = law.location(X), law.scale(X)
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
    # With 20 nodes in each coordinate of x and in beta the bounds are exact to ten digits.
    nodes, weights = np.polynomial.legendre.leggauss(20)
    nodes, weights = (nodes + 1) / 2, weights / 2
    x = np.stack(np.meshgrid(nodes, nodes, nodes), axis=-1).reshape(-1, 3)
    mass = np.multiply.outer(np.multiply.outer(weights, weights), weights).ravel()
    wave, scale, z = np.sin(2 * np.pi * x).sum(axis=1)[:, None], 1 + x.mean(axis=1), ndtri(level)
    quantile = wave[:, 0] / 2
    for _ in range(8):  # from the centre of its law three steps suffice
        t = z + (quantile[:, None] - wave * nodes) / scale[:, None]
        quantile -= scale * (ndtr(t) @ weights - level) / (norm.pdf(t) @ weights)
    first, second = normal_loss_moments(z + (quantile[:, None] - wave * nodes) / scale[:, None], level)
    risk = float(mass @ (scale * (first @ weights)))
    return Bound(risk, _test_sd(risk, float(mass @ (scale**2 * (second @ weights)))))


def _test_sd(mean: float, second: float) -> float:
    """Standard deviation of the mean of `N_TEST` losses with these first two moments."""
    return float(np.sqrt((second - mean**2) / N_TEST))


@contextmanager
def _ignore_outside_theory() -> Iterator[None]:
    """No warning where a formula is evaluated outside of the theorem's range."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OutsideTheoryWarning)
        yield


# The constant of M = ceil(CONSTANT n^c), which the theory does not give.
CONSTANT = 5


@_ignore_outside_theory()
def features_of_theorem(n: int, r: float, gamma: float, constant: float = CONSTANT) -> int:
    """M = ceil(constant n^c) of `thm2`, with compatibility gamma."""
    return math.ceil(constant * n ** float(feature_exponent(r, gamma, gamma, strict=False)))


@_ignore_outside_theory()
def ridge_of_theorem(n: int, r: float, gamma: float) -> float:
    """lambda = n^(-1/(2r + gamma)) of `thm2`."""
    return regularization(n, r, gamma, strict=False)


@_ignore_outside_theory()
def predicted_slope(r: float, gamma: float) -> float:
    """-2r/(2r + gamma), the slope of log squared error against log n by `thm2`, logarithms left out."""
    return -float(learning_rate(r, gamma, strict=False))


def spline_kernel(gamma: float) -> PeriodicSpline:
    """The periodic spline kernel Lambda_(1/gamma), of infinite order for gamma = 0."""
    return PeriodicSpline(1 / gamma if gamma else np.inf)


def spline_features(gamma: float, n_components: int, X: Array, rng: np.random.Generator) -> RandomFeatures:
    """Fitted random features Lambda_(1/(2 gamma))(x, w) with w uniform on [0, 1]."""
    return RandomFeatures(spline_kernel(gamma), n_components, random_state=rng).fit(X)


def midpoints(count: int) -> NDArray[np.float64]:
    """Midpoint rule (count, 1) on [0, 1]: means over it are integrals over uniform x, without sampling noise."""
    return (np.arange(count)[:, None] + 0.5) / count
