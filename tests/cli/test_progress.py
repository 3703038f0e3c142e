"""The bar of a fit shows its stage, or the pass over files, how far it is, and the time left."""

import io
import re
import time

import numpy as np
from rich.console import Console

from quernel import TabularQuantileRegressor
from quernel.cli import console
from quernel.data.sources import begin_pass, watching
from quernel.solvers.progress import Progress, listening, report, report_stage


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


def test_the_stages_of_a_tabular_fit_are_shown_in_order_with_the_time_left(monkeypatch):
    heard = []

    def work():
        rng = np.random.default_rng(0)
        X = rng.normal(size=(60, 2))
        with listening(lambda one: heard.append((one.stage, one.done, one.left)) if one.stage else None):
            TabularQuantileRegressor(n_trees=5, random_state=0).fit(X, X[:, 0] + rng.normal(size=60))
        report_stage(*heard[0])
        time.sleep(0.3)
        report_stage(*heard[-1])

    text = shown(monkeypatch, work)
    assert [stage.split()[0] for stage, _, _ in heard] == ["fitting", "growing", "growing", "weighing"]
    shares = [done for _, done, _ in heard]
    assert shares == sorted(set(shares))
    assert shares[-1] < 1
    assert all(left > 0 for _, _, left in heard)
    assert "fitting the kernel, about" in text
    assert re.search("weighing the parts on held-out rows, about .* left", text)


def test_passes_outside_a_fit_are_not_reported():
    heard = []
    with watching(heard.append):
        begin_pass(100)(40)
    begin_pass(100)(60)
    assert [(progress.done, progress.n_rows) for progress in heard] == [(40, 100)]
