"""Conditions on noise and loss: adaptive self-calibration (`ass6`) and local strong convexity of the risk (`ass7`).

The first is about the density of y given x near a quantile; its consequence is `lemA.2.4`. The second is for any loss,
with its upper counterpart (remark after `cor3`).

Estimates from a sample are diagnostics, not proofs: no sample shows that an inequality holds in every direction and at
every distance, however small, so that increments are taken in the directions and over the distance that are stated.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quernel.losses import Loss, Pinball

Array = NDArray[np.floating]

# Fewest rows per group.
MIN_GROUP = 50


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
