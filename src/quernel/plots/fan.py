"""The fan chart: nested bands between pairs of quantile curves and the median, over the data."""

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quernel.plots.style import ACCENT, EDGE, LINE, POINT, RC, dress, house_style, new_axes, shades

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Tolerance in  p + q = 1  for the levels of a band: 1 - 0.9 is not 0.1 in floating point.
SAME_LEVEL = 1e-9
# Of more bands the legend names so many, evenly chosen.
MAX_BANDS_IN_LEGEND = 5


class Fan(NamedTuple):
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
    fan = arrange(levels)
    with house_style():
        ax = new_axes() if ax is None else ax
        dress(ax)
        handles = [
            *_draw_points(ax, x, y, max_points),
            *_draw_median(ax, grid, curves, fan),
            *_draw_bands(ax, grid, curves, levels, fan),
            *_draw_singles(ax, grid, curves, levels, fan),
        ]
        _add_labels(ax, handles, x_label, y_label, title)
    return ax


def arrange(levels: NDArray[np.float64]) -> Fan:
    """Divide the ascending levels into pairs p, 1 - p, the median and the rest."""
    mirror = np.abs(levels[:, None] + levels[None, :] - 1) < SAME_LEVEL
    bands = [(int(i), int(j)) for i, j in zip(*np.nonzero(mirror), strict=True) if i < j]
    median = next((int(i) for i in np.flatnonzero(mirror.diagonal())), None)
    singles = [int(i) for i in np.flatnonzero(~mirror.any(axis=1))]
    return Fan(bands, median, singles)


def format_percent(share: float) -> str:
    """Format a share as a percentage without trailing zeros: 0.025 is "2.5 %"."""
    return f"{100 * share:.6g} %"


def _draw_points(ax: "Axes", x: NDArray[Any], y: NDArray[np.float64], max_points: int) -> list[Any]:
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


def _draw_bands(
    ax: "Axes", grid: NDArray[Any], curves: NDArray[np.float64], levels: NDArray[np.float64], fan: Fan
) -> list[Any]:
    """Fill the bands, outermost first so that inner ones are on top; return their legend handles."""
    filled = []
    for (low, high), colour in zip(fan.bands, shades(len(fan.bands)), strict=True):
        label = f"middle {format_percent(levels[high] - levels[low])}"
        filled.append(
            ax.fill_between(grid, curves[:, low], curves[:, high], color=colour, linewidth=0, zorder=2, label=label)
        )
    for outermost in fan.bands[:1]:  # a thin outline keeps the palest band visible beneath points, and in print
        ax.plot(grid, curves[:, outermost], color=EDGE, linewidth=0.7, zorder=2.6)
    named = np.unique(np.linspace(0, len(filled) - 1, min(len(filled), MAX_BANDS_IN_LEGEND)).round().astype(int))
    return [filled[i] for i in named[::-1]]  # from the median outwards


def _draw_median(ax: "Axes", grid: NDArray[Any], curves: NDArray[np.float64], fan: Fan) -> list[Any]:
    """Draw the median, if it is among the levels, and return its legend handle."""
    if fan.median is None:
        return []
    return ax.plot(grid, curves[:, fan.median], color=LINE, linewidth=1.8, zorder=3, label="median")


def _draw_singles(
    ax: "Axes", grid: NDArray[Any], curves: NDArray[np.float64], levels: NDArray[np.float64], fan: Fan
) -> list[Any]:
    """Draw the levels that belong to no band as dashed lines, and return their legend handles."""
    dashes = ["--", ":", "-.", (0, (6, 1.5)), (0, (3, 1, 1, 1, 1, 1))]
    return [
        line
        for k, i in enumerate(fan.singles)
        for line in ax.plot(
            grid,
            curves[:, i],
            color=ACCENT,
            linestyle=dashes[k % len(dashes)],
            linewidth=1.4,
            zorder=3,
            label=f"{format_percent(levels[i])} quantile",
        )
    ]


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
) -> tuple[NDArray[Any], NDArray[np.float64], NDArray[Any], NDArray[np.float64], NDArray[np.float64]]:
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
