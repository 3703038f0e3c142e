"""TabularQuantileRegressor under shape constraints: what holds, what is refused, what a fit must not depend on."""

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

import quernel
from quernel import TabularQuantileRegressor
from quernel.data import MemmapRows
from quernel.estimators.forest_weights import SortedValues, grow_forest
from quernel.estimators.shaped_parts import SCORES, SmoothQuantiles, _measure_beyond
from quernel.estimators.shapes import along_grid, choose_grid

LEVELS = [0.02, 0.1, 0.4, 0.5, 0.9, 0.99]  # between and beyond those of the kernel
QUICK = {"n_trees": 20, "n_components": 30, "random_state": 0}


def rows_with_local_effect(seed=0, n=240):
    """y rises with column 0, is convex in it, and jumps up and down with column 1, as no kernel follows."""
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.random(n), rng.integers(0, 40, n), rng.random(n)])
    jump = 5 * np.random.default_rng(9).permutation(40)[X[:, 1].astype(int)] / 40
    y = np.exp(1.5 * X[:, 0]) + jump + 0.4 * (1 + X[:, 0]) * rng.standard_normal(n)
    return X, np.maximum(y, 0)


def lines_along(model, X, j, levels=LEVELS):
    """Predictions along the grid of column j, at the training rows, (n, g, q), and the grid."""
    grid = choose_grid(X[:, j])
    return model.predict(along_grid(X, grid, j), quantiles=levels).reshape(len(X), len(grid), -1), grid


def pinball(model, X, y, levels=LEVELS):
    residual = y[:, None] - model.predict(X, quantiles=levels)
    return np.mean(np.maximum(np.array(levels) * residual, (np.array(levels) - 1) * residual))


def test_quantiles_are_monotone_and_bounded_where_the_free_fit_is_not():
    X, y = rows_with_local_effect()
    free = TabularQuantileRegressor(**QUICK).fit(X, y)
    model = TabularQuantileRegressor(monotone={0: 1, 2: -1}, lower=0, upper=12, **QUICK).fit(X, y)
    assert np.mean(np.diff(lines_along(free, X, 0)[0], axis=1) < 0) > 0.01
    assert free.shape_violation_ is None
    for j, sign in ((0, 1), (2, -1)):
        lines, _ = lines_along(model, X, j)
        assert (sign * np.diff(lines, axis=1)).min() >= 0  # at all rows: there are fewer than anchors
    elsewhere = np.random.default_rng(1).uniform(-1, 2, (500, 3)) * [1, 40, 1]
    quantiles = model.predict(elsewhere, quantiles=np.linspace(0.001, 0.999, 99))
    assert np.diff(quantiles, axis=1).min() >= 0
    assert quantiles.min() >= 0
    assert quantiles.max() <= 12
    assert model.duality_gap_.shape == (5,)
    assert model.duality_gap_.max() <= 1e-6
    assert set(model.shape_violation_) == {"monotone in column 0", "monotone in column 2", "lower", "upper"}
    assert model.shape_violation_["monotone in column 0"] < 0.1 * np.std(y)
    assert "Column 0: quantiles do not fall with it." in str(model)


@pytest.mark.parametrize("bounds", [{}, {"lower": 0.0}, {"upper": 12.0}])
def test_quantiles_are_convex_at_every_level(bounds):
    X, y = rows_with_local_effect(n=120)
    model = TabularQuantileRegressor(convex={0: 1}, **bounds, **QUICK).fit(X, y)
    lines, grid = lines_along(model, X, 0)
    slopes = np.diff(lines, axis=1) / np.diff(grid)[:, None]
    assert np.diff(slopes, axis=1).min() >= -1e-9 * np.abs(slopes).max()  # slopes are divided by small steps
    assert np.diff(lines, axis=2).min() >= 0


def test_the_local_part_helps_where_an_effect_is_local():
    X, y = rows_with_local_effect(n=600)
    X_new, y_new = rows_with_local_effect(seed=1, n=600)
    settings = {"monotone": {0: 1}, **QUICK}
    both = TabularQuantileRegressor(**settings).fit(X, y)
    smooth = TabularQuantileRegressor(parts=["kernel"], **settings).fit(X, y)
    assert both.shares_["kernel"] < 0.5  # the rest is that of forests
    assert smooth.shares_ == {"kernel": 1.0}
    assert smooth.parts_.residual_forest is None
    assert pinball(both, X_new, y_new) < 0.95 * pinball(smooth, X_new, y_new)
    coverage = np.mean(y_new[:, None] <= both.predict(X_new, quantiles=[0.1, 0.5, 0.9]), axis=0)
    np.testing.assert_allclose(coverage, [0.1, 0.5, 0.9], atol=0.06)


@pytest.mark.parametrize("min_leaf", [1, 3])
def test_an_ordered_forest_is_monotone_everywhere_and_no_forest_of_other_columns(min_leaf):
    X, y = rows_with_local_effect(n=400)
    weight = np.random.default_rng(1).uniform(0.5, 2, 400)
    values, signs = SortedValues.from_values(y, weight), np.array([1, 0, -1])
    free = grow_forest(X, y, weight, 20, np.random.default_rng(0)).cut(min_leaf, values)
    forest = grow_forest(X, y, weight, 20, np.random.default_rng(0), signs=signs).cut(min_leaf, values)
    rows = np.random.default_rng(2).random((200, 3)) * [1, 40, 1]
    grid = np.linspace(-0.1, 1.1, 60)
    for j in (0, 2):
        lines = forest.quantiles(along_grid(rows, grid, j), np.array(LEVELS)).reshape(200, 60, -1)
        assert (signs[j] * np.diff(lines, axis=1)).min() >= 0
        other = free.quantiles(along_grid(rows, grid, j), np.array(LEVELS)).reshape(200, 60, -1)
        assert (signs[j] * np.diff(other, axis=1)).min() < 0
        assert np.ptp(lines, axis=1).max() > 0


def test_names_in_a_frame_are_positions_in_an_array():
    X, y = rows_with_local_effect(n=100)
    one = TabularQuantileRegressor(monotone={0: 1}, convex={2: -1}, **QUICK).fit(X, y)
    frame = pd.DataFrame(X, columns=["dose", "kind", "age"])
    other = TabularQuantileRegressor(monotone={"dose": 1}, convex={"age": -1}, **QUICK).fit(frame, y)
    np.testing.assert_array_equal(one.predict(X, quantiles=LEVELS), other.predict(frame, quantiles=LEVELS))
    assert set(other.shape_violation_) == {"monotone in column 'dose'", "convex in column 'age'"}
    assert "Column 'dose': quantiles do not fall with it." in str(other)


def test_a_shape_in_a_table_with_text_and_missing_values():
    X, y = rows_with_local_effect(n=150)
    table = pd.DataFrame({"kind": np.array(list("abcdefgh"))[X[:, 1].astype(int) // 5], "dose": X[:, 0]})
    table.loc[::10, "dose"] = np.nan
    model = TabularQuantileRegressor(monotone={"dose": 1}, **QUICK).fit(table, y)
    grid = pd.DataFrame({"kind": "c", "dose": np.sort(X[1:10, 0])})
    assert np.diff(model.predict(grid, quantiles=LEVELS), axis=0).min() >= 0
    assert np.isfinite(model.predict(pd.DataFrame({"kind": [None], "dose": [np.nan]}), quantiles=LEVELS)).all()


def test_another_unit_and_origin_of_y_and_another_order_of_rows():
    X, y = rows_with_local_effect()
    settings = {"monotone": {0: 1}, **QUICK}
    model = TabularQuantileRegressor(lower=0, **settings).fit(X, y)
    scaled = TabularQuantileRegressor(lower=-1000, **settings).fit(X, 1000 * y - 1000)
    difference = scaled.predict(X, quantiles=LEVELS) - (1000 * model.predict(X, quantiles=LEVELS) - 1000)
    assert np.sqrt(np.mean(difference**2)) < 0.01 * np.std(1000 * y)  # small, up to cuts that are equally good
    order = np.random.default_rng(5).permutation(len(y))
    again = TabularQuantileRegressor(lower=0, **settings).fit(X[order], y[order])
    np.testing.assert_array_equal(again.predict(X), model.predict(X))


def test_rows_of_weight_zero_are_left_out():
    X, y = rows_with_local_effect(n=120)
    weight = np.ones(120)
    weight[:40] = 0
    settings = {"monotone": {0: 1}, **QUICK}
    weighted = TabularQuantileRegressor(**settings).fit(X, y, sample_weight=weight)
    fewer = TabularQuantileRegressor(**settings).fit(X[40:], y[40:])
    np.testing.assert_allclose(weighted.predict(X), fewer.predict(X), rtol=1e-9)
    weight[40:80] = 9
    assert not np.allclose(TabularQuantileRegressor(**settings).fit(X, y, weight).predict(X), fewer.predict(X))


def test_groups_widen_intervals_for_new_units():
    rng = np.random.default_rng(3)
    units = np.repeat(np.arange(40), 12)
    X = np.column_stack([rng.random(480), rng.standard_normal(40)[units], rng.standard_normal(40)[units]])
    y = X[:, 0] + 2 * rng.standard_normal(40)[units] + 0.1 * rng.standard_normal(480)
    new = np.column_stack([rng.random(200), rng.standard_normal((200, 2))])
    settings = {"monotone": {0: 1}, **QUICK}
    widths = {
        name: np.diff(TabularQuantileRegressor(**settings).fit(X, y, groups=groups).predict_interval(new)).mean()
        for name, groups in (("known", units), ("unknown", None))
    }
    assert widths["known"] > 1.5 * widths["unknown"]


def test_a_saved_model_predicts_the_same_bits(tmp_path):
    X, y = rows_with_local_effect(n=100)
    model = TabularQuantileRegressor(monotone={0: 1}, lower=0, **QUICK).fit(X, y)
    quernel.save(model, tmp_path / "m.quernel")
    loaded = quernel.load(tmp_path / "m.quernel")
    np.testing.assert_array_equal(loaded.predict(X, quantiles=LEVELS), model.predict(X, quantiles=LEVELS))
    assert str(loaded) == str(model)
    assert loaded.shape_violation_ == model.shape_violation_
    with pytest.raises(ValueError, match="cannot be written as ONNX"):
        quernel.to_onnx(model, tmp_path / "m.onnx")


def test_rows_of_files_and_samples_of_many(tmp_path):
    X, y = rows_with_local_effect(n=200)
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "y.npy", y)
    rows = MemmapRows(tmp_path / "X.npy", tmp_path / "y.npy")
    model = TabularQuantileRegressor(monotone={0: 1}, max_rows=90, **QUICK).fit(rows)
    assert np.diff(lines_along(model, X, 0)[0], axis=1).min() > -0.1 * np.std(y)
    assert "kernel and forest: 90 of 200 rows" in str(model)


def test_few_rows_columns_and_seconds():
    X, y = rows_with_local_effect(n=60)
    only = TabularQuantileRegressor(monotone={0: 1}, **QUICK).fit(X[:, :1], y)  # no column is left for a forest
    assert only.shares_ == {"kernel": 1.0}
    assert np.diff(lines_along(only, X[:, :1], 0)[0], axis=1).min() >= 0
    few = TabularQuantileRegressor(monotone={0: 1}, **QUICK).fit(X[:8], y[:8])
    assert few.shares_ == {"kernel": 1.0}
    with pytest.warns(ConvergenceWarning):
        stopped = TabularQuantileRegressor(monotone={0: 1}, max_seconds=1e-6, **QUICK).fit(X, y)
    assert stopped.stopped_by_ == "time limit"
    assert np.diff(lines_along(stopped, X, 0)[0], axis=1).min() >= 0


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"monotone": {0: 2}}, r"monotone\[0\] must be 1, -1, or 0"),
        ({"monotone": {3: 1}}, "position 3|columns, from 0 on"),
        ({"monotone": {"dose": 1}}, "names the column 'dose', but X has no names"),
        ({"lower": 5.0}, "values beyond lower=5"),
        ({"lower": 1, "upper": 0}, "lower must be below upper"),
        ({"monotone": {0: 1}, "tails": "pareto"}, "Leave tails at None"),
        ({"monotone": {0: 1}, "parts": ["forest"]}, "Add 'kernel'"),
    ],
)
def test_what_does_not_go_together_is_refused(params, message):
    X, y = rows_with_local_effect(n=50)
    with pytest.raises(ValueError, match=message):
        TabularQuantileRegressor(**params).fit(X, y)


def test_text_has_no_shape():
    table = pd.DataFrame({"kind": list("abcd") * 10, "dose": np.random.default_rng(0).random(40)})
    with pytest.raises(ValueError, match="'kind' is text"):
        TabularQuantileRegressor(monotone={"kind": 1}, **QUICK).fit(table, np.arange(40.0) % 7)


def test_no_shape_is_no_other_model():
    X, y = rows_with_local_effect(n=80)
    model = TabularQuantileRegressor(monotone={0: 0}, convex={}, **QUICK).fit(X, y)
    plain = TabularQuantileRegressor(**QUICK).fit(X, y)
    np.testing.assert_array_equal(model.predict(X), plain.predict(X))
    assert clone(model).get_params()["monotone"] == {0: 0}


def test_beyond_the_outer_curves_quantiles_go_as_far_as_targets_do():
    rng = np.random.default_rng(0)
    outer, weight = rng.uniform(1, 2, 2000), np.full(2000, 1 / 2000)
    y = outer * rng.uniform(0.2, 10, 2000)  # below the curve: shares of the distance to a bound at 0 up to 0.8
    shares = _measure_beyond(y, outer, weight, 0.0, -1.0)
    assert shares[-1] == 0
    assert np.all(np.diff(shares) <= 0)
    assert 0.7 < shares[0] <= 0.8
    distances = _measure_beyond(y, outer, weight, None, 1.0)
    assert distances[0] == 0
    assert distances[-1] == pytest.approx(9 * 2, rel=0.2)
    smooth = SmoothQuantiles(TabularStub(), shares, distances)
    at = smooth.at(np.array([[1.0, 2, 3, 4, 5]]), np.array([[-9.0, *SCORES, 9]]))
    np.testing.assert_allclose(at[0], [1 - shares[0], 1, 2, 3, 4, 5, 5 + distances[-1]])


class TabularStub:
    lower, upper = 0.0, None
