"""Laws of estimators, encoder and time features on examples that hypothesis draws, with its taste for awkward ones."""

import numpy as np
import pandas as pd
import pytest

from quernel import TableEncoder
from quernel.conformal import ConformalQuantileRegressor
from quernel.forecasting import CalendarFeatures, Lags, time_splits
from quernel.metrics import crossing_rate
from support.models import plain_regressor

hypothesis = pytest.importorskip("hypothesis", reason="hypothesis is not installed")
given, st = hypothesis.given, pytest.importorskip("hypothesis.strategies")
# The same examples in every run: a failure is somebody's change, not somebody's luck.
few = hypothesis.settings(max_examples=12, derandomize=True, deadline=None, database=None)

SMALL = {"n_components": 10, "bandwidth": 1.0, "alpha": 1e-2, "random_state": 0}
NEW = np.random.default_rng(0).uniform(-2, 2, (9, 2))


@st.composite
def tables(draw, min_rows=8, max_rows=30):
    """X (n, 2) and y (n,) with ties, zeros, and now and then a constant column or a constant y."""
    n = draw(st.integers(min_rows, max_rows))
    rng = np.random.default_rng(draw(st.integers(0, 9)))
    X = np.round(rng.uniform(-2, 2, (n, 2)), draw(st.integers(0, 3)))
    X[:, draw(st.integers(0, 1))] *= draw(st.sampled_from([0.0, 1.0, 1.0]))
    return X, np.round(rng.standard_normal(n) * draw(st.sampled_from([0.0, 1.0, 3.0])), draw(st.integers(0, 3)))


levels = st.lists(st.sampled_from([0.02, 0.1, 0.3, 0.5, 0.8, 0.97]), min_size=1, max_size=4, unique=True)


# Estimators


@few
@given(tables(), levels, st.sampled_from([0.01, 2.0, 300.0]), st.sampled_from([-40.0, 0.0, 7.0]))
def test_fits_follow_units_and_origin_of_y(rows, quantiles, scale, shift):
    X, y = rows
    model = plain_regressor(quantiles, **SMALL).fit(X, y)
    other = plain_regressor(quantiles, **{**SMALL, "alpha": SMALL["alpha"] / scale}).fit(X, scale * y + shift)
    tolerance = 1e-4 * scale * (1 + np.ptp(y))
    np.testing.assert_allclose(other.predict(NEW), scale * model.predict(NEW) + shift, rtol=0, atol=tolerance)


@few
@given(tables(), levels, st.permutations(range(8)))
def test_fits_do_not_depend_on_the_order_of_rows_nor_on_weights_written_as_rows(rows, quantiles, order):
    X, y = rows
    weight = np.ones(len(y))
    weight[:8] = [0, 1, 2, 3, 1, 1, 2, 1]
    shuffled = np.concatenate([order, np.arange(8, len(y))]).astype(int)
    fits = [
        plain_regressor(quantiles, **SMALL).fit(X, y, sample_weight=weight),
        plain_regressor(quantiles, **SMALL).fit(X[shuffled], y[shuffled], sample_weight=weight[shuffled]),
        plain_regressor(quantiles, **SMALL).fit(*(np.repeat(part, weight.astype(int), axis=0) for part in (X, y))),
    ]
    for other in fits[1:]:
        np.testing.assert_allclose(other.predict(NEW), fits[0].predict(NEW), rtol=0, atol=1e-4 * (1 + np.ptp(y)))


@few
@given(tables(), levels)
def test_levels_are_in_order_certified_and_have_their_share_of_rows_below(rows, quantiles):
    X, y = rows
    model = plain_regressor(quantiles, **SMALL).fit(X, y)
    assert crossing_rate(model.predict(NEW, quantiles=sorted(quantiles))) == 0
    assert model.duality_gap_.max() <= model.tol
    raw = plain_regressor(quantiles, noncrossing=None, **SMALL).fit(X, y).predict(X)
    slack = 1e-4 * (1 + np.ptp(y))
    for column, level in zip(raw.T, quantiles, strict=True):
        assert np.sum(y < column - slack) <= len(y) * level <= np.sum(y <= column + slack)


@few
@given(tables(min_rows=24), st.sampled_from([0.5, 0.75]))
def test_a_conformal_interval_holds_its_share_of_the_calibration_rows(rows, nominal):
    X, y = rows
    half = len(y) // 2
    outer = [(1 - nominal) / 2, (1 + nominal) / 2]
    model = plain_regressor(outer, **SMALL).fit(X[:half], y[:half])
    conformal = ConformalQuantileRegressor(model, nominal, method="prefit").fit(X[half:], y[half:])
    low, high = conformal.predict_interval(X[half:]).T
    slack = 1e-9 * (1 + np.abs(y).max())
    inside = np.sum((low - slack <= y[half:]) & (y[half:] <= high + slack))
    assert inside >= np.ceil(nominal * (len(y) - half + 1))


# Encoder

words = st.sampled_from(["north", "south", "Nord", " south", "é", "", "NA", "7", None])
numbers = st.sampled_from([0.0, -1.5, 3.25, 1e6, 1e-9, np.nan])
dates = st.sampled_from([np.datetime64(one, "us") for one in ("2024-02-29", "2023-12-31T23:59", "1969-07-20", "NaT")])


@st.composite
def frames(draw, n_rows):
    """A column of texts, one of numbers, one of dates and one of truth values, with gaps."""
    column = {"word": words, "number": numbers, "date": dates, "flag": st.booleans()}
    drawn = {name: draw(st.lists(kind, min_size=n_rows, max_size=n_rows)) for name, kind in column.items()}
    return pd.DataFrame(drawn).astype({"word": object, "number": float, "date": "M8[us]", "flag": bool})


@few
@given(frames(24), frames(6))
def test_any_table_is_encoded_as_finite_numbers_row_by_row(training, new):
    """Unseen texts, gaps where there were none and dates before all others are rows like any other."""
    hypothesis.assume(training["word"].notna().any() and training["number"].nunique() > 1)
    hypothesis.assume(training["date"].notna().sum() > 1)
    encoder = TableEncoder().fit(training, np.arange(24.0) % 5)
    encoded = encoder.transform(new)
    assert encoded.shape == (6, len(encoder.get_feature_names_out()))
    assert np.isfinite(encoded).all()
    np.testing.assert_array_equal(np.vstack([encoder.transform(new.iloc[i : i + 1]) for i in range(6)]), encoded)
    np.testing.assert_array_equal(encoder.transform(new[new.columns[::-1]].iloc[::-1]), encoded[::-1])


# Time features


@few
@given(st.lists(numbers, min_size=1, max_size=40), st.integers(1, 5), st.lists(st.integers(0, 30), max_size=3),
       st.lists(st.integers(1, 9), max_size=2))  # fmt: skip
def test_lags_are_shifts_and_do_not_see_the_future(values, horizon, further, rolling):
    series = pd.Series(values, dtype=float)
    lags = [horizon + one for one in further]
    built = Lags(lags, horizon, rolling=rolling).fit(series)
    found = built.transform(series)
    shifts = [series.shift(lag) for lag in lags] + [series.shift(horizon).rolling(w).mean() for w in rolling]
    for column, expected in zip(found.T, shifts, strict=True):
        np.testing.assert_allclose(column, expected, rtol=1e-6, atol=1e-6)
    origin = len(values) // 2
    changed = series.where(series.index < origin, -99.0)
    np.testing.assert_array_equal(built.transform(changed)[: origin + horizon], found[: origin + horizon])
    longer = pd.concat([series, pd.Series([5.0] * horizon)])
    np.testing.assert_allclose(built.transform_future(), built.transform(longer)[len(values) :], rtol=1e-9, atol=1e-6)


@few
@given(st.lists(st.datetimes(min_value=pd.Timestamp("1950-01-01"), max_value=pd.Timestamp("2090-01-01")), min_size=1,
                max_size=20), st.integers(1, 500))  # fmt: skip
def test_harmonics_are_on_circles_and_have_their_periods(times, n_weeks):
    times = np.array(times, dtype="M8[us]")
    waves = CalendarFeatures({"day": 2, "week": 3}).fit_transform(times)
    np.testing.assert_allclose(waves[:, ::2] ** 2 + waves[:, 1::2] ** 2, 1, rtol=1e-9)
    later = CalendarFeatures({"day": 2, "week": 3}).fit_transform(times + n_weeks * np.timedelta64(7, "D"))
    np.testing.assert_allclose(later, waves, rtol=0, atol=1e-6)


@few
@given(st.permutations(range(40)), st.integers(1, 4), st.integers(1, 5), st.integers(0, 3))
def test_windows_of_time_train_on_what_came_before(times, n_splits, horizon, gap):
    times = np.array(times)
    splits = time_splits(times, n_splits, horizon=horizon, gap=gap)
    assert len(splits) == n_splits
    for train, test in splits:
        assert len(test) == horizon
        assert times[train].max() + gap + 1 == times[test].min()
    tested = np.concatenate([test for _, test in splits])
    assert sorted(times[tested]) == list(range(40 - n_splits * horizon, 40))
