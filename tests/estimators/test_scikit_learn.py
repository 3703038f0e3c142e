"""The estimator is a good citizen of scikit-learn: its own checks, pipelines, searches, copies and data frames."""

import pickle

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import clone, is_regressor
from sklearn.datasets import make_regression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler, scale
from sklearn.utils.estimator_checks import parametrize_with_checks

import quernel
from quernel import (
    ConformalQuantileRegressor,
    KernelClassifier,
    KernelQuantileRegressorCV,
    KernelRegressor,
    QuantileForecaster,
    TableEncoder,
    TabularQuantileRegressor,
)
from quernel.kernels import Matern
from support.models import plain_regressor

SMALL = {"n_components": 50, "alpha": 1e-3, "random_state": 0}
COLUMNS = ["wind", "load", "price"]


DEFAULTS = [
    plain_regressor(),
    KernelRegressor(),
    KernelClassifier(),
    ConformalQuantileRegressor(),
    TableEncoder(),
]
# As scikit-learn declares its own estimators that divide rows at random; tests/conformal/test_regressor.py shows why.
NOT_EQUIVALENT = {"check_sample_weight_equivalence_on_dense_data": "equal rows may train and calibrate"}


@parametrize_with_checks(
    DEFAULTS,
    expected_failed_checks=lambda one: NOT_EQUIVALENT if isinstance(one, ConformalQuantileRegressor) else {},
)
def test_scikit_learns_own_checks_of_default_constructors(estimator, check):
    check(estimator)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Only .* rows are different:UserWarning")
@parametrize_with_checks([KernelQuantileRegressorCV()])
def test_scikit_learns_own_checks_of_the_default_search(estimator, check):
    check(estimator)


def test_every_public_estimator_is_checked_with_its_default_constructor():
    public = {one for one in map(quernel.__dict__.get, quernel.__all__) if hasattr(one, "fit")}
    public -= {TabularQuantileRegressor, QuantileForecaster}  # in test_tabular.py; takes series
    assert public == {type(one) for one in [*DEFAULTS, KernelQuantileRegressorCV()]}


@parametrize_with_checks(
    [
        plain_regressor(n_components="exact"),
        plain_regressor(kernel="linear"),
        plain_regressor(fit_intercept=False),
        plain_regressor(kernel="matern", sampling="leverage", n_components=100),
        plain_regressor(solver="admm", tol=1e-3, max_iter=5000),
    ]
)
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


@pytest.fixture
def table():
    rng = np.random.default_rng(0)
    X = rng.random((120, 3))
    return X, np.sin(4 * X[:, 0]) + X[:, 1] + (0.1 + X[:, 2]) * rng.standard_normal(120)


@pytest.mark.parametrize("n_components", ["auto", "exact"])
def test_default_fits_score_well_where_scikit_learn_would_look(n_components):
    """scikit-learn's check of the score sets alpha = 0.01, which promises nothing; alpha="auto" does."""
    X, y = make_regression(n_samples=200, n_features=10, n_informative=1, bias=5.0, noise=20, random_state=42)
    model = plain_regressor(n_components=n_components, random_state=0)
    assert not model.__sklearn_tags__().regressor_tags.poor_score
    assert (
        model.fit(StandardScaler().fit_transform(X), scale(y)).score(StandardScaler().fit_transform(X), scale(y)) > 0.5
    )


def test_it_is_a_regressor():
    assert is_regressor(plain_regressor())


def test_in_a_pipeline_with_a_scaler(table):
    X, y = table
    pipeline = make_pipeline(StandardScaler(), plain_regressor([0.1, 0.9], bandwidth=2.0, **SMALL)).fit(X, y)
    assert pipeline.predict(X).shape == (120, 2)
    by_hand = plain_regressor([0.1, 0.9], bandwidth=2.0, **SMALL).fit(StandardScaler().fit_transform(X), y)
    np.testing.assert_allclose(pipeline.predict(X), by_hand.predict(StandardScaler().fit_transform(X)), rtol=1e-12)
    unscaled = plain_regressor([0.1, 0.9], bandwidth=2.0, **SMALL).fit(X, y)
    assert np.abs(unscaled.predict(X) - pipeline.predict(X)).max() > 0.01  # the scaler does something here


def test_grid_search_over_alpha_and_bandwidth(table):
    X, y = table
    grid = {"alpha": [1e-3, 0.03], "bandwidth": ["auto", 0.01]}
    search = GridSearchCV(plain_regressor([0.25, 0.75], n_components=50, random_state=0), grid, cv=3).fit(X, y)
    # 0.03 shrinks every curve towards a constant and 0.01 sees only noise: a search that scores must reject them.
    assert search.best_params_ == {"alpha": 1e-3, "bandwidth": "auto"}
    assert search.best_estimator_.predict(X).shape == (120, 2)
    assert np.ptp(search.cv_results_["mean_test_score"]) > 0.05


def test_cross_val_score_tells_signal_from_noise(table):
    X, _ = table
    y = np.sin(4 * X[:, 0]) + X[:, 1] + 0.2 * np.random.default_rng(2).standard_normal(len(X))
    model = plain_regressor(0.5, **SMALL)
    scores = cross_val_score(model, X, y, cv=4)
    assert scores.shape == (4,)
    assert scores.mean() > 0.2
    shuffled = np.random.default_rng(1).permutation(y)
    assert cross_val_score(model, X, shuffled, cv=4).mean() < 0.05


@pytest.mark.parametrize(
    "settings",
    [SMALL, {"n_components": "exact"}, {"kernel": "linear"}, {**SMALL, "kernel": Matern(nu=2.5)}],
    ids=["random", "exact", "linear", "kernel object"],
)
def test_pickled_models_predict_the_same_bits(table, settings):
    X, y = table
    model = plain_regressor([0.9, 0.1], **settings).fit(X, y)
    copy = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(copy.predict(X), model.predict(X))
    np.testing.assert_array_equal(copy.predict(X, quantiles=0.5), model.predict(X, quantiles=0.5))


def test_clone_copies_settings_and_not_the_fit(table):
    X, y = table
    model = plain_regressor([0.1, 0.9], kernel=Matern(nu=0.5), **SMALL).fit(X, y)
    copy = clone(model)
    assert not hasattr(copy, "coef_")
    assert copy.get_params()["kernel"] == Matern(nu=0.5)
    np.testing.assert_array_equal(copy.fit(X, y).predict(X), model.predict(X))


def test_params_are_kept_as_given_and_can_be_set(table):
    X, y = table
    levels = (0.1, 0.9)
    model = plain_regressor(levels)
    assert model.get_params()["quantiles"] is levels
    assert model.set_params(quantiles=0.3, **SMALL) is model
    assert model.fit(X, y).predict(X).shape == (120,)
    expected = plain_regressor(0.3, **SMALL).fit(X, y).predict(X)
    np.testing.assert_array_equal(model.predict(X), expected)
    with pytest.raises(ValueError, match="Invalid parameter 'quantile'"):
        model.set_params(quantile=0.3)


def test_fit_does_not_change_its_settings(table):
    X, y = table
    model = plain_regressor([0.9, 0.1])
    before = dict(model.get_params())
    model.fit(X, y)
    assert model.get_params() == before


def test_set_output_of_a_scaler_in_front_does_not_matter(table):
    X, y = table
    plain = make_pipeline(StandardScaler(), plain_regressor(0.5, **SMALL))
    framed = make_pipeline(StandardScaler().set_output(transform="pandas"), plain_regressor(0.5, **SMALL))
    expected = plain.fit(X, y).predict(X)
    got = framed.fit(pd.DataFrame(X, columns=COLUMNS), y).predict(pd.DataFrame(X, columns=COLUMNS))
    assert type(got) is np.ndarray
    np.testing.assert_allclose(got, expected, rtol=1e-12)


@pytest.mark.parametrize("settings", [SMALL, {"n_components": "exact"}, {"kernel": "linear"}])
@pytest.mark.parametrize("frame", ["pandas", "polars", "lists"])
def test_tables_of_any_make_predict_like_arrays(table, frame, settings):
    X, y = table
    make = {
        "pandas": lambda: (pd.DataFrame(X, columns=COLUMNS), pd.Series(y, index=np.arange(120)[::-1])),
        "polars": lambda: (pl.DataFrame(X, schema=COLUMNS), pl.Series(y)),
        "lists": lambda: (X.tolist(), y.tolist()),
    }
    expected = plain_regressor([0.2, 0.8], **settings).fit(X, y).predict(X)
    framed, target = make[frame]()
    model = plain_regressor([0.2, 0.8], **settings).fit(framed, target)
    np.testing.assert_allclose(model.predict(framed), expected, atol=1e-10)  # other memory order, other rounding
    if frame != "lists":
        assert model.feature_names_in_.tolist() == COLUMNS


def test_mixed_numeric_types_of_a_frame_are_welcome(table):
    X, y = table
    whole = (10 * X).astype(int)
    frame = pd.DataFrame(
        {
            "flag": whole[:, 0] > 5,
            "count": whole[:, 1],
            "nullable": pd.array(whole[:, 2], dtype="Int64"),
            "single": X[:, 0].astype(np.float32),
        }
    )
    array = np.column_stack([whole[:, 0] > 5, whole[:, 1], whole[:, 2], X[:, 0].astype(np.float32)]).astype(float)
    expected = plain_regressor(0.5, **SMALL).fit(array, y).predict(array)
    np.testing.assert_allclose(plain_regressor(0.5, **SMALL).fit(frame, y).predict(frame), expected, rtol=1e-9)


@pytest.mark.parametrize(
    "make", [lambda X, names: pd.DataFrame(X, columns=names), pl.DataFrame], ids=["pandas", "polars"]
)
def test_feature_names_must_match_those_of_the_fit(table, make):
    X, y = table
    model = plain_regressor(0.5, **SMALL).fit(make(X, COLUMNS), y)
    with pytest.raises(ValueError, match="same order as they were in fit"):
        model.predict(
            make(X, COLUMNS).select(COLUMNS[::-1]) if make is pl.DataFrame else make(X, COLUMNS)[COLUMNS[::-1]]
        )
    with pytest.raises(ValueError, match=r"now missing:\n- price"):
        model.predict(make(X[:, :2], COLUMNS[:2]))
    with pytest.raises(ValueError, match=r"unseen at fit time:\n- solar"):
        model.predict(make(X, ["wind", "load", "solar"]))
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        model.predict(X)


@pytest.mark.parametrize(
    "settings", [SMALL, {"n_components": "exact", "alpha": 1e-3}, {"kernel": "linear", "alpha": 1e-3}]
)
def test_float32_predicts_close_to_float64(table, settings):
    X, y = table
    double = plain_regressor([0.1, 0.9], **settings).fit(X, y)
    single = plain_regressor([0.1, 0.9], **settings).fit(X.astype(np.float32), y.astype(np.float32))
    assert np.isfinite(single.predict(X.astype(np.float32))).all()
    np.testing.assert_allclose(single.predict(X.astype(np.float32)), double.predict(X), atol=1e-3 * np.std(y))
    assert single.duality_gap_.max() <= 1e-6
