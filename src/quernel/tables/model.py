"""TableModel: an encoder and an estimator, from the columns of a table to conditional quantiles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quernel.calibration import ConformalQuantileRegressor
from quernel.estimators import KernelQuantileRegressor
from quernel.tables.encoder import TableEncoder

Array = NDArray[np.floating]


@dataclass(frozen=True, eq=False)
class TableModel:
    """What `quernel fit` writes and `quernel.load` gives back: it predicts from data frames and Arrow tables.

    Parameters
    ----------
    encoder : TableEncoder
        How the table's columns become numbers.
    model : KernelQuantileRegressor, fitted to those numbers
    target : str
        The column that is predicted.
    log_target : bool
        Whether the model was fitted to the logarithm of the target. Quantiles are mapped back: the quantile of a
        logarithm is the logarithm of the quantile.
    interval : ConformalQuantileRegressor or None
        The same model with calibrated intervals, which `predict_interval` gives.
    """

    encoder: TableEncoder
    model: KernelQuantileRegressor
    target: str
    log_target: bool = False
    interval: ConformalQuantileRegressor | None = None

    @property
    def quantiles_(self) -> Array:
        """The fitted levels."""
        return self.model.quantiles_

    def predict(self, table: Any, quantiles: float | ArrayLike | None = None) -> Array:
        """Conditional quantiles of the target; levels and shapes as in `KernelQuantileRegressor.predict`."""
        return self.predict_encoded(self.encoder.encode(table), quantiles)

    def predict_encoded(self, X: Array, quantiles: float | ArrayLike | None = None) -> Array:
        """The same, for a matrix that the encoder has made."""
        predicted = self.model.predict(X, quantiles)
        return np.exp(predicted) if self.log_target else predicted

    def predict_interval(self, table: Any) -> Array:
        """Lower and upper end of the calibrated interval of each row, shape (n, 2)."""
        return self.interval_encoded(self.encoder.encode(table))

    def interval_encoded(self, X: Array) -> Array:
        """The same, for a matrix that the encoder has made. Ends of logarithms are mapped back, as quantiles are."""
        if self.interval is None:
            raise ValueError("This model has no calibrated intervals. Fit it with quernel fit --conformal.")
        ends = self.interval.predict_interval(X)
        return np.exp(ends) if self.log_target else ends

    def beyond(self, X: Array) -> NDArray[np.bool_]:
        """Which numbers of a matrix that the encoder has made leave the range of the training rows, (n, d).

        Those that go round, such as the time of day, never do.
        """
        low, high = self.model.input_range_
        return ((low > X) | (high < X)) & ~self.encoder.cyclic
