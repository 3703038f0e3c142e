"""Systems run in processes of their own: whatever they do there, a row says so."""

import time
from pathlib import Path

import numpy as np
import pytest

from quernel.bench import Task, compare, describe_machine, fit_and_score, load_system, run, time_best

TASK = Task(n=100, level=0.5, alpha=1e-2, M=5, repeats=1)
BROKEN = """
import os, subprocess, time
from quernel.bench import Answer, System

def slow(task):
    with open("helper.pid", "w") as file:
        file.write(str(subprocess.Popen(["sleep", "60"]).pid))
    time.sleep(60)

def prepared(task):
    return Answer(0.0, note=str("features" in vars(task)))

def missing(task):
    import a_package_that_nobody_has

def wrong(task):
    raise RuntimeError("the matrix is singular")

def crash(task):
    os.abort()

def talks(task):
    print("a line that is no answer")
    return Answer(float(os.environ["OMP_NUM_THREADS"]), note="fine", version="7")

SLOW, MISSING, WRONG, CRASH, TALKS, PREPARED = (
    System(f.__name__, "numpy", f) for f in (slow, missing, wrong, crash, talks, prepared)
)
"""


@pytest.fixture
def broken(tmp_path, monkeypatch):
    (tmp_path / "broken_systems.py").write_text(BROKEN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return "broken_systems:"


@pytest.mark.parametrize(
    ("name", "status"), [("MISSING", "not installed"), ("WRONG", "failed: the matrix is singular")]
)
def test_what_goes_wrong_is_said(broken, name, status):
    assert fit_and_score(load_system(broken + name), TASK) == {"system": name.lower(), "status": status}


def test_a_crash_is_said_too(broken):
    outcome = run(broken + "CRASH", TASK)
    assert outcome.status.startswith("failed: ")
    assert outcome.system == "crash"
    assert not outcome.done
    assert outcome.seconds is None


def test_a_slow_system_is_stopped_with_all_that_it_started(broken, tmp_path):
    outcome = run(broken + "SLOW", TASK, time_limit=8)
    assert (outcome.system, outcome.status) == ("slow", "timed out after 8 s")
    helper = Path("/proc") / (tmp_path / "helper.pid").read_text()
    assert not helper.exists() or "(zombie)" in (helper / "status").read_text()


def test_an_adapter_that_does_not_exist_is_a_failure_too():
    assert run("no_such_module:SYSTEM", TASK).status.startswith("failed: ")


def test_what_a_system_prints_is_no_answer_and_its_threads_are_ours_to_set(broken):
    outcome = run(broken + "TALKS", TASK, threads=3)
    assert (outcome.status, outcome.seconds, outcome.version, outcome.note) == ("done", 3.0, "7", "fine")
    assert outcome.objective is None


def test_the_data_are_made_before_anybody_is_timed(broken):
    assert fit_and_score(load_system(broken + "PREPARED"), Task(n=50, level=0.5, alpha=1e-2, M=4))["note"] == "True"


def test_rows_are_held_against_the_first_ones_bound(broken):
    seen = []
    rows = compare(["quernel.bench:QUERNEL", broken + "WRONG"], TASK, problem="a task", callback=seen.append)
    assert rows == seen
    assert [row["problem"] for row in rows] == ["a task"] * 2
    assert 0 <= rows[0]["excess"] <= 1e-6
    assert rows[1]["excess"] is None


def test_best_is_the_shortest_and_gives_the_last_answer():
    calls = []
    seconds, answer = time_best(lambda: calls.append(0) or len(calls), repeats=4)
    assert answer == 4
    assert 0 <= seconds < 1


def test_what_takes_long_is_not_run_again(monkeypatch):
    monkeypatch.setattr("quernel.bench.LONG", 0.0001)
    calls = []
    assert time_best(lambda: calls.append(time.sleep(0.001)), repeats=4)[0] >= 0.001
    assert len(calls) == 1


def test_the_machine_is_described():
    facts = describe_machine()
    assert "cores" in facts["processor"]
    assert f"numpy {np.__version__}" in facts["packages"]
    assert "?" not in facts["packages"]
