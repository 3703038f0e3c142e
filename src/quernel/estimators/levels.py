"""Between quantile levels: rearrangement, interpolation, and what estimators of distributions have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import boxcox, inv_boxcox, ndtr, ndtri
from sklearn.utils.validation import check_is_fitted

from quernel._validation import check_positive, check_share
from quernel.estimators.inputs import check_lengths, check_levels, check_target
from quernel.estimators.prediction import as_frame_like, blockwise, check_rows, check_scored, level_names
from quernel.kernels.base import Seed, as_generator
from quernel.losses import Pinball
from quernel.metrics import crps

Array = NDArray[np.floating]

# Levels closer than this differ by rounding error only.
SAME = 1e-12
# Levels over which `crps` integrates: closer together in the tails.
CRPS_LEVELS = np.r_[0.0005, 0.001, 0.002, 0.005, np.arange(1, 100) / 100, 0.995, 0.998, 0.999, 0.9995]
# Smallest probability of a tail that samples reach: that of the smallest uniform random number is 0.
TINY = 1e-16


def rearrange(curves: Array, levels: Array, failed: NDArray[np.bool_] | None = None) -> Array:
    """Sort each row's quantiles into the order of the levels: the rearrangement of the estimated quantile curve.

    It removes crossing and is never farther from the true quantiles (Chernozhukov, Fernandez-Val and Galichon 2010).
    Levels that `failed` (q,) to converge must not move the others: those are sorted among themselves, and quantiles of
    failed levels are moved between the neighbours that did not fail.
    """
    order = np.argsort(levels)
    spoiled = np.zeros(len(order), dtype=bool) if failed is None else failed[order]
    ascending, kept = curves[:, order], np.flatnonzero(~spoiled)
    if len(kept) in (0, len(order)):
        ascending = np.sort(ascending, axis=1)
    else:
        for part in (~spoiled, spoiled):
            ascending[:, part] = np.sort(ascending[:, part], axis=1)
        for k, (below, above) in neighbours(spoiled).items():
            low = -np.inf if below is None else ascending[:, below]
            ascending[:, k] = np.minimum(
                np.maximum(ascending[:, k], low), np.inf if above is None else ascending[:, above]
            )
    sorted_curves = np.empty_like(curves)
    sorted_curves[:, order] = ascending
    return sorted_curves


def neighbours(failed: NDArray[np.bool_]) -> dict[int, tuple[int | None, int | None]]:
    """Of every failed one of ascending levels, the next lower and the next higher one that did not fail, if any."""
    kept = np.flatnonzero(~failed).tolist()
    return {
        k: (max((one for one in kept if one < k), default=None), min((one for one in kept if one > k), default=None))
        for k in np.flatnonzero(failed).tolist()
    }


@dataclass(frozen=True, eq=False)
class ParetoLaw:
    """Generalised Pareto law of what exceeds a quantile, one per row; below the quantile for the lower tail.

    P(sign (Y - quantile) > z) = mass (1 + shape z / scale)^(-1 / shape), and mass exp(-z / scale) for a shape of 0.
    """

    sign: float  # +1 for the upper tail, -1 for the lower one
    mass: float  # probability beyond the quantile
    scale: Array  # (n,), positive
    shape: float  # below 1, so that the mean exists

    def distance(self, beyond: Array) -> Array:
        """How far from the quantile is exceeded with probabilities (n, k) or (k,) of at most `mass`; shape (n, k)."""
        return self.scale[:, None] * boxcox(self.mass / beyond, self.shape)

    def beyond(self, distance: Array) -> Array:
        """Probability (n,) of more than these distances (n,), which are 0 or more, from the quantile."""
        base = np.maximum(inv_boxcox(distance / self.scale, self.shape), 1.0)  # NaN beyond the end of a bounded tail
        return np.where(np.isnan(base), 0.0, self.mass / base)

    def mean_distance(self, beyond: float) -> Array:
        """Mean distance (n,) from the quantile among those exceeded with at most this probability."""
        return (self.distance(np.array([beyond]))[:, 0] + self.scale) / (1 - self.shape)


@dataclass(frozen=True, eq=False)
class QuantileFunction:
    """Conditional distribution of each row, interpolated between its quantiles at the fitted levels.

    Between two fitted levels the quantile is linear in the normal score ndtri(level), which is exact for a normal
    distribution and monotone for any. Beyond the outermost levels the tails go on, where there are such; otherwise
    nothing is known there: `at` raises ValueError, while `cdf` and `sample` put the remaining probability on the
    outermost quantiles.
    """

    levels: Array  # (q,), ascending
    curves: Array  # (n, q), quantiles of each row, non-decreasing along axis 1
    lower: ParetoLaw | None = None  # of what is below the first curve
    upper: ParetoLaw | None = None  # of what is above the last curve

    def at(self, wanted: Array) -> Array:
        """Quantiles at other levels, shape (n, len(wanted))."""
        low, high = self.levels[0], self.levels[-1]
        # In floating point, 1 - 0.95 or 0.1 * 3 is not exactly the level 0.05 or 0.3 that was fitted.
        nearest = self.levels[np.argmin(np.abs(self.levels - wanted[:, None]), axis=1)]
        wanted = np.where(np.abs(wanted - nearest) <= SAME, nearest, wanted)
        outside = wanted[((wanted < low) & (self.lower is None)) | ((wanted > high) & (self.upper is None))]
        if len(outside):
            raise ValueError(
                f"Level {outside[0]:g} is outside the fitted range [{low:g}, {high:g}], and quernel does not "
                "extrapolate. Fit with levels that enclose it, or with tails='pareto'."
            )
        return self.clipped_at(wanted)

    def clipped_at(self, wanted: Array) -> Array:
        """As `at`, but beyond the outermost levels, where there is no tail, the outermost quantiles."""
        return self._quantiles(np.broadcast_to(wanted, (len(self.curves), len(wanted))))

    def cdf(self, y: Array) -> Array:
        """P(Y <= y) of each row, shape (n,): 0 below its lowest quantile, 1 from its highest on, but for the tails."""
        n, q = self.curves.shape
        # right: number of quantiles <= y; inner: index of the upper end of the interval of levels to interpolate in.
        right = np.sum(self.curves <= y[:, None], axis=1)
        inner = np.clip(right, 1, q - 1) if q > 1 else np.zeros(n, dtype=int)
        rows = np.arange(n)
        left_value, right_value = self.curves[rows, inner - 1], self.curves[rows, inner]
        gap = right_value - left_value
        part = np.divide(y - left_value, gap, out=np.ones(n), where=gap > 0)
        scores = ndtri(self.levels)
        between = ndtr(scores[inner - 1] + np.clip(part, 0, 1) * (scores[inner] - scores[inner - 1]))
        below = 0.0 if self.lower is None else self.lower.beyond(np.maximum(self.curves[:, 0] - y, 0.0))
        above = 1.0 if self.upper is None else 1 - self.upper.beyond(np.maximum(y - self.curves[:, -1], 0.0))
        return np.where(right == 0, below, np.where(right == q, above, between))

    def sample(self, n_samples: int, rng: np.random.Generator) -> Array:
        """Independent draws for each row, shape (n, n_samples), by inversion of uniform levels."""
        return self._quantiles(rng.random((len(self.curves), n_samples)))

    def mean_beyond(self, level: float) -> Array:
        """Mean (n,) of what is above the quantile at a level of 0.5 or more, or below it at a smaller level."""
        tail = self.upper if level >= 0.5 else self.lower
        if tail is None:
            raise ValueError(
                f"The mean beyond the quantile at {level:g} needs a tail, and none was fitted on that side."
            )
        curve, mass = self.curves[:, -1 if level >= 0.5 else 0], 1 - level if level >= 0.5 else level
        far = curve + tail.sign * tail.mean_distance(min(mass, tail.mass))
        if mass <= tail.mass + SAME:
            return far
        # Between two levels a quantile is a + b ndtri(t), whose integral is a t - b pdf(ndtri(t)).
        start = float(self.levels[-1 if level >= 0.5 else 0])
        t = np.unique(np.clip(np.r_[level, self.levels], min(level, start), max(level, start)))
        values, scores = self.at(t), ndtri(t)
        b = np.diff(values, axis=1) / np.diff(scores)
        density = np.exp(-(scores**2) / 2) / np.sqrt(2 * np.pi)
        integral = values[:, :-1] @ np.diff(t) - b @ (np.diff(density) + scores[:-1] * np.diff(t))
        return (integral + tail.mass * far) / mass

    def _quantiles(self, wanted: Array) -> Array:
        """Quantiles at levels of shape (n, k): in the tails where there are such, on the outermost curves otherwise."""
        low, high = self.levels[0], self.levels[-1]
        quantiles = self._between(np.clip(wanted, low, high))
        if self.lower is not None and np.any(wanted < low):
            quantiles -= self.lower.distance(np.clip(wanted, TINY, self.lower.mass))
        if self.upper is not None and np.any(wanted > high):
            quantiles += self.upper.distance(np.clip(1 - wanted, TINY, self.upper.mass))
        return quantiles

    def _between(self, wanted: Array) -> Array:
        """Quantiles at levels of shape (n, k), all within the fitted range: linear in the normal score."""
        if len(self.levels) == 1:
            return np.repeat(self.curves, wanted.shape[1], axis=1)
        right = np.clip(np.searchsorted(self.levels, wanted), 1, len(self.levels) - 1)
        scores, rows = ndtri(self.levels), np.arange(len(self.curves))[:, None]
        part = (ndtri(wanted) - scores[right - 1]) / (scores[right] - scores[right - 1])
        low, high = self.curves[rows, right - 1], self.curves[rows, right]
        # Equal ends must be returned exactly, without the rounding error of the interpolation.
        return np.where(low == high, low, (1 - part) * low + part * high)


class DistributionMixin:
    """What follows from `quantiles_`, the quantiles `_curves(X)` and the quantile functions `_distribution(X)`."""

    quantiles_: Array
    _single: bool

    @blockwise
    def predict(self, X: Any, quantiles: float | ArrayLike | None = None, *, as_frame: bool = False) -> Any:
        """Predict conditional quantiles.

        Parameters
        ----------
        X : array-like of shape (n, d)
            Or an object of `quernel.data`, which is read block by block, or a Dask collection, whose predictions are a
            lazy Dask array.
        quantiles : float, sequence of floats or None
            Levels to predict; None predicts those of the constructor. `TabularQuantileRegressor` predicts any level;
            without tails, a level below 0.0005 is treated as 0.0005, and one above 0.9995 as 0.9995. Other estimators
            predict levels between the lowest and the highest fitted one, and beyond them with tails: interpolated
            between the fitted quantiles (sorted, whatever `noncrossing` is), linearly in the normal score of the level.
        as_frame : bool, default=False
            Whether to return a data frame like X, with its index and the columns ``q0.05``, ``q0.5``, ...

        Returns
        -------
        ndarray of shape (n,) for one level given as a float, (n, q) for a sequence
        """
        check_is_fitted(self)
        wanted, single = (None, self._single) if quantiles is None else check_levels(quantiles)
        rows = check_rows(self, X)
        curves = self._curves(rows) if wanted is None else self._quantiles_at(rows, wanted)
        if as_frame:
            return as_frame_like(X, curves, level_names(self.quantiles_ if wanted is None else wanted))
        return curves[:, 0] if single else curves

    @blockwise
    def predict_interval(self, X: Any, coverage: float = 0.9, *, as_frame: bool = False) -> Any:
        """Predict the central interval between the quantiles (1 - coverage) / 2 and (1 + coverage) / 2.

        Parameters
        ----------
        X : array-like of shape (n, d), or as in `predict`
        coverage : float, default=0.9
            Nominal coverage, for levels that `predict` can predict. `quernel.ConformalQuantileRegressor` calibrates it.
        as_frame : bool, default=False
            Whether to return a data frame like X, with its index and the columns ``lower`` and ``upper``.

        Returns
        -------
        ndarray of shape (n, 2), lower and upper ends
        """
        check_is_fitted(self)
        check_share("coverage", coverage)
        self._check_coverage(coverage)
        tail = (1 - coverage) / 2
        bounds = self._quantiles_at(check_rows(self, X), np.array([tail, 1 - tail]))
        return as_frame_like(X, bounds, ["lower", "upper"]) if as_frame else bounds

    @blockwise
    def predict_cdf(self, X: Any, y: ArrayLike) -> Array:
        """Conditional distribution function P(Y <= y | x), shape (n,).

        Parameters
        ----------
        X : array-like of shape (n, d), or as in `predict`
        y : float or array-like of shape (n,)
            Where to evaluate it: one value for all rows, or one per row.

        Notes
        -----
        It is interpolated between quantiles, those of the fitted levels or, for `TabularQuantileRegressor`, of 105
        levels from 0.0005 to 0.9995. It is 0 below the lowest and 1 from the highest one on: the probability beyond the
        outermost levels, whose shape is unknown, is put on the outermost quantiles as point masses. With
        ``tails="pareto"`` it goes on in the tails instead.
        """
        check_is_fitted(self)
        X = check_rows(self, X)
        target = check_target(np.full(len(X), y) if np.ndim(y) == 0 else y)
        check_lengths(X, target)
        return self._distribution(X).cdf(target)

    def sample(self, X: Any, n: int = 1, rng: Seed = None) -> Array:
        """Draw n samples from each row's conditional distribution, shape (n_rows, n); tails as in `predict_cdf`."""
        check_is_fitted(self)
        check_positive("n", n, integer=True)
        return self._distribution(check_rows(self, X)).sample(n, as_generator(rng))

    def score(self, X: Any, y: Any, sample_weight: ArrayLike | None = None) -> float:
        """Mean D^2 over the levels `quantiles_`: 1 - (pinball loss of the model) / (pinball loss of the best constant).

        1 is a perfect fit, 0 no better than the unconditional quantiles; compare `sklearn.metrics.d2_pinball_score`.
        """
        check_is_fitted(self)
        X, y, weight = check_scored(self, X, y, sample_weight)
        return Pinball(self.quantiles_).d2_score(y, self._curves(X), weight)

    def crps(self, X: Any, y: Any, sample_weight: ArrayLike | None = None) -> float:
        """Continuous ranked probability score, in units of y; lower is better. Distributions as in `predict_cdf`."""
        check_is_fitted(self)
        X, y, weight = check_scored(self, X, y, sample_weight)
        return crps(y, self._distribution(X).clipped_at(CRPS_LEVELS), CRPS_LEVELS, sample_weight=weight)

    def _curves(self, X: Array) -> Array:
        """Quantiles of the rows at `quantiles_`, (n, q)."""
        raise NotImplementedError

    def _distribution(self, X: Array) -> QuantileFunction:
        """Conditional quantile functions of the rows."""
        raise NotImplementedError

    def _quantiles_at(self, X: Array, levels: Array) -> Array:
        """Quantiles of the rows at these levels, (n, q)."""
        return self._distribution(X).at(levels)

    def _check_coverage(self, coverage: float) -> None:
        """Raise ValueError if central intervals of this coverage cannot be predicted."""
