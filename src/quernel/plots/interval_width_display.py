"""How wide are the intervals, and do they hold, in each group of rows?"""

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

# Numbers with more different values than this are cut into so many groups of equal size.
MAX_GROUPS, N_BINS = 12, 5


@dataclass(eq=False)
class IntervalWidthDisplay:
    """Mean width of the intervals against the share of rows that they hold, one point per group.

    names, widths, observed, lower, upper and n_rows have an entry per group. Where intervals hold with the probability
    `coverage`, the observed share lies between lower and upper with the probability `confidence`. After `plot`: ax_,
    figure_.
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
        """Draw the intervals of a fitted estimator with `predict_interval`, on rows that it has not seen.

        Parameters
        ----------
        estimator : fitted `KernelQuantileRegressor` or `ConformalQuantileRegressor`
            By itself, as the last step of a pipeline, or in a model of tables.
        X, y : the rows
        groups : labels or numbers of shape (n,), as in `from_predictions`
        coverage : what the intervals promise; None is what they were calibrated for, or else 0.9
        calibration_groups : array of shape (n,) or None
            The groups by which the estimator was calibrated, if `fit` was given an array of them. None takes `groups`.
        density_ratio : array of shape (n,) or None
            That of the rows, if `fit` was given an array of it.
        confidence : probability of the grey bars
        ax : axes to draw on
        """
        calibrated_by = groups if calibration_groups is None else calibration_groups
        interval, coverage = predict_interval_with_coverage(estimator, X, coverage, calibrated_by, density_ratio)
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
        """Draw predicted intervals: y_true, lower, upper and groups of shape (n,), and the coverage they promise.

        Groups are labels; numbers of more than twelve different values are cut into five groups of equal size.
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
        """The numbers, not drawn yet."""
        if not 0 < coverage < 1:
            raise ValueError(f"coverage must lie strictly between 0 and 1; got {coverage!r}. Use 0.9 for 90 %.")
        y, low, high = (np.asarray(values, dtype=np.float64) for values in (y_true, lower, upper))
        labels = np.asarray(groups)
        shapes = [values.shape for values in (y, low, high, labels)]
        if y.ndim != 1 or len(y) == 0 or len(set(shapes)) > 1:
            raise ValueError(f"y_true, lower, upper and groups must all have the same shape (n,), n > 0; got {shapes}.")
        if not np.isfinite(np.stack([y, low, high])).all():
            raise ValueError("y_true, lower and upper must hold no NaN or infinite values. Leave such rows out.")
        names, member = _bin_groups(labels)
        n_rows = np.bincount(member, minlength=len(names))
        widths, inside = (np.bincount(member, values) / n_rows for values in (high - low, (low <= y) & (y <= high)))
        band = binomial_band(coverage, n_rows, confidence)
        return cls(names, widths, inside, *band, n_rows, coverage, confidence)

    @property
    def holds(self) -> np.ndarray:
        """Which groups lie within their band; more than promised is welcome."""
        return self.lower <= self.observed

    def plot(self, *, ax: "Axes | None" = None) -> Self:
        """Draw; the grey bar of a group is where chance would put its share."""
        with house_style():
            ax = new_axes() if ax is None else ax
            dress(ax)
            label = f"{format_percent(self.confidence)} by chance"
            ax.vlines(self.widths, self.lower, self.upper, color=POINT, alpha=0.35, linewidth=5, label=label)
            ax.axhline(self.coverage, color=POINT, linewidth=0.8, linestyle="--")
            for hold, mark, colour, told in ((True, "o", LINE, "holds"), (False, "s", ACCENT, "holds too little")):
                some = self.holds == hold
                if some.any():
                    ax.plot(self.widths[some], self.observed[some], mark, color=colour, label=told, zorder=3)
            paper = {"facecolor": "white", "alpha": 0.7, "pad": 0.5, "linewidth": 0}  # names stay legible on lines
            for name, x, y in zip(self.names, self.widths, self.observed, strict=True):
                ax.annotate(name, (x, y), (6, 5), textcoords="offset points", fontsize=9, bbox=paper)
            ax.margins(x=0.12)
            ax.set_xlabel(f"mean width of the {format_percent(self.coverage)} intervals")
            ax.set_ylabel("share of rows inside")
            ax.yaxis.set_major_formatter(lambda value, _: format_percent(round(value, 6)))
            ax.legend(loc="lower left", bbox_to_anchor=(0, 1.01), ncols=3, borderaxespad=0)
        self.ax_, self.figure_ = ax, ax.figure
        return self


def _bin_groups(labels: np.ndarray) -> tuple[list[str], np.ndarray]:
    """The names of the groups, and the group of every row."""
    values, member = np.unique(labels if labels.dtype != object else labels.astype(str), return_inverse=True)
    if len(values) <= MAX_GROUPS:
        return [str(value) for value in values], member
    if labels.dtype.kind not in "iuf":
        raise ValueError(f"groups has {len(values)} different labels; at most {MAX_GROUPS} can be told apart.")
    if not np.isfinite(labels).all():
        raise ValueError("groups contains NaN or infinite values. Leave these rows out, or give them a label.")
    edges = np.unique(np.quantile(labels, np.linspace(0, 1, N_BINS + 1)))
    member = np.clip(np.searchsorted(edges, labels, side="left") - 1, 0, len(edges) - 2)
    kept, member = np.unique(member, return_inverse=True)
    return [f"{edges[k]:.3g} to {edges[k + 1]:.3g}" for k in kept], member
