"""The figures' common hand: panels, and series that differ in lightness, marker and dash, not in hue alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from quernel.plots.style import ACCENT, INK, LINE, dress, require_matplotlib

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Told apart in grey print and by every colour blindness: dark blue, orange, sky blue, grey, with their own markers.
SERIES: tuple[dict[str, Any], ...] = (
    {"color": LINE, "marker": "o", "linestyle": "-"},
    {"color": ACCENT, "marker": "s", "linestyle": "--"},
    {"color": "#56a0d3", "marker": "^", "linestyle": "-."},
    {"color": "#7f7f7f", "marker": "D", "linestyle": ":"},
)
# How far each series stands from its place, as a share of x, so that bars can be told apart.
DODGE = (0.0, 0.025, -0.025, 0.0125)
# A bound or a truth that the series are held against.
REFERENCE: dict[str, Any] = {"color": INK, "linewidth": 1.0, "linestyle": (0, (1, 1.5))}


def panels(rows: int, columns: int, *, size: tuple[float, float], **options: Any) -> tuple[Figure, Any]:
    """A figure and its (rows, columns) axes, dressed; `size` in inches. Call within `house_style`."""
    require_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **options)
    for ax in axes.flat:
        dress(ax)
    return figure, axes


def errorbars(ax: Axes, x: Sequence[float], mean: Any, error: Any, *, series: int, label: str | None = None) -> None:
    """Means with a bar of one `error` either side (say in the caption which), for a logarithmic axis of x.

    The first series stands where it belongs, the others up to 2.5 % beside it, and less on a short axis.
    """
    place = np.asarray(x, dtype=float)
    moved = place * (1 + DODGE[series] * min(1.0, float(np.log(place.max() / place.min()))))
    ax.errorbar(
        moved, mean, yerr=np.asarray(error), label=label, markersize=4, linewidth=1.3, capsize=2, **SERIES[series]
    )


def share_scale(axes: Sequence[Axes]) -> None:
    """One vertical axis for a row of panels, labelled at the first."""
    for ax in axes[1:]:
        ax.sharey(axes[0])
        ax.tick_params(labelleft=False)


def shared_legend(figure: Figure, ax: Axes, columns: int = 4) -> None:
    """One legend under all panels, from the labels of one of them."""
    handles, labels = ax.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=columns)
