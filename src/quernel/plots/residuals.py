"""ResidualQuantileDisplay: PIT histogram and worm plot, diagnostics of the predicted distribution.

The probability integral transform (PIT) F(y | x) of new rows is uniform if the predicted distribution F is right. A
quantile model knows F at its levels only, so that the PIT is known up to the bin between two levels.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr, ndtri

from quernel.plots.checks import CONFIDENCE, Floats, binomial_band, check_predictions, count_rows_below
from quernel.plots.fan import format_percent
from quernel.plots.models import predict_quantiles
from quernel.plots.style import ACCENT, BAND_DARK, BAND_PALE, LINE, POINT, dress, house_style, require_matplotlib

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Size of a new figure, in inches.
SIZE = (9.0, 4.0)


@dataclass(eq=False)
class ResidualQuantileDisplay:
    """PIT histogram of the rows between neighbouring quantile curves, and worm plot of the rows below each.

    Nothing is interpolated: the bins of the histogram end at the levels, and the worm plot (van Buuren and Fredriks
    2001) has a point for each level. A flat histogram is good; a hump shows that the bands are too wide, a U shape that
    they are too narrow, a slope that they are too high or too low. A good worm is straight and level at 0.

    Parameters
    ----------
    levels : array of shape (q,), ascending
    counts : array of shape (q + 1,)
        Number of rows below the first curve, between the first and the second, ..., above the last. Rows that lie on a
        curve together (discrete targets) are divided between its two sides so that its level is met, if possible.
    confidence : float, probability of the bands

    Attributes
    ----------
    ax_, figure_ : pair of matplotlib Axes, and Figure, after `plot`
    """

    levels: Floats
    counts: np.ndarray
    confidence: float = CONFIDENCE

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        y: ArrayLike,
        *,
        quantiles: ArrayLike | None = None,
        confidence: float = CONFIDENCE,
        ax: "tuple[Axes, Axes] | None" = None,
    ) -> Self:
        """Plot the PIT of test data under a fitted estimator.

        Parameters
        ----------
        estimator : fitted quantile regressor, a pipeline that ends in one, or a TableModel
        X, y : test data, best not used for training
        quantiles : levels, or None for the fitted ones
        confidence : probability of the bands
        ax : pair of matplotlib Axes, or None for a new figure
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
        ax: "tuple[Axes, Axes] | None" = None,
    ) -> Self:
        """Plot the PIT under predicted quantiles: y_true (n,), y_pred (n, q), quantiles (q,)."""
        return cls.of(y_true, y_pred, quantiles, confidence=confidence).plot(ax=ax)

    @classmethod
    def of(cls, y_true: ArrayLike, y_pred: ArrayLike, quantiles: ArrayLike, *, confidence: float = CONFIDENCE) -> Self:
        """Compute the display without drawing it; arguments as in `from_predictions`."""
        y, curves, levels = check_predictions(y_true, y_pred, quantiles)
        # The number of rows below each curve: n level, clipped to between #{y < f} and #{y <= f}.
        n_below = np.clip(len(y) * levels, *count_rows_below(y, np.sort(curves, axis=1)))
        return cls(levels, np.diff(n_below, prepend=0.0, append=len(y)), confidence)

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return round(float(self.counts.sum()))

    @property
    def density(self) -> Floats:
        """Share of rows in each bin / width of the bin, shape (q + 1,); 1 if calibrated."""
        return self.counts / self.n_rows / np.diff(self._edges)

    @property
    def worm(self) -> Floats:
        """z(observed share) - z(level) with the normal quantile function z, shape (q,); 0 if calibrated.

        Shares of 0 and 1, whose score is infinite, are moved inwards by half a row.
        """
        half = 0.5 / self.n_rows
        return ndtri(np.clip(np.cumsum(self.counts)[:-1] / self.n_rows, half, 1 - half)) - ndtri(self.levels)

    def plot(self, *, ax: "tuple[Axes, Axes] | None" = None) -> Self:
        """Draw the display, on a pair of axes or a new figure."""
        require_matplotlib()
        from matplotlib.figure import Figure

        with house_style():
            axes = Figure(figsize=SIZE, layout="constrained").subplots(1, 2) if ax is None else np.asarray(ax)
            if np.shape(axes) != (2,):
                raise ValueError("ax must be a pair of axes: one for the histogram and one for the worm.")
            for one in axes:
                dress(one)
            self._draw_histogram(axes[0])
            self._draw_worm(axes[1])
        self.ax_, self.figure_ = axes, axes[0].figure
        return self

    @property
    def _edges(self) -> Floats:
        """Edges of the bins: 0, the levels, 1."""
        return np.concatenate([[0.0], self.levels, [1.0]])

    def _draw_histogram(self, ax: "Axes") -> None:
        """Draw the density of the PIT, with the binomial band of every bin around 1."""
        widths = np.diff(self._edges)
        low, high = (band / widths for band in binomial_band(widths, self.n_rows, self.confidence))
        ax.bar(
            self._edges[:-1], self.density, widths, align="edge", color=BAND_PALE, edgecolor=BAND_DARK, linewidth=0.8
        )
        middle = self._edges[:-1] + widths / 2
        ax.vlines(middle, low, high, color=LINE, linewidth=1.4, label=f"{format_percent(self.confidence)} by chance")
        ax.axhline(1, color=POINT, linewidth=0.8, linestyle="--")
        ax.set(xlim=(0, 1), ylim=(0, 1.25 * max(self.density.max(), high.max())))
        ax.set_title("PIT histogram", loc="left")
        ax.set_xlabel("level")
        ax.set_ylabel("rows between the curves / expected")
        ax.legend(loc="upper right")

    def _draw_worm(self, ax: "Axes") -> None:
        """Draw the worm over the normal scores of the levels, with a pointwise band around 0."""
        z_max = max(2.0, float(np.abs(ndtri(self.levels)).max()) + 0.3)
        z = np.linspace(-z_max, z_max, 200)
        # Delta method: the standard error of a share p, sqrt(p (1 - p) / n), divided by the normal density at z(p).
        share, density = _normal_cdf_pdf(z)
        band = -ndtri((1 - self.confidence) / 2) * np.sqrt(share * (1 - share) / self.n_rows) / density
        ax.fill_between(
            z, -band, band, color=BAND_PALE, linewidth=0, label=f"{format_percent(self.confidence)} by chance"
        )
        ax.axhline(0, color=POINT, linewidth=0.8, linestyle="--")
        ax.plot(ndtri(self.levels), self.worm, "o-", color=ACCENT, linewidth=1.2, markersize=5)
        top = 1.3 * max(float(np.abs(self.worm).max()), float(np.interp(np.abs(ndtri(self.levels)).max(), z, band)))
        ax.set(xlim=(-z_max, z_max), ylim=(-top, top))
        ax.set_title("Worm plot", loc="left")
        ax.set_xlabel("normal score of the level")
        ax.set_ylabel("observed - nominal, in normal scores")
        ax.legend(loc="upper right")


def _normal_cdf_pdf(z: Floats) -> tuple[Floats, Floats]:
    """Return distribution function and density of the standard normal distribution."""
    return ndtr(z), np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)
