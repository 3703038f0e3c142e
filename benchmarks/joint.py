"""`python -m benchmarks.joint`: levels fitted together so that they do not cross, beside levels fitted apart.

Nineteen levels, 200 features. The wind farm comes with quernel; the body mass index of Dutch boys (columns age and bmi,
as in R's gamlss.data) is measured if --bmi names its file. Prints the table of docs/noncrossing.md.
"""

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from sklearn.base import clone

from quernel import KernelQuantileRegressor
from quernel.datasets import load_wind
from quernel.metrics import pinball_loss

LEVELS = np.linspace(0.05, 0.95, 19)
REPEATS = 3
HEADS = (
    "data", "setting", "rows whose levels cross, apart", "worst crossing, apart", "together", "gap, together",
    "loss, together / sorted", "CPU time, together / apart", "wall time, together / apart",
)  # fmt: skip
# Bandwidth and ridge weight in units of the automatic ones: as they are, and so small that levels cross.
SETTINGS = {"default": (1.0, 1.0), "bandwidth / 2, alpha / 10": (2.0, 10.0), "bandwidth / 8, alpha / 100": (8.0, 100.0)}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.joint", description=__doc__)
    parser.add_argument("--bmi", type=Path, metavar="FILE", help="CSV file with columns age and bmi")
    options = parser.parse_args()
    wind = load_wind()
    tables = {f"wind farm, {len(wind.y):,} rows": (wind.X, wind.y)}
    if options.bmi is not None:
        age, bmi = _columns(options.bmi, "age", "bmi")
        tables[f"BMI of Dutch boys, {len(bmi):,} rows"] = (age[:, None], bmi)
    for line in (HEADS, ["---"] * len(HEADS)):
        print("|", " | ".join(line), "|")
    for name, (X, y) in tables.items():
        for line in _lines(name, X, y):
            print("|", " | ".join(line), "|", flush=True)


def _lines(name: str, X: np.ndarray, y: np.ndarray) -> Iterator[list[str]]:
    usual = KernelQuantileRegressor(LEVELS, bandwidth="auto", n_components=200, random_state=0).fit(X, y)
    for setting, (narrower, rougher) in SETTINGS.items():
        model = clone(usual).set_params(bandwidth=usual.bandwidth_ / narrower, alpha=usual.alpha_ / rougher)
        (apart, together), (base_times, times) = _timed([model, clone(model).set_params(noncrossing="joint")], X, y)
        crossings = [f"{_worst_crossing(one, X) / np.std(y):.0e}" for one in (apart, together)]
        losses = [np.mean(pinball_loss(y, one.predict(X), LEVELS)) for one in (together, apart)]
        yield [
            name, setting, f"{apart.crossing_rate_:.1%}", *crossings, f"{together.duality_gap_.max():.0e}",
            f"{losses[0] / losses[1]:.5f}", *(f"{a / b:.2f}" for a, b in zip(times, base_times, strict=True)),
        ]  # fmt: skip


def _timed(
    models: list[KernelQuantileRegressor], X: np.ndarray, y: np.ndarray
) -> tuple[list[KernelQuantileRegressor], np.ndarray]:
    """The fitted models, and the least seconds of CPU and of the clock that each took, (models, 2).

    They take turns, so that a busy moment of the machine falls on all.
    """
    seconds = np.empty((REPEATS, len(models), 2))
    for turn in range(REPEATS):
        for place, model in enumerate(models):
            cpu, wall = time.process_time(), time.perf_counter()
            model.fit(X, y)
            seconds[turn, place] = time.process_time() - cpu, time.perf_counter() - wall
    return models, seconds.min(axis=0)


def _worst_crossing(model: KernelQuantileRegressor, X: np.ndarray) -> float:
    """The most by which a level lies above the next on the training rows, as fitted: nothing sorted."""
    curves = model.feature_map_.transform(X) @ model.coef_ + model.intercept_
    return float(np.max(curves[:, :-1] - curves[:, 1:]))


def _columns(path: Path, *names: str) -> list[np.ndarray]:
    from quernel.tables.files import open_table

    with open_table(path) as opened:
        table = opened.read()
    return [table[name].to_numpy() for name in names]


if __name__ == "__main__":
    main()
