"""The pinball (check) loss of quantile regression, and weighted quantiles, which it fits as constants."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quernel.losses.base import Loss, Parameter

Array = NDArray[np.floating]


@dataclass(frozen=True, eq=False)
class Pinball(Loss):
    """The pinball loss  rho_tau(r) = r (tau - 1{r < 0}),  one quantile level tau per column.

    Its conjugate is the indicator function of the box [tau - 1, tau], so that the dual variables of quantile regression
    are box-constrained, and strictly inside the box only on rows that the fit interpolates (r = 0).

    Parameters
    ----------
    levels : float or array-like of shape (q,), default=0.5
        Quantile levels, strictly between 0 and 1.
    """

    levels: Parameter = 0.5

    def __post_init__(self) -> None:
        levels = np.atleast_1d(np.asarray(self.levels, dtype=float))
        if levels.ndim != 1 or not np.all((levels > 0) & (levels < 1)):
            raise ValueError(f"Quantile levels must lie strictly between 0 and 1; got {self.levels!r}.")
        super().__post_init__()

    @property
    def smoothing_width(self) -> Array:
        """0: the loss has a kink at 0."""
        return np.zeros(self.n_columns)

    @property
    def domain(self) -> tuple[Array, Array]:
        """The box [tau - 1, tau]."""
        return self.levels - 1, self.levels

    def value(self, residual: Array) -> Array:
        """max(tau r, (tau - 1) r)."""
        return np.maximum(self.levels * residual, (self.levels - 1) * residual)

    def slope(self, residual: Array) -> Array:
        """tau where r > 0, tau - 1 where r < 0, and 0 at the kink."""
        return np.where(residual > 0, self.levels, np.where(residual < 0, self.levels - 1, 0.0))

    def dual(self, residual: Array, anchor: Array, width: Array | float) -> Array:
        """clip(r / width + anchor, tau - 1, tau)."""
        return self.smooth(residual, anchor, width)[0]

    def curvature(self, residual: Array, anchor: Array, width: Array | float) -> Array:
        """1 / width on rows that are not clipped, else 0."""
        return self.smooth(residual, anchor, width)[1]

    def smooth(self, residual: Array, anchor: Array, width: Array | float) -> tuple[Array, Array]:
        """(`dual`, `curvature`) in one pass, with as few temporary arrays as possible: the solvers' inner loop."""
        low, high = self.domain
        unclipped = residual / width
        unclipped += anchor
        dual = np.maximum(unclipped, low)
        np.minimum(dual, high, out=dual)
        inside = unclipped > low  # strictly: an anchor at a bound of the box counts as clipped
        inside &= unclipped < high
        return dual, np.multiply(inside, 1 / np.asarray(width))

    def prox(self, residual: Array, width: Array | float) -> Array:
        """r - clip(r, width (tau - 1), width tau):  asymmetric soft thresholding."""
        low, high = self.domain
        return residual - np.clip(residual, width * low, width * high)

    def inverse_subgradient(self, dual: Array) -> Array:
        """0: every v of the box is a subgradient at the kink."""
        return np.zeros_like(dual)

    def conjugate(self, dual: Array) -> Array:
        """0 in the box, inf outside."""
        low, high = self.domain
        outside = (dual < low) | (dual > high)
        conjugate = np.zeros_like(dual)
        if outside.any():
            conjugate[outside] = np.inf
        return conjugate

    @property
    def segments(self) -> tuple[Array, Array]:
        """One knot at 0; slope tau - 1 before it and tau after it."""
        return np.zeros((self.n_columns, 1)), np.column_stack(self.domain)

    def distance_to_knot(self, residual: Array) -> Array:
        """|r|."""
        return np.abs(residual)

    def fit_constant(self, target: Array, share: Array) -> Array:
        """The weighted quantile at each level; the midpoint where a whole interval is optimal.

        Targets are of shape (n,), or (n, q) for one target per column.
        """
        if target.ndim == 2:
            columns = zip(target.T, self.levels, strict=True)
            return np.array([weighted_quantiles(column, share, np.array([level]))[0] for column, level in columns])
        return weighted_quantiles(target, share, self.levels)


# Relative rounding error of a cumulative sum of many weights: a level within it of a jump counts as meeting the jump.
SUM_ROUNDING = 1e-11


@dataclass(frozen=True)
class _SelectionOptions:
    """When and how order statistics are found by sampling splitters rather than by partitioning all values."""

    min_values: int = 100_000  # with fewer values, one partition is fast enough
    max_levels: int = 4  # every level takes passes of its own; with more of them, one partition serves all
    sample_size: int = 2**14  # values that are sorted to find the splitters: a larger sample leaves fewer candidates
    n_standard_errors: int = 5  # distance of the splitters from the level: larger makes a second attempt rarer


_SELECTION = _SelectionOptions()


def weighted_quantiles(values: Array, share: Array, levels: Array) -> Array:
    """Weighted quantiles of `values`, shape (len(levels),).

    The quantile at tau is the value at which the cumulative weight of the sorted values passes tau times the total.
    Where it meets that exactly, between two values, every point of the interval minimises the pinball loss, and the
    midpoint is returned.

    Parameters
    ----------
    values, share : arrays of shape (n,)
        Weights need not sum to one.
    levels : array of shape (q,), between 0 and 1
    """
    if np.all(share == share[0]):  # equal weights: order statistics, without sorting all values
        n = len(values)
        below = np.ceil(levels * n * (1 - SUM_ROUNDING)).astype(int) - 1
        above = np.floor(levels * n * (1 + SUM_ROUNDING)).astype(int)
        ranks = np.clip([below, above], 0, n - 1)
        if n < _SELECTION.min_values or len(levels) > _SELECTION.max_levels:
            return np.partition(values, np.unique(ranks))[ranks].mean(axis=0)
        return np.array([_select_ranks(values, pair).mean() for pair in ranks.T])
    order = np.argsort(values, kind="stable")
    cumulative = np.cumsum(share[order])
    goal = levels * cumulative[-1]
    ranks = np.searchsorted(cumulative, [goal * (1 - SUM_ROUNDING), goal * (1 + SUM_ROUNDING)])
    return values[order[np.minimum(ranks, len(values) - 1)]].mean(axis=0)


def _select_ranks(values: Array, ranks: NDArray[np.intp]) -> Array:
    """np.sort(values)[ranks] for neighbouring ranks, by sampling (the idea of Floyd and Rivest's SELECT, 1975).

    Two order statistics of a sorted sample, a few standard errors on either side of the wanted level, enclose the
    wanted values with high probability: only the few values between these splitters are partitioned. If the ranks turn
    out not to lie between them, all values are partitioned, so the result is exact in any case.
    """
    n, sample = len(values), np.sort(values[:: len(values) // _SELECTION.sample_size])
    level = ranks[0] / n
    # Standard error of a rank in the sample, by the binomial distribution.
    n_errors = _SELECTION.n_standard_errors
    margin = n_errors * np.sqrt(len(sample) * level * (1 - level)) + n_errors
    first, last = int(len(sample) * level - margin), int(len(sample) * level + margin)
    before = values < sample[first] if first > 0 else np.zeros(n, dtype=bool)
    between = ~before & (values <= sample[last]) if last < len(sample) else ~before
    remaining_ranks, candidates = ranks - np.count_nonzero(before), values[between]
    if remaining_ranks[0] < 0 or remaining_ranks[-1] >= len(candidates):  # the sample was not representative
        remaining_ranks, candidates = ranks, values
    return np.partition(candidates, remaining_ranks)[remaining_ranks]
