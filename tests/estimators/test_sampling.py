"""The estimator with every kernel and every way of sampling."""

import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

from quernel import KernelQuantileRegressor
from quernel.features import SAMPLINGS, RandomFeatures
from quernel.kernels import ArcCosine, Gaussian, Matern, PeriodicSpline, SpectralKernel
from support.models import plain_regressor


def table(n=200, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.random((n, 2))
    return X, np.sin(2 * np.pi * X[:, 0]) + X[:, 1] + 0.2 * rng.standard_normal(n)


def fitted(X, y, **settings):
    return plain_regressor(0.5, **{"n_components": 60, "random_state": 0, "alpha": 1e-3, **settings}).fit(X, y)


def heavy(rng, n_components, n_columns):
    return rng.standard_t(5, (n_columns, n_components))


OBJECTS = {
    "sum": Gaussian() + 0.5 * Matern(0.3),
    "mixed sum": Gaussian() + ArcCosine(1, bias=1.0),
    "arccosine with bias": ArcCosine(1, bias=1.0),
    "spline": PeriodicSpline(3),
    "own": SpectralKernel(None, heavy),
}


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("name", OBJECTS)
def test_every_kernel_with_every_sampling_explains_the_data(name, sampling):
    kernel = OBJECTS[name]
    if any(sampling in part.refused_samplings for _, part in kernel.summands):
        return
    X, y = table()
    model = fitted(X, y, kernel=kernel, sampling=sampling, n_components=150, alpha=1e-4)
    assert model.duality_gap_.max() <= 1e-6
    assert model.score(*table(seed=1)) > 0.5
    assert model.n_components_ == 150
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(X), model.predict(X))


@pytest.mark.parametrize("name", ["sum", "arccosine with bias", "spline"])
def test_many_features_approach_the_exact_kernel(name):
    X, y = table()
    exact = fitted(X, y, kernel=OBJECTS[name], n_components="exact", alpha=1e-2).predict(X)

    def apart(n_components):
        models = (
            fitted(X, y, kernel=OBJECTS[name], n_components=n_components, alpha=1e-2, random_state=s) for s in range(4)
        )
        return np.mean([np.mean((model.predict(X) - exact) ** 2) for model in models])

    assert apart(2000) < 0.3 * apart(50)


def test_leverage_takes_the_estimators_alpha():
    X, y = table()
    model = fitted(X, y, sampling="leverage")
    assert model.feature_map_.leverage_alpha == model.alpha_ == 1e-3
    own = fitted(X, y, sampling=RandomFeatures(sampling="leverage", leverage_alpha=1e-3))
    np.testing.assert_array_equal(own.predict(X), model.predict(X))
    assert not np.allclose(
        fitted(X, y, sampling="leverage", alpha=1e-1).feature_map_.weights_, model.feature_map_.weights_
    )


def test_a_fixed_leverage_alpha_shares_the_features_between_alphas():
    X, y = table()
    features = RandomFeatures(sampling="leverage", leverage_alpha=1e-3)
    one, other = (fitted(X, y, sampling=features, alpha=alpha).feature_map_ for alpha in (1e-2, 1e-5))
    np.testing.assert_array_equal(one.transform(X), other.transform(X))


def test_the_sampling_object_is_left_alone_and_can_be_searched():
    X, y = table()
    features = RandomFeatures(sampling="leverage", pool_size=300)
    before = repr(features.get_params())
    model = fitted(X, y, sampling=features)
    assert repr(features.get_params()) == before
    assert not hasattr(features, "weights_")
    assert model.feature_map_.pool_size == 300
    assert clone(model).sampling.pool_size == 300
    search = GridSearchCV(model, {"sampling__leverage_alpha": [1e-2, 1e-4]}, cv=2).fit(X, y)
    assert search.best_params_["sampling__leverage_alpha"] in (1e-2, 1e-4)


def test_weights_reach_the_scores():
    X, y = table()
    weight = np.where(X[:, 0] < 0.2, 1.0, 0.0)
    settings = {"n_components": 60, "random_state": 0, "alpha": 1e-3, "sampling": "leverage", "bandwidth": 0.3}
    weighted = plain_regressor(0.5, **settings).fit(X, y, sample_weight=weight)
    some = plain_regressor(0.5, **settings).fit(X[weight > 0], y[weight > 0])
    np.testing.assert_allclose(weighted.feature_map_.weights_, some.feature_map_.weights_, rtol=1e-9)
    assert not np.allclose(plain_regressor(0.5, **settings).fit(X, y).feature_map_.weights_, some.feature_map_.weights_)


def test_bandwidths_of_a_sum_are_reported_together():
    X, y = table()
    bandwidth = fitted(X, y, kernel=OBJECTS["sum"]).bandwidth_
    assert bandwidth[0].shape == (2,)
    assert bandwidth[1] == 0.3
    assert fitted(X, y, kernel=OBJECTS["sum"], bandwidth=0.7).bandwidth_ == (0.7, 0.3)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kernel", ["arccosine", "spline"])
def test_other_features_keep_the_floating_type(kernel, dtype):
    X, _ = table()
    features = RandomFeatures(kernel, 30, random_state=0).fit(X)
    Phi = features.transform(X.astype(dtype))
    assert Phi.dtype == dtype
    np.testing.assert_allclose(Phi, features.transform(X), atol=1e-4 if dtype == np.float32 else 0)


def test_a_spline_does_not_see_whole_turns():
    X, y = table()
    model = fitted(X, y, kernel="spline")
    np.testing.assert_allclose(model.predict(X + 2), model.predict(X), atol=1e-9)
    assert not np.allclose(model.predict(X + 0.5), model.predict(X))


def test_the_error_of_features_is_told_and_falls_with_their_number():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 2))
    y = X[:, 0] + rng.standard_normal(300)
    settings = {"kernel": "gaussian", "bandwidth": 1.0, "alpha": 1e-3, "recalibrate": False}
    few, exact = (KernelQuantileRegressor(n_components=M, random_state=0, **settings).fit(X, y) for M in (50, "exact"))
    Phi, some = few.feature_map_.transform(X[::6]), np.triu_indices(50, 1)
    by_hand = (Phi @ Phi.T - few.kernel_.gram(X[::6], X[::6]))[some]
    assert few.feature_error_ == pytest.approx(np.sqrt(np.mean(by_hand**2)))
    errors = {
        M: [
            KernelQuantileRegressor(n_components=M, random_state=seed, **settings).fit(X, y).feature_error_
            for seed in range(16)
        ]
        for M in (20, 180)
    }
    fall = np.sqrt(np.mean(np.square(errors[20])) / np.mean(np.square(errors[180])))
    assert 2.2 < fall < 4.1  # 3 = sqrt(180 / 20), up to the spread of 16 draws
    assert exact.feature_error_ < 1e-6
    landmarks = [
        KernelQuantileRegressor(n_components=60, sampling="landmarks", random_state=seed, **settings).fit(X, y)
        for seed in (0, 1)
    ]
    np.testing.assert_array_equal(landmarks[0].predict(X), landmarks[1].predict(X))
    assert np.abs(few.predict(X) - few.set_params(random_state=1).fit(X, y).predict(X)).max() > 1e-3
