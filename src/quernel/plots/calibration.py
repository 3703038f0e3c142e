"""Checks of predictions on test data: calibration plot, PIT histogram, worm plot, and coverage of intervals by group.

Each compares shares of rows with their nominal values, and shows the binomial band within which a share would lie if
the predictions were right.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri
from scipy.stats import binom

from quernel.plots.inputs import Floats, Model, Values, predict_interval_with_coverage, predict_quantiles
from quernel.plots.style import ACCENT, BAND_DARK, BAND_PALE, LINE, POINT, Display, format_percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Default probability of binomial bands.
CONFIDENCE = 0.95
# Numeric groups of more than MAX_GROUPS distinct values are binned into N_BINS quantile bins.
MAX_GROUPS, N_BINS = 12, 5


def check_predictions(y_true: ArrayLike, y_pred: ArrayLike, quantiles: ArrayLike) -> tuple[Floats, Floats, Floats]:
    """Validate predicted quantiles, and return y (n,), curves (n, q) and levels (q,), sorted by level.

    y_pred may have shape (n,) if quantiles is a single number.
    """
    levels = np.atleast_1d(np.asarray(quantiles, dtype=np.float64))
    if levels.ndim != 1 or not np.all((levels > 0) & (levels < 1)) or len(np.unique(levels)) < len(levels):
        raise ValueError(f"quantiles must be different levels strictly between 0 and 1; got {levels.tolist()}.")
    y, curves = np.asarray(y_true, dtype=np.float64), np.asarray(y_pred, dtype=np.float64)
    if curves.ndim == 1 and np.ndim(quantiles) == 0:
        curves = curves[:, None]
    if y.ndim != 1 or len(y) == 0 or curves.shape != (len(y), len(levels)):
        raise ValueError(
            f"y_true must have shape (n,) with n > 0 and y_pred one column per level, ({y.size}, {len(levels)}); got "
            f"{y.shape} and {curves.shape}. Predict all levels for the rows of y_true."
        )
    for name, values in (("y_true", y), ("y_pred", curves)):
        if not np.isfinite(values).all():
            raise ValueError(f"{name} contains NaN or infinite values. Drop or fill these rows first.")
    order = np.argsort(levels)
    return y, curves[:, order], levels[order]


def count_rows_below(y: Floats, curves: Floats) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Count the rows strictly below each curve, and those at or below it, (q,) each.

    #{y < f} and #{y <= f} differ where several rows with the same y lie on a curve, as with counts. A quantile of level
    tau satisfies  #{y < f} <= n tau <= #{y <= f},  so that any level between the two shares is then met exactly.
    """
    at_or_below = np.sum(y[:, None] <= curves, axis=0)
    return at_or_below - np.sum(find_ties(y, curves), axis=0), at_or_below


def find_ties(y: Floats, curves: Floats) -> NDArray[np.bool_]:
    """Whether each row lies exactly on each curve, shape (n, q), together with another row of the same y.

    Rows whose y is unique among those do not count: a quantile fit interpolates some of its training rows, and which of
    these compare as equal to the curve is a matter of rounding.
    """
    on = y[:, None] == curves
    rows = np.flatnonzero(on.any(axis=1))
    _, code, count = np.unique(y[rows], return_inverse=True, return_counts=True)
    on[rows[count[code] == 1]] = False
    return on


def binomial_band(share: ArrayLike, n: ArrayLike, confidence: float = CONFIDENCE) -> tuple[Floats, Floats]:
    """Return the central interval, lower and upper, of k / n where k is binomial(n, share).

    It has probability `confidence`, as far as a discrete distribution allows. Arguments broadcast.
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie strictly between 0 and 1; got {confidence!r}. Use 0.95 for 95 %.")
    low, high = (binom.ppf(p, n, share) / n for p in ((1 - confidence) / 2, (1 + confidence) / 2))
    return np.asarray(low), np.asarray(high)


class _QuantileCheck(Display):
    """Constructors of the displays that compare y with predicted quantiles."""

    @classmethod
    def from_estimator(
        cls, estimator: Model, X: Any, y: ArrayLike, *, quantiles: ArrayLike | None = None, **options: Any
    ) -> Self:
        """Compute the display for a fitted estimator on test data, and plot it.

        Parameters
        ----------
        estimator : fitted quantile regressor, a pipeline that ends in one, or a TableModel
        X, y : test data, not used for training
        quantiles : levels, or None for the fitted ones
        **options : `confidence` and `ax`, as in `from_predictions`
        """
        curves, levels = predict_quantiles(estimator, X, quantiles)
        return cls.from_predictions(y, curves, levels, **options)

    @classmethod
    def from_predictions(
        cls, y_true: ArrayLike, y_pred: ArrayLike, quantiles: ArrayLike, *, ax: Any = None, **options: Any
    ) -> Self:
        """Compute the display for predicted quantiles, and plot it.

        Parameters
        ----------
        y_true : array of shape (n,)
        y_pred : array of shape (n, q), one column per level
        quantiles : array of shape (q,), the levels
        ax : matplotlib Axes, or the pair of them that the display needs; None for a new figure
        **options : `confidence`, the probability of the bands
        """
        return cls.compute(y_true, y_pred, quantiles, **options).plot(ax=ax)


@dataclass(eq=False)
class CalibrationDisplay(_QuantileCheck):
    """Calibration plot (reliability diagram) of quantiles: observed shares of rows against nominal levels.

    If the curves were the true conditional quantiles, n_rows times the observed share would be binomial with
    probability `level`, and the observed share would lie between `lower` and `upper` with probability `confidence`.
    Levels outside the band are drawn as hollow orange squares, the others as blue dots.

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
    def compute(
        cls, y_true: ArrayLike, y_pred: ArrayLike, quantiles: ArrayLike, *, confidence: float = CONFIDENCE
    ) -> Self:
        """Compute the display without drawing it; arguments as in `from_predictions`."""
        y, curves, levels = check_predictions(y_true, y_pred, quantiles)
        below, observed = (rows / len(y) for rows in count_rows_below(y, curves))
        lower, upper = binomial_band(levels, len(y), confidence)
        return cls(levels, observed, lower, upper, len(y), confidence, below)

    @property
    def holds(self) -> NDArray[np.bool_]:
        """Whether each level is within its binomial band, shape (q,)."""
        return (self.lower <= self.observed) & (self.below <= self.upper)

    @property
    def nearest(self) -> Floats:
        """The share between `below` and `observed` that is nearest to the level, shape (q,)."""
        return np.clip(self.levels, self.below, self.observed)

    def band(self, n_points: int, end: float) -> tuple[Floats, Floats, Floats]:
        """Return levels from `end` to 1 - `end`, and lower and upper bounds of the binomial band around each."""
        grid = np.linspace(end, 1 - end, n_points)
        return grid, *binomial_band(grid, self.n_rows, self.confidence)

    def _draw(self, ax: "Axes") -> None:
        holds = self.holds
        label = f"{format_percent(self.confidence)} by chance, {self.n_rows:,} rows"
        ax.fill_between(*self.band(300, 0.001), color=BAND_PALE, linewidth=0, label=label)
        ax.plot([0, 1], [0, 1], color=POINT, linewidth=0.8, linestyle="--")
        ax.plot(self.levels, self.nearest, color=LINE, linewidth=1, alpha=0.5)
        ax.vlines(self.levels, self.below, self.observed, color=LINE, linewidth=1, alpha=0.5)
        if holds.any():
            ax.plot(self.levels[holds], self.nearest[holds], "o", color=LINE, label="within chance")
        if not holds.all():
            outside = self.levels[~holds], self.nearest[~holds]
            ax.plot(*outside, "s", color=ACCENT, markerfacecolor="white", markeredgewidth=1.5, label="beyond chance")
        ax.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
        ax.set_xlabel("nominal level")
        ax.set_ylabel("share of rows at or below the curve")
        ax.legend(loc="upper left")


@dataclass(eq=False)
class PITDisplay(_QuantileCheck):
    """PIT histogram of the rows between neighbouring quantile curves, and worm plot of the rows below each.

    The probability integral transform (PIT) F(y | x) of new rows is uniform if the predicted distribution F is right. A
    quantile model knows F at its levels only, and nothing is interpolated: the bins of the histogram end at the levels,
    and the worm plot (van Buuren and Fredriks 2001) has a point for each level. A flat histogram is good; a hump shows
    that the bands are too wide, a U shape that they are too narrow, a slope that they are too high or too low. A good
    worm is straight and level at 0.

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

    panels: ClassVar = ("the histogram", "the worm")
    size: ClassVar = (9.0, 4.0)

    levels: Floats
    counts: Floats
    confidence: float = CONFIDENCE

    @classmethod
    def compute(
        cls, y_true: ArrayLike, y_pred: ArrayLike, quantiles: ArrayLike, *, confidence: float = CONFIDENCE
    ) -> Self:
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
    def edges(self) -> Floats:
        """Edges of the bins of the histogram: 0, the levels, 1; shape (q + 2,)."""
        return np.concatenate([[0.0], self.levels, [1.0]])

    @property
    def density(self) -> Floats:
        """Share of rows in each bin / width of the bin, shape (q + 1,); 1 if calibrated."""
        return self.counts / self.n_rows / np.diff(self.edges)

    @property
    def density_band(self) -> tuple[Floats, Floats]:
        """Lower and upper bounds of the binomial band of the density, shape (q + 1,) each."""
        widths = np.diff(self.edges)
        low, high = binomial_band(widths, self.n_rows, self.confidence)
        return low / widths, high / widths

    @property
    def worm(self) -> Floats:
        """z(observed share) - z(level) with the normal quantile function z, shape (q,); 0 if calibrated.

        Shares of 0 and 1, whose score is infinite, are moved inwards by half a row.
        """
        half = 0.5 / self.n_rows
        return ndtri(np.clip(np.cumsum(self.counts)[:-1] / self.n_rows, half, 1 - half)) - ndtri(self.levels)

    def _draw(self, ax: Any) -> None:
        self._draw_histogram(ax[0])
        self._draw_worm(ax[1])

    def _draw_histogram(self, ax: "Axes") -> None:
        """Draw the density of the PIT, with the binomial band of every bin around 1."""
        left, widths = self.edges[:-1], np.diff(self.edges)
        low, high = self.density_band
        ax.bar(left, self.density, widths, align="edge", color=BAND_PALE, edgecolor=BAND_DARK, linewidth=0.8)
        label = f"{format_percent(self.confidence)} by chance"
        ax.vlines(left + widths / 2, low, high, color=LINE, linewidth=1.4, label=label)
        ax.axhline(1, color=POINT, linewidth=0.8, linestyle="--")
        ax.set(xlim=(0, 1), ylim=(0, 1.25 * max(self.density.max(), high.max())))
        ax.set_title("PIT histogram", loc="left")
        ax.set_xlabel("level")
        ax.set_ylabel("rows between the curves / expected")
        ax.legend(loc="upper right")

    def _draw_worm(self, ax: "Axes") -> None:
        """Draw the worm over the normal scores of the levels, with a pointwise band around 0."""
        scores, worm = ndtri(self.levels), self.worm
        z_max = max(2.0, float(np.abs(scores).max()) + 0.3)
        z = np.linspace(-z_max, z_max, 200)
        # Delta method: the standard error of a share p, sqrt(p (1 - p) / n), divided by the normal density at z(p).
        share, density = ndtr(z), np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)
        band = -ndtri((1 - self.confidence) / 2) * np.sqrt(share * (1 - share) / self.n_rows) / density
        label = f"{format_percent(self.confidence)} by chance"
        ax.fill_between(z, -band, band, color=BAND_PALE, linewidth=0, label=label)
        ax.axhline(0, color=POINT, linewidth=0.8, linestyle="--")
        ax.plot(scores, worm, "o-", color=ACCENT, linewidth=1.2, markersize=5)
        top = 1.3 * max(float(np.abs(worm).max()), float(np.interp(np.abs(scores).max(), z, band)))
        ax.set(xlim=(-z_max, z_max), ylim=(-top, top))
        ax.set_title("Worm plot", loc="left")
        ax.set_xlabel("normal score of the level")
        ax.set_ylabel("observed - nominal, in normal scores")
        ax.legend(loc="upper right")


@dataclass(eq=False)
class IntervalWidthDisplay(Display):
    """Empirical coverage of prediction intervals against their mean width, one point per group.

    In a group where the coverage is right, the number of covered rows is binomial with probability `coverage`, and the
    observed share lies between `lower` and `upper`, the grey bar, with probability `confidence`.

    Parameters
    ----------
    names : list of str, of the groups
    widths : array of shape (groups,), mean width of the intervals
    observed : array of shape (groups,), share of rows inside their interval
    lower, upper : arrays of shape (groups,), the binomial band around the coverage
    n_rows : int array of shape (groups,)
    coverage : float, nominal coverage
    confidence : float, probability of the band

    Attributes
    ----------
    ax_, figure_ : matplotlib Axes and Figure, after `plot`
    """

    names: list[str]
    widths: Floats
    observed: Floats
    lower: Floats
    upper: Floats
    n_rows: NDArray[np.intp]
    coverage: float
    confidence: float = CONFIDENCE

    @classmethod
    def from_estimator(
        cls,
        estimator: Model,
        X: Any,
        y: ArrayLike,
        groups: ArrayLike,
        *,
        coverage: float | None = None,
        calibration_groups: ArrayLike | None = None,
        density_ratio: ArrayLike | None = None,
        **options: Any,
    ) -> Self:
        """Compute the display for the intervals that a fitted estimator predicts for test data, and plot it.

        Parameters
        ----------
        estimator : fitted `KernelQuantileRegressor` or `ConformalQuantileRegressor`
            By itself, as the last step of a pipeline, or in a TableModel.
        X, y : test data, not used for training or calibration
        groups : labels or numbers of shape (n,), as in `compute`
        coverage : nominal coverage of the intervals; None is that of their calibration or, without one, 0.9
        calibration_groups : array of shape (n,) or None
            Passed to `predict_interval` as its `groups`, if the estimator's `fit` was given an array of them. None
            takes `groups`.
        density_ratio : array of shape (n,) or None
            Passed to `predict_interval`, if `fit` was given an array of it.
        **options : `confidence` and `ax`, as in `from_predictions`
        """
        interval_groups = groups if calibration_groups is None else calibration_groups
        interval, coverage = predict_interval_with_coverage(estimator, X, coverage, interval_groups, density_ratio)
        return cls.from_predictions(y, interval[:, 0], interval[:, 1], groups, coverage=coverage, **options)

    @classmethod
    def from_predictions(
        cls, y_true: ArrayLike, lower: ArrayLike, upper: ArrayLike, groups: ArrayLike, *, ax: Any = None, **options: Any
    ) -> Self:
        """Compute the display for given intervals, and plot it on `ax`; the other arguments as in `compute`."""
        return cls.compute(y_true, lower, upper, groups, **options).plot(ax=ax)

    @classmethod
    def compute(
        cls,
        y_true: ArrayLike,
        lower: ArrayLike,
        upper: ArrayLike,
        groups: ArrayLike,
        *,
        coverage: float = 0.9,
        confidence: float = CONFIDENCE,
    ) -> Self:
        """Compute the display without drawing it.

        Parameters
        ----------
        y_true, lower, upper : arrays of shape (n,), targets and bounds of their intervals
        groups : array of shape (n,)
            Labels; numbers of more than twelve distinct values are binned into five groups of equal size.
        coverage : nominal coverage of the intervals
        confidence : probability of the binomial band
        """
        if not 0 < coverage < 1:
            raise ValueError(f"coverage must lie strictly between 0 and 1; got {coverage!r}. Use 0.9 for 90 %.")
        y, low, high = (np.asarray(values, dtype=np.float64) for values in (y_true, lower, upper))
        labels = np.asarray(groups)
        shapes = [values.shape for values in (y, low, high, labels)]
        if y.ndim != 1 or len(y) == 0 or len(set(shapes)) > 1:
            raise ValueError(f"y_true, lower, upper and groups must all have the same shape (n,), n > 0; got {shapes}.")
        if not np.isfinite(np.stack([y, low, high])).all():
            raise ValueError("y_true, lower and upper must hold no NaN or infinite values. Leave such rows out.")
        names, codes = _bin_groups(labels)
        n_rows = np.bincount(codes, minlength=len(names))
        widths, inside = (np.bincount(codes, values) / n_rows for values in (high - low, (low <= y) & (y <= high)))
        band = binomial_band(coverage, n_rows, confidence)
        return cls(names, widths, inside, *band, n_rows, coverage, confidence)

    @property
    def holds(self) -> NDArray[np.bool_]:
        """Whether the coverage of each group is not below its band, shape (groups,); excess coverage is fine."""
        return self.lower <= self.observed

    def _draw(self, ax: "Axes") -> None:
        label = f"{format_percent(self.confidence)} by chance"
        ax.vlines(self.widths, self.lower, self.upper, color=POINT, alpha=0.35, linewidth=5, label=label)
        ax.axhline(self.coverage, color=POINT, linewidth=0.8, linestyle="--")
        for hold, marker, colour, text in ((True, "o", LINE, "holds"), (False, "s", ACCENT, "holds too little")):
            chosen = self.holds == hold
            if chosen.any():
                ax.plot(self.widths[chosen], self.observed[chosen], marker, color=colour, label=text, zorder=3)
        background = {"facecolor": "white", "alpha": 0.7, "pad": 0.5, "linewidth": 0}  # names stay legible on lines
        for name, x, y in zip(self.names, self.widths, self.observed, strict=True):
            ax.annotate(name, (x, y), (6, 5), textcoords="offset points", fontsize=9, bbox=background)
        ax.margins(x=0.12)
        ax.set_xlabel(f"mean width of the {format_percent(self.coverage)} intervals")
        ax.set_ylabel("share of rows inside")
        ax.yaxis.set_major_formatter(lambda value, _: format_percent(round(value, 6)))
        ax.legend(loc="lower left", bbox_to_anchor=(0, 1.01), ncols=3, borderaxespad=0)


def _bin_groups(labels: Values) -> tuple[list[str], NDArray[np.intp]]:
    """Return the names of the groups, and the index of each row's group, shape (n,).

    Numbers of many distinct values are binned at their quantiles; bins that ties leave empty are dropped.
    """
    values, codes = np.unique(labels if labels.dtype != object else labels.astype(str), return_inverse=True)
    if len(values) <= MAX_GROUPS:
        return [str(value) for value in values], codes
    if labels.dtype.kind not in "iuf":
        raise ValueError(
            f"groups has {len(values)} different labels; at most {MAX_GROUPS} can be drawn. Merge some of them."
        )
    if not np.isfinite(labels).all():
        raise ValueError("groups contains NaN or infinite values. Leave these rows out, or give them a label.")
    edges = np.unique(np.quantile(labels, np.linspace(0, 1, N_BINS + 1)))
    bins = np.clip(np.searchsorted(edges, labels, side="left") - 1, 0, len(edges) - 2)
    used, codes = np.unique(bins, return_inverse=True)
    return [f"{edges[k]:.3g} to {edges[k + 1]:.3g}" for k in used], codes
