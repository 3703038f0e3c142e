"""Encoders of mixed tables before the same estimator: TableEncoder against skrub's TableVectorizer; times of one row.

    python -m benchmarks.encoder --data FOLDER [--rows 1500] [--repeats 3] [--save]

FOLDER has the files of the tables: used cars, California housing, bike sharing, nycflights13; a table of made house
prices needs none; its row number, which tells the price in a sorted table, is left out for both. Each repeat draws
training rows, and twice as many test rows. The estimator is KernelQuantileRegressor at the levels 0.1, 0.5 and 0.9 with
400 features; skrub's missing numbers are imputed by medians with indicators, as the kernel needs them. The loss is the
mean pinball loss on the test rows; the last line is the geometric mean of the ratios. A few minutes.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from tests.support.houses import houses

from quernel import KernelQuantileRegressor, TableEncoder

LEVELS = np.array([0.1, 0.5, 0.9])
RESULTS = Path(__file__).with_suffix(".json")
# File, target, and columns that are not known before the target.
TABLES = {
    "used cars": ("uk_used_cars_kaggle_7632.csv.gz", "price", ["kaggle_split"]),
    "California housing": ("california_housing.csv.gz", "median_house_value", []),
    "bike sharing": ("bike_sharing_hour.csv.gz", "cnt", ["casual", "registered"]),
    "nycflights13": ("nycflights13_flights.parquet", "arr_delay", ["dep_time", "dep_delay", "arr_time", "air_time"]),
}


def read_table(folder, name):
    """Inputs and target of a table, rows without a target left out."""
    if name == "made houses":
        X, y = houses(6000)
        return X.drop(columns="id"), y
    file, target, others = TABLES[name]
    path = Path(folder) / file
    frame = pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)
    frame = frame[frame[target].notna()].reset_index(drop=True)
    return frame.drop(columns=[target, *others]), frame[target].to_numpy(float)


def encoders():
    """The two encoders; skrub's is followed by an imputer, because it passes missing numbers on."""
    from skrub import TableVectorizer

    return {
        "TableEncoder": lambda: TableEncoder(),
        "skrub": lambda: make_pipeline(TableVectorizer(), SimpleImputer(strategy="median", add_indicator=True)),
    }


def pinball(y, curves):
    """Mean pinball loss over rows and levels."""
    residual = y[:, None] - curves
    return float(np.mean(np.maximum(LEVELS * residual, (LEVELS - 1) * residual)))


def compare(X, y, n_rows, repeats, bandwidth):
    """Mean held-out loss with each encoder."""
    losses = {name: [] for name in encoders()}
    for repeat in range(repeats):
        order = np.random.default_rng(repeat).permutation(len(y))
        train, test = order[:n_rows], order[n_rows : 3 * n_rows]
        for name, make in encoders().items():
            encoder = make()
            rows = np.asarray(encoder.fit_transform(X.iloc[train], y[train]), dtype=float)
            model = KernelQuantileRegressor(LEVELS, bandwidth=bandwidth, n_components=400, tol=1e-3, random_state=0)
            model.fit(rows, y[train])
            new = np.asarray(encoder.transform(X.iloc[test]), dtype=float)
            losses[name].append(pinball(y[test], model.predict(new)))
    return {name: float(np.mean(each)) for name, each in losses.items()}


def one_row_times(repeats=300):
    """Median milliseconds of predicting one row: from data frames of the made houses, and from an array."""
    import polars as pl

    X, y = houses(2000)
    model = KernelQuantileRegressor(LEVELS, bandwidth="auto", n_components=500, random_state=0).fit(X, y)
    numbers = np.random.default_rng(0).normal(size=(2000, 10))
    plain = KernelQuantileRegressor(LEVELS, bandwidth="auto", n_components=500, random_state=0).fit(numbers, y)
    calls = {
        "pandas": (model, X.iloc[[5]]),
        "polars": (model, pl.from_pandas(X.iloc[[5]])),
        "array": (plain, numbers[5:6]),
    }
    found = {}
    for name, (fitted, row) in calls.items():
        times = []
        for _ in range(repeats):
            start = time.perf_counter(), time.process_time()
            fitted.predict(row)
            times.append((time.perf_counter() - start[0], time.process_time() - start[1]))
        wall, processor = 1e3 * np.median(times, axis=0)
        found[name] = {"wall": round(float(wall), 3), "processor": round(float(processor), 3)}
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="../shared/data")
    parser.add_argument("--rows", type=int, default=1500)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--bandwidth", default="auto")
    parser.add_argument("--save", action="store_true", help=f"write {RESULTS.name}")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    times = one_row_times()
    print("one row, median ms:", times, flush=True)
    results = {}
    for name in ("made houses", *TABLES):
        results[name] = compare(*read_table(args.data, name), args.rows, args.repeats, args.bandwidth)
        ours, theirs = results[name]["TableEncoder"], results[name]["skrub"]
        print(f"{name:20} {ours:12.4g} {theirs:12.4g} {ours / theirs:8.3f}", flush=True)
    ratios = [one["TableEncoder"] / one["skrub"] for one in results.values()]
    mean = float(np.exp(np.mean(np.log(ratios))))
    print(f"geometric mean of the ratios {mean:.3f}")
    if args.save:
        settings = {"rows": args.rows, "repeats": args.repeats, "bandwidth": args.bandwidth}
        found = {**settings, "losses": results, "ratio": mean, "one_row_ms": times}
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
