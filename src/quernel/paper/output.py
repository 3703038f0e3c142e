"""What an item shows: figures, tables and verdicts, each written to the disk in the forms that readers want."""

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

# What the numbers say of a claim: see Verdict.
Holds = bool | Literal["undecided", "stated"] | None
MISSING, MINUS = "\u2013", "\u2212"


@dataclass(frozen=True)
class Item:
    """A figure or table with its caption, ready for the page."""

    name: str
    caption: str
    html: str
    folded: bool = False


@dataclass(frozen=True)
class Verdict:
    """One sentence made of the numbers, and what they say of a claim.

    `holds` is whether what was to be shown is shown; "undecided" where the numbers are too few to tell; "stated" where
    a formula was typed in and nothing was measured; None where it is a remark.
    """

    text: str
    holds: Holds = None


@dataclass(frozen=True)
class Section:
    """One item of the page: what the paper reports (and how it is read), what we found, and what to think of it.

    `reported` are paragraphs of plain text.
    """

    reported: Sequence[str]
    items: Sequence[Item]
    verdicts: Sequence[Verdict] = field(default_factory=tuple)


@dataclass(frozen=True)
class OutputFolder:
    """Where an item puts its figures (PNG and SVG) and tables (CSV and Markdown)."""

    folder: Path

    def save_figure(self, figure: Figure, name: str, caption: str) -> Item:
        """Save a figure made within `quernel.plots.house_style`."""
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
        """Save a table.

        Parameters
        ----------
        columns : heading of each column and how its numbers are written, such as {"level": "g", "mean": ".4f"}; the
            CSV file has them in full
        rows : one sequence of values per row, None for what is not known
        folded : whether the page shows it only when asked
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
    """A value as people read it: a true minus sign, and a dash for what is not known."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return MISSING
    if isinstance(value, str):
        return value
    return format(value, spec).replace("-", MINUS) if spec else str(value)


def _csv_value(value: Any) -> Any:
    """For the CSV file: ten digits, beyond which nothing is repeatable on other machines."""
    if value is None:
        return ""
    return float(f"{value:.10g}") if isinstance(value, float) else value


def _render_markdown(columns: list[str], cells: list[list[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *cells]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def _render_html(columns: list[str], cells: list[list[str]], is_text: list[bool]) -> str:
    """`words` says of each column whether it holds words or formulas, not numbers: these stand left, and wrap."""

    def line(tag: str, row: list[str]) -> str:
        marked = (
            (f'{tag} class="words"' if left else tag, _escape_breakable(cell))
            for cell, left in zip(row, is_text, strict=True)
        )
        return "<tr>" + "".join(f"<{opening}>{cell}</{tag}>" for opening, cell in marked) + "</tr>"

    body = "".join(line("td", row) for row in cells)
    return f"<table><thead>{line('th', columns)}</thead><tbody>{body}</tbody></table>"


def _escape_breakable(text: str) -> str:
    """Escaped, with places at which a long formula may go on in the next line."""
    return escape(text).replace(")/(", ")/<wbr>(").replace(")(", ")<wbr>(").replace("/(", "/<wbr>(")
