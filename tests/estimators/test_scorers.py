"""Scorers by name in scikit-learn's cross-validation and searches, and alpha given where a level was meant."""

import pickle
import warnings

import numpy as np
import pytest
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import GridSearchCV, cross_val_score, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import quernel
from quernel import (
    ConformalQuantileRegressor,
    KernelQuantileRegressor,
    KernelQuantileRegressorCV,
    KernelRegressor,
    TabularQuantileRegressor,
)
from quernel.metrics import SCORERS, coverage, crps, interval_score, make_scorer, pinball_loss

LEVELS = [0.05, 0.5, 0.95]
SMALL = {"n_components": 20, "random_state": 0}
MODELS = {
    "kernel": KernelQuantileRegressor(LEVELS, alpha=1e-3, **SMALL),
    "search": KernelQuantileRegressorCV(LEVELS, alphas=[1e-3, 1e-2], cv=2, **SMALL),
    "tabular": TabularQuantileRegressor(LEVELS, n_trees=10, random_state=0),
    "conformal": ConformalQuantileRegressor(KernelQuantileRegressor(alpha=1e-3, **SMALL), random_state=0),
    "pipeline": make_pipeline(StandardScaler(), KernelQuantileRegressor(LEVELS, alpha=1e-3, **SMALL)),
}


def rows(n=160, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n, 2))
    return X, X[:, 0] + (0.2 + np.abs(X[:, 1])) * rng.standard_normal(n)


@pytest.mark.parametrize("name", MODELS)
def test_every_scorer_works_in_cross_validation_of_every_estimator(name):
    X, y = rows()
    scorers = {one: make_scorer(one) for one in SCORERS}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", quernel.ExtrapolationWarning)
        found = cross_validate(MODELS[name], X, y, scoring=scorers, cv=2, error_score="raise")
    for one in SCORERS:
        assert found[f"test_{one}"].shape == (2,)
        low, high = (-0.3, 0) if one == "coverage" else (-20, -0.05)
        assert np.all((low <= found[f"test_{one}"]) & (found[f"test_{one}"] <= high))


def test_scores_are_those_of_the_metrics():
    (X, y), (new, target) = rows(), rows(seed=1)
    weight = np.random.default_rng(2).integers(0, 3, len(target)).astype(float)
    given = {"sample_weight": weight}
    model = MODELS["tabular"].fit(X, y)
    low, high = model.predict_interval(new, 0.8).T
    for name, expected in {
        "interval_score": -interval_score(target, low, high, 0.8, **given),
        "coverage": -abs(coverage(target, low, high, **given) - 0.8),
    }.items():
        assert make_scorer(name, coverage=0.8)(model, new, target, weight) == pytest.approx(expected, rel=1e-12)
    for levels in (LEVELS, [0.3], [0.9, 0.1]):
        ordered = np.sort(levels)
        loss = pinball_loss(target, model.predict(new, ordered), ordered, **given).mean()
        found = make_scorer("pinball", quantiles=None if levels is LEVELS else levels)(model, new, target, weight)
        assert found == pytest.approx(-loss, rel=1e-12)
    assert make_scorer("crps")(model, new, target, weight) == pytest.approx(-model.crps(new, target, weight), rel=1e-12)
    kernel = MODELS["kernel"].fit(X, y)
    expected = -crps(target, kernel.predict(new), LEVELS)
    assert make_scorer("crps")(kernel, new, target) == pytest.approx(expected, rel=1e-12)
    assert make_scorer("crps")(FrozenEstimator(kernel), new, target) == pytest.approx(expected, rel=1e-12)


def test_quantiles_of_intervals_are_their_bounds():
    (X, y), (new, target) = rows(), rows(seed=1)
    model = MODELS["conformal"].fit(X, y)
    low, high = model.predict_interval(new, 0.5).T
    curves = np.column_stack([low, model.predict(new), high])
    found = make_scorer("pinball", quantiles=[0.25, 0.5, 0.75])(model, new, target)
    assert found == pytest.approx(-pinball_loss(target, curves, [0.25, 0.5, 0.75]).mean(), rel=1e-12)


def test_a_grid_search_is_by_the_scorer_and_can_be_saved(tmp_path):
    X, y = rows()
    model = KernelQuantileRegressor(LEVELS, **SMALL)
    search = GridSearchCV(model, {"alpha": [1e-4, 1e-2, 10.0]}, scoring=make_scorer("crps"), cv=3).fit(X, y)
    by_hand = [
        cross_val_score(model.set_params(alpha=alpha), X, y, scoring=make_scorer("crps"), cv=3).mean()
        for alpha in (1e-4, 1e-2, 10.0)
    ]
    np.testing.assert_allclose(search.cv_results_["mean_test_score"], by_hand, rtol=1e-12)
    assert search.best_index_ == int(np.argmax(by_hand))
    assert search.score(X, y) == make_scorer("crps")(search, X, y)
    quernel.save(search, tmp_path / "s")
    assert quernel.load(tmp_path / "s").score(X, y) == search.score(X, y)
    assert pickle.loads(pickle.dumps(make_scorer("pinball", quantiles=0.3))) == make_scorer("pinball", quantiles=[0.3])


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("pinbal", {}, "There is no scorer 'pinbal'.*Did you mean 'pinball'"),
        ("pinball", {"quantiles": [0.5, 90]}, "strictly between 0 and 1"),
        ("coverage", {"coverage": 90}, "Use 0.9 for 90 %"),
        ("coverage", {"quantiles": [0.1, 0.9]}, "give coverage, not quantiles"),
    ],
)
def test_wrong_scorers_are_refused(name, params, message):
    with pytest.raises(ValueError, match=message):
        make_scorer(name, **params)


def test_models_without_quantiles_are_refused():
    X, y = rows()
    model = KernelRegressor(alpha=1e-3, **SMALL).fit(X, y)
    for name in SCORERS:
        with pytest.raises(ValueError, match="KernelRegressor predicts no quantiles"):
            make_scorer(name)(model, X, y)


@pytest.mark.parametrize("alpha", [0.9, 0.05, 0.75, 0.975, 0.999])
def test_an_alpha_that_looks_like_a_level_warns(alpha):
    X, y = rows()
    with pytest.warns(UserWarning, match=f"write quantiles={alpha:g}") as caught:
        KernelQuantileRegressor(alpha=alpha, **SMALL).fit(X, y)
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    ("settings", "unit"),
    [
        ({"alpha": 0.1}, 1.0),  # powers of ten are of grids of ridge weights
        ({"alpha": 0.01}, 1.0),
        ({"alpha": 1.0}, 1.0),
        ({"alpha": float(10**-0.5)}, 1.0),
        ({"alpha": 0.9, "quantiles": 0.9}, 1.0),  # whoever gives levels knows what alpha is
        ({"alpha": 0.9, "quantiles": [0.1, 0.5, 0.9]}, 1.0),
        ({"alpha": 0.9}, 1e-4),  # not far from the usual ridge weight of so small numbers
        ({}, 1.0),
    ],
    ids=str,
)
def test_other_alphas_do_not(settings, unit):
    X, y = rows()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        KernelQuantileRegressor(**SMALL, **settings).fit(X, unit * y)
