"""Where the curves of the fans are computed."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from quernel import KernelQuantileRegressor
from quernel.conformal.table_model import as_table_model
from quernel.kernels import Gaussian
from quernel.plots import QuantileFanDisplay
from quernel.plots.inputs import GRID, date_grid
from quernel.report import charts
from quernel.report.effects import compute_fans
from support.report_page import LEVELS, fitted

DAY, YEAR = 86_400.0, 365.2425 * 86_400


def days(n):
    return DAY * np.arange(n)


@pytest.mark.parametrize("years", [3, 21, 60])
@pytest.mark.parametrize("n_points", [60, 200])
def test_a_yearly_cycle_is_seen_as_one(years, n_points):
    seconds = days(365 * years)
    grid = date_grid(seconds, n_points)
    assert len(grid) <= 401
    assert np.ptp(np.diff(grid)) == 0
    a_year = YEAR / (grid[1] - grid[0])
    assert a_year >= (12 if years <= 30 else 6)
    # The picture joins the points by lines: these are near the wave.
    wave = np.cos(2 * np.pi * seconds / YEAR)
    inside = (seconds >= grid[0]) & (seconds <= grid[-1])
    drawn = np.interp(seconds, grid, np.cos(2 * np.pi * grid / YEAR))
    assert np.abs(drawn - wave)[inside].max() < 6 / a_year**2


def test_centuries_are_drawn_at_one_season_and_one_day_of_the_week():
    seconds = days(365 * 300)
    grid = date_grid(seconds, 60)
    assert 30 < len(grid) <= 61
    assert np.ptp(grid % (7 * DAY)) == 0
    from_typical = (grid - np.median(seconds)) / YEAR
    assert np.abs(from_typical - from_typical.round()).max() * 365.2425 < 7
    low, high = np.quantile(seconds, GRID.ends)
    assert low <= grid[0] < grid[-1] <= high


def test_dates_without_a_yearly_cycle_take_no_more_points():
    assert len(date_grid(days(21 * 365), 60, yearly=False)) <= 61


def test_numbers_most_of_which_are_a_few_are_categories_with_their_rows_scattered_sideways():
    rng = np.random.default_rng(0)
    columns = {
        "few": rng.integers(1, 6, 200) * 2.5,
        "mostly": np.where(np.arange(200) < 190, rng.integers(1, 4, 200), np.arange(200) + 0.5),
        "zeros": np.where(np.arange(200) < 120, 0.0, rng.random(200)),  # and a continuous part
        "many": rng.random(200),
        "word": rng.choice(["a", "b"], 200),
    }
    table = pa.table(columns | {"y": rng.random(200)})
    model, training = fitted(table, "y")
    few, mostly, zeros, many, word = compute_fans(model, table, training.rows.y, list(columns))
    assert [fan.kind for fan in (few, mostly, zeros, many, word)] == [
        "category",
        "category",
        "number",
        "number",
        "category",
    ]
    assert few.categories == ("2.5", "5", "7.5", "10", "12.5")
    assert (mostly.categories[:3], mostly.total) == (("1", "2", "3"), 13)
    assert len(np.unique(few.x)) == 200
    assert sorted(2.5 * (1 + few.x.round())) == sorted(columns["few"])
    drawn = charts.draw_fan(few, np.array(LEVELS), "y")
    assert drawn.count("h.1") == 200


def test_one_far_value_does_not_squeeze_the_axis():
    rng = np.random.default_rng(0)
    x = np.where(np.arange(1000) < 5, 400.0, rng.random(1000))
    table = pa.table({"x": x, "y": rng.random(1000)})
    model, training = fitted(table, "y")
    (fan,) = compute_fans(model, table, training.rows.y, ["x"])
    np.testing.assert_array_less([-1e-9, 0.9], fan.grid[[0, -1]])
    np.testing.assert_array_less(fan.grid[[0, -1]], [0.02, 1.0])
    for end in (x < fan.grid[0], x > fan.grid[-1]):
        assert 0 < end.mean() <= 0.02, "as the page says"


def test_a_few_whole_numbers_are_categories_in_their_order():
    rng = np.random.default_rng(0)
    season = rng.integers(1, 5, 300) * 5.0
    table = pa.table({"season": np.where(np.arange(300) % 10, season, np.nan), "x": rng.random(300), "y": season})
    model, training = fitted(table, "y")
    (fan,) = compute_fans(model, table, training.rows.y, ["season"])
    assert (fan.kind, fan.categories) == ("category", ("5", "10", "15", "20"))
    assert np.all(np.diff(fan.curves[:, 1]) > 3), "each is the mean of its own rows"


def test_the_trend_of_many_years_follows_the_rows():
    rng = np.random.default_rng(0)
    at = np.sort(rng.choice(21 * 365, 1500, replace=False))
    y = np.where(at > 10 * 365, 5.0, 0.0) + 0.1 * rng.normal(size=len(at))
    table = pa.table({"day": pa.array(at.astype(np.int32)).cast(pa.date32()), "y": y})
    model, training = fitted(table, "y")
    *_, trend = compute_fans(model, table, training.rows.y, ["day"])
    assert (trend.name, trend.column, trend.kind) == ("day: trend", "day", "date")
    early, late = trend.grid < 5 * YEAR, trend.grid > 15 * YEAR
    assert np.abs(trend.curves[early, 1]).max() < 1
    assert np.abs(trend.curves[late, 1] - 5).max() < 1


def test_rare_and_missing_categories_are_averages_of_their_rows():
    rng = np.random.default_rng(0)
    word = rng.choice(["a", "b", None], 300, p=[0.6, 0.3, 0.1]).astype(object)
    word[:8] = [f"rare {k}" for k in range(8)]
    effect = {"a": 0.0, "b": 5.0, None: 10.0}
    y = np.array([effect.get(one, -5.0) for one in word]) + rng.random(300)
    table = pa.table({"word": pa.array(word), "x": rng.random(300), "y": y})
    model, training = fitted(table, "y")
    (fan,) = compute_fans(model, table, training.rows.y, ["word"])
    assert fan.categories == ("a", "b", "(missing)", "(other)")
    few = table.filter(~np.isin(np.arange(300), np.arange(3, 8)))
    (few,) = compute_fans(model, few, np.delete(y, np.arange(3, 8)), ["word"])
    assert few.categories == ("a", "b", "(missing)"), "other rows are too few for an average"
    predicted = model.predict(table)
    rows = [word == "a", word == "b", [one is None for one in word], np.arange(300) < 8]
    np.testing.assert_allclose(fan.curves, [predicted[one].mean(axis=0) for one in rows])
    assert np.ptp(fan.curves[:, 1]) > 5  # so that the line above could fail
    assert (np.round(fan.x) == 3).sum() == 8  # all rare ones are drawn, in one place


def along(model, table, y, name, **options):
    return QuantileFanDisplay.compute(model, table, y, name, **options)


def test_a_column_that_goes_along_with_another_moves_with_it():
    """The price is that of the size; the weight tells it as well, and is flat if the size stands still."""
    rng = np.random.default_rng(0)
    size = rng.uniform(1, 10, 400)
    weight = size + 0.05 * rng.standard_normal(400)
    price = 1 + size + 0.1 * rng.standard_normal(400)
    X = pd.DataFrame({"size": size, "weight": weight})
    model = KernelQuantileRegressor(LEVELS, kernel=Gaussian((2.0, 40.0)), n_components=60, random_state=0).fit(X, price)
    whole, table = as_table_model(model, X, "price"), pa.table({"size": size, "weight": weight})
    (fan,) = compute_fans(whole, table, price, ["weight"])
    still = along(whole, table, price, "weight")
    assert np.ptp(still.curves[:, 1]) < 0.2 * np.ptp(price)
    inside = (fan.grid > 2) & (fan.grid < 9)
    np.testing.assert_allclose(fan.curves[inside, 1], 1 + fan.grid[inside], atol=0.5)
    moved = along(whole, table, price, "weight", others="similar", grid=fan.grid)
    np.testing.assert_allclose(moved.curves, fan.curves)


def test_no_prediction_is_for_a_combination_that_does_not_occur():
    """Dew point is never above temperature: with one of the two standing still it would be, and y negative."""
    rng = np.random.default_rng(0)
    temperature = rng.uniform(-10, 30, 300)
    dew = temperature - rng.uniform(0, 3, 300)
    y = 1 + 10 * (temperature - dew) + rng.random(300)
    X = pd.DataFrame({"temperature": temperature, "dew": dew})
    model = KernelQuantileRegressor(LEVELS, kernel="linear").fit(X, y)
    whole, table = as_table_model(model, X, "y"), pa.table({"temperature": temperature, "dew": dew})
    (fan,) = compute_fans(whole, table, y, ["dew"])
    assert along(whole, table, y, "dew").curves.min() < -50
    assert fan.curves.min() > 0
    assert np.all(np.diff(fan.curves, axis=1) >= 0)
    with pytest.raises(ValueError, match="No row is near"):
        along(whole, table, y, "dew", others="similar", grid=[1e6])


def test_a_date_shows_hour_weekday_month_and_trend_where_they_vary():
    rng = np.random.default_rng(0)
    seconds = rng.integers(0, 3 * 365 * 24, 900) * 3600.0
    hour, weekday = seconds % DAY / 3600, (seconds // DAY + 3) % 7
    y = 10.0 * (weekday >= 5) + np.sin(2 * np.pi * hour / 24) + 0.1 * rng.standard_normal(900)
    table = pa.table({"when": pa.array(seconds.astype("int64"), pa.timestamp("s")), "y": y})
    model, training = fitted(table, "y")
    hours, weekdays, months, trend = compute_fans(model, table, training.rows.y, ["when"])
    assert [fan.name for fan in (hours, weekdays, months, trend)] == [
        f"when: {part}" for part in ("hour of the day", "weekday", "month", "trend")
    ]
    assert hours.grid.tolist() == list(range(24))
    predicted = model.predict(table)
    np.testing.assert_allclose(hours.curves, [predicted[hour == h].mean(axis=0) for h in range(24)])
    assert weekdays.categories == ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
    np.testing.assert_allclose(weekdays.curves, [predicted[weekday == d].mean(axis=0) for d in range(7)])
    assert weekdays.curves[5:, 1].min() > weekdays.curves[:5, 1].max() + 3
    assert months.categories[::11] == ("Jan", "Dec")
    month = np.array([f"{one:%b}" for one in table["when"].to_pylist()])
    np.testing.assert_allclose(months.curves[2], predicted[month == "Mar"].mean(axis=0))
    days = pa.table({"when": pa.array(np.arange(200) % 10, pa.int32()).cast(pa.date32()), "y": rng.random(200)})
    model, training = fitted(days, "y")
    assert [fan.name for fan in compute_fans(model, days, training.rows.y, ["when"])] == ["when: trend"]
