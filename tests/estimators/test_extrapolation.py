"""Rows outside the training inputs: counted exactly, warned of once and only when they are far."""

import pickle
import warnings

import numpy as np
import pytest

from quernel import ExtrapolationWarning, KernelClassifier, KernelQuantileRegressor, KernelRegressor
from quernel.data.statistics import column_range
from support.models import plain_regressor

SMALL = {"n_components": 20, "alpha": 1e-2, "random_state": 0}


def rows(n=100):
    rng = np.random.default_rng(0)
    X = rng.random((n, 2)) * [1, 100]
    X[0], X[1] = [0, 0], [1, 100]
    return X, X[:, 0] + rng.standard_normal(n)


MODELS = {
    "quantiles": lambda: plain_regressor([0.1, 0.9], **SMALL).fit(*rows()),
    "exact": lambda: KernelQuantileRegressor(n_components="exact", alpha=1e-2).fit(*rows()),
    "regressor": lambda: KernelRegressor("huber", **SMALL).fit(*rows()),
    "classifier": lambda: KernelClassifier("logistic", **SMALL).fit(rows()[0], rows()[1] > 0.5),
}


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (7, 3), (1023, 1), (1024, 1), (2500, 3), (3001, 7), (5, 2000)])
def test_the_range_of_columns_is_what_it_says(shape, order):
    rng = np.random.default_rng(0)
    for _ in range(5):  # extremes anywhere, also in the rows that do not fill a fold
        X = np.asarray(rng.standard_normal(shape), order=order)
        np.testing.assert_array_equal(column_range(X), [X.min(axis=0), X.max(axis=0)])


@pytest.mark.parametrize("name", MODELS)
def test_rows_are_outside_if_any_column_is(name):
    model = MODELS[name]()
    np.testing.assert_array_equal(model.input_range_, [[0, 0], [1, 100]])
    new = np.array([[0, 0], [1, 100], [0.5, 50], [-1e-9, 50], [0.5, 100.001], [2, -5]])
    np.testing.assert_array_equal(model.is_extrapolation(new), [False, False, False, True, True, True])
    assert not model.is_extrapolation(rows()[0]).any()


@pytest.mark.parametrize("name", MODELS)
def test_only_rows_that_are_far_outside_warn(name):
    for far in ([-0.26, 50], [0.5, 126], [50.0, 50]):
        model = MODELS[name]()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model.predict([[-0.24, 124], [1.24, -24]])
        with pytest.warns(ExtrapolationWarning, match=r"1 of 2 rows are far .*model\.is_extrapolation\(X\)"):
            model.predict([[0.5, 50], far])


@pytest.mark.parametrize("name", MODELS)
def test_a_model_warns_once_where_it_was_called_and_again_after_another_fit(name):
    model = MODELS[name]()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for k in range(3):
            model.predict([[5.0 + k, 50]])
    assert [(w.category, w.filename) for w in caught] == [(ExtrapolationWarning, __file__)]
    X, y = rows()
    with pytest.warns(ExtrapolationWarning):
        model.fit(X, y > 0.5 if name == "classifier" else y).predict([[5.0, 50]])
    with pytest.warns(ExtrapolationWarning):  # a copy is another model
        pickle.loads(pickle.dumps(model)).predict([[5.0, 50]])


def test_rows_without_weight_do_not_count():
    X, y = rows()
    X[5] = [50, 50]
    weight = np.ones(len(X))
    weight[5] = 0
    model = plain_regressor(**SMALL).fit(X, y, sample_weight=weight)
    assert model.is_extrapolation(X).tolist() == [i == 5 for i in range(len(X))]


def test_a_constant_column_has_no_room():
    X, y = rows()
    model = plain_regressor(**SMALL).fit(np.column_stack([X, np.full(len(X), 3.0)]), y)
    with pytest.warns(ExtrapolationWarning):
        model.predict([[0.5, 50, 3.1]])


def test_predicting_changes_nothing_in_the_model():
    model = MODELS["quantiles"]()
    before = dict(vars(model))
    with pytest.warns(ExtrapolationWarning):
        model.predict([[9, 9]])
    assert vars(model) == before
