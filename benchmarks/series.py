"""`python -m benchmarks.series [--data FOLDER]`: day-ahead and week-ahead forecasts of two real series.

Half-hourly electricity demand of Victoria and hourly hires of bikes; the last year is held out, and forecast from an
origin every day or every week by models of the time before. `QuantileForecaster` stands beside LightGBM with the same
features, and beside the value a week before plus the quantiles of past weekly differences. Intervals of 80 and 90 % are
calibrated as days go by (`AdaptiveCalibrator`). Results are kept in benchmarks/series.json.

`--price` measures what 99 levels cost beside one, day-ahead on bikes, and keeps that in benchmarks/level_price.json.
"""

import argparse
import json
import time
import unittest.mock
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator

from quernel import KernelQuantileRegressor, QuantileForecaster, TabularQuantileRegressor
from quernel.forecasting import AdaptiveCalibrator, Backtest, forecaster
from quernel.metrics import pinball_loss

FILE = Path(__file__).with_suffix(".json")
PRICE = FILE.with_name("level_price.json")
LEVELS = np.array([0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95])
INTERVALS = {0.8: (1, -2), 0.9: (0, -1)}
HORIZONS = {"day": "24h", "week": "7d"}
MAX_ROWS = 5000
WARM_UP = pd.Timedelta(days=56)  # before the last year, in which the calibration begins


class LightGBM(BaseEstimator):
    """One LightGBM model for each level, with default parameters."""

    def __init__(self, quantiles: object = 0.5) -> None:
        self.quantiles = quantiles

    def fit(self, X: np.ndarray, y: np.ndarray) -> "LightGBM":
        from lightgbm import LGBMRegressor

        settings = {"objective": "quantile", "verbose": -1, "n_jobs": 1, "random_state": 0}
        self.models_ = [LGBMRegressor(alpha=level, **settings).fit(X, y) for level in self.quantiles]
        return self

    def predict(self, X: np.ndarray, quantiles: np.ndarray) -> np.ndarray:
        assert np.array_equal(quantiles, self.quantiles)
        return np.column_stack([model.predict(X) for model in self.models_])


def victoria(folder: Path) -> tuple[pd.DataFrame, list[str]]:
    data = pd.read_parquet(folder / "vic_elec.parquet")
    step = np.arange(len(data)) * np.timedelta64(30, "m")  # clocks were changed twice a year, the steps were not
    start = pd.to_datetime(data["Time"].iloc[0]).tz_localize(None).to_datetime64()
    columns = {"time": start + step, "y": data["Demand"].to_numpy(), "Temperature": data["Temperature"].to_numpy()}
    return pd.DataFrame(columns | {"Holiday": data["Holiday"].to_numpy().astype(float)}), ["Holiday"]


def bikes(folder: Path) -> tuple[pd.DataFrame, list[str]]:
    data = pd.read_csv(folder / "bike_sharing_hour.csv.gz")
    stamps = pd.to_datetime(data["dteday"]) + pd.to_timedelta(data["hr"], unit="h")
    every = pd.date_range(stamps.min(), stamps.max(), freq="h")
    table = data[["cnt", "temp", "workingday"]].set_axis(pd.DatetimeIndex(stamps)).reindex(every)
    table[["temp", "workingday"]] = table[["temp", "workingday"]].ffill()  # hours without hires have no row
    table["cnt"] = table["cnt"].fillna(0.0)
    return table.rename(columns={"cnt": "y"}).rename_axis("time").reset_index(), ["workingday"]


SERIES = {"Victoria electricity": victoria, "bike sharing": bikes}


def naive(data: pd.DataFrame, start: int, first: int, week: int) -> Backtest:
    """The value a week before, plus the quantiles of the weekly differences before the last year."""
    y = data["y"].to_numpy()
    shift = np.quantile((y[week:] - y[:-week])[: first - week], LEVELS)
    index = np.arange(start, len(y))
    steps = np.zeros(len(index), dtype=int)
    return Backtest(data["time"].to_numpy(), index, steps, y[index], y[index - week][:, None] + shift, LEVELS)


def judge(found: Backtest, n_test: int, window: int) -> dict[str, object]:
    """Loss and coverage over the last year, as forecast and with adaptive calibration, also by quarters."""
    y, curves = found.y, found.quantiles
    residual = (y[:, None] - curves)[-n_test:]
    result: dict[str, object] = {"loss": float(np.maximum(LEVELS * residual, (LEVELS - 1) * residual).mean())}
    warm = len(y) - n_test
    for coverage, (a, b) in INTERVALS.items():
        low, high = curves[:, a], curves[:, b]
        calibrator = AdaptiveCalibrator(coverage, window=max(14 * window, 500)).fit(low[:warm], high[:warm], y[:warm])
        inside = []
        for k in range(warm, len(y), window):
            some = slice(k, k + window)
            bounds = calibrator.adjust(low[some], high[some])
            inside.append((bounds[:, 0] <= y[some]) & (y[some] <= bounds[:, 1]))
            calibrator.update(low[some], high[some], y[some])
        hits = np.concatenate(inside)
        result[f"{coverage:.0%}"] = {
            "as forecast": float(np.mean((low <= y) & (y <= high), where=np.arange(len(y)) >= warm)),
            "adaptive": float(hits.mean()),
            "quarters": [float(part.mean()) for part in np.array_split(hits, 4)],
        }
    return result


def run(name: str, folder: Path, ahead: str) -> dict[str, object]:
    data, known = SERIES[name](folder)
    first = int(np.searchsorted(data["time"], data["time"].iloc[-1] - pd.Timedelta(days=365)))
    step = data["time"].iloc[1] - data["time"].iloc[0]
    window, week = round(pd.Timedelta(HORIZONS[ahead]) / step), round(pd.Timedelta("7d") / step)
    start = first - round(WARM_UP / step)
    results = {"week before": judge(naive(data, start, first, week), len(data) - first, window)}
    tabular = TabularQuantileRegressor(random_state=0)
    for label, estimator in (("quernel", tabular), ("LightGBM", LightGBM())):
        begun = time.perf_counter()
        # Calibration begins on rows that the models have not seen.
        model = QuantileForecaster(
            HORIZONS[ahead], target="y", known=known, quantiles=LEVELS, estimator=estimator, max_rows=MAX_ROWS,
            random_state=0,
        )  # fmt: skip
        found = model.fit(data[:start]).backtest(data, start=start)
        results[label] = judge(found, len(data) - first, window) | {"seconds": time.perf_counter() - begun}
        print(name, ahead, label, json.dumps(results[label]), flush=True)
    print(name, ahead, "week before", json.dumps(results["week before"]), flush=True)
    return results


def measure_price(folder: Path) -> dict[str, dict[str, float]]:
    """CPU seconds of a fit for the median and for 99 levels, and the mean loss over these in the weeks after it.

    Runs take turns, and the lowest of three times counts; a kernel at each of the 99 levels runs once.
    """
    every, n_train, weeks = np.arange(1, 100) / 100, 24 * 300, 24 * 28
    data = bikes(folder)[0][["time", "y"]][: n_train + weeks]
    kernel, results = KernelQuantileRegressor(random_state=0), {}

    def run_once(estimator: object, levels: object) -> dict[str, float]:
        model = QuantileForecaster("24h", quantiles=levels, estimator=estimator, max_rows=2000, random_state=0)
        begun = time.process_time()
        model.fit(data[:n_train])
        seconds = time.process_time() - begun
        if len(levels) == 1:
            return {"seconds": seconds}
        past = model.backtest(data, start=n_train)
        return {"seconds": seconds, "loss": float(pinball_loss(past.y, past.quantiles, quantiles=every).mean())}

    for name, estimator in (("TabularQuantileRegressor", None), ("KernelQuantileRegressor", kernel)):
        runs = [(run_once(estimator, [0.5]), run_once(estimator, every)) for _ in range(3)]
        one, many = (min(run[k]["seconds"] for run in runs) for k in (0, 1))
        results[name] = {"one": one, "99": many, "ratio": many / one, "loss": runs[0][1]["loss"]}
    with unittest.mock.patch.object(forecaster, "_thin", lambda levels: levels):
        direct = run_once(kernel, every)
    one = results["KernelQuantileRegressor"]["one"]
    results["each level fitted"] = {"99": direct["seconds"], "ratio": direct["seconds"] / one, "loss": direct["loss"]}
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path(__file__).parents[2] / "shared" / "data")
    parser.add_argument("--price", action="store_true", help="measure what 99 levels cost beside one")
    given = parser.parse_args()
    folder = given.data
    if given.price:
        PRICE.write_text(json.dumps(measure_price(folder), indent=1) + "\n")
        print(PRICE.read_text())
        return
    results = {name: {ahead: run(name, folder, ahead) for ahead in HORIZONS} for name in SERIES}
    FILE.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
