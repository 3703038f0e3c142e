"""`quernel fit` and `quernel tune` that are stopped: by --max-seconds, and by Ctrl-C."""

import os
import signal
from contextlib import contextmanager
from importlib import import_module

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import quernel
from quernel.solvers.progress import listening
from support.command_line import run

# A fit of many Newton steps: many features, and hardly any ridge weight.
HARD = ("--quantiles", "0.1,0.5,0.9", "--components", "400", "--bandwidth", "0.3", "--alpha", "1e-10")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    rng, n = np.random.default_rng(0), 6000
    x = rng.uniform(-2, 2, (n, 2))
    y = np.sin(2 * x[:, 0]) + (0.3 + 0.1 * x[:, 1] ** 2) * rng.standard_normal(n)
    folder = tmp_path_factory.mktemp("stopped")
    pq.write_table(pa.table({"hour": x[:, 0], "load": x[:, 1], "delay": y}), folder / "t.parquet")
    return folder


def fit(folder, model, *more):
    return run("fit", folder / "t.parquet", "--target", "delay", "--model", model, *more)


def assert_kept(ran, model, reason):
    assert ran.returncode == 0, ran.stderr
    assert f"was stopped by the {reason} at a relative duality gap of" in ran.stderr
    assert "certified gap" in ran.stdout
    kept = quernel.load(model)
    assert kept.model.duality_gap_.max() > kept.model.tol
    assert np.isfinite(kept.predict({"hour": [0.0, 1.0], "load": [0.0, -1.0]})).all()


def test_a_fit_that_is_out_of_time_saves_its_best_model_and_prints_the_gap(folder, tmp_path):
    ran = fit(folder, tmp_path / "m", *HARD, "--max-seconds", "0.05")
    assert_kept(ran, tmp_path / "m", "time limit")
    assert "a larger --max-seconds (now 0.05)" in ran.stderr


def test_a_search_has_a_time_limit_too(folder, tmp_path):
    search = ("--alphas", "1e-10,1e-9", "--bandwidths", "0.3", "--validation", "0.2", "--components", "400")
    more = ("--model", tmp_path / "m", "--quantiles", "0.5", *search, "--max-seconds", "0.05")
    ran = run("tune", folder / "t.parquet", "--target", "delay", *more)
    assert ran.returncode == 0, ran.stderr
    assert "was stopped by the time limit" in ran.stderr
    assert quernel.load(tmp_path / "m").model.duality_gap_.max() > 1e-6


def test_a_limit_that_is_none_is_refused_before_any_work(folder, tmp_path):
    ran = fit(folder, tmp_path / "m", "--max-seconds", "0")
    assert (ran.returncode, ran.stdout) == (1, "")
    assert "--max-seconds must be a positive" in ran.stderr


@pytest.fixture
def heard():
    """Ctrl-C as in a terminal: processes in the background, such as this one may be, ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heard")
@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_saves_the_best_model_and_a_second_one_aborts(folder, tmp_path, monkeypatch, times):
    pressed = []

    def press(progress):
        while progress.columns and len(pressed) < times:  # a solver reports: there is a model to save
            pressed.append(True)
            os.kill(os.getpid(), signal.SIGINT)

    @contextmanager
    def fitting(*_):
        with listening(press):
            yield

    monkeypatch.setattr(import_module("quernel.cli.fit"), "fitting", fitting)
    ran = fit(folder, tmp_path / "m", *HARD)
    if times == 1:
        assert_kept(ran, tmp_path / "m", "interrupt")
    else:
        assert (ran.returncode, ran.stdout) == (130, "")
        assert list(tmp_path.iterdir()) == []
