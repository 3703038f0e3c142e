"""noncrossing="joint": levels that do not cross before anything is sorted, certified, and hardly worse."""

import numpy as np
import pytest

from quernel.datasets import load_wind
from quernel.estimators.levels import rearrange
from quernel.metrics import crossing_rate, pinball_loss
from support.models import plain_regressor

LEVELS = np.linspace(0.05, 0.95, 19)


def worst_crossing(model, X):
    """The most by which a fitted level lies above the next, as fitted: nothing sorted."""
    curves = model.feature_map_.transform(X) @ model.coef_ + model.intercept_
    curves = curves[:, np.argsort(model.quantiles_)]
    return np.max(curves[:, :-1] - curves[:, 1:])


@pytest.fixture(scope="module")
def small():
    rng = np.random.default_rng(0)
    X = rng.random((150, 2))
    return X, np.sin(5 * X[:, 0]) + (0.2 + X[:, 1]) * rng.standard_normal(150), rng.random((40, 2))


@pytest.mark.slow
def test_nineteen_levels_of_the_wind_farm():
    wind = load_wind()
    X, y = wind.X, wind.y
    settings = {"n_components": 200, "random_state": 0}
    apart = plain_regressor(LEVELS, **settings).fit(X, y)
    together = plain_regressor(LEVELS, noncrossing="joint", **settings).fit(X, y)
    assert worst_crossing(apart, X) > 0.01 * np.std(y)
    assert worst_crossing(together, X) <= 0
    assert together.crossing_rate_ == 0 < apart.crossing_rate_
    assert np.all(together.duality_gap_ <= 1e-6)
    assert np.sum(together.objective_) >= np.sum(apart.objective_) * (1 - 1e-6)  # a constraint cannot help
    rearranged, joint = (np.mean(pinball_loss(y, model.predict(X), LEVELS)) for model in (apart, together))
    assert joint <= 1.005 * rearranged
    assert crossing_rate(together.predict(wind.X[1::50])) == 0  # sorted, elsewhere


SETTINGS = {
    "random": {"n_components": 60, "bandwidth": 0.3, "alpha": 1e-5, "random_state": 0},
    "exact": {"n_components": "exact", "bandwidth": 0.3, "alpha": 1e-4},
    "linear": {"kernel": "linear", "alpha": 1e-6},
    "no intercept": {"n_components": 60, "bandwidth": 0.3, "alpha": 1e-5, "fit_intercept": False, "random_state": 0},
}


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", SETTINGS)
def test_kernels_weights_and_intercepts(small, name, weighted):
    X, y, _ = small
    X = X if name != "linear" else np.hstack([X, np.sin(20 * X), np.cos(20 * X)])
    weight = np.random.default_rng(1).integers(0, 3, len(y)) if weighted else None
    kept = slice(None) if weight is None else weight > 0
    levels = [0.6, 0.4, 0.5, 0.55, 0.45]
    apart = plain_regressor(levels, **SETTINGS[name]).fit(X, y, weight)
    model = plain_regressor(levels, noncrossing="joint", **SETTINGS[name]).fit(X, y, weight)
    assert worst_crossing(apart, X[kept]) > 1e-3
    assert worst_crossing(model, X[kept]) <= (1e-12 if model.fit_intercept else 1e-6) * np.std(y)
    assert model.crossing_rate_ == 0 < apart.crossing_rate_
    assert np.all(model.duality_gap_ <= 1e-6)
    assert np.sum(model.objective_) >= np.sum(apart.objective_) * (1 - 2e-6)
    if weighted:
        repeated = plain_regressor(levels, noncrossing="joint", **SETTINGS[name])
        repeated.fit(np.repeat(X, weight, axis=0), np.repeat(y, weight))
        assert np.sum(repeated.objective_) == pytest.approx(np.sum(model.objective_), rel=4e-6)


def test_further_points(small):
    X, y, new = small
    settings = {**SETTINGS["random"], "noncrossing": "joint"}
    without = plain_regressor([0.4, 0.5, 0.6], **settings).fit(X, y)
    model = plain_regressor([0.4, 0.5, 0.6], **settings).fit(X, y, noncrossing_points=new)
    assert worst_crossing(without, new) > 1e-3
    assert worst_crossing(model, np.vstack([X, new])) <= 0
    with pytest.raises(ValueError, match="noncrossing_points are for noncrossing='joint'"):
        plain_regressor([0.4, 0.6], random_state=0).fit(X, y, noncrossing_points=new)
    with pytest.raises(ValueError, match="X has 3 features, but KernelQuantileRegressor is expecting 2"):
        plain_regressor([0.4, 0.6], **settings).fit(X, y, noncrossing_points=np.ones((4, 3)))


def test_one_level_and_levels_apart_are_as_ever(small):
    X, y, _ = small
    for levels in (0.5, [0.05, 0.95]):
        settings = {"n_components": 20, "alpha": 1e-2, "random_state": 0}
        plain = plain_regressor(levels, **settings).fit(X, y)
        model = plain_regressor(levels, noncrossing="joint", **settings).fit(X, y)
        np.testing.assert_array_equal(model.coef_, plain.coef_)


def test_features_that_do_not_fit_in_memory_are_refused(small):
    X, y, _ = small
    model = plain_regressor([0.4, 0.6], noncrossing="joint", n_components=50, max_memory=1000)
    with pytest.raises(ValueError, match=r"needs all features in memory.*Use noncrossing='rearrange'"):
        model.fit(X, y)


@pytest.mark.parametrize("n", [5, 10, 20])
@pytest.mark.parametrize("seed", range(4))
def test_levels_that_go_through_most_rows_are_certified(n, seed):
    """Residuals of rounding: some levels cross by no more than that, others in earnest."""
    rng = np.random.default_rng([seed, n])
    X = rng.random((n, 1))
    y = np.sin(6 * X[:, 0]) + 0.3 * rng.standard_normal(n)
    model = plain_regressor([0.05, 0.5, 0.95], noncrossing="joint", random_state=0).fit(X, y)
    assert model.duality_gap_.max() <= model.tol
    curves = model.feature_map_.transform(X) @ model.coef_ + model.intercept_
    assert np.diff(curves, axis=1).min() >= 0


@pytest.fixture
def one_level_failed(small):
    """A model of which the level 0.7 has failed, by far; and the model of the other levels alone."""
    X, y, new = small
    levels = np.array([0.9, 0.1, 0.7, 0.3, 0.5])
    model = plain_regressor(levels, **SETTINGS["random"]).fit(X, y)
    others = plain_regressor(levels[[0, 1, 3, 4]], **SETTINGS["random"]).fit(X, y)
    model.intercept_ = model.intercept_ + np.array([0, 0, -1e6, 0, 0])
    model.duality_gap_ = np.array([1e-9, 1e-9, 1.0, 1e-9, 1e-9])
    return model, others, new


def test_a_failed_level_does_not_touch_the_others(one_level_failed):
    model, others, new = one_level_failed
    curves = model.predict(new)
    np.testing.assert_allclose(curves[:, [0, 1, 3, 4]], others.predict(new), atol=1e-4)
    np.testing.assert_array_equal(curves[:, 2], curves[:, 4])  # as low as it may be: the level below
    assert np.all(np.diff(model.predict(new, quantiles=[0.1, 0.2, 0.3, 0.5, 0.6, 0.7, 0.9]), axis=1) >= 0)
    np.testing.assert_array_equal(model.predict(new, quantiles=0.7), curves[:, 2])
    model.duality_gap_ = np.full(5, 1e-9)  # negative control: it would spoil all
    assert model.predict(new).min() < -1e5


def test_failed_levels_are_sorted_and_moved_between_their_neighbours():
    levels = np.array([0.1, 0.2, 0.3, 0.4, 0.5])
    failed = np.array([True, False, True, True, False])
    given = np.array([[9.0, 2.0, -1.0, 2.5, 3.0], [0.0, 5.0, 1.0, 4.0, 3.0], [7.0, 7.0, 7.0, 7.0, 7.0]])
    expected = [[-1.0, 2.0, 2.5, 3.0, 3.0], [0.0, 3.0, 3.0, 4.0, 5.0], [7.0, 7.0, 7.0, 7.0, 7.0]]
    np.testing.assert_array_equal(rearrange(given, levels, failed), expected)
    mixed = np.array([3, 0, 4, 1, 2])
    np.testing.assert_array_equal(
        rearrange(given[:, mixed], levels[mixed], failed[mixed]), np.array(expected)[:, mixed]
    )
    for all_or_none in (np.ones(5, dtype=bool), np.zeros(5, dtype=bool), None):
        np.testing.assert_array_equal(rearrange(given, levels, all_or_none), np.sort(given, axis=1))
