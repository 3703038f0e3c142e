"""Several coverages from one calibration, units that are not divided, and the score, of ConformalQuantileRegressor."""

import numpy as np
import pandas as pd
import pytest
from sklearn.base import BaseEstimator
from sklearn.metrics import d2_pinball_score

import quernel
from quernel import ConformalQuantileRegressor, KernelQuantileRegressor, TabularQuantileRegressor

COVERAGES = [0.8, 0.5, 0.9, 0.97]


class Fan(BaseEstimator):
    """A model that is wrong in the middle and too narrow: [x0 - x1, x0 + 0.5 x1], whatever the coverage."""

    def fit(self, X, y, groups=None):
        self.groups_, self.rows_ = groups, X[:, 2]
        return self

    def predict_interval(self, X):
        return np.column_stack([X[:, 0] - X[:, 1], X[:, 0] + 0.5 * X[:, 1]])

    def predict(self, X):
        return self.predict_interval(X)


def draw(n, rng):
    """Rows whose noise is as wide as column 1 says; column 2 numbers them."""
    X = np.column_stack([rng.normal(size=n), rng.choice([0.1, 1.0, 3.0], n), np.arange(n)])
    return X, X[:, 0] + X[:, 1] * rng.standard_normal(n)


@pytest.mark.parametrize("settings", [{}, {"symmetric": False}, {"method": "cv+", "cv": 3}], ids=str)
def test_every_coverage_holds_and_intervals_are_nested_and_as_wide_as_the_noise(settings):
    rng, inside, narrow = np.random.default_rng(0), [], []
    for _ in range(20 if "cv" in settings else 60):
        X, y = draw(400, rng)
        model = ConformalQuantileRegressor(Fan(), 0.9, **{"calibration_size": 150, "random_state": 0} | settings)
        new, target = draw(200 if "cv" in settings else 400, rng)
        bounds = model.fit(X, y).predict_interval(new, COVERAGES)
        assert bounds.shape == (len(new), 2, 4)
        order = np.argsort(COVERAGES)
        assert np.all(np.diff(bounds[:, 0, order]) <= 0)
        assert np.all(np.diff(bounds[:, 1, order]) >= 0)
        hit = (bounds[:, 0] <= target[:, None]) & (target[:, None] <= bounds[:, 1])
        inside.append(hit.mean(axis=0))
        narrow.append(hit[new[:, 1] == 0.1].mean(axis=0))
    error = np.std(inside, axis=0) / np.sqrt(len(inside))
    # At least the nominal share; at most what the rank of 150 scores, or the widening of nested intervals, adds.
    assert np.all(np.mean(inside, axis=0) > np.array(COVERAGES) - 3 * error)
    assert np.all(np.mean(inside, axis=0) < np.array(COVERAGES) + 0.03 + 3 * error)
    # Where noise is a tenth of the usual one, an interval of 50 % is still one. A constant taken off both ends of the
    # interval of 90 % would leave none there.
    assert 0.35 < np.mean(narrow, axis=0)[1] < 0.75


def test_the_coverage_of_the_constructor_is_as_without_asking():
    X, y = draw(300, np.random.default_rng(1))
    model = ConformalQuantileRegressor(Fan(), 0.9, random_state=0).fit(X, y)
    assert np.array_equal(model.predict_interval(X, 0.9), model.predict_interval(X))
    assert np.array_equal(model.predict_interval(X, [0.9])[:, :, 0], model.predict_interval(X))
    assert model.predict_interval(X, 0.5).shape == (300, 2)
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    base = KernelQuantileRegressor(bandwidth="auto", n_components=10, alpha=1e-3, random_state=0)
    framed = ConformalQuantileRegressor(base, random_state=0).fit(frame, y)
    named = framed.predict_interval(frame, [0.5, 0.8], as_frame=True)
    assert [*named] == ["lower_0.5", "upper_0.5", "lower_0.8", "upper_0.8"]
    assert np.array_equal(named["upper_0.8"], framed.predict_interval(frame, [0.5, 0.8])[:, 1, 1])


def test_intervals_that_are_points_cover_or_do_not():
    X = np.column_stack([np.zeros(200), np.repeat([0.0, 1.0], 100), np.arange(200)])
    y = np.where(X[:, 1] == 0, 0.0, np.random.default_rng(0).standard_normal(200))
    y[:5] = 7.0  # points that are missed, and that no factor covers
    model = ConformalQuantileRegressor(Fan(), 0.9, method="prefit").fit(X, y)
    low, high = model.predict_interval(X, 0.5).T
    assert np.all(np.isfinite(low) & np.isfinite(high) & (low <= high))
    assert np.array_equal(low[:100], np.zeros(100))
    assert np.all(np.isinf(model.predict_interval(X, 0.98)))
    assert np.mean((low <= y) & (y <= high)) >= 0.5


@pytest.mark.parametrize("coverage", [1.0, -0.1, [0.5, 0.0], [], [[0.5]]])
def test_impossible_coverages_are_refused(coverage):
    X, y = draw(100, np.random.default_rng(2))
    model = ConformalQuantileRegressor(Fan(), 0.8, random_state=0).fit(X, y)
    with pytest.raises(ValueError, match="coverage must"):
        model.predict_interval(X, coverage)


def test_more_coverage_than_the_calibration_rows_allow_is_refused():
    X, y = draw(100, np.random.default_rng(2))
    model = ConformalQuantileRegressor(Fan(), 0.8, random_state=0).fit(X, y)
    assert np.isfinite(model.predict_interval(X, 0.96)).all()
    with pytest.raises(ValueError, match=r"coverage of 0.99 needs at least 99 calibration rows; there are 25"):
        model.predict_interval(X, [0.5, 0.99])


@pytest.mark.parametrize("settings", [{}, {"method": "cv+", "cv": 4}], ids=["split", "cv+"])
def test_units_train_or_calibrate_and_reach_the_fit(settings):
    rng = np.random.default_rng(0)
    X, y = draw(200, rng)
    units = rng.integers(0, 12, 200)
    model = ConformalQuantileRegressor(Fan(), 0.8, random_state=0, **settings).fit(X, y, units=units)
    for inner in model.estimators_:
        trained = inner.rows_.astype(int)
        assert np.array_equal(inner.groups_, units[trained])
        assert set(units[trained]).isdisjoint(np.delete(units, trained))
    if not settings:
        assert 50 <= model.n_calibration_ <= 50 + np.bincount(units).max()


def test_units_make_intervals_for_new_units_and_random_rows_do_not():
    """Rows of a unit share half of the noise, which a model of the units' numbers knows; new units are others."""

    class Remembering(BaseEstimator):
        def fit(self, X, y, groups=None):
            known = np.unique(X[:, 0])
            self.means_ = {unit: y[X[:, 0] == unit].mean() for unit in known}
            return self

        def predict_interval(self, X):
            middle = np.array([self.means_.get(unit, 0.0) for unit in X[:, 0]])
            return np.column_stack([middle - 1, middle + 1])

    rng, found = np.random.default_rng(0), {True: [], False: []}
    for _ in range(40):
        unit = np.repeat(np.arange(80.0), 10)
        y = np.repeat(3 * rng.standard_normal(80), 10) + rng.standard_normal(800)
        X, old = unit[:, None], unit < 60
        for together in found:
            units = {"units": unit[old]} if together else {}
            model = ConformalQuantileRegressor(Remembering(), 0.8, random_state=0).fit(X[old], y[old], **units)
            low, high = model.predict_interval(X[~old]).T
            found[together].append(np.mean((low <= y[~old]) & (y[~old] <= high)))
    assert np.mean(found[True]) == pytest.approx(0.8, abs=0.05)
    assert np.mean(found[False]) < 0.5


@pytest.mark.parametrize(
    ("settings", "units", "message"),
    [
        ({"time_ordered": True}, np.arange(100) // 5, "units says which rows"),
        ({"method": "prefit"}, np.arange(100) // 5, "units says which rows"),
        ({}, np.zeros(100), "units has one label only"),
        ({}, np.zeros(7), "units must have one entry for each of 100 rows"),
    ],
)
def test_units_that_cannot_be_kept_together_are_refused(settings, units, message):
    X, y = draw(100, np.random.default_rng(3))
    with pytest.raises(ValueError, match=message):
        ConformalQuantileRegressor(Fan(), 0.8, **settings).fit(X, y, units=units)


def test_the_score_is_d2_of_the_median():
    rng = np.random.default_rng(4)
    X = rng.uniform(-2, 2, (300, 1))
    y, weight = np.sin(2 * X[:, 0]) + 0.2 * rng.standard_normal(300), rng.integers(0, 3, 300)
    base = KernelQuantileRegressor(bandwidth="auto", n_components=30, alpha=1e-3, random_state=0)
    model = ConformalQuantileRegressor(base, random_state=0).fit(X, y)
    assert model.score(X, y) == pytest.approx(d2_pinball_score(y, model.predict(X), alpha=0.5), abs=1e-9)
    expected = d2_pinball_score(y, model.predict(X), alpha=0.5, sample_weight=weight)
    assert model.score(X, y, weight) == pytest.approx(expected, abs=1e-9)


def test_a_tabular_model_is_calibrated_at_any_coverage(tmp_path):
    rng = np.random.default_rng(5)
    X = rng.uniform(-2, 2, (160, 2))
    y = X[:, 0] + (0.2 + np.abs(X[:, 1])) * rng.standard_normal(160)
    inner = TabularQuantileRegressor([0.25, 0.5], n_trees=10, random_state=0)  # it predicts any level all the same
    model = ConformalQuantileRegressor(inner, 0.9, random_state=0).fit(X, y)
    bounds = model.predict_interval(X, [0.5, 0.9])
    assert np.all(bounds[:, 0, 0] > bounds[:, 0, 1] - 1e-12)
    quernel.save(model, tmp_path / "m")
    assert np.array_equal(quernel.load(tmp_path / "m").predict_interval(X, [0.5, 0.9]), bounds)
