"""Calibration of quantile levels: the share of rows below each predicted quantile, against its level."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike

from quernel.plots.checks import CONFIDENCE, Floats, binomial_band, check_predictions, count_rows_below
from quernel.plots.fan import format_percent
from quernel.plots.models import predict_quantiles
from quernel.plots.style import ACCENT, BAND_PALE, LINE, POINT, dress, house_style, new_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(eq=False)
class CalibrationDisplay:
    """Calibration plot (reliability diagram) of quantiles: observed shares of rows against nominal levels.

    If the curves were the true conditional quantiles, n_rows times the observed share would be binomial with
    probability `level`, and the observed share would lie between `lower` and `upper` with probability `confidence`.

    Parameters
    ----------
    levels : array of shape (q,), ascending
    observed : array of shape (q,), share of rows at or below each curve
    lower, upper : arrays of shape (q,), the binomial band around the levels
    n_rows : int
    confidence : float, probability of the band
    below : array of shape (q,), share of rows strictly below each curve
        Less than `observed` where several rows with the same y lie on a curve, as with counts. Any level between the
        two is then right, and the curve is drawn as a vertical line from one to the other.

    Attributes
    ----------
    ax_, figure_ : matplotlib Axes and Figure, after `plot`
    """

    levels: Floats
    observed: Floats
    lower: Floats
    upper: Floats
    n_rows: int
    confidence: float
    below: Floats

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        y: ArrayLike,
        *,
        quantiles: ArrayLike | None = None,
        confidence: float = CONFIDENCE,
        ax: "Axes | None" = None,
    ) -> Self:
        """Plot the calibration of a fitted estimator on test data.

        Parameters
        ----------
        estimator : fitted quantile regressor, a pipeline that ends in one, or a TableModel
        X, y : test data, not used for training
        quantiles : levels, or None for the fitted ones
        confidence : probability of the binomial band
        ax : matplotlib Axes, or None for a new figure
        """
        curves, levels = predict_quantiles(estimator, X, quantiles)
        return cls.from_predictions(y, curves, levels, confidence=confidence, ax=ax)

    @classmethod
    def from_predictions(
        cls,
        y_true: ArrayLike,
        y_pred: ArrayLike,
        quantiles: ArrayLike,
        *,
        confidence: float = CONFIDENCE,
        ax: "Axes | None" = None,
    ) -> Self:
        """Plot the calibration of predicted quantiles: y_true (n,), y_pred (n, q), quantiles (q,)."""
        return cls.of(y_true, y_pred, quantiles, confidence=confidence).plot(ax=ax)

    @classmethod
    def of(cls, y_true: ArrayLike, y_pred: ArrayLike, quantiles: ArrayLike, *, confidence: float = CONFIDENCE) -> Self:
        """Compute the display without drawing it; arguments as in `from_predictions`."""
        y, curves, levels = check_predictions(y_true, y_pred, quantiles)
        below, observed = (rows / len(y) for rows in count_rows_below(y, curves))
        return cls(levels, observed, *binomial_band(levels, len(y), confidence), len(y), confidence, below)

    @property
    def holds(self) -> np.ndarray:
        """Whether each level is within its binomial band, shape (q,)."""
        return (self.lower <= self.observed) & (self.below <= self.upper)

    @property
    def nearest(self) -> Floats:
        """The share between `below` and `observed` that is nearest to the level, shape (q,)."""
        return np.clip(self.levels, self.below, self.observed)

    def plot(self, *, ax: "Axes | None" = None) -> Self:
        """Draw the display. Levels outside the band are hollow orange squares, the others blue dots."""
        grid = np.linspace(0.001, 0.999, 300)
        low, high = binomial_band(grid, self.n_rows, self.confidence)
        holds = self.holds
        with house_style():
            ax = new_axes() if ax is None else ax
            dress(ax)
            label = f"{format_percent(self.confidence)} by chance, {self.n_rows:,} rows"
            ax.fill_between(grid, low, high, color=BAND_PALE, linewidth=0, label=label)
            ax.plot([0, 1], [0, 1], color=POINT, linewidth=0.8, linestyle="--")
            ax.plot(self.levels, self.nearest, color=LINE, linewidth=1, alpha=0.5)
            ax.vlines(self.levels, self.below, self.observed, color=LINE, linewidth=1, alpha=0.5)
            if holds.any():
                ax.plot(self.levels[holds], self.nearest[holds], "o", color=LINE, label="within chance")
            if not holds.all():
                outside = self.levels[~holds], self.nearest[~holds]
                ax.plot(
                    *outside, "s", color=ACCENT, markerfacecolor="white", markeredgewidth=1.5, label="beyond chance"
                )
            ax.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
            ax.set_xlabel("nominal level")
            ax.set_ylabel("share of rows at or below the curve")
            ax.legend(loc="upper left")
        self.ax_, self.figure_ = ax, ax.figure
        return self
