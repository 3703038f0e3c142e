"""Which columns do the predictions rest on? The loss that shuffling each of them costs."""

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

MAX_COLUMNS = 30


@dataclass(eq=False)
class PermutationImportanceDisplay:
    """By how much the mean pinball loss rises when a column is shuffled among the rows, as a share of the loss.

    names and increase (columns, repeats). 0.3 means that the loss rises by 30 % without what the column says; columns
    that say the same thing stand in for one another, and each then seems to matter little. After `plot`: ax_, figure_.
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
        """Draw the columns of a fitted estimator, judged on rows that it has not seen.

        together : columns that are shuffled as one, {name: positions}; by default each by itself
        """
        made = cls.of(
            estimator, X, y, quantiles=quantiles, together=together, n_repeats=n_repeats, random_state=random_state
        )
        return made.plot(ax=ax)

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
        """The numbers, not drawn yet."""
        if not n_repeats >= 1:
            raise ValueError(f"n_repeats must be 1 or more; got {n_repeats!r}.")
        curves, levels = predict_quantiles(estimator, X, quantiles)
        target, _, _ = check_predictions(y, curves, levels)
        columns = split_columns(estimator, X)
        if together is None:
            together = {name: [j] for j, name in enumerate(columns.names)}
        loss = float(np.mean(pinball_loss(target, curves, levels)))
        if loss == 0:
            raise ValueError("The predictions are perfect on these rows, so that no share of their loss can be told.")
        rng = np.random.default_rng(random_state)
        orders = [rng.permutation(columns.n_rows) for _ in range(n_repeats)]  # the same for every column
        increase = np.empty((len(together), n_repeats))
        for i, members in enumerate(together.values()):
            for k, order in enumerate(orders):
                shuffled = [column[order] if j in members else column for j, column in enumerate(columns.values)]
                curves, _ = predict_quantiles(estimator, columns.assemble(shuffled), levels)
                increase[i, k] = float(np.mean(pinball_loss(target, curves, levels))) / loss - 1
        return cls(list(together), increase, loss)

    def plot(self, *, ax: "Axes | None" = None) -> Self:
        """Draw bars with the range over repeats, the most important column on top; of many columns the first thirty."""
        mean = self.increase.mean(axis=1)
        order = np.argsort(-mean, kind="stable")[:MAX_COLUMNS][::-1]
        with house_style():
            ax = new_axes() if ax is None else ax
            dress(ax)
            places = np.arange(len(order))
            ax.barh(places, 100 * mean[order], color=BAND_DARK, height=0.7)
            ends = 100 * self.increase[order].min(axis=1), 100 * self.increase[order].max(axis=1)
            ax.hlines(places, *ends, color=LINE, linewidth=1.4)
            ax.set_yticks(places, [self.names[j] for j in order])
            ax.grid(False, axis="y")
            ax.set_xlabel("rise of the pinball loss when the column is shuffled, per cent")
        self.ax_, self.figure_ = ax, ax.figure
        return self
