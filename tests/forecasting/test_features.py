"""Features of time: what is known at the horizon, and nothing later."""

import datetime

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import clone
from sklearn.model_selection import cross_val_score
from sklearn.tree import DecisionTreeRegressor

from quernel.forecasting import CalendarFeatures, Holidays, Lags, WeatherScenarios, mixture_quantiles, time_splits

HOURS = np.datetime64("2020-01-01T00") + np.arange(3 * 366 * 24).astype("m8[h]")


def walk(n, k=1, seed=0):
    return np.cumsum(np.random.default_rng(seed).standard_normal((n, k)), axis=0)


# Lags


def test_lags_and_means_are_those_of_pandas():
    x = walk(80, 2)
    frame = pd.DataFrame(x)
    expected = pd.concat([frame.shift(3), frame.shift(10), frame.shift(3).rolling(7).mean()], axis=1).to_numpy()
    lags = Lags([3, 10], horizon=3, rolling=[7]).fit(x)
    np.testing.assert_allclose(lags.transform(x), expected, rtol=1e-9)
    assert lags.get_feature_names_out(["a", "b"]).tolist()[-3:] == ["b_lag10", "a_mean7", "b_mean7"]


def test_the_rows_of_the_future_are_those_of_a_longer_series():
    x = walk(100)
    lags = Lags([5, 30], horizon=5, rolling=[12]).fit(x[:80])
    np.testing.assert_allclose(lags.transform_future(), lags.transform(x)[80:85], rtol=1e-9)
    np.testing.assert_allclose(lags.transform_future(2), lags.transform(x)[80:82], rtol=1e-9)
    with pytest.raises(ValueError, match="6 steps are asked for"):
        lags.transform_future(6)


def test_lags_that_look_into_the_future_are_refused():
    with pytest.raises(ValueError, match=r"Lags \[1, 23\] would look into the future.*lags of 24 or more"):
        Lags([1, 23, 24], horizon=24).fit(np.zeros(100))
    with pytest.raises(ValueError, match="Each of rolling must be a positive integer"):
        Lags([24], horizon=24, rolling=[0]).fit(np.zeros(100))


@pytest.mark.parametrize("horizon", [1, 4, 24])
def test_lags_do_not_see_what_comes_after_the_origin(horizon):
    """Leakage: rows up to `horizon` after the origin stay as they are, whatever follows it."""
    x, origin = walk(200), 150
    lags = Lags([horizon, 30], horizon=horizon, rolling=[10]).fit(x)
    changed = x.copy()
    changed[origin:] = np.random.default_rng(1).permutation(changed[origin:])
    before, after = lags.transform(x), lags.transform(changed)
    np.testing.assert_array_equal(before[: origin + horizon], after[: origin + horizon])
    assert not np.array_equal(before[origin + horizon :], after[origin + horizon :], equal_nan=True), "negative control"


# Calendar


def test_harmonics_have_their_periods_and_tell_times_apart():
    waves = CalendarFeatures().fit_transform(HOURS)
    assert waves.shape == (len(HOURS), 18)
    np.testing.assert_allclose(waves[: -7 * 24, 6:12], waves[7 * 24 :, 6:12], atol=1e-9)
    np.testing.assert_allclose(waves[:-24, :6], waves[24:, :6], atol=1e-9)
    assert not np.allclose(waves[:-24, 6:12], waves[24:, 6:12], atol=0.1)
    monday = np.array(["2026-11-16"], dtype="M8[s]")
    np.testing.assert_allclose(CalendarFeatures({"week": 1}).fit_transform(monday), [[1, 0]], atol=1e-12)


@pytest.mark.parametrize("kind", [pd.Series, pd.DatetimeIndex, pl.Series, list, lambda t: t.astype(str)])
def test_dates_of_every_library_give_the_same_features(kind):
    some = HOURS[:50].astype("M8[us]")
    given = some.tolist() if kind is list else kind(some)
    np.testing.assert_allclose(CalendarFeatures().fit_transform(given), CalendarFeatures().fit_transform(some))


@pytest.mark.parametrize(
    ("harmonics", "times", "message"),
    [
        ({"month": 2}, HOURS[:3], "harmonics must give whole numbers for 'day'"),
        ({"day": -1}, HOURS[:3], "harmonics must give whole numbers"),
        (None, ["yesterday"], "holds strings such as 'yesterday', but must hold dates such as 2026-11-16 08:00"),
        (None, [datetime.datetime(2020, 1, 1), None], "1 missing dates"),
    ],
)
def test_calendars_refuse_what_is_no_date(harmonics, times, message):
    with pytest.raises(ValueError, match=message):
        CalendarFeatures(harmonics).transform(times)


def test_holidays_of_a_country():
    pytest.importorskip("holidays")
    days = np.array(["2021-07-03", "2021-07-04", "2021-07-06", "2021-12-24", "2021-12-25"], dtype="M8[D]")
    found = Holidays("US").fit_transform(days)
    assert found[1, 0] == 1
    assert found[4, 0] == 1
    assert found[2, 0] == 0
    assert found[0, 1] == 1
    assert clone(Holidays("CH", "ZH")).fit_transform(days).shape == (5, 3)
    with pytest.raises(ValueError, match="Unknown country"):
        Holidays("XX").fit(days)


def test_without_the_package_holidays_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "holidays", None)
    with pytest.raises(ImportError, match=r"quernel\[holidays\]"):
        Holidays("US").fit(HOURS[:3])


# Scenarios


def test_scenarios_are_the_same_season_of_past_years():
    years, day = np.asarray(HOURS.astype("M8[Y]").astype(int) + 1970.0), np.asarray(HOURS.astype("M8[D]").astype(int))
    n = int(np.searchsorted(HOURS, np.datetime64("2022-07-01")))
    future = HOURS[n : n + 48]
    plain = WeatherScenarios(shifts=1, persistence=0.0).fit(np.column_stack([years, day])[:n], HOURS[:n])
    found = plain.transform(future)
    assert found.shape == (6, 48, 2)  # 2020 and 2021, three shifts each
    assert found[:, 0, 0].tolist() == [2020.0] * 3 + [2021.0] * 3
    dates = found[:, 0, 1].astype(int).astype("M8[D]").astype(str).tolist()
    assert dates == ["2020-06-30", "2020-07-01", "2020-07-02", "2021-06-30", "2021-07-01", "2021-07-02"]
    assert WeatherScenarios(shifts=1, recent_years=1).fit(years[:n], HOURS[:n]).transform(future).shape == (3, 48, 1)


def test_scenarios_begin_at_the_weather_of_the_origin():
    weather, n = 10 + walk(len(HOURS))[:, 0], 20_000
    scenarios = WeatherScenarios(shifts=2, persistence=0.5).fit(weather[:n], HOURS[:n])
    found = scenarios.transform(HOURS[n : n + 10 * 24], history=24)
    np.testing.assert_array_equal(found[:, :24, 0], np.tile(weather[n - 24 : n], (len(found), 1)))
    free = WeatherScenarios(shifts=2, persistence=0.0).fit(weather[:n], HOURS[:n]).transform(HOURS[n : n + 10 * 24])
    correction = found[:, 24:, 0] - free[:, :, 0]
    np.testing.assert_allclose(correction[:, 24:48], correction[:, :24] / 2, rtol=1e-9)


def test_scenarios_see_nothing_after_the_origin():
    """Leakage: later weather changes no scenario, since only what is fitted is known."""
    weather, n = walk(len(HOURS))[:, 0], 20_000
    future = HOURS[n : n + 24]
    scenarios = WeatherScenarios().fit(weather[:n], HOURS[:n]).transform(future)
    assert np.isin(np.round(WeatherScenarios(persistence=0.0).fit(weather[:n], HOURS[:n]).transform(future), 9),
                   np.round(weather[:n], 9)).all()  # fmt: skip
    assert scenarios.shape[1:] == (24, 1)
    with pytest.raises(ValueError, match="times must follow the last time of fit"):
        WeatherScenarios().fit(weather[:n], HOURS[:n]).transform(HOURS[n + 1 : n + 24])
    with pytest.raises(ValueError, match="no past year of weather"):
        WeatherScenarios().fit(weather[:100], HOURS[:100]).transform(HOURS[100:124])


def test_quantiles_of_a_mixture_are_those_of_all_values():
    values = np.random.default_rng(0).normal(size=(40, 3, 25)) + np.arange(40)[:, None, None]
    levels = np.linspace(0.05, 0.95, 19)
    pooled = np.moveaxis(values, 1, 0).reshape(3, -1)
    expected = np.quantile(pooled, levels, axis=1, method="hazen").T
    np.testing.assert_allclose(mixture_quantiles(values, levels), expected, rtol=1e-9)
    weights = np.where(np.arange(40) < 20, 2.0, 0.0)
    np.testing.assert_allclose(
        mixture_quantiles(values, levels, weights)[:, 5], mixture_quantiles(values[:20], levels)[:, 5], rtol=1e-9
    )
    assert np.all(np.diff(mixture_quantiles(values, levels), axis=1) >= 0)


# Splits


def test_time_splits_roll_along_with_gap_and_window():
    expanding = time_splits(np.arange(20), 3, horizon=4)
    assert [test.tolist() for _, test in expanding] == [[8, 9, 10, 11], [12, 13, 14, 15], [16, 17, 18, 19]]
    assert [len(train) for train, _ in expanding] == [8, 12, 16]
    sliding = time_splits(np.arange(20), 3, horizon=4, gap=2, window=5)
    assert sliding[0][0].tolist() == [1, 2, 3, 4, 5]
    assert {len(train) for train, _ in sliding} == {5}


def test_time_splits_go_by_the_clock_whatever_the_order():
    times = np.repeat(HOURS[: 24 * 100], 2)  # two series
    order = np.random.default_rng(0).permutation(len(times))
    for train, test in time_splits(pd.Series(times[order]), 4, horizon="7d", gap="1d", window="30d"):
        assert times[order][train].max() < times[order][test].min() - np.timedelta64(24, "h")
        assert len(test) == 2 * 7 * 24
        assert len(train) == 2 * 30 * 24


def test_time_splits_serve_scikit_learn_and_our_search():
    from quernel import KernelQuantileRegressorCV

    x = walk(120)
    splits = time_splits(np.arange(120), 3, horizon=20)
    assert len(cross_val_score(DecisionTreeRegressor(), x, x[:, 0], cv=splits)) == 3
    model = KernelQuantileRegressorCV(cv=splits, alphas=[1e-4, 1e-2], n_components=20, random_state=0)
    assert model.fit(x, x[:, 0]).n_splits_ == 3


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"horizon": 30}, "5 splits of 30 with a gap of 0 leave no rows to train on"),
        ({"horizon": "soon"}, "horizon must be a number of steps, or a duration"),
        ({"horizon": 0}, "horizon and window must be positive"),
        ({"horizon": 2, "gap": -1}, "gap 0 or more"),
        ({"horizon": 2, "n_splits": 0}, "n_splits must be a positive integer"),
    ],
)
def test_time_splits_that_are_not_possible_are_refused(kwargs, message):
    with pytest.raises(ValueError, match=message):
        time_splits(np.arange(100), **kwargs)
