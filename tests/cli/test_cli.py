"""The command line as a person meets it; `demo` and `--version` in a process of their own."""

import json
import re
import sys

import pytest
from typer.testing import CliRunner

import quernel
from quernel.bench import Task
from quernel.cli import app, experiments
from support.command_line import run, run_process

pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    return folder, run_process("demo", "--out", str(folder / "new"), cwd=folder)


def test_demo_prints_the_table_and_draws_the_pictures(demo):
    folder, ran = demo
    assert ran.returncode == 0, ran.stderr
    for word in (
        "level",
        "pinball loss",
        "certified gap",
        "0.05",
        "0.95",
        "90% interval",
        "seconds",
        "cross-validation",
    ):
        assert word in ran.stdout, word
    for name in ("wind_power.png", "wind_tuning.png"):
        assert name in ran.stdout.replace("\n", "")
        picture = (folder / "new" / name).read_bytes()
        assert picture.startswith(b"\x89PNG")
        assert len(picture) > 20_000
    assert "Tuning and fitting 5 quantile levels" in ran.stderr  # progress does not mix with results


def test_demo_reports_honest_coverage(demo):
    """The printed coverage of the 90 % intervals is near 90 %: a table of made-up or shifted numbers would not be."""
    _, ran = demo
    shares = re.findall(r"covers (\d+\.\d)%", " ".join(ran.stdout.split()))
    assert len(shares) == 2
    assert all(87 < float(share) < 93 for share in shares)


def test_demo_does_not_overwrite_unless_told(demo):
    folder, _ = demo
    picture = folder / "new" / "wind_power.png"
    picture.write_bytes(b"mine")
    refused = run("demo", "--out", str(folder / "new"), cwd=folder)
    assert refused.returncode == 1
    assert "--force" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert picture.read_bytes() == b"mine"


def test_demo_into_an_impossible_folder_fails_in_one_line(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    ran = run("demo", "--out", str(tmp_path / "file" / "below"), cwd=tmp_path)
    assert ran.returncode == 1
    assert "Traceback" not in ran.stderr
    assert "Error:" in ran.stderr


@pytest.mark.parametrize("arguments", [["demo", "--out", "new"], ["plan", "--plot", "map.png"]])
def test_pictures_that_cannot_be_drawn_are_refused_before_any_work(monkeypatch, tmp_path, arguments):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    ran = run(*arguments, *(["--rows", "1000", "--r", "0.5", "--gamma", "0.5"] if arguments[0] == "plan" else []))
    assert ran.returncode == 1
    assert (ran.stdout, len(ran.stderr.splitlines())) == ("", 1)
    assert "pip install matplotlib" in ran.stderr
    assert list(tmp_path.iterdir()) == []


TASK = Task(n=200, level=0.5, alpha=1e-6, M=5, repeats=1)


def test_bench_for_machines(monkeypatch):
    monkeypatch.setattr(experiments, "SMALL_SET", ((TASK, ("QUERNEL", "RIDGE", "HIGHS")),))
    ran = CliRunner().invoke(app, ["bench", "--json"])
    report = json.loads(ran.stdout)
    assert report["machine"]["python"] == ".".join(map(str, sys.version_info[:3]))
    ours, ridge, linear_program = report["results"]
    assert [row["status"] for row in report["results"]] == ["done"] * 3
    assert ridge["objective"] is None
    assert -1e-9 <= ours["excess"] <= 1e-6
    assert -1e-9 <= linear_program["excess"] < 0.1


def test_bench_prints_the_machine_and_a_table_of_what_became_of_everyone(monkeypatch):
    row = {
        "problem": str(TASK),
        "status": "done",
        "version": "7.1",
        "seconds": 0.25,
        "excess": 3e-7,
        "note": "certified",
    }
    late = {"status": "timed out after 10 s", "version": "", "seconds": None, "excess": None, "note": ""}
    monkeypatch.setattr(experiments, "SMALL_SET", ((TASK, ()),))
    monkeypatch.setattr(
        experiments, "compare", lambda *_, **__: [row | {"system": "us"}, row | {"system": "them"} | late]
    )
    monkeypatch.setattr(experiments.console, "_width", 160)
    ran = CliRunner().invoke(app, ["bench"])
    assert ran.exit_code == 0, ran.output
    lines = ran.stdout.splitlines()
    assert "cores" in lines[0]
    (us,), (them,) = ([line.split() for line in lines if name in line.split()] for name in ("us", "them"))
    assert [word for word in us if word not in "│"] == ["us", "7.1", "0.25", "3e-07", "certified"]
    assert "timed out after 10 s" in " ".join(them)


def test_version():
    ran = run_process("--version")
    assert ran.returncode == 0
    assert ran.stdout.strip() == f"quernel {quernel.__version__}"


@pytest.mark.parametrize("arguments", [["--help"], ["demo", "--help"], []])
def test_help_says_what_there_is(arguments):
    ran = run(*arguments)
    assert "demo" in ran.stdout + ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize("command", [one.callback.__name__ for one in app.registered_commands])
def test_switches_are_shown_without_a_value(command):
    shown = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"}).output
    assert re.search(r"--(force|json)\b", shown)
    assert not re.search(r"--(?!help)[\w-]+ +<?bool", shown, re.IGNORECASE)


def test_an_unknown_command_is_named():
    ran = run("fitt")
    assert ran.returncode == 2
    assert "fitt" in ran.stderr
