"""The runner: results depend on the seed alone, are never mixed, and survive a kill."""

import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest

from quernel.paper.reproduction import TASKS_FILE, Finished, Results, make_stamp, task_rng
from support.tiny_experiment import TINY, reproduce

TESTS = str(Path(__file__).parents[1])


def content(folder):
    """What a reader gets: tables, tidy rows and the page."""
    files = [Path(folder) / "tables" / "tiny.csv", Path(folder) / "tables" / "tiny.md", Path(folder) / "index.html"]
    rows = pq.read_table(Path(folder) / "rows" / "tiny.parquet", use_threads=False).to_pylist()
    return [file.read_text() for file in files], rows


def lines(folder):
    path = Path(folder) / "results" / "tiny" / TASKS_FILE
    return path.read_text().splitlines() if path.exists() else []


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    reproduce(folder, size="full")
    return folder


def test_results_do_not_depend_on_the_number_of_processes_or_the_order(whole, tmp_path):
    turned = replace(TINY, cost=lambda task: -task["n"])  # dearest first: the other way round
    reproduce(tmp_path, size="full", jobs=1, one=turned)
    assert content(tmp_path) == content(whole)
    assert [line.split('"seconds"')[0] for line in lines(tmp_path)] != sorted(lines(tmp_path))


def test_another_seed_gives_other_numbers_and_every_task_its_own(whole, tmp_path):
    reproduce(tmp_path, seed=1, jobs=1)
    by_draw = {(row["n"], row["repetition"], row["draw"]): row["value"] for row in content(whole)[1]}
    others = content(tmp_path)[1]
    assert len(others) == 16
    assert not any(row["value"] == by_draw[row["n"], row["repetition"], row["draw"]] for row in others)
    values = [row["value"] for row in content(whole)[1]]
    assert len(set(values)) == len(values) == 32
    draws = {task_rng(0, name, task).random() for name in ("a", "b") for task in ({"n": 1}, {"n": 2}, {"m": 1})}
    assert len(draws) == 6
    assert task_rng(0, "a", {"n": 1, "k": 2}).random() == task_rng(0, "a", {"k": 2, "n": 1}).random()


def test_a_killed_run_goes_on_where_it_stopped_and_ends_with_the_same_tables(whole, tmp_path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([TESTS, *sys.path])}
    run = subprocess.Popen([sys.executable, "-m", "support.tiny_experiment", str(tmp_path)], env=environment)
    deadline = time.monotonic() + 60
    while len(lines(tmp_path)) < 4 and time.monotonic() < deadline:
        time.sleep(0.02)
    workers = psutil.Process(run.pid).children(recursive=True)
    run.send_signal(signal.SIGKILL)
    run.wait()
    kept = lines(tmp_path)
    assert 4 <= len(kept) < 16, "killed in the middle"
    assert not (tmp_path / "index.html").exists()
    gone, alive = psutil.wait_procs(workers, timeout=20)
    assert gone, "there were workers"
    assert not alive, "workers end with their parent"

    done = []
    reproduce(tmp_path, size="full", jobs=1, listener=lambda experiment, finished, cost: done.append(finished.task))
    assert len(done) == 16 - len(kept), "nothing is done twice"
    assert lines(tmp_path)[: len(kept)] == kept
    assert content(tmp_path) == content(whole)


def test_a_line_cut_off_by_a_kill_is_done_again(whole, tmp_path):
    shutil.copytree(whole / "results", tmp_path / "results")
    path = tmp_path / "results" / "tiny" / TASKS_FILE
    path.write_text(path.read_text()[:-40])
    done = []
    reproduce(tmp_path, size="full", jobs=1, listener=lambda experiment, finished, cost: done.append(finished.task))
    assert len(done) == 1
    assert content(tmp_path) == content(whole)


@pytest.mark.parametrize(
    ("other", "word"),
    [
        ((TINY, 7, "quick", None), "seed 7"),
        ((TINY, 0, "full", None), "size full"),
        ((replace(TINY, version=2), 0, "quick", None), "version 2"),
        ((TINY, 0, "quick", "another file"), "data another file"),
    ],
)
def test_results_of_another_kind_of_run_are_refused_and_never_mixed(tmp_path, other, word):
    results = Results(tmp_path / "tiny", make_stamp(TINY, 0, "quick", None))
    results.add(Finished({"n": 1}, 0.5, [{"x": 0.1 + 0.2}]))
    with pytest.raises(ValueError, match=f"{word}.*Choose another --out, or add --force"):
        Results(tmp_path / "tiny", make_stamp(*other))
    again = Results(tmp_path / "tiny", make_stamp(TINY, 0, "quick", None), discard=True)
    assert again.finished == results.finished, "what is alike is kept, to the last digit, also with --force"
    assert Results(tmp_path / "tiny", make_stamp(*other), discard=True).finished == {}


def test_the_page_is_one_file_and_escapes_what_it_is_given(whole):
    (_, markdown, page), _ = content(whole)
    assert "Means &lt;of&gt; nothing." in page
    assert "Nothing &amp; less." in page
    assert "The sum is known." in page
    assert "<of>" not in page
    assert not any(word in page for word in ("http://", "https://", "<script", "<link"))
    assert markdown.startswith("| n | mean | sd | s.e. |\n| --- |")
