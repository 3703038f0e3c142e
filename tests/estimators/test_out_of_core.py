"""Rows that are not in memory: the same model as from the same rows in memory, for about the same work."""

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.base import clone
from sklearn.model_selection import GroupKFold

from quernel import (
    ConformalQuantileRegressor,
    KernelClassifier,
    KernelQuantileRegressorCV,
    KernelRegressor,
)
from quernel.data import ArrayRows, InMemoryDesign, MemmapRows, ParquetRows, SelectedRows, StreamedDesign, sources
from quernel.estimators import quantile_cv as selection
from quernel.estimators.solve import Task
from quernel.metrics import coverage
from quernel.solvers.progress import listening
from quernel.tuning.bandwidth import auto_bandwidth
from quernel.tuning.data_summary import SAMPLE, DataSummary, StreamedSummary
from support.models import plain_regressor

# Forces rows to be streamed, and still has room for a sample that screening can begin with.
SMALL = 1_800_000


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (60_000, 3)) * [1, 10, 0.1]
    y = np.sin(2 * X[:, 0]) + 0.05 * X[:, 1] + (0.3 + 20 * X[:, 2] ** 2) * rng.standard_normal(len(X))
    return X, y, rng.integers(0, 3, len(X)).astype(float)


@pytest.fixture
def counted(monkeypatch):
    """The solvers' results, one for each fit."""
    results, solve_on = [], Task.solve

    def solve(self, rows, **kwargs):
        results.append((rows, solve_on(self, rows, **kwargs)))
        return results[-1][1]

    monkeypatch.setattr(Task, "solve", solve)
    return results


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch):
    monkeypatch.setattr(sources, "BLOCK_ROWS", 5000)


def parquet(folder, X, y, weight=None, files=3):
    """The rows in several files of several row groups."""
    for k, part in enumerate(np.array_split(np.arange(len(y)), files)):
        columns = {f"x{j}": X[part, j] for j in range(X.shape[1])} | {"y": y[part]}
        columns |= {} if weight is None else {"w": weight[part]}
        pq.write_table(pa.table(columns), folder / f"{k}.parquet", row_group_size=4000)
    return ParquetRows(folder / "*.parquet", "y", weight=None if weight is None else "w")


MODELS = {
    "quantiles": lambda **kwargs: plain_regressor([0.1, 0.5, 0.9], **kwargs),
    "huber": lambda **kwargs: KernelRegressor("huber", **kwargs),
    "epsilon": lambda **kwargs: KernelRegressor("epsilon_insensitive", **kwargs),
    "hinge": lambda **kwargs: KernelClassifier("hinge", class_weight="balanced", **kwargs),
    "classes": lambda **kwargs: KernelClassifier("squared_hinge", multiclass="ovr", **kwargs),
}


def target_for(name, y):
    return {"hinge": (y > 1).astype(float), "classes": np.digitize(y, [0, 0.8]) * 2.0}.get(name, y)


@pytest.mark.parametrize(
    ("name", "weighted"),
    [
        ("quantiles", False),
        ("quantiles", True),
        ("huber", True),
        ("epsilon", False),
        ("hinge", True),
        ("classes", True),
    ],
)
def test_a_model_of_streamed_files_is_that_of_arrays(name, weighted, data, tmp_path, counted):
    X, y, weight = data
    y, weight = target_for(name, y), weight if weighted else None
    kwargs = {"n_components": 40, "random_state": 0, "tol": 1e-9}
    in_memory = MODELS[name](**kwargs).fit(X, y, weight)
    out_of_core = MODELS[name](**kwargs, max_memory=SMALL).fit(parquet(tmp_path, X, y, weight))
    assert isinstance(counted[0][0], InMemoryDesign)
    assert isinstance(counted[1][0], StreamedDesign)
    assert out_of_core.duality_gap_.max() <= 1e-9
    np.testing.assert_allclose(out_of_core.objective_, in_memory.objective_, rtol=1e-9)
    np.testing.assert_allclose(out_of_core.alpha_, in_memory.alpha_, rtol=1e-12)
    np.testing.assert_allclose(out_of_core.bandwidth_, in_memory.bandwidth_, rtol=1e-12)
    np.testing.assert_array_equal(out_of_core.input_range_, in_memory.input_range_)
    assert list(out_of_core.feature_names_in_) == ["x0", "x1", "x2"]
    if name == "quantiles":
        assert out_of_core.crossing_rate_ == in_memory.crossing_rate_
    if name in ("hinge", "classes"):
        np.testing.assert_array_equal(out_of_core.classes_, in_memory.classes_)
        np.testing.assert_allclose(out_of_core._predict_raw(X[:100]), in_memory._predict_raw(X[:100]), atol=2e-3)
    else:
        np.testing.assert_allclose(
            out_of_core._predict_raw(X[:100]), in_memory._predict_raw(X[:100]), atol=1e-3 * np.std(y)
        )


@pytest.mark.parametrize(
    "kwargs",
    [
        {"n_components": "auto"},
        {"n_components": 60, "sampling": "leverage"},
        {"n_components": 60, "bandwidth": "learned"},
        {"kernel": "linear"},
    ],
    ids=str,
)
def test_automatic_choices_are_those_of_arrays(kwargs, data):
    X, y, weight = (part[:9000] for part in data)
    X = np.round(X, 1)  # rows that repeat
    kwargs = {"random_state": 1, "tol": 1e-6, "max_memory": 300_000} | kwargs
    in_memory = plain_regressor([0.2, 0.8], **kwargs).fit(X, y, weight)
    out_of_core = plain_regressor([0.2, 0.8], **kwargs).fit(MemmapRows(X, y, weight))
    assert out_of_core.n_components_ == in_memory.n_components_
    # A descent makes much of the last digit of its scales.
    np.testing.assert_allclose(out_of_core.alpha_, in_memory.alpha_, rtol=1e-6 if "bandwidth" in kwargs else 1e-12)
    if in_memory.bandwidth_ is not None:
        np.testing.assert_allclose(out_of_core.bandwidth_, in_memory.bandwidth_, rtol=1e-6)
    np.testing.assert_allclose(out_of_core.objective_, in_memory.objective_, rtol=2e-6)
    if hasattr(in_memory.feature_map_, "frequencies_"):
        np.testing.assert_allclose(
            out_of_core.feature_map_.frequencies_, in_memory.feature_map_.frequencies_, rtol=1e-6
        )


def test_the_overview_of_a_stream_is_that_of_arrays(data):
    X, y, weight = data
    y = np.round(y, 1)
    counts = weight > 0
    in_memory, out_of_core = (
        DataSummary(ArrayRows(X[counts], y[counts], weight[counts])),
        StreamedSummary(MemmapRows(X, y, weight)),
    )
    assert out_of_core.n_rows == in_memory.n_rows
    assert out_of_core.target_scale == in_memory.target_scale
    for name in ("mean", "scales", "range"):
        np.testing.assert_allclose(getattr(out_of_core, name), getattr(in_memory, name), rtol=1e-11, atol=1e-15)
    np.testing.assert_allclose(auto_bandwidth(out_of_core), auto_bandwidth(in_memory), rtol=1e-11, atol=1e-15)
    np.testing.assert_array_equal(out_of_core.map_strided(7, lambda rows: rows[:, :2]), X[counts][::7, :2])
    assert out_of_core.sample.n_rows < 1.25 * SAMPLE < in_memory.sample.n_rows


@pytest.mark.parametrize("order", ["target", "time"])
def test_sorted_files_take_no_more_work(order, counted):
    rng = np.random.default_rng(1)
    X = rng.uniform(-2, 2, (100_000, 3))
    y = np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] + (0.3 + 0.2 * X[:, 2] ** 2) * rng.standard_normal(len(X))
    model = plain_regressor([0.1, 0.5, 0.9], n_components=25, random_state=0, max_memory=3_000_000)
    by = np.argsort(y if order == "target" else X[:, 0])
    model.fit(MemmapRows(X, y))
    objective = model.objective_
    model.fit(MemmapRows(X[by], y[by]))
    np.testing.assert_allclose(model.objective_, objective, rtol=2e-6)
    (_, shuffled), (_, ordered) = counted
    assert min(shuffled.active_rows) > 0
    assert ordered.sweeps <= 1.5 * shuffled.sweeps
    assert ordered.hessian_rows <= 1.5 * shuffled.hessian_rows
    assert sum(ordered.active_rows) <= 1.5 * sum(shuffled.active_rows)


def test_with_hardly_any_memory_work_is_no_matter_of_luck(data, counted):
    """A sample that is too small makes a guess so poor that the work depends on which rows were drawn, and so on their
    order: by a factor of 1.9 for these. As drawn, sorted by target, sorted by time, and shuffled."""
    X, y, _ = data
    model = plain_regressor([0.1, 0.5, 0.9], n_components=40, random_state=0, max_memory=SMALL)
    shuffled = np.random.default_rng(0).permutation(len(y))
    objectives = []
    for order in (np.arange(len(y)), np.argsort(y), np.argsort(X[:, 0]), shuffled):
        objectives.append(model.fit(MemmapRows(X[order], y[order])).objective_)
    np.testing.assert_allclose(objectives[1:], objectives[:-1], rtol=2e-6)
    for work in ("sweeps", "hessian_rows"):
        found = [getattr(result, work) for _, result in counted]
        assert max(found) <= 1.3 * min(found)


def test_rows_that_fit_are_read_into_memory(data, tmp_path, counted):
    X, y, weight = (part[:4000] for part in data)
    kwargs = {"n_components": 30, "random_state": 0}
    arrays = plain_regressor(**kwargs).fit(X, y, weight)
    files = plain_regressor(**kwargs).fit(parquet(tmp_path, X, y, weight))
    objects = plain_regressor(**kwargs).fit(ArrayRows(X, y, weight))
    assert all(isinstance(rows, InMemoryDesign) for rows, _ in counted)
    np.testing.assert_array_equal(files.coef_, arrays.coef_)
    np.testing.assert_array_equal(objects.coef_, arrays.coef_)
    assert list(files.feature_names_in_) == ["x0", "x1", "x2"]
    assert not hasattr(objects, "feature_names_in_")


def test_predictions_of_files_are_streamed(data, tmp_path):
    X, y, _ = (part[:12_000] for part in data)
    rows = parquet(tmp_path, X, y)
    model = plain_regressor([0.1, 0.5, 0.9], n_components=40, random_state=0).fit(rows)
    plain = plain_regressor([0.1, 0.5, 0.9], n_components=40, random_state=0).fit(X, y)
    # Rows come in other blocks, in which products may be rounded otherwise.
    close = {"rtol": 1e-12, "atol": 1e-13}
    np.testing.assert_allclose(model.predict(rows), plain.predict(X), **close)
    np.testing.assert_allclose(model.predict(rows, 0.3), plain.predict(X, 0.3), **close)
    np.testing.assert_allclose(model.predict_interval(rows, coverage=0.5), plain.predict_interval(X, 0.5), **close)
    off = y + 0.01  # a fit goes through some of its rows, and on which side of the curve these are is rounding
    np.testing.assert_allclose(model.predict_cdf(rows, off), plain.predict_cdf(X, off), rtol=1e-9)
    np.testing.assert_allclose(model.predict_cdf(rows, 0.3), plain.predict_cdf(X, 0.3), rtol=1e-9)
    turned = ParquetRows(tmp_path / "*.parquet", "y", columns=["x2", "x0", "x1"])
    np.testing.assert_allclose(model.predict(turned), plain.predict(X), **close)
    with pytest.raises(ValueError, match="fitted with x0, x1, x2"):
        model.predict(ParquetRows(tmp_path / "*.parquet", "y", columns=["x2", "x0"]))
    with pytest.raises(ValueError, match="5 entries for 12,000 rows"):
        model.predict_cdf(rows, y[:5])


def far_rows(n=2000):
    rng = np.random.default_rng(0)
    return MemmapRows(rng.standard_normal((n, 3)), (np.arange(n) % 3).astype(float))


@pytest.mark.parametrize(
    ("model", "message", "instead"),
    [
        (plain_regressor(solver="admm"), "solver='admm'", "solver='newton'"),
        (plain_regressor(n_components="exact"), 'n_components="exact"', "random features"),
        (plain_regressor([0.1, 0.9], noncrossing="joint"), 'noncrossing="joint"', "rearrange"),
        (KernelClassifier("logistic"), "The multinomial model", "multiclass='ovr'"),
        (KernelClassifier("hinge", calibration="sigmoid"), "calibration='sigmoid'", "logistic"),
    ],
    ids=str,
)
def test_what_needs_memory_is_refused_for_rows_beyond_it(model, message, instead):
    with pytest.raises(ValueError, match=message) as caught:
        model.set_params(max_memory=1000).fit(far_rows())
    assert instead in str(caught.value)
    assert "2,000 x 3" in str(caught.value)


def test_unfit_arguments_are_refused_before_any_row_is_read():
    rows = far_rows()
    rows.stream = None  # reading would fail
    model = plain_regressor(n_components=10)
    with pytest.raises(ValueError, match="y was given beside MemmapRows, which has its own target"):
        model.fit(rows, np.zeros(2000))
    with pytest.raises(ValueError, match="sample_weight was given beside MemmapRows, which has its own weight"):
        model.fit(rows, sample_weight=np.ones(2000))
    with pytest.raises(ValueError, match="ArrayRows has no target"):
        model.fit(ArrayRows(np.zeros((3, 1)), None))
    with pytest.raises(ValueError, match=r"one label for each of 2000 rows; got shape \(1999,\)"):
        KernelQuantileRegressorCV(max_memory=1000).fit(far_rows(), groups=np.zeros(1999))
    with pytest.raises(ValueError, match=r"cv\+.*rows in memory"):
        ConformalQuantileRegressor(method="cv+").fit(rows)
    with pytest.raises(ValueError, match="groups was given"):
        ConformalQuantileRegressor().fit(rows, groups=np.zeros(2000))


def test_a_target_of_many_numbers_is_no_class(data):
    X, y, _ = data
    with pytest.raises(ValueError, match="more than 1,000 different values"):
        KernelClassifier(max_memory=1000).fit(MemmapRows(X, y))
    with pytest.raises(ValueError, match="one class only"):
        KernelClassifier(max_memory=1000).fit(MemmapRows(X, np.ones(len(X))))
    with pytest.raises(ValueError, match="class labels"):
        KernelClassifier(max_memory=1000).fit(MemmapRows(X, np.round(y, 1)))


def test_conformal_intervals_hold_rows_out_of_a_stream(data):
    X, y, weight = data
    train, test = slice(20_000), slice(20_000, 26_000)
    kwargs = {"n_components": 60, "tol": 1e-6}
    out_of_core = ConformalQuantileRegressor(
        plain_regressor(**kwargs, random_state=0, max_memory=500_000), random_state=3
    )
    in_memory = ConformalQuantileRegressor(plain_regressor(**kwargs, random_state=0), random_state=3)
    out_of_core.fit(MemmapRows(X[train], y[train], weight[train] + 1))
    in_memory.fit(X[train], y[train], weight[train] + 1)
    assert out_of_core.n_calibration_ == in_memory.n_calibration_ == 5000
    np.testing.assert_allclose(out_of_core.predict_interval(X[test]), in_memory.predict_interval(X[test]), atol=2e-3)
    assert 0.88 < coverage(y[test], *out_of_core.predict_interval(X[test]).T) < 0.92
    streamed = out_of_core.predict_interval(MemmapRows(X[test], y[test]))  # in other blocks: equal but for rounding
    np.testing.assert_allclose(streamed, out_of_core.predict_interval(X[test]), rtol=0, atol=1e-13)


def test_conformal_rows_without_weight_neither_fit_nor_calibrate(data):
    X, y, weight = (part[:8000] for part in data)
    model = plain_regressor(n_components=20, random_state=0)
    out_of_core = ConformalQuantileRegressor(model, random_state=0).fit(MemmapRows(X, y, weight))
    in_memory = ConformalQuantileRegressor(model, random_state=0).fit(X, y, weight)
    assert out_of_core.n_calibration_ == in_memory.n_calibration_ == round(np.count_nonzero(weight) / 4)
    np.testing.assert_allclose(out_of_core.predict_interval(X[:9]), in_memory.predict_interval(X[:9]), rtol=1e-9)
    few = np.where(np.arange(8000) % 160 == 0, 1.0, 0.0)  # of which a tenth is 5
    with pytest.raises(ValueError, match="needs at least 9 calibration rows; there are 5"):
        ConformalQuantileRegressor(model, calibration_size=0.1).fit(MemmapRows(X, y, few))
    few[8 * 160 :] = 0
    fitted = plain_regressor([0.05, 0.95], n_components=20).fit(X[:100], y[:100])
    with pytest.raises(ValueError, match="needs at least 9 calibration rows; there are 8"):
        ConformalQuantileRegressor(fitted, method="prefit").fit(MemmapRows(X, y, few))
    last = ConformalQuantileRegressor(model, time_ordered=True, calibration_size=500).fit(MemmapRows(X, y))
    direct = ConformalQuantileRegressor(model, time_ordered=True, calibration_size=500).fit(X, y)
    np.testing.assert_allclose(last.predict_interval(X[:9]), direct.predict_interval(X[:9]), rtol=1e-9)


@pytest.mark.parametrize("out_of_core", [False, True])
def test_splits_and_groups_of_a_search_are_of_all_rows_given(out_of_core, data, tmp_path):
    X, y, weight = (part[:900] for part in data)
    kwargs = {"alphas": [1e-3, 1e-1], "bandwidths": ["auto"], "n_components": 3, "random_state": 0}
    groups, half = np.arange(900) // 9, np.arange(450)
    for cv, labels in (([(half, half + 450)], None), (GroupKFold(3), groups)):
        search = KernelQuantileRegressorCV(0.5, cv=cv, **kwargs)
        in_memory = search.fit(X, y, weight, groups=labels).cv_results_["mean_test_score"]
        for rows in (MemmapRows(X, y, weight), parquet(tmp_path, X, y, weight), ArrayRows(X, y, weight)):
            where = {"max_memory": 30_000} if out_of_core and not isinstance(rows, ArrayRows) else {}
            again = clone(search).set_params(**where).fit(rows, groups=labels).cv_results_["mean_test_score"]
            np.testing.assert_allclose(again, in_memory, rtol=1e-6)


def test_a_search_on_some_rows_knows_their_groups(data, monkeypatch):
    X, y, weight = (part[:9000] for part in data)
    monkeypatch.setattr(selection, "SEARCHED", 1200)
    seen, read = [], selection.read_splits

    def keep(cv, X, y, counts, groups, rng):
        seen.append((X[:, 0], groups))
        return read(cv, X, y, counts, groups, rng)

    monkeypatch.setattr(selection, "read_splits", keep)
    kwargs = {"bandwidths": ["auto"], "n_components": 20, "random_state": 0, "max_memory": 200_000}
    KernelQuantileRegressorCV(0.5, cv=2, alphas=[0.1], **kwargs).fit(MemmapRows(X, y, weight), groups=X[:, 0])
    np.testing.assert_array_equal(*seen[0])
    assert 0 < len(seen[0][0]) <= 1200


def test_a_search_on_some_rows_is_refitted_to_all_with_less_ridge(data, monkeypatch):
    X, y, _ = data
    monkeypatch.setattr(selection, "SEARCHED", 1200)
    model = KernelQuantileRegressorCV(
        0.5, cv=0.3, bandwidths=["auto"], n_components=30, random_state=0, max_memory=700_000
    ).fit(MemmapRows(X, y))
    best = model.cv_results_["params"][model.best_index_]["alpha"]
    assert model.alpha_ == pytest.approx(best * np.sqrt(1200 / len(X)))
    given = KernelQuantileRegressorCV(
        0.5, alphas=[1e-4, 1.0], cv=0.3, bandwidths=["auto"], n_components=30, random_state=0, max_memory=700_000
    ).fit(MemmapRows(X, y))
    assert given.alpha_ == 1e-4
    assert given.duality_gap_.max() <= 1e-6


def test_selected_rows_are_some_of_the_rows(data):
    X, y, weight = (part[:20_000] for part in data)
    chosen = np.random.default_rng(0).random(20_000) < 0.3
    chosen[5000:10_000] = False  # a block without any
    rows = SelectedRows(MemmapRows(X, y, weight), chosen)
    assert rows.n_rows == chosen.sum()
    pieces = list(rows.stream(range(len(rows.spans))))
    np.testing.assert_array_equal(np.concatenate([piece.X for piece in pieces]), X[chosen])
    np.testing.assert_array_equal(np.concatenate([piece.weight for piece in pieces]), weight[chosen])
    assert [span.stop - span.start for span in rows.spans] == [len(piece.y) for piece in pieces]
    (middle,) = rows.stream(range(1, 2), X=False)
    np.testing.assert_array_equal(middle.y, y[10_000:15_000][chosen[10_000:15_000]])
    assert middle.X is None
    assert "10,000" in rows.place(1)
    assert list(rows.stream(range(0))) == []


def test_a_streamed_fit_tells_how_far_it_has_come(data, capsys):
    X, y, _ = data
    heard = []
    with listening(heard.append):
        plain_regressor(n_components=40, random_state=0, max_memory=SMALL).fit(MemmapRows(X, y))
    passes = [progress for progress in heard if progress.sweep]
    assert {progress.sweep for progress in passes} == set(range(1, passes[-1].sweep + 1))
    for number in range(1, passes[-1].sweep + 1):
        done = [progress.done for progress in passes if progress.sweep == number]
        assert all(before < after for before, after in pairwise(done))
        assert done[-1] == 1
    assert 3 <= passes[-1].sweep <= 8
    assert all(progress.left >= 0 for progress in passes)
    plain_regressor(n_components=40, random_state=0, max_memory=SMALL, verbose=1).fit(MemmapRows(X, y))
    assert "pass 1 over the rows is done" in capsys.readouterr().out
