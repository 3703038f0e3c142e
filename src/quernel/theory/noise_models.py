"""Models of y given x under which a given f* minimises the risk of a loss, and excess risks of other functions.

For a loss of the residual (`Noise`), y is f* plus noise. For a loss of the margin (`Labels`), y is -1 or +1, and p is
the probability of +1. With such a model, `excess_risk_curve` measures learning curves: the excess risk of fits with
random features against the number of rows, for any loss (`thm3`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeGuard

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quernel.losses import Loss, Margin
from quernel.theory.decomposition import fit_on_features
from quernel.theory.populations import SplinePopulation

Array = NDArray[np.floating]

# Number of quantiles of the noise over which risks are averaged.
N_NODES = 401
# Accuracy to which f* must be recovered as the loss's minimiser under the probabilities that were derived from it.
MINIMISER_TOL = 1e-6
# Points of the midpoint rule in x over which risks are averaged.
N_GRID = 1000


def is_margin_loss(loss: Loss) -> TypeGuard[Margin]:
    """Whether the loss is a function of the margin y f with labels y = -1 and +1."""
    return loss.margin


def excess_risk(
    loss: Loss, deviation: ArrayLike, noise: ArrayLike | None = None, *, probability: ArrayLike | None = None
) -> float:
    """Excess risk E loss(f) - E loss(f*) of deviations f - f*, averaged over some rows.

    Losses are subtracted before averaging, so that no digits are lost to the size of the risk itself.

    Parameters
    ----------
    loss : any of `quernel.losses`, of one column
    deviation : f - f* at the rows
    noise : for a loss of the residual, values of y - f*, the same at all rows: exact but for their finite number. They
        are read as centred: their best constant under the loss counts as f*
    probability : for a loss of the margin, the probability of y = +1 at each row, or at all: exact. f* is the best
        constant of each probability

    Examples
    --------
    >>> from quernel.losses import Hinge, Squared
    >>> round(excess_risk(Squared(), [0.3], noise=[-1.0, 1.0]), 12)  # 0.3^2
    0.09
    >>> round(excess_risk(Hinge(), [-0.5], probability=0.75), 12)  # f* = 1, f = 1/2:  0.75 * 0.5 - 0.25 * 0.5
    0.25
    """
    deviation = np.ravel(np.asarray(deviation, dtype=float))
    _check_column(loss)
    if is_margin_loss(loss):
        if noise is not None or probability is None:
            raise ValueError(
                f"{_loss_name(loss)} is a loss of the margin: give the probability of y = +1, and no noise."
            )
        return _margin_excess_risk(loss, deviation, _check_probability(probability, len(deviation)))
    if probability is not None or noise is None:
        raise ValueError(f"{_loss_name(loss)} is a loss of the residual: give values of the noise, and no probability.")
    values = np.ravel(np.asarray(noise, dtype=float))
    centred = values - loss.fit_constant(values, np.full(len(values), 1 / len(values)))[0]
    shifted = _evaluate(loss.value, np.ravel(centred - deviation[:, None])).reshape(len(deviation), -1)
    return float(np.mean(shifted - _evaluate(loss.value, centred)))


def _margin_excess_risk(loss: Margin, deviation: Array, p: Array) -> float:
    """Mean of  p (loss(1 - f) - loss(1 - f*)) + (1 - p) (loss(1 + f) - loss(1 + f*))."""
    best = loss.constant_for(p)

    def increment(label: int) -> Array:
        return _evaluate(loss.value, 1 - label * (best + deviation)) - _evaluate(loss.value, 1 - label * best)

    return float(np.mean(p * increment(+1) + (1 - p) * increment(-1)))


@dataclass(frozen=True, eq=False)
class Noise:
    """y = f*(x) + noise, centred so that f* minimises the risk.

    Parameters
    ----------
    loss : any loss of the residual, of one column
    quantile : quantile function of the noise: levels in (0, 1) to values, such as ``scipy.stats.norm(scale=0.1).ppf``
    """

    loss: Loss
    quantile: Callable[[Array], Array]

    def __post_init__(self) -> None:
        _check_column(self.loss)
        if is_margin_loss(self.loss):
            raise ValueError(f"{_loss_name(self.loss)} is a loss of the margin, of labels -1 and +1: use Labels.")
        if not callable(self.quantile):
            raise ValueError(
                f"{_loss_name(self.loss)} needs noise, a function of levels in (0, 1) such as scipy.stats.norm.ppf; "
                f"got {self.quantile!r}."
            )

    @cached_property
    def values(self) -> Array:
        """Quantiles of the noise at regular levels, which represent its distribution."""
        return np.asarray(self.quantile((np.arange(N_NODES) + 0.5) / N_NODES), dtype=float)

    @cached_property
    def center(self) -> float:
        """Best constant of the noise under the loss; draws are centred by it."""
        return float(self.loss.fit_constant(self.values, np.full(N_NODES, 1 / N_NODES))[0])

    def minimiser(self, target: Array) -> Array:
        """f*, the function that minimises the risk of the loss, shape (n,): the target itself."""
        return target

    def draw(self, target: Array, rng: np.random.Generator) -> Array:
        """Draw y, shape (n,): f* + centred noise."""
        return target + np.asarray(self.quantile(rng.random(len(target)))) - self.center

    def excess_risk(self, prediction: Array, target: Array) -> float:
        """Risk of these predictions minus that of f*, averaged over the rows and over quantiles of the noise."""
        return excess_risk(self.loss, prediction - target, self.values)


@dataclass(frozen=True, eq=False)
class Labels:
    """Labels y = -1 and +1 whose probabilities make a function the minimiser f* of the risk.

    With s the slope of the loss and r = 1 - y f, the risk at x is least where  p s(1 - f) = (1 - p) s(1 + f).  Read
    from right to left this is their distribution: f* is the target itself and

        p = s(1 + f*) / (s(1 + f*) + s(1 - f*)).

    Logistic: the target is the log odds. Squared and smoothed hinge: it must stay in (-1, 1), where p is in (0, 1); a
    smoothed hinge of width below 1 is also flat up to 1 - width, at p = 1/2, and can have no targets there.

    The plain hinge is minimised by the more likely label: by steps between -1 and +1 and, where p = 1/2, by everything
    between. No distribution makes another function its minimiser. Such a loss needs `likely`, and then p is `likely`
    where the target is 0 or more, and 1 - `likely` elsewhere; f* is a step between the best constants of the two. Where
    the step goes up and down on the circle, its Fourier coefficients fall like 1/k: it lies outside the kernel's space,
    and has source exponents below gamma/2 whatever r the target has. No theorem speaks of the hinge: its risk is not
    locally strongly convex (`ass7`), since it falls linearly on the way to f*, and 2r + gamma >= 1 with r below gamma/2
    asks for gamma > 1/2, where the spline's features are unbounded (`ass4`).

    Parameters
    ----------
    loss : any loss of the margin, of one column
    likely : probability of the more likely label, in (1/2, 1), for a step; None for a target as it is

    Examples
    --------
    >>> from quernel.losses import Hinge, SquaredHinge
    >>> Labels(SquaredHinge()).probability(np.array([-0.5, 0.0, 0.5]))  # (1 + f*) / 2
    array([0.25, 0.5 , 0.75])
    >>> Labels(Hinge(), likely=0.9).minimiser(np.array([-0.5, 0.5]))
    array([-1.,  1.])
    """

    loss: Margin
    likely: float | None = None

    def __post_init__(self) -> None:
        _check_column(self.loss)
        if not is_margin_loss(self.loss):
            raise ValueError(f"{_loss_name(self.loss)} is a loss of the residual, not of labels -1 and +1: use Noise.")
        if self.likely is None and not np.all(self.loss.smoothing_width > 0):
            raise ValueError(
                f"{_loss_name(self.loss)} has a kink, and is minimised by steps only. Give likely, the probability of "
                "the more likely label, such as 0.9: f* is then a step where the target changes its sign."
            )
        if self.likely is not None and not 0.5 < self.likely < 1:
            raise ValueError(f"likely must be between 1/2 and 1; got {self.likely!r}.")

    def probability(self, target: Array) -> Array:
        """Probability p of y = +1, shape (n,)."""
        if self.likely is not None:
            return np.where(target >= 0, self.likely, 1 - self.likely)
        slope_up, slope_down = _evaluate(self.loss.slope, 1 + target), _evaluate(self.loss.slope, 1 - target)
        p = slope_up / (slope_up + slope_down)
        # Where the risk is flat around f*, or has its infimum at infinity, the loss's best constant differs from f*.
        unfit = ~(
            (p > 0) & (p < 1) & np.isclose(self.loss.constant_for(p), target, rtol=MINIMISER_TOL, atol=MINIMISER_TOL)
        )
        if unfit.any():
            raise ValueError(
                f"No distribution of labels has f* as the only minimiser of {_loss_name(self.loss)} where f* = "
                f"{target[unfit][0]:.3g}; f* lies between {target.min():.3g} and {target.max():.3g}. Scale f* into "
                "(-1, 1) for a hinge (a SplinePopulation takes scale), or give likely for a step."
            )
        return p

    def minimiser(self, target: Array) -> Array:
        """f*: the target or, if `likely` is given, a step."""
        p = self.probability(target)
        return target if self.likely is None else self.loss.constant_for(p)

    def draw(self, target: Array, rng: np.random.Generator) -> Array:
        """Draw +1 with probability p, else -1."""
        return np.where(rng.random(len(target)) < self.probability(target), 1.0, -1.0)

    def excess_risk(self, prediction: Array, target: Array) -> float:
        """Excess risk, exact over the two labels."""
        return excess_risk(self.loss, prediction - self.minimiser(target), probability=self.probability(target))


NoiseModel = Noise | Labels


def _evaluate(function: Callable[[Array], Array], residual: Array) -> Array:
    """Evaluate a function of a loss with one column at residuals (n,)."""
    return function(residual[:, None])[:, 0]


def _loss_name(loss: Loss) -> str:
    """Class name of the loss, for messages."""
    return type(loss).__name__


def _check_column(loss: Loss) -> None:
    """ValueError unless the loss has one column."""
    if loss.n_columns != 1:
        raise ValueError(f"Excess risks are of one loss at a time; got {loss!r} with {loss.n_columns} columns.")


def _check_probability(probability: ArrayLike, n: int) -> Array:
    """Probabilities broadcast to (n,), or ValueError unless strictly between 0 and 1."""
    p = np.asarray(probability, dtype=float)
    if p.shape not in ((), (n,)):
        raise ValueError(f"probability must be a number, or one for each of {n} rows; got shape {p.shape}.")
    if not np.all((p > 0) & (p < 1)):
        raise ValueError(f"probability must lie between 0 and 1; got {probability!r}.")
    return np.broadcast_to(p, (n,))


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
    population : the distribution of rows and f*
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
    >>> spline = SplinePopulation(r=0.5, gamma=0.25)
    >>> how = {"alpha": lambda n: n**-0.8, "features": lambda n: int(2 * n**0.4)}
    >>> few, many = excess_risk_curve(spline, Huber(0.1), [100, 1000], noise=norm(scale=0.1).ppf, repetitions=3, **how)
    >>> many.risk < few.risk
    True

    Labels, of which the population's function is the log odds:

    >>> from quernel.losses import Logistic
    >>> few, many = excess_risk_curve(spline, Logistic(), [100, 1000], repetitions=3, **how)
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
            coef = fit_on_features(feature_map.transform(X), y, loss, ridge, tol=tol)
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
