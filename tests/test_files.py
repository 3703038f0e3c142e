"""Files are written whole or not at all; they keep permissions and links, and nothing is left behind."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest

import quernel
from quernel._files import check_writable, write_atomically, write_text_atomically
from support.command_line import run
from support.models import plain_regressor

# Ends itself by a signal while the predictions are being written.
ENDED = """
import os, signal, sys, time

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it is ignored
from quernel.cli import main
from quernel.cli.predict import _Predictor

def predict(self, batches, write):
    os.kill(os.getpid(), getattr(signal, os.environ["SIGNAL"]))
    time.sleep(60)

_Predictor.predict = predict
main()
"""


def mode(path):
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.mark.parametrize("permissions", [0o600, 0o640, 0o444, 0o755])
def test_a_file_that_is_replaced_keeps_its_permissions(tmp_path, permissions):
    path = tmp_path / "a.txt"
    path.write_text("old")
    path.chmod(permissions)
    with write_atomically(path, overwrite=True) as part:
        assert mode(part) == 0o600  # nobody else may read it meanwhile
        part.write_text("new")
    assert (path.read_text(), mode(path)) == ("new", permissions)


def test_a_new_file_has_the_usual_permissions(tmp_path):
    (tmp_path / "usual").write_text("")
    write_text_atomically(tmp_path / "new", "")
    assert mode(tmp_path / "new") == mode(tmp_path / "usual")


@pytest.mark.parametrize("exists", [True, False])
def test_links_stay_and_what_they_point_to_is_replaced(tmp_path, exists):
    (tmp_path / "there").mkdir()
    target, link, again = tmp_path / "there" / "a.txt", tmp_path / "link.txt", tmp_path / "again.txt"
    if exists:
        target.write_text("old")
    link.symlink_to("there/a.txt")
    again.symlink_to("link.txt")
    write_text_atomically(again, "new")
    assert (again.readlink(), link.readlink()) == (Path("link.txt"), Path("there/a.txt"))
    assert target.read_text() == "new"
    assert [path.name for path in target.parent.iterdir()] == ["a.txt"]


def test_a_link_into_a_missing_folder_is_refused(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "none" / "a.txt")
    with pytest.raises(FileNotFoundError, match="none is missing"):
        check_writable(tmp_path / "link", overwrite=True)


def test_pipes_are_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="pipe is a device or a pipe"):
        write_text_atomically(tmp_path / "pipe", "")
    assert (tmp_path / "pipe").is_fifo()


def test_leftovers_of_the_same_file_are_removed_and_nothing_else(tmp_path):
    names = [".a.txt.0123abcd.part", ".b.txt.0123abcd.part", ".a.txt.notes.part", "a.txt.0123abcd.part"]
    for name in names:
        (tmp_path / name).write_text("left")
    write_text_atomically(tmp_path / "a.txt", "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*names[1:], "a.txt"])


def test_writers_of_the_same_file_do_not_take_each_other_for_leftovers(tmp_path):
    path = tmp_path / "a.txt"
    with write_atomically(path, overwrite=True) as slow:
        slow.write_text("slow")
        write_text_atomically(path, "fast")
        assert (slow.exists(), path.read_text()) == (True, "fast")
    assert path.read_text() == "slow"
    assert list(tmp_path.iterdir()) == [path]


@pytest.fixture
def fitted(tmp_path):
    """A folder with a table and a model of it."""
    x = np.random.default_rng(0).random((60, 2))
    pa.csv.write_csv(pa.table({"a": x[:, 0], "y": x[:, 1]}), tmp_path / "data.csv")
    options = ("--components", "5", "--alpha", "1e-2")
    ran = run("fit", tmp_path / "data.csv", "--target", "y", "--model", tmp_path / "m.quernel", *options)
    assert ran.returncode == 0, ran.stderr
    return tmp_path


def test_forced_outputs_keep_permissions_and_links(fitted):
    secret, link = fitted / "secret.csv", fitted / "out.csv"
    secret.write_text("old")
    secret.chmod(0o600)
    link.symlink_to(secret)
    ran = run("predict", fitted / "m.quernel", fitted / "data.csv", "--out", link, "--force")
    assert ran.returncode == 0, ran.stderr
    assert link.is_symlink()
    assert mode(secret) == 0o600
    assert len(pa.csv.read_csv(secret)) == 60


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGKILL"])
def test_signals_leave_nothing_behind(fitted, name):
    """A killed process cannot clean up: the next one that writes the same file does."""
    before = sorted(fitted.iterdir())
    arguments = ["predict", fitted / "m.quernel", fitted / "data.csv", "--out", fitted / "out.csv"]
    ran = subprocess.run(
        [sys.executable, "-c", ENDED, *map(str, arguments)],
        capture_output=True,
        timeout=120,
        check=False,
        env=os.environ | {"SIGNAL": name},
    )
    if name == "SIGKILL":
        assert ran.returncode == -signal.SIGKILL
        assert len(list(fitted.glob(".out.csv.*.part"))) == 1
        assert run(*arguments).returncode == 0
        before = sorted([*before, fitted / "out.csv"])
    else:
        assert ran.returncode == 128 + getattr(signal, name), ran.stderr
    assert sorted(fitted.iterdir()) == before


def test_a_checkpoint_behind_a_link_is_removed_and_its_link_stays(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.random((300, 2))
    (tmp_path / "link").symlink_to(tmp_path / "fit.ckpt")
    plain_regressor(n_components=10, random_state=0).fit(X, X[:, 0], checkpoint=tmp_path / "link")
    assert [path.name for path in tmp_path.iterdir()] == ["link"]


def test_saved_models_keep_permissions(tmp_path):
    X = np.random.default_rng(0).random((30, 1))
    model, path = plain_regressor(n_components=5, alpha=0.1).fit(X, X[:, 0]), tmp_path / "m.quernel"
    quernel.save(model, path)
    path.chmod(0o600)
    quernel.save(model, path, overwrite=True)
    assert mode(path) == 0o600
