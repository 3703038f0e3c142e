"""What tuning found: held-out loss along the ridge weights, and how much each column matters."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from quernel.plots.models import get_input_names, unwrap_tuned_estimator
from quernel.plots.style import ACCENT, BAND_DARK, LINE, POINT, dress, house_style, new_axes, shades

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_COLUMNS = 30


@dataclass(eq=False)
class PathDisplay:
    """Held-out loss at every ridge weight, a line for every bandwidth, and the pair that was chosen.

    losses and errors (standard errors) have shape (bandwidths, alphas), alphas rising; chosen is (bandwidth, alpha) as
    positions in them. Not finite means not tried. After `plot`: ax_, figure_.
    """

    alphas: NDArray[np.float64]
    losses: NDArray[np.float64]
    errors: NDArray[np.float64]
    chosen: tuple[int, int]

    @classmethod
    def from_estimator(cls, estimator: Any, *, ax: "Axes | None" = None) -> Self:
        """Draw the search of a fitted `KernelQuantileRegressorCV`."""
        return cls.of(estimator).plot(ax=ax)

    @classmethod
    def of(cls, estimator: Any) -> Self:
        """The search of a fitted `KernelQuantileRegressorCV`, not drawn yet."""
        estimator = unwrap_tuned_estimator(estimator)
        if not hasattr(estimator, "cv_results_"):
            raise ValueError(
                f"{type(estimator).__name__} has no path of ridge weights. Fit a KernelQuantileRegressorCV instead."
            )
        results = estimator.cv_results_
        alphas = np.unique(results["param_alpha"])
        place = np.searchsorted(alphas, results["param_alpha"])
        given = results["param_alpha"]
        repeats = next((k for k in range(1, len(given)) if np.array_equal(given[:k], given[k : 2 * k])), len(given))
        row = np.arange(len(given)) // repeats
        losses, errors = (np.full((row[-1] + 1, len(alphas)), np.nan) for _ in range(2))
        losses[row, place] = -results["mean_test_score"]
        errors[row, place] = results["std_test_score"] / np.sqrt(max(estimator.n_splits_ - 1, 1))
        best = estimator.best_index_
        return cls(alphas, losses, errors, (int(row[best]), int(place[best])))

    def plot(self, *, ax: "Axes | None" = None) -> Self:
        """Draw; the band is one standard error (between splits) around the bandwidth that was chosen."""
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
            where = self.alphas[a], self.losses[b, a]
            ax.plot(*where, "o", color=ACCENT, markersize=7, label=f"chosen: alpha = {where[0]:.2g}")
            ax.set_xscale("log")
            ax.set_xlabel("ridge weight alpha (smoother to the right)")
            ax.set_ylabel("held-out pinball loss")
            ax.legend()
        self.ax_, self.figure_ = ax, ax.figure
        return self

    def _finite_points(self, k: int) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        tried = np.isfinite(self.losses[k])
        return self.alphas[tried], self.losses[k, tried], self.errors[k, tried]


@dataclass(eq=False)
class ImportanceDisplay:
    """How much each column matters to the kernel: its scale over its learned bandwidth, the largest being 1.

    The scale is the column's standard deviation or, of a column of two values, their distance: a rare flag that moves
    the quantiles far is important. A bandwidth ten times as long, in scales, moves the quantiles a tenth as fast.
    After `plot`: ax_, figure_.
    """

    names: list[str]
    importance: NDArray[np.float64]

    @classmethod
    def from_estimator(cls, estimator: Any, *, ax: "Axes | None" = None) -> Self:
        """Draw the columns of a model fitted with ``bandwidth="learned"``."""
        return cls.of(estimator).plot(ax=ax)

    @classmethod
    def of(cls, estimator: Any) -> Self:
        """The columns of a model fitted with ``bandwidth="learned"``, not drawn yet."""
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
        """Draw bars, the most important column on top; of many columns the first thirty."""
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
