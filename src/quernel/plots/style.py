"""The house style: palette, typography, and how a figure reaches the disk.

Matplotlib is imported inside the functions, so that importing quernel neither needs nor loads it. Figures are built
without pyplot: no global list of open figures, no display, no change of the user's settings.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from quernel.tables.files import written_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# One hue from pale to dark: bands are told apart by lightness, which survives grey printing and every colour blindness.
BAND_PALE, BAND_DARK = "#d3e4f3", "#5a9bd0"
EDGE = "#5a9bd0"
LINE = "#08306b"
# Orange against blue (Okabe and Ito) for levels that have no partner.
ACCENT = "#b34700"
POINT = "#4d4d4d"
INK = "#333333"
GRID = "#e6e6e6"

RC: dict[str, Any] = {
    "font.size": 10,
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.labelsize": 10,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.edgecolor": "#808080",
    "axes.linewidth": 0.8,
    "axes.formatter.limits": (-5, 9),  # prices are written out: a power of ten would stand where the legend is
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
    "pdf.fonttype": 42,  # text stays text: searchable, and journals accept it
    "svg.fonttype": "none",
}


def require_matplotlib() -> Any:
    """Import matplotlib, or say how to get it."""
    try:
        import matplotlib
    except ImportError as error:
        raise ImportError(
            "quernel.plots needs matplotlib, which is not installed. Run `pip install 'quernel[plots]'`."
        ) from error
    return matplotlib


@contextmanager
def house_style() -> Iterator[None]:
    """Context in which new figures and artists take the house style; the user's settings return on leaving it."""
    with require_matplotlib().rc_context(RC):
        yield


def new_axes() -> "Axes":
    """Axes on a figure of their own, which pyplot does not know. Call within `house_style`."""
    require_matplotlib()
    from matplotlib.figure import Figure

    return Figure(layout="constrained").add_subplot()


def dress(ax: "Axes") -> None:
    """Quiet frame and grid, also on axes that were made outside the house style."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(True, color=GRID, linewidth=0.8)
    ax.set_axisbelow(True)


def shades(count: int) -> list[str]:
    """Colours from the palest to the darkest band; a single band takes the middle."""
    require_matplotlib()
    from matplotlib.colors import to_hex, to_rgb

    pale, dark = np.array(to_rgb(BAND_PALE)), np.array(to_rgb(BAND_DARK))
    steps = np.linspace(0, 1, count) if count > 1 else np.full(count, 0.5)
    return [to_hex(pale + step * (dark - pale)) for step in steps]


def cut(text: str, most: int) -> str:
    """The text, or as many letters as there may be, the last one an ellipsis."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def save_figure(fig: "Figure", path: str | os.PathLike[str]) -> Path:
    """Write a figure in the format that the ending of ``path`` names; the old file stays until the new one is whole.

    Returns
    -------
    The path, as a ``pathlib.Path``.
    """
    target = Path(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(f"The folder {target.parent} of the figure {target.name} is missing. Create it first.")
    formats, kind = fig.canvas.get_supported_filetypes(), target.suffix.lower().lstrip(".")
    if kind not in formats:
        raise ValueError(
            f"path must end in one of {', '.join(sorted(formats))}; got {target.name!r}. Try .png or .pdf."
        )
    with house_style(), written_whole(target, overwrite=True) as part:
        fig.savefig(part, format=kind)
    return target
