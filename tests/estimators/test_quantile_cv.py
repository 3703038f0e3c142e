"""KernelQuantileRegressorCV: cells are held-out losses, splits are respected, and the best pair is what is fitted."""

import inspect
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.model_selection import GroupKFold, KFold, ShuffleSplit, TimeSeriesSplit
from sklearn.utils.estimator_checks import parametrize_with_checks

from quernel import KernelQuantileRegressor, KernelQuantileRegressorCV
from quernel.estimators import quantile_cv
from quernel.estimators.splits import read_splits
from quernel.kernels import Gaussian
from quernel.metrics import pinball_loss
from quernel.tuning import alpha as holdout
from quernel.tuning import bandwidth
from quernel.tuning.alpha import GridSearchResult
from support.models import plain_regressor

LEVELS = [0.1, 0.5, 0.9]
ALPHAS = [1e-6, 1e-4, 1e-2]


def table(n=200, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(0, 1, (n, 2))
    return X, np.sin(5 * X[:, 0]) + X[:, 1] + (0.1 + 0.3 * X[:, 1]) * rng.standard_normal(n)


def tuned(X, y, weight=None, groups=None, **settings):
    settings = {"alphas": ALPHAS, "n_components": 60, "random_state": 0, "cv": 3, **settings}
    return KernelQuantileRegressorCV(LEVELS, **settings).fit(X, y, sample_weight=weight, groups=groups)


@pytest.fixture(autouse=True, scope="module")
def small():
    """Learning has tests of its own: here a small one will do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bandwidth, "OPTIONS", replace(bandwidth.OPTIONS, n_landmarks=50, pilot_rows=100))
        patch.setattr(holdout, "FOLDS", 2)
        yield


@pytest.fixture(scope="module")
def plain():
    return tuned(*table())


# --- the grid --------------------------------------------------------------------------------------------------------


def test_every_cell_is_the_held_out_loss_of_that_fit():
    X, y = table()
    splits = list(KFold(3, shuffle=True, random_state=0).split(X))
    model = tuned(X, y, kernel="linear", cv=splits)
    results = model.cv_results_
    assert [one["alpha"] for one in results["params"]] == ALPHAS
    for cell, alpha in enumerate(ALPHAS):
        for k, (train, test) in enumerate(splits):
            alone = plain_regressor(LEVELS, kernel="linear", alpha=alpha, noncrossing=None)
            loss = np.mean(pinball_loss(y[test], alone.fit(X[train], y[train]).predict(X[test]), LEVELS))
            assert -results[f"split{k}_test_score"][cell] == pytest.approx(loss, rel=5e-3)


def test_results_are_a_table(plain):
    """As those of scikit-learn's searches are."""
    table = pd.DataFrame(plain.cv_results_)
    assert len(table) == len(ALPHAS) * len(quantile_cv.FACTORS)
    assert table.sort_values("rank_test_score").index[0] == plain.best_index_


def test_each_level_has_its_held_out_loss():
    X, y = table()
    train, test = np.arange(0, len(X), 2), np.arange(1, len(X), 2)
    levels = [0.9, 0.1]  # in the order in which they were given
    model = KernelQuantileRegressorCV(levels, kernel="linear", alphas=[1e-3], cv=[(train, test)]).fit(X, y)
    alone = plain_regressor(levels, kernel="linear", alpha=1e-3).fit(X[train], y[train])
    found = [model.cv_results_[f"test_loss_q{level}"][0] for level in levels]
    np.testing.assert_allclose(found, pinball_loss(y[test], alone.predict(X[test]), levels), rtol=5e-3)


def test_results_fit_together(plain):
    results = plain.cv_results_
    cells = len(ALPHAS) * len(quantile_cv.FACTORS)
    assert len(results["params"]) == cells
    by_split = np.array([results[f"split{k}_test_score"] for k in range(3)])
    np.testing.assert_allclose(results["mean_test_score"], by_split.mean(axis=0), rtol=0.02)
    by_level = np.array([results[f"test_loss_q{level}"] for level in LEVELS])
    np.testing.assert_allclose(-by_level.mean(axis=0), results["mean_test_score"], rtol=1e-12)
    assert results["rank_test_score"][plain.best_index_] == 1
    assert plain.best_score_ == results["mean_test_score"].max()
    best = results["params"][plain.best_index_]
    assert best["alpha"] == plain.alpha_
    np.testing.assert_array_equal(best["bandwidth"], plain.bandwidth_)
    assert plain.n_splits_ == 3


def test_the_last_fit_is_that_of_the_best_pair(plain):
    X, y = table()
    alone = KernelQuantileRegressor(
        LEVELS, alpha=plain.alpha_, bandwidth=plain.bandwidth_, n_components=60, random_state=0
    ).fit(X, y)
    np.testing.assert_array_equal(alone.predict(X), plain.predict(X))
    np.testing.assert_array_equal(alone.predict_interval(X, 0.8), plain.predict_interval(X, 0.8))
    np.testing.assert_array_equal(alone.predict_cdf(X, y), plain.predict_cdf(X, y))
    assert alone.score(X, y) == plain.score(X, y)
    assert plain.sample(X[:3], 5, rng=0).shape == (3, 5)
    assert plain.duality_gap_.max() <= 1e-6


def test_the_search_evaluates_the_features_of_the_last_fit(plain):
    X, y = table()
    splits = read_splits(3, X, y, np.ones(len(y), dtype=bool), None, _after_the_features())
    for k, (train, test) in enumerate(splits):
        features = plain.feature_map_.transform(X)
        alone = plain_regressor(LEVELS, kernel="linear", alpha=plain.alpha_, noncrossing=None)
        curves = alone.fit(features[train], y[train]).predict(features[test])
        loss = np.mean(pinball_loss(y[test], curves, LEVELS))
        assert -plain.cv_results_[f"split{k}_test_score"][plain.best_index_] == pytest.approx(loss, rel=5e-3)


def _after_the_features():
    """The generator of random_state=0, from which the seed of the features has been drawn."""
    rng = np.random.default_rng(0)
    rng.integers(2**63)
    return rng


@pytest.mark.parametrize("n", [150, 500])
def test_cells_are_certified_where_fits_go_through_many_rows(n):
    X, y = table(n)
    model = tuned(X, y, alphas=[1e-2, 1e-4, 1e-6], bandwidths=[0.05], n_components=100)
    assert model.cv_results_["relative_gap"].max() <= 1e-3


def test_pairs_that_were_given_up_have_no_gap():
    X, y = table(80)
    results = tuned(X, y, alphas=None, bandwidths=["auto"], n_components=50, cv=0.3).cv_results_
    np.testing.assert_array_equal(np.isfinite(results["relative_gap"]), np.isfinite(results["mean_test_score"]))


def test_the_search_finds_what_is_right_and_rejects_what_is_not():
    X, y = table(400)
    model = tuned(X, y, alphas=[1e-7, 1e-4, 10.0], bandwidths=[1e-3, "auto", 1e3])
    assert model.alpha_ == 1e-4
    assert np.all((model.bandwidth_ > 0.01) & (model.bandwidth_ < 10))
    assert np.ptp(model.cv_results_["mean_test_score"]) > 0.1


def test_the_papers_grid_in_units_of_y():
    X, y = table(80)
    small = {"alphas": None, "bandwidths": ["auto"], "n_components": 50, "cv": 0.3}
    one, thousand = tuned(X, y, **small), tuned(X, 1000 * y, **small)
    np.testing.assert_allclose(one.cv_results_["param_alpha"], 1000 * thousand.cv_results_["param_alpha"])
    ratio = one.cv_results_["param_alpha"][1:] / one.cv_results_["param_alpha"][:-1]
    np.testing.assert_allclose(ratio, np.sqrt(10))
    assert len(ratio) == 22
    score = one.cv_results_["mean_test_score"]  # in rising order of alpha: those given up are the least
    tried = np.isfinite(score)
    assert 0 < tried.sum() < 23
    assert np.all(np.diff(tried.astype(int)) >= 0)
    assert score[tried][0] < 1.1 * score.max()
    np.testing.assert_allclose(thousand.predict(X), 1000 * one.predict(X), rtol=1e-3)


def test_bandwidths_by_name_number_and_column():
    X, y = table(100)
    model = tuned(X, y, alphas=ALPHAS[1:], bandwidths=["auto", 0.5, [0.3, 3.0], "learned"])
    widths = model.cv_results_["param_bandwidth"][::2]
    np.testing.assert_array_equal(widths[0], plain_regressor(random_state=0).fit(X, y).bandwidth_)
    assert widths[1] == 0.5
    np.testing.assert_array_equal(widths[2], [0.3, 3.0])
    np.testing.assert_array_equal(widths[3], model.bandwidth_choice_.bandwidth)
    factors = tuned(X, y, alphas=ALPHAS[1:], bandwidths="learned").cv_results_["param_bandwidth"][::2]
    np.testing.assert_allclose(np.vstack(factors), np.outer(quantile_cv.FACTORS, widths[3]))


@pytest.mark.parametrize("settings", [{"n_components": "exact"}, {"kernel": "spline"}, {"sampling": "leverage"}])
def test_other_features(settings):
    X, y = table(80)
    bandwidths = None if "kernel" in settings else ["auto"]
    assert tuned(X, y, alphas=[1e-3, 1e-2], bandwidths=bandwidths, **settings).predict(X).shape == (80, 3)


def test_one_standard_error_takes_the_smoothest_that_is_not_clearly_worse():
    losses = np.array([[[3.0, 3.2], [2.0, 2.4], [2.1, 2.5]], [[9.0, 9.0], [2.05, 2.45], [2.2, 2.5]]])[..., None]
    gap = np.zeros(losses.shape[:2])
    found, alphas = GridSearchResult(losses, np.array([0.5, 0.5]), gap), np.array([1.0, 10.0, 100.0])
    # The least is 2.2 with a standard error of 0.2: 2.3 at alpha 100 is within it, and of its like 2.35 is worse.
    assert found.best(alphas) == (0, 1)
    assert found.best(alphas, one_standard_error=True) == (0, 2)
    sure = GridSearchResult(losses.mean(axis=2, keepdims=True).repeat(2, axis=2), found.weight, gap)
    assert sure.best(alphas, one_standard_error=True) == (0, 1)


def test_one_standard_error_on_data():
    X, y = table(100)
    settings = {"alphas": 10.0 ** np.arange(-4, -1.9, 0.25), "bandwidths": ["auto"], "cv": 5}
    best, smooth = (tuned(X, y, one_standard_error=flag, **settings) for flag in (False, True))
    assert smooth.alpha_ > best.alpha_
    error = best.cv_results_["std_test_score"][best.best_index_] / 2  # five splits
    assert best.best_score_ - error <= smooth.best_score_ < best.best_score_


# --- splits ----------------------------------------------------------------------------------------------------------


def splits_of(cv, n=20, groups=None, counts=None):
    counts = np.ones(n, dtype=bool) if counts is None else counts
    X, y = table(n)
    return read_splits(cv, X[counts], y[counts], counts, groups, np.random.default_rng(0))


def test_folds_hold_out_every_row_once_in_no_order():
    splits = splits_of(4)
    assert sorted(np.concatenate([test for _, test in splits]).tolist()) == list(range(20))
    for train, test in splits:
        assert sorted([*train, *test]) == list(range(20))
        assert len(test) == 5
        assert np.ptp(test) > 5  # not one piece of the file


def test_a_share_holds_out_that_many():
    ((train, test),) = splits_of(0.25)
    assert (len(train), len(test)) == (15, 5)


def test_equal_rows_and_groups_stay_together():
    X, y = table(10)
    X, y = np.vstack([X, X]), np.r_[y, y]
    for train, test in read_splits(5, X, y, np.ones(20, dtype=bool), None, np.random.default_rng(0)):
        assert not {*(train % 10)} & {*(test % 10)}
    groups = np.arange(20) // 3
    for cv in (3, 0.3, GroupKFold(3)):
        for train, test in splits_of(cv, groups=groups):
            assert not {*groups[train]} & {*groups[test]}
        for message in (np.array(list("abcdefg"))[groups], pd.Series(list("abcdefg"), dtype=object)[groups]):
            for split, again in zip(splits_of(cv, groups=groups), splits_of(cv, groups=message), strict=True):
                np.testing.assert_array_equal(np.concatenate(again), np.concatenate(split))
    mixed = [bool({*groups[train]} & {*groups[test]}) for train, test in splits_of(3)]
    assert any(mixed)


def test_splitters_of_scikit_learn_and_lists_are_followed():
    for cv in (KFold(4), TimeSeriesSplit(3), ShuffleSplit(2, random_state=0)):
        for (train, test), (train_too, test_too) in zip(splits_of(cv), cv.split(np.zeros((20, 1))), strict=True):
            np.testing.assert_array_equal(train, train_too)
            np.testing.assert_array_equal(test, test_too)
    assert all(train.max() < test.min() for train, test in splits_of(TimeSeriesSplit(3)))
    mask = np.arange(20) < 15
    ((train, test),) = splits_of([(mask, ~mask)])
    assert (len(train), test.min()) == (15, 15)


def test_splits_count_rows_of_weight_zero():
    counts = np.arange(20) % 4 > 0
    for (train, test), (_, given) in zip(
        splits_of(KFold(4), counts=counts), KFold(4).split(np.zeros((20, 1))), strict=True
    ):
        np.testing.assert_array_equal(np.flatnonzero(counts)[test], [row for row in given if counts[row]])
        assert len(train) + len(test) == 15


@pytest.mark.parametrize("cv", [3, 0.3])
def test_weights_are_repeats(cv):
    X, y = table(90)
    count = np.random.default_rng(1).integers(0, 3, 90)
    settings = {"bandwidths": ["auto"], "cv": cv}
    weighted = tuned(X, y, weight=count, **settings)
    repeated = tuned(np.repeat(X, count, axis=0), np.repeat(y, count), **settings)
    score = "mean_test_score"
    np.testing.assert_allclose(weighted.cv_results_[score], repeated.cv_results_[score], rtol=2e-3)
    assert weighted.alpha_ == pytest.approx(repeated.alpha_)
    unweighted = tuned(X[count > 0], y[count > 0], **settings)
    assert np.abs(unweighted.cv_results_[score] / weighted.cv_results_[score] - 1).max() > 0.01


def test_time_series_and_groups_through_fit():
    X, y = table(100)
    few = {"alphas": [1e-3], "bandwidths": ["auto"]}
    assert tuned(X, y, cv=TimeSeriesSplit(3), **few).n_splits_ == 3
    assert tuned(X, y, cv=GroupKFold(4), groups=np.arange(100) % 4, **few).n_splits_ == 4
    assert tuned(X, y, cv=0.2, **few).n_splits_ == 1


# --- scikit-learn, and errors ----------------------------------------------------------------------------------------


@parametrize_with_checks([KernelQuantileRegressorCV(alphas=[1e-4, 1e-3], bandwidths=["auto"], cv=3, n_components=50)])
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


def test_equal_rows_leave_fewer_folds_and_a_warning():
    X, y = table(4)
    few = {"alphas": [1e-3, 1e-2], "bandwidths": [1.0]}
    with pytest.warns(UserWarning, match="Only 4 of 16 rows are different.* uses 4 folds instead of cv=5"):
        model = tuned(np.repeat(X, 4, axis=0), np.repeat(y, 4), cv=5, **few)
    assert model.n_splits_ == 4
    expected = tuned(X, y, cv=4, **few)
    np.testing.assert_allclose(model.cv_results_["mean_test_score"], expected.cv_results_["mean_test_score"], rtol=1e-6)
    with pytest.raises(ValueError, match=r"cv=5 needs at least 5 different rows .*got 4 among n_samples = 4"):
        tuned(X, y, cv=5, **few)
    with pytest.raises(ValueError, match=r"cv=5 needs at least 5 different rows .*got 1 among n_samples = 20"):
        tuned(np.ones((20, 2)), np.ones(20), cv=5, **few)


def test_it_has_the_parameters_of_the_regressor():
    ours, theirs = (inspect.signature(cls).parameters for cls in (KernelQuantileRegressorCV, KernelQuantileRegressor))
    shapes = {"monotone", "convex", "lower", "upper"}  # those of the regressor, with what was found here
    assert set(theirs) - set(ours) == {"alpha", "bandwidth", "warm_start"} | shapes  # nothing to go on from
    assert set(ours) - set(theirs) == {"alphas", "bandwidths", "cv", "one_standard_error"}
    assert all(ours[name].default == theirs[name].default for name in set(ours) & set(theirs))
    assert clone(KernelQuantileRegressorCV(cv=3)).cv == 3


def test_ranks_leave_out_as_many_as_are_equal():
    model = tuned(*table(60), alphas=[1e-3, 1e-1], bandwidths=[1.0, 1.0])  # as scikit-learn ranks
    score = model.cv_results_["mean_test_score"]
    np.testing.assert_array_equal(
        model.cv_results_["rank_test_score"], [1 + np.sum(score > one) for one in score.tolist()]
    )
    assert sorted(model.cv_results_["rank_test_score"]) == [1, 1, 3, 3]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"alphas": []}, "alphas must be a list of positive, finite numbers"),
        ({"alphas": [1e-3, -1]}, r"alphas must be .*got \[0.001, -1\]"),
        ({"alphas": "many"}, "alphas must be"),
        ({"alphas": [1e-3, 0.1, 1e-3]}, r"alphas must differ from one another; got \[0.001, 0.1, 0.001\]"),
        ({"bandwidths": "wide"}, "Unknown bandwidth 'wide'"),
        ({"bandwidths": [0.0]}, "bandwidth must be positive"),
        ({"bandwidths": []}, "bandwidths must be 'auto', 'learned' or a list"),
        ({"bandwidths": 3.0}, "bandwidths must be 'auto', 'learned' or a list"),
        ({"bandwidths": [[1.0, 2.0, 3.0]]}, "3 entries but X has 2 columns"),
        ({"bandwidths": [1.0], "kernel": "linear"}, "no bandwidth to choose"),
        ({"bandwidths": [1.0], "kernel": Gaussian(1.0)}, "no bandwidth to choose"),
        ({"cv": 1}, "cv must be a number of folds .*got 1"),
        ({"cv": 1.5}, "cv must be"),
        ({"cv": None}, "cv must be"),
        ({"cv": "five"}, "cv must be"),
        ({"cv": 60}, "cv=60 needs at least 60 different rows .*got 50"),
        ({"cv": []}, "no split at all"),
        ({"cv": [([0, 1], [99])]}, "positions among 50 rows"),
        ({"cv": [([0, 1], [])]}, "Split 0 of cv has 2 rows to fit and 0 to judge by"),
        ({"one_standard_error": 1}, "one_standard_error must be True or False"),
        ({"one_standard_error": True, "cv": 0.2}, "needs at least two splits"),
        ({"max_memory": 1000}, "search keeps all features in memory"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        tuned(*table(50), **settings)


def test_bad_groups_are_refused():
    with pytest.raises(ValueError, match="groups must have one label for each of 50 rows"):
        tuned(*table(50), groups=np.zeros(49))
    with pytest.raises(ValueError, match="groups has no label in 2 of 50 rows"):
        tuned(*table(50), groups=np.r_[np.arange(48.0), np.nan, np.nan])
    with pytest.raises(ValueError, match="groups mixes labels of different types"):
        tuned(*table(50), groups=np.array(["a", 1] * 25, dtype=object))
