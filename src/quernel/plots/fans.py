"""Fan charts: nested bands between pairs of quantile curves and the median, over the data.

`fan_chart` draws given curves; `QuantileFanDisplay` computes those of a model along one column.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quernel.plots.inputs import (
    GRID,
    Floats,
    Model,
    Values,
    convert_grid,
    find_column,
    is_time_of_day,
    make_grid,
    predict_quantiles,
    split_columns,
    to_seconds,
)
from quernel.plots.style import (
    ACCENT,
    BAND_DARK,
    LINE,
    POINT,
    RC,
    Display,
    format_percent,
    house_style,
    new_axes,
    shades,
    style_axes,
    truncate,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Tolerance in  p + q = 1  for the levels of a band: 1 - 0.9 is not 0.1 in floating point.
SAME_LEVEL = 1e-9
# Line styles of levels that belong to no band.
DASHES: list[Any] = ["--", ":", "-.", (0, (6, 1.5)), (0, (3, 1, 1, 1, 1, 1))]
# Of more bands the legend names so many, evenly chosen.
MAX_BANDS_IN_LEGEND = 5
OTHERS = ("typical", "average", "similar")
# Points of the default grid, and rows over which others="average" and others="similar" average.
GRID_POINTS = 200
AVERAGED_ROWS, SIMILAR_ROWS = 100, 2000
# Half the width of the bar of a category; neighbouring categories are 1 apart.
HALF_WIDTH = 0.35
# Similar rows: those within this share of the span of the grid, but at least so many, or a tenth of the rows.
NEAR_SHARE, NEAR_ROWS = 0.05, 40
# Width of a letter of a tick label, and the longest label that is written rotated.
INCHES_PER_LETTER, MAX_LABEL_LENGTH = 0.08, 24


class FanParts(NamedTuple):
    """Columns of the curves, by what they are drawn as."""

    bands: list[tuple[int, int]]
    """Pairs (lower, upper) with levels p and 1 - p, outermost first."""
    median: int | None
    """The level 1/2, if there is one."""
    singles: list[int]
    """Levels p for which there is no 1 - p."""


def fan_chart(
    x: ArrayLike,
    y: ArrayLike,
    grid: ArrayLike,
    curves: ArrayLike,
    quantiles: ArrayLike,
    *,
    ax: "Axes | None" = None,
    x_label: str | None = None,
    y_label: str | None = None,
    title: str | None = None,
    max_points: int = 4000,
) -> "Axes":
    """Plot quantile curves as nested bands over a scatter plot of the data.

    Levels p and 1 - p make a band, the widest one the palest; the level 1/2 is a line; any other level is a dashed line
    with an entry in the legend.

    Parameters
    ----------
    x, y : arrays of shape (n,), the data
    grid : array of shape (g,), where the curves were computed
    curves : array of shape (g, q), one column per level; (g,) if quantiles is a single number
    quantiles : array of shape (q,), levels in strictly ascending order, each strictly between 0 and 1
    ax : matplotlib Axes; by default those of a new figure, which is ``ax.figure``
    x_label, y_label, title : str or None
    max_points : int, default=4000
        Of more rows a random sample of this size is drawn, the same one in every call. 0 draws no points.

    Returns
    -------
    matplotlib Axes

    Examples
    --------
    >>> ax = fan_chart(x, y, grid, model.predict(grid[:, None]), model.quantiles_)  # doctest: +SKIP
    >>> save_figure(ax.figure, "fan.png")  # doctest: +SKIP
    """
    x, y, grid, curves, levels = _check_arguments(x, y, grid, curves, quantiles, max_points)
    parts = pair_levels(levels)
    with house_style():
        ax = new_axes() if ax is None else ax
        style_axes(ax)
        handles = _draw_points(ax, x, y, max_points)
        if parts.median is not None:
            handles += ax.plot(grid, curves[:, parts.median], color=LINE, linewidth=1.8, zorder=3, label="median")
        handles += _draw_bands(ax, grid, curves, levels)
        for k, i in enumerate(parts.singles):
            line = {"linestyle": DASHES[k % len(DASHES)], "label": f"{format_percent(levels[i])} quantile"}
            handles += ax.plot(grid, curves[:, i], color=ACCENT, linewidth=1.4, zorder=3, **line)
        _add_labels(ax, handles, x_label, y_label, title)
    return ax


def pair_levels(levels: Floats) -> FanParts:
    """Divide the ascending levels into pairs p, 1 - p, the median and the rest."""
    mirror = np.abs(levels[:, None] + levels[None, :] - 1) < SAME_LEVEL
    bands = [(int(i), int(j)) for i, j in zip(*np.nonzero(mirror), strict=True) if i < j]
    median = next((int(i) for i in np.flatnonzero(mirror.diagonal())), None)
    singles = [int(i) for i in np.flatnonzero(~mirror.any(axis=1))]
    return FanParts(bands, median, singles)


def _draw_points(ax: "Axes", x: Values, y: Floats, max_points: int) -> list[Any]:
    """Draw the scatter plot of (a sample of) the rows, and return its legend handle."""
    from matplotlib.lines import Line2D

    if len(y) > max_points:
        # A random sample, because every k-th row can be in phase with a period of the data, e.g. show one hour of each
        # day. The seed is fixed so that the same data give the same plot.
        chosen = np.sort(np.random.default_rng(0).choice(len(y), size=max_points, replace=False))
        x, y = x[chosen], y[chosen]
    if len(y) == 0:
        return []
    # More points are more transparent, or a dense cloud would hide the bands beneath it. They are rasterized, because
    # thousands of vector points make a PDF slow to open.
    alpha = float(np.clip(12 / np.sqrt(len(y)), 0.12, 0.6))
    ax.scatter(x, y, s=4, color=POINT, alpha=alpha, linewidths=0, zorder=2.5, rasterized=True)
    # The legend has an opaque marker of its own: a single one as transparent as the points could not be seen.
    return [Line2D([], [], linestyle="", marker="o", markersize=4, color=POINT, markeredgewidth=0, label="data")]


def _draw_bands(ax: "Axes", grid: Values, curves: Floats, levels: Floats) -> list[Any]:
    """Fill the bands, outermost first so that inner ones are on top; return their legend handles."""
    bands, filled = pair_levels(levels).bands, []
    for (low, high), colour in zip(bands, shades(len(bands)), strict=True):
        band, label = curves[:, [low, high]].T, f"middle {format_percent(levels[high] - levels[low])}"
        filled.append(ax.fill_between(grid, *band, color=colour, linewidth=0, zorder=2, label=label))
    for outermost in bands[:1]:  # a thin outline keeps the palest band visible beneath points, and in print
        ax.plot(grid, curves[:, outermost], color=BAND_DARK, linewidth=0.7, zorder=2.6)
    named = np.unique(np.linspace(0, len(filled) - 1, min(len(filled), MAX_BANDS_IN_LEGEND)).round().astype(int))
    return [filled[i] for i in named[::-1]]  # from the median outwards


def _add_labels(ax: "Axes", handles: list[Any], x_label: str | None, y_label: str | None, title: str | None) -> None:
    """Set labels and title, and put the legend above the axes, where it hides no data."""
    if x_label is not None:
        ax.set_xlabel(x_label)
    if y_label is not None:
        ax.set_ylabel(y_label)
    columns = min(len(handles), 4 if len(handles) > 5 else 5)
    ax.legend(
        handles=handles,
        loc="lower left",
        bbox_to_anchor=(0, 1.01),
        ncols=columns,
        borderaxespad=0,
        borderpad=0.3,
        handlelength=1.5,
        columnspacing=1.4,
        handletextpad=0.5,
    )
    if title is not None:
        rows = -(-len(handles) // columns)
        ax.set_title(title, loc="left", pad=12 + rows * 1.5 * RC["legend.fontsize"])


def _check_arguments(
    x: ArrayLike, y: ArrayLike, grid: ArrayLike, curves: ArrayLike, quantiles: ArrayLike, max_points: int
) -> tuple[Values, Floats, Values, Floats, Floats]:
    """Validate the arguments of `fan_chart`; return x, y, grid, curves and levels as arrays, the grid ascending."""
    levels = np.atleast_1d(np.asarray(quantiles, dtype=np.float64))
    if levels.ndim != 1 or not np.all((levels > 0) & (levels < 1)) or np.any(np.diff(levels) <= 0):
        raise ValueError(
            f"quantiles must be strictly ascending levels strictly between 0 and 1; got {levels.tolist()}. "
            "Sort the levels and the columns of curves together."
        )
    if max_points < 0:
        raise ValueError(f"max_points must be 0 or more; got {max_points!r}. Use 0 to draw no points.")
    # x and grid keep their dtype, which may be that of dates.
    x, y, grid, curves = np.asarray(x), np.asarray(y, np.float64), np.asarray(grid), np.asarray(curves, np.float64)
    if x.ndim != 1 or x.shape != y.shape:
        raise ValueError(
            f"x and y must both have shape (n,); got {x.shape} and {y.shape}. Pass one column of the features as x."
        )
    if curves.ndim == 1 and np.ndim(quantiles) == 0:
        curves = curves[:, None]
    if grid.ndim != 1 or len(grid) == 0 or curves.shape != (len(grid), len(levels)):
        raise ValueError(
            f"curves must have shape (len(grid), number of levels) = ({grid.size}, {len(levels)}) and grid one axis; "
            f"got curves {curves.shape} and grid {grid.shape}. Predict all levels at the points of the grid."
        )
    order = np.argsort(grid, kind="stable")
    return x, y, grid[order], curves[order], levels


@dataclass(eq=False)
class QuantileFanDisplay(Display):
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

    x: Values
    y: Floats
    grid: Values
    curves: Floats
    levels: Floats
    x_label: str | None = None
    y_label: str | None = None

    @classmethod
    def from_estimator(
        cls, estimator: Model, X: Any, y: ArrayLike, column: int | str, *, ax: "Axes | None" = None, **options: Any
    ) -> Self:
        """Compute the display and plot it on `ax`, or a new figure; the other arguments as in `compute`."""
        return cls.compute(estimator, X, y, column, **options).plot(ax=ax)

    @classmethod
    def from_predictions(
        cls,
        x: ArrayLike,
        y_true: ArrayLike,
        grid: ArrayLike,
        curves: ArrayLike,
        quantiles: ArrayLike,
        *,
        ax: "Axes | None" = None,
        **labels: Any,
    ) -> Self:
        """Plot given curves; arguments, also `x_label` and `y_label`, as in `fan_chart`."""
        arrays = np.asarray(x), np.asarray(y_true), np.asarray(grid), np.asarray(curves), np.asarray(quantiles)
        return cls(*arrays, **labels).plot(ax=ax)

    @classmethod
    def compute(
        cls,
        estimator: Model,
        X: Any,
        y: ArrayLike,
        column: int | str,
        *,
        others: str = "typical",
        quantiles: ArrayLike | None = None,
        grid: ArrayLike | None = None,
        y_label: str | None = None,
    ) -> Self:
        """Compute the quantiles of a fitted estimator along one column, without drawing them.

        Parameters
        ----------
        estimator : fitted quantile regressor, a pipeline that ends in one, or a TableModel
        X, y : data to draw, and to take the values of the other columns from
        column : name or position
        others : {"typical", "average", "similar"}, default="typical"
            Values of the other columns. "typical": their medians, or most frequent categories. "average": those of a
            sample of a hundred rows, over which the curves are averaged (partial dependence, Friedman 2001). "similar":
            those of the rows themselves; curves are averages of predictions for rows whose value of the column is near
            (marginal plots of Apley and Zhu 2020). Columns that go along with this one then move with it, and no
            prediction is for a combination of values that does not occur.
        quantiles : levels, or None for the fitted ones
        grid : array-like of values of the column
            By default between its 0.5 % and 99.5 % quantiles, or at its ten most frequent categories. Times of day may
            be `datetime.time` or text such as 08:30.
        y_label : str or None
        """
        if others not in OTHERS:
            raise ValueError(f"others must be one of {OTHERS}; got {others!r}.")
        columns = split_columns(estimator, X)
        j = find_column(column, columns.names)
        points = make_grid(columns.values[j], GRID_POINTS) if grid is None else convert_grid(grid, columns.values[j])
        most = SIMILAR_ROWS if others == "similar" else AVERAGED_ROWS
        rows = columns.typical_row if others == "typical" else columns.take(sample_rows(columns.n_rows, most))
        n_rows = len(rows[0])
        if others == "similar":
            curves, levels = predict_quantiles(estimator, columns.assemble(rows), quantiles)
            curves = average_similar(rows[j], curves, points)
        else:  # all rows at the first point of the grid, then all rows at the second, ...
            product = [np.tile(values, len(points)) for values in rows]
            product[j] = np.repeat(points, n_rows)
            curves, levels = predict_quantiles(estimator, columns.assemble(product), quantiles)
            curves = curves.reshape(len(points), n_rows, -1).mean(axis=1)
        order = np.argsort(levels)
        target = np.asarray(y, dtype=np.float64)
        return cls(columns.values[j], target, points, curves[:, order], levels[order], columns.names[j], y_label)

    def _draw(self, ax: "Axes") -> None:
        """Draw as `fan_chart` does; categories side by side, with their rows jittered."""
        categorical = self.grid.dtype.kind == "O"
        x, y, grid, curves = self._category_coordinates() if categorical else (self.x, self.y, self.grid, self.curves)
        fan_chart(x, y, grid, curves, self.levels, ax=ax, x_label=self.x_label, y_label=self.y_label)
        if categorical:
            _label_categories(ax, [str(category) for category in self.grid])
            ax.grid(False, axis="x")
        if self.grid.dtype.kind == "M":
            from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, DateFormatter

            locator = AutoDateLocator()
            ax.xaxis.set_major_locator(locator)
            times = is_time_of_day(self.grid)
            ax.xaxis.set_major_formatter(DateFormatter("%H:%M") if times else ConciseDateFormatter(locator))

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
    figure: Any = ax.figure
    n_letters = int(ax.get_position().width * figure.get_figwidth() / len(labels) / INCHES_PER_LETTER)
    if max(map(len, labels)) <= n_letters:
        ax.set_xticks(range(len(labels)), labels)
    elif figure.get_layout_engine() is None:
        ax.set_xticks(range(len(labels)), [truncate(label, max(n_letters, 4)) for label in labels])
    else:
        labels = [truncate(label, MAX_LABEL_LENGTH) for label in labels]
        ax.set_xticks(range(len(labels)), labels, rotation=30, ha="right", rotation_mode="anchor")


def sample_rows(n_rows: int, most: int = AVERAGED_ROWS) -> NDArray[np.intp]:
    """Return sorted positions of a random sample of rows, the same in every call; all rows if they are few."""
    if n_rows <= most:
        return np.arange(n_rows)
    return np.sort(np.random.default_rng(0).choice(n_rows, most, replace=False))


def average_similar(values: Values, curves: Floats, grid: Values) -> Floats:
    """Average the curves (n, q) of rows over those whose value of a column (n,) is near each point of a grid, (g, q).

    Near are rows with the same category or, where a column has few distinct values, with the same one. Elsewhere rows
    count by the tricube of their distance, as in a local average of degree 0 (Cleveland 1979): curves keep their order,
    and stay within the range of what they average.
    """
    if values.dtype.kind == "O":
        distance = (values.astype(str)[None, :] != grid.astype(str)[:, None]).astype(float)
        reach, span = np.full(len(grid), 0.5), 1.0
    else:
        is_date = values.dtype.kind == "M"
        at, x = (to_seconds(one) if is_date else np.asarray(one, dtype=float) for one in (grid, values))
        distance = np.abs(x[None, :] - at[:, None])
        known = np.isfinite(x)
        distance[:, ~known] = np.inf if known.any() else 0.0
        span = float(np.ptp(x[known])) if known.any() else 0.0
        k = int(np.clip(known.sum() // 10, 1, NEAR_ROWS)) - 1
        # A little more than the distance of the last of them, whose weight would be 0.
        reach = np.maximum(1.1 * np.partition(distance, k, axis=1)[:, k], NEAR_SHARE * np.ptp(at))
        if len(np.unique(x[known])) <= GRID.few_values and np.isin(at, x).all():
            reach = np.zeros(len(at))
    reach = reach[:, None]
    share = np.minimum(distance, reach) / np.where(reach > 0, reach, 1.0)
    weight = (1 - share**3) ** 3 * (distance <= reach)
    total = weight.sum(axis=1)
    far = (total == 0) | (distance.min(axis=1) > span)
    if far.any():
        raise ValueError(f"No row is near {grid[np.argmax(far)]}. Give a grid within the values of the column.")
    return weight @ curves / total[:, None]
