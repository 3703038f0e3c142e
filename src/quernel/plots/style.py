"""Style of all plots: palette, typography, new axes, and saving of figures.

Matplotlib is an optional dependency: it is imported inside the functions, so that importing quernel neither needs nor
loads it. Figures are built without pyplot: no global list of open figures, no display, no change of the user's
settings.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from quernel._files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Bands have one hue and differ in lightness, which survives greyscale printing and every colour blindness.
BAND_PALE, BAND_DARK = "#d3e4f3", "#5a9bd0"
EDGE = "#5a9bd0"
LINE = "#08306b"
# Orange against blue (Okabe and Ito) for whatever stands out: levels outside any band, what was chosen, what fails.
ACCENT = "#b34700"
POINT = "#4d4d4d"
INK = "#333333"
GRID = "#e6e6e6"

# matplotlib's rcParams within `house_style`.
RC: dict[str, Any] = {
    "font.size": 10,
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.labelsize": 10,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.edgecolor": "#808080",
    "axes.linewidth": 0.8,
    "axes.formatter.limits": (-5, 9),  # prices are written out: an offset such as 1e5 would overlap the legend
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "figure.figsize": (7.0, 4.4),
    "figure.constrained_layout.h_pad": 0.08,
    "figure.constrained_layout.w_pad": 0.08,
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "savefig.facecolor": "white",
    "savefig.dpi": 200,
    "pdf.fonttype": 42,  # TrueType: text stays searchable, and journals accept it
    "svg.fonttype": "none",
}


def require_matplotlib() -> Any:
    """Import and return matplotlib, or raise ImportError that says how to install it."""
    try:
        import matplotlib
    except ImportError as error:
        raise ImportError(
            "quernel.plots needs matplotlib, which is not installed. Run `pip install 'quernel[plots]'`."
        ) from error
    return matplotlib


@contextmanager
def house_style() -> Iterator[None]:
    """Context manager in which new figures and artists have this style; the user's rcParams are restored on exit."""
    with require_matplotlib().rc_context(RC):
        yield


def new_axes() -> "Axes":
    """Return axes on a new figure that pyplot does not manage. Call within `house_style`."""
    require_matplotlib()
    from matplotlib.figure import Figure

    return Figure(layout="constrained").add_subplot()


def dress(ax: "Axes") -> None:
    """Style frame and grid of axes, also of those made outside `house_style`."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(True, color=GRID, linewidth=0.8)
    ax.set_axisbelow(True)


def shades(count: int) -> list[str]:
    """Return hex colours from the palest to the darkest band; of a single band the middle."""
    require_matplotlib()
    from matplotlib.colors import to_hex, to_rgb

    pale, dark = np.array(to_rgb(BAND_PALE)), np.array(to_rgb(BAND_DARK))
    steps = np.linspace(0, 1, count) if count > 1 else np.full(count, 0.5)
    return [to_hex(pale + step * (dark - pale)) for step in steps]


def cut(text: str, most: int) -> str:
    """Truncate text to at most `most` characters, the last one an ellipsis."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def save_figure(fig: "Figure", path: str | os.PathLike[str]) -> Path:
    """Save a figure in the format of the suffix of ``path``; an old file stays until the new one is complete.

    Parameters
    ----------
    fig : matplotlib Figure, such as ``ax.figure`` or ``display.figure_``
    path : str or path-like, in an existing folder; an existing file is replaced

    Returns
    -------
    pathlib.Path
    """
    target = Path(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(f"The folder {target.parent} of the figure {target.name} is missing. Create it first.")
    formats, suffix = fig.canvas.get_supported_filetypes(), target.suffix.lower().lstrip(".")
    if suffix not in formats:
        raise ValueError(
            f"path must end in one of {', '.join(sorted(formats))}; got {target.name!r}. Try .png or .pdf."
        )
    with house_style(), write_atomically(target, overwrite=True) as part:
        fig.savefig(part, format=suffix)
    return target
