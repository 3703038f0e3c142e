"""What is read is never written over, with --force neither."""

import os
import shutil

import pytest

from support.command_line import run

QUICK = ("--components", "5", "--quantiles", "0.1,0.9", "--force")


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A table, alone and in a folder of two, a model of it, and links to both."""
    monkeypatch.chdir(tmp_path)
    lines = "x,y\n" + "".join(f"{i},{i % 7}\n" for i in range(40))
    (tmp_path / "many").mkdir()
    for name in ("data.csv", "many/a.csv", "many/b.csv"):
        (tmp_path / name).write_text(lines)
    assert run("fit", "data.csv", "--target", "y", "--model", "m.quernel", *QUICK).returncode == 0
    shutil.copy("m.quernel", "m.html")  # a page must end so
    shutil.copy("m.quernel", "m.csv")
    os.symlink("data.csv", "link.csv")
    os.symlink(tmp_path / "data.csv", "link.html")
    return tmp_path


READ = {
    "model": ("fit", "data.csv", "--target", "y", "--model", "data.csv"),
    "relative path": ("fit", "data.csv", "--target", "y", "--model", "many/../data.csv"),
    "link": ("fit", "data.csv", "--target", "y", "--model", "link.csv"),
    "data by a link": ("fit", "link.csv", "--target", "y", "--model", "data.csv"),
    "report": ("fit", "data.csv", "--target", "y", "--model", "new.quernel", "--report", "link.html"),
    "checkpoint": ("fit", "data.csv", "--target", "y", "--model", "new.quernel", "--checkpoint", "data.csv"),
    "tuned model": ("tune", "data.csv", "--target", "y", "--model", "data.csv"),
    "predictions": ("predict", "m.quernel", "data.csv", "--out", "data.csv"),
    "predictions in a pattern": ("predict", "m.quernel", "many/*.csv", "--out", "many/b.csv"),
    "model in a folder": ("fit", "many", "--target", "y", "--model", "many/a.csv"),
    "predictions over the model": ("predict", "m.csv", "data.csv", "--out", "m.csv"),
    "page over the model": ("report", "m.html", "data.csv", "--out", "m.html"),
    "page over the data": ("report", "m.quernel", "link.csv", "--out", "link.html"),
}


@pytest.mark.parametrize("name", READ)
def test_what_is_read_is_never_written_over(files, name):
    options = [word for word in QUICK if READ[name][0] in ("fit", "tune") or word == "--force"]
    before = {path: path.read_bytes() for path in files.rglob("*") if path.is_file()}
    ran = run(*READ[name], *options)
    assert ran.returncode == 1
    assert ran.stderr.startswith("Error: --")
    assert "would be lost" in ran.stderr
    assert ("one of many" in ran.stderr) == bool({"many", "many/*.csv"} & set(READ[name]))
    assert {path: path.read_bytes() for path in files.rglob("*") if path.is_file()} == before


def test_a_new_file_beside_the_data_is_written(files):
    assert run("fit", "many", "--target", "y", "--model", "many/m.quernel", *QUICK).returncode == 0
    assert run("predict", "many/m.quernel", "many/a*.csv", "--out", "many/new.csv", "--force").returncode == 0
    assert run("report", "many/m.quernel", "many/a*.csv", "--out", "many/new.html").returncode == 0
    ran = run("fit", "many", "--target", "y", "--model", "new", "--checkpoint", "./new", *QUICK)
    assert "--model and --checkpoint name the same file" in ran.stderr


@pytest.mark.parametrize(
    ("data", "out"),
    [("many", "many/new.csv"), ("many", "./many/below/new.parquet"), ("many/*.csv", "many/../many/new.csv")],
)
def test_predictions_among_the_data_are_refused(files, data, out):
    """The next command on the same folder would read them."""
    (files / "many" / "below").mkdir()
    ran = run("predict", "m.quernel", data, "--out", out)
    assert ran.returncode == 1
    assert f"--out {out.removeprefix('./')} would be one of the files of {data}" in ran.stderr
    assert "another folder" in ran.stderr
    assert not (files / out).exists()
    assert run("predict", "m.quernel", data, "--out", "new.csv").returncode == 0
    assert run("fit", data, "--target", "y", "--model", "again", *QUICK).returncode == 0
