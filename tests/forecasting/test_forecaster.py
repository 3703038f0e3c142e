"""The forecaster: honest origins, tables of every kind, clear refusals."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import BaseEstimator

import quernel
from quernel import KernelQuantileRegressor, QuantileForecaster
from quernel.metrics import pinball_loss

LEVELS = np.arange(1, 100) / 100
SMOOTH = KernelQuantileRegressor(bandwidth="auto", n_components=60, alpha=1e-3, random_state=0)


def hourly(n=24 * 90, seed=0, trend=0.0):
    """A series with a daily and a weekly pattern, and a column that explains part of it."""
    rng = np.random.default_rng(seed)
    time = np.datetime64("2021-03-01T00", "us") + np.arange(n).astype("m8[h]")
    t = np.arange(n)
    price = rng.standard_normal(n)
    load = 50 + 10 * np.sin(2 * np.pi * t / 24) + 4 * ((t // 24) % 7 >= 5) + 3 * price + trend * t
    return pd.DataFrame({"time": time, "load": load + rng.standard_normal(n), "price": price})


def forecaster(horizon="24h", **kwargs):
    return QuantileForecaster(horizon, **{"target": "load", "estimator": SMOOTH, "random_state": 0} | kwargs)


def test_forecasts_beat_the_naive_ones_and_follow_a_trend():
    data = hourly(trend=0.02)[["time", "load"]]
    train, test = data[:-24], data[-24:]
    found = forecaster(quantiles=[0.1, 0.5, 0.9]).fit(train).predict()
    assert found["time"].to_numpy().tolist() == test["time"].to_numpy().tolist()
    assert list(found) == ["time", "q0.1", "q0.5", "q0.9"]
    y, curves = test["load"].to_numpy(), found[["q0.1", "q0.5", "q0.9"]].to_numpy()
    naive = np.quantile(train["load"], [0.1, 0.5, 0.9])[None] + np.zeros((24, 1))
    ours, others = (pinball_loss(y, one, quantiles=[0.1, 0.5, 0.9]).mean() for one in (curves, naive))
    assert ours < 0.4 * others


def test_ninety_nine_levels_do_not_cross_with_the_default_estimator():
    few = hourly(24 * 30)[["time", "load"]]
    model = QuantileForecaster("6h", target="load", random_state=0, max_rows=200).fit(few)
    curves = model.predict(quantiles=LEVELS).drop(columns="time").to_numpy()
    assert curves.shape == (6, 99)
    assert np.all(np.diff(curves, axis=1) >= 0)
    assert curves[:, -1].min() > curves[:, 0].min()


def test_a_kernel_is_fitted_at_some_of_many_levels(monkeypatch):
    """99 levels took 29 times as long as one; of a few, each is fitted."""
    data = hourly(24 * 40)[["time", "load"]]
    model = forecaster(quantiles=LEVELS[::-1]).fit(data[:-24])
    assert [len(one.quantiles_) for one in model.models_] == [7, 7]
    assert {0.01, 0.5, 0.99} <= set(np.round(model.models_[0].quantiles_, 12))
    curves = model.predict().drop(columns="time").to_numpy()
    assert curves.shape == (24, 99)
    assert np.all(np.diff(curves, axis=1) <= 0)
    monkeypatch.setattr("quernel.forecasting.forecaster._thin", lambda levels: levels[::7])
    other = forecaster(quantiles=LEVELS).fit(data[:-24]).predict().drop(columns="time").to_numpy()
    y = data["load"].to_numpy()[-24:]
    ours, fitted = (pinball_loss(y, one, quantiles=LEVELS).mean() for one in (curves[:, ::-1], other))
    assert ours < 1.05 * fitted
    monkeypatch.undo()
    few = forecaster(quantiles=LEVELS[::8]).fit(data).models_[0]
    np.testing.assert_array_equal(few.quantiles_, LEVELS[::8])


@pytest.mark.parametrize("kind", ["pandas", "polars", "array"])
def test_a_forecaster_is_saved_with_its_series(tmp_path, kind):
    data = hourly(24 * 30)
    one = data["load"].to_numpy() if kind == "array" else data[["time", "load"]]
    kwargs, future = ({"season": 24, "target": None}, None) if kind == "array" else ({}, None)
    if kind == "polars":  # several series, and a column that is known in the future
        one = pl.from_pandas(pd.concat([data.assign(meter="a"), data.assign(meter="b", load=-data["load"])]))
        kwargs = {"id": "meter", "known": ["price"]}
        ahead = data[:24].assign(time=data["time"] + pd.Timedelta(days=30))[["time", "price"]]
        future = pl.from_pandas(pd.concat([ahead.assign(meter=name) for name in "ab"]))
    model = forecaster(24, **kwargs).fit(one)
    quernel.save(model, tmp_path / "m")
    loaded = quernel.load(tmp_path / "m")
    before, after = model.predict(future, LEVELS[4::10]), loaded.predict(future, LEVELS[4::10])
    assert type(after) is type(before)
    np.testing.assert_array_equal(np.asarray(after), np.asarray(before))
    again = loaded.fit(one).predict(future, LEVELS[4::10])
    np.testing.assert_array_equal(np.asarray(again), np.asarray(before))


def test_known_columns_help_and_are_asked_for():
    data = hourly()
    train, test = data[:-24], data[-24:]
    linear = KernelQuantileRegressor(kernel="linear", alpha=1e-6)
    model = forecaster(known=["price"], estimator=linear).fit(train)
    with pytest.raises(ValueError, match=r"Future values of \['price'\] are needed"):
        model.predict()
    given = model.predict(test[["time", "price"]], quantiles=0.5)["q0.5"].to_numpy()
    without = forecaster(estimator=linear).fit(train).predict(quantiles=0.5)["q0.5"].to_numpy()
    y = test["load"].to_numpy()
    assert np.abs(y - given).mean() < 0.6 * np.abs(y - without).mean()


@pytest.mark.parametrize("known", [[], ["price"]])
@pytest.mark.parametrize("every", ["24h", "7h"])
def test_nothing_after_the_origin_changes_a_forecast(known, every):
    """Leakage: targets, and columns that are not known in the future, are shuffled after the origin."""
    data, origin = hourly(), 24 * 80
    model = forecaster(known=known).fit(data[:origin])
    before = model.backtest(data, start=origin, every=every)
    changed = data.copy()
    rng = np.random.default_rng(1)
    for name in {"load", "price"} - set(known):
        changed.loc[origin:, name] = rng.permutation(changed.loc[origin:, name]) + 7
    after = model.backtest(changed, start=origin, every=every)
    first = before.origins == origin
    assert first.sum() == 24
    np.testing.assert_array_equal(before.quantiles[first], after.quantiles[first])
    assert not np.allclose(before.quantiles[~first], after.quantiles[~first]), "negative control: later origins see it"
    ahead = data[origin : origin + 24][["time", *known]]
    direct = model.predict(ahead if known else None).filter(like="q").to_numpy()
    np.testing.assert_allclose(before.quantiles[first], direct, rtol=1e-9)


@pytest.mark.parametrize("kind", [str, np.datetime64, pd.Timestamp])
def test_backtests_begin_at_a_date_as_at_its_row(kind):
    data, origin = hourly()[["time", "load"]], 24 * 80
    model = forecaster().fit(data[:origin])
    date = kind(data["time"].iloc[origin])
    np.testing.assert_array_equal(
        model.backtest(data, start=date).quantiles, model.backtest(data, start=origin).quantiles
    )
    with pytest.raises(ValueError, match="must lie within the series"):
        model.backtest(data, start="2031-01-01")


def test_a_forecast_that_peeks_is_found_out():
    """Negative control: a column of tomorrow's target, declared as known, changes the forecasts when it is shuffled."""
    data, origin = hourly(), 24 * 80
    data["peek"] = data["load"]
    model = forecaster(known=["price", "peek"]).fit(data[:origin])
    changed = data.copy()
    changed.loc[origin:, "peek"] = np.random.default_rng(1).permutation(changed.loc[origin:, "peek"])
    assert not np.allclose(
        model.backtest(data, start=origin).quantiles[:24], model.backtest(changed, start=origin).quantiles[:24]
    )


def test_tables_of_pandas_and_polars_and_arrays_agree():
    data = hourly()[["time", "load"]]
    found = forecaster().fit(data).predict()
    other = forecaster().fit(pl.from_pandas(data).sample(fraction=1.0, shuffle=True, seed=0)).predict()
    assert isinstance(other, pl.DataFrame)
    np.testing.assert_allclose(found.drop(columns="time"), other.drop("time").to_numpy())
    dated = forecaster().fit(data.set_index("time")["load"]).predict()
    np.testing.assert_allclose(found.drop(columns="time"), dated)
    numbered = forecaster(24, season=24, target=None).fit(data["load"].to_numpy()).predict(6, quantiles=0.5)
    assert numbered.shape == (6,)


def test_several_series_by_an_id_column():
    one, two = hourly(24 * 40), hourly(24 * 40, seed=1)
    two["load"] = 10 * two["load"]
    both = pd.concat([one.assign(meter="a"), two.assign(meter="b")]).drop(columns="price")
    found = forecaster(id="meter").fit(both).predict(quantiles=[0.5])
    assert found["meter"].tolist() == ["a"] * 24 + ["b"] * 24
    means = found.groupby("meter")["q0.5"].mean()
    assert 40 < means["a"] < 65
    assert 400 < means["b"] < 650


@pytest.mark.parametrize(("ids", "kind"), [((7, -12), "i"), (("007", "12"), "O"), ((0.5, 1.5), "O")])
def test_ids_that_are_whole_numbers_stay_numbers(ids, kind):
    """So that forecasts can be joined to other tables; they were text."""
    both = pd.concat([hourly(24 * 20, seed=k)[["time", "load"]].assign(meter=one) for k, one in enumerate(ids)])
    found = forecaster("3h", id="meter").fit(both).predict()["meter"]
    assert found.to_numpy(dtype=object if kind == "O" else None).dtype.kind == kind
    assert found.tolist() == ([ids[0]] * 3 + [ids[1]] * 3 if kind == "i" else [str(one) for one in np.repeat(ids, 3)])


def test_missing_targets_are_left_out_and_do_not_spread():
    data = hourly()[["time", "load"]]
    data.loc[500:520, "load"] = np.nan
    data.loc[len(data) - 3 :, "load"] = np.nan
    found = forecaster().fit(data).predict()
    assert np.isfinite(found.drop(columns="time")).all(axis=None)


def test_patterns_grow_with_the_level_where_no_value_is_negative(monkeypatch):
    rng, t = np.random.default_rng(0), np.arange(24 * 100)
    growth = np.exp(t / 1500)
    y = growth * (5 + 4 * np.sin(2 * np.pi * t / 24) + 0.1 * rng.standard_normal(len(t)))

    def amplitude():
        found = forecaster(24, season=24, target=None).fit(y[:-24]).predict(quantiles=0.5)
        return np.ptp(found) / np.ptp(y[-24:])

    assert abs(amplitude() - 1) < 0.08
    monkeypatch.setattr(QuantileForecaster, "_find_level_floor", lambda self, series: None)
    assert amplitude() < 0.92, "negative control: as differences they do not"


@pytest.mark.parametrize(("change", "ratios"), [(0.0, True), (-55.0, False)])
def test_negative_values_are_no_ratios(change, ratios):
    y = hourly(24 * 40)["load"].to_numpy() + change
    model = forecaster(24, season=24, target=None).fit(y)
    assert (model.level_floor_ is not None) == ratios
    assert np.abs(model.predict()[:, 1] - y[-24:]).mean() < 6


class Recorder(BaseEstimator):
    """A model that keeps what it is given."""

    def fit(self, X, y, groups=None):
        self.groups = groups
        return self

    def predict(self, X, quantiles):
        return np.zeros((len(X), len(quantiles)))


def test_folds_of_a_model_are_blocks_of_time():
    """Random folds put neighbours on either side: intervals of a demand series covered 65 % instead of 80."""
    model = forecaster("14d", estimator=Recorder()).fit(hourly(24 * 120)[["time", "load"]])
    for end, one in zip(model.group_ends_, model.models_, strict=True):
        assert np.all(np.diff(one.groups) >= 0)
        assert np.unique(one.groups, return_counts=True)[1][1:-1].min() >= max(7 * 24, end)
    assert forecaster().fit(hourly()[["time", "load"]]).models_  # a kernel takes no groups


def test_groups_of_steps_have_models_of_their_own():
    model = forecaster("14d").fit(hourly()[["time", "load"]])
    assert model.group_ends_ == [6, 24, 168, 336]
    assert all(min(model._lags(end)) >= end for end in model.group_ends_)
    assert len(model.predict()) == 336


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda d: d.drop(index=100),
            r"is not regular: 1 of its steps differ from 3600 s, the first after 2021-03-05 03",
        ),
        (lambda d: pd.concat([d, d[100:101]]), "more than one row at 2021-03-05 04:00:00"),
        (lambda d: d.rename(columns={"time": "when"}), r"There is no time column 'time'.*Give time="),
        (lambda d: d.assign(time="soon"), "must hold dates such as"),
        (lambda d: d[:60], r"The shortest series has 60 rows.*Shorten the horizon"),
        (lambda d: d.assign(load="much"), "Column 'load' must hold numbers; it holds text"),
        (lambda d: d.assign(load=np.inf), "infinite values"),
        (lambda d: d.assign(meter=np.where(d.index < 9, None, "a")), "id column 'meter' has 9 missing values"),
        (lambda d: d.assign(price=np.nan), "Column 'price' has 2,160 missing"),
    ],
)
def test_tables_that_are_no_series_are_refused(change, message):
    data = change(hourly())
    with pytest.raises(ValueError, match=message):
        forecaster(id="meter" if "meter" in data else None).fit(data)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"horizon": "90min"}, "is 1.5 steps of the series"),
        ({"horizon": -1}, "must be a whole number, at least 1"),
        ({"lags": [1, 2]}, r"Each of lags=\[1, 2\] would look into the future"),
        ({"known": ["wind"]}, "There is no column 'wind', which is said to be known"),
        ({"target": None}, "Which column is the target"),
        ({"quantiles": [0.1, 1.2]}, "strictly between 0 and 1"),
    ],
)
def test_parameters_that_make_no_sense_are_refused(kwargs, message):
    with pytest.raises(ValueError, match=message):
        forecaster(**kwargs).fit(hourly())


def test_futures_that_do_not_follow_are_refused():
    data = hourly()
    model = forecaster(known=["price"]).fit(data[:-48])
    with pytest.raises(ValueError, match="must follow 2021-05-27 23:00:00, the last time known"):
        model.predict(data[-24:])
    with pytest.raises(ValueError, match="48 steps are asked for"):
        model.predict(data[-48:])
    assert len(model.predict(data[-48:-36])) == 12


def test_the_forecaster_is_public():
    assert quernel.QuantileForecaster is QuantileForecaster
    assert "forecasting" in dir(quernel)
