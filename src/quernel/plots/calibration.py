"""Do the levels hold? The share of rows below each curve, against its level."""

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
    """Observed share of rows at or below each curve, against its level.

    levels, observed, below, lower and upper have shape (q,). If the curves were the true quantiles, each observed share
    would lie between lower and upper with the probability `confidence`: the binomial law of n_rows rows. Where many
    rows lie on a curve, as with counts, the share `below` it is less than the observed one, and a level between them is
    kept: such a curve is drawn as a line from one to the other. After `plot`: ax_, figure_.
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
        """Draw how the levels of a fitted estimator hold on rows that it has not seen."""
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
        """Draw how predicted quantiles hold: y_true (n,), y_pred (n, q), quantiles (q,)."""
        return cls.of(y_true, y_pred, quantiles, confidence=confidence).plot(ax=ax)

    @classmethod
    def of(cls, y_true: ArrayLike, y_pred: ArrayLike, quantiles: ArrayLike, *, confidence: float = CONFIDENCE) -> Self:
        """The numbers, not drawn yet."""
        y, curves, levels = check_predictions(y_true, y_pred, quantiles)
        below, observed = (rows / len(y) for rows in count_rows_below(y, curves))
        return cls(levels, observed, *binomial_band(levels, len(y), confidence), len(y), confidence, below)

    @property
    def holds(self) -> np.ndarray:
        """Which levels lie within their band, shape (q,)."""
        return (self.lower <= self.observed) & (self.below <= self.upper)

    @property
    def nearest(self) -> Floats:
        """Of the shares from `below` to `observed`, the one nearest to the level, shape (q,)."""
        return np.clip(self.levels, self.below, self.observed)

    def plot(self, *, ax: "Axes | None" = None) -> Self:
        """Draw; levels outside their band are hollow and orange."""
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
                missed = self.levels[~holds], self.nearest[~holds]
                ax.plot(*missed, "s", color=ACCENT, markerfacecolor="white", markeredgewidth=1.5, label="beyond chance")
            ax.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
            ax.set_xlabel("level asked for")
            ax.set_ylabel("share of rows at or below the curve")
            ax.legend(loc="upper left")
        self.ax_, self.figure_ = ax, ax.figure
        return self
