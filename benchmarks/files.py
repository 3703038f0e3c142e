"""Seconds and peak memory of reading and encoding a table of ten columns, from Parquet and from CSV, rows streamed.

python -m benchmarks.files [ROWS]: numbers with and without gaps, whole numbers, a category and a time, with a target.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv

ROWS, GROUP = 10_000_000, 500_000
COLOURS = np.array(["red", "green", "blue", "black", "white", "grey", "pink"])
READ = """
import json, resource, sys, time
from pathlib import Path
from quernel.tables.files import open_table
from quernel.tables.training_data import ReadOptions, prepare

begin, options = time.perf_counter(), ReadOptions("y")
with open_table(Path(sys.argv[1]), options=options.csv_options()) as table:
    opened = time.perf_counter()
    rows = prepare(table, options).rows
    learnt = time.perf_counter()
    total = sum(float(piece.X.sum()) for piece in rows.stream(range(len(rows.spans))))
    end = time.perf_counter()
print(json.dumps({
    "copying": opened - begin, "learning": learnt - opened, "encoding": end - learnt, "seconds": end - begin,
    "cpu_seconds": time.process_time(), "peak_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    "rows": rows.n_rows, "encoded_columns": rows.n_columns, "total": total,
}))
"""


def make_batches(n_rows: int) -> Iterator[pa.Table]:
    rng = np.random.default_rng(0)
    for start in range(0, n_rows, GROUP):
        n = min(GROUP, n_rows - start)
        x = np.round(rng.random((n, 4)) * [10, 4, 1, 100], 5)
        columns = {f"x{j}": x[:, j] for j in range(4)}
        columns["gap"] = pa.array(np.round(5 * rng.random(n), 5), mask=rng.random(n) < 0.05)
        columns |= {"n": rng.integers(0, 1000, n), "k": rng.integers(0, 12, n), "colour": rng.choice(COLOURS, n)}
        columns["at"] = np.datetime64("2020-01-01T00:00:00") + rng.integers(0, 86_400_000, n).astype("timedelta64[s]")
        yield pa.table({"y": 10 + 3 * x[:, 0] - x[:, 1] ** 2 + rng.random(n), **columns})


def write_files(folder: Path, n_rows: int) -> list[Path]:
    paths = [folder / "table.parquet", folder / "table.csv"]
    schema = next(make_batches(1)).schema
    with pq.ParquetWriter(paths[0], schema) as parquet, csv.CSVWriter(paths[1], schema) as text:
        for batch in make_batches(n_rows):
            parquet.write_table(batch)
            text.write_table(batch)
    return paths


def main() -> None:
    n_rows = int(sys.argv[1]) if len(sys.argv) > 1 else ROWS
    with tempfile.TemporaryDirectory(prefix="quernel-files-") as name:
        for path in write_files(Path(name), n_rows):
            ran = subprocess.run([sys.executable, "-c", READ, str(path)], check=True, capture_output=True, text=True)
            found = json.loads(ran.stdout.splitlines()[-1])
            print(
                f"{path.name}, {n_rows:,} rows: {found['seconds']:.1f} s ({found['copying']:.1f} to copy, "
                f"{found['learning']:.1f} to learn the columns, {found['encoding']:.1f} to read and encode), "
                f"{found['cpu_seconds']:.1f} s of processors, peak {found['peak_bytes'] / 1e9:.2f} GB",
                flush=True,
            )


if __name__ == "__main__":
    main()
