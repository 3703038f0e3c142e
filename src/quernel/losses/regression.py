"""Regression losses: convex functions of the residual r = y - f, first of all the pinball loss of quantile regression.

Each docstring names the functional of the conditional distribution of y that the loss estimates, where it has a name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import xlog1py

from quernel.losses.base import Parameter, Piecewise, Smooth, monotone_root

Array = NDArray[np.floating]


@dataclass(frozen=True, eq=False)
class Pinball(Piecewise):
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
    def domain(self) -> tuple[Array, Array]:
        """The box [tau - 1, tau]."""
        return self.levels - 1, self.levels

    def middle_levels(self) -> Array:
        """The median of the levels, or the two middle ones: symmetric under tau -> 1 - tau."""
        ordered = np.sort(self.levels)
        return np.unique(ordered[[(len(ordered) - 1) // 2, len(ordered) // 2]])

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


@dataclass(frozen=True, eq=False)
class Absolute(Piecewise):
    """Absolute loss |r|, of least absolute deviations: the conditional median. Twice the pinball loss at 0.5."""

    ends: ClassVar[tuple[float, float]] = (-1.0, 1.0)

    def value(self, residual: Array) -> Array:
        """|r|."""
        return np.abs(residual)

    def fit_constant(self, target: Array, share: Array) -> Array:
        """The weighted median, shape (q,)."""
        return weighted_quantiles(target, share, np.full(self.n_columns, 0.5))


@dataclass(frozen=True, eq=False)
class EpsilonInsensitive(Piecewise):
    """Epsilon-insensitive loss  max(|r| - epsilon, 0),  of support vector regression.

    Parameters
    ----------
    epsilon : float or array-like of shape (q,), default=0.1
        Residuals up to this size cost nothing; in the units of y.
    """

    ends: ClassVar[tuple[float, float]] = (-1.0, 1.0)
    length_parameter: ClassVar[str] = "epsilon"
    relative_length: ClassVar[float] = 0.1
    ranges: ClassVar[dict[str, str]] = {"epsilon": "0 or more"}
    epsilon: Parameter = 0.1

    def value(self, residual: Array) -> Array:
        """max(|r| - epsilon, 0)."""
        return np.maximum(np.abs(residual) - self.epsilon, 0)

    @property
    def tube(self) -> Array:
        """epsilon: the insensitive zone."""
        return self.epsilon

    def fit_constant(self, target: Array, share: Array) -> Array:
        """The weighted median of all y - epsilon and y + epsilon, shape (q,).

        Because  max(|r| - epsilon, 0) = (|r - epsilon| + |r + epsilon|) / 2 - epsilon.  Between those, the slope is
        that of the rows outside the tube alone: a row inside, however heavy, takes no digits from it.
        """
        return np.array([_tube_constant(target, share, epsilon) for epsilon in self.epsilon])


def _tube_constant(target: Array, share: Array, epsilon: float) -> float:
    """The constant b with the smallest  sum_i share_i max(|y_i - b| - epsilon, 0);  the middle of several."""
    knots = np.unique(np.concatenate([target - epsilon, target + epsilon]))
    first, last = 0, len(knots) - 1
    while first < last:
        middle = (first + last) // 2
        low, high = knots[middle], knots[middle + 1]
        up, down = share[target + epsilon <= low].sum(), share[target - epsilon >= high].sum()
        if abs(up - down) <= SUM_ROUNDING * (up + down):
            return float((low + high) / 2)
        first, last = (first, middle) if up > down else (middle + 1, last)
    return float(knots[first])


@dataclass(frozen=True, eq=False)
class Huber(Piecewise):
    """Huber loss: r^2 / 2 for |r| up to the threshold, and a line beyond it.

    Parameters
    ----------
    threshold : float or array-like of shape (q,), default=1.0
        The residual, in the units of y, from which on the influence of a row no longer grows.
    """

    inverse_curvature: ClassVar[float] = 1.0  # the slope is r
    length_parameter: ClassVar[str] = "threshold"
    # The usual 1.35 standard deviations of the noise, if a fit explains six sevenths of the variance.
    relative_length: ClassVar[float] = 0.5
    ranges: ClassVar[dict[str, str]] = {"threshold": "positive"}
    threshold: Parameter = 1.0

    def value(self, residual: Array) -> Array:
        """r^2 / 2  where |r| <= threshold, else  threshold |r| - threshold^2 / 2."""
        clipped = np.minimum(np.abs(residual), self.threshold)
        return clipped * (np.abs(residual) - clipped / 2)

    @property
    def domain(self) -> tuple[Array, Array]:
        """[-threshold, threshold]."""
        return -self.threshold, self.threshold


@dataclass(frozen=True, eq=False)
class SmoothedPinball(Piecewise):
    """The pinball loss with its kink smoothed: its Moreau envelope, a "quantile Huber" loss.

    Parameters
    ----------
    width : float or array-like of shape (q,), default=0.1
        Length of the parabola around 0, in the units of y; the pinball loss is the limit 0.
    levels : float or array-like of shape (q,), default=0.5
        Quantile levels, strictly between 0 and 1.
    """

    length_parameter: ClassVar[str] = "width"
    relative_length: ClassVar[float] = 0.1
    ranges: ClassVar[dict[str, str]] = {"width": "positive", "levels": "strictly between 0 and 1"}
    width: Parameter = 0.1
    levels: Parameter = 0.5

    def value(self, residual: Array) -> Array:
        """v r - width v^2 / 2  at  v = clip(r / width, tau - 1, tau)."""
        slope = np.clip(residual / self.width, *self.domain)
        return slope * residual - self.width * slope**2 / 2

    @property
    def domain(self) -> tuple[Array, Array]:
        """The box [tau - 1, tau]."""
        return self.levels - 1, self.levels

    @property
    def inverse_curvatures(self) -> tuple[Array, Array]:
        """The width: the slope r / width rises by 1 over it."""
        return self.width, self.width


@dataclass(frozen=True, eq=False)
class Expectile(Piecewise):
    """Asymmetric squared loss  |tau - 1{r < 0}| r^2:  the expectile at level tau (Newey and Powell, 1987).

    Parameters
    ----------
    level : float or array-like of shape (q,), default=0.5
        The expectile level tau, strictly between 0 and 1; 0.5 gives the mean.
    """

    ends: ClassVar[tuple[float, float]] = (-np.inf, np.inf)
    ranges: ClassVar[dict[str, str]] = {"level": "strictly between 0 and 1"}
    level: Parameter = 0.5

    def value(self, residual: Array) -> Array:
        """tau r^2  above the fit,  (1 - tau) r^2  below it."""
        return np.where(residual < 0, 1 - self.level, self.level) * residual**2

    @property
    def inverse_curvatures(self) -> tuple[Array, Array]:
        """1 / (2 (1 - tau)) and 1 / (2 tau)."""
        return 1 / (2 * (1 - self.level)), 1 / (2 * self.level)


@dataclass(frozen=True, eq=False)
class Squared(Piecewise):
    """Squared loss r^2, of kernel ridge regression: the conditional mean."""

    ends: ClassVar[tuple[float, float]] = (-np.inf, np.inf)
    inverse_curvature: ClassVar[float] = 0.5  # the slope is 2 r

    def value(self, residual: Array) -> Array:
        """r^2."""
        return residual**2

    def fit_constant(self, target: Array, share: Array) -> Array:
        """The weighted mean, shape (q,), which rounding does not take beyond the targets: exact if all are equal."""
        mean = share @ target / share.sum()
        return np.full(self.n_columns, np.clip(mean, target.min(axis=0), target.max(axis=0)))


@dataclass(frozen=True, eq=False)
class LogCosh(Smooth):
    """Log-cosh loss  scale^2 log cosh(r / scale):  a Huber loss with derivatives of all orders.

    About r^2 / 2 near 0, and close to lines of slope +-scale far from 0.

    Parameters
    ----------
    scale : float or array-like of shape (q,), default=1.0
        Where the one turns into the other, in the units of y.
    """

    length_parameter: ClassVar[str] = "scale"
    relative_length: ClassVar[float] = 0.5
    ranges: ClassVar[dict[str, str]] = {"scale": "positive"}
    inverse_curvature: ClassVar[float] = 1.0
    scale: Parameter = 1.0

    def value(self, residual: Array) -> Array:
        """scale^2 log cosh(x),  x = |r| / scale.

        cosh x = 1 + 2 sinh(x/2)^2  keeps the digits of small x;  log cosh x = x + log(1 + exp(-2x)) - log 2  does not
        overflow for large x.
        """
        x = np.abs(residual / self.scale)
        small = np.log1p(2 * np.sinh(np.minimum(x, 1) / 2) ** 2)
        return self.scale**2 * np.where(x < 1, small, x + np.log1p(np.exp(-2 * x)) - np.log(2))

    def slope(self, residual: Array) -> Array:
        """scale tanh(r / scale)."""
        return self.scale * np.tanh(residual / self.scale)

    def second_derivative(self, residual: Array) -> Array:
        """1 / cosh(r / scale)^2, clipped before cosh overflows."""
        return 1 / np.cosh(np.clip(residual / self.scale, -300, 300)) ** 2

    @property
    def domain(self) -> tuple[Array, Array]:
        """[-scale, scale]."""
        return -self.scale, self.scale

    def conjugate(self, dual: Array) -> Array:
        """scale^2 ((1 + u) log(1 + u) + (1 - u) log(1 - u)) / 2  with u = v / scale."""
        u = dual / self.scale
        inside = np.clip(u, -1, 1)
        entropy = (xlog1py(1 + inside, inside) + xlog1py(1 - inside, -inside)) / 2
        square = inside * inside  # near 0 the two terms cancel, and the series does not
        series = square * (1 / 2 + square * (1 / 12 + square * (1 / 30 + square / 56)))
        entropy = np.where(np.abs(inside) < 0.01, series, entropy)
        return np.where(np.abs(u) <= 1, self.scale**2 * entropy, np.inf)

    def inverse_subgradient(self, dual: Array) -> Array:
        """scale artanh(v / scale), with v kept off +-scale so that the result is finite."""
        below_one = 1 - np.finfo(float).epsneg
        return self.scale * np.arctanh(np.clip(dual / self.scale, -below_one, below_one))


@dataclass(frozen=True, eq=False)
class GeneralizedPareto(Smooth):
    """Likelihood of the log scale of a generalised Pareto law:  (1 + 1/shape) log(1 + shape e^r) - r,  at least 0.

    For exceedances z > 0 of a threshold take y = log z: the fit f(x) is then the logarithm of the scale, since
    z / scale = e^r, and the loss is the negative log-likelihood up to a term without f. It is convex in f, and its
    slope lies between -1 and 1 / shape. For a shape of 0 (the exponential law) or less (a law with an upper end) the
    likelihood is not Lipschitz, or even infinite: from where its slope reaches `steepest` the loss goes on as a line,
    so that a value close to the upper end, or beyond it, has a bounded influence.

    Parameters
    ----------
    shape : float or array-like of shape (q,), default=0.1
        The tail index xi: positive for heavy tails, 0 for exponential ones, negative for bounded ones; above -1.
    """

    steepest: ClassVar[float] = 20.0
    ranges: ClassVar[dict[str, str]] = {"shape": "above -1"}
    shape: Parameter = 0.1

    def value(self, residual: Array) -> Array:
        """(1 + 1/shape) log((1 + shape e^r) / (1 + shape)) - r,  and a line from `_knot` on."""
        r = np.minimum(residual, self._knot)
        part = self.shape / (1 + self.shape)
        growth = np.expm1(r)
        # log(1 + part growth) / part tends to growth where the shape is 0.
        log = np.where(part == 0, growth, np.log1p(part * growth) / np.where(part == 0, 1.0, part))
        return log - r + self.domain[1] * (residual - r)

    def slope(self, residual: Array) -> Array:
        """(e^r - 1) / (1 + shape e^r),  at most the upper end of the domain."""
        r = np.minimum(residual, self._knot)
        return np.minimum(np.expm1(r) / (1 + self.shape * np.exp(r)), self.domain[1])

    def second_derivative(self, residual: Array) -> Array:
        """(1 + shape) e^r / (1 + shape e^r)^2,  and 0 from the knot on."""
        t = np.exp(np.minimum(residual, self._knot))
        return np.where(residual < self._knot, (1 + self.shape) * t / (1 + self.shape * t) ** 2, 0.0)

    def dual(self, residual: Array, anchor: Array, width: Array | float) -> Array:
        """The slope at the proximal point z, as (r - z) / width + anchor where z is known better than its slope."""
        z = self._proximal_point(residual, anchor, width)
        steep = width * self.second_derivative(z) > 1
        step = np.divide(residual - z, width, out=np.zeros_like(z), where=steep) + anchor
        return np.where(steep, np.clip(step, *self.domain), self.slope(z))

    def _proximal_point(self, residual: Array, anchor: Array, width: Array | float) -> Array:
        """As in the base class, from a closer start.

        z and width slope(z) have one sign, that of goal: so z is nearer to 0 than goal is, and than the point whose
        slope is goal / width. At one of the two, less than half of the sum is missing.
        """
        if not np.any(width):
            return residual
        goal, zero = residual + width * anchor, np.zeros_like(residual)
        knot, (low, high) = self._knot, self.domain
        inner = self.inverse_subgradient(np.clip(goal / np.maximum(width, 1e-100), low, high))
        rounding = np.finfo(float).eps * np.abs(goal)
        far = np.where(goal > 0, np.minimum(goal, np.minimum(inner, knot)), np.maximum(goal, inner))

        def equation(z: Array) -> tuple[Array, Array]:
            t = np.exp(z)
            below = 1 + self.shape * t
            value = z + width * np.expm1(z) / below - goal
            value[np.abs(value) <= rounding] = 0.0  # a root, as far as numbers go
            return value, 1 + width * (1 + self.shape) * t / below**2

        z = monotone_root(equation, np.minimum(far, zero), np.maximum(far, zero), far)
        return np.maximum(z, goal - width * high)  # on the line beyond the knot

    @property
    def domain(self) -> tuple[Array, Array]:
        """[-1, 1 / shape], and no more than `steepest`."""
        return np.full(self.n_columns, -1.0), 1 / np.maximum(self.shape, 1 / self.steepest)

    @property
    def _knot(self) -> Array:
        """Where the slope reaches `steepest`, (q,); far to the right where it never does, before e^r overflows."""
        cut = self.shape * self.steepest < 1
        return np.where(cut, self.inverse_subgradient(np.where(cut, self.steepest, 0.0)), 300.0)

    @property
    def segments(self) -> tuple[Array, Array]:
        """Curved up to the knot, a line from there on."""
        return self._knot[:, None], np.column_stack([np.full(self.n_columns, np.nan), self.domain[1]])

    @property
    def smoothing_width(self) -> Array:
        """1 / loss'' at its largest: where e^r = 1 / shape, or at the knot if that comes first."""
        t = np.minimum(1 / np.maximum(self.shape, np.exp(-300.0)), np.exp(self._knot))
        return (1 + self.shape * t) ** 2 / ((1 + self.shape) * t)

    def conjugate(self, dual: Array) -> Array:
        """(1 + v) log(1 + v) + (1 - shape v) log(1 - shape v) / shape."""
        low, high = self.domain
        v, zero = np.clip(dual, low, high), self.shape == 0
        rest = np.maximum(1 - self.shape * v, 0.0)
        second = np.where(zero, -v, xlog1py(rest, np.maximum(-self.shape * v, -1.0)) / np.where(zero, 1.0, self.shape))
        return np.where((dual >= low) & (dual <= high), xlog1py(1 + v, v) + second, np.inf)

    def inverse_subgradient(self, dual: Array) -> Array:
        """log((1 + v) / (1 - shape v)), with v kept off the ends so that the result is finite."""
        below_one = 1 - np.finfo(float).epsneg
        return np.log1p(np.maximum(dual, -below_one)) - np.log1p(np.maximum(-self.shape * dual, -below_one))


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
