"""Fits to Parquet files that are read in parts: time, rows a second, and the largest memory, at growing sizes.

    python -m benchmarks.streams                        1,000,000 and 10,000,000 rows, as in docs/scale.md
    python -m benchmarks.streams 20000 100000           other sizes
    python -m benchmarks.streams --no-write 50000       without benchmarks/streams.json

Each size is written to a temporary folder, and fitted by `quernel fit` in a fresh process.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.page import write_results

RESULTS = Path(__file__).with_name("streams.json")
SIZES = (1_000_000, 10_000_000)
COLUMNS, COMPONENTS, LEVELS, TOL = 10, 200, (0.1, 0.5, 0.9), 1e-4
# Rows of a row group, and of a file, at most.
GROUP, FILE = 250_000, 1_000_000
MAX_MEMORY = 400_000_000
MOST_MEMORY, MOST_SLOWER = 1.5e9, 1.3


def write_files(folder: Path, n_rows: int, seed: int = 0) -> int:
    """Rows with a smooth signal and noise that depends on x, a group at a time; returns the bytes on disk."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(seed)
    names = [f"x{j}" for j in range(COLUMNS)]
    schema = pa.schema([(name, pa.float64()) for name in (*names, "y")])
    for number, first in enumerate(range(0, n_rows, FILE)):
        path = folder / f"part{number:04}.parquet"
        with pq.ParquetWriter(path, schema) as writer:
            for start in range(first, min(first + FILE, n_rows), GROUP):
                X = rng.uniform(-1, 1, (min(GROUP, first + FILE - start, n_rows - start), COLUMNS))
                noise = (0.3 + 0.2 * X[:, 1] ** 2) * rng.standard_normal(len(X))
                y = np.sin(3 * X[:, 0]) + X[:, 2] * X[:, 3] + 0.5 * X[:, 4] + noise
                writer.write_table(pa.table([*X.T, y], schema=schema))
    return sum(path.stat().st_size for path in folder.iterdir())


FIT = """
import json, resource, sys, time
from quernel import KernelQuantileRegressor
from quernel.solvers.progress import listening
from quernel.tables.files import open_table
from quernel.tables.training_data import ReadOptions, prepare
from pathlib import Path

folder, options = Path(sys.argv[1]), json.loads(sys.argv[2])
sweeps = set()
begin = time.perf_counter()
with open_table(folder) as table, listening(lambda progress: sweeps.add(progress.sweep)):
    training = prepare(table, ReadOptions("y"))
    learnt = time.perf_counter()
    model = KernelQuantileRegressor(**options).fit(training.rows)
end = time.perf_counter()
print(json.dumps({
    "learning_seconds": learnt - begin, "seconds": end - begin, "passes": max(sweeps), "gap": max(model.duality_gap_),
    "cpu_seconds": time.process_time(), "peak_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
}))
"""


def fit(folder: Path, n_rows: int, max_memory: int) -> dict:
    """The fit of a folder in a fresh process, what it took, and whether it did what was asked."""
    options = {
        "quantiles": LEVELS, "n_components": COMPONENTS, "tol": TOL, "random_state": 0, "max_memory": max_memory,
    }  # fmt: skip
    ran = subprocess.run(
        [sys.executable, "-c", FIT, str(folder), json.dumps(options)], check=True, capture_output=True, text=True
    )
    found = json.loads(ran.stdout.splitlines()[-1])
    return {"rows": n_rows, **found, "nanoseconds_per_row": 1e9 * found["seconds"] / n_rows}


def measure(n_rows: int, max_memory: int | None) -> dict:
    # So little that rows are streamed at every size, and never more than a laptop spares.
    room = min(MAX_MEMORY, 8 * n_rows * COLUMNS * 9 // 10) if max_memory is None else max_memory
    with tempfile.TemporaryDirectory(prefix="quernel-streams-") as name:
        begin = time.perf_counter()
        size = write_files(Path(name), n_rows)
        wrote = time.perf_counter() - begin
        found = fit(Path(name), n_rows, room)
    found |= {"file_bytes": size, "max_memory": room, "writing_seconds": wrote}
    print(
        f"{n_rows:>12,} rows: {found['seconds']:.1f} s ({found['learning_seconds']:.1f} s to learn the columns), "
        f"{found['cpu_seconds']:.1f} s of processors, "
        f"{n_rows / found['seconds']:,.0f} rows a second, {found['passes']} passes, "
        f"peak {found['peak_bytes'] / 1e9:.2f} GB, gap {found['gap']:.0e}",
        flush=True,
    )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.streams", description=__doc__.splitlines()[0])
    parser.add_argument("sizes", nargs="*", type=int, help="numbers of rows; 1,000,000 and 10,000,000 by default")
    parser.add_argument(
        "--max-memory", type=int, help=f"bytes; nine tenths of the rows by default, {MAX_MEMORY:,} at most"
    )
    parser.add_argument("--no-write", action="store_true", help="print only")
    chosen = parser.parse_args()
    found = [measure(n_rows, chosen.max_memory) for n_rows in chosen.sizes or SIZES]
    first, last = found[0], found[-1]
    slower = last["nanoseconds_per_row"] / first["nanoseconds_per_row"]
    for text, holds in (
        (f"peak memory below {MOST_MEMORY / 1e9:g} GB", last["peak_bytes"] < MOST_MEMORY),
        (f"time per row {slower:.2f} times that of the smallest, {MOST_SLOWER:g} at most", slower <= MOST_SLOWER),
        (f"gap at most {TOL:g}", last["gap"] <= TOL),
    ):
        print(f"{'met' if holds else 'NOT met'}: {text}")
    if not chosen.no_write:
        settings = {"columns": COLUMNS, "components": COMPONENTS, "levels": LEVELS, "tol": TOL, "row_group": GROUP}
        write_results(RESULTS, settings, found)


if __name__ == "__main__":
    main()
