"""Where among the curves do the rows fall? The PIT histogram, and the worm plot."""

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

SIZE = (9.0, 4.0)


@dataclass(eq=False)
class ResidualQuantileDisplay:
    """How many rows fall between neighbouring curves (PIT histogram), and below each in normal scores (worm plot).

    levels (q,) and counts (q + 1,): rows up to the first curve, between the first and the second, ..., beyond the last.
    Rows on a curve count to either side of it, as its level asks for. Nothing is interpolated: the bins of the
    histogram end at the levels, and the worm has a point for each. A flat histogram is good; a hump says that the bands
    are too wide, a bowl that they are too narrow, a slope that they lie too high or too low. A good worm is straight
    and level. After `plot`: ax_ (two axes), figure_.
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
        """Draw where the rows fall among the levels of a fitted estimator; best on rows that it has not seen."""
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
        """Draw where the rows fall among predicted quantiles: y_true (n,), y_pred (n, q), quantiles (q,)."""
        return cls.of(y_true, y_pred, quantiles, confidence=confidence).plot(ax=ax)

    @classmethod
    def of(cls, y_true: ArrayLike, y_pred: ArrayLike, quantiles: ArrayLike, *, confidence: float = CONFIDENCE) -> Self:
        """The numbers, not drawn yet."""
        y, curves, levels = check_predictions(y_true, y_pred, quantiles)
        reached = np.clip(len(y) * levels, *count_rows_below(y, np.sort(curves, axis=1)))
        return cls(levels, np.diff(reached, prepend=0.0, append=len(y)), confidence)

    @property
    def n_rows(self) -> int:
        """How many rows there are."""
        return round(float(self.counts.sum()))

    @property
    def density(self) -> Floats:
        """Share of rows in each bin over the width of the bin, shape (q + 1,): 1 is right."""
        return self.counts / self.n_rows / np.diff(self._edges)

    @property
    def worm(self) -> Floats:
        """z(observed share) - z(level), shape (q,): 0 is right. Shares of 0 and 1 count as half a row."""
        half = 0.5 / self.n_rows
        return ndtri(np.clip(np.cumsum(self.counts)[:-1] / self.n_rows, half, 1 - half)) - ndtri(self.levels)

    def plot(self, *, ax: "tuple[Axes, Axes] | None" = None) -> Self:
        """Draw, on two axes if they are given."""
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
        return np.concatenate([[0.0], self.levels, [1.0]])

    def _draw_histogram(self, ax: "Axes") -> None:
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
        reach = max(2.0, float(np.abs(ndtri(self.levels)).max()) + 0.3)
        z = np.linspace(-reach, reach, 200)
        # The delta method: the error of a share p, sqrt(p (1 - p) / n), over the normal density at its score.
        share, density = _normal_cdf_pdf(z)
        band = -ndtri((1 - self.confidence) / 2) * np.sqrt(share * (1 - share) / self.n_rows) / density
        ax.fill_between(
            z, -band, band, color=BAND_PALE, linewidth=0, label=f"{format_percent(self.confidence)} by chance"
        )
        ax.axhline(0, color=POINT, linewidth=0.8, linestyle="--")
        ax.plot(ndtri(self.levels), self.worm, "o-", color=ACCENT, linewidth=1.2, markersize=5)
        top = 1.3 * max(float(np.abs(self.worm).max()), float(np.interp(np.abs(ndtri(self.levels)).max(), z, band)))
        ax.set(xlim=(-reach, reach), ylim=(-top, top))
        ax.set_title("Worm plot", loc="left")
        ax.set_xlabel("normal score of the level")
        ax.set_ylabel("observed - asked for, in normal scores")
        ax.legend(loc="upper right")


def _normal_cdf_pdf(z: Floats) -> tuple[Floats, Floats]:
    """Distribution function and density of the standard normal law."""
    return ndtr(z), np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)
