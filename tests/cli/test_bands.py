"""`quernel fit --inference` and `quernel predict --band`."""

import json

import numpy as np
import pytest
from pyarrow import csv

import quernel
from support.command_line import run
from support.tables import sales

QUICK = ("--components", "40", "--quantiles", "0.5,0.9", "--bandwidth", "auto", "--target", "price", "--alpha", "1e-4")


@pytest.fixture
def table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    csv.write_csv(sales(), tmp_path / "sales.csv")
    return sales()


def test_bands_of_a_log_target_come_back_on_its_own_scale(table):
    run("fit", "sales.csv", *QUICK, "--log-target", "--inference", "--model", "m.quernel")
    told = run("predict", "m.quernel", "sales.csv", "--out", "p.csv", "--band", "0.95", "--json")
    ends = ["q0.5_lower", "q0.5_upper", "q0.9_lower", "q0.9_upper"]
    assert json.loads(told.stdout)["columns"] == ["q0.5", "q0.9", *ends]
    written, fitted = csv.read_csv("p.csv"), quernel.load("m.quernel")
    X = fitted.encoder.transform(table)
    expected = np.exp(fitted.model.predict_band(X, 0.95, simultaneous=False)).reshape(len(X), 4)
    np.testing.assert_allclose(np.column_stack([written[name] for name in ends]), expected, rtol=1e-9)


@pytest.mark.parametrize(
    ("fit", "band", "says"), [((), "0.95", "--estimator kernel --inference"), (("--inference",), "95", "--band")]
)
def test_what_is_missing_is_said(table, fit, band, says):
    run("fit", "sales.csv", *QUICK, *fit, "--model", "m.quernel")
    told = run("predict", "m.quernel", "sales.csv", "--out", "p.csv", "--band", band)
    assert told.returncode == 1
    assert says in " ".join(told.stderr.split())
