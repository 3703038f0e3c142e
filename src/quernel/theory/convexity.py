"""Local strong convexity of the risk (`ass7`) and its upper counterpart (remark after `cor3`), for any loss.

Diagnostics, not proofs: inequalities that should hold in every direction and at every small distance are evaluated in
the directions and at the distance that the caller gives.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quernel.losses import Loss, Pinball
from quernel.theory.noise_conditions import check_distance, check_vector

Array = NDArray[np.floating]


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
