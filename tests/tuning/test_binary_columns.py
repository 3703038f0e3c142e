"""Flags, and categories spread over columns of 0 and 1: together they count about as much as one column of numbers."""

import numpy as np
import pytest

from quernel.data import MemmapRows
from quernel.metrics import pinball_loss
from quernel.tuning.bandwidth import bandwidth_from
from quernel.tuning.data_summary import column_scales, summarize_rows
from support.models import plain_regressor

LEVELS = [0.1, 0.5, 0.9]


def test_a_column_of_two_values_is_measured_by_their_distance():
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.random(500) < 0.02, 1e6 + 3.0 * (rng.random(500) < 0.5), rng.random(500), np.full(500, 7)])
    even = np.full(500, 1 / 500)
    scales = column_scales(X, even)
    np.testing.assert_allclose(scales[:3], [1.0, 3.0, X[:, 2].std()])
    assert scales[3] >= 1e9
    # Rows of no weight say nothing, and a third value makes it a column of numbers.
    X[0, 0] = 5.0
    np.testing.assert_allclose(column_scales(X, even)[0], X[:, 0].std())
    share = np.r_[0.0, np.full(499, 1 / 499)]
    np.testing.assert_allclose(column_scales(X, share)[:2], [1.0, 3.0])


def with_cities(n, n_cities, seed=0):
    """Two numbers that matter, and a city that does not."""
    rng = np.random.default_rng(seed)
    X = rng.random((n, 2))
    y = np.sin(5 * X[:, 0]) + X[:, 1] + 0.2 * rng.standard_normal(n)
    return np.hstack([X, np.eye(n_cities)[rng.integers(0, n_cities, n)]]), y


def held_out_loss(X, y, bandwidth):
    model = plain_regressor(LEVELS, bandwidth=bandwidth, n_components=300, tol=1e-4, random_state=0)
    train = np.arange(len(y)) % 2 == 0
    return np.mean(pinball_loss(y[~train], model.fit(X[train], y[train]).predict(X[~train]), LEVELS))


def test_forty_cities_that_do_not_matter_cost_less_than_the_rest_tells():
    X, y = with_cities(1600, 40)
    even = np.full(len(X), 1 / len(X))
    without, automatic = held_out_loss(X[:, :2], y, "auto"), held_out_loss(X, y, "auto")
    # The control: every column in standard deviations, in which rows of different cities have nothing in common.
    standardised = held_out_loss(X, y, bandwidth_from(X.std(axis=0), X, even))
    assert automatic < 1.5 * without
    assert standardised > 2 * without


def test_cities_count_about_as_much_as_a_column_of_numbers():
    """Mean squared distances in bandwidths, between rows: of a number, and of all columns of the category."""
    X, _ = with_cities(1000, 10)
    scaled = X / bandwidth_from(column_scales(X, np.full(len(X), 1 / len(X))), X, np.full(len(X), 1 / len(X)))
    number, city = 2 * scaled[:, 0].var(), 2 * scaled[:, 2:].var(axis=0).sum()
    assert 0.7 < city / number < 1.0


@pytest.mark.parametrize(("n", "k", "offset"), [(20_000, 20, 1000), (50_000, 50, 2023), (20_000, 2, 90_210)])
def test_rare_flags_far_from_zero_are_seen_wherever_rows_are(n, k, offset):
    """A year, or a number that is a name: its mean has few digits left for what distinguishes the rows."""
    flag = np.zeros((n, 1))
    flag[np.random.default_rng(0).choice(n, k, replace=False)] = 1.0
    X, y = offset + flag, np.zeros(n)
    np.testing.assert_allclose(column_scales(X, np.full(n, 1 / n)), 1.0)
    np.testing.assert_allclose(summarize_rows(MemmapRows(X, y)).scales, 1.0)
