"""Between quantile levels: rearrangement, interpolation, and what estimators of distributions have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri
from sklearn.utils.validation import check_is_fitted

from quernel._validation import check_positive
from quernel.estimators.inputs import blockwise
from quernel.estimators.validation import check_lengths, check_rows, check_scored, check_target
from quernel.features.random import as_generator
from quernel.losses import Pinball

Array = NDArray[np.floating]

# Levels closer than this differ by rounding error only.
SAME = 1e-12


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
class QuantileFunction:
    """Conditional distribution of each row, interpolated between its quantiles at the fitted levels.

    Between two fitted levels the quantile is linear in the normal score ndtri(level), which is exact for a normal
    distribution and monotone for any. Nothing is known beyond the outermost levels: `at` raises ValueError there, while
    `cdf` and `sample` put the remaining probability on the outermost quantiles.
    """

    levels: Array  # (q,), ascending
    curves: Array  # (n, q), quantiles of each row, non-decreasing along axis 1

    def at(self, wanted: Array) -> Array:
        """Quantiles at other levels, shape (n, len(wanted))."""
        low, high = self.levels[0], self.levels[-1]
        # In floating point, 1 - 0.95 or 0.1 * 3 is not exactly the level 0.05 or 0.3 that was fitted.
        nearest = self.levels[np.argmin(np.abs(self.levels - wanted[:, None]), axis=1)]
        wanted = np.where(np.abs(wanted - nearest) <= SAME, nearest, wanted)
        outside = wanted[(wanted < low) | (wanted > high)]
        if len(outside):
            raise ValueError(
                f"Level {outside[0]:g} is outside the fitted range [{low:g}, {high:g}], and quernel does not "
                "extrapolate. Fit with levels that enclose it."
            )
        return self._between(np.broadcast_to(wanted, (len(self.curves), len(wanted))))

    def cdf(self, y: Array) -> Array:
        """P(Y <= y) of each row, shape (n,): 0 below its lowest quantile, 1 from its highest on."""
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
        return np.where(right == 0, 0.0, np.where(right == q, 1.0, between))

    def sample(self, n_samples: int, rng: np.random.Generator) -> Array:
        """Independent draws for each row, shape (n, n_samples), by inversion of uniform levels."""
        n = len(self.curves)
        return self._between(np.clip(rng.random((n, n_samples)), self.levels[0], self.levels[-1]))

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
        outermost levels, whose shape is unknown, is put on the outermost quantiles as point masses.
        """
        check_is_fitted(self)
        X = check_rows(self, X)
        target = check_target(np.full(len(X), y) if np.ndim(y) == 0 else y)
        check_lengths(X, target)
        return self._distribution(X).cdf(target)

    def sample(self, X: Any, n: int = 1, rng: Any = None) -> Array:
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

    def _curves(self, X: Array) -> Array:
        """Quantiles of the rows at `quantiles_`, (n, q)."""
        raise NotImplementedError

    def _distribution(self, X: Array) -> QuantileFunction:
        """Conditional quantile functions of the rows."""
        raise NotImplementedError
