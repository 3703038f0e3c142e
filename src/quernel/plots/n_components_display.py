"""FeatureCountDisplay: the search for the number of random features."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from quernel.plots.checks import Floats
from quernel.plots.models import unwrap_tuned_estimator
from quernel.plots.style import ACCENT, LINE, dress, house_style, require_matplotlib

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Size of a new figure, in inches.
SIZE = (9.0, 3.8)


@dataclass(eq=False)
class FeatureCountDisplay:
    """Held-out loss and effective dimension against the number of random features, and the chosen number.

    Parameters
    ----------
    n_components : int array of shape (trials,), numbers of random features that were tried
    dimension : array of shape (trials,), effective dimension
    loss : array of shape (trials,), held-out loss; NaN where no fit was needed
    error : array of shape (trials,), standard error of the gain in loss over half as many features; NaN without a fit
    chosen : int, the number of random features
    reason : str, why the search stopped there

    Attributes
    ----------
    ax_, figure_ : pair of matplotlib Axes, and Figure, after `plot`
    """

    n_components: np.ndarray
    dimension: Floats
    loss: Floats
    error: Floats
    chosen: int
    reason: str

    @classmethod
    def from_estimator(cls, estimator: Any, *, ax: "tuple[Axes, Axes] | None" = None) -> Self:
        """Plot the search of an estimator that was fitted with ``n_components="auto"``."""
        return cls.of(estimator).plot(ax=ax)

    @classmethod
    def of(cls, estimator: Any) -> Self:
        """Compute the display without drawing it; arguments as in `from_estimator`."""
        estimator = unwrap_tuned_estimator(estimator)
        if not hasattr(estimator, "n_components_choice_"):
            raise ValueError(f"{type(estimator).__name__} has no random features. Fit an estimator of quernel instead.")
        choice = estimator.n_components_choice_
        if choice is None or not choice.trials:
            why = "was told its number of features" if choice is None else f"tried none: {choice.reason}"
            raise ValueError(
                f"This {type(estimator).__name__} {why.rstrip('.')}. Fit one with n_components='auto' on at least a "
                "thousand different rows."
            )
        trials = [(t.n_components, t.dimension, t.loss, t.error) for t in choice.trials]
        sizes, *others = np.array(trials, dtype=float).T  # None becomes NaN
        return cls(sizes.astype(int), *others, choice.n_components, choice.reason)

    def plot(self, *, ax: "tuple[Axes, Axes] | None" = None) -> Self:
        """Draw the display, on a pair of axes or a new figure."""
        require_matplotlib()
        from matplotlib.figure import Figure

        with house_style():
            axes = Figure(figsize=SIZE, layout="constrained").subplots(1, 2) if ax is None else np.asarray(ax)
            if np.shape(axes) != (2,):
                raise ValueError("ax must be a pair of axes: one for the loss and one for the effective dimension.")
            fitted = np.isfinite(self.loss)
            axes[0].errorbar(
                self.n_components[fitted],
                self.loss[fitted],
                np.nan_to_num(self.error[fitted]),
                fmt="o-",
                color=LINE,
                capsize=3,
            )
            axes[0].set_ylabel("held-out loss (bars: error of the gain)")
            axes[1].plot(self.n_components, self.dimension, "o-", color=LINE)
            axes[1].set_ylabel("effective dimension")
            axes[1].set_ylim(0, 1.1 * self.dimension.max())
            for one, values in zip(axes, (self.loss, self.dimension), strict=True):
                dress(one)
                chosen = self.n_components == self.chosen
                one.plot(self.n_components[chosen], values[chosen], "o", color=ACCENT, markersize=9, zorder=3)
                one.set_xscale("log", base=2)
                one.set_xticks(self.n_components, [f"{size:,}" for size in self.n_components])
                one.set_xlim(self.n_components[0] / 1.3, 1.3 * self.n_components[-1])
                one.set_xlabel("random features (orange: chosen)")
        self.ax_, self.figure_ = axes, axes[0].figure
        return self
