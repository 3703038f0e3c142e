"""The constants of the assumptions on y given x, estimated from a sample: diagnostics, not proofs.

A sample cannot show that an inequality holds at every distance, however small; increments are looked at over a stated
distance, and directions are those that the caller gives.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quernel.losses import Loss, Pinball

Array = NDArray[np.floating]

# Fewest rows from which a group's distribution is read.
MIN_GROUP = 50


@dataclass(frozen=True)
class SelfCalibration:
    """`ass6`: the density of y given x is at most c1, and F(y + delta) - F(y) at least c2 |delta| near f*.

    c2_error is the standard error of the increment at which c2 was found; radius and step are the epsilon and epsilon'
    of the assumption. c2 = 0 says that some stretch near f* was empty: the condition is in doubt.
    """

    c1: float
    c2: float
    c2_error: float
    radius: float
    step: float


@dataclass(frozen=True)
class LocalConvexity:
    """`ass7`: the excess risk is at least c3 |f - f'|^2; with |f' - f*|^2 added, at least c4 |f - f'|^2.

    c4 is None where f* was not given. Negative values say that the inequality failed in some direction.
    """

    c3: float
    c4: float | None
    radius: float


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
    residual = _vector("residual", residual)
    labels = np.zeros(len(residual)) if groups is None else np.asarray(groups)
    if labels.shape != residual.shape:
        raise ValueError(f"groups must hold one label per residual, shape {residual.shape}; got {labels.shape}.")
    spread = float(np.subtract(*np.quantile(residual, [0.75, 0.25]))) / 5
    radius, step = _distance("radius", radius, spread), _distance("step", step, spread)
    dense, sparse, error = 0.0, np.inf, 0.0
    for label in np.unique(labels):
        values = np.sort(residual[labels == label])
        if len(values) < MIN_GROUP:
            raise ValueError(f"Group {label!r} has {len(values)} rows; at least {MIN_GROUP} are needed. Merge groups.")
        near = np.linspace(-radius, radius, 41)
        increment = np.concatenate([_share(values, near, step), _share(values, near - step, step)])
        if increment.min() / step < sparse:
            sparse = float(increment.min()) / step
            error = float(np.sqrt(increment.min() * (1 - increment.min()) / len(values))) / step
        dense = max(dense, float(_share(values, values, step).max()) / step)
    return SelfCalibration(dense, sparse, error, radius, step)


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
    y, prediction = _vector("y", y), _vector("prediction", prediction)
    loss = Pinball(np.array([0.5])) if loss is None else loss
    G = np.asarray(directions, dtype=float)
    if G.ndim != 2 or len(G) != len(y) or prediction.shape != y.shape:
        raise ValueError(
            f"prediction must have shape ({len(y)},) and directions ({len(y)}, k); got {prediction.shape}, {G.shape}."
        )
    size = np.sqrt(np.mean(G**2, axis=0))
    if not np.all(size > 0):
        raise ValueError("Every direction must be different from 0 at some row; leave out zero columns.")
    radius = _distance("radius", radius, radius)
    offset, sign = loss.frame(y[:, None])

    def values(f: Array) -> Array:
        return loss.value(offset - sign * f[:, None])

    gains = [np.mean(values(prediction + t * g) - values(prediction)) for g in (G / size).T for t in (radius, -radius)]
    c3 = float(np.min(gains)) / radius**2
    if truth is None:
        return LocalConvexity(c3, None, radius)
    distance = float(np.mean((prediction - _vector("truth", truth)) ** 2))
    return LocalConvexity(c3, float(np.min(gains) + distance) / radius**2, radius)


def _share(values: Array, start: Array, step: float) -> Array:
    """The share of the (sorted) values in (start, start + step]."""
    counts = np.searchsorted(values, start + step, side="right") - np.searchsorted(values, start, side="right")
    return counts / len(values)


def _vector(name: str, values: ArrayLike) -> Array:
    array = np.asarray(values, dtype=float)
    if array.ndim != 1 or len(array) < MIN_GROUP or not np.isfinite(array).all():
        raise ValueError(f"{name} must hold at least {MIN_GROUP} finite numbers in one axis; got shape {array.shape}.")
    return array


def _distance(name: str, value: float | None, default: float) -> float:
    distance = default if value is None else value
    if not 0 < distance < np.inf:
        raise ValueError(f"{name} must be positive and finite; got {distance!r}. Is the residual constant?")
    return float(distance)
