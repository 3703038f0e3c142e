"""Columns that files have and models have no use for, and names that are hard to write."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pytest

import quernel
import quernel.cli

QUICK = ("--components", "5", "--quantiles", "0.1,0.9", "--force")
WHOLE_OR_NOT = pytest.mark.parametrize("memory", [(), ("--max-memory", "1kB")], ids=["whole", "in parts"])


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@WHOLE_OR_NOT
def test_columns_that_parquet_does_not_have_are_left_out(command, here, memory):
    x = np.random.default_rng(0).standard_normal(60)
    months = pa.array([pa.MonthDayNano([i, 0, 0]) for i in range(60)])
    pa.feather.write_feather(pa.table({"months": months, "x": x, "y": x + 1}), "t.arrow")
    ran = command("fit", "t.arrow", "--target", "y", "--model", "m", *QUICK, *memory)
    assert ran.returncode == 0, ran.stderr
    assert "Column 'months' is left out: it holds " in ran.stderr
    assert "month_day_nano_interval" in ran.stderr
    assert command("fit", "t.arrow", "--target", "y", "--exclude", "months", "--model", "m", *QUICK, *memory)[0] == 0
    assert quernel.load("m").encoder.inputs == ["x"]


def test_what_arrow_cannot_do_is_one_line(command, monkeypatch):
    def fails():
        raise pa.ArrowNotImplementedError("no such function")

    monkeypatch.setattr(quernel.cli, "app", fails)
    ran = command()
    assert (ran.returncode, ran.stderr) == (1, "Error: Arrow cannot do this with the data: no such function.\n")


@WHOLE_OR_NOT
@pytest.mark.parametrize("ending", [False, True], ids=["row numbers", "commas at the end"])
def test_a_column_without_a_name_is_left_out(command, here, memory, ending):
    rows = [f"{i},{i % 7}," if ending else f"{i},{i * 3 % 11},{i % 7}" for i in range(60)]
    (here / "t.csv").write_text(("x,y,\n" if ending else ",x,y\n") + "\n".join(rows) + "\n")
    ran = command("fit", "t.csv", "--target", "y", "--model", "m", *QUICK, *memory, "--json")
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["columns"] == {"x": "number"}
    assert "Column '' is left out: it has no name" in ran.stderr
    assert "Give it one in the file to use it." in ran.stderr
    assert command("predict", "m", "t.csv", "--out", "p.csv").returncode == 0
