"""The fan of one column: how the quantiles run along it, the others held still or averaged over."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quernel.plots.checks import Floats, like, names_of
from quernel.plots.fan import fan_chart
from quernel.plots.models import predicted_levels

if TYPE_CHECKING:
    from matplotlib.axes import Axes

OTHERS = ("typical", "average")
# Beyond these quantiles of a column a few rows would be drawn as if they were known.
ENDS = (0.005, 0.995)
GRID_POINTS = 200
AVERAGED_ROWS = 100


@dataclass(eq=False)
class QuantileFanDisplay:
    """Quantile curves along one column, over the rows.

    x and y (n,) are the rows, grid (g,) and curves (g, q) the fan, levels (q,). Rows lie where their other columns put
    them: outside the fan of a typical row, they need not be wrong. After `plot`: ax_, figure_.
    """

    x: NDArray[Any]
    y: Floats
    grid: NDArray[Any]
    curves: Floats
    levels: Floats
    x_label: str | None = None
    y_label: str | None = None

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        y: ArrayLike,
        column: int | str,
        *,
        others: str = "typical",
        quantiles: ArrayLike | None = None,
        grid: ArrayLike | None = None,
        y_label: str | None = None,
        ax: "Axes | None" = None,
    ) -> Self:
        """Draw the quantiles of a fitted estimator along one column.

        Parameters
        ----------
        estimator : fitted quantile regressor
        X, y : rows to draw and to take typical values from
        column : name or position
        others : {"typical", "average"}
            What the other columns are: their medians; or those of a hundred rows, over which the curves are averaged.
        quantiles : levels, or None for those that were fitted
        grid : where to compute the curves; by default between the 0.5 % and the 99.5 % quantile of the column
        y_label : text
        ax : axes to draw on
        """
        return cls.of(estimator, X, y, column, others=others, quantiles=quantiles, grid=grid, y_label=y_label).plot(
            ax=ax
        )

    @classmethod
    def from_predictions(
        cls,
        x: ArrayLike,
        y_true: ArrayLike,
        grid: ArrayLike,
        curves: ArrayLike,
        quantiles: ArrayLike,
        *,
        x_label: str | None = None,
        y_label: str | None = None,
        ax: "Axes | None" = None,
    ) -> Self:
        """Draw curves that were computed elsewhere; arguments as in `fan_chart`."""
        arrays = np.asarray(x), np.asarray(y_true), np.asarray(grid), np.asarray(curves), np.asarray(quantiles)
        return cls(*arrays, x_label, y_label).plot(ax=ax)

    @classmethod
    def of(
        cls,
        estimator: Any,
        X: Any,
        y: ArrayLike,
        column: int | str,
        *,
        others: str = "typical",
        quantiles: ArrayLike | None = None,
        grid: ArrayLike | None = None,
        y_label: str | None = None,
    ) -> Self:
        """The numbers, not drawn yet."""
        if others not in OTHERS:
            raise ValueError(f"others must be one of {OTHERS}; got {others!r}.")
        values = np.asarray(X, dtype=np.float64)
        if values.ndim != 2 or len(values) == 0:
            raise ValueError(f"X must have shape (n, d) with n > 0; got {values.shape}.")
        names = names_of(estimator, X)
        j = position(column, names)
        points = _grid(values[:, j]) if grid is None else np.sort(np.asarray(grid, dtype=np.float64).ravel())
        rows = np.median(values, axis=0)[None] if others == "typical" else _some(values)
        filled = np.repeat(rows[None], len(points), axis=0)  # (g, rows, d)
        filled[:, :, j] = points[:, None]
        curves, levels = predicted_levels(estimator, like(X, filled.reshape(-1, values.shape[1])), quantiles)
        curves = curves.reshape(len(points), len(rows), -1).mean(axis=1)
        order = np.argsort(levels)
        return cls(
            values[:, j], np.asarray(y, dtype=np.float64), points, curves[:, order], levels[order], names[j], y_label
        )

    def plot(self, *, ax: "Axes | None" = None) -> Self:
        """Draw as `fan_chart` does."""
        ax = fan_chart(
            self.x, self.y, self.grid, self.curves, self.levels, ax=ax, x_label=self.x_label, y_label=self.y_label
        )
        self.ax_, self.figure_ = ax, ax.figure
        return self


def position(column: int | str, names: list[str]) -> int:
    """The place of a column that is given by name or number."""
    if isinstance(column, str):
        if column not in names:
            raise ValueError(f"There is no column {column!r}. Its columns: {', '.join(names)}.")
        return names.index(column)
    if not 0 <= column < len(names):
        raise ValueError(f"column must be a name, or a number from 0 to {len(names) - 1}; got {column!r}.")
    return int(column)


def _grid(x: Floats) -> Floats:
    different = np.unique(x)
    return different if len(different) <= 10 else np.linspace(*np.quantile(x, ENDS), GRID_POINTS)


def _some(values: Floats) -> Floats:
    """Some of the rows, always the same."""
    if len(values) <= AVERAGED_ROWS:
        return values
    return values[np.sort(np.random.default_rng(0).choice(len(values), AVERAGED_ROWS, replace=False))]
