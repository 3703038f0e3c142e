"""What an experiment presents: figures, tables and verdicts, and the files in which they are saved.

A figure is saved as PNG and SVG, a table as CSV (ten digits) and Markdown (rounded); both also become HTML for the
page.
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

from quernel.plots.style import save_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Outcome of a verdict: see `Verdict`.
Holds = bool | Literal["undecided", "stated"] | None
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
        self,
        columns: dict[str, str],
        rows: Sequence[Sequence[Any]],
        name: str,
        caption: str,
        *,
        folded: bool = False,
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


def format_value(value: Any, spec: str) -> str:
    """Format a value for readers: a typographic minus sign, and a dash for a missing value."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return MISSING
    if isinstance(value, str):
        return value
    return format(value, spec).replace("-", MINUS) if spec else str(value)


def _csv_value(value: Any) -> Any:
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
