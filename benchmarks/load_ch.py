"""`python -m benchmarks.load_ch [--rehearse] [--data FOLDER]`: Swiss load of 2022 from models of 2021.

Mean pinball loss over the levels 0.1, ..., 0.9 divided by the mean load, from the six columns Temperature, Wind_speed,
Hour, Day_of_week, Month and Is_holiday, all of them known. All choices were made on 2021: the last quarter forecast
from the first three (--rehearse), and weeks of every month held out as blocks, since random folds prefer kernels that
remember single days. Runs on 2022 are appended to benchmarks/load_ch_runs.jsonl with their dates; the first one counts.

The forecast is the mean of the quantiles of four kernels. All have the periods of hour, weekday and month; three are
products over all columns that differ in how far a month knows its neighbours, the fourth is a sum of simpler ones.
"""

import argparse
import json
import time
from datetime import date
from pathlib import Path

import numpy as np
import pandas as pd

from quernel import KernelQuantileRegressor
from quernel.kernels import Kernel, Periodic

LEVELS = np.arange(1, 10) / 10
LOG = Path(__file__).with_name("load_ch_runs.jsonl")
PERIODS = {"Temperature": np.inf, "Wind_speed": np.inf, "Hour": 24, "Day_of_week": 7, "Month": 12, "Is_holiday": np.inf}
UNUSED = 1e6  # a bandwidth at which a column does not matter


def kernel(**bandwidths: float) -> Kernel:
    """Product over the named columns, the others being ignored."""
    return Periodic([bandwidths.get(name, UNUSED) for name in PERIODS], list(PERIODS.values()))


PRODUCT = {"Temperature": 16.0, "Wind_speed": 8.0, "Hour": 3.0, "Day_of_week": 1.2, "Is_holiday": 0.7}
# Kernels, each with its ridge weight; loads are relative to their mean.
MODELS = [(kernel(**PRODUCT, Month=month), 2e-3) for month in (1.5, 2.5, 4.0)] + [
    (
        kernel(Hour=2.0, Day_of_week=1.0, Is_holiday=0.7)
        + kernel(Temperature=12.0, Month=2.5)
        + kernel(Month=3.0, Hour=3.0)
        + 0.3 * kernel(Temperature=16.0, Wind_speed=8.0, Hour=2.5, Day_of_week=1.0, Month=2.5, Is_holiday=0.7),
        5e-4,
    )
]


def forecast(train: pd.DataFrame, test: pd.DataFrame) -> np.ndarray:
    """Quantiles of the load (n, 9); of the test rows, only the six columns are read."""
    X, X_test = (rows[list(PERIODS)].to_numpy(dtype=float) for rows in (train, test))
    unit = train["Load"].mean()
    curves = []
    for one, alpha in MODELS:
        model = KernelQuantileRegressor(
            LEVELS, kernel=one, n_components=600, alpha=alpha, recalibrate=False, tol=1e-2, random_state=0
        )
        curves.append(model.fit(X, train["Load"].to_numpy() / unit).predict(X_test))
    return unit * np.mean(curves, axis=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("--data", type=Path, default=Path(__file__).parents[2] / "shared" / "data")
    given = parser.parse_args()
    data = pd.read_csv(given.data / "load_ch_2021_2022.csv.gz", parse_dates=["Time"])
    of_2021 = data["Time"].dt.year == 2021
    train, test = data[of_2021], data[~of_2021]
    if given.rehearse:
        early = train["Month"] <= 9
        train, test = train[early], train[~early]
    begun = time.perf_counter()
    quantiles = forecast(train, test)
    seconds = time.perf_counter() - begun
    y = test["Load"].to_numpy()
    residual = y[:, None] - quantiles
    score = float(np.maximum(LEVELS * residual, (LEVELS - 1) * residual).mean() / y.mean())
    below = np.mean(residual <= 0, axis=0)
    print(f"{'last quarter of 2021' if given.rehearse else '2022'}: {score:.5f}   ({seconds:.0f} s)")
    print("share of hours below each level: " + ", ".join(f"{share:.2f}" for share in below))
    if not given.rehearse:
        with LOG.open("a") as log:
            log.write(json.dumps({"date": date.today().isoformat(), "score": score, "seconds": seconds}) + "\n")


if __name__ == "__main__":
    main()
