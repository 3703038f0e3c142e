"""What caching the features of streamed rows on disk gives: fits that recompute them, and fits that read them back.

    python -m benchmarks.caching                        all settings, as in docs/scale.md
    python -m benchmarks.caching waves-200              one of them; its lines in benchmarks/caching.json are replaced
    python -m benchmarks.caching --rows 50000 --no-write

Rows are written to Parquet files in a temporary folder, and each fit is made in a fresh process. What was written is
still in the system's memory when it is read back, as far as that goes: larger tables than these wait for the disk.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from quernel.bench.machine import describe

RESULTS = Path(__file__).with_name("caching.json")
ROWS, GROUP = 300_000, 50_000
LEVELS, TOL = (0.1, 0.5, 0.9), 1e-4
POLICIES = ("recompute", "disk", "auto")


@dataclass(frozen=True)
class Setting:
    """Columns, the number of features, how they are made, and the model: levels, or a curved loss (more sweeps)."""

    columns: int
    components: int
    sampling: str = "uniform"
    curved: bool = False


SETTINGS = {
    "waves-10": Setting(10, 200),
    "waves-200": Setting(200, 200),
    "landmarks-200": Setting(10, 200, "landmarks"),
    "landmarks-500": Setting(10, 500, "landmarks"),
    "waves-10-curved": Setting(10, 200, curved=True),
    "landmarks-200-curved": Setting(10, 200, "landmarks", curved=True),
}

FIT = """
import json, sys, time
from quernel import KernelQuantileRegressor, KernelRegressor
from quernel.rows import ParquetRows, StreamedRows
from quernel.rows.feature_cache import DiskCache

folder, policy, options, levels = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), json.loads(sys.argv[4])
sweeps, seen, fold, fold_apart = [], [], StreamedRows.fold, StreamedRows.fold_apart

def timed(method):
    def run(self, *args, **words):
        before = self._cache()
        begin = time.perf_counter()
        answer = method(self, *args, **words)
        sweeps.append(time.perf_counter() - begin)
        seen.append(isinstance(before, DiskCache))
        return answer
    return run

StreamedRows.fold, StreamedRows.fold_apart = timed(fold), timed(fold_apart)
model = KernelRegressor("logcosh", **options) if levels is None else KernelQuantileRegressor(levels, **options)
begin = time.perf_counter()
model.fit(ParquetRows(folder, "y", cache=policy))
print(json.dumps({
    "seconds": time.perf_counter() - begin, "sweeps": len(sweeps), "first_sweep": sweeps[0],
    "later_sweep": min(sweeps[1:]), "on_disk": any(seen), "gap": max(model.duality_gap_),
    "objective": list(model.objective_),
}))
"""


def write_files(folder: Path, n_rows: int, n_columns: int, seed: int = 0) -> None:
    """Rows with a smooth signal in a few columns, and noise that depends on them."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(seed)
    for number, start in enumerate(range(0, n_rows, GROUP)):
        X = rng.uniform(-1, 1, (min(GROUP, n_rows - start), n_columns))
        y = np.sin(3 * X[:, 0]) + X[:, 2] * X[:, 3] + (0.3 + 0.2 * X[:, 1] ** 2) * rng.standard_normal(len(X))
        columns = {f"x{j}": X[:, j] for j in range(n_columns)} | {"y": y}
        pq.write_table(pa.table(columns), folder / f"{number:03}.parquet")


def measure(name: str, n_rows: int) -> list[dict]:
    """One setting under every policy; the better of two runs each, in turn."""
    setting, best = SETTINGS[name], {}
    options = {
        "n_components": setting.components, "sampling": setting.sampling, "tol": TOL, "random_state": 0,
        "max_memory": 8 * n_rows * setting.columns * 9 // 10,
    }  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="quernel-caching-") as folder:
        write_files(Path(folder), n_rows, setting.columns)
        for policy in 2 * POLICIES:
            levels = json.dumps(None if setting.curved else LEVELS)
            ran = subprocess.run(
                [sys.executable, "-c", FIT, folder, policy, json.dumps(options), levels],
                check=True, capture_output=True, text=True,
            )  # fmt: skip
            found = json.loads(ran.stdout.splitlines()[-1])
            if policy not in best or found["seconds"] < best[policy]["seconds"]:
                best[policy] = found
    for policy, found in best.items():
        print(
            f"{name:>20} {policy:>9}: {found['seconds']:5.1f} s, {found['sweeps']} sweeps, the first "
            f"{found['first_sweep'] / n_rows / setting.components * 1e9:.1f} ns a number, a later one "
            f"{found['later_sweep'] / n_rows / setting.components * 1e9:.2f} ns, "
            f"{'on disk' if found['on_disk'] else 'recomputed'}",
            flush=True,
        )
    same = all(np.allclose(found["objective"], best["recompute"]["objective"], rtol=1e-12) for found in best.values())
    print(f"{'met' if same else 'NOT met'}: the same objective under every policy")
    return [{"setting": name, "rows": n_rows, **asdict(setting), "cache": policy, **best[policy]} for policy in best]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.caching", description=__doc__.splitlines()[0])
    parser.add_argument("settings", nargs="*", help=f"of {', '.join(SETTINGS)}; all by default")
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--no-write", action="store_true", help="print only")
    chosen = parser.parse_args()
    names = chosen.settings or list(SETTINGS)
    found = [line for name in names for line in measure(name, chosen.rows)]
    if not chosen.no_write:
        kept = json.loads(RESULTS.read_text())["results"] if RESULTS.exists() else []
        kept = [line for line in kept if line["setting"] not in names]
        lines = sorted(kept + found, key=lambda line: list(SETTINGS).index(line["setting"]))
        RESULTS.write_text(json.dumps({"machine": describe(), "results": lines}, indent=1) + "\n")


if __name__ == "__main__":
    main()
