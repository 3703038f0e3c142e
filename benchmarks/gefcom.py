"""`python -m benchmarks.gefcom [--rehearse [YEAR]] [--data FOLDER]`: the load track of GEFCom2014.

Every month of 2011 is forecast, hour by hour at the levels 0.01, ..., 0.99, from what was known at the end of the month
before: neither its load nor its temperature. All choices (`Choices`) were made on rehearsals of 2008 to 2010, which the
option --rehearse repeats, from data until 2010 only. Runs on 2011 are appended to benchmarks/gefcom_runs.jsonl with
their dates; the first one counts.

For each hour of the day, kernel quantile regression with random features learns log load given temperature (now, and
means over the last 3, 24 and the 48 hours before), day of the year, weekday, holidays and a trend. Temperature is
unknown, so it predicts for every scenario of `WeatherScenarios`, past years' weather of the same season, and the
forecast is the mixture. Levels follow the residuals of the last months in part.
"""

import argparse
import json
import time
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import numpy as np
import pandas as pd
from pandas.tseries.holiday import USFederalHolidayCalendar

from quernel import KernelQuantileRegressor
from quernel.features import RandomFeatures
from quernel.forecasting import WeatherScenarios, mixture_quantiles
from quernel.kernels import Gaussian

LEVELS = np.arange(1, 100) / 100
LOG = Path(__file__).with_name("gefcom_runs.jsonl")
MAJOR = ("New Year", "Memorial", "Independence", "July 4", "Labor", "Thanksgiving", "Christmas")
FIRST_LOAD = pd.Timestamp("2005-01-02")  # the first day whose load is complete


@dataclass(frozen=True)
class Choices:
    """Chosen on 2008 to 2010, by the mean loss of the 36 months."""

    components: tuple[int, int, int] = (140, 70, 60)  # random features of temperature; season and weekend; season
    scales: tuple[float, float, float] = (3.0, 2.0, 1.0)  # square roots of the weights of these kernels
    temperature: tuple[float, ...] = (0.7, 0.7, 0.7, 1.2)  # bandwidths, in units of 18 degrees Fahrenheit
    season: tuple[float, ...] = (0.6, 0.6, 0.7, 0.7)  # bandwidths of cos, sin, weekend, temperature of the last day
    trend: float = 0.3  # scale of the linear trend, per year
    alpha: float = 0.002  # ridge weight of the pinball loss
    half_life: float = 3.0  # years after which a day counts half
    levels: tuple[float, ...] = (0.1, 0.3, 0.5, 0.7, 0.9)  # of load given the weather, equally likely values
    shifts: int = 8  # days by which past weather is shifted
    persistence: float = 0.7
    recent: int = 90  # days whose residuals move the level
    share: float = 0.3  # by this share of their mean
    history: int = 7 * 24  # hours of known weather before each scenario


CHOICES = Choices()


def read(folder: Path, last_year: int) -> pd.DataFrame:
    """Load and temperature by the hour that they are of, nothing after `last_year`; whole days from 2001 on."""
    data = pd.read_parquet(folder / "gefcom2014_load.parquet")
    stamps = [name for name in data if "time" in name.lower()]
    data = data.set_index(stamps[0]) if stamps else data
    data.index = pd.to_datetime(data.index) - pd.Timedelta(hours=1)  # the stamp 01:00 is the first hour of a day
    return data.loc[data.index.year <= last_year, ["load", "w_avg"]]


def describe_weather(temperature: np.ndarray) -> np.ndarray:
    """Temperature now, and means over 3 hours, a day, and the two days before, (..., hours, 4), standardised."""
    total = np.cumsum(np.concatenate([np.zeros((*temperature.shape[:-1], 1)), temperature], axis=-1), axis=-1)
    n = temperature.shape[-1]
    features = []
    for newest, oldest in ((0, 0), (0, 2), (0, 23), (24, 71)):
        low = np.clip(np.arange(n) - oldest, 0, n - 1)
        high = np.maximum(np.clip(np.arange(n) - newest + 1, 1, n), low + 1)
        features.append((total[..., high] - total[..., low]) / (high - low))
    return (np.stack(features, axis=-1) - 55) / 18


def describe_days(days: pd.DatetimeIndex) -> dict[str, np.ndarray]:
    """Columns of the calendar of each day: season (n, 2), weekend (n, 1), and indicators that act linearly."""
    named = USFederalHolidayCalendar().holidays("2000-01-01", "2012-12-31", return_name=True)
    great = named.index[[any(word in name for word in MAJOR) for name in named]]
    month, day = days.month.to_numpy(), days.day.to_numpy()
    fixed = [(month == m) & (day == d) for m, d in ((1, 1), (7, 4), (12, 25))]
    major = np.any([days.isin(great), *fixed], axis=0)
    thanksgiving = named.index[["Thanksgiving" in name for name in named]]
    special = [
        major,
        days.isin(named.index) & ~days.isin(great),
        days.isin(thanksgiving + pd.Timedelta(days=1)),
        (month == 12) & (day >= 22),
        (month == 12) & np.isin(day, (24, 31)),
    ]
    angle = 2 * np.pi * days.day_of_year.to_numpy() / 365.25
    season = np.column_stack([np.cos(angle), np.sin(angle)])
    weekday = np.eye(7)[days.day_of_week]
    years = (days - pd.Timestamp("2008-01-01")).days.to_numpy() / 365.25
    weekend = np.clip(weekday[:, 5] + weekday[:, 6] + major, 0, 1)[:, None]
    by_season = (weekday[:, :, None] * season[:, None, :]).reshape(len(days), -1) / 2
    linear = np.column_stack([weekday, np.transpose(special).astype(float), CHOICES.trend * years, by_season])
    return {"season": season, "weekend": weekend, "linear": linear}


class LoadModel:
    """Quantiles of log load at one hour of the day given weather and calendar."""

    def __init__(self) -> None:
        widths = (CHOICES.temperature, CHOICES.season, CHOICES.season[:2])
        self.maps = [
            RandomFeatures(Gaussian(width), count, random_state=k).fit(np.zeros((2, len(width))))
            for k, (width, count) in enumerate(zip(widths, CHOICES.components, strict=True))
        ]

    def features(self, weather: np.ndarray, days: dict[str, np.ndarray]) -> np.ndarray:
        inputs = (weather, np.column_stack([days["season"], days["weekend"], weather[:, 2]]), days["season"])
        waves = [c * f.transform(X) for c, f, X in zip(CHOICES.scales, self.maps, inputs, strict=True)]
        return np.column_stack([*waves, days["linear"], weather])

    def fit(self, weather: np.ndarray, days: dict[str, np.ndarray], load: np.ndarray, age: np.ndarray) -> "LoadModel":
        X, y = self.features(weather, days), np.log(load)
        self.model = KernelQuantileRegressor(
            CHOICES.levels, kernel="linear", alpha=CHOICES.alpha, recalibrate=False, tol=1e-2
        ).fit(X, y, sample_weight=0.5 ** (age / CHOICES.half_life))
        middle = self.model.predict(X[-CHOICES.recent :])[:, len(CHOICES.levels) // 2]
        self.level = CHOICES.share * np.mean(y[-CHOICES.recent :] - middle)
        return self

    def predict(self, weather: np.ndarray, days: dict[str, np.ndarray]) -> np.ndarray:
        return np.exp(self.model.predict(self.features(weather, days)) + self.level)


def forecast(data: pd.DataFrame, origin: pd.Timestamp) -> np.ndarray:
    """Quantiles (hours of the month, 99) from the rows before `origin` alone."""
    known = data[data.index < origin]
    temperature = known["w_avg"].to_numpy()
    days = known.index[::24]
    past = describe_weather(temperature).reshape(len(days), 24, -1)
    load = known["load"].to_numpy().reshape(len(days), 24)
    target = pd.date_range(origin, origin + pd.offsets.MonthEnd(1))
    hours = pd.date_range(origin, periods=24 * len(target), freq="h")
    members = WeatherScenarios(CHOICES.shifts, CHOICES.persistence).fit(temperature, known.index)
    members = members.transform(hours, history=CHOICES.history)[:, :, 0]
    future = describe_weather(members)[:, CHOICES.history :].reshape(len(members), len(target), 24, -1)
    some = days >= FIRST_LOAD
    calendar, age = describe_days(days[some]), np.arange(some.sum())[::-1] / 365.25
    ahead = {name: np.tile(values, (len(members), 1)) for name, values in describe_days(target).items()}
    quantiles = np.empty((len(target), 24, len(LEVELS)))
    for hour in range(24):
        model = LoadModel().fit(past[some, hour], calendar, load[some, hour], age)
        values = model.predict(future[:, :, hour].reshape(-1, future.shape[-1]), ahead)
        quantiles[:, hour] = mixture_quantiles(values.reshape(len(members), len(target), -1), LEVELS)
    return quantiles.reshape(-1, len(LEVELS))


def pinball(y: np.ndarray, quantiles: np.ndarray) -> float:
    residual = y[:, None] - quantiles
    return float(np.maximum(LEVELS * residual, (LEVELS - 1) * residual).mean())


def run(data: pd.DataFrame, year: int) -> dict[str, object]:
    """Forecast and score twelve months; a line is printed for each."""
    begun, scores, benchmarks = time.perf_counter(), [], []
    for month in range(1, 13):
        origin = pd.Timestamp(year, month, 1)
        quantiles = forecast(data, origin)
        hours = pd.date_range(origin, periods=len(quantiles), freq="h")
        y = data["load"].reindex(hours).to_numpy()
        # The benchmark is the same month of the year before, hour by hour, as every quantile.
        before = pd.date_range(origin - pd.DateOffset(years=1), periods=len(quantiles), freq="h")
        naive = data["load"].reindex(before).to_numpy()
        scores.append(pinball(y, quantiles))
        benchmarks.append(pinball(y, np.tile(naive[:, None], len(LEVELS))))
        print(f"{origin:%Y-%m}  {scores[-1]:7.4f}  benchmark {benchmarks[-1]:7.4f}", flush=True)
    weights = np.arange(1, 13)
    rating = float(100 * np.sum(weights * (1 - np.divide(scores, benchmarks))) / weights.sum())
    seconds = time.perf_counter() - begun
    print(f"rating {rating:.1f} %, mean {np.mean(scores):.2f}   ({seconds:.0f} s)")
    return {"rating": rating, "mean": float(np.mean(scores)), "scores": scores, "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rehearse", type=int, nargs="?", const=2010, default=None, metavar="YEAR")
    parser.add_argument("--data", type=Path, default=Path(__file__).parents[2] / "shared" / "data")
    given = parser.parse_args()
    print("All choices were made on rehearsals of 2008 to 2010; no month is looked at before it is forecast.")
    if given.rehearse is not None:
        run(read(given.data, given.rehearse), given.rehearse)
        return
    found = run(read(given.data, 2011), 2011)
    with LOG.open("a") as log:
        log.write(json.dumps({"date": date.today().isoformat()} | found) + "\n")


if __name__ == "__main__":
    main()
