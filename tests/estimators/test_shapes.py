"""Estimators under shape constraints: what holds, what is refused, what a fit must not depend on."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

import quernel
from quernel import KernelQuantileRegressor
from quernel.estimators import shapes
from quernel.estimators.shapes import along_grid, choose_grid

QUICK = {"n_components": 30, "bandwidth": 0.3, "alpha": 1e-4, "random_state": 0}
LEVELS = [0.1, 0.5, 0.9]


def rows_with_noise(seed=0, n=120):
    rng = np.random.default_rng(seed)
    X = rng.random((n, 2))
    y = np.exp(X[:, 0]) - X[:, 1] + (0.3 + X[:, 1]) * rng.standard_normal(n)
    return X, y - y.min()


def steps_along(model, X, j):
    """Differences of predictions along the grid of column j, at the training rows."""
    grid = choose_grid(X[:, j])
    lines = model.predict(along_grid(X, grid, j)).reshape(len(X), len(grid), -1)
    return np.diff(lines, axis=1)


def test_quantiles_are_monotone_and_bounded_where_the_free_fit_is_not():
    X, y = rows_with_noise()
    free = KernelQuantileRegressor(LEVELS, **QUICK).fit(X, y)
    model = KernelQuantileRegressor(LEVELS, monotone={0: 1, 1: -1}, lower=0, **QUICK).fit(X, y)
    assert np.mean(steps_along(free, X, 0) < 0) > 0.1
    assert free.predict(X).min() < 0
    assert steps_along(model, X, 0).min() >= 0  # at all rows: there are fewer than anchors
    assert steps_along(model, X, 1).max() <= 0
    assert model.predict(np.random.default_rng(1).random((500, 2))).min() >= 0
    assert model.duality_gap_.max() <= model.tol
    assert np.all(model.objective_ >= free.objective_)
    assert set(model.shape_violation_) == {"monotone in column 0", "monotone in column 1", "lower"}
    assert 0 <= model.shape_violation_["monotone in column 0"] < 0.1 * np.std(y)
    assert free.shape_violation_ is None
    assert "Column 0: quantiles do not fall with it." in str(model.plan_)


def test_convex_levels_do_not_cross():
    X, y = rows_with_noise()
    model = KernelQuantileRegressor(LEVELS, convex={0: 1}, noncrossing="joint", **QUICK).fit(X, y)
    grid = choose_grid(X[:, 0])
    lines = model._predict_unsnapped(along_grid(X, grid, 0)).reshape(len(X), len(grid), -1)
    slopes = np.diff(lines, axis=1) / np.diff(grid)[:, None]
    assert np.diff(slopes, axis=1).min() >= -1e-9 * np.abs(slopes).max()  # slopes are divided by small steps
    assert np.diff(model._predict_unsnapped(X), axis=1).min() >= 0
    assert not model.level_shift_.any()


def test_turning_a_column_turns_its_constraint():
    X, y = rows_with_noise(n=40)
    settings = QUICK | {"n_components": 40, "sampling": "landmarks", "kernel": "gaussian"}  # every row is a landmark
    one = KernelQuantileRegressor(0.5, monotone={0: 1}, **settings).fit(X, y)
    other = KernelQuantileRegressor(0.5, monotone={0: -1}, **settings).fit(X * [-1, 1], y)
    assert one.objective_ == pytest.approx(other.objective_, rel=3e-6)
    same_sign = KernelQuantileRegressor(0.5, monotone={0: 1}, **settings).fit(X * [-1, 1], y)
    assert same_sign.objective_[0] > one.objective_[0] * 1.01


def test_another_unit_of_y():
    X, y = rows_with_noise()
    settings = QUICK | {"alpha_scale": "relative", "monotone": {0: 1}}
    model = KernelQuantileRegressor(LEVELS, lower=0, **settings).fit(X, y)
    scaled = KernelQuantileRegressor(LEVELS, lower=0, **settings).fit(X, 1000 * y)
    np.testing.assert_allclose(scaled.objective_, 1000 * model.objective_, rtol=3e-6)


def test_a_constraint_that_holds_anyway_changes_nothing():
    X, y = rows_with_noise()
    free = KernelQuantileRegressor(LEVELS, **QUICK).fit(X, y)
    model = KernelQuantileRegressor(LEVELS, lower=-100, upper=100, **QUICK).fit(X, y)
    np.testing.assert_array_equal(free.predict(X), model.predict(X))


def test_columns_of_frames_by_name():
    X, y = rows_with_noise()
    frame = pd.DataFrame({"place": np.where(X[:, 1] > 0.5, "north", "south"), "size": X[:, 0], "age": X[:, 1]})
    frame.loc[::10, "size"] = np.nan
    model = KernelQuantileRegressor(0.5, monotone={"size": 1}, **QUICK).fit(frame, y)
    present = frame[frame["size"].notna()]
    grid = choose_grid(frame["size"].fillna(frame["size"].median()).to_numpy())
    assert np.diff([model.predict(present.assign(size=value)) for value in grid], axis=0).min() >= 0
    assert model.shape_violation_.keys() == {"monotone in column 'size'"}
    for shape, message in (
        ({"monotone": {"place": 1}}, "column 'place' is text, which is encoded by 2 columns"),
        ({"monotone": {"weight": 1}}, "names the column 'weight', which X does not have"),
        ({"convex": {7: 1}}, "position 7, but X has 3 columns"),
    ):
        with pytest.raises(ValueError, match=message):
            KernelQuantileRegressor(0.5, **shape, **QUICK).fit(frame, y)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"monotone": [1, -1]}, "monotone must be a dict such as"),
        ({"monotone": {0: 2}}, r"monotone\[0\] must be 1, -1, or 0"),
        ({"convex": {0.5: 1}}, "convex must name columns"),
        ({"monotone": {"a": 1}}, "X has no names"),
        ({"lower": 3, "upper": 2}, "lower must be below upper"),
        ({"lower": "zero"}, "lower must be a finite number or None"),
        ({"lower": 1.0}, "values beyond lower=1"),
        ({"lower": 0, "solver": "admm"}, "need solver='newton'"),
        ({"lower": 0, "fit_intercept": False}, "need fit_intercept=True"),
        ({"lower": 0, "n_components": "exact"}, "sampling='landmarks'"),
        ({"convex": {0: 1}, "quantiles": LEVELS}, "noncrossing='joint' with several levels"),
        ({"lower": 0, "inference": True}, "Leave inference at False"),
        ({"lower": 0, "tails": "pareto", "quantiles": LEVELS}, "Leave tails at None"),
        ({"lower": 0, "warm_start": True}, "warm_start=True is not for A shape"),
    ],
)
def test_what_is_refused(parameters, message):
    X, y = rows_with_noise(n=40)
    with pytest.raises(ValueError, match=message):
        KernelQuantileRegressor(**QUICK | parameters).fit(X, y)


def test_saved_models_have_the_shape(tmp_path):
    X, y = rows_with_noise()
    model = KernelQuantileRegressor(LEVELS, monotone={0: 1, 1: 0}, lower=0, **QUICK).fit(X, y**3)
    quernel.save(model, tmp_path / "m.quernel")
    loaded = quernel.load(tmp_path / "m.quernel")
    far = 6 * np.random.default_rng(2).random((300, 2)) - 3
    np.testing.assert_array_equal(loaded._decision_function(far), model._decision_function(far))
    assert loaded._decision_function(far).min() == 0  # clipped
    assert loaded.shape_violation_ == model.shape_violation_
    assert clone(model).get_params()["monotone"] == {0: 1, 1: 0}


def test_point_masses_are_not_shifted():
    X, y = rows_with_noise()
    y = np.maximum(y - np.quantile(y, 0.3), 0)
    model = KernelQuantileRegressor(LEVELS, monotone={0: 1}, lower=0, **QUICK).fit(X, y)
    assert len(model.frequent_values_)
    assert not model.level_shift_.any()
    assert steps_along(model, X, 0).min() >= 0


@pytest.mark.parametrize("sampling", ["landmarks", "uniform"])
def test_trends_are_saved_and_exported(sampling, tmp_path):
    X, y = rows_with_noise(n=60)
    X = np.column_stack([X, np.random.default_rng(1).random(60)])
    settings = QUICK | {"n_components": 20, "sampling": sampling}
    asked = {"monotone": {0: 1}, "convex": {0: 1, 1: 1}, "noncrossing": "joint"}
    model = KernelQuantileRegressor(LEVELS, **asked, **settings).fit(X, y)
    # 20 of the kernel, 6 of the third column, these times two trends, two trends
    assert model.coef_.shape == (20 + 3 * 6 + 2, 3)
    one_by_one = np.vstack([model.predict(row[None]) for row in X])
    np.testing.assert_allclose(one_by_one, model.predict(X), rtol=1e-13)
    quernel.save(model, tmp_path / "m.quernel")
    np.testing.assert_allclose(quernel.load(tmp_path / "m.quernel").predict(X), model.predict(X), rtol=1e-9)
    with pytest.raises(ValueError, match="kernel_gap is for fits without monotone or convex columns"):
        model.kernel_gap(X, y)
    onnxruntime = pytest.importorskip("onnxruntime")
    quernel.to_onnx(model, tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"))
    (name,) = (one.name for one in session.get_inputs())
    found = session.run(None, {name: X})[0]
    np.testing.assert_allclose(found, model.predict(X), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("n", [300, 2500])
def test_levels_hold_where_constraints_bind(n):
    def draw(n, seed):
        rng = np.random.default_rng(seed)
        X = rng.random((n, 3))
        return X, np.sin(6 * X[:, 1]) - 2 * X[:, 0] - X[:, 2] + rng.standard_normal(n)

    X, y = draw(n, 0)
    settings = {"bandwidth": 0.25, "alpha": 3e-4 / n, "n_components": 150, "tol": 1e-4, "random_state": 0}
    model = KernelQuantileRegressor([0.1, 0.5, 0.9], monotone={0: 1, 2: 1}, **settings).fit(X, y)
    assert model.level_shift_.any()
    X_new, y_new = draw(4000, 99)
    below = np.mean(y_new[:, None] <= model.predict(X_new), axis=0)
    np.testing.assert_allclose(below, [0.1, 0.5, 0.9], atol=0.035)


def test_what_lies_far_from_the_rows_does_not_hold_the_fit_back(monkeypatch):
    """Negative control: without functions of the other columns alone constraints where no rows are cost accuracy."""

    def draw(n, seed):
        rng = np.random.default_rng(seed)
        x1 = rng.random(n)
        X = np.column_stack([x1 + 0.1 * rng.random(n), x1, rng.random(n)])  # the first two hardly differ
        return X, X[:, 0] + 3 * np.sin(9 * x1) + 0.3 * rng.standard_normal(n)

    def error():
        settings = {"kernel": "laplacian", "sampling": "landmarks", "bandwidth": 0.6, "random_state": 0}
        model = KernelQuantileRegressor(0.5, n_components=60, alpha=1e-6, monotone={0: 1}, **settings).fit(
            *draw(300, 0)
        )
        assert model.duality_gap_.max() <= model.tol
        X, y = draw(1000, 1)
        return np.mean(np.abs(y - model.predict(X)))

    with_others = error()
    monkeypatch.setattr(shapes, "OPTIONS", replace(shapes.OPTIONS, n_others=0))
    assert with_others < 0.9 * error()
