"""What others build on scikit-learn's interface works with ours: inspection, searches, metadata routing, frames out."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn import config_context
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.inspection import partial_dependence, permutation_importance
from sklearn.model_selection import GridSearchCV, GroupKFold, HalvingGridSearchCV, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from quernel import ConformalQuantileRegressor, KernelRegressor, TableEncoder, TabularQuantileRegressor
from quernel.forecasting import CalendarFeatures, Lags
from support.models import plain_regressor

SMALL = {"n_components": 50, "alpha": 1e-3, "random_state": 0}
MODELS = {
    "one level": plain_regressor(0.5, **SMALL),
    "three levels": plain_regressor([0.1, 0.5, 0.9], **SMALL),
    "huber": KernelRegressor("huber", bandwidth="auto", **SMALL),
    "tabular": TabularQuantileRegressor(n_trees=5, random_state=0),
    "conformal": ConformalQuantileRegressor(plain_regressor([0.05, 0.95], **SMALL), random_state=0),
}


def rows(n=120):
    """y depends on the first column most, on the second less, and not on the third."""
    rng = np.random.default_rng(0)
    X = rng.random((n, 3))
    return X, np.sin(4 * X[:, 0]) + X[:, 1] + 0.2 * rng.standard_normal(n)


# Inspection


@pytest.mark.parametrize("name", MODELS)
def test_partial_dependence_and_permutation_importance(name):
    X, y = rows()
    model = MODELS[name].fit(X, y)
    found = partial_dependence(model, X, [1], grid_resolution=4)
    (grid,), average = found["grid_values"], found["average"]
    for value, means in zip(grid, average.T, strict=True):  # means over the rows, one for each level
        fixed = np.column_stack([X[:, 0], np.full(len(X), value), X[:, 2]])
        np.testing.assert_allclose(means, np.reshape(model.predict(fixed), (len(X), -1)).mean(axis=0), rtol=1e-9)
    assert np.all(np.diff(average) > 0)  # y rises with this column
    loss = permutation_importance(model, X, y, n_repeats=2, random_state=0).importances_mean
    assert loss[0] > loss[1] > 5 * abs(loss[2])


def test_partial_dependence_of_a_column_of_texts():
    X, y = rows()
    frame = pd.DataFrame({"size": X[:, 0], "place": np.where(X[:, 1] > 0.5, "north", "south")})
    model = TabularQuantileRegressor(n_trees=5, random_state=0).fit(frame, y)
    found = partial_dependence(model, frame, ["place"], categorical_features=["place"])
    assert found["grid_values"][0].tolist() == ["north", "south"]
    north, south = found["average"][0]
    assert 0.2 < north - south < 0.8


# Searches


def test_halving_search_drops_what_scores_badly():
    X, y = rows()
    grid = {"alpha": [1e-3, 1.0, 10.0]}
    search = HalvingGridSearchCV(
        plain_regressor([0.4, 0.6], n_components=30, random_state=0), grid, cv=2, factor=3, min_resources=40,
        random_state=0,
    ).fit(X, y)  # fmt: skip
    assert search.best_params_ == {"alpha": 1e-3}
    assert search.n_candidates_ == [3, 1]
    assert search.predict(X).shape == (120, 2)


# Metadata routing


def test_weights_go_through_a_pipeline_to_the_fit():
    X, y = rows()
    weight = np.random.default_rng(1).integers(0, 3, len(y)).astype(float)
    model = plain_regressor(0.5, **SMALL)
    scaled = StandardScaler().fit_transform(X)
    expected = model.fit(scaled, y, sample_weight=weight).predict(scaled)
    with config_context(enable_metadata_routing=True):
        scaler = StandardScaler().set_fit_request(sample_weight=False)
        asked = plain_regressor(0.5, **SMALL).set_fit_request(sample_weight=True)
        pipeline = make_pipeline(scaler, asked).fit(X, y, sample_weight=weight)
        np.testing.assert_array_equal(pipeline.predict(X), expected)
        not_asked = plain_regressor(0.5, **SMALL).set_fit_request(sample_weight=False)
        with pytest.raises(TypeError, match="not routed to any object"):
            make_pipeline(scaler, not_asked).fit(X, y, sample_weight=weight)
    assert np.abs(plain_regressor(0.5, **SMALL).fit(scaled, y).predict(scaled) - expected).max() > 1e-3


def test_weights_and_groups_go_through_a_grid_search():
    X, y = rows()
    weight = np.random.default_rng(1).integers(0, 3, len(y)).astype(float)
    groups = np.repeat(np.arange(12), 10)
    folds = list(GroupKFold(2).split(X, y, groups))
    scores = [
        plain_regressor(0.5, **SMALL).fit(X[a], y[a], sample_weight=weight[a]).score(X[b], y[b], weight[b])
        for a, b in folds
    ]
    with config_context(enable_metadata_routing=True):
        model = plain_regressor(0.5, **SMALL).set_fit_request(sample_weight=True).set_score_request(sample_weight=True)
        search = GridSearchCV(model, {"alpha": [1e-3]}, cv=GroupKFold(2), refit=False)
        search.fit(X, y, sample_weight=weight, groups=groups)
    found = [search.cv_results_[f"split{k}_test_score"][0] for k in range(2)]
    np.testing.assert_allclose(found, scores, rtol=1e-12)
    assert abs(scores[0] - plain_regressor(0.5, **SMALL).fit(X[folds[0][0]], y[folds[0][0]]).score(X, y)) > 1e-3


def test_groups_go_to_the_calibration_of_intervals():
    X, y = rows()
    groups = np.where(X[:, 2] > 0.5, "loud", "calm")
    y = y + np.where(groups == "loud", 3.0, 0.1) * np.random.default_rng(2).standard_normal(len(y))
    model = ConformalQuantileRegressor(plain_regressor([0.1, 0.9], **SMALL), 0.8, random_state=0)
    with config_context(enable_metadata_routing=True):
        asked = model.set_fit_request(groups=True)
        found = cross_validate(asked, X, y, params={"groups": groups}, cv=2, return_estimator=True)
        with pytest.raises(ValueError, match="groups"):
            cross_validate(model.set_fit_request(groups=None), X, y, params={"groups": groups}, cv=2)
    for one in found["estimator"]:
        calm, loud = (one.predict_interval(X, groups=np.full(len(X), name)) for name in ("calm", "loud"))
        assert np.all(np.diff(loud) > np.diff(calm))


# Frames out


def test_transformers_write_frames_with_the_names_of_their_columns():
    X, y = rows(20)
    frame = pd.DataFrame({"load": X[:, 0], "wind": X[:, 1]}, index=np.arange(20)[::-1])
    encoded = TableEncoder().set_output(transform="pandas").fit_transform(frame, y)
    assert encoded.columns.tolist() == ["load", "wind"]
    assert encoded.index.tolist() == frame.index.tolist()
    lags = Lags([1, 2]).set_output(transform="pandas").fit(frame)
    assert lags.transform(frame).columns.tolist() == ["load_lag1", "wind_lag1", "load_lag2", "wind_lag2"]
    assert lags.fit(X[:, :1]).get_feature_names_out().tolist() == ["x0_lag1", "x0_lag2"]  # none of an earlier fit
    times = pd.Series(pd.date_range("2026-01-01", periods=3, freq="h"))
    waves = CalendarFeatures({"day": 1}).set_output(transform="polars").fit_transform(times)
    assert isinstance(waves, pl.DataFrame)
    assert waves.columns == ["day_cos1", "day_sin1"]
