"""Tables and figures as HTML. Text is escaped here, once; a `Cell` holds HTML already."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

# Tables of more lines than this scroll, so that what follows is not far away.
TALL = 15


@dataclass(frozen=True)
class Cell:
    """A cell of a table whose text is HTML already, with a class, or a heading of its row."""

    text: str
    kind: str = ""
    tag: str = "td"


def right(text: str) -> Cell:
    """A number, or the heading of a column of numbers."""
    return Cell(escape(text), "n")


def head(text: str) -> Cell:
    """The heading of a row."""
    return Cell(escape(text), tag="th")


def verdict(holds: bool) -> Cell:
    """Text and a sign, not colours alone."""
    return Cell("ok", "good") if holds else Cell("off", "bad")


def table(
    heads: Iterable[Cell | str], lines: Iterable[Iterable[Cell | str]], caption: str = "", marked: Sequence[int] = ()
) -> str:
    """An HTML table in a region that scrolls if it is too wide; the `marked` lines are highlighted."""
    top = "".join(_cell(head, "th", ' scope="col"') for head in heads)
    lines = list(lines)
    body = "".join(
        f"<tr{' class=ours' if k in marked else ''}>{''.join(_cell(cell, 'td') for cell in line)}</tr>"
        for k, line in enumerate(lines)
    )
    caption_html = (
        f'<p class="caption">{escape(caption)}</p>' if caption else ""
    )  # not in the table: it must not scroll
    tall = " tall" if len(lines) > TALL else ""
    # A table that is too wide is scrolled, by the keyboard too.
    return (
        f'{caption_html}<div class="scroll{tall}" tabindex="0" role="region" '
        f'aria-label="{escape(caption) or "Table"}"><table>'
        f"<thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _cell(cell: Cell | str, tag: str, more: str = "") -> str:
    made = Cell(escape(cell)) if isinstance(cell, str) else cell
    if made.tag == "th" and not more:
        tag, more = "th", ' scope="row"'
    kind = f' class="{made.kind}"' if made.kind else ""
    return f"<{tag}{kind}{more}>{made.text}</{tag}>"


def figure(drawing: str, caption: str, name: str = "") -> str:
    """A drawing with its caption."""
    known = f' id="{name}"' if name else ""
    return f"<figure{known}>{drawing}<figcaption>{escape(caption)}</figcaption></figure>"
