"""Methods that all estimators of conditional distributions share: distribution function, samples, score."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted

from quernel._validation import check_positive
from quernel.estimators.inputs import blockwise
from quernel.estimators.levels import QuantileFunction
from quernel.estimators.validation import check_lengths, check_rows, check_scored, check_target
from quernel.features.random import as_generator
from quernel.losses import Pinball

Array = NDArray[np.floating]


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
