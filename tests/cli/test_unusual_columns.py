"""Columns that files have and models have no use for, and names that are hard to write."""

import json
import re
import shlex

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pytest

import quernel
import quernel.cli
from quernel.cli.console import split_list
from quernel.data import sources
from support.command_line import run

QUICK = ("--components", "5", "--quantiles", "0.1,0.9", "--force")
WHOLE_OR_NOT = pytest.mark.parametrize("memory", [(), ("--max-memory", "1kB")], ids=["whole", "in parts"])


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_what_arrow_cannot_do_is_one_line(monkeypatch):
    def fails():
        raise pa.ArrowNotImplementedError("no such function")

    monkeypatch.setattr(quernel.cli, "app", fails)
    ran = run()
    assert (ran.returncode, ran.stderr) == (1, "Error: Arrow cannot do this with the data: no such function.\n")


@WHOLE_OR_NOT
@pytest.mark.parametrize("ending", [False, True], ids=["row numbers", "commas at the end"])
def test_a_column_without_a_name_is_left_out(here, memory, ending):
    rows = [f"{i},{i % 7}," if ending else f"{i},{i * 3 % 11},{i % 7}" for i in range(60)]
    (here / "t.csv").write_text(("x,y,\n" if ending else ",x,y\n") + "\n".join(rows) + "\n")
    ran = run("fit", "t.csv", "--target", "y", "--model", "m", *QUICK, *memory, "--json")
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["columns"] == {"x": "number"}
    assert "t.csv has a column without a name, which is left out" in ran.stderr
    assert "Give it a name in the file to use it." in ran.stderr
    assert run("predict", "m", "t.csv", "--out", "p.csv").returncode == 0


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a, b ,c", ["a", "b", "c"]),
        ('"size, m2" ,age', ["size, m2", "age"]),
        ('" NA","NA "', [" NA", "NA "]),
        ('"say ""no""",5" pipe', ['say "no"', '5" pipe']),
        ('" "', [" "]),
        (' ,, "",', []),
        ("", []),
    ],
)
def test_lists(text, names):
    assert split_list(text) == names


@pytest.mark.parametrize("text", ['"a', 'b, "a', '"a" b'])
def test_lists_whose_quotes_do_not_end_are_refused(text):
    with pytest.raises(ValueError, match="separated by commas"):
        split_list(text)


@WHOLE_OR_NOT
@pytest.mark.parametrize("mark", [" NA", "not  known ", 'a "gap", maybe', '"?"'])
def test_the_advice_on_words_for_gaps_can_be_followed(here, mark, memory):
    rows = ['"{}",{}'.format(mark.replace('"', '""') if i % 10 == 3 else i / 7, i % 5) for i in range(100)]
    (here / "t.csv").write_text("x,y\n" + "\n".join(rows) + "\n")
    fit = ("fit", "t.csv", "--target", "y", "--model", "m", *QUICK, *memory, "--json")
    advice = re.search(r"add (--missing .*)\.$", run("plan", "t.csv", "--target", "y", *memory).stderr, re.M)
    ran = run(*fit, *shlex.split(advice[1]))
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["columns"] == {"x": "number"}


def test_names_are_printed_as_they_are(here):
    (here / "t.csv").write_text("b:smile:,y:heart:\n" + "".join(f"{i % 11},{i % 7}\n" for i in range(60)))
    ran = run("fit", "t.csv", "--target", "y:heart:", "--model", "m", *QUICK)
    assert "b:smile:" in ran.stdout
    assert "'y:heart:'" in ran.stdout
    assert "'y:smile:'" in run("fit", "t.csv", "--target", "y:smile:", "--model", "n", *QUICK).stderr


def test_a_name_that_cannot_be_shown_is_no_reason_to_fail(here):
    (here / "t.csv").write_text("größe,y\n" + "".join(f"{i % 11},{i % 7}\n" for i in range(60)), encoding="utf-8")
    ran = run("fit", "t.csv", "--target", "y", "--model", "m", *QUICK, encoding="ascii")
    assert ran.returncode == 0
    assert "gr??e" in ran.stdout


EXTREMES = {
    "large target": (1, 1e308, ["The target of t.csv", "e+307", "Rescale"]),
    "small target": (1, 1e-320, ["The target of t.csv", "differ by", "Rescale"]),
    "large input": (0, 1e308, ["Column 'x' holds numbers as large as ", "--exclude x"]),
}


@WHOLE_OR_NOT
@pytest.mark.parametrize("name", EXTREMES)
def test_numbers_beyond_reckoning_are_refused_by_the_name_of_their_column(here, name, memory):
    place, factor, messages = EXTREMES[name]
    x, z = np.random.default_rng(0).uniform(0.1, 0.5, (2, 60))
    columns = [x, x + z]
    columns[place] = factor * columns[place]
    rows = "".join(f"{a!r},{b!r}\n" for a, b in zip(*(column.tolist() for column in columns), strict=True))
    (here / "t.csv").write_text("x,y\n" + rows)
    ran = run("fit", "t.csv", "--target", "y", "--model", "m", *QUICK, *memory)
    assert ran.returncode == 1
    for word in messages:
        assert word in ran.stderr
    assert "Fitting" not in ran.stderr
    assert not (here / "m").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--noncrossing", "joint"), "--noncrossing joint needs all rows in memory"),
        (("--tails", "pareto"), "--tails pareto needs all rows in memory"),
        (("--components", "exact"), "--components exact needs all rows in memory"),
    ],
)
def test_complaints_of_estimators_name_options(here, options, message):
    (here / "t.csv").write_text("x,y\n" + "".join(f"{i % 11},{i % 7}\n" for i in range(600)))
    ran = run("fit", "t.csv", "--target", "y", "--model", "m", *QUICK, "--max-memory", "1kB", *options)
    assert ran.returncode == 1
    assert message in ran.stderr
    assert "=" not in ran.stderr


def test_a_target_of_truth_values_that_begins_with_numbers_is_evaluated(here, monkeypatch):
    monkeypatch.setattr(sources, "BLOCK_ROWS", 16)
    spellings = [("0", "1") if i < 200 else ("false", "true") for i in range(400)]
    (here / "t.csv").write_text("x,y\n" + "".join(f"{i % 11},{spellings[i][i % 3 > 0]}\n" for i in range(400)))
    assert run("fit", "t.csv", "--target", "y", "--model", "m", *QUICK).returncode == 0
    ran = run("report", "m", "t.csv", "--out", "r.html", "--json")
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["rows_evaluated"] == 400
    (here / "bad.csv").write_text((here / "t.csv").read_text() + "3,maybe\n")
    ran = run("report", "m", "bad.csv", "--out", "bad.html")
    assert ran.returncode == 1
    assert "The target 'y' of bad.csv holds string, not numbers" in ran.stderr
