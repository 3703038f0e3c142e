"""Noise: models of y given x with excess risks under them, and the theory's conditions on noise and loss.

A model makes a given f* the minimiser of the risk of a loss. For a loss of the residual (`Noise`), y is f* plus noise.
For a loss of the margin (`Labels`), y is -1 or +1, and p is the probability of +1.

The conditions are adaptive self-calibration (`ass6`), about the density of y given x near a quantile, whose consequence
is `lemA.2.4`, and local strong convexity of the risk (`ass7`), for any loss, with its upper counterpart (remark after
`cor3`). Estimates from a sample are diagnostics, not proofs: no sample shows that an inequality holds in every
direction and at every distance, however small, so that increments are taken in the directions and over the distance
that are stated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeGuard

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quernel.losses import Loss, Margin, Pinball

Array = NDArray[np.floating]

# Number of quantiles of the noise over which risks are averaged.
N_NODES = 401
# Accuracy to which f* must be recovered as the loss's minimiser under the probabilities that were derived from it.
MINIMISER_TOL = 1e-6
# Fewest rows per group.
MIN_GROUP = 50


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
class SelfCalibration:
    """`ass6`: the density of y given x is at most c1, and F(y + delta) - F(y) at least c2 |delta| near f*.

    c1_error and c2_error are standard errors of the increments at which c1 and c2 were found. Being the largest and the
    least of many, c1 is on average one to two errors too high and c2 too low: the truth lies between c1 - 3 c1_error
    and c1 in 19 samples of 20. radius and step are the epsilon and epsilon' of the assumption. c2 = 0 says that some
    stretch near f* was empty: the condition is in doubt.
    """

    c1: float
    c1_error: float
    c2: float
    c2_error: float
    radius: float
    step: float


@dataclass(frozen=True)
class CalibrationInequality:
    """`lemA.2.4`: |f - f'|^2 <= risk_factor (E(f) - E(f')) + distance_factor |f' - f*|^2, for the check loss.

    It holds where |f' - f*| <= epsilon and |f - f'| <= epsilon' at every x, with the two distances of `ass6`. The paper
    asks for the first in the L2 norm only and not for the second; without it the lemma is false, because the check loss
    grows linearly.
    """

    risk_factor: float
    distance_factor: float

    def bound(self, excess_risk: float, distance: float) -> float:
        """The right-hand side, from E(f) - E(f') and |f' - f*|."""
        return self.risk_factor * excess_risk + self.distance_factor * distance**2


def self_calibration(
    residual: ArrayLike, *, radius: float | None = None, step: float | None = None, groups: ArrayLike | None = None
) -> SelfCalibration:
    """Estimate c1 and c2 of the adaptive self-calibration condition from residuals y - f*(x).

    Parameters
    ----------
    residual : array of shape (n,), at the true or a well-fitted quantile
    radius : how far around f* to look; None is a fifth of the interquartile range
    step : over what distance increments are taken; None is the same
    groups : labels of shape (n,), such as deciles of the prediction: the condition is asked of each, because it must
        hold at every x. None takes all rows as one group
    """
    residual = check_vector("residual", residual)
    labels = np.zeros(len(residual)) if groups is None else np.asarray(groups)
    if labels.shape != residual.shape:
        raise ValueError(f"groups must hold one label per residual, shape {residual.shape}; got {labels.shape}.")
    default = float(np.subtract(*np.quantile(residual, [0.75, 0.25]))) / 5
    radius, step = check_distance("radius", radius, default), check_distance("step", step, default)
    grid = np.linspace(-radius, radius, 41)
    high, low = (-np.inf, 0.0), (np.inf, 0.0)  # (increment, its standard error)
    for label in np.unique(labels):
        values = np.sort(residual[labels == label])
        if len(values) < MIN_GROUP:
            raise ValueError(f"Group {label!r} has {len(values)} rows; at least {MIN_GROUP} are needed. Merge groups.")
        around = np.concatenate([_fraction_within(values, grid, step), _fraction_within(values, grid - step, step)])
        high = max(high, _with_standard_error(_fraction_within(values, values, step).max(), len(values)))
        low = min(low, _with_standard_error(around.min(), len(values)))
    (c1, c1_error), (c2, c2_error) = (np.divide(pair, step).tolist() for pair in (high, low))
    return SelfCalibration(c1, c1_error, c2, c2_error, radius, step)


def calibration_inequality(c1: float, c2: float) -> CalibrationInequality:
    """The constants 4 / c2 and 4 c1^2 / c2^2 of `lemA.2.4` (its proof; the statement multiplies the second by another).

    Parameters
    ----------
    c1, c2 : bounds on the density of y given x, above everywhere and below near f*, as in `SelfCalibration`

    Examples
    --------
    >>> calibration_inequality(c1=1.0, c2=0.5)
    CalibrationInequality(risk_factor=8.0, distance_factor=16.0)
    """
    if not 0 < c2 <= c1 < np.inf:
        raise ValueError(f"c1 and c2 must be positive and finite, c2 at most c1; got c1={c1!r}, c2={c2!r}.")
    return CalibrationInequality(4 / c2, 4 * (c1 / c2) ** 2)


def _fraction_within(values: Array, start: Array, step: float) -> Array:
    """Fraction of the sorted values in (start, start + step]."""
    counts = np.searchsorted(values, start + step, side="right") - np.searchsorted(values, start, side="right")
    return counts / len(values)


def _with_standard_error(share: float, n: int) -> tuple[float, float]:
    """A fraction of n rows, and its binomial standard error."""
    return float(share), float(np.sqrt(share * (1 - share) / n))


def check_vector(name: str, values: ArrayLike) -> Array:
    """One-dimensional array of at least 50 finite numbers, or ValueError."""
    array = np.asarray(values, dtype=float)
    if array.ndim != 1 or len(array) < MIN_GROUP or not np.isfinite(array).all():
        raise ValueError(f"{name} must hold at least {MIN_GROUP} finite numbers in one axis; got shape {array.shape}.")
    return array


def check_distance(name: str, value: float | None, default: float) -> float:
    """Positive, finite distance, or the default if None; otherwise ValueError."""
    distance = default if value is None else value
    if not 0 < distance < np.inf:
        raise ValueError(f"{name} must be positive and finite; got {distance!r}. Is the residual constant?")
    return float(distance)


@dataclass(frozen=True)
class LocalConvexity:
    """`ass7`: the excess risk is at least c3 |f - f'|^2; with |f' - f*|^2 added, at least c4 |f - f'|^2.

    c4 is None where f* was not given. Negative values say that the inequality failed in some direction. c3 can be
    positive at f' = f* only: elsewhere f = f* refutes it, for every loss.
    """

    c3: float
    c4: float | None
    radius: float


def local_convexity(
    y: ArrayLike,
    prediction: ArrayLike,
    directions: ArrayLike,
    *,
    radius: float,
    loss: Loss | None = None,
    truth: ArrayLike | None = None,
) -> LocalConvexity:
    """Estimate c3 and c4 of local strong convexity around f' = prediction, along the directions given.

        c3 = min of (E(f' + t g) - E(f')) / t^2,   c4 the same with |f' - f*|^2 added,   over g and t = +-radius

    with risks and norms taken as means over the rows and each g scaled to norm 1.

    Parameters
    ----------
    y, prediction : arrays of shape (n,)
    directions : array of shape (n, k), functions at the rows, such as features
    radius : the distance |f - f'|; below about 10 / sqrt(n) of the spread of y the answer is mostly noise
    loss : any of `quernel.losses`, of one column (labels y are -1 and +1 for one of the margin); None is the check loss
        at level 1/2
    truth : f* at the rows, shape (n,), for c4
    """
    y, prediction = check_vector("y", y), check_vector("prediction", prediction)
    radius = check_distance("radius", radius, radius)
    increment = _risk_increments(y, prediction, directions, radius, loss).min()
    if truth is None:
        return LocalConvexity(float(increment) / radius**2, None, radius)
    distance = np.mean((prediction - check_vector("truth", truth)) ** 2)
    return LocalConvexity(float(increment) / radius**2, float(increment + distance) / radius**2, radius)


def upper_quadratic_constant(
    y: ArrayLike, truth: ArrayLike, directions: ArrayLike, *, radius: float, loss: Loss | None = None
) -> float:
    """Estimate C in E(f) - E(f*) <= C |f - f*|^2, with which `thm3` bounds the excess risk too (remark after `cor3`).

        C = max of (E(f* + t g) - E(f*)) / t^2   over g and t = +-radius

    For the check loss C is at most c1 / 2, half the largest density. Under the hinge loss the excess risk grows like
    the distance itself, so that the answer grows like 1 / radius and there is no C. Parameters are those of
    `local_convexity`, with truth = f*.
    """
    y, truth = check_vector("y", y), check_vector("truth", truth)
    radius = check_distance("radius", radius, radius)
    return float(_risk_increments(y, truth, directions, radius, loss).max()) / radius**2


def _risk_increments(y: Array, center: Array, directions: ArrayLike, radius: float, loss: Loss | None) -> Array:
    """E(center + t g) - E(center) for each direction g, scaled to norm 1, and t = +-radius: shape (2, k)."""
    loss = Pinball(np.array([0.5])) if loss is None else loss
    G = np.asarray(directions, dtype=float)
    if G.ndim != 2 or len(G) != len(y) or center.shape != y.shape:
        raise ValueError(
            f"prediction must have shape ({len(y)},) and directions ({len(y)}, k); got {center.shape}, {G.shape}."
        )
    size = np.sqrt(np.mean(G**2, axis=0))
    if not np.all(size > 0):
        raise ValueError("Every direction must be different from 0 at some row; leave out zero columns.")
    offset, sign = loss.margin_transform(y[:, None])

    def values(f: Array) -> Array:
        return loss.value(offset - sign * f[:, None])

    start = values(center)
    return np.array([[np.mean(values(center + t * g) - start) for g in (G / size).T] for t in (radius, -radius)])
