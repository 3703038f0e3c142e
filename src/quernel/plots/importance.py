"""Importance of columns: rise of the loss when one is permuted, and learned bandwidths of the kernel."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike

from quernel.metrics import pinball_loss
from quernel.plots.calibration import check_predictions
from quernel.plots.inputs import Floats, get_input_names, predict_quantiles, split_columns, unwrap_tuned_estimator
from quernel.plots.style import BAND_DARK, LINE, Display

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
    def from_estimator(cls, estimator: Any, X: Any, y: ArrayLike, *, ax: "Axes | None" = None, **options: Any) -> Self:
        """Compute the display and plot it on `ax`, or a new figure; the other arguments as in `compute`."""
        return cls.compute(estimator, X, y, **options).plot(ax=ax)

    @classmethod
    def compute(
        cls,
        estimator: Any,
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
    def from_estimator(cls, estimator: Any, *, ax: "Axes | None" = None) -> Self:
        """Plot the columns of a model fitted with ``bandwidth="learned"``."""
        return cls.compute(estimator).plot(ax=ax)

    @classmethod
    def compute(cls, estimator: Any) -> Self:
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

    def _draw(self, ax: "Axes") -> None:
        order = np.argsort(-self.importance, kind="stable")[:MAX_COLUMNS][::-1]
        ax.barh([self.names[j] for j in order], self.importance[order], color=BAND_DARK)
        ax.grid(False, axis="y")
        ax.set_xlim(0, 1)
        ax.set_xlabel("scale of the column / learned bandwidth; largest = 1")
