"""A model takes the same rows from any format."""

import json

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from pyarrow import csv

from support.command_line import run

QUICK = ("--target", "y", "--components", "30", "--quantiles", "0.1,0.5,0.9", "--force")


@pytest.fixture
def rows():
    rng = np.random.default_rng(0)
    x = rng.normal(size=200)
    return pd.DataFrame({"x": x, "y": x + 0.1 * rng.normal(size=200)})


@pytest.fixture
def predicted(tmp_path):
    """Predictions from a file of the model that was fitted to another, and what was said on the way."""

    def predicted(fitted, new, *options):
        ran = run("fit", fitted, "--model", tmp_path / "m.quernel", *QUICK, *options)
        assert ran.returncode == 0, ran.stderr
        out = tmp_path / "out.csv"
        ran = run("predict", tmp_path / "m.quernel", new, "--out", out, "--force")
        assert ran.returncode == 0, ran.stderr
        return np.column_stack(csv.read_csv(out).columns), ran.stderr

    return predicted


def in_both(frame, folder):
    paths = folder / "d.csv", folder / "d.parquet"
    frame.to_csv(paths[0], index=False)
    frame.to_parquet(paths[1], index=False)
    return paths


@pytest.mark.parametrize(
    ("values", "options"),
    [
        ([True, False], ("--categorical", "c")),
        ([500.0, 20.0, np.nan], ("--categorical", "c")),
        (["NA", "EU", "US"], ()),
        (["nan", "EU", None], ()),
    ],
)
def test_categories_of_parquet_are_those_of_csv(rows, predicted, tmp_path, values, options):
    place = np.arange(len(rows)) % len(values)
    frame = rows.assign(c=np.array(values)[place], y=rows["y"] + 7 * place)
    in_csv, in_parquet = in_both(frame, tmp_path)
    for fitted in (in_csv, in_parquet):
        (one, printed), (other, _) = (predicted(fitted, path, *options) for path in (in_csv, in_parquet))
        np.testing.assert_allclose(one, other, rtol=1e-10)
        assert "None of the categories" not in printed
        assert np.ptp(one[:, 1]) > 7


@pytest.mark.parametrize("lines", ["x\n1\n\n0.5\n", "x\r\n1\r\n\r\n0.5", 'x\n1\n""\n0.5\n', "x\n1\n0.5\n\n"])
def test_an_empty_line_is_a_row_where_there_is_one_column(rows, predicted, tmp_path, lines):
    rows.to_csv(tmp_path / "d.csv", index=False)
    (tmp_path / "new.csv").write_text(lines, newline="")
    found, _ = predicted(tmp_path / "d.csv", tmp_path / "new.csv")
    assert len(found) == 3
    (tmp_path / "wide.csv").write_text("x,more\n1,2\n\n0.5,2\n\n")  # no row: its fields would be separated
    assert len(predicted(tmp_path / "d.csv", tmp_path / "wide.csv")[0]) == 2


@pytest.mark.parametrize("memory", [(), ("--max-memory", "1kB")])
def test_text_and_categories_as_polars_has_them(rows, predicted, tmp_path, memory):
    place = pl.Series("place", np.where(rows["x"] > 0, "up", "down"))
    frame = pl.from_pandas(rows).with_columns(
        place, kind=place.str.to_uppercase().cast(pl.Categorical),
        some=pl.Series([["a"]] * 200), raw=pl.Series([b"b"] * 200),
        y=pl.when(pl.col("y") > -1).then("y"),  # some rows have no target
    )  # fmt: skip
    paths = [tmp_path / name for name in ("d.arrow", "d.parquet", "d.csv")]
    frame.write_ipc(paths[0])
    frame.write_parquet(paths[1])
    frame.drop("some", "raw").write_csv(paths[2])
    assert pa.ipc.open_file(str(paths[0])).schema.field("place").type == pa.string_view()
    found = [predicted(fitted, new, *memory)[0] for fitted in (paths[0], paths[2]) for new in paths]
    for each in found[1:]:
        np.testing.assert_allclose(each, found[0], rtol=1e-6)


@pytest.mark.parametrize("memory", [(), ("--max-memory", "1kB")])
def test_dates_and_times_as_polars_and_pandas_write_them(rows, predicted, tmp_path, memory):
    when = pd.Timestamp("2024-01-01 00:00:00.123456789") + pd.to_timedelta(100 * np.arange(200), unit="min")
    frame = pl.from_pandas(rows.assign(when=when)).with_columns(clock=pl.col("when").dt.time())
    in_csv, in_parquet = tmp_path / "d.csv", tmp_path / "d.parquet"
    frame.write_csv(in_csv, datetime_format="%Y-%m-%d %H:%M:%S%.9f")
    frame.write_parquet(in_parquet)
    (one, _), (other, _) = (predicted(in_csv, path, *memory) for path in (in_csv, in_parquet))
    np.testing.assert_allclose(one, other, rtol=1e-10)


def test_files_need_not_agree_on_columns_that_are_left_out(rows, tmp_path):
    for k, more in enumerate(([1] * 100, ["a"] * 100)):
        rows[100 * k : 100 * k + 100].assign(more=more).to_csv(tmp_path / f"d{k}.csv", index=False)
    files, model = tmp_path / "d*.csv", tmp_path / "m.quernel"
    ran = run("fit", files, "--model", model, *QUICK)
    assert "Field more has incompatible types" in " ".join(ran.stderr.split())
    for options in (("--columns", "x"), ("--exclude", "more"), ("--exclude", "more", "--max-memory", "1kB")):
        ran = run("fit", files, "--model", model, *QUICK, *options)
        assert ran.returncode == 0, ran.stderr
    ran = run("fit", files, "--model", model, *QUICK, "--columns", "x", "--report", tmp_path / "r.html")
    assert ran.returncode == 0, ran.stderr
    ran = run("predict", model, files, "--out", tmp_path / "out.csv")
    assert ran.returncode == 0, ran.stderr
    ran = run("predict", model, files, "--out", tmp_path / "kept.csv", "--keep", "more")
    assert ran.returncode == 0, ran.stderr
    assert pd.read_csv(tmp_path / "kept.csv")["more"].tolist() == ["1"] * 100 + ["a"] * 100  # as they are written


def test_hexadecimal_numbers_are_read_by_all_commands(rows, predicted, tmp_path):
    count = np.arange(200) % 40
    rows.assign(c=count).to_csv(tmp_path / "plain.csv", index=False)
    rows.assign(c=[hex(value) for value in count]).to_csv(tmp_path / "hex.csv", index=False)
    found = [predicted(tmp_path / "hex.csv", tmp_path / f"{name}.csv")[0] for name in ("plain", "hex")]
    np.testing.assert_array_equal(*found)
    ran = run("report", tmp_path / "m.quernel", tmp_path / "hex.csv", "--out", tmp_path / "r.html")
    assert ran.returncode == 0, ran.stderr


def test_a_note_on_categories_none_of_which_is_known(rows, predicted, tmp_path):
    frame = rows.assign(c=np.where(rows["x"] > 0, "a", "b"))
    frame.to_csv(tmp_path / "d.csv", index=False)
    frame.assign(c=frame["c"].str.upper()).to_csv(tmp_path / "new.csv", index=False)
    _, printed = predicted(tmp_path / "d.csv", tmp_path / "new.csv")
    assert "None of the categories in column 'c'" in printed.replace("\n", " ")
    ran = run("report", tmp_path / "m.quernel", tmp_path / "new.csv", "--out", tmp_path / "r.html")
    assert ran.returncode == 0, ran.stderr
    assert "None of the categories in column 'c'" in ran.stderr.replace("\n", " ")


@pytest.mark.parametrize("form", ["%d", "%.1f"])
@pytest.mark.parametrize("memory", [(), ("--max-memory", "1kB")])
def test_a_numeric_missing_marker_is_one_in_any_format(rows, predicted, tmp_path, form, memory):
    count = np.where(np.arange(200) % 4, np.arange(200) % 7, -999)
    frame = rows.assign(c=count)
    in_csv, in_parquet = in_both(frame, tmp_path)
    frame.assign(c=[form % value for value in count]).to_csv(in_csv, index=False)
    one, _ = predicted(in_csv, in_csv, "--missing", "-999", *memory)
    other, printed = predicted(in_csv, in_parquet, "--missing", "-999", *memory)
    np.testing.assert_allclose(one, other, rtol=1e-10)
    assert "outside" not in printed
    gaps = frame.assign(c=frame["c"].replace(-999, np.nan))
    gaps.to_parquet(in_parquet)
    np.testing.assert_allclose(predicted(in_csv, in_parquet, "--missing", "-999", *memory)[0], one, rtol=1e-10)


def test_a_target_with_a_missing_marker_is_missing_for_the_report(rows, tmp_path):
    in_csv, in_parquet = in_both(rows.assign(y=np.where(np.arange(200) % 4, rows["y"], -999.0)), tmp_path)
    assert run("fit", in_csv, "--model", tmp_path / "m.quernel", *QUICK, "--missing", "-999").returncode == 0
    options = ("--out", tmp_path / "r.html", "--force", "--json")
    reports = [
        json.loads(run("report", tmp_path / "m.quernel", path, *options).stdout) for path in (in_csv, in_parquet)
    ]
    assert [one.pop("data") for one in reports] == ["d.csv", "d.parquet"]
    assert reports[0] == reports[1]
    assert reports[0]["rows_evaluated"] == 150
