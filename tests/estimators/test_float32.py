"""Features stored in single precision: half the memory, and a certificate that says what it costs."""

import numpy as np
import pytest

from quernel import KernelClassifier, KernelRegressor, estimate_cost
from quernel.data import ArrayRows, InMemoryDesign, MemmapRows, StreamedDesign, dask_tasks
from quernel.datasets import make_homoscedastic
from quernel.estimators.solve import Task
from quernel.features import RandomFeatures
from quernel.losses import Pinball
from support.models import plain_regressor


def fitted(X, y, **options):
    return plain_regressor([0.1, 0.5], bandwidth=1.0, n_components=60, random_state=0, **options).fit(X, y)


@pytest.mark.parametrize("n", [2000, 50_000])
def test_the_gap_is_that_of_the_features_that_predict(n):
    X, y, _ = make_homoscedastic(n, random_state=0)
    single, double = (
        fitted(X, y, alpha=1e-4, dtype=dtype, tol=tol) for dtype, tol in [("float32", 1e-6), ("float64", 1e-9)]
    )
    loss = Pinball([0.1, 0.5]).value(y[:, None] - single.feature_map_.transform(X) @ single.coef_ - single.intercept_)
    objective = loss.mean(axis=0) + 1e-4 * np.sum(single.coef_**2, axis=0)
    np.testing.assert_allclose(single.objective_, objective, rtol=1e-12)
    assert np.all(single.duality_gap_ >= objective / double.objective_ - 1 - 2e-9)
    assert np.all(single.duality_gap_ <= 2e-6)


def test_a_gap_that_rounding_does_not_allow_is_reported_not_hidden():
    X, y, _ = make_homoscedastic(2000, random_state=0)
    with pytest.warns(match="gap"):
        model = fitted(X, y, alpha=1e-9, dtype="float32", tol=1e-9)
    assert model.duality_gap_.max() > 1e-9
    assert fitted(X, y, alpha=1e-9, tol=1e-9).duality_gap_.max() <= 1e-9, "control: double precision reaches it"


def test_stored_features_take_half():
    X, y, _ = make_homoscedastic(3000, random_state=0)
    features = RandomFeatures("gaussian", 50, random_state=0).fit(X)
    rows = InMemoryDesign(ArrayRows(X, y), features, dtype=np.float32)
    assert rows.as_array("a test looks at them").dtype == np.float32
    np.testing.assert_allclose(rows.as_array("so"), features.transform(X), rtol=0, atol=1e-7)
    single, double = (estimate_cost(10**6, 3, 300, dtype=dtype, max_memory=10**10) for dtype in ("float32", "float64"))
    assert 2 * single.features == double.features


def test_bad_input():
    X, y, _ = make_homoscedastic(100, random_state=0)
    with pytest.raises(ValueError, match="Unknown dtype 'float16'"):
        fitted(X, y, dtype="float16")
    with pytest.raises(ValueError, match="solver='newton' only"):
        fitted(X, y, dtype="float32", solver="admm")


@pytest.mark.parametrize("sampling", ["uniform", "landmarks"])
def test_features_of_either_kind_can_be_rounded(sampling):
    X, y, _ = make_homoscedastic(5000, random_state=0)
    single, double = (fitted(X, y, alpha=1e-4, sampling=sampling, dtype=kind) for kind in ("float32", "float64"))
    gap = single.duality_gap_ + double.duality_gap_
    np.testing.assert_array_less(np.abs(single.objective_ / double.objective_ - 1), gap + 1e-15)
    assert single.duality_gap_.max() <= 2e-6


# Rows that are far away: features on Dask workers are stored in single precision, and the fit is proved on those that
# predict. Features of files are computed again in every pass, and never rounded.

N, M = 60_000, 40
ROOM, PLENTY = 1_800_000, 8 * N * M  # bytes: raw rows have no room in either, and rounded features have in the second
MODELS = {
    "quantiles": lambda **kwargs: plain_regressor([0.1, 0.5], **kwargs),
    "logcosh": lambda **kwargs: KernelRegressor("logcosh", **kwargs),
    "hinge": lambda **kwargs: KernelClassifier("hinge", **kwargs),
}


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    X = np.hstack([rng.uniform(-2, 2, (N, 3)), rng.uniform(-1e-3, 1e-3, (N, 40))])
    return X, np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] + (0.3 + 0.2 * X[:, 2] ** 2) * rng.standard_normal(N)


@pytest.fixture
def solves(monkeypatch):
    """The rows and the result of every solve."""
    done, solve_on = [], Task.solve

    def solve(self, rows, **kwargs):
        done.append((rows, solve_on(self, rows, **kwargs)))
        return done[-1][1]

    monkeypatch.setattr(Task, "solve", solve)
    return done


def settings_with(**others):
    return {"n_components": M, "random_state": 0, "bandwidth": 1.0, "alpha": 1e-4, "max_memory": PLENTY, **others}


def target_of(name, y):
    return np.where(y > 0.3, 1.0, -1.0) if name == "hinge" else y


def objective(model, name, X, y):
    """F of the features that predict."""
    loss = Pinball(model.quantiles_) if name == "quantiles" else model.loss_
    offset, sign = loss.margin_transform(y[:, None])
    residual = offset - sign * (model.feature_map_.transform(X) @ model.coef_ + model.intercept_)
    return loss.value(residual).mean(axis=0) + model.alpha_ * np.sum(model.coef_**2, axis=0)


@pytest.mark.parametrize("name", MODELS)
def test_a_fit_that_rounding_has_spoilt_goes_on(name, table, solves, monkeypatch):
    # Features of two digits: were the certificate that of the rounded problem, nobody would notice.
    da, dask = pytest.importorskip("dask.array"), pytest.importorskip("dask")
    typed = dask_tasks.TypedMap.transform

    def rounded(self, X, **kwargs):
        return typed(self, X, **kwargs) if self.dtype is float else np.round(typed(self, X, **kwargs), 2)

    monkeypatch.setattr(dask_tasks.TypedMap, "transform", rounded)
    X, y = table[0], target_of(name, table[1])
    with dask.config.set(scheduler="synchronous"):
        rows = da.from_array(X, chunks=(11_000, -1)), da.from_array(y, chunks=11_000)
        far = MODELS[name](**settings_with(dtype="float32")).fit(*rows)
    (_, first), (_, then) = solves
    assert first.relative_gap.max() <= 1e-6
    spoilt = MODELS[name](**settings_with()).fit(X[:1000], y[:1000])
    spoilt.coef_, spoilt.intercept_, spoilt.feature_map_ = first.coef, first.intercept, far.feature_map_
    assert np.all(objective(spoilt, name, X, y) > far.objective_ * (1 + 1e-5))
    np.testing.assert_allclose(far.objective_, objective(far, name, X, y), rtol=1e-12)
    assert far.duality_gap_.max() <= 1e-6
    assert then.sweeps > 2


@pytest.mark.parametrize("name", MODELS)
def test_features_of_files_are_not_rounded(name, table, solves):
    X, y = table[0], target_of(name, table[1])
    single, double = (
        MODELS[name](**settings_with(dtype=kind, max_memory=ROOM)).fit(MemmapRows(X, y))
        for kind in ("float32", "float64")
    )
    assert [type(rows) for rows, _ in solves] == [StreamedDesign] * 2, "no second solve"
    np.testing.assert_array_equal(single.coef_, double.coef_)
    np.testing.assert_array_equal(single.duality_gap_, double.duality_gap_)


def test_warm_starts_of_rounded_features(table):
    X, y = table
    model = plain_regressor([0.1, 0.9], **settings_with(dtype="float32", max_memory=None), warm_start=True)
    assert model.fit(X[:-3000], y[:-3000]).fit(X, y).duality_gap_.max() <= 2e-6


def test_dask_workers_keep_rounded_features(table, solves, monkeypatch):
    da = pytest.importorskip("dask.array")
    import dask

    X, y = table
    stored, transform_part = [], dask_tasks.transform_part

    def kept(part, typed_map):
        features = transform_part(part, typed_map)
        stored.extend((features[0].dtype, block.nbytes) for block in features)
        return features

    monkeypatch.setattr(dask_tasks, "transform_part", kept)
    with dask.config.set(scheduler="synchronous"):
        rows = da.from_array(X, chunks=(11_000, -1)), da.from_array(y, chunks=11_000)
        streamed = KernelRegressor("logcosh", **settings_with(dtype="float32", max_memory=4 * N * M)).fit(*rows)
        assert {kind for kind, _ in stored} == {np.dtype(np.float32)}
        assert sum(size for _, size in stored) == 4 * N * M
        (rounded, first), (exact, _) = solves
        assert (rounded.rounded, exact.rounded) == (True, False)
        levels = plain_regressor([0.1, 0.5], **settings_with(dtype="float32")).fit(*rows)
        stored.clear()
        too_large = KernelRegressor("logcosh", **settings_with(dtype="float32", max_memory=4 * N * M - 1)).fit(*rows)
    assert stored == []
    assert not solves[-1][0].rounded
    np.testing.assert_allclose(streamed.objective_, objective(streamed, "logcosh", X, y), rtol=1e-12)
    np.testing.assert_allclose(levels.objective_, objective(levels, "quantiles", X, y), rtol=1e-12)
    assert np.all(first.objective != streamed.objective_), "control: rounding shows"
    in_memory = KernelRegressor("logcosh", **settings_with(max_memory=None)).fit(X, y)
    for model in (streamed, too_large):
        apart = np.abs(model.objective_ / in_memory.objective_ - 1)
        np.testing.assert_array_less(apart, model.duality_gap_ + in_memory.duality_gap_ + 1e-15)
    assert max(streamed.duality_gap_.max(), levels.duality_gap_.max()) <= 1e-6
