"""`--sampling`, `--solver`, `--tol` and `--no-intercept` of `quernel fit` and `quernel tune`."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import quernel
from quernel.features import RandomFeatures
from support.command_line import run

FIT = "fit", "t.parquet", "--target", "y", "--model", "m"
TUNE = (
    "tune",
    "t.parquet",
    "--target",
    "y",
    "--model",
    "m",
    "--validation",
    0.3,
    "--alphas",
    "1e-3",
    "--bandwidths",
    0.5,
)
FEW = "--components", 20, "--quantiles", 0.5, "--json"


@pytest.fixture
def here(monkeypatch, tmp_path):
    """A table of 300 rows, in the folder in which commands are run; y is far from 0."""
    rng = np.random.default_rng(0)
    x = rng.random(300)
    pq.write_table(pa.table({"x": x, "y": 50 + np.sin(6 * x) + 0.1 * rng.standard_normal(300)}), tmp_path / "t.parquet")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("which", [FIT, TUNE])
@pytest.mark.parametrize("sampling", ["uniform", "orthogonal", "qmc", "leverage", "landmarks", "Leverage"])
def test_features_are_drawn_as_asked(here, which, sampling):
    ran = run(*which, *FEW, "--sampling", sampling)
    assert ran.returncode == 0, ran.stderr
    model = quernel.load(here / "m").model
    assert model.sampling == sampling.lower()
    assert isinstance(model.feature_map_, RandomFeatures) == (sampling != "landmarks")
    if sampling == "leverage":  # drawn with chances of their own, and so with weights that differ
        assert np.ptp(model.feature_map_.weights_) > 0
    elif sampling == "uniform":
        assert np.ptp(model.feature_map_.weights_) == 0


@pytest.mark.parametrize("which", [FIT, TUNE])
def test_a_fit_without_intercept_has_none(here, which):
    for options in ((), ("--no-intercept",)):
        assert run(*which, *FEW, *options, "--force").returncode == 0
        model = quernel.load(here / "m").model
        assert model.fit_intercept == (not options)
        assert (model.intercept_[0] == 0) == bool(options)


@pytest.mark.parametrize("which", [FIT, TUNE])
def test_the_solver_is_the_one_asked_for(here, which):
    ran = run(*which, *FEW, "--solver", "admm", "--tol", 1e-2)
    assert ran.returncode == 0, ran.stderr
    model = quernel.load(here / "m").model
    assert (model.solver, model.tol) == ("admm", 1e-2)
    gap = json.loads(ran.stdout)["duality_gap"][0]
    assert 1e-7 < gap <= 1e-2  # newton, which is exact here, would end far below
    assert json.loads(run(*which, *FEW, "--force").stdout)["duality_gap"][0] < 1e-7


def test_streamed_rows_take_a_sampling(here):
    """Of rows that are read in parts, as of those in memory; this many bytes are fewer than their numbers take."""
    models = []
    for memory in ((), ("--max-memory", "1kB")):
        ran = run(*FIT, *FEW, "--alpha", 1e-3, "--sampling", "leverage", "--no-intercept", *memory, "--force")
        assert ran.returncode == 0, ran.stderr
        assert json.loads(ran.stdout)["read"] == ("streamed" if memory else "whole")
        models.append(quernel.load(here / "m").model)
    np.testing.assert_allclose(models[0].coef_, models[1].coef_, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("which", [FIT, TUNE])
@pytest.mark.parametrize(
    ("options", "messages"),
    [
        (
            ["--sampling", "leverge"],
            ["--sampling must be one of auto, uniform", "'leverge'", "Did you mean 'leverage'?"],
        ),
        (["--sampling", "x"], ["--sampling must be one of", "landmarks; got 'x'."]),
        (["--solver", "adm"], ["--solver must be one of newton, admm", "Did you mean 'admm'?"]),
        (["--sampling", "leverage", "--components", "exact"], ["--components exact uses none", "Leave one"]),
        (["--sampling", "landmarks", "--components", "exact"], ["--components exact uses none", "Leave one"]),
        (["--sampling", "qmc", "--kernel", "linear"], ["--kernel linear uses none", "Leave one"]),
        (["--sampling", "orthogonal", "--kernel", "spline"], ["--sampling orthogonal", "Use 'qmc'"]),
        (
            ["--solver", "admm", "--dask", "local"],
            ["--solver admm needs all rows in memory", "--dask", "--solver newton"],
        ),
        (["--tol", "0"], ["--tol must be a positive, finite number"]),
    ],
)
def test_what_has_no_meaning_is_refused_before_any_work(here, which, options, messages):
    which = [message for message in which if message not in ("--bandwidths", 0.5)]  # not for every kernel
    ran = run(*which, "--components", 20, *options)
    assert ran.returncode == 1
    assert ran.stderr.startswith("Error:")
    assert len(ran.stderr.strip().splitlines()) == 1  # nothing was begun
    for message in messages:
        assert message in ran.stderr, message
    assert "=" not in ran.stderr
    assert not (here / "m").exists()


@pytest.mark.parametrize(
    ("options", "messages"),
    [
        (["--noncrossing", "joint"], ["--noncrossing joint has a solver of its own", "Leave --solver out"]),
        (["--max-memory", "1kB"], ["--solver admm needs all rows in memory", "--solver newton"]),
        (["--checkpoint", "c"], ["--checkpoint is not for --solver admm", "--solver newton"]),
    ],
)
def test_admm_is_for_levels_apart_and_rows_in_memory(here, options, messages):
    ran = run(*FIT, *FEW, "--solver", "admm", *options)
    assert ran.returncode == 1
    for message in messages:
        assert message in ran.stderr, message
    assert not (here / "m").exists()
