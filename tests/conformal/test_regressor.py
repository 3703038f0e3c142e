"""The estimator: which rows fit and which calibrate, whatever model; good manners; and errors that say what to do."""

import pickle
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import BaseEstimator, clone
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GroupKFold, KFold, PredefinedSplit, TimeSeriesSplit
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import quernel
from quernel import ConformalQuantileRegressor, ExtrapolationWarning, KernelQuantileRegressor
from quernel.conformal.methods import METHODS, ConformalMethod
from quernel.metrics import coverage
from quernel.plots.inputs import predict_interval_with_coverage
from support.models import plain_regressor

BASE = plain_regressor(n_components=10, alpha=1e-3, tol=1e-3, random_state=0)
# As for scikit-learn's own estimators that divide rows at random. With method="cv+" its check sets folds, and it holds.
WEIGHTS = (
    "A split that treats a row of weight k like k rows has to keep equal rows together, and then calibration rows are "
    "unlike new ones: test_keeping_equal_rows_together_would_cost_the_coverage."
)


@parametrize_with_checks(
    [
        ConformalQuantileRegressor(BASE, 0.5),
        ConformalQuantileRegressor(BASE, 0.5, method="cv+", symmetric=False, cv=2),
    ],
    expected_failed_checks=lambda estimator: (
        {"check_sample_weight_equivalence_on_dense_data": WEIGHTS} if estimator.method == "split" else {}
    ),
)
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


@pytest.mark.parametrize(
    ("n", "settings", "expected"),
    [
        (400, {}, 100),
        (30, {}, 9),
        (10, {}, 9),
        (30, {"symmetric": False}, 19),
        (30, {"coverage": 0.5}, 8),
        (30, {"time_ordered": True}, 9),
    ],
)
def test_small_tables_calibrate_with_as_many_rows_as_the_coverage_needs(n, settings, expected):
    X = np.random.default_rng(0).random((n, 2))
    model = ConformalQuantileRegressor(Constant(), random_state=0, **settings).fit(X, X[:, 0])
    assert (model.n_calibration_, len(model.estimators_[0].rows_)) == (expected, n - expected)


def test_small_tables_with_too_few_rows_for_the_coverage_are_refused():
    X = np.random.default_rng(0).random((9, 2))
    with pytest.raises(ValueError, match="needs at least 9 calibration rows; there are 2"):
        ConformalQuantileRegressor(Constant()).fit(X, X[:, 0])
    with pytest.raises(ValueError, match=r"calibration_size must be .*or 'auto'; got 'most'"):
        ConformalQuantileRegressor(Constant(), calibration_size="most").fit(X, X[:, 0])


class Constant(BaseEstimator):
    """Ends -1 and 1 everywhere, as two columns in any order; remembers what it was fitted on."""

    def fit(self, X, y, sample_weight=None):
        self.rows_, self.weight_ = np.asarray(X)[:, 0], sample_weight
        return self

    def predict(self, X):
        return np.tile([1.0, 0.0, -1.0], (len(X), 1))


@pytest.fixture
def table():
    """Rows that carry their number in the first column."""
    rng = np.random.default_rng(0)
    X = np.column_stack([np.arange(400.0), rng.random(400)])
    return X, rng.standard_normal(400)


class Marginal(BaseEstimator):
    """The 5 % and 95 % quantiles of the training targets, everywhere."""

    def fit(self, X, y, sample_weight=None):
        self.ends_ = np.quantile(y, [0.05, 0.95], method="inverted_cdf")
        return self

    def predict(self, X):
        return np.tile(self.ends_, (len(X), 1))


def hold_out_a_value(request):
    """All rows with one of the values of y calibrate, the others train."""
    out = request.y == request.rng.choice(np.unique(request.y))
    return [(~out, np.flatnonzero(out))]


@pytest.mark.parametrize(("split", "covers"), [(METHODS["split"].split, True), (hold_out_a_value, False)])
def test_keeping_equal_rows_together_would_cost_the_coverage(monkeypatch, split, covers):
    """Why weights are not repetitions with method="split" (`WEIGHTS`), although equal rows could share their fate.

    y is -1, 0 or 1. If the zeros calibrate, all lie in the middle of [-1, 1], which shrinks to [0, 0]: in a third of
    the fits 40 % of new targets are covered instead of 90 %, and no other fit can make up for it, for 100 % is most.
    """
    monkeypatch.setitem(METHODS, "trial", ConformalMethod(split, models="one"))
    rng = np.random.default_rng(0)
    found = []
    for seed in range(60):
        y = rng.choice([-1.0, 0.0, 1.0], 100, p=[0.3, 0.4, 0.3])
        model = ConformalQuantileRegressor(Marginal(), 0.9, method="trial", random_state=seed).fit(y[:, None] * 0, y)
        low, high = model.predict_interval(np.zeros((1, 1)))[0]
        found.append(sum(share for value, share in ((-1, 0.3), (0, 0.4), (1, 0.3)) if low <= value <= high))
    assert (np.mean(found) >= 0.9) == covers


def test_rows_fit_or_calibrate_and_never_both(table):
    X, y = table
    model = ConformalQuantileRegressor(Constant(), calibration_size=0.25, random_state=0).fit(X, y)
    fitted = model.estimators_[0].rows_
    assert len(fitted) == 300
    assert model.n_calibration_ == 100
    left = np.setdiff1d(X[:, 0], fitted).astype(int)
    np.testing.assert_allclose(np.sort(model.calibration_[None].above), np.sort(np.abs(y[left]) - 1))
    assert np.any(left < 200)  # shuffled


def test_time_order_calibrates_on_the_last_rows(table):
    model = ConformalQuantileRegressor(Constant(), calibration_size=80, time_ordered=True).fit(*table)
    np.testing.assert_array_equal(model.estimators_[0].rows_, np.arange(320))


def test_every_group_gives_its_share(table):
    X, y = table
    groups = np.where(np.arange(400) < 60, "few", "many")
    model = ConformalQuantileRegressor(Constant(), random_state=0).fit(X, y, groups=groups)
    assert {name: len(scores.above) for name, scores in model.calibration_.items()} == {"few": 15, "many": 85}


def test_folds_calibrate_what_they_have_not_seen(table):
    X, y = table
    model = ConformalQuantileRegressor(Constant(), method="cv+", cv=KFold(4)).fit(X, y)
    assert [len(one.rows_) for one in model.estimators_] == [300] * 4
    assert model.n_calibration_ == 400
    np.testing.assert_array_equal(model.estimators_[1].rows_, np.r_[0:100, 200:400])


def test_weights_reach_the_model_and_rows_without_weight_are_absent(table):
    X, y = table
    weight = np.where(np.arange(400) < 100, 0.0, 1 + X[:, 1])
    model = ConformalQuantileRegressor(Constant(), random_state=0).fit(X, y, sample_weight=weight)
    rows = model.estimators_[0].rows_.astype(int)
    np.testing.assert_array_equal(model.estimators_[0].weight_, weight[rows])
    without = ConformalQuantileRegressor(Constant(), random_state=0).fit(X[100:], y[100:], sample_weight=weight[100:])
    np.testing.assert_array_equal(model.predict_interval(X), without.predict_interval(X))


def test_folds_are_positions_among_all_rows(table):
    X, y = table
    weight = np.where(np.arange(400) % 3 == 0, 0.0, 1.0)
    numbers, fold = np.arange(400)[weight > 0], np.arange(400) // 100
    pairs = [(np.flatnonzero(fold != k), np.flatnonzero(fold == k)) for k in range(4)]
    for cv in (PredefinedSplit(fold), pairs, KFold(4)):
        model = ConformalQuantileRegressor(Constant(), method="cv+", cv=cv).fit(X, y, sample_weight=weight)
        for k, one in enumerate(model.estimators_):
            np.testing.assert_array_equal(one.rows_, numbers[fold[numbers] != k])
        assert model.n_calibration_ == len(numbers)


def test_folds_keep_groups_together(table):
    X, y = table
    groups = np.arange(400) % 8
    model = ConformalQuantileRegressor(Constant(), method="cv+", cv=GroupKFold(4)).fit(X, y, groups=groups)
    for one in model.estimators_:
        assert len(np.unique(groups[one.rows_.astype(int)])) == 6
    assert set(model.calibration_) == set(range(8))


def test_models_of_folds_warn_of_far_rows_as_one(table):
    X, y = table
    model = ConformalQuantileRegressor(BASE, method="cv+", random_state=0).fit(X, y)
    far = X + 100
    for ask in (model.predict_interval, model.predict):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            ask(far)
        assert [one.category for one in caught] == [ExtrapolationWarning] * (ask == model.predict_interval)
        assert all(one.filename == __file__ for one in caught)


@pytest.mark.parametrize("freeze", [False, True])
def test_a_fitted_model_is_taken_as_it_is(table, freeze):
    X, y = table
    base = clone(BASE).set_params(quantiles=[0.05, 0.95]).fit(X[:100], y[:100])
    before = base.coef_.copy()
    given = FrozenEstimator(base) if freeze else base
    model = ConformalQuantileRegressor(given, method="split" if freeze else "prefit").fit(X[100:], y[100:])
    assert model.n_calibration_ == 300
    np.testing.assert_array_equal(base.coef_, before)
    inside = coverage(y[100:], *model.predict_interval(X[100:]).T)
    assert inside == np.ceil(0.9 * 301) / 300  # exactly the rank, on the calibration rows themselves
    np.testing.assert_array_equal(model.predict(X), base.predict(X, quantiles=0.5))


def test_levels_follow_the_coverage(table):
    X, y = table
    for base in (BASE, None):
        model = ConformalQuantileRegressor(base, 0.8, random_state=0)
        model = model if base is not None else model.set_params(estimator=plain_regressor(n_components=20))
        np.testing.assert_allclose(model.fit(X, y).estimators_[0].quantiles_, [0.1, 0.5, 0.9])
    kept = clone(BASE).set_params(quantiles=[0.01, 0.2, 0.99])
    np.testing.assert_array_equal(
        ConformalQuantileRegressor(kept).fit(X, y).estimators_[0].quantiles_, [0.01, 0.2, 0.99]
    )
    assert BASE.quantiles == 0.5


def test_the_same_seed_gives_the_same_intervals():
    """Rows and, for the default estimator, features are drawn: both by the seed."""
    rng = np.random.default_rng(2)
    X = rng.uniform(0, 10, (200, 1))
    y = np.sin(X[:, 0]) + 0.3 * rng.standard_normal(200)
    first, second, other = (
        ConformalQuantileRegressor(random_state=seed).fit(X, y).predict_interval(X) for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(first, second)
    assert np.abs(first - other).max() > 0


def test_the_default_estimator():
    rng = np.random.default_rng(0)
    X = rng.random((300, 1))
    model = ConformalQuantileRegressor(random_state=0).fit(X, X[:, 0] + rng.standard_normal(300))
    assert isinstance(model.estimators_[0], KernelQuantileRegressor)
    assert model.predict_interval(X[:3]).shape == (3, 2)
    assert model.predict(X[:3]).shape == (3,)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("method", ["split", "cv+"])
def test_ends_never_cross(method, symmetric):
    """A model far too wide in most rows and of no width in others: calibrated, the latter would turn over."""
    rng = np.random.default_rng(0)
    X, y = rng.random((300, 1)), 0.1 * rng.standard_normal(300)

    class Wide(Constant):
        def predict(self, X):
            width = np.where(np.asarray(X)[:, :1] < 0.05, 0.0, 5.0)
            return np.hstack([-width, width])

    model = ConformalQuantileRegressor(Wide(), method=method, symmetric=symmetric, random_state=0).fit(X, y)
    low, high = model.predict_interval(X).T
    assert np.all(low <= high)
    assert np.any(low == high)
    assert np.all(np.isfinite(low) & np.isfinite(high))


def test_arrays_and_functions_say_the_same(table):
    X, y = table
    base = Constant().fit(X, y)

    def group(X):
        return X[:, 1] < 0.5

    def ratio(X):
        return 0.1 + X[:, 1]

    by_function = ConformalQuantileRegressor(base, method="prefit").fit(X, y, groups=group, density_ratio=ratio)
    by_array = ConformalQuantileRegressor(base, method="prefit").fit(X, y, groups=group(X), density_ratio=ratio(X))
    new = X[:50]
    expected = by_array.predict_interval(new, groups=group(new), density_ratio=ratio(new))
    np.testing.assert_array_equal(by_function.predict_interval(new), expected)
    np.testing.assert_array_equal(by_function.predict_interval(new, groups=group(new)), expected)
    plain = ConformalQuantileRegressor(base, method="prefit").fit(X, y).predict_interval(new)
    assert np.abs(plain - expected).max() > 0.01


def test_a_multiple_of_the_density_ratio_changes_nothing(table):
    X, y = table
    fits = [
        ConformalQuantileRegressor(Constant().fit(X, y), method="prefit").fit(
            X, y, density_ratio=lambda X, c=c: c * (0.1 + X[:, 1])
        )
        for c in (1.0, 1e6)
    ]
    np.testing.assert_array_equal(fits[0].predict_interval(X), fits[1].predict_interval(X))


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
def test_pipelines_and_tables_with_text(table, frame):
    X, y = table
    data = frame({"number": X[:, 1], "place": np.where(X[:, 0] % 2 == 0, "here", "there")})
    pipeline = make_pipeline(
        OneHotEncoder(sparse_output=False, handle_unknown="ignore"), clone(BASE).set_params(quantiles=[0.05, 0.95])
    )
    model = ConformalQuantileRegressor(pipeline, random_state=0).fit(data, y, groups=lambda table: table["place"])
    assert set(model.calibration_) == {"here", "there"}
    assert 0.8 < coverage(y, *model.predict_interval(data).T) <= 1


def test_pickle_and_clone(table):
    X, y = table
    model = ConformalQuantileRegressor(BASE, random_state=0).fit(X, y, groups=X[:, 1] < 0.5)
    copy = pickle.loads(pickle.dumps(model))
    groups = X[:, 1] < 0.5
    np.testing.assert_array_equal(copy.predict_interval(X, groups=groups), model.predict_interval(X, groups=groups))
    assert not hasattr(clone(model), "calibration_")


def test_parameters_that_are_set_anew_wait_for_the_next_fit(table, tmp_path):
    X, y = table
    model = ConformalQuantileRegressor(BASE, symmetric=False, random_state=0).fit(X, y)
    interval, middle = model.predict_interval(X), model.predict(X)
    model.set_params(coverage=0.5, symmetric=True)
    quernel.save(model, tmp_path / "m.quernel")
    for one in (model, quernel.load(tmp_path / "m.quernel"), pickle.loads(pickle.dumps(model))):
        np.testing.assert_array_equal(one.predict_interval(X), interval)
        np.testing.assert_array_equal(one.predict(X), middle)
        assert (one.coverage_, one.symmetric_) == (0.9, False)
    assert predict_interval_with_coverage(model, X, None)[1] == 0.9
    model.fit(X, y)
    assert (model.coverage_, model.symmetric_) == (0.5, True)
    assert coverage(y, *model.predict_interval(X).T) < 0.7


def fit(X, y, estimator=None, coverage=0.9, *, given=None, **settings):
    estimator = Constant() if estimator is None else estimator
    return ConformalQuantileRegressor(estimator, coverage, random_state=0, **settings).fit(X, y, **(given or {}))


@pytest.mark.parametrize(
    ("settings", "given", "message"),
    [
        ({"coverage": 1.0}, {}, "coverage must lie strictly between 0 and 1; got 1.0"),
        ({"method": "jackknife"}, {}, "Unknown method 'jackknife'. Known: 'split', 'cv+', 'prefit'"),
        ({"symmetric": "yes"}, {}, "symmetric must be True or False; got 'yes'"),
        ({"calibration_size": 1.5}, {}, "calibration_size must be a share between 0 and 1 or a positive number"),
        ({"calibration_size": 400}, {}, "leaves no rows to fit"),
        ({"calibration_size": 8}, {}, "needs at least 9 calibration rows; there are 8"),
        ({"calibration_size": 18, "symmetric": False}, {}, "needs at least 19 calibration rows; there are 18"),
        ({"coverage": 0.999}, {}, "needs at least 999 calibration rows; there are 100"),
        ({}, {"groups": np.arange(400) < 12}, "needs at least 9 calibration rows of group True; there are 3"),
        ({}, {"groups": [0, 1]}, r"groups must have one entry for each of 400 rows; got shape \(2,\)"),
        ({}, {"groups": [None] + ["a"] * 399}, "groups has no label in 1 of 400 rows"),
        ({}, {"groups": pd.Series([pd.NA] + ["a"] * 399, dtype="string")}, "groups has no label in 1 of 400 rows"),
        ({}, {"groups": np.r_[np.nan, np.ones(399)]}, "groups has no label in 1 of 400 rows"),
        ({}, {"groups": np.array([1] + ["a"] * 399, dtype=object)}, "groups mixes labels of different types"),
        ({}, {"density_ratio": -np.ones(400)}, "density_ratio must be finite and not negative; 400 of 400"),
        ({}, {"density_ratio": np.zeros(400)}, "density_ratio is zero for every calibration row"),
        ({"method": "cv+", "time_ordered": True}, {}, "time_ordered=True divides the rows into earlier and later"),
        ({"method": "cv+", "cv": TimeSeriesSplit(4)}, {}, "needs folds that test every row once"),
        ({"method": "cv+", "cv": 1}, {}, "give at least 2"),
        (
            {"estimator": LinearRegression()},
            {},
            r"An interval needs two bounds: LinearRegression must have predict_inter",
        ),
        (
            {"estimator": make_pipeline(StandardScaler(), LinearRegression())},
            {"sample_weight": np.ones(400)},
            "Pipeline takes no sample_weight",
        ),
        ({"estimator": BASE, "method": "prefit"}, {"sample_weight": np.ones(400)}, "sample_weight is for fitting"),
        (
            {"estimator": plain_regressor([0.2, 0.8])},
            {},
            r"coverage 0.9 needs the levels 0.05 and 0.95; the estimator has quantiles=\[0.2, 0.8\]",
        ),
        ({"estimator": FrozenEstimator(BASE), "method": "cv+"}, {}, "a FrozenEstimator cannot be fitted again"),
    ],
)
def test_errors_of_fit(table, settings, given, message):
    message = message if "\\" in message else message.replace("+", r"\+")
    with pytest.raises(ValueError, match=message):
        fit(*table, given=given, **settings)


def test_prefit_without_a_model(table):
    with pytest.raises(ValueError, match="method='prefit' needs a fitted estimator; got None"):
        ConformalQuantileRegressor(method="prefit").fit(*table)


def test_errors_of_predict_interval(table):
    X, y = table
    groups = np.where(X[:, 1] < 0.5, "a", "b")
    model = fit(X, y, given={"groups": groups, "density_ratio": np.ones(400)})
    with pytest.raises(ValueError, match=r"fit was given groups of its rows: give those of the new rows, too"):
        model.predict_interval(X, density_ratio=np.ones(400))
    with pytest.raises(ValueError, match=r"fit was given density_ratio"):
        model.predict_interval(X, groups=groups)
    with pytest.raises(ValueError, match=r"Group 'c' was not calibrated; known groups are 'a', 'b'"):
        model.predict_interval(X, groups=np.full(400, "c"), density_ratio=np.ones(400))
    with pytest.raises(ValueError, match=r"groups was not given to fit"):
        fit(X, y).predict_interval(X, groups=groups)


def test_a_model_that_predicts_nan(table):
    class Broken(Constant):
        def predict(self, X):
            return np.full((len(X), 2), np.nan)

    with pytest.raises(ValueError, match="Broken predicts NaN in 100 rows"):
        fit(*table, estimator=Broken())


def test_every_method_is_described():
    """In the docstring of the parameter, which users read, and in the order of the registry."""
    quoted = ", ".join(f'"{name}"' for name in METHODS)
    assert f"method : {{{quoted}}}" in ConformalQuantileRegressor.__doc__
