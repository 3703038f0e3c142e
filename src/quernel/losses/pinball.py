"""The check loss, and weighted quantiles."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quernel.losses.base import Loss, Parameter

Array = NDArray[np.floating]


@dataclass(frozen=True, eq=False)
class Pinball(Loss):
    """The check loss  rho(r) = r (level - 1{r < 0}),  one level per column."""

    levels: Parameter = 0.5

    def __post_init__(self) -> None:
        levels = np.atleast_1d(np.asarray(self.levels, dtype=float))
        if levels.ndim != 1 or not np.all((levels > 0) & (levels < 1)):
            raise ValueError(f"Quantile levels must lie strictly between 0 and 1; got {self.levels!r}.")
        super().__post_init__()

    @property
    def smoothing_width(self) -> Array:
        """0: there is a kink."""
        return np.zeros(self.n_columns)

    @property
    def domain(self) -> tuple[Array, Array]:
        """The box [level - 1, level]."""
        return self.levels - 1, self.levels

    def value(self, residual: Array) -> Array:
        """max(level r, (level - 1) r)."""
        return np.maximum(self.levels * residual, (self.levels - 1) * residual)

    def slope(self, residual: Array) -> Array:
        """level where r > 0, level - 1 where r < 0, and 0 at the kink."""
        return np.where(residual > 0, self.levels, np.where(residual < 0, self.levels - 1, 0.0))

    def dual(self, residual: Array, anchor: Array, width: Array | float) -> Array:
        """clip(r / width + anchor, level - 1, level)."""
        return self.smooth(residual, anchor, width)[0]

    def curvature(self, residual: Array, anchor: Array, width: Array | float) -> Array:
        """1 / width on the rows that are not clipped, else 0."""
        return self.smooth(residual, anchor, width)[1]

    def smooth(self, residual: Array, anchor: Array, width: Array | float) -> tuple[Array, Array]:
        """Dual and curvature."""
        low, high = self.domain
        line = residual / width
        line += anchor
        dual = np.maximum(line, low)
        np.minimum(dual, high, out=dual)
        inside = line > low  # strictly: an anchor at the end of the box is clipped
        inside &= line < high
        return dual, np.multiply(inside, 1 / np.asarray(width))

    def prox(self, residual: Array, width: Array | float) -> Array:
        """r minus what clip(r, width (level - 1), width level) takes from it."""
        low, high = self.domain
        return residual - np.clip(residual, width * low, width * high)

    def inverse_subgradient(self, dual: Array) -> Array:
        """0: every v of the box is a slope at the kink."""
        return np.zeros_like(dual)

    def conjugate(self, dual: Array) -> Array:
        """0 in the box, infinite outside."""
        low, high = self.domain
        outside = (dual < low) | (dual > high)
        conjugate = np.zeros_like(dual)
        if outside.any():
            conjugate[outside] = np.inf
        return conjugate

    @property
    def segments(self) -> tuple[Array, Array]:
        """level - 1 before 0, level after it."""
        return np.zeros((self.n_columns, 1)), np.column_stack(self.domain)

    def distance_to_knot(self, residual: Array) -> Array:
        """|r|."""
        return np.abs(residual)

    def fit_constant(self, target: Array, share: Array) -> Array:
        """The weighted quantile at each level; the middle where a whole interval is optimal."""
        if target.ndim == 2:  # a column of its own for each level
            own = zip(target.T, self.levels, strict=True)
            return np.array([weighted_quantiles(column, share, np.array([level]))[0] for column, level in own])
        return weighted_quantiles(target, share, self.levels)


# Sums of many shares are known to this, relative to the level they should reach.
SUM_ROUNDING = 1e-11
# Of many values only some are sorted to find those at a few levels: a sample of this size tells, up to so many of its
# standard errors, between which of its values they lie.
MANY, FEW, SAMPLE, SAFE = 100_000, 4, 2**14, 5


def weighted_quantiles(values: Array, share: Array, levels: Array) -> Array:
    """For each level, where the cumulated share passes it: the middle, where it is met exactly between two values."""
    if np.all(share == share[0]):  # equal weights: no need to sort all values
        n = len(values)
        below = np.ceil(levels * n * (1 - SUM_ROUNDING)).astype(int) - 1
        above = np.floor(levels * n * (1 + SUM_ROUNDING)).astype(int)
        places = np.clip([below, above], 0, n - 1)
        if n < MANY or len(levels) > FEW:
            return np.partition(values, np.unique(places))[places].mean(axis=0)
        return np.array([_ordered(values, pair).mean() for pair in places.T])
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(share[order])
    goal = levels * reached[-1]
    places = np.searchsorted(reached, [goal * (1 - SUM_ROUNDING), goal * (1 + SUM_ROUNDING)])
    return values[order[np.minimum(places, len(values) - 1)]].mean(axis=0)


def _ordered(values: Array, places: NDArray[np.intp]) -> Array:
    """np.sort(values)[places] for places next to each other: few values lie between those of a sample around them."""
    n, some = len(values), np.sort(values[:: len(values) // SAMPLE])
    share = places[0] / n
    margin = SAFE * np.sqrt(len(some) * share * (1 - share)) + SAFE
    first, last = int(len(some) * share - margin), int(len(some) * share + margin)
    before = values < some[first] if first > 0 else np.zeros(n, dtype=bool)
    between = ~before & (values <= some[last]) if last < len(some) else ~before
    within, rest = places - np.count_nonzero(before), values[between]
    if within[0] < 0 or within[-1] >= len(rest):  # the sample was not like the others
        within, rest = places, values
    return np.partition(rest, within)[within]
