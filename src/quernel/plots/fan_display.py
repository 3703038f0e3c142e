"""The fan of one column: how the quantiles run along it, the others held still or averaged over."""

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
GRID_POINTS = 200
AVERAGED_ROWS = 100
HALF_WIDTH = 0.35  # of the bars of a word
INCHES_PER_LETTER, MAX_LABEL_LENGTH = 0.08, 24  # of a word below its bar; of one that is written aslant


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
        estimator : fitted quantile regressor, a pipeline that ends in one, or a model of tables
        X, y : rows to draw and to take typical values from
        column : name or position
        others : {"typical", "average"}
            What the other columns are: their medians, or commonest words; or those of a hundred rows, over which the
            curves are averaged.
        quantiles : levels, or None for those that were fitted
        grid : where to compute the curves, times of day as such or as text (08:30); by default between the 0.5 % and
            the 99.5 % quantile of the column, or at its ten commonest words
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
        columns = split_columns(estimator, X)
        j = column_index(column, columns.names)
        points = make_grid(columns.values[j], GRID_POINTS) if grid is None else convert_grid(grid, columns.values[j])
        rows = columns.typical() if others == "typical" else columns.take(_some(columns.n_rows))
        n_rows = len(rows[0])
        filled = [np.tile(values, len(points)) for values in rows]
        filled[j] = np.repeat(points, n_rows)
        curves, levels = predict_quantiles(estimator, columns.assemble(filled), quantiles)
        curves = curves.reshape(len(points), n_rows, -1).mean(axis=1)
        order = np.argsort(levels)
        y = np.asarray(y, dtype=np.float64)
        return cls(columns.values[j], y, points, curves[:, order], levels[order], columns.names[j], y_label)

    def plot(self, *, ax: "Axes | None" = None) -> Self:
        """Draw as `fan_chart` does; words side by side, with their rows, which are scattered sideways."""
        words = self.grid.dtype.kind == "O"
        x, y, grid, curves = self._category_coordinates() if words else (self.x, self.y, self.grid, self.curves)
        ax = fan_chart(x, y, grid, curves, self.levels, ax=ax, x_label=self.x_label, y_label=self.y_label)
        if words:
            _label_categories(ax, [str(word) for word in self.grid])
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
        """The rows whose word is drawn, each somewhere above it, and curves that are flat along each word."""
        place = {str(word): k for k, word in enumerate(self.grid)}
        code = np.array([place.get(str(word), -1) for word in self.x])
        x = code + HALF_WIDTH * np.random.default_rng(0).uniform(-0.8, 0.8, len(code))
        grid = np.arange(len(self.grid))[:, None] + np.array([-HALF_WIDTH, HALF_WIDTH, 0.5])
        curves = np.repeat(self.curves, 3, axis=0)
        curves[2::3] = np.nan  # nothing runs from one word to the next
        return x[code >= 0], self.y[code >= 0], grid.ravel(), curves


def _label_categories(ax: "Axes", words: list[str]) -> None:
    """Words below their bars, aslant where they would run into each other; cut if the figure makes no room for that."""
    room = int(ax.get_position().width * ax.figure.get_figwidth() / len(words) / INCHES_PER_LETTER)
    if max(map(len, words)) <= room:
        ax.set_xticks(range(len(words)), words)
    elif ax.figure.get_layout_engine() is None:
        ax.set_xticks(range(len(words)), [cut(word, max(room, 4)) for word in words])
    else:
        words = [cut(word, MAX_LABEL_LENGTH) for word in words]
        ax.set_xticks(range(len(words)), words, rotation=30, ha="right", rotation_mode="anchor")


def column_index(column: int | str, names: list[str]) -> int:
    """The place of a column that is given by name or number."""
    if isinstance(column, str):
        if column not in names:
            raise ValueError(f"There is no column {column!r}. Its columns: {', '.join(names)}.")
        return names.index(column)
    if not 0 <= column < len(names):
        raise ValueError(f"column must be a name, or a number from 0 to {len(names) - 1}; got {column!r}.")
    return int(column)


def _some(n_rows: int) -> NDArray[np.intp]:
    """Some of the rows, always the same."""
    if n_rows <= AVERAGED_ROWS:
        return np.arange(n_rows)
    return np.sort(np.random.default_rng(0).choice(n_rows, AVERAGED_ROWS, replace=False))
