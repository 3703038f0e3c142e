"""The command `quernel`, run in this process or in one of its own."""

import io
import json
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from typing import NamedTuple

import numpy as np
import pytest

import quernel
from quernel.cli import main

PASSED_ON = ("PYTHONPATH", "HOME", "NUMBA_CACHE_DIR", "SYSTEMROOT")


class Completed(NamedTuple):
    """What a command left behind."""

    returncode: int
    stdout: str
    stderr: str


def run(*arguments: object, cwd: os.PathLike | None = None, encoding: str = "utf-8") -> Completed:
    """Run `quernel` with these arguments in this process; `encoding` is that of standard output."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding=one, newline="") for one in (encoding, "utf-8"))
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["quernel", *map(str, arguments)])
        if cwd is not None:
            patch.chdir(cwd)
        with pytest.raises(SystemExit) as exited:
            main()
        out.flush()
        err.flush()
    stdout, stderr = (stream.buffer.getvalue().decode(stream.encoding) for stream in (out, err))
    return Completed(exited.value.code or 0, stdout, stderr)


def run_process(
    *arguments: object, cwd: os.PathLike | None = None, code: str = "from quernel.cli import main; main()"
) -> Completed:
    """Run `quernel`, or other Python code, in a process of its own that finds no other programs."""
    ran = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=600,
        cwd=cwd,
        check=False,
        env={"PATH": "", "COLUMNS": "100"} | {name: os.environ[name] for name in PASSED_ON if name in os.environ},
    )
    return Completed(ran.returncode, ran.stdout, ran.stderr)


def fit_model(data, target, model, *options):
    """(report, model): run `quernel fit` with `--json` among the options, and load what it saved."""
    ran = run("fit", data, "--target", target, "--model", model, *options)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout), quernel.load(model)


def assert_same_model(expected, found, table, target):
    """Two results of `fit_model` on the same rows agree up to what their duality gaps allow."""
    (expected_report, expected), (report, found) = expected, found
    assert found.encoder.columns_ == expected.encoder.columns_
    for name in ("rows", "rows_without_target", "columns", "encoded_columns", "notes", "n_components"):
        assert report[name] == expected_report[name], name
    np.testing.assert_allclose(found.model.alpha_, expected.model.alpha_, rtol=1e-12)
    np.testing.assert_allclose(found.model.bandwidth_, expected.model.bandwidth_, rtol=1e-9)
    assert max(*expected_report["duality_gap"], *report["duality_gap"]) <= 1e-6
    np.testing.assert_allclose(found.model.objective_, expected.model.objective_, rtol=2e-6)
    scale = np.nanstd(np.asarray(table[target].to_numpy(), dtype=float))
    table = table.take(np.random.default_rng(0).permutation(len(table))[:20_000])
    assert np.abs(found.predict(table) - expected.predict(table)).mean() < 2e-3 * scale
