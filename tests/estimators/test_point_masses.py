"""Targets that many rows share: counts, and amounts that are often zero."""

import copy

import numpy as np
import pytest

from quernel import load, save
from quernel.data import ArrayRows
from quernel.metrics import coverage
from quernel.plots import CalibrationDisplay, PITDisplay
from quernel.tuning.data_summary import DataSummary, find_point_masses, snap_to_point_masses
from support.models import plain_regressor

LEVELS = [0.05, 0.5, 0.95]


@pytest.fixture(scope="module")
def counts():
    """Mostly zeros: the quantiles at 0.05 and 0.5 are 0 for every x."""
    rng = np.random.default_rng(0)
    X = rng.random((2000, 1))
    return X, rng.poisson(0.1 + 0.5 * X[:, 0]).astype(float)


@pytest.fixture(scope="module")
def model(counts):
    X, y = counts
    return plain_regressor(LEVELS, n_components=50, random_state=0).fit(X[:1000], y[:1000])


def test_curves_that_are_a_count_are_exactly_that(counts, model):
    X, y = counts
    low, middle, high = model.predict(X[1000:]).T
    assert set(low) == set(middle) == {0.0}
    assert len(np.unique(high)) > 500  # elsewhere nothing is moved
    # Exactly what the same curves give with some slack, and as many rows as were promised.
    assert coverage(y[1000:], low, high) == np.mean(y[1000:] <= high + 1e-6)
    assert coverage(y[1000:], low, high) > 0.88


def test_without_it_half_of_the_zeros_fall_beside_their_curve(counts, model):
    """The negative control: rounding alone decides, unless curves are put on the values that they mean."""
    X, y = counts
    rounded = copy.deepcopy(model)
    rounded.intercept_ = model.intercept_ + 1e-9  # certified as well, by another solver or on another machine
    raw = rounded._predict_unsnapped(X[1000:])
    assert 0 < np.abs(raw[:, 0]).max() < 1e-5
    assert coverage(y[1000:], raw[:, 0], raw[:, 2]) < 0.85
    np.testing.assert_array_equal(rounded.predict(X[1000:])[:, 0], 0.0)


def test_the_distribution_function_jumps_where_the_counts_are(counts, model):
    X, _ = counts
    assert np.all(model.predict_cdf(X, 0.0) >= 0.5)
    assert np.all(model.predict_cdf(X, -1e-3) == 0.0)
    assert set(model.predict(X, quantiles=[0.2, 0.3]).ravel()) == {0.0}


def test_a_level_that_differs_by_rounding_is_the_fitted_one(counts):
    X, y = counts
    model = plain_regressor([0.05, 0.3, 0.7, 0.95], n_components=50, random_state=0).fit(X, 1 + 2 * y)
    fitted = model.predict(X)
    assert 0.1 * 3 != 0.3
    np.testing.assert_array_equal(model.predict(X, quantiles=0.1 * 3), fitted[:, 1])
    np.testing.assert_array_equal(model.predict(X, quantiles=[1 - 0.05, 1 - 0.3, 0.1 * 3, 1 - 0.95]), fitted[:, ::-1])


def test_a_level_between_the_shares_below_and_up_to_a_curve_is_kept(counts, model):
    X, y = counts
    shown = CalibrationDisplay.from_estimator(model, X[1000:], y[1000:])
    assert shown.holds[:2].all()
    np.testing.assert_array_equal(shown.below[:2], 0.0)
    np.testing.assert_allclose(shown.observed[:2], np.mean(y[1000:] == 0))
    np.testing.assert_array_equal(shown.nearest[:2], LEVELS[:2])
    worm = PITDisplay.from_estimator(model, X[1000:], y[1000:])
    np.testing.assert_allclose(worm.density[:2], 1.0)
    assert worm.counts.sum() == worm.n_rows == 1000
    # A curve above all rows that have the value does not hold, nor does one below them.
    off = CalibrationDisplay.compute(y[1000:], np.full((1000, 2), [-0.5, 0.5]), [0.25, 0.5])
    assert not off.holds.any()


@pytest.mark.parametrize("atom", [4.95, 1e6 / 3, -0.1])
def test_between_two_curves_that_share_a_value_lies_that_value(atom):
    """Interpolation alone misses it by a digit in every second case, and with it half of the rows."""
    rng = np.random.default_rng(0)
    X, above = rng.normal(size=(800, 1)), abs(atom) * rng.exponential(1.0, 800)
    y = np.where(rng.random(800) < 0.7, atom, atom + above)
    levels = [0.05, 0.25, 0.5, 0.65, 0.95]
    model = plain_regressor(levels, n_components=50, random_state=0).fit(X, y)
    assert np.mean(model.predict(X)[:, :3] == atom) > 0.8
    between = np.linspace(0.06, 0.49, 40)
    shared = model.predict(X)[:, 0] == model.predict(X)[:, 2]
    assert set(model.predict(X, quantiles=between)[shared].ravel()) == {atom}
    assert np.mean(model.sample(X[shared], 100, 0) == atom) > 0.5
    assert coverage(y, *model.predict_interval(X, 0.8).T) > 0.78


def test_every_second_row_may_be_another_thing():
    rng = np.random.default_rng(0)
    X, y = rng.random((40_000, 1)), rng.standard_normal(40_000)
    y[1::2] = 0.0
    model = plain_regressor(n_components=10, random_state=0, tol=1e-3).fit(X, y)
    assert model.frequent_values_.tolist() == [0.0]


def test_frequent_values():
    y = np.array([0.0, 0, 0, 1, 2, 3])
    X, even = np.arange(6.0)[:, None], np.full(6, 1 / 6)
    np.testing.assert_array_equal(find_point_masses(X, y, even), [0.0])
    # One row given three times is a row of three times the weight: its value is no more frequent than others.
    X[:3] = 7.0
    assert len(find_point_masses(X, y, even)) == 0
    # Rows of no weight are no rows.
    X[1], share = 8.0, np.array([0.5, 0.0, 0, 0.2, 0.2, 0.1])
    assert len(find_point_masses(X, y, share)) == 0


def test_frequent_values_of_large_tables_do_not_depend_on_the_order_of_rows():
    # Shares close to one in a hundred, on either side: whoever counts a sample is wrong about some.
    rng = np.random.default_rng(0)
    X, y = rng.random((40_000, 1)), rng.random(40_000)
    for value in range(20):
        y[500 * value : 500 * value + 390 + value] = value
    counted = frequent_of(X, y)
    np.testing.assert_array_equal(counted, np.arange(10, 20))
    order = rng.permutation(len(y))
    np.testing.assert_array_equal(frequent_of(X[order], y[order]), counted)
    np.testing.assert_array_equal(frequent_of(np.r_[X, X], np.r_[y, y]), counted)
    np.testing.assert_array_equal(frequent_of(X, y, np.full(len(y), 0.3)), counted)


def frequent_of(X, y, weight=None):
    return DataSummary(ArrayRows(X, y, weight)).point_masses


def test_continuous_targets_have_none():
    rng = np.random.default_rng(0)
    X = rng.random((50, 2))
    model = plain_regressor(random_state=0).fit(X, rng.random(50))
    assert len(model.frequent_values_) == 0


def test_the_nearest_value_wins():
    values = np.array([-1.0, 0.0, 2.0])
    curves = np.array([[-9.0, -1.05, -0.95, -0.4], [0.05, 1.0, 1.95, 9.0]])
    np.testing.assert_array_equal(snap_to_point_masses(curves, values, 0.1), [[-9, -1, -1, -0.4], [0, 1, 2, 9]])


def test_the_unit_of_y_does_not_matter(counts):
    X, y = counts
    settings = {"n_components": 30, "random_state": 0}
    plain = plain_regressor([0.1, 0.9], **settings).fit(X, y).predict(X)
    cents = plain_regressor([0.1, 0.9], **settings).fit(X, 1e6 * y).predict(X)
    np.testing.assert_allclose(cents, 1e6 * plain, rtol=1e-5, atol=1e-3)
    np.testing.assert_array_equal(cents[:, 0], 0.0)


def test_model_files_keep_them(counts, model, tmp_path):
    X, _ = counts
    save(model, tmp_path / "counts.quernel")
    np.testing.assert_array_equal(load(tmp_path / "counts.quernel").predict(X), model.predict(X))
