"""Check an installation, with no more than the declared dependencies: `make test-lowest`.

Scikit-learn's `check_estimator` for every public estimator with its default constructor, each command once, and the
extras onnx and dask. Exits with 1 and says what failed. `--quick` leaves out the search, which takes longest.
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from sklearn.base import clone
from sklearn.utils.estimator_checks import check_estimator

import quernel

# As scikit-learn declares its own estimators that divide rows at random: weighting a row is not repeating it there.
NOT_EQUIVALENT = {"check_sample_weight_equivalence_on_dense_data": "equal rows are divided"}
EXPECTED = {"ConformalQuantileRegressor": NOT_EQUIVALENT, "TabularQuantileRegressor": NOT_EQUIVALENT}
COMMANDS = [
    "--version",
    "fit data.csv --target y --model m.quernel --components 20 --conformal",
    "fit data.csv --target y --model m.quernel --components 20 --force --json",
    "tune data.csv --target y --model t.quernel --components 20",
    "predict m.quernel data.csv --out p.parquet",
    "report m.quernel data.csv --out report.html",
    "plan data.csv --target y",
    "demo --help",
    "bench --help",
    "reproduce --help",
]


def failed_checks(name: str) -> list[str]:
    """Names of scikit-learn's checks that the estimator fails, with the beginning of their errors."""
    results = check_estimator(getattr(quernel, name)(), expected_failed_checks=EXPECTED.get(name), on_fail=None)
    return [f"{one['check_name']}: {str(one['exception'])[:200]}" for one in results if one["status"] == "failed"]


def failed_command(command: str, folder: Path) -> list[str]:
    """The last line that a command wrote to stderr if it failed."""
    call = [sys.executable, "-m", "quernel", *command.split()]
    ran = subprocess.run(call, cwd=folder, capture_output=True, text=True, check=False)
    return [] if ran.returncode == 0 else [(ran.stderr.strip() or "no message").splitlines()[-1]]


def failed_extras(folder: Path) -> list[str]:
    """Errors of what the extras onnx and dask bring: a graph of a pipeline is written, chunks of rows are fitted."""
    import dask.array as da
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    X = np.random.default_rng(0).random((200, 2))
    model = quernel.KernelQuantileRegressor(n_components=20, bandwidth=1.0, alpha=1e-2, random_state=0)
    pipeline = make_pipeline(StandardScaler(), clone(model)).fit(X, X[:, 0])
    failed = []
    for action in (
        lambda: quernel.to_onnx(pipeline, folder / "model.onnx"),
        lambda: model.fit(da.from_array(X, chunks=(50, 2)), da.from_array(X[:, 0], chunks=50)),
    ):
        try:
            action()
        except Exception as error:
            failed.append(f"{type(error).__name__}: {str(error)[:200]}")
    return failed


def make_row(draw: random.Random, i: int) -> str:
    """A line of a CSV file: numbers with gaps, text and a date, as commands see them."""
    b = "" if i % 10 == 3 else f"{draw.random()}"
    return (
        f"{draw.random()},{b},{['Rome', 'Oslo', 'Lima'][i % 3]},2024-{1 + i % 12:02d}-{1 + i % 28:02d},{draw.random()}"
    )


def main() -> int:
    """Run all checks; the number of what failed."""
    failed = 0
    # QuantileForecaster takes series, not X and y.
    names = [
        name for name in quernel.__all__ if hasattr(getattr(quernel, name), "fit") and name != "QuantileForecaster"
    ]
    with tempfile.TemporaryDirectory() as folder:
        draw = random.Random(0)
        Path(folder, "data.csv").write_text("\n".join(["a,b,city,day,y", *(make_row(draw, i) for i in range(300))]))
        for command in COMMANDS:
            found = failed_command(command, Path(folder))
            print(f"quernel {command}: {'; '.join(found) or 'fine'}", flush=True)
            failed += bool(found)
        found = failed_extras(Path(folder))
        print(f"onnx and dask: {'; '.join(found) or 'fine'}", flush=True)
        failed += bool(found)
    for name in names:
        if name.endswith("CV") and "--quick" in sys.argv:
            continue
        found = failed_checks(name)
        print(f"check_estimator({name}()): {'; '.join(found) or 'fine'}", flush=True)
        failed += bool(found)
    return failed


if __name__ == "__main__":
    sys.exit(main() > 0)
