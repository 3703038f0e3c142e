"""What shapes cost and change: accuracy, violations and time with and without, on used cars and simulated rows.

    python -m benchmarks.shapes            # all figures of shapes.json and the page; measures what is missing
    python -m benchmarks.shapes --page     # table and picture of docs/shapes.md from shapes.json

Prices fall with mileage and rise with the year. Cars are read from ../shared/data/uk_used_cars_kaggle_7632.csv.gz,
beside the repository. Settings of fits with shapes were chosen on the test cars of three random splits. The others,
which only served to fit, are judged here, in two halves: each estimator is fitted to all cars but those of one half,
free and with shapes; once to the five columns of the paper, and once to all, with brand and model.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from quernel import KernelQuantileRegressor, TabularQuantileRegressor
from quernel._files import write_atomically
from quernel.datasets import UsedCars, load_used_cars
from quernel.estimators.shapes import OPTIONS, along_grid, choose_grid
from quernel.features.landmarks import sample_by_rank
from quernel.metrics import coverage, pinball_loss

RESULTS = Path(__file__).with_name("shapes.json")
CARS = Path(__file__).parents[1].parent / "shared" / "data" / "uk_used_cars_kaggle_7632.csv.gz"
LEVELS = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95)
ALL_COLUMNS = ("brand", "model", "transmission", "fuelType")  # besides the five
CHOSEN_ON, TRAIN, SPLITS = 3, 6_000, 2  # splits with so many cars to fit, on whose others settings were chosen; now
YEAR, MILEAGE = 0, 1
SHAPES: dict[str, Any] = {"monotone": {YEAR: 1, MILEAGE: -1}, "lower": 0}
LINES = 300  # rows through which violations are looked for
FINE = 101  # values along each line, at equal distances
FAN = (0.05, 0.25, 0.5, 0.75, 0.95)


def make_model(estimator: str, constrained: bool, seed: int) -> Any:
    shapes = SHAPES if constrained else {}
    if estimator == "kernel":
        return KernelQuantileRegressor(LEVELS, n_components=300, random_state=seed, **shapes)
    return TabularQuantileRegressor(LEVELS, random_state=seed, **shapes)


def count_violations(model: Any, X: Any, grids: dict[int, Any]) -> dict[str, float]:
    """Share of steps along lines through these rows that go in the wrong direction, and the largest move, in y."""
    wrong, steps, largest = 0, 0, 0.0
    for j, sign in SHAPES["monotone"].items():
        lines = sign * model.predict(along_grid(X, grids[j], j)).reshape(len(X), len(grids[j]), -1)
        wrong += int(np.sum(np.diff(lines, axis=1) < 0))
        steps += np.diff(lines, axis=1).size
        largest = max(largest, float((np.maximum.accumulate(lines, axis=1) - lines).max()))
    return {"share": round(wrong / steps, 5), "largest": round(largest, 2)}


def draw_split(n: int, half: int) -> tuple[Any, Any]:
    """Numbers of the cars to fit and to judge: of the latter, none on which settings were chosen."""
    seen = np.unique([np.random.default_rng(seed).permutation(n)[TRAIN:] for seed in range(CHOSEN_ON)])
    unseen = np.setdiff1d(np.arange(n), seen)
    test = np.array_split(np.random.default_rng(0).permutation(unseen), SPLITS)[half]
    return np.setdiff1d(np.arange(n), test), test


def judge(estimator: str, constrained: bool, cars: UsedCars, seed: int) -> tuple[dict[str, Any], Any]:
    """Figures of one fit, and its fan along mileage."""
    train, test = draw_split(len(cars.y), seed)
    start = time.process_time()
    model = make_model(estimator, constrained, seed).fit(cars.X[train], cars.y[train])
    seconds = time.process_time() - start
    curves = model.predict(cars.X[test])
    X = cars.X[train]
    anchors = X[sample_by_rank(X, np.ones(len(X)), OPTIONS.n_anchors)[0]]  # through which the fit checks the whole grid
    checked = {j: choose_grid(X[:, j]) for j in SHAPES["monotone"]}
    fine = {j: np.linspace(X[:, j].min(), X[:, j].max(), FINE) for j in SHAPES["monotone"]}
    return {
        "loss": round(float(np.mean(pinball_loss(cars.y[test], curves, LEVELS))), 2),
        "coverage": round(coverage(cars.y[test], curves[:, 0], curves[:, -1]), 4),
        "rows": [len(train), len(test)],
        "below bound": int(np.sum(curves < 0)),
        "grid": count_violations(model, anchors, checked),
        "elsewhere": count_violations(model, cars.X[test][:LINES], fine),
        "seconds": round(seconds, 1),
    }, draw_fan(model, cars)


def judge_all_columns(estimator: str, constrained: bool, cars: UsedCars, seed: int) -> tuple[dict[str, Any], None]:
    """Loss and coverage of one fit to all columns."""
    import pandas as pd

    frame = pd.read_csv(CARS)
    assert len(frame) == len(cars.y)
    frame = frame[[*cars.feature_names, *ALL_COLUMNS]]
    train, test = draw_split(len(cars.y), seed)
    curves = make_model(estimator, constrained, seed).fit(frame.iloc[train], cars.y[train]).predict(frame.iloc[test])
    return {
        "loss": round(float(np.mean(pinball_loss(cars.y[test], curves, LEVELS))), 2),
        "coverage": round(coverage(cars.y[test], curves[:, 0], curves[:, -1]), 4),
    }, None


def draw_fan(model: Any, cars: UsedCars) -> dict[str, Any]:
    """Quantiles of the price of a typical car along mileage: one of 2017, the nearest to the medians of that year."""
    X = cars.X[cars.X[:, YEAR] == 2017]
    row = X[np.argmin(np.sum(np.abs(X - np.median(X, axis=0)) / np.maximum(X.std(axis=0), 1e-12), axis=1))]
    mileage = np.linspace(0, 100_000, 201)
    return {
        "car": dict(zip(cars.feature_names, row.tolist(), strict=True)),
        "mileage": mileage.tolist(),
        "quantiles": np.round(model.predict(along_grid(row[None], mileage, MILEAGE), quantiles=FAN)).tolist(),
    }


def measure_cars(results: dict[str, Any]) -> None:
    """Both estimators, free and with shapes, on every split."""
    cars = load_used_cars(CARS)
    kinds = [(estimator, constrained) for estimator in ("kernel", "tabular") for constrained in (False, True)]
    for seed in range(SPLITS):
        for name, measure in (("cars", judge), ("all columns", judge_all_columns)):
            for estimator, constrained in kinds:
                key = f"{estimator}, {'with shapes' if constrained else 'free'}"
                runs = results.setdefault(name, {}).setdefault(key, [])
                if len(runs) > seed:
                    continue
                found, fan = measure(estimator, constrained, cars, seed)
                runs.append(found)
                if fan is not None and seed == 0:
                    results.setdefault("fans", {})[key] = fan
                save(results)
                print(name, key, seed, found, flush=True)


def measure_cost(n: int = 10_000, n_components: int = 300, repetitions: int = 3) -> dict[str, float]:
    """Processor seconds of the kernel estimator at three levels, best of some, free and with two monotone columns."""
    rng = np.random.default_rng(0)
    X = rng.random((n, 5))
    y = np.exp(X[:, 0]) - X[:, 1] + np.sin(6 * X[:, 2]) + (0.3 + X[:, 1]) * rng.standard_normal(n)
    found = {}
    for name, shapes in (("free", {}), ("with shapes", {"monotone": {0: 1, 1: -1}})):
        seconds = []
        for _ in range(repetitions):
            start = time.process_time()
            settings = {"n_components": n_components, "random_state": 0, **shapes}
            KernelQuantileRegressor([0.1, 0.5, 0.9], **settings).fit(X, y)
            seconds.append(time.process_time() - start)
        found[name] = round(min(seconds), 2)
    return found


def save(results: dict[str, Any]) -> None:
    with write_atomically(RESULTS, overwrite=True) as part:
        part.write_text(json.dumps(results) + "\n")


def main() -> None:
    """Measure what is missing in shapes.json, then write the page."""
    from benchmarks.shapes_page import write_page

    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if "--page" not in sys.argv:
        if "cost" not in results:
            results["cost"] = measure_cost()
            save(results)
            print(results["cost"], flush=True)
        measure_cars(results)
    write_page(results)


if __name__ == "__main__":
    main()
