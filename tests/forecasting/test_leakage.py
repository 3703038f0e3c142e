"""Leakage: what is forecast at the origin depends on nothing after it, for every public name of `quernel.forecasting`.

Targets and weather after the origin are shuffled; forecasts stay as they are to the last bit. Shuffled before the
origin, they change, but for functions of dates alone: the negative control.
"""

import importlib.util

import numpy as np
import pandas as pd
import pytest

from quernel import KernelQuantileRegressor, forecasting
from quernel.forecasting import (
    AdaptiveCalibrator,
    AdaptiveConformalRegressor,
    CalendarFeatures,
    Holidays,
    Lags,
    QuantileForecaster,
    WeatherScenarios,
    mixture_quantiles,
    time_splits,
)
from quernel.forecasting.adaptive import METHODS

ORIGIN, HORIZON = 800, 20
DAYS = np.datetime64("2021-01-01") + np.arange(1000)
SMOOTH = KernelQuantileRegressor([0.1, 0.5, 0.9], bandwidth="auto", n_components=20, alpha=1e-3, random_state=0)


def forecast(y, weather):
    """Forecasts with missing targets on either side of the origin, the weather being unknown in the future."""
    table = pd.DataFrame({"time": DAYS, "y": y, "weather": weather})
    table.loc[[ORIGIN - 3, ORIGIN - 1, ORIGIN + 2], "y"] = np.nan
    model = QuantileForecaster(HORIZON, target="y", estimator=SMOOTH, random_state=0).fit(table[:ORIGIN])
    past = model.backtest(table, start=ORIGIN, every=7)
    return past.quantiles[past.origins == ORIGIN]


def scenarios(y, weather):
    members = WeatherScenarios(shifts=2).fit(weather[:ORIGIN], DAYS[:ORIGIN]).transform(DAYS[ORIGIN : ORIGIN + HORIZON])
    return mixture_quantiles(members[:, :, 0], [0.1, 0.9])


def calibrate(method):
    """Intervals of the days after the origin, by a calibrator that goes through all days, as they were issued."""

    def intervals(y, weather):
        low, high = weather - 1, weather + 1
        calibrator = AdaptiveCalibrator(0.8, method=method, window=100).fit(low[:700], high[:700], y[:700])
        issued = []
        for k in range(700, len(y), HORIZON):
            part = slice(k, k + HORIZON)
            issued.append(calibrator.adjust(np.zeros(HORIZON), np.ones(HORIZON)))
            calibrator.update(low[part], high[part], y[part])
        return np.concatenate(issued)[: ORIGIN + HORIZON - 700]

    return intervals


def conformal(y, weather):
    X = np.column_stack([np.r_[0, y[:-1]], np.sin(np.arange(len(y)))])
    model = AdaptiveConformalRegressor(SMOOTH, 0.8).fit(X[:700], y[:700]).update(X[700:ORIGIN], y[700:ORIGIN])
    issued = model.predict_interval(X[ORIGIN : ORIGIN + 1])
    model.update(X[ORIGIN:], y[ORIGIN:])
    return issued


CASES = {
    "Lags": lambda y, w: Lags([20, 30], HORIZON, rolling=[7]).fit(y).transform(y)[: ORIGIN + HORIZON],
    "QuantileForecaster": forecast,
    "WeatherScenarios": scenarios,
    "AdaptiveConformalRegressor": conformal,
    **{f"AdaptiveCalibrator {method}": calibrate(method) for method in METHODS},
}
# Functions of dates, of which all are known.
OF_DATES = {
    "CalendarFeatures": lambda times: CalendarFeatures().fit_transform(times),
    "Holidays": lambda times: Holidays("US").fit_transform(times),
}


@pytest.mark.parametrize("name", CASES)
def test_nothing_after_the_origin_changes_what_is_forecast_at_it(name):
    rng = np.random.default_rng(0)
    season = np.sin(2 * np.pi * np.arange(1000) / 7)
    y, weather = 9 + season + 0.3 * rng.standard_normal(1000), 9 + 0.2 * rng.standard_normal(1000)

    def shuffled(part):
        changed = y.copy(), weather.copy()
        for one in changed:
            one[part] = rng.permutation(one[part]) + 0.5
        return CASES[name](*changed)

    expected = CASES[name](y, weather)
    assert np.isfinite(expected[-1]).all()
    np.testing.assert_array_equal(shuffled(slice(ORIGIN, None)), expected)
    assert not np.array_equal(shuffled(slice(0, ORIGIN)), expected, equal_nan=True), "negative control"


@pytest.mark.parametrize("name", OF_DATES)
def test_features_of_a_date_are_those_of_the_date_alone(name):
    if name == "Holidays" and importlib.util.find_spec("holidays") is None:
        pytest.skip("the package holidays is not installed")
    alone = np.concatenate([OF_DATES[name](DAYS[k : k + 1]) for k in range(180, 190)])
    np.testing.assert_array_equal(OF_DATES[name](DAYS)[180:190], alone)
    assert len(np.unique(alone, axis=0)) > 1, "negative control"


def test_rows_of_a_split_are_later_than_those_that_it_trains_on():
    order = np.random.default_rng(0).permutation(1000)
    for train, test in time_splits(DAYS[order], 4, horizon=HORIZON, gap=3):
        assert order[train].max() + 3 < order[test].min()


def test_every_public_name_is_tested_here():
    tested = {name.split()[0] for name in (*CASES, *OF_DATES)} | {"time_splits"}
    within = {"Backtest": "QuantileForecaster", "mixture_quantiles": "WeatherScenarios"}  # by the case of the other
    assert set(forecasting.__all__) == tested | set(within)
    assert set(within.values()) <= tested
