"""PermutationImportanceDisplay: rise of the pinball loss when a column is permuted (Breiman 2001)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike

from quernel.metrics import pinball_loss
from quernel.plots.checks import Floats, check_predictions
from quernel.plots.models import predict_quantiles
from quernel.plots.style import BAND_DARK, LINE, dress, house_style, new_axes
from quernel.plots.table_access import split_columns

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Most bars of a plot.
MAX_COLUMNS = 30


@dataclass(eq=False)
class PermutationImportanceDisplay:
    """Permutation importance: relative rise of the mean pinball loss when a column is permuted among the rows.

    An increase of 0.3 means that the loss rises by 30 % without the information of the column. Of correlated columns
    each can stand in for the others, so that each alone seems unimportant: permute them together.

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
        cls,
        estimator: Any,
        X: Any,
        y: ArrayLike,
        *,
        quantiles: ArrayLike | None = None,
        together: Mapping[str, Sequence[int]] | None = None,
        n_repeats: int = 5,
        random_state: int = 0,
        ax: "Axes | None" = None,
    ) -> Self:
        """Plot the permutation importance of the columns of a fitted estimator, on test data.

        Parameters
        ----------
        estimator : fitted quantile regressor, a pipeline that ends in one, or a TableModel
        X, y : test data, not used for training
        quantiles : levels, or None for the fitted ones
        together : dict of name to positions of columns
            Groups of columns that are permuted jointly; by default each column is permuted by itself.
        n_repeats : int, number of permutations
        random_state : int, seed of the permutations, which are the same for every column
        ax : matplotlib Axes, or None for a new figure
        """
        display = cls.of(
            estimator, X, y, quantiles=quantiles, together=together, n_repeats=n_repeats, random_state=random_state
        )
        return display.plot(ax=ax)

    @classmethod
    def of(
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
        """Compute the display without drawing it; arguments as in `from_estimator`."""
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

    def plot(self, *, ax: "Axes | None" = None) -> Self:
        """Draw the means as bars and the range over repeats as lines, for the thirty most important columns at most."""
        mean = self.increase.mean(axis=1)
        order = np.argsort(-mean, kind="stable")[:MAX_COLUMNS][::-1]
        with house_style():
            ax = new_axes() if ax is None else ax
            dress(ax)
            positions = np.arange(len(order))
            ax.barh(positions, 100 * mean[order], color=BAND_DARK, height=0.7)
            extremes = 100 * self.increase[order].min(axis=1), 100 * self.increase[order].max(axis=1)
            ax.hlines(positions, *extremes, color=LINE, linewidth=1.4)
            ax.set_yticks(positions, [self.names[j] for j in order])
            ax.grid(False, axis="y")
            ax.set_xlabel("rise of the pinball loss when the column is shuffled, per cent")
        self.ax_, self.figure_ = ax, ax.figure
        return self
