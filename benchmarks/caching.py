"""What it gives to cache the features of streamed rows on disk, rather than compute them again in every sweep.

    python -m benchmarks.caching                        all settings, as in docs/scale.md
    python -m benchmarks.caching waves-200              one of them; its lines in benchmarks/caching.json are replaced
    python -m benchmarks.caching --rows 50000 --no-write

Rows lie in Parquet files in a temporary folder. Sweeps are timed by themselves, then whole fits. A sweep over cached
features is "warm" where the system still has them in memory, and "cold" where they come from the disk.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from quernel import KernelQuantileRegressor, KernelRegressor
from quernel._threads import right_sized
from quernel.bench.machine import describe
from quernel.rows import ParquetRows, StreamedRows, total
from quernel.rows.feature_cache import DiskCache
from quernel.rows.watching import Pass, watching

RESULTS = Path(__file__).with_name("caching.json")
GROUP = 50_000
LEVELS, TOL = (0.1, 0.5, 0.9), 1e-4
REPEATS = 2


@dataclass(frozen=True)
class Setting:
    """Rows, columns, number of features and how they are made; three levels, or log-cosh, whose steps are sweeps."""

    rows: int
    columns: int
    components: int
    sampling: str = "uniform"
    levels: bool = False


SETTINGS = {
    "waves-10-levels": Setting(400_000, 10, 200, levels=True),
    "waves-10": Setting(400_000, 10, 200),
    "waves-200": Setting(200_000, 200, 200),
    "landmarks-200": Setting(400_000, 10, 200, "landmarks"),
    "landmarks-500": Setting(100_000, 10, 500, "landmarks"),
}


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


def fit(folder: Path, setting: Setting, max_memory: int, cache: str) -> tuple[Any, dict]:
    """A fit under one policy, and what it took."""
    words = {
        "n_components": setting.components, "sampling": setting.sampling, "tol": TOL, "random_state": 0,
        "max_memory": max_memory,
    }  # fmt: skip
    model = KernelQuantileRegressor(LEVELS, **words) if setting.levels else KernelRegressor("logcosh", **words)
    passes: list[Pass] = []
    begin = time.perf_counter()
    with watching(passes.append):
        model.fit(ParquetRows(folder, "y", cache=cache))
    seconds, full = time.perf_counter() - begin, sum(one.done == setting.rows for one in passes)
    return model, {"seconds": seconds, "passes": full, "gap": float(np.max(model.duality_gap_))}


def sweeps(folder: Path, model: Any, n_rows: int, max_memory: int) -> dict:
    """Nanoseconds for a feature of a row: in a sweep that recomputes, one that writes, and those that read back."""
    coef = np.random.default_rng(0).standard_normal((model.n_components_, len(LEVELS)))

    def step(block, memory, message):  # noqa: ARG001
        return (block.share @ np.abs(block.targets - block.features @ coef),)

    def seconds(rows: StreamedRows) -> float:
        begin = time.perf_counter()
        rows.fold(step, rows.new_memory(), join=total)
        return time.perf_counter() - begin

    found = {}
    with right_sized(n_rows, model.n_components_) as threads:
        for cache in ("recompute", "disk", "auto"):
            rows = StreamedRows(
                ParquetRows(folder, "y", cache=cache), model.feature_map_, total=n_rows, largest=1.0,
                max_memory=max_memory, threads=threads,
            )  # fmt: skip
            if cache == "recompute":
                found["recomputed"] = min(seconds(rows) for _ in range(3))
            elif cache == "disk":
                found["written"] = seconds(rows)
                found["warm"] = min(seconds(rows) for _ in range(3))
                found["cold"] = _cold(rows, seconds)
            else:
                chosen = isinstance(rows._cache(), DiskCache)
            rows.close()
    one = n_rows * model.n_components_
    return {f"{name}_ns": 1e9 * value / one for name, value in found.items()} | {
        "auto": "disk" if chosen else "recompute"
    }


def _cold(rows: StreamedRows, seconds: Any) -> float:
    """A sweep over cached features that the system no longer has in memory."""
    cache = rows._cache()
    assert isinstance(cache, DiskCache)
    os.fsync(cache._file.fileno())
    os.posix_fadvise(cache._file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return seconds(rows)


def measure(name: str, n_rows: int | None = None) -> dict:
    """Sweeps and fits of one setting, perhaps with other numbers of rows."""
    setting = replace(SETTINGS[name], rows=n_rows or SETTINGS[name].rows)
    max_memory = 8 * setting.rows * setting.columns * 9 // 10  # so little that rows are streamed
    found: dict = {"setting": name, **asdict(setting)}
    with tempfile.TemporaryDirectory(prefix="quernel-caching-") as made:
        folder, models = Path(made), []
        write_files(folder, setting.rows, setting.columns)
        for _ in range(REPEATS):  # in turn, the better of each
            for cache in ("recompute", "disk"):
                model, took = fit(folder, setting, max_memory, cache)
                models.append(model)
                if took["seconds"] < found.get(f"fit_{cache}", {"seconds": np.inf})["seconds"]:
                    found[f"fit_{cache}"] = took
        assert all(np.array_equal(one.coef_, models[0].coef_) for one in models), "cached features changed the fit"
        found |= sweeps(folder, models[0], setting.rows, max_memory)
    print(
        f"{name:>20}: ns a feature: {found['recomputed_ns']:.1f} recomputed, {found['written_ns']:.1f} written, "
        f"{found['warm_ns']:.1f} warm, {found['cold_ns']:.1f} cold; auto: {found['auto']}; fit "
        f"{found['fit_recompute']['seconds']:.1f} s recomputed, {found['fit_disk']['seconds']:.1f} s on disk, "
        f"{found['fit_disk']['passes']} passes",
        flush=True,
    )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.caching", description=__doc__.splitlines()[0])
    parser.add_argument("settings", nargs="*", help=f"of {', '.join(SETTINGS)}; all by default")
    parser.add_argument("--rows", type=int, help="of every setting; 100,000 to 400,000 by default")
    parser.add_argument("--no-write", action="store_true", help="print only")
    chosen = parser.parse_args()
    names = chosen.settings or list(SETTINGS)
    found = [measure(name, chosen.rows) for name in names]
    if not chosen.no_write:
        kept = json.loads(RESULTS.read_text())["results"] if RESULTS.exists() else []
        lines = [line for line in kept if line["setting"] not in names] + found
        lines.sort(key=lambda line: list(SETTINGS).index(line["setting"]))
        settings = {"levels": LEVELS, "tol": TOL, "row_group": GROUP}
        RESULTS.write_text(json.dumps({"machine": describe(), "settings": settings, "results": lines}, indent=1) + "\n")


if __name__ == "__main__":
    main()
