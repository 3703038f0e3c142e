"""A model of a small table, and the page about it."""

from functools import cache
from html.parser import HTMLParser

import numpy as np

from quernel.conformal.table_model import TableModel
from quernel.report import evaluate_by_refitting, report_page
from quernel.tables.training_data import ReadOptions
from support.models import plain_regressor
from support.tables import prepare, sales

LEVELS = [0.05, 0.5, 0.95]
VOID = {"meta", "link", "br", "hr", "img", "input"}


def fitted(table, target="price", levels=LEVELS, **options):
    training = prepare(table, ReadOptions(target, **options))
    estimator = plain_regressor(levels, n_components=40, random_state=0).fit(
        training.rows.X, training.rows.y, sample_weight=training.rows.weight
    )
    return TableModel(training.encoder, estimator, target, options.get("log_target", False)), training


@cache
def made():
    """Table, model, training rows, evaluation, and the page."""
    table = sales(300)
    model, training = fitted(table)
    evaluation = evaluate_by_refitting(model, training, seed=3)
    return (
        table,
        model,
        training,
        evaluation,
        report_page(model, table, evaluation, data="sales.csv", model_file="m.quernel"),
    )


class Reader(HTMLParser):
    """Reads a page strictly: every tag that opens must close, in order. Keeps the rows of every section's tables."""

    def __init__(self):
        super().__init__()
        self.open, self.ids, self.rows, self.texts, self.tags = [], [], {}, {}, []
        self.section, self.cells = "", None

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.tags.append((tag, attrs))
        if "id" in attrs:
            self.ids.append(attrs["id"])
        if tag == "section":
            self.section = attrs["id"]
        if tag == "tr":
            self.cells = []
        if tag in ("td", "th"):
            self.cells.append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        opened = self.open.pop()
        assert opened == tag, f"<{opened}> closed by </{tag}>"
        if tag == "tr":
            self.rows.setdefault(self.section, []).append(self.cells)
            self.cells = None

    def handle_data(self, data):
        if self.open and self.open[-1] in ("script", "style"):
            return
        data = data.replace("\N{NO-BREAK SPACE}", " ")
        if self.cells:
            self.cells[-1] += data
        self.texts[self.section] = self.texts.get(self.section, "") + data

    def row(self, section, first):
        (found,) = [row for row in self.rows[section] if row[0] == first]
        return found


def read(page):
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert reader.open == []
    return reader


def as_number(text):
    return float(text.replace(",", ""))


def pinball(y, curves, levels):
    """Mean over rows and levels, by hand."""
    total = 0.0
    for level, curve in zip(levels, curves.T, strict=True):
        above = y >= curve
        total += np.sum(level * (y - curve)[above]) + np.sum((1 - level) * (curve - y)[~above])
    return total / len(y) / len(levels)
