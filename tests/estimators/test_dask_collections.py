"""Dask collections: fitted where they are, predicted lazily."""

import numpy as np
import pytest

from quernel import ConformalQuantileRegressor, KernelClassifier, KernelQuantileRegressorCV
from quernel.data import ArrayRows, DaskRows
from quernel.tuning.bandwidth import auto_bandwidth
from quernel.tuning.data_summary import DataSummary, StreamedSummary
from support.models import plain_regressor

dask = pytest.importorskip("dask")
da = pytest.importorskip("dask.array")
dd = pytest.importorskip("dask.dataframe")
pd = pytest.importorskip("pandas")


@pytest.fixture(autouse=True)
def synchronous():
    with dask.config.set(scheduler="synchronous"):
        yield


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (26_000, 3))
    y = np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] + (0.3 + 0.2 * X[:, 2] ** 2) * rng.standard_normal(len(X))
    return X, y, rng.integers(0, 3, len(X)).astype(float)


WORDS = {"n_components": 80, "random_state": 0}


@pytest.mark.parametrize("weighted", [False, True])
def test_a_fit_of_dask_arrays_is_that_of_arrays(weighted, data):
    X, y, weight = data
    kwargs = {**WORDS, "tol": 1e-9}
    in_memory = plain_regressor([0.1, 0.9], **kwargs).fit(X, y, weight if weighted else None)
    parts = da.from_array(X, chunks=(7000, 2)), da.from_array(y, chunks=5000)
    on_dask = plain_regressor([0.1, 0.9], **kwargs)
    on_dask.fit(*parts, da.from_array(weight, chunks=9000) if weighted else None)
    np.testing.assert_allclose(on_dask.objective_, in_memory.objective_, rtol=1e-9)
    np.testing.assert_allclose(on_dask.alpha_, in_memory.alpha_, rtol=1e-12)
    np.testing.assert_allclose(on_dask.bandwidth_, in_memory.bandwidth_, rtol=1e-12)
    assert on_dask.crossing_rate_ == in_memory.crossing_rate_
    assert on_dask.duality_gap_.max() <= 1e-9


def test_the_overview_of_a_dask_collection_is_that_of_arrays(data):
    X, y, weight = data
    counts = weight > 0
    in_memory = DataSummary(ArrayRows(X[counts], y[counts], weight[counts]))
    on_dask = StreamedSummary(DaskRows(da.from_array(X, chunks=3000), da.from_array(y, chunks=3000), weight))
    assert on_dask.n_rows == in_memory.n_rows
    assert on_dask.target_scale == in_memory.target_scale
    for name in ("mean", "scales", "range"):
        np.testing.assert_allclose(getattr(on_dask, name), getattr(in_memory, name), rtol=1e-11, atol=1e-15)
    np.testing.assert_allclose(auto_bandwidth(on_dask), auto_bandwidth(in_memory), rtol=1e-11, atol=1e-15)
    np.testing.assert_array_equal(on_dask.map_strided(7, lambda rows: rows[:, :2]), X[counts][::7, :2])


def test_predictions_are_lazy_and_keep_chunks(data):
    X, y, _ = (part[:6000] for part in data)
    model = plain_regressor([0.1, 0.5, 0.9], n_components=40, random_state=0).fit(X, y)
    lazy = model.predict(da.from_array(X, chunks=((1000, 5000), (2, 1))))
    assert isinstance(lazy, da.Array)
    assert lazy.chunks == ((1000, 5000), (3,))
    np.testing.assert_allclose(lazy.compute(), model.predict(X), rtol=1e-12)
    interval = model.predict_interval(da.from_array(X, chunks=2000), coverage=0.6)
    np.testing.assert_allclose(interval.compute(), model.predict_interval(X, coverage=0.6), rtol=1e-12)
    for given in (y, da.from_array(y, chunks=1500)):
        cdf = model.predict_cdf(da.from_array(X, chunks=2000), given)
        assert cdf.chunks == ((2000,) * 3,)
        np.testing.assert_allclose(cdf.compute(), model.predict_cdf(X, y), rtol=1e-9)

    def fail(block):
        raise AssertionError("computed too early")

    model.predict(da.from_array(X, chunks=2000).map_blocks(fail, meta=np.empty((0, 0))))


def test_predictions_of_linear_and_named_models_are_lazy(data):
    X, y, _ = (part[:500] for part in data)
    A = da.from_array(X, chunks=200)
    linear = plain_regressor(kernel="linear").fit(X, y)
    np.testing.assert_allclose(linear.predict(A).compute(), linear.predict(X), rtol=1e-12)
    with pytest.raises(ValueError, match="3 features"):
        linear.predict(A[:, :2])
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    named = plain_regressor(n_components=10, random_state=0).fit(frame, y)
    rows = DaskRows(dd.from_pandas(frame[["c", "a", "b"]], npartitions=2), y)
    np.testing.assert_allclose(named.predict(rows).compute(), named.predict(frame), rtol=1e-12)
    np.testing.assert_array_equal(linear.is_extrapolation(A).compute(), np.zeros(500, dtype=bool))


def test_data_frames_are_known_by_their_columns(data):
    X, y, _ = (part[:6000] for part in data)
    frame = pd.DataFrame(X, columns=["a", "b", "c"]).assign(y=y)
    parts = dd.from_pandas(frame, npartitions=4)
    on_dask = plain_regressor([0.1, 0.9], n_components=20, random_state=0).fit(parts, "y")
    in_memory = plain_regressor([0.1, 0.9], n_components=20, random_state=0).fit(frame[["a", "b", "c"]], y)
    assert list(on_dask.feature_names_in_) == ["a", "b", "c"]
    np.testing.assert_allclose(on_dask.objective_, in_memory.objective_, rtol=1e-6)
    lazy = on_dask.predict(parts[["a", "b", "c"]])
    assert lazy.numblocks == (4, 1)
    np.testing.assert_allclose(lazy.compute(), on_dask.predict(frame[["a", "b", "c"]]), rtol=1e-12)


def test_classes_intervals_and_searches_of_dask_collections(data):
    X, y, _ = (part[:9000] for part in data)
    A, b = da.from_array(X, chunks=2500), da.from_array(y, chunks=2500)
    labels = np.digitize(y, [0, 0.8])
    kwargs = {"n_components": 30, "random_state": 0}
    on_dask = KernelClassifier("hinge", class_weight="balanced", **kwargs).fit(A, da.from_array(labels, chunks=4000))
    in_memory = KernelClassifier("hinge", class_weight="balanced", **kwargs).fit(X, labels)
    np.testing.assert_allclose(on_dask.objective_, in_memory.objective_, rtol=2e-6)
    np.testing.assert_array_equal(on_dask.predict(A).compute(), on_dask.predict(X))
    interval = ConformalQuantileRegressor(plain_regressor(**kwargs), random_state=0).fit(A, b)
    same = ConformalQuantileRegressor(plain_regressor(**kwargs), random_state=0).fit(X, y)
    np.testing.assert_allclose(interval.predict_interval(A).compute(), same.predict_interval(X), atol=5e-3)
    found = KernelQuantileRegressorCV(alphas=[1e-4, 1.0], cv=0.3, bandwidths=["auto"], **kwargs).fit(A, b)
    assert found.alpha_ == 1e-4


def test_unfit_collections_are_refused(data):
    X, y, _ = (part[:100] for part in data)
    A = da.from_array(X, chunks=50)
    with pytest.raises(ValueError, match="needs y"):
        plain_regressor().fit(A)
    with pytest.raises(ValueError, match="y or sample_weight is a Dask collection, but X is a ndarray"):
        plain_regressor().fit(X, da.from_array(y, chunks=50))
    with pytest.raises(ValueError, match="stay where Dask has them"):
        plain_regressor(n_components="exact").fit(A, y)
    frame = dd.from_pandas(pd.DataFrame({"a": ["x", "y"], "b": [1.0, 2.0]}), npartitions=1)
    with pytest.raises(ValueError, match=r"'a' holds .*not numbers"):
        plain_regressor().fit(frame, "b")
