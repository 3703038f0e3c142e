"""Numbers and dates as text, tables and figures as HTML. Text is escaped here, once; a `Cell` holds HTML already."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape

from quernel.plots import CalibrationDisplay

# Tables of more lines than this are folded, so that what follows is not far away.
TALL = 15


def format_number(value: float, digits: int = 4, *, grouped: bool | None = None) -> str:
    """Format with about four significant digits: 12,346, 1,235, 2017 (a year), 12.35, 0.1235, 1.2e-05.

    Whether thousands are `grouped` is by the value, if it is not given.
    """
    value = float(value)
    if not math.isfinite(value):
        return "\N{EN DASH}"
    if value == 0:
        return "0"
    size = math.floor(math.log10(abs(value)))
    if size < -4 or size > 12:
        return f"{value:.3g}"
    text = f"{value:,.{max(0, digits - 1 - size)}f}"
    text = text.replace(",", "") if (may_be_years([value]) if grouped is None else not grouped) else text
    return text.rstrip("0").rstrip(".") if "." in text else text


def format_amount(value: float) -> str:
    """Format a number that is no year or code, such as a loss: 9,198."""
    return format_numbers((value,))[0]


def may_be_years(values: Iterable[float]) -> bool:
    """Return whether these are whole numbers of the last or this century, which have no commas."""
    return all(1900 <= value < 2100 and value == round(value) for value in values)


def format_numbers(values: Iterable[float], *, grouped: bool | None = True) -> list[str]:
    """Format numbers to be compared: decimals are those of the largest, of far smaller ones their own.

    Whether thousands are `grouped` is by the values, if it is None.
    """
    values = [float(value) for value in values]
    grouped = not may_be_years(values) if grouped is None else grouped
    finite = [abs(value) for value in values if math.isfinite(value)]
    largest = max(finite, default=0.0)
    size = math.floor(math.log10(largest)) if largest else 0
    decimals = max(0, 3 - size)
    while decimals and all(round(value, decimals) == round(value, decimals - 1) for value in finite):
        decimals -= 1  # zeros that all would end in
    alone = largest < 1e-4 or largest >= 1e13
    return [
        format_number(value, grouped=grouped)
        if alone or not math.isfinite(value) or 0 < abs(value) < 10.0**-decimals
        else f"{value:{',' if grouped else ''}.{decimals}f}"
        for value in values
    ]


def format_tick(value: float) -> str:
    """Format the tick of an axis: 2,500, 250k, 1.5M."""
    for least, unit, letter in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if abs(value) >= least:
            return f"{value / unit:.6g}{letter}"
    return f"{value:,.6g}"


def format_share(share: float, digits: int = 1) -> str:
    """Format a share in per cent, with a no-break space."""
    return f"{100 * share:.{digits}f}\N{NO-BREAK SPACE}%"


def format_count(count: int, noun: str) -> str:
    """Format a count with its noun: 1 column, 1,200 columns."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def format_date(seconds: float) -> str:
    """Format a date, given in seconds since 1970, with hours and minutes unless it is midnight."""
    moment = datetime.fromtimestamp(round(seconds), UTC)
    return f"{moment:%Y-%m-%d}" if moment.hour == moment.minute == 0 else f"{moment:%Y-%m-%d %H:%M}"


def format_time(seconds: float) -> str:
    """Format a time of day, given in seconds since midnight, as HH:MM, or HH:MM:SS with seconds."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60:02}:{minutes % 60:02}" + (f":{rest:02}" if rest else "")


@dataclass(frozen=True)
class Cell:
    """A cell of a table: HTML, with a CSS class, or the header of its row."""

    html: str
    kind: str = ""
    tag: str = "td"


def numeric_cell(text: str) -> Cell:
    """Return a cell that is aligned to the right: a number, or the header of a column of numbers."""
    return Cell(escape(text), "n")


def row_header(text: str) -> Cell:
    """Return the header of a row."""
    return Cell(escape(text), tag="th")


def verdict_cell(holds: bool, *, wide: bool = False, few: bool = False) -> Cell:
    """Return a cell that says ok, wide, off or too few in text and a sign, not in colours alone."""
    if wide:
        return Cell("wide", "wide")
    return Cell("off", "bad") if not holds else Cell("too few", "few") if few else Cell("ok", "good")


def exceeds(share: float, limit: float) -> bool:
    """Return whether a share is above a limit as both are printed, in tenths of a per cent."""
    return round(share, 3) > round(limit, 3)


def judge_levels(shown: CalibrationDisplay) -> list[str]:
    """Return whether each quantile is ok, too low or too high, from the shares of rows below it and at or below it."""
    shares = zip(shown.below, shown.observed, shown.lower, shown.upper, strict=True)
    return [
        "too low" if exceeds(low, observed) else "too high" if exceeds(below, high) else "ok"
        for below, observed, low, high in shares
    ]


def bar_cell(share: float) -> Cell:
    """Return a cell with a horizontal bar, `share` of the longest one."""
    return Cell(f'<span style="width:{96 * share:.1f}%"></span>', "track")


def make_table(
    heads: Iterable[Cell | str], lines: Iterable[Iterable[Cell | str]], caption: str = "", marked: Sequence[int] = ()
) -> str:
    """Return an HTML table in a region that scrolls if it is too wide; the `marked` lines are highlighted."""
    top = "".join(_make_cell(head, "th", ' scope="col"') for head in heads)
    lines = list(lines)
    body = "".join(
        f"<tr{' class=ours' if k in marked else ''}>{''.join(_make_cell(cell, 'td') for cell in line)}</tr>"
        for k, line in enumerate(lines)
    )
    # The caption is not in the table: it must not scroll.
    caption_html = f'<p class="caption">{escape(caption)}</p>' if caption else ""
    # With a tabindex, a table that is too wide can be scrolled by the keyboard, too.
    table = (
        f'<div class="scroll" tabindex="0" role="region" '
        f'aria-label="{escape(caption) or "Table"}"><table>'
        f"<thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>"
    )
    return f"{caption_html}{fold(f'Table of {len(lines)} rows', table) if len(lines) > TALL else table}"


def fold(summary: str, content: str) -> str:
    """Return HTML that a reader unfolds."""
    return f"<details><summary>{escape(summary)}</summary>{content}</details>"


def render_text(text: str) -> str:
    """Return a text as HTML, with what is between backticks, a name or a command, as code."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", escape(text))


def _make_cell(cell: Cell | str, tag: str, attributes: str = "") -> str:
    cell = Cell(escape(cell)) if isinstance(cell, str) else cell
    if cell.tag == "th" and not attributes:
        tag, attributes = "th", ' scope="row"'
    kind = f' class="{cell.kind}"' if cell.kind else ""
    return f"<{tag}{kind}{attributes}>{cell.html}</{tag}>"


def make_figure(drawing: str, caption: str, name: str = "") -> str:
    """Return a drawing with its caption, as HTML."""
    identifier = f' id="{name}"' if name else ""
    return f"<figure{identifier}>{drawing}<figcaption>{escape(caption)}</figcaption></figure>"
