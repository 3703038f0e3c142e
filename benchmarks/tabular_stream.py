"""`python -m benchmarks.tabular_stream ROWS`: TabularQuantileRegressor on rows in a Parquet file; seconds, peak memory.

The rows, of ten columns, are written to a temporary folder first, by another process. Results are kept in
benchmarks/tabular_stream.json, and docs/accuracy.md shows them (`python -m benchmarks.tables`).
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.tabular_serving import peak_memory, simulate
from quernel import TabularQuantileRegressor
from quernel.bench import describe_machine
from quernel.data import ParquetRows

FILE = Path(__file__).with_suffix(".json")
BLOCK = 500_000


def write(folder: Path, n: int) -> None:
    """Write the rows to one file, a row group at a time."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    writer = None
    for k, start in enumerate(range(0, n, BLOCK)):
        X, y = simulate(min(BLOCK, n - start), k)
        table = pa.table({**{f"x{j}": column for j, column in enumerate(X.T)}, "y": y})
        writer = writer or pq.ParquetWriter(folder / "rows.parquet", table.schema, compression="zstd")
        writer.write_table(table, row_group_size=100_000)
    if writer is not None:
        writer.close()


def measure(folder: Path, n: int, components: int | str) -> dict[str, Any]:
    """Fit the rows of the file, and judge the model on new ones."""
    start, processor = time.time(), time.process_time()
    model = TabularQuantileRegressor([0.1, 0.5, 0.9], n_components=components, random_state=0)
    model.fit(ParquetRows(folder / "rows.parquet", target="y"))
    found = {"seconds": time.time() - start, "processor_seconds": time.process_time() - processor}
    found |= {"peak_gb": peak_memory(), "rows": n, "sampled": model.n_sampled_}
    print(model)
    X, y = simulate(20_000, 10**6)
    low, high = model.predict_interval(X, 0.8).T
    found |= {"d2": model.score(X, y), "inside_80": float(np.mean((low <= y) & (y <= high)))}
    landmarks = 0 if model.parts_.location_scale is None else len(model.parts_.location_scale.coef)
    return found | {"landmarks": landmarks, "processor": describe_machine()["processor"]}


def read_results() -> list[dict[str, Any]]:
    return json.loads(FILE.read_text()) if FILE.exists() else []


def render_table(results: list[dict[str, Any]]) -> str:
    """What was measured, in Markdown."""
    lines = [
        "| rows in the file | seen by the forests | landmarks | processor seconds | peak memory | D^2 | inside 80 % |",
        "|---:|---:|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {one['rows']:,} | {one['sampled']:,} | {one['landmarks']:,} | {one['processor_seconds']:.0f} | "
        f"{one['peak_gb']:.2f} GB | {one['d2']:.4f} | {one['inside_80']:.1%} |"
        for one in results
    ]
    return "\n".join(lines) + "\n"


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
        found = measure(Path(folder), options.rows, options.components or "auto")
    same = [(found["rows"], found["landmarks"])]
    kept = [one for one in read_results() if (one["rows"], one["landmarks"]) not in same]
    results = sorted([*kept, found], key=lambda one: (one["rows"], one["landmarks"]))
    FILE.write_text(json.dumps(results, indent=1) + "\n")
    print(render_table(results))


if __name__ == "__main__":
    main()
