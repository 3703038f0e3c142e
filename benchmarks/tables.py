"""`python -m benchmarks.tables FOLDER`: quantiles of ten tables beside boosting and forests; writes docs/accuracy.md.

Every method gets the same numbers and the same splits. A result is one line of benchmarks/tables.jsonl, and what is
there is not measured again: a run can be stopped and taken up, and several can go on at a time. With --inner the rows
of a split are its training rows, divided again: development never looks at test rows. FOLDER holds the files that
`tabular.py` names.
"""

import argparse
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.tables_page import render_page
from benchmarks.tabular import TABLES, read
from benchmarks.tabular_peers import LEVELS, PEERS, inner_split, mean_loss
from quernel import KernelQuantileRegressor, TabularQuantileRegressor
from quernel.bench import describe_machine
from quernel.metrics import crps

HERE = Path(__file__).parent
RESULTS = HERE / "tables.jsonl"
SPLITS = 5
GRID = np.arange(1, 100) / 100

Measure = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray, int], dict]


def tabular(**settings) -> Measure:
    """TabularQuantileRegressor with these settings: the loss, coverage, and errors of mean and distribution."""

    def run(X, y, X_new, y_new, seed):
        start = time.process_time()
        model = TabularQuantileRegressor(LEVELS, random_state=seed, **settings).fit(X, y)
        fitted = time.process_time()
        curves = model.predict(X_new)
        found = {"seconds": time.process_time() - start, "fit_seconds": fitted - start}
        found |= {"loss": mean_loss(y_new, curves)}
        # The randomised PIT: intervals of targets with few values hold more than their share however good they are.
        below, up_to = model.predict_cdf(X_new, np.nextafter(y_new, -np.inf)), model.predict_cdf(X_new, y_new)
        pit = below + np.random.default_rng(seed).random(len(y_new)) * (up_to - below)
        for coverage in (50, 80, 90):
            low, high = model.predict_interval(X_new, coverage / 100).T
            found[f"inside_{coverage}"] = float(np.mean((low <= y_new) & (y_new <= high)))
            found[f"pit_{coverage}"] = float(np.mean(np.abs(pit - 0.5) <= coverage / 200))
        grid = model.predict(X_new, GRID)
        error = float(np.sqrt(np.mean((y_new - grid.mean(axis=1)) ** 2)))
        return found | {"rmse": error, "crps": float(crps(y_new, grid, GRID)), "shares": model.shares_}

    return run


def others(predict) -> Measure:
    """The loss and the coverage of 80 % intervals of a method that predicts `LEVELS` only."""

    def run(X, y, X_new, y_new, seed):
        start = time.process_time()
        curves = np.sort(predict(X, y, X_new, seed), axis=1)
        seconds = time.process_time() - start
        inside = float(np.mean((curves[:, 0] <= y_new) & (y_new <= curves[:, 2])))
        return {"seconds": seconds, "loss": mean_loss(y_new, curves), "inside_80": inside}

    return run


def kernel(X, y, X_new, seed):
    return KernelQuantileRegressor(LEVELS, random_state=seed).fit(X, y).predict(X_new)


METHODS: dict[str, Measure] = {
    "tabular": tabular(),
    "kernel": others(kernel),
    **{name: others(predict) for name, predict in PEERS.items()},
    "kernel part": tabular(parts=["kernel"]),
    "residual forest part": tabular(parts=["residual_forest"]),
    "forest part": tabular(parts=["forest"]),
    "not calibrated": tabular(calibrate=False),
}
# Too slow to be run unless they are asked for.
ON_REQUEST = ("LightGBM tuned longer",)


def read_results(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def measure(options: argparse.Namespace) -> None:
    """Measure what is missing, the first split of all tables before the second."""
    processor = describe_machine()["processor"]
    tables = list(read(options.folder, options.table or list(TABLES)))
    for k in options.split or range(SPLITS):
        for table in tables:
            for method in options.method or [name for name in METHODS if name not in ON_REQUEST]:
                key = {"table": table.name, "split": k, "method": method, "inner": options.inner}
                if k >= len(table.tests) or any(key.items() <= row.items() for row in read_results(options.results)):
                    continue
                X, y, X_new, y_new = table.split(k)
                if options.inner:
                    train, test = inner_split(len(y), k)
                    X, y, X_new, y_new = X[train], y[train], X[test], y[test]
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    found = METHODS[method](X, y, X_new, y_new, k)
                if options.untimed:
                    found = {name: value for name, value in found.items() if not name.endswith("seconds")}
                constant = mean_loss(y_new, np.tile(np.quantile(y, LEVELS), (len(y_new), 1)))
                row = key | {"rows": len(y), "tested": len(y_new), "constant": constant} | found
                with options.results.open("a") as file:
                    file.write(json.dumps(row | {"processor": processor}) + "\n")
                held = "/".join(f"{100 * row[name]:.0f}" for name in ("pit_50", "pit_80", "pit_90") if name in row)
                print(
                    f"{table.name:<12} {k:>2}  {method:<22} {row['loss'] / constant:.4f}  "
                    f"{100 * row['inside_80']:.0f} % of 80  {held or '':<9} {row.get('seconds', np.nan):.1f} s",
                    flush=True,
                )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tables", description=__doc__)
    parser.add_argument(
        "folder", type=Path, nargs="?", help="where the data files are; without it only the page is made"
    )
    parser.add_argument("--table", action="append", choices=list(TABLES), help="only this table; may be repeated")
    parser.add_argument("--method", action="append", choices=list(METHODS), help="only this method; may be repeated")
    parser.add_argument("--split", type=int, action="append", help="only this split; may be repeated")
    parser.add_argument("--inner", action="store_true", help="divide the training rows; for development")
    parser.add_argument("--untimed", action="store_true", help="leave the seconds out; for a machine with other work")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--page", type=Path, default=HERE.parent / "docs" / "accuracy.md")
    options = parser.parse_args()
    if options.folder is not None:
        measure(options)
    if not options.inner:
        options.page.write_text(render_page(read_results(options.results), options.page.parent / "images"))


if __name__ == "__main__":
    main()
