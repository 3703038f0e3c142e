"""IntervalWidthDisplay: mean width and empirical coverage of prediction intervals, by group of rows."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike

from quernel.plots.checks import CONFIDENCE, Floats, binomial_band
from quernel.plots.fan import format_percent
from quernel.plots.models import predict_interval_with_coverage
from quernel.plots.style import ACCENT, LINE, POINT, dress, house_style, new_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Numeric groups of more than MAX_GROUPS distinct values are binned into N_BINS quantile bins.
MAX_GROUPS, N_BINS = 12, 5


@dataclass(eq=False)
class IntervalWidthDisplay:
    """Empirical coverage of prediction intervals against their mean width, one point per group.

    In a group where the coverage is right, the number of covered rows is binomial with probability `coverage`, and the
    observed share lies between `lower` and `upper` with probability `confidence`.

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
    n_rows: np.ndarray
    coverage: float
    confidence: float = CONFIDENCE

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        y: ArrayLike,
        groups: ArrayLike,
        *,
        coverage: float | None = None,
        calibration_groups: ArrayLike | None = None,
        density_ratio: ArrayLike | None = None,
        confidence: float = CONFIDENCE,
        ax: "Axes | None" = None,
    ) -> Self:
        """Plot the intervals that a fitted estimator predicts for test data.

        Parameters
        ----------
        estimator : fitted `KernelQuantileRegressor` or `ConformalQuantileRegressor`
            By itself, as the last step of a pipeline, or in a TableModel.
        X, y : test data, not used for training or calibration
        groups : labels or numbers of shape (n,), as in `from_predictions`
        coverage : nominal coverage of the intervals; None is that of their calibration or, without one, 0.9
        calibration_groups : array of shape (n,) or None
            Passed to `predict_interval` as its `groups`, if the estimator's `fit` was given an array of them. None
            takes `groups`.
        density_ratio : array of shape (n,) or None
            Passed to `predict_interval`, if `fit` was given an array of it.
        confidence : probability of the binomial band, the grey bars
        ax : matplotlib Axes, or None for a new figure
        """
        interval_groups = groups if calibration_groups is None else calibration_groups
        interval, coverage = predict_interval_with_coverage(estimator, X, coverage, interval_groups, density_ratio)
        lower, upper = interval.T
        return cls.from_predictions(y, lower, upper, groups, coverage=coverage, confidence=confidence, ax=ax)

    @classmethod
    def from_predictions(
        cls,
        y_true: ArrayLike,
        lower: ArrayLike,
        upper: ArrayLike,
        groups: ArrayLike,
        *,
        coverage: float = 0.9,
        confidence: float = CONFIDENCE,
        ax: "Axes | None" = None,
    ) -> Self:
        """Plot given intervals: y_true, lower, upper and groups of shape (n,), and their nominal coverage.

        Groups are labels; numbers of more than twelve distinct values are binned into five groups of equal size.
        """
        return cls.of(y_true, lower, upper, groups, coverage=coverage, confidence=confidence).plot(ax=ax)

    @classmethod
    def of(
        cls,
        y_true: ArrayLike,
        lower: ArrayLike,
        upper: ArrayLike,
        groups: ArrayLike,
        *,
        coverage: float = 0.9,
        confidence: float = CONFIDENCE,
    ) -> Self:
        """Compute the display without drawing it; arguments as in `from_predictions`."""
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
    def holds(self) -> np.ndarray:
        """Whether the coverage of each group is not below its band, shape (groups,); excess coverage is fine."""
        return self.lower <= self.observed

    def plot(self, *, ax: "Axes | None" = None) -> Self:
        """Draw the display; the grey bar of a group is its binomial band."""
        with house_style():
            ax = new_axes() if ax is None else ax
            dress(ax)
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
        self.ax_, self.figure_ = ax, ax.figure
        return self


def _bin_groups(labels: np.ndarray) -> tuple[list[str], np.ndarray]:
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
