"""Displays of tuning: PathDisplay of held-out losses, and ImportanceDisplay of learned bandwidths."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from quernel.plots.models import get_input_names, unwrap_tuned_estimator
from quernel.plots.style import ACCENT, BAND_DARK, LINE, POINT, dress, house_style, new_axes, shades

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Most bars of a plot.
MAX_COLUMNS = 30


@dataclass(eq=False)
class PathDisplay:
    """Regularization path: held-out loss against the ridge weight, one line per bandwidth, and the chosen pair.

    Parameters
    ----------
    alphas : array of shape (alphas,), ridge weights, ascending
    losses : array of shape (bandwidths, alphas), mean held-out pinball loss; not finite where it was not computed
    errors : array of shape (bandwidths, alphas), standard errors between splits
    chosen : (bandwidth, alpha), positions of the chosen pair

    Attributes
    ----------
    ax_, figure_ : matplotlib Axes and Figure, after `plot`
    """

    alphas: NDArray[np.float64]
    losses: NDArray[np.float64]
    errors: NDArray[np.float64]
    chosen: tuple[int, int]

    @classmethod
    def from_estimator(cls, estimator: Any, *, ax: "Axes | None" = None) -> Self:
        """Plot the search of a fitted `KernelQuantileRegressorCV`."""
        return cls.of(estimator).plot(ax=ax)

    @classmethod
    def of(cls, estimator: Any) -> Self:
        """Compute the display without drawing it; arguments as in `from_estimator`."""
        estimator = unwrap_tuned_estimator(estimator)
        if not hasattr(estimator, "cv_results_"):
            raise ValueError(
                f"{type(estimator).__name__} has no path of ridge weights. Fit a KernelQuantileRegressorCV instead."
            )
        results = estimator.cv_results_
        alphas = np.unique(results["param_alpha"])
        column = np.searchsorted(alphas, results["param_alpha"])
        # The results list all alphas of the first bandwidth, then all of the second, ...: find the period.
        listed = results["param_alpha"]
        period = next((k for k in range(1, len(listed)) if np.array_equal(listed[:k], listed[k : 2 * k])), len(listed))
        row = np.arange(len(listed)) // period
        losses, errors = (np.full((row[-1] + 1, len(alphas)), np.nan) for _ in range(2))
        losses[row, column] = -results["mean_test_score"]
        errors[row, column] = results["std_test_score"] / np.sqrt(max(estimator.n_splits_ - 1, 1))
        best = estimator.best_index_
        return cls(alphas, losses, errors, (int(row[best]), int(column[best])))

    def plot(self, *, ax: "Axes | None" = None) -> Self:
        """Draw the display; the band is one standard error (between splits) around the chosen bandwidth."""
        b, a = self.chosen
        with house_style():
            ax = new_axes() if ax is None else ax
            dress(ax)
            others = [k for k in range(len(self.losses)) if k != b]
            for k in others:
                label = "other bandwidths" if k == others[0] else None
                ax.plot(*self._finite_points(k)[:2], color=POINT, alpha=0.4, linewidth=1, label=label)
            x, loss, error = self._finite_points(b)
            if error.any():
                band = {"color": shades(1)[0], "alpha": 0.6, "linewidth": 0, "label": "± one standard error"}
                ax.fill_between(x, loss - error, loss + error, **band)
            ax.plot(x, loss, color=LINE, linewidth=1.8, label="bandwidth chosen")
            point = self.alphas[a], self.losses[b, a]
            ax.plot(*point, "o", color=ACCENT, markersize=7, label=f"chosen: alpha = {point[0]:.2g}")
            ax.set_xscale("log")
            ax.set_xlabel("ridge weight alpha (smoother to the right)")
            ax.set_ylabel("held-out pinball loss")
            ax.legend()
        self.ax_, self.figure_ = ax, ax.figure
        return self

    def _finite_points(self, k: int) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Return alphas, losses and errors of bandwidth k, where they were computed."""
        finite = np.isfinite(self.losses[k])
        return self.alphas[finite], self.losses[k, finite], self.errors[k, finite]


@dataclass(eq=False)
class ImportanceDisplay:
    """Importance of each column to the kernel: its scale / its learned bandwidth, relative to the largest.

    The scale is the column's standard deviation or, for a column of two values, their distance: a rare flag that moves
    the quantiles far is important. With ten times the bandwidth, in these scales, a column moves the quantiles a tenth
    as fast (automatic relevance determination).

    Parameters
    ----------
    names : list of str
    importance : array of shape (columns,), between 0 and 1

    Attributes
    ----------
    ax_, figure_ : matplotlib Axes and Figure, after `plot`
    """

    names: list[str]
    importance: NDArray[np.float64]

    @classmethod
    def from_estimator(cls, estimator: Any, *, ax: "Axes | None" = None) -> Self:
        """Plot the columns of a model fitted with ``bandwidth="learned"``."""
        return cls.of(estimator).plot(ax=ax)

    @classmethod
    def of(cls, estimator: Any) -> Self:
        """Compute the display without drawing it; arguments as in `from_estimator`."""
        names, estimator = get_input_names(estimator), unwrap_tuned_estimator(estimator)
        choice = getattr(estimator, "bandwidth_choice_", None)
        if choice is None or not choice.rounds:
            raise ValueError(
                f"This {type(estimator).__name__} has no learned bandwidths to tell columns apart by. Fit it with "
                "bandwidth='learned' (bandwidths='learned' in a search), on enough rows."
            )
        inverse = 1 / np.array(choice.rounds[choice.best].bandwidth)
        named = names is not None and len(names) == len(inverse)
        labels = [str(name) for name in names] if named else [f"column {j}" for j in range(len(inverse))]
        return cls(labels, inverse / inverse.max())

    def plot(self, *, ax: "Axes | None" = None) -> Self:
        """Draw bars, the most important column on top, at most thirty."""
        order = np.argsort(-self.importance, kind="stable")[:MAX_COLUMNS][::-1]
        with house_style():
            ax = new_axes() if ax is None else ax
            dress(ax)
            ax.barh([self.names[j] for j in order], self.importance[order], color=BAND_DARK)
            ax.grid(False, axis="y")
            ax.set_xlim(0, 1)
            ax.set_xlabel("scale of the column / learned bandwidth; largest = 1")
        self.ax_, self.figure_ = ax, ax.figure
        return self
