"""The bar of a fit that reads files shows the pass, how far it is, and the time left."""

import io
import time

from rich.console import Console

from quernel.cli import console
from quernel.data.passes import begin_pass, watching
from quernel.solvers.progress import Progress, report


def shown(monkeypatch, work):
    screen = io.StringIO()
    monkeypatch.setattr(console, "errors", Console(file=screen, force_terminal=True, width=120))
    with console.fitting("Fitting"):
        work()
        time.sleep(0.3)  # the bar is drawn ten times a second
    return screen.getvalue()


def test_a_pass_over_files_is_shown_with_the_time_left(monkeypatch):
    def work():
        done = begin_pass(100)
        done(40)

    text = shown(monkeypatch, work)
    assert "pass 1 over the rows, about" in text
    assert "left" in text
    assert "done" in text


def test_a_fit_in_memory_shows_its_steps(monkeypatch):
    text = shown(monkeypatch, lambda: report(Progress(7, 1, 1e-3)))
    assert "step 7, gap 1e-03" in text
    assert "pass" not in text


def test_passes_outside_a_fit_are_not_reported():
    heard = []
    with watching(heard.append):
        begin_pass(100)(40)
    begin_pass(100)(60)
    assert [(progress.done, progress.n_rows) for progress in heard] == [(40, 100)]
