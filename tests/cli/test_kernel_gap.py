"""`quernel report --kernel-gap`: what random features cost, on the page, in a terminal and for machines."""

import json

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv

import quernel
from quernel.tables import training_data
from support.command_line import run


@pytest.fixture
def fitted(tmp_path):
    """A table, a model of its logarithms with few features, and where they are."""
    rng = np.random.default_rng(0)
    x, kind = rng.random(200), np.where(rng.random(200) < 0.5, "a", "b")
    y = np.exp(np.sin(6 * x) + (kind == "a") + 0.2 * rng.standard_normal(200))
    csv.write_csv(pa.table({"x": x, "kind": kind, "y": y}), tmp_path / "t.csv")
    settings = ("--quantiles", "0.1,0.5,0.9", "--components", "20", "--log-target")
    ran = run("fit", tmp_path / "t.csv", "--target", "y", "--model", tmp_path / "m", *settings)
    assert ran.returncode == 0, ran.stderr
    return tmp_path


def test_the_page_and_the_terminal_say_what_the_features_cost(fitted):
    ran = run("report", fitted / "m", fitted / "t.csv", "--out", fitted / "r.html", "--kernel-gap")
    assert ran.returncode == 0, ran.stderr
    assert "M = 20 features cost at most" in ran.stdout
    assert "Comparing the features of 200 rows with the exact kernel" in ran.stderr
    page = (fitted / "r.html").read_text()
    assert "Cost of the features" in page
    ran = run("report", fitted / "m", fitted / "t.csv", "--out", fitted / "s.html", "--kernel-gap", "--json")
    report = json.loads(ran.stdout)["kernel_gap"]
    model = quernel.load(fitted / "m")
    table = csv.read_csv(fitted / "t.csv")
    gap = model.model.kernel_gap(model.encoder.transform(table), np.log(table["y"].to_numpy()))
    ends = ("lower", "upper", "similarity_bound")
    assert report == {end: getattr(gap, end).tolist() for end in ends}
    assert max(report["upper"]) > 0.01, "20 features do cost something"


def test_without_the_option_nothing_is_said_of_it(fitted):
    ran = run("report", fitted / "m", fitted / "t.csv", "--out", fitted / "r.html")
    assert "compared with the exact kernel" not in ran.stdout
    assert "Cost of the features" not in (fitted / "r.html").read_text()


def test_other_data_are_refused_with_the_remedy_and_nothing_is_written(fitted, monkeypatch):
    table = csv.read_csv(fitted / "t.csv")
    csv.write_csv(table.slice(0, 150), fitted / "other.csv")
    ran = run("report", fitted / "m", fitted / "other.csv", "--out", fitted / "r.html", "--kernel-gap")
    assert ran.returncode == 1
    assert "needs the data that the model was fitted to" in ran.stderr
    assert "without --conformal" in ran.stderr
    assert not (fitted / "r.html").exists()
    monkeypatch.setattr(training_data, "MIN_SAMPLE", 100)
    ran = run(
        "report", fitted / "m", fitted / "t.csv", "--out", fitted / "r.html", "--kernel-gap", "--max-memory", "1KB"
    )
    assert ran.returncode == 1
    assert "does not fit in memory" in ran.stderr
