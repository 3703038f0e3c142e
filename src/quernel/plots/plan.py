"""Figure 1 of the paper: the number of random features that suffices, as a power of the number of rows.

r is the source condition (smoothness of the target) and gamma the capacity condition (size of the kernel's
space).
"""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from quernel.plots.style import ACCENT, BAND_DARK, BAND_PALE, INK, LINE, house_style, require_matplotlib
from quernel.theory import feature_exponent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Colour of the region 2r + gamma < 1, about which the theory says nothing.
NO_THEOREM = "#f2f2f2"
# Points of the grid along either axis.
GRID_STEPS = 241
# Contour lines from this exponent on are white, because the colours beneath are dark.
DARK_FROM = 0.75
# Range of r in either case of the theory.
CASES = {"agnostic": (0.0, 0.5), "realizable": (0.5, 1.0)}
SAMPLINGS = ("uniform", "leverage")


def exponent_grid(case: str, sampling: str) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Compute the exponent c in M = n^c on a grid of (r, gamma).

    Parameters
    ----------
    case : {"agnostic", "realizable"}
        r between 0 and 1/2, or between 1/2 and 1.
    sampling : {"uniform", "leverage"}
        How the random features are sampled.

    Returns
    -------
    r, gamma : arrays of shape (s,)
    c : array of shape (s, s), one row per gamma; NaN where there is no theorem
    """
    if case not in CASES or sampling not in SAMPLINGS:
        raise ValueError(
            f"case must be one of {tuple(CASES)} and sampling one of {SAMPLINGS}; got {case!r}, {sampling!r}."
        )
    r, gamma = np.linspace(*CASES[case], GRID_STEPS), np.linspace(0, 1, GRID_STEPS)
    R, G = np.meshgrid(r, gamma)
    known = (2 * R + G >= 1 - 1e-12) & (R > 0)
    c = np.full(R.shape, np.nan)
    c[known] = feature_exponent(R[known], G[known], 1.0 if sampling == "uniform" else G[known])
    return r, gamma, c


def feature_map(point: tuple[float, float] | None = None) -> "Figure":
    """Plot c in M = n^c over (r, gamma): four panels, uniform and leverage sampling, agnostic and realizable case.

    Parameters
    ----------
    point : (r, gamma) to mark, or None

    Returns
    -------
    matplotlib Figure, for ``save_figure``
    """
    require_matplotlib()
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.figure import Figure

    with house_style():
        figure = Figure(figsize=(8.0, 7.4), layout="constrained")
        axes = figure.subplots(2, 2, sharey=True)
        colours = LinearSegmentedColormap.from_list("house", ["white", BAND_PALE, BAND_DARK, LINE])
        colours = colours.with_extremes(bad=NO_THEOREM)
        for row, case in zip(axes, CASES, strict=True):
            for ax, sampling in zip(row, SAMPLINGS, strict=True):
                image = _draw_panel(ax, case, sampling, colours)
                ax.set_title(f"{case.capitalize()}, {sampling} sampling", loc="left")
                if point is not None:
                    _mark_point(ax, case, point)
            row[0].set_ylabel(r"capacity $\gamma$: size of the kernel's space")
        for ax in axes[1]:
            ax.set_xlabel("source $r$: smoothness of the target")
        bar = figure.colorbar(image, ax=axes, shrink=0.7, pad=0.02, ticks=np.linspace(0, 1, 6))
        bar.set_label("$c$, where $M = n^c$ random features suffice")
        bar.outline.set_visible(False)
        figure.suptitle("Random features needed for the optimal rate", fontweight="bold", color=INK)
    return figure


def _draw_panel(ax: "Axes", case: str, sampling: str, colours: object) -> object:
    """Draw the colours and contour lines of one panel, and return the colour mesh."""
    r, gamma, c = exponent_grid(case, sampling)
    image = ax.pcolormesh(r, gamma, np.ma.masked_invalid(c), cmap=colours, vmin=0, vmax=1, rasterized=True)
    levels = np.arange(1, 10) / 10
    colors = [INK if level < DARK_FROM else "white" for level in levels]
    lines = ax.contour(r, gamma, c, levels=levels, colors=colors, linewidths=0.6)
    # Labels are in the middle of each line: where matplotlib puts them, the frame may cut them off.
    middles = [part[len(part) // 2] for parts in lines.allsegs for part in parts if len(part) > 10]
    ax.clabel(lines, fmt="%.1f", fontsize=8, manual=middles)
    if case == "agnostic":
        ax.fill([0, 0.5, 0], [0, 0, 1], color=NO_THEOREM, linewidth=0, zorder=1.5)  # a clean edge over the grid's steps
        ax.text(0.16, 0.25, "$2r + \\gamma < 1$:\nno theorem", color=INK, fontsize=9, ha="center", va="center")
    ax.set_xlim(*CASES[case])
    ax.set_ylim(0, 1)
    ax.spines[["top", "right"]].set_visible(False)
    return image


def _mark_point(ax: "Axes", case: str, point: tuple[float, float]) -> None:
    """Mark the point (r, gamma), if it belongs to this case."""
    r, gamma = point
    if (r < 0.5) == (case == "agnostic"):
        ax.plot(r, gamma, "o", color=ACCENT, markersize=7, markeredgecolor="white", clip_on=False, zorder=5)
