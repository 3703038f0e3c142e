"""`quernel fit` with its default, TabularQuantileRegressor: which estimator is chosen, and every option with it."""

import json

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

import quernel
from quernel import KernelQuantileRegressor, TabularQuantileRegressor
from quernel.conformal.table_model import TableModel
from quernel.tables import TableWarning
from support.command_line import run

FIT = "fit", "t.csv", "--target", "price", "--force", "--model"
LEVELS = [0.05, 0.25, 0.5, 0.75, 0.95]


def table(n=120, seed=0):
    """Numbers with gaps, text, dates, an identifier, weights and units."""
    rng = np.random.default_rng(seed)
    size, place = rng.gamma(4, 30, n), rng.choice(["north", "south"], n)
    sold = pd.Timestamp("2021-03-01") + pd.to_timedelta(rng.integers(0, 900, n), unit="D")
    price = 100 + size + 30 * (place == "north") + 0.1 * size * rng.standard_normal(n)
    return pd.DataFrame(
        {
            "id": np.arange(1, n + 1),
            "size": np.where(rng.random(n) < 0.1, np.nan, size),
            "place": place,
            "sold": sold.strftime("%Y-%m-%d"),
            "shop": rng.choice([f"s{k}" for k in range(12)], n),
            "w": rng.uniform(1, 2, n),
            "same": "one",
            "price": price.round(3),
        }
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tabular")
    table().to_csv(folder / "t.csv", index=False)
    table(60, seed=1).to_csv(folder / "new.csv", index=False)
    return folder


@pytest.fixture
def here(folder, monkeypatch):
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture(scope="module")
def fitted(folder):
    """What `quernel fit` printed with its defaults, its summary, and the model."""
    inputs = "--columns", "size,place,sold"
    ran = run(*FIT, "m", *inputs, cwd=folder)
    assert ran.returncode == 0, ran.stderr
    summary = run(*FIT, "j", *inputs, "--json", cwd=folder)
    return ran, json.loads(summary.stdout), quernel.load(folder / "m")


def test_the_default_is_tabular_and_says_what_it_made(fitted):
    ran, summary, model = fitted
    assert isinstance(model.model, TabularQuantileRegressor)
    said = " ".join((ran.stdout + ran.stderr).split())
    assert "Fitting a kernel and forests on 120 rows (estimator: tabular, the default)" in said
    assert (summary["estimator"], summary["estimator_reason"]) == ("tabular", "the default")
    assert summary["shares"] == model.model.shares_
    assert sum(summary["shares"].values()) == pytest.approx(1)
    assert summary["duality_gap"] == pytest.approx(model.model.duality_gap_, rel=1e-12)
    for name, share in model.model.shares_.items():
        assert f"{share:.0%} {name.replace('_', ' ')}" in said
        assert f"{share:>5.0%}  {name}" in str(model)
    assert f"certified gap {max(summary['duality_gap']):.0e}" in said
    assert "relative duality gap" in str(model)


def test_predictions_are_those_of_python_and_of_any_level(here, fitted):
    frame = table()
    inputs = frame[["size", "place"]].assign(sold=pd.to_datetime(frame["sold"]))
    python = TabularQuantileRegressor(LEVELS, random_state=0).fit(inputs, frame["price"])
    more = "--quantiles", "0.001,0.33", "--interval", "0.5,0.98", "--force", "--json"
    ran = run("predict", "m", "t.csv", "--out", "p.parquet", *more)
    assert ran.returncode == 0, ran.stderr
    found = pq.read_table("p.parquet").to_pandas()
    assert json.loads(ran.stdout)["intervals"] == [0.5, 0.98]
    assert [*found] == ["q0.001", "q0.33", "lower_0.5", "upper_0.5", "lower_0.98", "upper_0.98"]
    np.testing.assert_allclose(
        found.to_numpy(), python.predict(inputs, [0.001, 0.33, 0.25, 0.75, 0.01, 0.99]), rtol=1e-12
    )
    assert run("predict", "m", "t.csv", "--out", "p.parquet", "--force", "--interval", "0.9").returncode == 0
    found = pq.read_table("p.parquet").to_pandas()
    np.testing.assert_allclose(found[["lower", "upper"]], python.predict_interval(inputs, 0.9), rtol=1e-12)
    np.testing.assert_allclose(found.iloc[:, :5], python.predict(inputs), rtol=1e-12)


def test_python_warns_of_the_identifier_that_the_command_line_notes(here):
    frame = table()
    with pytest.warns(TableWarning, match="'id' is left out"):
        model = TabularQuantileRegressor(parts=["forest"], n_trees=5).fit(frame.drop(columns="price"), frame["price"])
    assert "id" not in model.encoder_.inputs


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--components", 10), "because --components was given"),
        (("--alpha", "1e-3"), "because --alpha was given"),
        (("--checkpoint", "c"), "because --checkpoint was given"),
        (("--estimator", "kernel"), "as asked for"),
        (("--max-memory", "1kB"), "because the rows do not fit in memory (--max-memory)"),
    ],
)
def test_the_kernel_is_taken_where_it_must_be_and_the_reason_is_told(here, options, reason):
    few = () if "--components" in options else ("--max-seconds", "20")
    ran = run(*FIT, "k", "--columns", "size", *options, *few, "--quantiles", 0.5, "--json")
    assert ran.returncode == 0, ran.stderr
    assert f"Fitting 1 quantile level on 120 rows (estimator: kernel, {reason})" in " ".join(ran.stderr.split())
    assert (json.loads(ran.stdout)["estimator"], json.loads(ran.stdout)["estimator_reason"]) == ("kernel", reason)
    assert isinstance(quernel.load("k").model, KernelQuantileRegressor)


@pytest.mark.parametrize(
    ("options", "messages"),
    [
        (("--estimator", "tabular", "--alpha", 0), ["--alpha is an option of the kernel", "--estimator kernel"]),
        (("--estimator", "tabular", "--no-intercept"), ["--no-intercept is an option of the kernel"]),
        (("--estimator", "tree"), ["--estimator must be one of auto, tabular, kernel"]),
        (("--groups", "shop", "--kernel", "gaussian"), ["--groups is an option of the tabular", "--kernel was given"]),
        (("--groups", "shop", "--max-memory", "1kB"), ["--groups needs all rows in memory", "--max-memory"]),
        (("--max-seconds", "-1"), ["--max-seconds must be a positive"]),
        (("--groups", "shop", "--time-ordered", "--conformal"), ["--groups and --time-ordered exclude each other"]),
        (("--groups", "same"), ["--groups has one label only"]),
        (("--groups", "same", "--conformal"), ["--groups has one label only"]),
        (("--groups", "shops"), ["no column 'shops'", "Did you mean 'shop'?"]),
        (("--quantiles", "0.1,0.2", "--conformal"), ["--conformal needs levels on either side of 0.5"]),
    ],
)
def test_what_excludes_each_other_is_refused(here, options, messages):
    ran = run(*FIT, "never", *options)
    assert ran.returncode == 1
    for message in messages:
        assert message in ran.stderr, message
    assert not (here / "never").exists()


def test_units_are_kept_together_in_the_fit_the_calibration_and_the_report(here):
    options = "--groups", "shop", "--weights", "w", "--log-target", "--conformal", "--coverage", 0.8
    ran = run(*FIT, "g", *options, "--report", "g.html", "--max-seconds", 30, "--json")
    assert ran.returncode == 0, ran.stderr
    summary, model = json.loads(ran.stdout), quernel.load("g")
    assert "shop" not in model.encoder.inputs
    shops = table()["shop"].to_numpy()
    counts = {shop: int(np.sum(shops == shop)) for shop in np.unique(shops)}
    # Whole units: fewer could not make this number, and it is at least the share asked for.
    assert 30 <= summary["calibration_rows"] < 30 + max(counts.values())
    assert "of the units, seed 0)" in (here / "g.html").read_text()


def test_a_fit_that_is_out_of_time_says_so_and_is_saved(here):
    ran = run(*FIT, "s", "--max-seconds", "0.001")
    assert ran.returncode == 0, ran.stderr
    assert "The fit was stopped by the time limit" in " ".join(ran.stderr.split())
    assert np.isfinite(quernel.load("s").predict(table(5, seed=3).assign(sold="2021-05-01"))).all()


def test_rows_that_do_not_fit_in_memory_are_streamed_if_asked_for(here):
    options = "--columns", "size,place", "--conformal", "--report", "st.html", "--json"
    ran = run(*FIT, "st", "--estimator", "tabular", "--max-memory", "1kB", *options)
    assert ran.returncode == 0, ran.stderr
    summary, model = json.loads(ran.stdout), quernel.load("st")
    assert (summary["estimator"], summary["read"]) == ("tabular", "streamed")
    assert isinstance(model.model, TabularQuantileRegressor)
    assert summary["evaluation"]["unseen"]
    assert np.all(np.diff(model.predict_interval(table(20, seed=4), [0.5, 0.8])[:, 0]) <= 0)


def test_what_only_a_kernel_can_is_refused_with_the_remedy(here, fitted):
    ran = run("report", "m", "t.csv", "--out", "r.html", "--kernel-gap")
    assert (ran.returncode, ran.stdout) == (1, "")
    assert "--estimator kernel" in ran.stderr
    model = fitted[2]
    for one in (model, model.model):
        with pytest.raises(ValueError, match=r"TabularQuantileRegressor cannot be written as ONNX.*quernel.save"):
            quernel.to_onnx(one, here / "m.onnx")
    assert not (here / "m.onnx").exists()


def test_rows_outside_the_training_range_are_counted(here, fitted):
    new = table(4, seed=2).assign(size=[50.0, 1e6, 60.0, -1e6])
    new.to_csv("far.csv", index=False)
    ran = run("predict", "m", "far.csv", "--out", "far.parquet", "--force", "--json")
    assert json.loads(ran.stdout)["rows_outside"] == 2
    model = fitted[2]
    assert isinstance(model, TableModel)
    assert model.is_extrapolation(new).tolist() == [False, True, False, True]
