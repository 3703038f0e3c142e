"""Models that are calibrated as they are: those of tables, and intervals that were calibrated before."""

from dataclasses import replace

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from sklearn.base import clone, is_regressor
from sklearn.frozen import FrozenEstimator

import quernel
from quernel import ConformalQuantileRegressor
from quernel.conformal.table_model import TableModel
from quernel.tables.training_data import ReadOptions
from support.models import plain_regressor
from support.tables import prepare, sales


@pytest.fixture(scope="module")
def fitted():
    training = prepare(sales(600), ReadOptions("price", log_target=True))
    model = plain_regressor([0.1, 0.5, 0.9], n_components=40, random_state=0)
    return TableModel(training.encoder, model.fit(training.rows.X, training.rows.y), "price", log_target=True)


@pytest.fixture(scope="module")
def new():
    table = sales(500, seed=1).to_pandas()
    return table[table["price"].notna()].reset_index(drop=True)


@pytest.mark.parametrize("kind", [pd.DataFrame, pl.DataFrame, pa.table])
def test_text_reaches_it_untouched(fitted, new, kind):
    frame = new if kind is pd.DataFrame else (pl.from_pandas(new) if kind is pl.DataFrame else pa.table(new))
    model = ConformalQuantileRegressor(fitted, 0.8, method="prefit").fit(frame, new["price"])
    low, high = fitted.predict_interval(new, coverage=0.8).T
    score = np.sort(np.maximum(low - new["price"], new["price"] - high))
    reach = score[int(np.ceil(0.8 * (len(new) + 1))) - 1]
    np.testing.assert_allclose(model.predict_interval(frame), np.column_stack([low - reach, high + reach]))
    np.testing.assert_array_equal(model.predict(frame), fitted.predict(new, 0.5))
    assert is_regressor(model)
    assert clone(model).method == "prefit"


def test_one_word_per_row_calibrates_by_group(fitted, new):
    place = new["place"].fillna("unknown")
    model = ConformalQuantileRegressor(FrozenEstimator(fitted), 0.8).fit(new, new["price"], groups=place)
    assert set(model.calibration_) == {"north", "south", "east", "unknown"}


def test_it_is_not_fitted_again(fitted, new):
    for method in ("split", "cv+"):
        with pytest.raises(ValueError, match=r"TableModel cannot be fitted.*method='prefit'"):
            ConformalQuantileRegressor(fitted, 0.8, method=method).fit(new, new["price"])
    with pytest.raises(ValueError, match=r"Ask for at most 0\.8"):
        ConformalQuantileRegressor(fitted, 0.9, method="prefit").fit(new, new["price"])


def test_it_can_be_kept(fitted, new, tmp_path):
    for estimator in (fitted, FrozenEstimator(fitted)):
        model = ConformalQuantileRegressor(estimator, 0.8, method="prefit").fit(new, new["price"])
        quernel.save(model, tmp_path / "m.quernel", overwrite=True)
        loaded = quernel.load(tmp_path / "m.quernel")
        np.testing.assert_array_equal(loaded.predict_interval(new), model.predict_interval(new))
    pytest.importorskip("onnx")
    with pytest.raises(ValueError, match=r"TableModel, whose calibration.*quernel fit --conformal"):
        quernel.to_onnx(model, tmp_path / "m.onnx")


class Asked:
    """A model of somebody else's, with an attribute that happens to be called as one of ours."""

    interval = "central"

    def predict_interval(self, X, **kwargs):
        return np.tile([[-1.0, 1.0]], (len(X), 1)) * kwargs["coverage"]


def test_a_model_that_takes_any_word_is_told_the_coverage():
    rng = np.random.default_rng(0)
    X, y = rng.random((50, 1)), rng.uniform(-2, 2, 50)
    model = ConformalQuantileRegressor(Asked(), 0.8, method="prefit").fit(X, y)
    np.testing.assert_allclose(model.calibration_[None].above, np.abs(y) - 0.8)


def test_intervals_of_tables_that_are_calibrated_are_not_asked_for_another_coverage(fitted, new):
    X = fitted.encoder.transform(new)
    interval = ConformalQuantileRegressor(fitted.model, 0.6, method="prefit").fit(X, np.log(new["price"]))
    calibrated = replace(fitted, interval=interval)
    for given in (calibrated, FrozenEstimator(calibrated)):
        again = ConformalQuantileRegressor(given, 0.9, method="prefit").fit(new, new["price"])
        low, high = again.predict_interval(new).T
        assert 0.9 <= np.mean((low <= new["price"]) & (new["price"] <= high)) < 0.92


def test_calibrated_intervals_can_be_calibrated_again(tmp_path):
    rng = np.random.default_rng(0)
    X, y = rng.random((400, 2)), rng.standard_normal(400)
    base = plain_regressor(n_components=10, random_state=0)
    first = ConformalQuantileRegressor(base, 0.5, random_state=0).fit(X[:200], y[:200])
    again = ConformalQuantileRegressor(first, 0.9, method="prefit").fit(X[200:], y[200:])
    low, high = again.predict_interval(X[200:]).T
    assert 0.9 <= np.mean((low <= y[200:]) & (y[200:] <= high)) < 0.92
    quernel.save(again, tmp_path / "m.quernel")
    np.testing.assert_array_equal(quernel.load(tmp_path / "m.quernel").predict_interval(X[200:]).T, [low, high])
