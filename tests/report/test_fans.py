"""Where the curves of the fans are computed."""

import numpy as np
import pyarrow as pa
import pytest

from quernel.plots.inputs import GRID, date_grid
from quernel.report import charts
from quernel.report.content import compute_fans
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


def test_rows_at_few_values_are_scattered_sideways_and_all_drawn():
    rng = np.random.default_rng(0)
    columns = {"few": rng.integers(1, 6, 200) * 2.0, "many": rng.random(200), "word": rng.choice(["a", "b"], 200)}
    table = pa.table(columns | {"y": rng.random(200)})
    model, training = fitted(table, "y")
    few, many, word = compute_fans(model, table, training.y, ["few", "many", "word"])
    assert (few.jitter, many.jitter, word.jitter) == (0.4, 0.0, 0.2)
    assert few.grid.tolist() == [2, 4, 6, 8, 10]
    assert len(np.unique(few.x)) == 200
    assert sorted(2 * (few.x / 2).round()) == sorted(columns["few"])
    assert np.abs(few.x - 2 * (few.x / 2).round()).max() <= 0.4
    drawn = charts.draw_fan(few, np.array(LEVELS), "y")
    assert drawn.count("h.1") == 200


def test_the_fan_of_many_years_follows_the_model():
    rng = np.random.default_rng(0)
    at = np.sort(rng.choice(21 * 365, 1500, replace=False))
    y = np.cos(2 * np.pi * at * DAY / YEAR) + 0.1 * rng.normal(size=len(at))
    table = pa.table({"day": pa.array(at.astype(np.int32)).cast(pa.date32()), "y": y})
    model, training = fitted(table, "y")
    (fan,) = compute_fans(model, table, training.y, ["day"])
    every = np.arange(fan.grid[0], fan.grid[-1], 7 * DAY)  # of one day of the week
    predicted = model.predict(pa.table({"day": pa.array((every / DAY).astype(np.int32)).cast(pa.date32())}))[:, 1]
    assert np.ptp(predicted) > 1
    assert np.abs(np.interp(every, fan.grid, fan.curves[:, 1]) - predicted).max() < 0.1 * np.ptp(predicted)


def test_rare_and_missing_categories_are_drawn_as_the_model_sees_them():
    rng = np.random.default_rng(0)
    word = rng.choice(["a", "b", None], 300, p=[0.6, 0.3, 0.1]).astype(object)
    word[:8] = [f"rare {k}" for k in range(8)]
    effect = {"a": 0.0, "b": 5.0, None: 10.0}
    y = np.array([effect.get(one, -5.0) for one in word]) + rng.random(300)
    table = pa.table({"word": pa.array(word), "x": rng.random(300), "y": y})
    model, training = fitted(table, "y")
    (fan,) = compute_fans(model, table, training.y, ["word"])
    assert fan.categories == ("a", "b", "(missing)", "(other)")
    middle = float(np.median(table["x"].to_numpy()))
    alike = pa.table({"word": pa.array(["a", "b", None, "never seen"]), "x": np.full(4, middle)})
    np.testing.assert_allclose(fan.curves, model.predict(alike))
    assert np.ptp(fan.curves[:, 1]) > 5  # so that the line above could fail
    assert (np.round(fan.x) == 3).sum() == 8  # all rare ones are drawn, in one place
