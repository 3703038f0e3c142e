"""What all plots share: palette, typography, the base class of displays, and saving of figures.

Matplotlib is an optional dependency: it is imported inside the functions, so that importing quernel neither needs nor
loads it. Figures are built without pyplot: no global list of open figures, no display, no change of the user's
settings.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from quernel._files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Bands have one hue and differ in lightness, which survives greyscale printing and every colour blindness.
BAND_PALE, BAND_DARK = "#d3e4f3", "#5a9bd0"
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
            "quernel.plots needs matplotlib, which is not installed. Run `pip install matplotlib`."
        ) from error
    return matplotlib


@contextmanager
def house_style() -> Iterator[None]:
    """Context manager in which new figures and artists have this style; the user's rcParams are restored on exit."""
    with require_matplotlib().rc_context(RC):
        yield


class Display:
    """Base class of the displays: `plot` styles the axes, draws on them and keeps them.

    A subclass is a dataclass of the numbers of a plot. Its classmethod `compute` makes it, without matplotlib, and
    `_draw` draws the numbers.
    """

    # What the axes of a display that needs a pair of them are for, and the size of their new figure in inches.
    panels: ClassVar[tuple[str, ...]] = ()
    size: ClassVar[tuple[float, float] | None] = None
    compute: ClassVar[Any]
    ax_: Any
    figure_: Any

    def plot(self, *, ax: Any = None) -> Self:
        """Draw the display on axes, or a pair of axes where it needs two; None is those of a new figure."""
        with house_style():
            ax = new_axes(max(len(self.panels), 1), self.size) if ax is None else ax
            if self.panels and np.shape(ax) != (len(self.panels),):
                raise ValueError(f"ax must be a pair of axes: one for {' and one for '.join(self.panels)}.")
            for one in np.ravel(ax):
                style_axes(one)
            self._draw(ax)
        self.ax_, self.figure_ = ax, np.ravel(ax)[0].figure
        return self

    def _draw(self, ax: Any) -> None:
        """Draw the numbers on styled axes, within `house_style`."""
        raise NotImplementedError


def new_axes(count: int = 1, size: tuple[float, float] | None = None) -> Any:
    """Return axes side by side on a new figure that pyplot does not manage: one, or an array of them.

    Call within `house_style`.
    """
    from matplotlib.figure import Figure

    return Figure(figsize=size, layout="constrained").subplots(1, count)


def style_axes(ax: "Axes") -> None:
    """Style frame and grid of axes, also of those made outside `house_style`."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(True, color=GRID, linewidth=0.8)
    ax.set_axisbelow(True)


def shades(count: int) -> list[str]:
    """Return hex colours from the palest to the darkest band; of a single band the middle."""
    from matplotlib.colors import to_hex, to_rgb

    pale, dark = np.array(to_rgb(BAND_PALE)), np.array(to_rgb(BAND_DARK))
    steps = np.linspace(0, 1, count) if count > 1 else np.full(count, 0.5)
    return [to_hex(pale + step * (dark - pale)) for step in steps]


def truncate(text: str, most: int) -> str:
    """Truncate text to at most `most` characters, the last one an ellipsis."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def format_percent(share: float) -> str:
    """Format a share as a percentage without trailing zeros: 0.025 is "2.5 %"."""
    return f"{100 * share:.6g} %"


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
    formats, suffix = fig.canvas.get_supported_filetypes(), target.suffix.lower().lstrip(".")
    if suffix not in formats:
        raise ValueError(
            f"path must end in one of {', '.join(sorted(formats))}; got {target.name!r}. Try .png or .pdf."
        )
    with house_style(), write_atomically(target, overwrite=True) as part:
        fig.savefig(part, format=suffix)
    return target
