"""What is on the axes of the charts."""

import re
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import numpy as np
import pytest

from quernel.report import charts
from quernel.report.charts import WIDTH, Chart, ColumnFan, calendar_ticks, clock_ticks

NOON = datetime(2001, 3, 29, 12, 34, 56, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("low", "high", "names"),
    [
        (380, 86_012, ["04:00", "08:00", "12:00", "16:00", "20:00"]),
        (8.2 * 3600, 10.1 * 3600, ["08:30", "09:00", "09:30", "10:00"]),
        (3601, 3623, ["01:00:05", "01:00:10", "01:00:15", "01:00:20"]),
        (43_200, 43_200, ["12:00"]),
    ],
)
def test_times_of_day_have_round_ticks(low, high, names):
    assert [name for _, name in clock_ticks(low, high)] == names


@pytest.mark.parametrize(
    ("span", "names"),
    [
        (timedelta(hours=7), ["2001-03-29 14:00", "16:00", "18:00"]),
        (timedelta(hours=20), ["18:00", "2001-03-30", "06:00"]),
        (timedelta(days=3), ["2001-03-30", "2001-03-31", "2001-04-01"]),
        (timedelta(days=170), ["2001-04", "2001-05", "2001-06", "2001-07", "2001-08", "2001-09"]),
        (timedelta(days=800), ["2001-07", "2002-01", "2002-07", "2003-01"]),
        (timedelta(days=8000), ["2005", "2010", "2015", "2020"]),
        (timedelta(days=100_000), ["2050", "2100", "2150", "2200", "2250"]),
    ],
)
def test_dates_have_round_ticks(span, names):
    found = calendar_ticks(NOON, NOON + span.total_seconds())
    assert [name for _, name in found] == names
    for at, name in found:
        assert NOON <= at <= NOON + span.total_seconds()
        assert name in f"{datetime.fromtimestamp(at, UTC)}"


@pytest.mark.parametrize(
    ("values", "centres"),
    [
        ([0, 1, 2, 3, 7], np.arange(8)),
        ([0, 2, 5], np.arange(6)),
        ([0.5, 1.0, 2.0], [0.5, 1.0, 1.5, 2.0]),
        ([3.0], [3.0]),
        (range(200), 7 + 15 * np.arange(14)),  # 15 counts in each bar, and none twice
    ],
)
def test_the_bars_of_counts_stand_over_them(values, centres):
    y = np.repeat(np.array(values, dtype=float), 300 // len(values))
    edges = charts.bin_edges(y)
    np.testing.assert_allclose((edges[1:] + edges[:-1]) / 2, centres)
    assert np.histogram(y, edges)[0].sum() == len(y)


def test_the_bars_of_other_targets_go_from_end_to_end():
    y = np.random.default_rng(0).normal(size=400)
    edges = charts.bin_edges(y)
    assert (len(edges), edges[0], edges[-1]) == (21, y.min(), y.max())


def texts(drawn):
    """Where each text that is not upright stands: from, to, and what it says; a letter is 7 wide."""
    found = re.findall(r'<text(?: class="label")? x="([\d.]+)" y="([\d.]+)" text-anchor="(\w+)">([^<]*)<', drawn)
    share = {"middle": 0.5, "end": 1.0}
    return [
        (float(x) - 7 * len(t) * share[a], float(x) + 7 * len(t) * (1 - share[a]), float(y), t) for x, y, a, t in found
    ]


def test_few_counts_have_a_tick_each():
    drawn = charts.draw_histogram(np.repeat([0.0, 1.0, 2.0], 50), "n")
    assert [text for *_, text in texts(drawn) if text in "012"] == ["0", "0", "1", "2"]  # rows, and three counts


@pytest.mark.parametrize("high", [503_000, 500_000, 1000])
def test_ticks_are_not_cut_by_the_edge(high):
    found = texts(Chart((0, high), (0, 1), alt="", x_label="x", y_label="y").svg())
    assert found
    assert max(end for _, end, _, _ in found) <= WIDTH


def categories(names):
    """A fan over categories of these names."""
    return ColumnFan(
        "c", "category", np.arange(len(names)), tuple(names), np.ones((len(names), 1)), np.zeros(0), np.zeros(0)
    )


@pytest.mark.parametrize("count", [1, 2, 3, 7, 10])
def test_names_of_categories_keep_to_the_picture_and_clear_of_each_other(count):
    names = tuple(f"{'Rome' if k % 2 else 'Saint-Germain-en-Laye and its surroundings, '}{k}" for k in range(count))
    found = texts(charts.draw_fan(categories(names), np.array([0.5]), "y"))
    for height in {y for _, _, y, _ in found}:
        line = sorted((start, end, text) for start, end, y, text in found if y == height)
        assert line[0][0] >= 0
        assert line[-1][1] <= WIDTH
        for (_, end, _), (start, _, _) in pairwise(line):
            assert end <= start + 1
    shown = [text for *_, text in found if text.startswith(("Saint", "Sai"))]
    assert shown
    assert all(text.endswith("…") or text in names for text in shown)


def test_the_last_name_takes_the_room_to_its_left():
    found = texts(charts.draw_fan(categories(["Llanfairpwll"] * 8 + ["(missing)"]), np.array([0.5]), "y"))
    assert "(missing)" in [text for *_, text in found]
