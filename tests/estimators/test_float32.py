"""Features stored in single precision: half the memory, and a certificate that says what it costs."""

import tempfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from quernel import (
    ConformalQuantileRegressor,
    KernelClassifier,
    KernelQuantileRegressorCV,
    KernelRegressor,
    estimate_cost,
)
from quernel.data import ArrayRows, InMemoryDesign, MemmapRows, ParquetRows, StreamedDesign, dask_tasks, feature_cache
from quernel.data.design_matrix import Float32Map
from quernel.datasets import make_homoscedastic
from quernel.estimators.solve import Task
from quernel.features import RandomFeatures
from quernel.losses import Pinball
from quernel.solvers.screening import rounds
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


# Rows that are far away: features are cached in single precision, and the fit is proved on those that predict.

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


@pytest.fixture(autouse=True)
def temporary_folder_on_disk(monkeypatch, tmp_path_factory):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("temporary")))
    monkeypatch.setattr(feature_cache, "in_memory", lambda folder: False)


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


@pytest.mark.parametrize(
    ("name", "cache"), [(name, "disk") for name in MODELS] + [("quantiles", "memory"), ("logcosh", "folder")]
)
def test_streamed_rows_are_fitted_on_float32_features_and_certified_on_float64_ones(
    name, cache, table, solves, tmp_path
):
    X, y = table[0], target_of(name, table[1])
    columns = {f"x{j:02}": X[:, j] for j in range(X.shape[1])}
    pq.write_table(pa.table(columns | {"y": y}), tmp_path / "rows.parquet", row_group_size=9000)
    source = ParquetRows(tmp_path / "rows.parquet", "y", cache=tmp_path if cache == "folder" else cache)
    streamed = MODELS[name](**settings_with(dtype="float32")).fit(source)
    (rounded, first), (exact, proof) = solves
    assert rounded.rounded
    assert not exact.rounded
    single, double = (
        MODELS[name](**settings_with(dtype=kind, max_memory=None)).fit(X, y) for kind in ("float32", "float64")
    )
    np.testing.assert_allclose(streamed.objective_, objective(streamed, name, X, y), rtol=1e-12)
    assert np.all(first.objective != streamed.objective_), "control: rounding shows"
    assert streamed.duality_gap_.max() <= 1e-6
    for in_memory in (single, double):
        apart = np.abs(streamed.objective_ / in_memory.objective_ - 1)
        np.testing.assert_array_less(apart, streamed.duality_gap_ + in_memory.duality_gap_ + 1e-15)
    assert [path.name for path in tmp_path.iterdir()] == ["rows.parquet"]
    assert streamed.n_iter_ == (first.iterations + proof.iterations).max()


@pytest.mark.parametrize("name", MODELS)
def test_the_proof_takes_one_sweep_over_unrounded_features(name, table, solves, monkeypatch):
    sweeps = []

    def counted(sweep):
        return lambda self, *args, **kwargs: (sweeps.append(self), sweep(self, *args, **kwargs))[1]

    monkeypatch.setattr(StreamedDesign, "map_reduce", counted(StreamedDesign.map_reduce))
    monkeypatch.setattr(StreamedDesign, "map_reduce_split", counted(StreamedDesign.map_reduce_split))
    X, y = table[0], target_of(name, table[1])
    streamed = MODELS[name](**settings_with(dtype="float32")).fit(MemmapRows(X, y, cache="memory"))
    _, (exact, _) = solves
    assert [rows._shared is exact._shared for rows in sweeps] == [False] * (len(sweeps) - 1) + [True]
    assert streamed.duality_gap_.max() <= 1e-6


@pytest.mark.parametrize("name", MODELS)
def test_a_fit_that_rounding_has_spoilt_goes_on(name, table, solves, monkeypatch):
    # Features of two digits: were the certificate that of the rounded problem, nobody would notice.
    monkeypatch.setattr(Float32Map, "transform", lambda self, X: np.round(self.feature_map.transform(X), 2))
    X, y = table[0], target_of(name, table[1])
    streamed = MODELS[name](**settings_with(dtype="float32")).fit(MemmapRows(X, y, cache="disk"))
    (_, first), (_, then) = solves
    assert first.relative_gap.max() <= 1e-6
    spoilt = MODELS[name](**settings_with()).fit(X[:1000], y[:1000])
    spoilt.coef_, spoilt.intercept_, spoilt.feature_map_ = first.coef, first.intercept, streamed.feature_map_
    assert np.all(objective(spoilt, name, X, y) > streamed.objective_ * (1 + 1e-5))
    np.testing.assert_allclose(streamed.objective_, objective(streamed, name, X, y), rtol=1e-12)
    assert streamed.duality_gap_.max() <= 1e-6
    assert then.sweeps > 2


def test_nothing_is_rounded_that_is_not_cached(table, solves):
    fits = [
        plain_regressor([0.1, 0.5], **settings_with(dtype=kind, max_memory=ROOM)).fit(MemmapRows(*table, cache=cache))
        for kind, cache in (("float64", "recompute"), ("float32", "recompute"), ("float32", "auto"))
    ]
    assert len(solves) == 3, "no second solve"
    labels = target_of("hinge", table[1])
    KernelClassifier("hinge", **settings_with(dtype="float32")).fit(MemmapRows(table[0], labels, cache="recompute"))
    assert len(solves) == 4, "classes are streamed as their rows say"
    for other in fits[1:]:
        np.testing.assert_array_equal(fits[0].coef_, other.coef_)
        np.testing.assert_array_equal(fits[0].duality_gap_, other.duality_gap_)


def test_small_problems_are_solved_on_unrounded_features(table, solves):
    X, y = table[0][:3000], table[1][:3000]
    streamed, in_memory = (
        plain_regressor([0.1, 0.5], **settings_with(dtype=kind, max_memory=500_000)).fit(MemmapRows(X, y, cache="disk"))
        for kind in ("float32", "float64")
    )
    assert len(solves) == 2
    np.testing.assert_array_equal(streamed.coef_, in_memory.coef_)
    np.testing.assert_allclose(streamed.objective_, objective(streamed, "quantiles", X, y), rtol=1e-12)


def test_warm_starts_checkpoints_searches_and_intervals_of_rounded_features(table, solves, tmp_path, monkeypatch):
    X, y = table
    kwargs = settings_with(dtype="float32")
    model = plain_regressor([0.1, 0.9], **kwargs, warm_start=True).fit(MemmapRows(X[:-3000], y[:-3000]))
    model.fit(MemmapRows(X, y))
    (_, cold), _, (_, warm), _ = solves
    assert warm.hessian_rows < cold.hessian_rows
    assert model.duality_gap_.max() <= 1e-6
    in_memory = plain_regressor([0.1, 0.9], **settings_with(dtype="float32", max_memory=None), warm_start=True)
    assert in_memory.fit(X[:-3000], y[:-3000]).fit(X, y).duality_gap_.max() <= 2e-6

    solves.clear()
    with monkeypatch.context() as patch:
        patch.setattr(rounds, "_proof", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            plain_regressor([0.1, 0.9], **kwargs).fit(MemmapRows(X, y), checkpoint=tmp_path / "fit")
    again = plain_regressor([0.1, 0.9], **kwargs).fit(MemmapRows(X, y), checkpoint=tmp_path / "fit")
    (_, whole), (_, rest), _ = solves
    assert rest.sweeps < whole.sweeps
    in_memory = plain_regressor([0.1, 0.9], **settings_with(max_memory=None)).fit(X, y)
    np.testing.assert_allclose(again.objective_, in_memory.objective_, rtol=2e-6)
    assert list(tmp_path.iterdir()) == []

    grid = {"alphas": [1e-4], "bandwidths": [1.0], "cv": 2}
    kwargs = {name: value for name, value in kwargs.items() if name not in ("alpha", "bandwidth")}
    search = KernelQuantileRegressorCV([0.1, 0.9], **kwargs, **grid).fit(MemmapRows(X, y))
    assert search.duality_gap_.max() <= 1e-6
    wrapped = ConformalQuantileRegressor(plain_regressor([0.1, 0.9], **kwargs), coverage=0.8, random_state=0)
    ends = wrapped.fit(MemmapRows(X, y)).predict_interval(X)
    assert 0.77 < np.mean((ends[:, 0] <= y) & (y <= ends[:, 1])) < 0.83
    assert len(solves) == 7, "each solved, and proved"


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
