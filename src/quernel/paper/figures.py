"""Matplotlib helpers of all figures: panels, error bars, legends, and tick labels of logarithmic axes.

Series differ in lightness, marker and dash, not in hue alone. A function that draws a figure is decorated by
`@house_style()`, within which these functions expect to be called.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from quernel.paper.experiment import Summary, Table
from quernel.plots.style import ACCENT, INK, LINE, require_matplotlib, style_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MINUS = "\u2212"
# Multiples of a power of ten at which ticks may stand, coarse before fine.
STEPS = ((1.0,), (1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0), tuple(np.arange(10, 100) / 10))


def set_log_log(ax: Any, sizes: Sequence[float], *, max_ticks: int = 6) -> None:
    """Make both axes logarithmic, and label at most `max_ticks` of the sizes, the first and last among them."""
    ax.set_xscale("log")
    ax.set_yscale("log")
    named = np.geomspace(sizes[0], sizes[-1], min(max_ticks, len(sizes)))
    ticks = sorted({min(sizes, key=lambda size: abs(np.log(size / at))) for at in named})
    label_ticks(ax, ticks)
    label_decades(ax)


def label_ticks(ax: Any, ticks: Sequence[float], *, min_distance: float = 0.1, **text: Any) -> None:
    """Set ticks on the logarithmic x axis, and leave out labels that would overlap with others.

    Reads the limits of the axis: call it after everything is drawn.

    Parameters
    ----------
    ticks : positions, ascending
    min_distance : least distance between two labels, as a fraction of the axis
    text : keyword arguments of the labels, such as rotation=45
    """
    labelled = thin_ticks(ticks, ax.get_xlim(), min_distance=min_distance)
    ax.set_xticks(list(ticks), [f"{tick:,.10g}" if tick in labelled else "" for tick in ticks], **text)
    ax.xaxis.minorticks_off()


def thin_ticks(ticks: Sequence[float], limits: Sequence[float], *, min_distance: float) -> list[float]:
    """Of ascending ticks, the first, the last, and those between them that keep a distance from their neighbours.

    `min_distance` is a fraction of the logarithmic axis. If even the two ends are too close, only the last one is kept.
    """
    gap = min_distance * abs(np.log(limits[1] / limits[0]))
    kept: list[float] = []
    for tick in ticks[:-1]:
        before = not kept or np.log(tick / kept[-1]) >= gap
        if before and np.log(ticks[-1] / tick) >= gap:
            kept.append(tick)
    return [*kept, *ticks[-1:]]


def label_decades(ax: Any, which: str = "y") -> None:
    """Label whole decades of a logarithmic axis, or finer steps where fewer than two decades would be labelled.

    Reads the limits of the axis: call it after everything is drawn.
    """
    axis = ax.yaxis if which == "y" else ax.xaxis
    low, high = sorted(axis.get_view_interval())
    decades = 10.0 ** np.arange(np.floor(np.log10(low)), np.ceil(np.log10(high)) + 1)
    for steps in STEPS:
        candidates = [tick for tick in np.outer(decades, steps).ravel() if low <= tick <= high]
        if len(candidates) >= 2:
            break
    ticks = thin_ticks(candidates, (low, high), min_distance=0.08 if which == "y" else 0.1)
    axis.set_ticks(ticks, labels=[_format_power(tick) if which == "y" else f"{tick:g}" for tick in ticks])
    axis.minorticks_off()


def _format_power(value: float) -> str:
    """A number as a power of ten in mathtext, with a factor if it is not 1."""
    exponent = int(np.floor(np.log10(value) + 1e-9))
    factor = f"{value / 10.0**exponent:.2g}"
    return rf"$10^{{{exponent}}}$" if factor == "1" else rf"${factor} \cdot 10^{{{exponent}}}$"


# Distinguishable in grey print and with any colour blindness: dark blue, orange, sky blue, grey, each with its marker.
SERIES: tuple[dict[str, Any], ...] = (
    {"color": LINE, "marker": "o", "linestyle": "-"},
    {"color": ACCENT, "marker": "s", "linestyle": "--"},
    {"color": "#56a0d3", "marker": "^", "linestyle": "-."},
    {"color": "#7f7f7f", "marker": "D", "linestyle": ":"},
)
# Horizontal offset of each series, as a fraction of x.
DODGE = (0.0, 0.025, -0.025, 0.0125)
# Markers, lines and caps of error bars.
BARS: dict[str, Any] = {"markersize": 4, "linewidth": 1.3, "capsize": 2}
# Style of a reference line: a bound, a theoretical slope, a true value.
REFERENCE: dict[str, Any] = {"color": INK, "linewidth": 1.0, "linestyle": (0, (1, 1.5))}


def make_panels(rows: int, columns: int, *, size: tuple[float, float], **options: Any) -> tuple[Figure, Any]:
    """A figure and its axes of shape (rows, columns), styled; `size` in inches."""
    require_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **options)
    for ax in axes.flat:
        style_axes(ax)
    return figure, axes


def plot_errorbars(
    ax: Axes, x: Sequence[float], mean: Any, error: Any, *, series: int, label: str | None = None
) -> None:
    """Plot means with error bars of +-`error` (the caption says which error) over a logarithmic x axis.

    Series are dodged horizontally by up to 2.5 %, less on a short axis, so that bars do not cover each other; the first
    series stands at its true position.
    """
    place = np.asarray(x, dtype=float)
    dodged = place * (1 + DODGE[series] * min(1.0, float(np.log(place.max() / place.min()))))
    ax.errorbar(dodged, mean, yerr=np.asarray(error), label=label, **BARS, **SERIES[series])


def plot_means(
    ax: Axes, x: Sequence[float], means: Sequence[Summary], *, error: str, series: int, label: str | None = None
) -> None:
    """Plot means with error bars of their "sd", their "se" or the "half_width" of their 95 % interval."""
    errors = [getattr(one, error) for one in means]
    plot_errorbars(ax, x, [one.mean for one in means], errors, series=series, label=label)


def plot_geometric_means(
    ax: Axes, table: Table, error: str, *, against: str = "n", series: int, label: str | None = None
) -> tuple[list[float], np.ndarray]:
    """Plot geometric means of an error, with bars of one standard error of the logarithm; returns sizes and means."""
    sizes, centre, bars = table.geometric_means(error, against=against)
    plot_errorbars(ax, sizes, centre, bars, series=series, label=label)
    return sizes, centre


def share_y_axis(axes: Sequence[Axes]) -> None:
    """Share one y axis among a row of panels, labelled at the first."""
    for ax in axes[1:]:
        ax.sharey(axes[0])
        ax.tick_params(labelleft=False)


def add_shared_legend(figure: Figure, ax: Axes, columns: int = 4) -> None:
    """Add one legend below all panels, from the labels of one of them."""
    handles, labels = ax.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=columns)
