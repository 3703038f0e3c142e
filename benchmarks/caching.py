"""What it gives to cache the features of streamed rows on disk, rather than compute them again in every sweep.

    python -m benchmarks.caching                        all settings, as in docs/scale.md
    python -m benchmarks.caching waves-200              one of them; its lines in benchmarks/caching.json are replaced
    python -m benchmarks.caching --rows 50000 --no-write

Rows lie in Parquet files in a temporary folder. Sweeps are timed by themselves, then whole fits. A sweep over cached
features is "warm" where the system still has them in memory, and "cold" where they come from the disk. Features are
cached as float64 and as float32; a fit of the latter ends with a sweep over unrounded features, for its certificate.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.page import write_results
from quernel import KernelQuantileRegressor, KernelRegressor
from quernel._threads import single_threaded_blas
from quernel.data import ParquetRows, StreamedDesign, sum_tuples
from quernel.data.feature_cache import DiskCache, MemoryCache
from quernel.data.sources import Pass, watching

RESULTS = Path(__file__).with_name("caching.json")
GROUP = 50_000
LEVELS, TOL = (0.1, 0.5, 0.9), 1e-4
REPEATS = 2
KINDS = {"float64": float, "float32": np.float32}
# How features are kept, and in which type: by the name that the results have.
FITS = {
    "recompute": ("recompute", "float64"),
    "disk": ("disk", "float64"),
    "disk_float32": ("disk", "float32"),
    "auto_float32": ("auto", "float32"),
}
CALLED = {DiskCache: "disk", MemoryCache: "memory", type(None): "recompute"}


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
    "waves-300": Setting(100_000, 300, 200),  # rounded features fit in memory, others do not
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


def fit(folder: Path, setting: Setting, max_memory: int, cache: str, dtype: str) -> tuple[Any, dict]:
    """A fit under one policy, and what it took."""
    params = {
        "n_components": setting.components, "sampling": setting.sampling, "tol": TOL, "random_state": 0,
        "max_memory": max_memory, "dtype": dtype,
    }  # fmt: skip
    model = (
        KernelQuantileRegressor(LEVELS, **({"bandwidth": "auto"} | params))
        if setting.levels
        else KernelRegressor("logcosh", **params)
    )
    passes: list[Pass] = []
    begin = time.perf_counter()
    with watching(passes.append):
        model.fit(ParquetRows(folder, "y", cache=cache))
    seconds, full = time.perf_counter() - begin, sum(one.done == setting.rows for one in passes)
    gap, objective = float(np.max(model.duality_gap_)), model.objective_.tolist()
    return model, {"seconds": seconds, "passes": full, "gap": gap, "objective": objective}


def sweeps(folder: Path, model: Any, n_rows: int, max_memory: int) -> dict:
    """Nanoseconds for a feature of a row: in a sweep that recomputes, one that writes, and those that read back."""
    coef = np.random.default_rng(0).standard_normal((model.n_components_, len(LEVELS)))

    def step(block, memory, message):  # noqa: ARG001
        return (block.share @ np.abs(block.targets - block.features @ coef),)

    def seconds(rows: StreamedDesign) -> float:
        begin = time.perf_counter()
        rows.map_reduce(step, rows.new_state(), reduce=sum_tuples)
        return time.perf_counter() - begin

    def rows_of(cache: str, kind: str) -> StreamedDesign:
        return StreamedDesign(
            ParquetRows(folder, "y", cache=cache), model.feature_map_, total=n_rows, largest=1.0,
            max_memory=max_memory, dtype=KINDS[kind], threads=threads,
        )  # fmt: skip

    found, chosen = {}, {}
    with single_threaded_blas(n_rows, model.n_components_) as threads:
        plain = rows_of("recompute", "float64")
        found["recomputed"] = min(seconds(plain) for _ in range(3))
        for kind, end in (("float64", ""), ("float32", "_float32")):
            with closing(rows_of("disk", kind)) as rows:
                found[f"written{end}"] = seconds(rows)
                found[f"warm{end}"] = min(seconds(rows) for _ in range(3))
                found[f"cold{end}"] = _cold(rows, seconds)
            with closing(rows_of("auto", kind)) as rows:
                chosen[f"auto{end}"] = CALLED[type(rows._cache())]
    one = n_rows * model.n_components_
    return {f"{name}_ns": 1e9 * value / one for name, value in found.items()} | chosen


def _cold(rows: StreamedDesign, seconds: Any) -> float:
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
            for kept, (cache, dtype) in FITS.items():
                model, took = fit(folder, setting, max_memory, cache, dtype)
                models.append(model)
                if took["seconds"] < found.get(f"fit_{kept}", {"seconds": np.inf})["seconds"]:
                    found[f"fit_{kept}"] = took
        exact = [one.coef_ for one in models if one.dtype == "float64"]
        assert all(np.array_equal(one, exact[0]) for one in exact), "cached features changed the fit"
        found |= sweeps(folder, models[0], setting.rows, max_memory)
    print(
        f"{name:>16}: ns a feature: {found['recomputed_ns']:.1f} recomputed; "
        f"{found['written_ns']:.1f} written, {found['warm_ns']:.1f} warm, {found['cold_ns']:.1f} cold; as float32 "
        f"{found['written_float32_ns']:.1f}, {found['warm_float32_ns']:.1f}, {found['cold_float32_ns']:.1f}; "
        f"auto: {found['auto']}, of float32 {found['auto_float32']}; fits "
        + ", ".join(f"{kept} {found[f'fit_{kept}']['seconds']:.1f} s" for kept in FITS),
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
        write_results(RESULTS, settings, lines)


if __name__ == "__main__":
    main()
