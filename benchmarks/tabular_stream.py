"""`python -m benchmarks.tabular_stream ROWS`: TabularQuantileRegressor on rows in numpy files; seconds and peak memory.

The rows, of ten columns, are written to a temporary folder first, by another process.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.tabular_serving import COLUMNS, simulate
from quernel import TabularQuantileRegressor
from quernel.data import MemmapRows

BLOCK = 500_000


def write(folder: Path, n: int) -> None:
    X = np.lib.format.open_memmap(folder / "X.npy", "w+", float, (n, COLUMNS))
    y = np.lib.format.open_memmap(folder / "y.npy", "w+", float, (n,))
    for k, start in enumerate(range(0, n, BLOCK)):
        rows = slice(start, min(start + BLOCK, n))
        X[rows], y[rows] = simulate(rows.stop - rows.start, k)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tabular_stream", description=__doc__)
    parser.add_argument("rows", type=int)
    parser.add_argument("--components", type=int, help="landmarks of the kernel; the default is the estimator's")
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.write is not None:
        write(options.write, options.rows)
        return
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.tabular_stream", str(options.rows), "--write", folder]
        subprocess.run(command, check=True)
        source = MemmapRows(Path(folder) / "X.npy", Path(folder) / "y.npy")
        start, processor = time.time(), time.process_time()
        model = TabularQuantileRegressor(
            [0.1, 0.5, 0.9], n_components=options.components or "auto", random_state=0
        ).fit(source)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(
            f"{options.rows:,} rows: {time.time() - start:.0f} s ({time.process_time() - processor:.0f} s of processor)"
        )
        print(f"peak memory {peak:.2f} GB\n{model}")
        X, y = simulate(20_000, 10**6)
        low, high = model.predict_interval(X, 0.8).T
        print(f"new rows: D^2 {model.score(X, y):.4f}, {np.mean((low <= y) & (y <= high)):.1%} inside 80 % intervals")


if __name__ == "__main__":
    main()
