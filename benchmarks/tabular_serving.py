"""`python -m benchmarks.tabular_serving`: size and latency of a TabularQuantileRegressor of 50,000 rows.

Model file, one row, and 1,000,000 rows at three levels beside a quantile forest with as many trees (processor seconds).
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

import quernel
from quernel import TabularQuantileRegressor

LEVELS = [0.1, 0.5, 0.9]
COLUMNS = 10


def simulate(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows whose target varies smoothly with some columns, and jumps with others."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, COLUMNS))
    mean = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 2.0 * (X[:, 3] > 0.5) * (X[:, 4] > 0)
    return X, mean + (0.3 + 0.3 * np.abs(X[:, 5])) * rng.standard_normal(n)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tabular_serving", description=__doc__)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--new-rows", type=int, default=1_000_000)
    options = parser.parse_args()
    (X, y), (X_new, _) = simulate(options.rows, 0), simulate(options.new_rows, 1)
    start = time.process_time()
    model = TabularQuantileRegressor(LEVELS, random_state=0).fit(X, y)
    print(f"fit of {options.rows:,} rows: {time.process_time() - start:.1f} s\n{model}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        quernel.save(model, Path(folder) / "model.quernel")
        print(f"model file: {(Path(folder) / 'model.quernel').stat().st_size / 1e6:.1f} MB", flush=True)
    seconds = []
    for row in X_new[:50]:
        start = time.perf_counter()
        model.predict(row[None])
        seconds.append(time.perf_counter() - start)
    print(f"one row: {1e3 * np.median(seconds):.2f} ms (median of 50)", flush=True)
    start = time.process_time()
    model.predict(X_new)
    print(f"{options.new_rows:,} rows, 3 levels: {time.process_time() - start:.1f} s", flush=True)
    n_trees = sum(one.n_trees for one in (model.parts_.forest, model.parts_.residual_forest) if one is not None)
    from quantile_forest import RandomForestQuantileRegressor

    forest = RandomForestQuantileRegressor(n_trees, random_state=0, n_jobs=1).fit(X, y)
    start = time.process_time()
    forest.predict(X_new, quantiles=LEVELS)
    print(f"quantile forest of {n_trees} trees: {time.process_time() - start:.1f} s", flush=True)


if __name__ == "__main__":
    main()
