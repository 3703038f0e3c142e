"""The bar of a fit shows its stage, or the pass over files, how far it is, and the time left."""

import io
import re
import time
from itertools import pairwise

import numpy as np
from rich.console import Console

from quernel import KernelQuantileRegressor, TabularQuantileRegressor
from quernel.cli import console
from quernel.data.sources import begin_pass, watching
from quernel.estimators import base
from quernel.solvers import progress
from quernel.solvers.progress import Progress, enter_stage, listening, report, report_step, staged


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
        for stage, done, left in (heard[0], heard[-1]):
            report(Progress(0, 0, np.inf, stage=stage, done=done, left=left))
            time.sleep(0.3)

    text = shown(monkeypatch, work)
    assert [stage.split()[0] for stage, _, _ in heard] == ["fitting", "growing", "growing", "weighing"]
    shares = [done for _, done, _ in heard]
    assert shares == sorted(set(shares))
    assert shares[-1] < 1
    assert all(left > 0 for _, _, left in heard)
    assert "fitting the kernel, about" in text
    assert re.search("weighing the parts on held-out rows, about .* left", text)


def test_a_kernel_fit_goes_through_its_stages_and_never_back(monkeypatch):
    monkeypatch.setattr(progress, "SILENCE", 0.0)  # every Newton step reports
    heard, rng = [], np.random.default_rng(0)
    X = rng.normal(size=(80, 2))
    with listening(heard.append):
        KernelQuantileRegressor([0.1, 0.9], random_state=0).fit(X, X[:, 0] + rng.normal(size=80))
    stages = [one.stage for one in heard]
    assert list(dict.fromkeys(stages)) == [base.CHOOSING, progress.SOLVING, base.CALIBRATING]
    assert sorted(stages, key=stages.index) == stages  # one stage after the other, though a search solves problems, too
    assert all(one.columns == 0 and one.gap == np.inf for one in heard if one.stage != progress.SOLVING)
    steps = [one for one in heard if one.stage == progress.SOLVING and one.columns]
    assert len({one.iteration for one in steps}) > 5
    assert all(later.gap <= earlier.gap for earlier, later in pairwise(steps))
    shares = [one.done for one in heard]
    assert shares == sorted(shares)
    assert 0 <= shares[0] < shares[-1] < 1
    assert all(one.left > 0 for one in heard)


def test_the_time_left_follows_the_pace_and_the_share_never_falls(monkeypatch):
    now, heard = [0.0], []
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with listening(heard.append), staged(lambda: {"one": 10.0, "two": 10.0}):
        for stage, seconds in (("one", (2, 5, 20, 40)), ("two", (50, 80, 120))):
            enter_stage(stage)
            for now[0] in seconds:
                report(Progress(0, 0, np.inf))
        enter_stage("a stage that this fit does not have")
    shares, left = zip(*((round(one.done, 9), round(one.left, 9)) for one in heard), strict=True)
    assert list(shares) == sorted(set(shares))
    assert shares[-1] < 1
    assert dict(zip(shares, left, strict=True))[0.1] == 18  # 2 of 20 seconds, as expected
    assert left[3] < 12  # the first stage seems to be at its end, and took four times as long: ...
    assert left[5] == 30 == 10 * (40 + 5) / (10 + 5)


def test_steps_report_only_after_silence(monkeypatch):
    now, heard = [0.0], []
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with listening(heard.append):
        for now[0] in (1.0, 1.8, 2.1, 3.0, 4.0, 4.2, 5.0):
            report_step(Progress(1, 1, 0.1))
    assert len(heard) == 2
    report_step(Progress(1, 1, 0.1))  # nobody listens


def test_the_bar_of_passes_never_goes_back(monkeypatch):
    shares = []
    monkeypatch.setattr(console.Bars, "update", lambda *_, completed, **__: shares.append(completed))

    def work():
        for _ in range(8):
            done = begin_pass(100)
            done(40)
            done(60)

    shown(monkeypatch, work)
    assert len(shares) > 8
    assert all(later > earlier for earlier, later in pairwise(shares))
    assert shares[-2] < 1


def test_passes_outside_a_fit_are_not_reported():
    heard = []
    with watching(heard.append):
        begin_pass(100)(40)
    begin_pass(100)(60)
    assert [(progress.done, progress.n_rows) for progress in heard] == [(40, 100)]
