"""What an experiment presents: figures, tables and verdicts, saved as files and shown on one HTML page.

A figure is saved as PNG and SVG, a table as CSV (ten digits) and Markdown (rounded); both also become HTML for the
page, which is one self-contained file.

And matplotlib helpers of all figures: panels, error bars, legends, and tick labels of logarithmic axes. Series differ
in lightness, marker and dash, not in hue alone. A function that draws a figure is decorated by `@house_style()`, within
which these functions expect to be called.
"""

from __future__ import annotations

import base64
import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from quernel.paper.experiment import Judgement, Summary, Table
from quernel.plots.style import ACCENT, INK, LINE, require_matplotlib, save_figure, style_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from quernel.paper.experiment import Experiment

# Outcome of a verdict: see `Verdict`.
Holds = Judgement | Literal["stated"] | None
# Typographic en dash for a missing value, and minus sign.
MISSING, MINUS = "\u2013", "\u2212"


@dataclass(frozen=True)
class Item:
    """A figure or table as HTML with its caption; `folded` items are collapsed on the page until clicked."""

    name: str
    caption: str
    html: str
    folded: bool = False


@dataclass(frozen=True)
class Verdict:
    """One sentence made from the measurements, and whether they support the paper's claim.

    Parameters
    ----------
    text : str
    holds : bool, "undecided", "stated" or None
        Whether the claim was shown; "undecided" if the measurements are too few or too noisy to decide; "stated" if a
        formula of the paper was only evaluated and nothing was measured; None for a remark that judges no claim.
    """

    text: str
    holds: Holds = None


@dataclass(frozen=True)
class Section:
    """An experiment on the page: what the paper reports and how we read it, figures and tables, verdicts.

    `reported` holds paragraphs of plain text, which are escaped when the page is rendered.
    """

    reported: Sequence[str]
    items: Sequence[Item]
    verdicts: Sequence[Verdict] = field(default_factory=tuple)


@dataclass(frozen=True)
class OutputFolder:
    """Folder in which an experiment saves its figures (PNG, SVG) and tables (CSV, Markdown)."""

    folder: Path

    def save_figure(self, figure: Figure, name: str, caption: str) -> Item:
        """Save a figure made within `quernel.plots.house_style` as figures/<name>.svg and .png.

        Returns the item for the page, with the PNG embedded as a data URL: the page is one file without links.
        """
        folder = self.folder / "figures"
        folder.mkdir(parents=True, exist_ok=True)
        save_figure(figure, folder / f"{name}.svg")
        png = save_figure(figure, folder / f"{name}.png")
        encoded = base64.b64encode(png.read_bytes()).decode()
        return Item(name, caption, f'<img alt="{escape(caption)}" src="data:image/png;base64,{encoded}">')

    def save_table(
        self, columns: dict[str, str], rows: Sequence[Sequence[Any]], name: str, caption: str, *, folded: bool = False
    ) -> Item:
        """Save a table as tables/<name>.csv and .md, and return it as HTML.

        Parameters
        ----------
        columns : dict
            Heading to format specification of each column, such as {"level": "g", "mean": ".4f"}. The CSV file is not
            rounded by it.
        rows : sequence of sequences
            One sequence of values per row, None (or NaN) for a missing value.
        name : str
            File name without its suffix.
        caption : str
        folded : bool
            Whether the page shows the table collapsed.
        """
        folder = self.folder / "tables"
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f"{name}.csv").open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(columns)
            writer.writerows([[_csv_value(value) for value in row] for row in rows])
        cells = [[format_value(value, spec) for value, spec in zip(row, columns.values(), strict=True)] for row in rows]
        (folder / f"{name}.md").write_text(_render_markdown(list(columns), cells))
        is_text = [any(isinstance(row[k], str) for row in rows) for k in range(len(columns))]
        return Item(name, caption, _render_html(list(columns), cells, is_text), folded)


def format_value(value: object, spec: str) -> str:
    """Format a value for readers: a typographic minus sign, and a dash for a missing value."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return MISSING
    if isinstance(value, str):
        return value
    return format(value, spec).replace("-", MINUS) if spec else str(value)


def _csv_value(value: object) -> object:
    """Round to ten significant digits: further ones differ between machines and BLAS libraries."""
    if value is None:
        return ""
    return float(f"{value:.10g}") if isinstance(value, float) else value


def _render_markdown(columns: list[str], cells: list[list[str]]) -> str:
    """A pipe table; pipes inside cells are escaped."""
    lines = [columns, ["---"] * len(columns), *cells]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def _render_html(columns: list[str], cells: list[list[str]], is_text: list[bool]) -> str:
    """An HTML table; columns of text (`is_text`) are left-aligned and may wrap, numbers are not."""

    def line(tag: str, row: list[str]) -> str:
        marked = (
            (f'{tag} class="words"' if left else tag, _escape_breakable(cell))
            for cell, left in zip(row, is_text, strict=True)
        )
        return "<tr>" + "".join(f"<{opening}>{cell}</{tag}>" for opening, cell in marked) + "</tr>"

    body = "".join(line("td", row) for row in cells)
    return f"<table><thead>{line('th', columns)}</thead><tbody>{body}</tbody></table>"


def _escape_breakable(text: str) -> str:
    """Escape HTML, and allow line breaks inside long formulas at their parentheses."""
    return escape(text).replace(")/(", ")/<wbr>(").replace(")(", ")<wbr>(").replace("/(", "/<wbr>(")


STYLE = """
:root { --ink: #222; --quiet: #595959; --line: #d0d0d0; --blue: #08306b; --orange: #b34700; }
body { font: 16px/1.5 Georgia, "Times New Roman", serif; color: var(--ink); max-width: 62rem; margin: 2rem auto;
       padding: 0 1rem; }
h1, h2, h3, nav, table, .label, .verdict b { font-family: "Helvetica Neue", Arial, sans-serif; }
h1 { line-height: 1.2; color: var(--blue); } h2 { margin-top: 3rem; border-top: 2px solid var(--blue);
     padding-top: .6rem; color: var(--blue); }
h3 { font-size: 1rem; color: var(--quiet); margin-bottom: .3rem; }
.label { color: var(--quiet); font-weight: normal; font-size: .9rem; margin-left: .6rem; }
nav ol { columns: 2; font-size: .92rem; } nav li { break-inside: avoid; } a { color: var(--blue); }
figure { margin: 1.2rem 0; } figure img { max-width: 100%; height: auto; } .scroll { overflow-x: auto; }
figcaption, summary { font-size: .9rem; color: var(--quiet); margin: .3rem 0; }
table { border-collapse: collapse; font-size: .82rem; font-variant-numeric: tabular-nums; }
th { text-align: right; border-bottom: 1.5px solid var(--ink); vertical-align: bottom; } td { text-align: right; }
th, td { padding: .15rem .55rem; } tbody tr:nth-child(even) { background: #f4f6f9; }
td:first-child, th:first-child, .words { text-align: left; } td { vertical-align: top; }
.verdict { border-left: 4px solid var(--quiet); padding: .1rem .8rem; margin: .5rem 0; }
.verdict.yes { border-color: var(--blue); } .verdict.no { border-color: var(--orange); border-left-style: double; }
@media print { body { font-size: 10pt; max-width: none; } h2 { break-before: page; } figure { break-inside: avoid; }
               details > *:not(summary) { display: none; } }
"""
# Heading above what the paper reports, here and in the summary's README.
REPORTED = "What the paper reports, and how we read it"
# Outcome of a verdict to (CSS class, word): readers who see no colours read the word.
MARKS = {
    True: ("yes", "Shown."),
    False: ("no", "Not shown."),
    "undecided": ("", "Undecided."),
    "stated": ("", "Stated."),
    None: ("", "Remark."),
}


@dataclass(frozen=True)
class Chapter:
    """An experiment with its section and the total CPU time of its tasks, or the reason why it was not run."""

    experiment: Experiment
    section: Section | None
    seconds: float = 0.0
    left_out: str = ""


def render_page(chapters: Sequence[Chapter], heading: Sequence[str]) -> str:
    """The whole page as HTML.

    Parameters
    ----------
    chapters : sequence of Chapter
    heading : sequence of str
        Paragraphs on how the page was made: command, versions, machine.
    """
    contents = "".join(
        f'<li><a href="#{chapter.experiment.name}">{escape(chapter.experiment.title)}</a> '
        f"({escape(chapter.experiment.label)})</li>"
        for chapter in chapters
    )
    title, style = "The paper, reproduced", f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style>'
    sections = "".join(map(_render_chapter, chapters))
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>{style}</head><body>'
        f"<h1>{title}</h1>{_render_paragraphs(heading)}<nav><h3>Items</h3><ol>{contents}</ol></nav>"
        f"{sections}</body></html>\n"
    )


def _render_chapter(chapter: Chapter) -> str:
    """Heading, what the paper reports, verdicts, then figures and tables."""
    experiment, section = chapter.experiment, chapter.section
    heading = (
        f'<section id="{experiment.name}"><h2>{escape(experiment.title)}'
        f'<span class="label">{escape(experiment.label)} · <code>{experiment.name}</code></span></h2>'
    )
    if section is None:
        return f"{heading}<p>{escape(chapter.left_out)}</p></section>"
    verdicts = "".join(
        f'<p class="verdict {MARKS[verdict.holds][0]}"><b>{MARKS[verdict.holds][1]}</b> {escape(verdict.text)}</p>'
        for verdict in section.verdicts
    )
    return (
        f"{heading}<h3>{REPORTED}</h3>{_render_paragraphs(section.reported)}<h3>Verdict</h3>{verdicts}<h3>Figures and "
        f"tables</h3>{''.join(map(_render_item, section.items))}</section>"
    )


def _render_item(item: Item) -> str:
    """A figure or table with its caption; folded ones inside <details>."""
    caption = escape(item.caption)
    figure = (
        f'<figure id="{item.name}"><figcaption>{caption}</figcaption><div class="scroll">{item.html}</div></figure>'
    )
    return f"<details><summary>{caption}</summary>{figure}</details>" if item.folded else figure


def _render_paragraphs(texts: Sequence[str]) -> str:
    """Escaped <p> elements."""
    return "".join(f"<p>{escape(text)}</p>" for text in texts)


# Multiples of a power of ten at which ticks may stand, coarse before fine.
STEPS = ((1.0,), (1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0), tuple(np.arange(10, 100) / 10))


def set_log_log(ax: Axes, sizes: Sequence[float], *, max_ticks: int = 6) -> None:
    """Make both axes logarithmic, and label at most `max_ticks` of the sizes, the first and last among them."""
    ax.set_xscale("log")
    ax.set_yscale("log")
    named = np.geomspace(sizes[0], sizes[-1], min(max_ticks, len(sizes)))
    ticks = sorted({min(sizes, key=lambda size: abs(np.log(size / at))) for at in named})
    label_ticks(ax, ticks)
    label_decades(ax)


def label_ticks(ax: Axes, ticks: Sequence[float], *, min_distance: float = 0.1, **text: Any) -> None:
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


def label_decades(ax: Axes, which: str = "y") -> None:
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
