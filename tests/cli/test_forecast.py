"""`quernel forecast`: from a file to the fan of the next days."""

import json

import numpy as np
import pytest

import quernel
from support.command_line import run


@pytest.fixture(scope="module")
def series(tmp_path_factory):
    path, n = tmp_path_factory.mktemp("series") / "load.csv", 24 * 10
    rng, t = np.random.default_rng(0), np.arange(n)
    time = (np.datetime64("2021-03-01T00:00") + t.astype("m8[h]")).astype(str)
    load = 50 + 10 * np.sin(2 * np.pi * t / 24) + rng.standard_normal(n)
    path.write_text("time,load\n" + "".join(f"{a},{b:.3f}\n" for a, b in zip(time, load, strict=True)))
    return path


def test_a_forecast_has_a_table_a_file_and_a_page(series, tmp_path):
    out, page, model = tmp_path / "next.csv", tmp_path / "f.html", tmp_path / "m.quernel"
    options = ("--horizon", "6h", "--quantiles", "0.1,0.5,0.9", "--windows", "2", "--out", out, "--report", page,
               "--model", model)  # fmt: skip
    ran = run("forecast", series, "--time", "time", "--target", "load", *options, "--json")
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert found["steps"] == 6
    assert found["past_windows"] == 2
    assert 0.4 <= found["past_coverage"] <= 1
    assert found["times"][0] == "2021-03-11T00:00:00"
    curves = np.array(found["forecast"])
    assert np.all(np.diff(curves, axis=1) >= 0)
    expected = 50 + 10 * np.sin(2 * np.pi * np.arange(6) / 24)
    assert np.abs(curves[:, 1] - expected).mean() < 1.5
    loaded = quernel.load(model).predict()
    np.testing.assert_array_equal(np.column_stack([loaded[name] for name in ("q0.1", "q0.5", "q0.9")]), curves)
    lines = out.read_text().splitlines()
    assert lines[0] == "time,q0.1,q0.5,q0.9"
    assert len(lines) == 7
    text = page.read_text("utf-8")
    for heading in ("Forecast of load", "How past forecasts did", "window from", "inside 80"):
        assert heading in text
    assert text.count("<svg") == 1
    assert "Share of values at or below each predicted quantile" in text
    assert text.rstrip().endswith("</html>")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--horizon", "soon"), "horizon must be a number of steps, or a duration"),
        (("--horizon", "10d"), "leave 0 of 240 rows to learn from. Use fewer --windows"),
        (("--horizon", "1d", "--quantiles", "5"), "strictly between 0 and 1"),
        (("--horizon", "1d", "--report", "f.txt"), "must end in .html"),
        (("--horizon", "1d", "--time", "load"), "is not regular|more than one row"),
    ],
)
def test_what_cannot_be_forecast_is_an_error_in_one_line(series, options, message):
    given = ("--time", "time") if "--time" not in options else ()
    ran = run("forecast", series, *given, "--target", "load", *options)
    assert ran.returncode == 1
    text = " ".join(ran.stderr.split())
    assert any(part in text for part in message.split("|")), text
    assert "Traceback" not in ran.stderr


def test_tune_validates_on_later_windows_of_a_time_column(tmp_path):
    rng, n = np.random.default_rng(0), 120
    day = rng.permutation(n)  # rows in any order
    x = rng.standard_normal(n)
    dates = (np.datetime64("2021-01-01") + day).astype(str)
    target = np.where(day == 5, "", np.char.mod("%.4f", x + 0.1 * rng.standard_normal(n)))
    path, model = tmp_path / "rows.csv", tmp_path / "m.quernel"
    path.write_text("day,x,y\n" + "".join(f"{a},{b:.4f},{c}\n" for a, b, c in zip(dates, x, target, strict=True)))
    common = ("tune", path, "--target", "y", "--time", "day", "--components", "20", "--alphas", "1e-4,1e-3")
    ran = run(*common, "--folds", "3", "--json", "--model", model)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["splits"] == 3
    fitted = quernel.load(model)
    assert fitted.encoder.inputs == ["x"]
    known = day[day != 5]
    for train, test in fitted.model.cv:
        assert known[train].max() < known[test].min()
        assert len(test) == 29
    assert json.loads(run(*common, "--validation", "0.25", "--json").stdout)["splits"] == 1
    assert "no column 'when'" in run("tune", path, "--target", "y", "--time", "when").stderr
    ran = run(*common, "--groups", "x")
    assert "--groups and --time exclude each other" in " ".join(ran.stderr.split())
