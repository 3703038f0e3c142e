"""The reproduction page: one self-contained HTML file with the paper's numbers beside ours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from quernel.paper.experiment import Experiment
from quernel.paper.output import Item, Section

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
    title = "The paper, reproduced"
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head><body>'
        f"<h1>{title}</h1>{_render_paragraphs(heading)}<nav><h3>Items</h3><ol>{contents}</ol></nav>"
        f"{''.join(map(_render_chapter, chapters))}</body></html>\n"
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
        f"{heading}<h3>{REPORTED}</h3>{_render_paragraphs(section.reported)}"
        f"<h3>Verdict</h3>{verdicts}<h3>Figures and tables</h3>{''.join(map(_render_item, section.items))}</section>"
    )


def _render_item(item: Item) -> str:
    """A figure or table with its caption; folded ones inside <details>."""
    rendered = (
        f'<figure id="{item.name}"><figcaption>{escape(item.caption)}</figcaption><div class="scroll">{item.html}'
    )
    rendered += "</div></figure>"
    return f"<details><summary>{escape(item.caption)}</summary>{rendered}</details>" if item.folded else rendered


def _render_paragraphs(texts: Sequence[str]) -> str:
    """Escaped <p> elements."""
    return "".join(f"<p>{escape(text)}</p>" for text in texts)
