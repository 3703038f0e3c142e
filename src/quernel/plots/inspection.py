"""What a fit rests on: columns that matter, searches for hyperparameters, and the number of features by theory."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quernel.metrics import pinball_loss
from quernel.plots.calibration import check_predictions
from quernel.plots.inputs import (
    Floats,
    Model,
    get_input_names,
    predict_quantiles,
    split_columns,
    unwrap_tuned_estimator,
)
from quernel.plots.style import (
    ACCENT,
    BAND_DARK,
    BAND_PALE,
    INK,
    LINE,
    POINT,
    Display,
    house_style,
    require_matplotlib,
    shades,
)
from quernel.theory import feature_exponent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import QuadMesh
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure


# Most bars of a plot.
MAX_COLUMNS = 30


@dataclass(eq=False)
class PermutationImportanceDisplay(Display):
    """Permutation importance: relative rise of the mean pinball loss when a column is permuted (Breiman 2001).

    An increase of 0.3 means that the loss rises by 30 % without the information of the column. Of correlated columns
    each can stand in for the others, so that each alone seems unimportant: permute them together. Bars are means and
    lines ranges over the repeats, of the thirty most important columns at most.

    Parameters
    ----------
    names : list of str, of the columns or groups of columns
    increase : array of shape (columns, repeats), loss after permutation / loss - 1
    loss : float, mean pinball loss over rows and levels, without permutation

    Attributes
    ----------
    ax_, figure_ : matplotlib Axes and Figure, after `plot`
    """

    names: list[str]
    increase: Floats
    loss: float

    @classmethod
    def from_estimator(
        cls, estimator: Model, X: Any, y: ArrayLike, *, ax: "Axes | None" = None, **options: Any
    ) -> Self:
        """Compute the display and plot it on `ax`, or a new figure; the other arguments as in `compute`."""
        return cls.compute(estimator, X, y, **options).plot(ax=ax)

    @classmethod
    def compute(
        cls,
        estimator: Model,
        X: Any,
        y: ArrayLike,
        *,
        quantiles: ArrayLike | None = None,
        together: Mapping[str, Sequence[int]] | None = None,
        n_repeats: int = 5,
        random_state: int = 0,
    ) -> Self:
        """Compute the permutation importance of the columns of a fitted estimator, on test data, without drawing it.

        Parameters
        ----------
        estimator : fitted quantile regressor, a pipeline that ends in one, or a TableModel
        X, y : test data, not used for training
        quantiles : levels, or None for the fitted ones
        together : dict of name to positions of columns
            Groups of columns that are permuted jointly; by default each column is permuted by itself.
        n_repeats : int, number of permutations
        random_state : int, seed of the permutations, which are the same for every column
        """
        if not n_repeats >= 1:
            raise ValueError(f"n_repeats must be 1 or more; got {n_repeats!r}.")
        curves, levels = predict_quantiles(estimator, X, quantiles)
        target, _, _ = check_predictions(y, curves, levels)
        columns = split_columns(estimator, X)
        if together is None:
            together = {name: [j] for j, name in enumerate(columns.names)}
        loss = float(np.mean(pinball_loss(target, curves, levels)))
        if loss == 0:
            raise ValueError(
                "The predictions are perfect on these rows: their loss is 0, and its relative rise undefined."
            )
        rng = np.random.default_rng(random_state)
        # The same permutations for every column: their noise then cancels in comparisons of columns.
        permutations = [rng.permutation(columns.n_rows) for _ in range(n_repeats)]
        increase = np.empty((len(together), n_repeats))
        for i, members in enumerate(together.values()):
            for k, permutation in enumerate(permutations):
                permuted = [column[permutation] if j in members else column for j, column in enumerate(columns.values)]
                curves, _ = predict_quantiles(estimator, columns.assemble(permuted), levels)
                increase[i, k] = float(np.mean(pinball_loss(target, curves, levels))) / loss - 1
        return cls(list(together), increase, loss)

    @property
    def order(self) -> np.ndarray:
        """Positions of the columns, the most important one first, shape (columns,)."""
        return np.argsort(-self.increase.mean(axis=1), kind="stable")

    def _draw(self, ax: "Axes") -> None:
        order = self.order[:MAX_COLUMNS][::-1]
        increase, positions = 100 * self.increase[order], np.arange(len(order))
        ax.barh(positions, 100 * self.increase.mean(axis=1)[order], color=BAND_DARK, height=0.7)
        ax.hlines(positions, increase.min(axis=1), increase.max(axis=1), color=LINE, linewidth=1.4)
        ax.set_yticks(positions, [self.names[j] for j in order])
        ax.grid(False, axis="y")
        ax.set_xlabel("rise of the pinball loss when the column is shuffled, per cent")


@dataclass(eq=False)
class ImportanceDisplay(Display):
    """Importance of each column to the kernel: its scale / its learned bandwidth, relative to the largest.

    The scale is the column's standard deviation or, for a column of two values, their distance: a rare flag that moves
    the quantiles far is important. With ten times the bandwidth, in these scales, a column moves the quantiles a tenth
    as fast (automatic relevance determination). The most important column is drawn on top, at most thirty.

    Parameters
    ----------
    names : list of str
    importance : array of shape (columns,), between 0 and 1

    Attributes
    ----------
    ax_, figure_ : matplotlib Axes and Figure, after `plot`
    """

    names: list[str]
    importance: Floats

    @classmethod
    def from_estimator(cls, estimator: Model, *, ax: "Axes | None" = None) -> Self:
        """Plot the columns of a model fitted with ``bandwidth="learned"``."""
        return cls.compute(estimator).plot(ax=ax)

    @classmethod
    def compute(cls, estimator: Model) -> Self:
        """Compute the display without drawing it; arguments as in `from_estimator`."""
        names, estimator = get_input_names(estimator), unwrap_tuned_estimator(estimator)
        choice = getattr(estimator, "bandwidth_choice_", None)
        if choice is None or not choice.rounds:
            raise ValueError(
                f"This {type(estimator).__name__} has no learned bandwidths to tell columns apart by. Fit it with "
                "bandwidth='learned' (bandwidths='learned' in a search), on enough rows."
            )
        inverse = 1 / np.array(choice.rounds[choice.best].bandwidth)
        if names is None or len(names) != len(inverse):
            names = [f"column {j}" for j in range(len(inverse))]
        return cls([str(name) for name in names], inverse / inverse.max())

    def _draw(self, ax: "Axes") -> None:
        order = np.argsort(-self.importance, kind="stable")[:MAX_COLUMNS][::-1]
        ax.barh([self.names[j] for j in order], self.importance[order], color=BAND_DARK)
        ax.grid(False, axis="y")
        ax.set_xlim(0, 1)
        ax.set_xlabel("scale of the column / learned bandwidth; largest = 1")


# Of the plot of `feature_map`: the colour of the region 2r + gamma < 1, about which the theory says nothing, the points
# of the grid along either axis, and the exponent from which on contour lines are white, the colours beneath being dark.
NO_THEOREM, GRID_STEPS, DARK_FROM = "#f2f2f2", 241, 0.75
# Range of r in either case of the theory.
CASES = {"agnostic": (0.0, 0.5), "realizable": (0.5, 1.0)}
SAMPLINGS = ("uniform", "leverage")


@dataclass(eq=False)
class PathDisplay(Display):
    """Regularization path: held-out loss against the ridge weight, one line per bandwidth, and the chosen pair.

    The band is one standard error (between splits) around the line of the chosen bandwidth.

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

    alphas: Floats
    losses: Floats
    errors: Floats
    chosen: tuple[int, int]

    @classmethod
    def from_estimator(cls, estimator: Model, *, ax: "Axes | None" = None) -> Self:
        """Plot the search of a fitted `KernelQuantileRegressorCV`."""
        return cls.compute(estimator).plot(ax=ax)

    @classmethod
    def compute(cls, estimator: Model) -> Self:
        """Compute the display without drawing it; arguments as in `from_estimator`."""
        estimator = unwrap_tuned_estimator(estimator)
        if not hasattr(estimator, "cv_results_"):
            raise ValueError(
                f"{type(estimator).__name__} has no path of ridge weights. Fit a KernelQuantileRegressorCV instead."
            )
        results = estimator.cv_results_
        listed = results["param_alpha"]
        alphas = np.unique(listed)
        column = np.searchsorted(alphas, listed)
        # The results list all alphas of the first bandwidth, then all of the second, ...: find the period.
        period = next((k for k in range(1, len(listed)) if np.array_equal(listed[:k], listed[k : 2 * k])), len(listed))
        row = np.arange(len(listed)) // period
        losses, errors = (np.full((row[-1] + 1, len(alphas)), np.nan) for _ in range(2))
        losses[row, column] = -results["mean_test_score"]
        errors[row, column] = results["std_test_score"] / np.sqrt(max(estimator.n_splits_ - 1, 1))
        best = estimator.best_index_
        return cls(alphas, losses, errors, (int(row[best]), int(column[best])))

    def _draw(self, ax: "Axes") -> None:
        b, a = self.chosen
        others = [k for k in range(len(self.losses)) if k != b]
        for k in others:
            label = "other bandwidths" if k == others[0] else None
            ax.plot(*self._finite_points(k)[:2], color=POINT, alpha=0.4, linewidth=1, label=label)
        x, loss, error = self._finite_points(b)
        if error.any():
            band, colour = (loss - error, loss + error), shades(1)[0]
            ax.fill_between(x, *band, color=colour, alpha=0.6, linewidth=0, label="± one standard error")
        ax.plot(x, loss, color=LINE, linewidth=1.8, label="bandwidth chosen")
        point = self.alphas[a], self.losses[b, a]
        ax.plot(*point, "o", color=ACCENT, markersize=7, label=f"chosen: alpha = {point[0]:.2g}")
        ax.set_xscale("log")
        ax.set_xlabel("ridge weight alpha (smoother to the right)")
        ax.set_ylabel("held-out pinball loss")
        ax.legend()

    def _finite_points(self, k: int) -> tuple[Floats, Floats, Floats]:
        """Return alphas, losses and errors of bandwidth k, where they were computed."""
        finite = np.isfinite(self.losses[k])
        return self.alphas[finite], self.losses[k, finite], self.errors[k, finite]


@dataclass(eq=False)
class FeatureCountDisplay(Display):
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

    panels: ClassVar = ("the loss", "the effective dimension")
    size: ClassVar = (9.0, 3.8)

    n_components: NDArray[np.intp]
    dimension: Floats
    loss: Floats
    error: Floats
    chosen: int
    reason: str

    @classmethod
    def from_estimator(cls, estimator: Model, *, ax: "tuple[Axes, Axes] | None" = None) -> Self:
        """Plot the search of an estimator that was fitted with ``n_components="auto"``."""
        return cls.compute(estimator).plot(ax=ax)

    @classmethod
    def compute(cls, estimator: Model) -> Self:
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
        sizes, dimension, loss, error = np.array(trials, dtype=float).T  # None becomes NaN
        return cls(sizes.astype(int), dimension, loss, error, choice.n_components, choice.reason)

    def _draw(self, ax: Any) -> None:
        sizes, fitted, chosen = self.n_components, np.isfinite(self.loss), self.n_components == self.chosen
        bars = np.nan_to_num(self.error[fitted])
        ax[0].errorbar(sizes[fitted], self.loss[fitted], bars, fmt="o-", color=LINE, capsize=3)
        ax[0].set_ylabel("held-out loss (bars: error of the gain)")
        ax[1].plot(sizes, self.dimension, "o-", color=LINE)
        ax[1].set_ylabel("effective dimension")
        ax[1].set_ylim(0, 1.1 * self.dimension.max())
        for one, values in zip(ax, (self.loss, self.dimension), strict=True):
            one.plot(sizes[chosen], values[chosen], "o", color=ACCENT, markersize=9, zorder=3)
            one.set_xscale("log", base=2)
            one.set_xticks(sizes, [f"{size:,}" for size in sizes])
            one.set_xlim(sizes[0] / 1.3, 1.3 * sizes[-1])
            one.set_xlabel("random features (orange: chosen)")


def exponent_grid(case: str, sampling: str) -> tuple[Floats, Floats, Floats]:
    """Compute the exponent c in M = n^c on a grid of (r, gamma).

    r is the source condition (smoothness of the target) and gamma the capacity condition (size of the kernel's space).

    Parameters
    ----------
    case : {"agnostic", "realizable"}
        r between 0 and 1/2, or between 1/2 and 1.
    sampling : {"uniform", "leverage"}
        How the random features are sampled.

    Returns
    -------
    r, gamma : arrays of shape (s,)
    c : array of shape (s, s), one row per gamma; NaN where there is no theorem
    """
    if case not in CASES or sampling not in SAMPLINGS:
        raise ValueError(
            f"case must be one of {tuple(CASES)} and sampling one of {SAMPLINGS}; got {case!r}, {sampling!r}."
        )
    r, gamma = np.linspace(*CASES[case], GRID_STEPS), np.linspace(0, 1, GRID_STEPS)
    R, G = np.meshgrid(r, gamma)
    known = (2 * R + G >= 1 - 1e-12) & (R > 0)
    c = np.full(R.shape, np.nan)
    c[known] = feature_exponent(R[known], G[known], 1.0 if sampling == "uniform" else G[known])
    return r, gamma, c


def feature_map(point: tuple[float, float] | None = None) -> "Figure":
    """Plot c in M = n^c over (r, gamma), Figure 1 of the paper.

    Four panels: uniform and leverage sampling, agnostic and realizable case.

    Parameters
    ----------
    point : (r, gamma) to mark, or None

    Returns
    -------
    matplotlib Figure, for ``save_figure``
    """
    require_matplotlib()
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.figure import Figure

    with house_style():
        figure = Figure(figsize=(8.0, 7.4), layout="constrained")
        axes = figure.subplots(2, 2, sharey=True)
        palette = LinearSegmentedColormap.from_list("house", ["white", BAND_PALE, BAND_DARK, LINE])
        colours = palette.with_extremes(bad=NO_THEOREM)
        for row, case in zip(axes, CASES, strict=True):
            for ax, sampling in zip(row, SAMPLINGS, strict=True):
                image = _draw_panel(ax, case, sampling, colours)
                ax.set_title(f"{case.capitalize()}, {sampling} sampling", loc="left")
                if point is not None and (point[0] < 0.5) == (case == "agnostic"):
                    ax.plot(*point, "o", color=ACCENT, markersize=7, markeredgecolor="white", clip_on=False, zorder=5)
            row[0].set_ylabel(r"capacity $\gamma$: size of the kernel's space")
        for ax in axes[1]:
            ax.set_xlabel("source $r$: smoothness of the target")
        bar = figure.colorbar(image, ax=axes, shrink=0.7, pad=0.02, ticks=np.linspace(0, 1, 6))
        bar.set_label("$c$, where $M = n^c$ random features suffice")
        bar.outline.set_visible(False)
        figure.suptitle("Random features needed for the optimal rate", fontweight="bold", color=INK)
    return figure


def _draw_panel(ax: "Axes", case: str, sampling: str, colours: "Colormap") -> "QuadMesh":
    """Draw the colours and contour lines of one panel, and return the colour mesh."""
    r, gamma, c = exponent_grid(case, sampling)
    image = ax.pcolormesh(r, gamma, np.ma.masked_invalid(c), cmap=colours, vmin=0, vmax=1, rasterized=True)
    levels = np.arange(1, 10) / 10
    colors = [INK if level < DARK_FROM else "white" for level in levels]
    lines = ax.contour(r, gamma, c, levels=levels, colors=colors, linewidths=0.6)
    # Labels are in the middle of each line: where matplotlib puts them, the frame may cut them off.
    middles = [part[len(part) // 2] for parts in lines.allsegs for part in parts if len(part) > 10]
    ax.clabel(lines, fmt="%.1f", fontsize=8, manual=middles)
    if case == "agnostic":
        ax.fill([0, 0.5, 0], [0, 0, 1], color=NO_THEOREM, linewidth=0, zorder=1.5)  # a clean edge over the grid's steps
        ax.text(0.16, 0.25, "$2r + \\gamma < 1$:\nno theorem", color=INK, fontsize=9, ha="center", va="center")
    ax.set_xlim(*CASES[case])
    ax.set_ylim(0, 1)
    ax.spines[["top", "right"]].set_visible(False)
    return image
