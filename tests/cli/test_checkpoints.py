"""`quernel fit --checkpoint`: a process that is killed in the middle of its fit, and the one that goes on."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

import quernel
from quernel.solvers import screening as driver
from quernel.solvers.result import Checkpoint
from support.command_line import run
from support.tables import write_files

SMALL = 2_000
OPTIONS = ("--quantiles", "0.1,0.5,0.9", "--components", "20", "--alpha", "1e-4", "--max-memory", "550kB", "--json")
# Checkpoints of fewer rows are those of samples.
MANY = 10_000
# The command line in a process of its own, which kills itself after its first round over all rows.
KILLED = f"""
import os, signal
from dataclasses import replace
from quernel.cli import main
from quernel.solvers.result import Checkpoint
from quernel.solvers import screening as driver

driver.OPTIONS, write = replace(driver.OPTIONS, small={SMALL}), Checkpoint.write

def last_words(self, guess):
    write(self, guess)
    if guess.n_rows >= {MANY}:
        os.kill(os.getpid(), signal.SIGKILL)

Checkpoint.write = last_words
main()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    rng, n = np.random.default_rng(0), 20_000
    x = rng.uniform(-2, 2, (n, 2))
    y = np.sin(2 * x[:, 0]) + (0.3 + 0.1 * x[:, 1] ** 2) * rng.standard_normal(n)
    kind = np.array(["even", "odd"])[rng.integers(0, 2, n)]
    table = pa.table({"hour": x[:, 0], "load": x[:, 1], "kind": kind, "delay": y})
    return write_files(tmp_path_factory.mktemp("checkpoints") / "data", table, n_files=3)


@pytest.fixture
def written(monkeypatch):
    """The rows of every checkpoint; tables as small as this one would be gathered, and write none."""
    monkeypatch.setattr(driver, "OPTIONS", replace(driver.OPTIONS, small=SMALL))
    rows, write = [], Checkpoint.write

    def count(self, initial):
        write(self, initial)
        rows.append(initial.n_rows)

    monkeypatch.setattr(Checkpoint, "write", count)
    return rows


def kill(arguments):
    ran = subprocess.run(
        [sys.executable, "-c", KILLED, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert (ran.returncode, ran.stdout) == (-signal.SIGKILL, ""), ran.stderr


def interrupt(arguments, monkeypatch):
    """As Ctrl-C does, after the first round over all rows."""
    write = Checkpoint.write

    def stop(self, initial):
        write(self, initial)
        if initial.n_rows >= MANY:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoint, "write", stop)
        ran = run(*arguments)
    assert (ran.returncode, ran.stdout) == (130, "")
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize(
    "more", [[], ["--conformal", "--calibration-share", "0.1"]], ids=["killed", "interrupted before it calibrates"]
)
def test_a_fit_goes_on_where_it_ended(folder, tmp_path, written, monkeypatch, more):
    def fit(model, *options):
        return ("fit", folder, "--target", "delay", "--model", tmp_path / model, *OPTIONS, *more, *options)

    file, resumed = tmp_path / "fit.ckpt", fit("m.quernel", "--checkpoint", tmp_path / "fit.ckpt")
    whole = run(*fit("whole.quernel", "--checkpoint", tmp_path / "other.ckpt"))
    assert (whole.returncode, json.loads(whole.stdout)["read"]) == (0, "streamed"), whole.stderr
    assert min(written) < MANY <= max(written)
    if more:
        interrupt(resumed, monkeypatch)
    else:
        kill(resumed)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fit.ckpt", "whole.quernel"]
    content = file.read_bytes()
    refused = run(*resumed, "--seed", "1")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "checkpoint of another fit: it differs in" in refused.stderr
    assert file.read_bytes() == content
    written.clear()
    again = run(*resumed)
    assert again.returncode == 0, again.stderr
    assert min(written, default=MANY) >= MANY  # it did not begin anew, with samples
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.quernel", "whole.quernel"]
    one, other = (quernel.load(tmp_path / name) for name in ("whole.quernel", "m.quernel"))
    assert other.encoder.columns_ == one.encoder.columns_
    assert max(json.loads(again.stdout)["duality_gap"]) <= 1e-6
    np.testing.assert_allclose(other.model.objective_, one.model.objective_, rtol=2e-6)
    rows = pa.table({"hour": [-1.0, 0.0, 1.5], "load": [0.0, 1.0, -1.0], "kind": ["odd", "even", "odd"]})
    np.testing.assert_allclose(other.predict(rows), one.predict(rows), atol=0.01)
    if more:
        assert other.interval.n_calibration_ == one.interval.n_calibration_ == 2000
        np.testing.assert_allclose(other.predict_interval(rows), one.predict_interval(rows), atol=0.01)
