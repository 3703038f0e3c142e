"""The fan chart: data, nested bands between pairs of quantile curves, and the median."""

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quernel.plots.style import ACCENT, EDGE, LINE, POINT, RC, dress, house_style, new_axes, shades

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SAME_LEVEL = 1e-9  # 1 - 0.9 is not 0.1 in floating point
MAX_BANDS_IN_LEGEND = 5


class Fan(NamedTuple):
    """Column numbers of the curves by the part they play."""

    bands: list[tuple[int, int]]
    """Pairs (lower, upper) with levels p and 1 - p, outermost first."""
    median: int | None
    singles: list[int]
    """Levels without a partner."""


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
    """Draw quantile curves over the data as nested bands.

    Levels p and 1 - p make a band, the widest one the palest; the level 1/2 is a line; a level without a partner is a
    dashed line that bears its name.

    Parameters
    ----------
    x, y : arrays of shape (n,), the data
    grid : array of shape (g,), where the curves were computed
    curves : array of shape (g, q), one column per level; (g,) for one scalar level
    quantiles : levels in strictly ascending order, each strictly between 0 and 1
    ax : axes to draw on; by default those of a new figure, which is ``ax.figure``
    x_label, y_label, title : texts
    max_points : the scatter shows at most so many rows, chosen at random but always the same

    Returns
    -------
    The axes.

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
    """Find the pairs p, 1 - p, the median and the levels that have no partner."""
    mirror = np.abs(levels[:, None] + levels[None, :] - 1) < SAME_LEVEL
    bands = [(int(i), int(j)) for i, j in zip(*np.nonzero(mirror), strict=True) if i < j]
    median = next((int(i) for i in np.flatnonzero(mirror.diagonal())), None)
    singles = [int(i) for i in np.flatnonzero(~mirror.any(axis=1))]
    return Fan(bands, median, singles)


def format_percent(share: float) -> str:
    """A share in per cent, without needless decimals."""
    return f"{100 * share:.6g} %"


def _draw_points(ax: "Axes", x: NDArray[Any], y: NDArray[np.float64], max_points: int) -> list[Any]:
    from matplotlib.lines import Line2D

    if len(y) > max_points:
        # Not every k-th row: a regular step can fall in with a period of the data, e.g. show one hour of each day. The
        # seed is fixed, because which rows are shown is no part of the result: the same data give the same picture.
        chosen = np.sort(np.random.default_rng(0).choice(len(y), size=max_points, replace=False))
        x, y = x[chosen], y[chosen]
    if len(y) == 0:
        return []
    # The more points, the paler each, or a dense cloud would hide the bands beneath it. Rasterised, because thousands
    # of vector points make a PDF slow to open.
    alpha = float(np.clip(12 / np.sqrt(len(y)), 0.12, 0.6))
    ax.scatter(x, y, s=4, color=POINT, alpha=alpha, linewidths=0, zorder=2.5, rasterized=True)
    # The key in the legend is a darker dot of its own: a single one as pale as the points could not be seen.
    return [Line2D([], [], linestyle="", marker="o", markersize=4, color=POINT, markeredgewidth=0, label="data")]


def _draw_bands(
    ax: "Axes", grid: NDArray[Any], curves: NDArray[np.float64], levels: NDArray[np.float64], fan: Fan
) -> list[Any]:
    drawn = []
    for (low, high), colour in zip(fan.bands, shades(len(fan.bands)), strict=True):
        label = f"middle {format_percent(levels[high] - levels[low])}"
        drawn.append(
            ax.fill_between(grid, curves[:, low], curves[:, high], color=colour, linewidth=0, zorder=2, label=label)
        )
    for edge in fan.bands[:1]:  # a fine line holds the palest band together where points cover it, and in print
        ax.plot(grid, curves[:, edge], color=EDGE, linewidth=0.7, zorder=2.6)
    shown = np.unique(np.linspace(0, len(drawn) - 1, min(len(drawn), MAX_BANDS_IN_LEGEND)).round().astype(int))
    return [drawn[i] for i in shown[::-1]]  # from the median outwards


def _draw_median(ax: "Axes", grid: NDArray[Any], curves: NDArray[np.float64], fan: Fan) -> list[Any]:
    if fan.median is None:
        return []
    return ax.plot(grid, curves[:, fan.median], color=LINE, linewidth=1.8, zorder=3, label="median")


def _draw_singles(
    ax: "Axes", grid: NDArray[Any], curves: NDArray[np.float64], levels: NDArray[np.float64], fan: Fan
) -> list[Any]:
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
    """Texts, and a legend above the axes, where it hides no data."""
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
    """Arrays of agreeing shapes; the grid ascending."""
    levels = np.atleast_1d(np.asarray(quantiles, dtype=np.float64))
    if levels.ndim != 1 or not np.all((levels > 0) & (levels < 1)) or np.any(np.diff(levels) <= 0):
        raise ValueError(
            f"quantiles must be strictly ascending levels strictly between 0 and 1; got {levels.tolist()}. "
            "Sort the levels and the columns of curves together."
        )
    if max_points < 0:
        raise ValueError(f"max_points must be 0 or more; got {max_points!r}. Use 0 to draw no points.")
    # x and grid keep their type: dates are welcome on the horizontal axis.
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
