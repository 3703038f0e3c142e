"""The page: semantic HTML with style and script inside. It needs no network and no other file."""

from __future__ import annotations

from datetime import date
from html import escape
from importlib.resources import files

from quernel.report import sections
from quernel.report.content import Page, intervals
from quernel.report.words import number, percent


def html(page: Page) -> str:
    """The whole page."""
    title = f"Quantiles of {page.model.target}"
    parts = {
        "data": ("The data", sections.data(page)),
        "choices": ("What was chosen, and why", sections.choices(page)),
        "loss": ("Loss beside simpler models", sections.losses(page)),
        "coverage": ("Coverage and calibration", sections.coverage(page)),
        "columns": ("Column by column", sections.fans(page)),
        "worst": ("The worst-predicted rows", sections.worst(page)),
        "outside": ("Rows outside the training range", sections.outside(page)),
        "load": ("How to use the model", sections.loading(page)),
    }
    links = "".join(f'<li><a href="#{name}">{heading}</a></li>' for name, (heading, _) in parts.items())
    body = "".join(
        f'<section id="{name}" aria-labelledby="{name}-title"><h2 id="{name}-title">{heading}</h2>{content}</section>'
        for name, (heading, content) in parts.items()
    )
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<style>{_file('page.css')}</style></head><body><header><h1>{escape(title)}</h1>"
        f'<p class="quiet">{escape(page.data)}, {page.n_rows:,} rows, {_today()}</p>{_tiles(page)}'
        f'<nav aria-label="Sections"><ul>{links}</ul></nav></header><main>{body}</main>'
        f"<script>{_file('page.js')}</script></body></html>\n"
    )


def _tiles(page: Page) -> str:
    judged = page.judged
    ours = judged.losses().mean()
    constant = judged.losses(next(iter(judged.rivals))).mean()
    change = ours / constant - 1 if constant > 0 else 0.0
    beside = f"{percent(abs(change), 0)} {'below' if change <= 0 else 'above'} unconditional quantiles"
    rows = "held-out" if judged.unseen else "judged"
    drawn = "" if judged.out_of is None else f", a sample of {judged.out_of:,}"
    tiles = [(f"Pinball loss on {len(judged.y):,} {rows} rows{drawn}", number(ours), beside)]
    for one in intervals(judged)[:1]:
        told = f"asked for: {percent(one.nominal, 0)}; by chance {percent(one.low)} to {percent(one.high)}"
        if one.inner < one.observed:
            told += f"; without rows on its ends {percent(one.inner)}"
        kind = "calibrated interval" if one.calibrated else "interval"
        tiles.append((f"{percent(one.nominal, 0)} {kind} holds", f"{percent(one.observed)}", told))
    calibrated = page.calibration
    told = "as many rows are below the curve as promised, give or take chance"
    tiles.append(("Levels that hold", f"{calibrated.holds.sum()} of {len(calibrated.levels)}", told))
    gap = next(choice for choice in page.choices if choice.name == "Certified gap")
    tiles.append((gap.name, gap.value, "from the best possible objective"))
    cells = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}<small>{escape(told)}</small></dd></div>"
        for name, value, told in tiles
    )
    return f'<dl class="tiles">{cells}</dl>'


def _file(name: str) -> str:
    return files("quernel.report").joinpath(name).read_text(encoding="utf-8")


def _today() -> str:
    return date.today().isoformat()
