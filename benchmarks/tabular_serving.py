"""`python -m benchmarks.tabular_serving`: size and speed of models of 50,000 rows, beside a forest and boosting.

TabularQuantileRegressor: model file, one row, and 1,000,000 rows at three levels beside a quantile forest with as many
trees. KernelQuantileRegressor beside LightGBM with its defaults. Processor seconds; the memory is what predicting adds
to the peak. Results are kept in benchmarks/tabular_serving.json, and docs/accuracy.md shows them (`benchmarks.tables`).
"""

import argparse
import json
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import quernel
from quernel import KernelQuantileRegressor, TabularQuantileRegressor
from quernel.bench import describe_machine

FILE = Path(__file__).with_suffix(".json")
LEVELS = [0.1, 0.5, 0.9]
COLUMNS = 10


def simulate(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows whose target varies smoothly with some columns, and jumps with others."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, COLUMNS))
    mean = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 2.0 * (X[:, 3] > 0.5) * (X[:, 4] > 0)
    return X, mean + (0.3 + 0.3 * np.abs(X[:, 5])) * rng.standard_normal(n)


def peak_memory() -> float:
    """Largest memory of this process so far, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def describe_model(model: Any, X_new: np.ndarray) -> dict[str, float]:
    """Megabytes of the model file, and milliseconds of one row (median of 50)."""
    with tempfile.TemporaryDirectory() as folder:
        quernel.save(model, Path(folder) / "model.quernel")
        size = (Path(folder) / "model.quernel").stat().st_size / 1e6
    seconds = []
    for row in X_new[:50]:
        start = time.perf_counter()
        model.predict(row[None])
        seconds.append(time.perf_counter() - start)
    return {"file_mb": size, "one_row_ms": 1e3 * float(np.median(seconds))}


def time_predict(predict: Callable[[np.ndarray], np.ndarray], X_new: np.ndarray) -> dict[str, float]:
    """Processor seconds of predicting all rows, and by how many GB this raises the peak memory."""
    before, start = peak_memory(), time.process_time()
    predict(X_new)
    return {"seconds": time.process_time() - start, "gb": peak_memory() - before}


def measure_tabular(X: np.ndarray, y: np.ndarray, X_new: np.ndarray) -> dict[str, Any]:
    from quantile_forest import RandomForestQuantileRegressor

    model = TabularQuantileRegressor(LEVELS, random_state=0).fit(X, y)
    found = describe_model(model, X_new) | {"tabular": time_predict(model.predict, X_new)}
    n_trees = sum(one.n_trees for one in (model.parts_.forest, model.parts_.residual_forest) if one is not None)
    forest = RandomForestQuantileRegressor(n_trees, random_state=0, n_jobs=1).fit(X, y)
    peer = time_predict(lambda rows: forest.predict(rows, quantiles=LEVELS), X_new)
    return found | {"quantile forest": peer, "trees": n_trees}


def measure_kernel(X: np.ndarray, y: np.ndarray, X_new: np.ndarray) -> dict[str, Any]:
    from lightgbm import LGBMRegressor

    model = KernelQuantileRegressor(LEVELS, random_state=0).fit(X, y)
    settings = {"objective": "quantile", "verbose": -1, "n_jobs": 1, "random_state": 0}
    peers = [LGBMRegressor(alpha=level, **settings).fit(X, y) for level in LEVELS]
    # Taken in turns, and the best of three: what else the machine does counts for both.
    ours, theirs = [], []
    for _ in range(3):
        ours.append(time_predict(model.predict, X_new))
        theirs.append(time_predict(lambda rows: np.column_stack([one.predict(rows) for one in peers]), X_new))
    found = {"kernel": min(ours, key=lambda one: one["seconds"]), "features": model.n_components_}
    return describe_model(model, X_new) | found | {"LightGBM": min(theirs, key=lambda one: one["seconds"])}


MEASURES = {"tabular": ("quantile forest", measure_tabular), "kernel": ("LightGBM", measure_kernel)}


def read_results() -> dict[str, dict[str, Any]]:
    return json.loads(FILE.read_text()) if FILE.exists() else {}


def render_table(results: dict[str, dict[str, Any]]) -> str:
    """What was measured, in Markdown."""
    lines = [
        "| model | rows fitted | model file | one row | rows predicted | seconds | of the peer | ratio |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name, found in results.items():
        peer = MEASURES[name][0]
        ours, theirs = found[name]["seconds"], found[peer]["seconds"]
        size = f"{found['trees']} trees" if "trees" in found else "its defaults"
        lines.append(
            f"| {name} | {found['rows']:,} | {found['file_mb']:.2g} MB | {found['one_row_ms']:.1f} ms | "
            f"{found['new_rows']:,} | {ours:.1f} | {theirs:.1f} ({peer}, {size}) | {ours / theirs:.2f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tabular_serving", description=__doc__)
    parser.add_argument("--model", action="append", choices=list(MEASURES), help="only this one")
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--new-rows", type=int, default=1_000_000)
    parser.add_argument("--no-save", action="store_true", help="print only")
    options = parser.parse_args()
    (X, y), (X_new, _) = simulate(options.rows, 0), simulate(options.new_rows, 1)
    results = read_results()
    for name in options.model or MEASURES:
        sizes = {"rows": options.rows, "new_rows": options.new_rows}
        results[name] = sizes | MEASURES[name][1](X, y, X_new) | {"processor": describe_machine()["processor"]}
        print(json.dumps(results[name], indent=1), flush=True)
        if not options.no_save:
            FILE.write_text(json.dumps(results, indent=1) + "\n")
    print(render_table(results))


if __name__ == "__main__":
    main()
