"""TabularQuantileRegressor: laws, coverage by simulation with negative controls, parts, groups, files."""

import re
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.utils.estimator_checks import parametrize_with_checks

import quernel
from quernel import TabularQuantileRegressor
from quernel.data import ArrayRows, ParquetRows, Piece
from quernel.datasets import load_wind
from quernel.estimators import forest_weights, location_scale
from quernel.estimators.forest_weights import SortedValues, grow_forest
from quernel.estimators.location_scale import AllRows, FoldRidge, fit_location_scale
from quernel.estimators.tabular_parts import Calibration
from quernel.features import Nystroem
from quernel.metrics import pinball_loss
from quernel.tuning.data_summary import DataSummary
from quernel.tuning.leave_one_out import winsorize

# A fifth of the default trees: laws hold for any number, and tests are quicker.
QUICK = {"n_trees": 20, "random_state": 0}
LEVELS = np.array([0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99])


def simulate(n, seed, d=3):
    """Rows with a smooth, a local and a heteroscedastic part."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(0, 1, (n, d))
    location = np.sin(6 * X[:, 0]) + 2.0 * (X[:, 1] > 0.6)
    return X, location + (0.1 + 0.5 * X[:, 2]) * rng.standard_normal(n)


@pytest.fixture(scope="module")
def fitted():
    X, y = simulate(600, 0)
    return TabularQuantileRegressor([0.05, 0.5, 0.95], random_state=0).fit(X, y), X, y


# Random bags and folds: copies of a row may be in different ones, as in scikit-learn's own forests.
NOT_EQUIVALENT = {
    f"check_sample_weight_equivalence_on_{kind}_data": "copies of a row may be in different bags"
    for kind in ("dense", "sparse")
}


@parametrize_with_checks([TabularQuantileRegressor(n_trees=10)], expected_failed_checks=lambda _: NOT_EQUIVALENT)
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


def test_levels_never_cross_and_any_level_is_predicted(fitted):
    model, X, _ = fitted
    rows = np.vstack([X[:100], X[:100] * 3 - 1])  # far outside of the training rows, too
    curves = model.predict(rows, np.sort(np.random.default_rng(1).uniform(0, 1, 200)))
    assert np.all(np.diff(curves, axis=1) >= 0)
    assert model.predict(rows, 0.3).shape == (200,)
    assert np.array_equal(model.predict(rows, [0.9, 0.1]), model.predict(rows, [0.1, 0.9])[:, ::-1])
    assert model.predict(rows).shape == (200, 3)
    assert np.array_equal(model.predict_interval(rows, 0.8), model.predict(rows, [0.1, 0.9]))
    frame = pd.DataFrame(rows, index=np.arange(200) + 7)
    ends = model.predict(frame, [0.1, 0.9], as_frame=True)
    assert np.array_equal(ends[["q0.1", "q0.9"]], model.predict(rows, [0.1, 0.9]))
    assert model.predict_interval(frame, 0.8, as_frame=True).index[0] == 7
    assert list(model.predict_interval(frame, 0.8, as_frame=True)) == ["lower", "upper"]


def test_distribution_function_inverts_the_quantiles(fitted):
    model, X, _ = fitted
    for level in (0.05, 0.5, 0.95):
        assert model.predict_cdf(X[:50], model.predict(X[:50], level)) == pytest.approx(np.full(50, level), abs=1e-9)
    draws = model.sample(X[:5], 4000, rng=0)
    assert np.quantile(draws, 0.25, axis=1) == pytest.approx(model.predict(X[:5], 0.25), abs=0.1)


def test_score_and_crps_are_those_of_new_rows(fitted):
    model, _, _ = fitted
    X, y = simulate(2000, 1)
    curves, levels = model.predict(X), model.quantiles_
    constant = np.tile(np.quantile(y, levels), (len(y), 1))
    ratio = pinball_loss(y, curves, levels) / pinball_loss(y, constant, levels)
    assert model.score(X, y) == pytest.approx(1 - ratio.mean(), abs=1e-3)
    draws = model.sample(X, 200, rng=0)
    energy = np.abs(draws - y[:, None]).mean() - np.abs(draws[:, ::2] - draws[:, 1::2]).mean() / 2
    assert model.crps(X, y) == pytest.approx(energy, rel=0.02)


def test_the_same_seed_gives_the_same_model_whatever_the_order_of_rows():
    X, y = simulate(300, 2)
    order = np.random.default_rng(0).permutation(300)
    weight = np.random.default_rng(1).uniform(1, 2, 300)
    first = TabularQuantileRegressor(n_trees=20, random_state=3).fit(X, y, weight).predict(X, LEVELS)
    again = (
        TabularQuantileRegressor(n_trees=20, random_state=3).fit(X[order], y[order], weight[order]).predict(X, LEVELS)
    )
    other = TabularQuantileRegressor(n_trees=20, random_state=4).fit(X, y, weight).predict(X, LEVELS)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_predictions_follow_the_unit_and_origin_of_y_and_the_units_of_columns():
    X, y = simulate(300, 3)
    y = np.round(y * 1024) / 1024  # so that 4 y + 8 has no rounding error of its own
    one = TabularQuantileRegressor(**QUICK).fit(X, y).predict(X, LEVELS)
    scaled = TabularQuantileRegressor(**QUICK).fit(X, 4 * y + 8).predict(X, LEVELS)
    columns = TabularQuantileRegressor(**QUICK).fit(X * [4, 16, 0.5], y).predict(X * [4, 16, 0.5], LEVELS)
    assert scaled == pytest.approx(4 * one + 8, abs=1e-6)
    assert columns == pytest.approx(one, abs=1e-6)


def test_weights_count_by_their_ratios_and_rows_of_weight_zero_not_at_all():
    X, y = simulate(300, 4)
    weight = np.random.default_rng(0).integers(1, 4, 300).astype(float)
    first = TabularQuantileRegressor(**QUICK).fit(X, y, weight).predict(X, LEVELS)
    more = np.vstack([X, X[:50]]), np.append(y, y[:50] + 100), np.append(2 * weight, np.zeros(50))
    assert TabularQuantileRegressor(**QUICK).fit(*more).predict(X, LEVELS) == pytest.approx(first, abs=1e-9)
    # Rows of y + 5 that have nearly all of the weight pull the median up.
    both = np.vstack([X, X]), np.append(y, y + 5), np.repeat([1.0, 50.0], 300)
    assert np.median(TabularQuantileRegressor(**QUICK).fit(*both).predict(X, 0.5) - y) > 4


@pytest.mark.parametrize(("n", "d"), [(100, 1), (300, 5)])
def test_intervals_hold_on_new_rows_and_in_sample_residuals_do_not(n, d):
    """Coverage of 80 % intervals, pooled over simulations; the control takes residuals of the training rows."""
    rng, inside, control = np.random.default_rng(0), [], []
    for seed in range(4 if n < 300 else 2):
        X = rng.standard_normal((n + 1500, d))
        y = X[:, 0] + np.sin(2 * X[:, -1]) + (1 + 0.5 * np.abs(X[:, 0])) * rng.standard_normal(n + 1500)
        model = TabularQuantileRegressor(random_state=seed).fit(X[:n], y[:n])
        low, high = model.predict_interval(X[n:], 0.8).T
        inside.append((low <= y[n:]) & (y[n:] <= high))
        deep = grow_forest(X[:n], y[:n], np.ones(n), 50, np.random.default_rng(seed))
        middle = deep.cut(1, SortedValues.from_values(y[:n], np.ones(n))).quantiles(X, np.array([0.5]))[:, 0]
        reach = np.quantile(np.abs(y[:n] - middle[:n]), 0.8)
        control.append(np.abs(y[n:] - middle[n:]) <= reach)
    assert np.mean(inside) == pytest.approx(0.8, abs=0.045)
    assert np.mean(control) < 0.72


def test_intervals_of_few_rows_with_many_columns_hold_because_bandwidths_are_learned_again(monkeypatch):
    def held():
        rng, inside = np.random.default_rng(0), []
        for seed in range(5):
            X = rng.standard_normal((1100, 20))
            y = X[:, 0] + np.sin(2 * X[:, 1]) + 0.7 * rng.standard_normal(1100)
            model = TabularQuantileRegressor(parts=["kernel"], random_state=seed).fit(X[:100], y[:100])
            low, high = model.predict_interval(X[100:], 0.8).T
            inside.append((low <= y[100:]) & (y[100:] <= high))
        return np.mean(inside)

    assert held() == pytest.approx(0.8, abs=0.06)
    monkeypatch.setattr(location_scale, "OPTIONS", replace(location_scale.OPTIONS, rows_per_column=0))
    assert held() < 0.72  # the negative control: rows vouch for the bandwidths that they chose


def test_intervals_of_targets_with_little_noise_are_not_too_wide_because_residuals_miss_one_row_only(monkeypatch):
    def held():
        rng, inside = np.random.default_rng(0), []
        for seed in range(4):
            X = rng.uniform(0, 1, (1220, 4))
            y = np.sin(5 * X[:, 0]) * np.cos(4 * X[:, 1]) + X[:, 2] * X[:, 3]
            model = TabularQuantileRegressor(parts=["kernel"], random_state=seed).fit(X[:220], y[:220])
            low, high = model.predict_interval(X[220:], 0.5).T
            inside.append((low <= y[220:]) & (y[220:] <= high))
        return np.mean(inside)

    assert held() == pytest.approx(0.5, abs=0.04)
    monkeypatch.setattr(location_scale, "OPTIONS", replace(location_scale.OPTIONS, left_out=(0, 0)))
    assert held() > 0.57  # the negative control: without an eighth of the rows, errors are larger


def test_trees_do_not_learn_y_from_locations_without_the_row():
    """Of one column, forests that see m without the row alone would be too sure: 68 % inside 80 % intervals."""
    rng, inside = np.random.default_rng(3), []
    for seed in range(3):
        X = rng.standard_normal((1800, 1))
        y = X[:, 0] + np.sin(2 * X[:, 0]) + (0.5 + 0.5 * np.abs(X[:, 0])) * rng.standard_normal(1800)
        model = TabularQuantileRegressor(random_state=seed).fit(X[:300], y[:300])
        low, high = model.predict_interval(X[300:], 0.8).T
        inside.append((low <= y[300:]) & (y[300:] <= high))
    assert np.mean(inside) == pytest.approx(0.8, abs=0.04)


def grouped(n_groups, size, seed):
    """Rows of units whose level differs from unit to unit, beyond what the columns tell."""
    rng = np.random.default_rng(seed)
    unit = np.repeat(np.arange(n_groups), size)
    level, place = 2 * rng.standard_normal(n_groups), rng.uniform(0, 1, (n_groups, 2))
    X = np.column_stack([place[unit], rng.uniform(0, 1, len(unit))])
    return X, level[unit] + X[:, 2] + 0.3 * rng.standard_normal(len(unit)), unit


def test_groups_keep_coverage_for_new_units_which_random_folds_lose():
    X, y, unit = grouped(60, 8, 0)
    new, target, _ = grouped(500, 2, 1)

    def held(groups):
        model = TabularQuantileRegressor(**QUICK).fit(X, y, groups=groups)
        low, high = model.predict_interval(new, 0.8).T
        return np.mean((low <= target) & (target <= high))

    assert held(unit) == pytest.approx(0.8, abs=0.08)
    assert held(None) < 0.5  # the negative control


def test_only_the_grouping_counts_not_its_labels():
    X, y, unit = grouped(40, 5, 0)
    names = np.array([f"unit {(7 * u) % 40}" for u in unit])
    first = TabularQuantileRegressor(**QUICK).fit(X, y, groups=unit).predict(X)
    assert np.array_equal(first, TabularQuantileRegressor(**QUICK).fit(X, y, groups=names).predict(X))


def test_each_part_can_be_left_out_and_weights_follow_the_data():
    X, y = simulate(400, 5)
    for parts in (["kernel"], ["forest"], ["residual_forest"], ["kernel", "forest"]):
        model = TabularQuantileRegressor(parts=parts, calibrate=False, **QUICK).fit(X, y)
        assert set(model.shares_) <= set(parts)
        assert sum(model.shares_.values()) == pytest.approx(1)
        assert model.parts_.calibration(LEVELS) == pytest.approx(LEVELS)
    rng = np.random.default_rng(0)
    smooth = np.sin(8 * X[:, 0]) * np.cos(5 * X[:, 1]) + 0.01 * rng.standard_normal(400)
    assert TabularQuantileRegressor(**QUICK).fit(X, smooth).shares_.get("forest", 0) <= 0.2
    rough = rng.standard_normal(2**5)[(np.floor(2 * X) @ [1, 2, 4] + 8 * np.floor(4 * X[:, 0])).astype(int)]
    assert TabularQuantileRegressor(**QUICK).fit(X, rough).shares_.get("kernel", 0) <= 0.2


def test_print_tells_shares_and_certificate(fitted):
    model, _, _ = fitted
    text = str(model)
    assert "duality gap" in text
    assert all(f"{share:.0%}" in text for share in model.shares_.values())
    assert np.all(model.duality_gap_ <= 1e-6)
    assert str(TabularQuantileRegressor()) == "TabularQuantileRegressor()"


def test_forests_predict_values_of_targets_that_have_few():
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 1, (500, 2))
    y = (X[:, 0] > 0.5).astype(float) + (rng.uniform(size=500) < 0.1)
    curves = TabularQuantileRegressor(parts=["forest"], **QUICK).fit(X, y).predict(X, [0.2, 0.5])
    assert np.mean(np.isin(np.round(curves, 6), [0, 1, 2])) > 0.9


def test_verbose_prints_the_stages_and_the_time_left(capsys):
    TabularQuantileRegressor(verbose=1, **QUICK).fit(*simulate(60, 0))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines] == ["fitting", "growing", "growing", "weighing"]
    assert all(re.search(r"about [\d.e-]+ (s|min|h) left$", line) for line in lines)
    TabularQuantileRegressor(verbose=1, parts=["forest"], **QUICK).fit(*simulate(60, 0))
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()] == ["growing", "weighing"]


def test_a_time_limit_ends_the_fit_early_and_is_reported():
    X, y = simulate(1000, 6)
    model = TabularQuantileRegressor(max_seconds=1e-3, n_trees=500, random_state=0).fit(X, y)
    assert model.stopped_by_ == "time limit"
    assert "time limit" in str(model)
    forests = [one for one in (model.parts_.forest, model.parts_.residual_forest) if one is not None]
    assert all(one.n_trees <= forest_weights.OPTIONS.min_trees for one in forests)
    assert model.score(X, y) > 0.3


def test_saved_models_predict_the_same_and_forged_trees_are_refused(fitted, tmp_path):
    model, X, _ = fitted
    quernel.save(model, tmp_path / "m.quernel")
    loaded = quernel.load(tmp_path / "m.quernel")
    assert np.array_equal(loaded.predict(X, LEVELS), model.predict(X, LEVELS))
    assert str(loaded) == str(model)
    values = SortedValues.from_values(X[:, 0], np.ones(len(X)))
    forest = grow_forest(X, X[:, 0], np.ones(len(X)), 2, np.random.default_rng(0)).cut(2, values)
    n_nodes, n_members, own = len(forest.nodes), len(forest.members), len(forest.nodes) // 2
    forged = {
        "root": [(0, n_nodes), (0, -1 - n_members)],
        "nodes": [((own, 1), n_nodes), ((own, 2), own), ((own, 1), -1 - n_members), ((0, 0), 99 << 16), ((0, 0), -1)],
        "members": [(-1, 0), (0, len(X)), (slice(0, 40), 0)],
    }
    for name, entries in forged.items():
        for place, value in entries:
            array = getattr(forest, name).copy()
            array[place] = value
            with pytest.raises(ValueError, match="forest"):
                replace(forest, **{name: array})
    for name, array in (("mass", np.ones(3)), ("nodes", forest.nodes.astype(np.int64)), ("nodes", forest.nodes[:, :2])):
        with pytest.raises(ValueError, match="forest"):
            replace(forest, **{name: array})


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"parts": ["trees"]}, "parts must be"),
        ({"parts": []}, "parts must be"),
        ({"parts": "kernel"}, "parts must be"),
        ({"n_trees": 0}, "n_trees"),
        ({"n_components": "many"}, "n_components"),
        ({"calibrate": 1}, "calibrate"),
        ({"max_seconds": -1}, "max_seconds"),
        ({"max_rows": 0}, "max_rows"),
        ({"quantiles": [0.1, 1.2]}, "strictly between 0 and 1"),
    ],
)
def test_bad_parameters_are_refused_before_any_work(params, message):
    with pytest.raises(ValueError, match=message):
        TabularQuantileRegressor(**params).fit(*simulate(50, 0))


def test_bad_groups_and_inputs_are_refused():
    X, y = simulate(50, 0)
    with pytest.raises(ValueError, match="one label for each of 50 rows"):
        TabularQuantileRegressor().fit(X, y, groups=[1, 2])
    with pytest.raises(ValueError, match="one label only"):
        TabularQuantileRegressor().fit(X, y, groups=np.zeros(50))
    with pytest.raises(ValueError, match="groups are for arrays"):
        TabularQuantileRegressor().fit(ArrayRows(X, y), groups=np.arange(50))
    model = TabularQuantileRegressor(**QUICK).fit(X, y)
    with pytest.raises(ValueError, match="coverage"):
        model.predict_interval(X, 1.0)


def test_a_failed_fit_leaves_the_model_as_it_was(fitted):
    model, X, y = fitted
    same = clone(model)
    same.__dict__.update(vars(model))
    with pytest.raises(ValueError, match="NaN"):
        same.fit(X, np.where(y > 0, y, np.nan))
    assert np.array_equal(same.predict(X), model.predict(X))


def test_constant_and_tiny_tables():
    X = np.random.default_rng(0).uniform(size=(40, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.all(TabularQuantileRegressor(**QUICK).fit(X, np.full(40, 7.0)).predict(X) == pytest.approx(7))
        few = TabularQuantileRegressor(**QUICK, parts=["kernel"]).fit(X[:5], X[:5, 0])
    assert set(few.shares_) == {"forest"}
    exact = TabularQuantileRegressor(**QUICK).fit(X, X[:, 0])
    assert exact.predict(X, 0.5) == pytest.approx(X[:, 0], abs=0.05)


def test_out_of_fold_values_are_those_of_refits():
    rng = np.random.default_rng(0)
    Phi, y, weight = rng.standard_normal((60, 4)), rng.standard_normal(60), rng.uniform(1, 2, 60)
    folds = np.sort(rng.integers(0, 3, 60))
    P, w = np.column_stack([Phi, np.full(60, 10.0)]), weight / weight.mean()
    y -= w @ y / 60
    folded = FoldRidge(P, weight / weight.sum(), folds)
    fit = folded.fit(y)
    ridge, predicted = fit.ridge, fit.out_of_fold
    for k in range(3):
        train = folds != k
        gram = P[train].T @ (w[train, None] * P[train]) + ridge * np.eye(5)
        coef = np.linalg.solve(gram, P[train].T @ (w[train] * y[train]))
        assert predicted[~train] == pytest.approx(P[~train] @ coef, abs=1e-8)
    # All rows: the intercept has no penalty, and the gap bounds the excess of the objective.
    coef = np.linalg.solve(P.T @ (w[:, None] * P) + fit.ridge * np.diag([1, 1, 1, 1, 0]), P.T @ (w * y))
    assert fit.coef == pytest.approx(coef[:4], abs=1e-9)
    assert fit.intercept == pytest.approx(10 * coef[4], abs=1e-9)
    assert 0 <= fit.duality_gap < 1e-20


def test_values_without_a_row_are_those_of_refits():
    rng = np.random.default_rng(0)
    y, weight = rng.standard_normal(40), rng.uniform(1, 2, 40)
    P, w = np.column_stack([rng.standard_normal((40, 6)), np.full(40, 10.0)]), weight / weight.mean()
    fit = FoldRidge(P, weight / weight.sum(), np.sort(rng.integers(0, 3, 40)), leave_one_out=True).fit(y)
    centred = y - w @ y / 40
    for i in range(40):
        train = np.arange(40) != i
        gram = P[train].T @ (w[train, None] * P[train]) + fit.ridge * np.eye(7)
        value = P[i] @ np.linalg.solve(gram, P[train].T @ (w[train] * centred[train]))
        assert fit.held_out[i] == pytest.approx(value + w @ y / 40, abs=1e-8)


def test_groups_are_never_split_between_folds_or_bags():
    X, y, unit = grouped(30, 4, 0)
    forest = grow_forest(X, y, np.ones(len(y)), 20, np.random.default_rng(0), unit)
    seen = forest.bags(len(y)).reshape(30, 4, 20)
    assert np.all(seen.all(axis=1) == seen.any(axis=1))
    assert 0 < seen.mean() < 1


def leaf_rows(forest, t, codes, min_leaf):
    """Rows of the node in which a row with these codes ends in tree t, if nodes have at least `min_leaf` rows."""
    a, b = 0, forest.first_row[t + 1] - forest.first_row[t]
    root, node = forest.first_node[t], 0
    while node >= 0:
        j, middle = forest.column[root + node], forest.middle[root + node]
        if codes[j if j >= 0 else -1 - j] < forest.cuts[root + node]:
            if middle - a < min_leaf:
                break
            b, node = middle, node + 1 if j >= 0 else -1
        else:
            if b - middle < min_leaf:
                break
            a, node = middle, forest.right[root + node]
    return forest.order[forest.first_row[t] + a : forest.first_row[t] + b]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("min_leaf", [1, 2, 7, 60])
def test_forest_weights_are_those_of_the_leaves(min_leaf, weighted):
    """Quantiles against a direct evaluation: descend by hand, pool the leaves, weight each tree equally."""
    X, y = simulate(200, 7)
    weight = np.random.default_rng(1).uniform(1, 3, 200) if weighted else np.ones(200)
    forest = grow_forest(X, y, weight, 7, np.random.default_rng(0))
    found = forest.cut(min_leaf, SortedValues.from_values(y, weight)).quantiles(X, LEVELS)
    skip = np.arange(7) < 3
    some = forest.cut(min_leaf, SortedValues.from_values(y, weight)).quantiles(X, LEVELS, np.tile(skip, (200, 1)))
    for i, codes in enumerate(forest.codes.encode(X)):
        rows, shares = [], []
        for t in range(7):
            leaf = leaf_rows(forest, t, codes, min_leaf)
            assert len(leaf) >= min_leaf
            rows.append(leaf[:: -(-len(leaf) // forest_weights.OPTIONS.per_leaf)])
            shares.append(weight[rows[-1]] / weight[rows[-1]].sum())
        for first, curves in ((0, found), (3, some)):
            pooled, share = np.concatenate(rows[first:]), np.concatenate(shares[first:]) / (7 - first)
            order = np.argsort(y[pooled], kind="stable")
            middles = np.cumsum(share[order]) - share[order] / 2
            assert curves[i] == pytest.approx(np.interp(LEVELS, middles, y[pooled][order]), abs=1e-9)
    assert np.isnan(
        forest.cut(min_leaf, SortedValues.from_values(y, weight)).quantiles(X, LEVELS, np.ones((200, 7), bool))
    ).all()


def test_calibration_is_monotone_and_corrects_levels_that_are_off():
    pit = np.clip(0.5 + 2 * (np.random.default_rng(0).uniform(size=3000) - 0.5), 0, 1)  # too narrow by half
    calibration = Calibration.from_pit(pit, np.ones(3000))
    levels = np.linspace(0.001, 0.999, 300)
    assert np.all(np.diff(calibration(levels)) >= 0)
    assert np.mean(pit <= calibration(np.array([0.75]))[0]) == pytest.approx(0.75, abs=0.02)
    assert np.mean(pit <= 0.75) < 0.7  # without it


def test_location_and_scale_are_out_of_fold():
    """On pure noise, out-of-fold locations do not follow their own rows."""
    rng = np.random.default_rng(0)
    rows = ArrayRows(rng.uniform(size=(150, 4)), rng.standard_normal(150))
    model, (m, _), _ = fit_location_scale(DataSummary(rows), None, None, rng)
    assert np.corrcoef(m, rows.y)[0, 1] < 0.2
    assert np.mean((rows.y - m) ** 2) > 0.9 * np.var(rows.y)
    assert np.all(model.duality_gap <= 1e-6)


def test_quantiles_outside_the_training_inputs_stay_near_the_targets():
    """The kernel's scale rises steeply at the highest winds it has seen: its exponential would be beyond all bounds."""
    wind = load_wind(as_frame=True)
    X, y = wind.X[:7500], wind.y[:7500]
    storm = X[:40].assign(wind_speed=np.linspace(16, 30, 40))
    model = TabularQuantileRegressor([0.05, 0.5, 0.95], parts=["residual_forest"], **QUICK).fit(X, y)
    assert np.abs(model.predict(storm)).max() < 3 * y.max()
    smooth = model.parts_.location_scale
    unlimited = replace(smooth, limits=np.array([[-np.inf], [np.inf]]) * np.ones(2))
    assert unlimited.predict(storm.to_numpy())[1].max() > 1000 * y.max()  # the negative control
    assert np.array_equal(unlimited.predict(X.to_numpy()), smooth.predict(X.to_numpy()))  # inside, nothing changes


def test_frames_with_text_dates_and_gaps_are_encoded(tmp_path):
    rng = np.random.default_rng(0)
    day = np.datetime64("2026-01-01") + rng.integers(0, 365, 300)
    frame = pd.DataFrame({"shop": rng.choice(["a", "b", "c"], 300), "day": day, "size": rng.uniform(0, 1, 300)})
    y = 3.0 * (frame["shop"] == "b") + frame["size"] + 0.1 * rng.standard_normal(300)
    frame.loc[::7, "size"] = np.nan
    model = TabularQuantileRegressor(**QUICK).fit(frame, y)
    assert model.score(frame, y) > 0.7
    quernel.save(model, tmp_path / "m.quernel")
    assert np.array_equal(quernel.load(tmp_path / "m.quernel").predict(frame), model.predict(frame))


def test_the_kernel_sees_all_rows_and_the_forests_a_sample(tmp_path):
    X, y = simulate(2000, 8)
    weight = np.random.default_rng(0).uniform(1, 2, 2000)
    weight[::50] = 0
    rows = ArrayRows(X[:400], y[:400])
    everything = AllRows(lambda: iter([Piece(X[:700], y[:700], weight[:700]), Piece(X[700:], y[700:], weight[700:])]),
                         2000, np.arange(400))  # fmt: skip
    model, (m, _), _ = fit_location_scale(DataSummary(rows), 50, None, np.random.default_rng(0), everything)
    # Against ridge regression of all rows on the same features, and on those of the other folds.
    kernel, w = model.feature_map.kernel, weight * 2000 / weight.sum()
    landmarks = Nystroem(kernel, 50, landmarks="distinct").fit(rows.X)
    Phi = np.column_stack([landmarks.transform(X), np.ones(2000)])
    low, high = winsorize(rows.y[:, None], rows.share())[:, 0][[np.argmin(rows.y), np.argmax(rows.y)]]
    penalty = model.ridge[0] * np.diag(np.r_[np.ones(Phi.shape[1] - 1), 0])
    coef = np.linalg.solve(Phi.T @ (w[:, None] * Phi) + penalty, Phi.T @ (w * np.clip(y, low, high)))
    assert model.predict(X[:50])[0] == pytest.approx(Phi[:50] @ coef, abs=1e-6)
    assert np.all(model.duality_gap < 1e-12)
    assert np.mean((m - y[:400]) ** 2) > np.mean((model.predict(X[:400])[0] - y[:400]) ** 2)  # out of fold
    assert np.corrcoef(m, model.predict(X[:400])[0])[0, 1] > 0.95


def test_rows_in_files_and_more_rows_than_max_rows(tmp_path):
    X, y = simulate(1500, 9)
    frame = pd.DataFrame(X, columns=["a", "b", "c"]).assign(y=y)
    frame.to_parquet(tmp_path / "rows.parquet", row_group_size=400)
    source = ParquetRows(tmp_path / "rows.parquet", target="y")
    columns = frame[["a", "b", "c"]]
    whole = TabularQuantileRegressor([0.1, 0.5, 0.9], n_components=100, **QUICK).fit(columns, y)
    read = TabularQuantileRegressor([0.1, 0.5, 0.9], n_components=100, **QUICK).fit(source)
    assert np.array_equal(read.predict(columns), whole.predict(columns))
    assert list(read.feature_names_in_) == ["a", "b", "c"]
    for given in ((source,), (columns, y)):
        part = TabularQuantileRegressor([0.1, 0.5, 0.9], max_rows=300, n_components=100, **QUICK).fit(*given)
        assert (part.n_rows_, part.n_sampled_) == (1500, 300)
        assert "300 of 1,500 rows" in str(part)
        assert part.score(columns, y) > 0.6
        low, high = part.predict_interval(columns, 0.8).T
        assert np.mean((low <= y) & (y <= high)) == pytest.approx(0.8, abs=0.05)
    alone = TabularQuantileRegressor(parts=["kernel"], max_rows=300, n_components=100, **QUICK)
    error = np.mean(np.abs(alone.fit(X, y).predict(X) - np.sin(6 * X[:, 0]) - 2.0 * (X[:, 1] > 0.6)))
    sample = alone.fit(X[:300], y[:300])  # the negative control: no others are seen
    assert error < 0.9 * np.mean(np.abs(sample.predict(X) - np.sin(6 * X[:, 0]) - 2.0 * (X[:, 1] > 0.6)))
