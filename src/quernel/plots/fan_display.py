"""QuantileFanDisplay: the quantiles of a model along one column, the others fixed or averaged over.

With averaging it is the partial dependence plot (Friedman 2001) of every quantile.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quernel.plots.checks import Floats
from quernel.plots.fan import fan_chart
from quernel.plots.models import predict_quantiles
from quernel.plots.style import cut
from quernel.plots.table_access import convert_grid, is_time_of_day, make_grid, split_columns

if TYPE_CHECKING:
    from matplotlib.axes import Axes

OTHERS = ("typical", "average")
# Points of the default grid, and rows over which others="average" averages.
GRID_POINTS = 200
AVERAGED_ROWS = 100
# Half the width of the bar of a category; neighbouring categories are 1 apart.
HALF_WIDTH = 0.35
# Width of a letter of a tick label, and the longest label that is written rotated.
INCHES_PER_LETTER, MAX_LABEL_LENGTH = 0.08, 24


@dataclass(eq=False)
class QuantileFanDisplay:
    """Fan chart of predicted quantiles along one column, over the data.

    The data vary in all columns and the curves in one: points outside the fan do not show that the model is wrong.

    Parameters
    ----------
    x, y : arrays of shape (n,), the column and the target
    grid : array of shape (g,), values of the column
    curves : array of shape (g, q), quantiles at these values
    levels : array of shape (q,), ascending
    x_label, y_label : str or None

    Attributes
    ----------
    ax_, figure_ : matplotlib Axes and Figure, after `plot`
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
        """Plot the quantiles of a fitted estimator along one column.

        Parameters
        ----------
        estimator : fitted quantile regressor, a pipeline that ends in one, or a TableModel
        X, y : data to draw, and to take the values of the other columns from
        column : name or position
        others : {"typical", "average"}, default="typical"
            Values of the other columns. "typical": their medians, or most frequent categories. "average": those of a
            sample of a hundred rows, over which the curves are averaged (partial dependence).
        quantiles : levels, or None for the fitted ones
        grid : array-like of values of the column
            By default between its 0.5 % and 99.5 % quantiles, or at its ten most frequent categories. Times of day may
            be `datetime.time` or text such as 08:30.
        y_label : str or None
        ax : matplotlib Axes, or None for a new figure
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
        """Plot given curves; arguments as in `fan_chart`."""
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
        """Compute the display without drawing it; arguments as in `from_estimator`."""
        if others not in OTHERS:
            raise ValueError(f"others must be one of {OTHERS}; got {others!r}.")
        columns = split_columns(estimator, X)
        j = column_index(column, columns.names)
        points = make_grid(columns.values[j], GRID_POINTS) if grid is None else convert_grid(grid, columns.values[j])
        rows = columns.typical() if others == "typical" else columns.take(_some(columns.n_rows))
        n_rows = len(rows[0])
        # All rows at the first point of the grid, then all rows at the second, ...
        product = [np.tile(values, len(points)) for values in rows]
        product[j] = np.repeat(points, n_rows)
        curves, levels = predict_quantiles(estimator, columns.assemble(product), quantiles)
        curves = curves.reshape(len(points), n_rows, -1).mean(axis=1)
        order = np.argsort(levels)
        y = np.asarray(y, dtype=np.float64)
        return cls(columns.values[j], y, points, curves[:, order], levels[order], columns.names[j], y_label)

    def plot(self, *, ax: "Axes | None" = None) -> Self:
        """Draw the display as `fan_chart` does; categories side by side, with their rows jittered."""
        categorical = self.grid.dtype.kind == "O"
        x, y, grid, curves = self._category_coordinates() if categorical else (self.x, self.y, self.grid, self.curves)
        ax = fan_chart(x, y, grid, curves, self.levels, ax=ax, x_label=self.x_label, y_label=self.y_label)
        if categorical:
            _label_categories(ax, [str(category) for category in self.grid])
            ax.grid(False, axis="x")
        if self.grid.dtype.kind == "M":
            from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, DateFormatter

            locator = AutoDateLocator()
            ax.xaxis.set_major_locator(locator)
            times = is_time_of_day(self.grid)
            ax.xaxis.set_major_formatter(DateFormatter("%H:%M") if times else ConciseDateFormatter(locator))
        self.ax_, self.figure_ = ax, ax.figure
        return self

    def _category_coordinates(self) -> tuple[Floats, Floats, Floats, Floats]:
        """Return x, y, grid and curves with category k at position k.

        Rows of categories outside the grid are left out, and the others are jittered within the bar. Curves are
        constant along each bar, which has two points; a third one of NaN separates it from the next.
        """
        codes = {str(category): k for k, category in enumerate(self.grid)}
        code = np.array([codes.get(str(category), -1) for category in self.x])
        x = code + HALF_WIDTH * np.random.default_rng(0).uniform(-0.8, 0.8, len(code))
        grid = np.arange(len(self.grid))[:, None] + np.array([-HALF_WIDTH, HALF_WIDTH, 0.5])
        curves = np.repeat(self.curves, 3, axis=0)
        curves[2::3] = np.nan
        return x[code >= 0], self.y[code >= 0], grid.ravel(), curves


def _label_categories(ax: "Axes", labels: list[str]) -> None:
    """Set tick labels, rotated where they would overlap; truncated if no layout engine makes room for rotated ones."""
    n_letters = int(ax.get_position().width * ax.figure.get_figwidth() / len(labels) / INCHES_PER_LETTER)
    if max(map(len, labels)) <= n_letters:
        ax.set_xticks(range(len(labels)), labels)
    elif ax.figure.get_layout_engine() is None:
        ax.set_xticks(range(len(labels)), [cut(label, max(n_letters, 4)) for label in labels])
    else:
        labels = [cut(label, MAX_LABEL_LENGTH) for label in labels]
        ax.set_xticks(range(len(labels)), labels, rotation=30, ha="right", rotation_mode="anchor")


def column_index(column: int | str, names: list[str]) -> int:
    """Return the position of a column that is given by name or position."""
    if isinstance(column, str):
        if column not in names:
            raise ValueError(f"There is no column {column!r}. Its columns: {', '.join(names)}.")
        return names.index(column)
    if not 0 <= column < len(names):
        raise ValueError(f"column must be a name, or a number from 0 to {len(names) - 1}; got {column!r}.")
    return int(column)


def _some(n_rows: int) -> NDArray[np.intp]:
    """Return sorted positions of a random sample of rows, the same in every call; all rows if they are few."""
    if n_rows <= AVERAGED_ROWS:
        return np.arange(n_rows)
    return np.sort(np.random.default_rng(0).choice(n_rows, AVERAGED_ROWS, replace=False))
