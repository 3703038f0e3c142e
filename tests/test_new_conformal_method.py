"""A conformal method is one entry in a registry: two are added here, without touching the library.

"relative" measures how far a target is outside in units of its interval's width, so that wide intervals are widened by
more (Kivaranovic, Johnson and Leeb 2020; Sesia and Candes 2020). "blocks" is CV+ with folds of neighbouring rows.
"""

import numpy as np
import pytest
from scipy.special import ndtr
from sklearn.base import BaseEstimator

import quernel
from quernel import ConformalQuantileRegressor
from quernel.conformal.methods import METHODS, ConformalMethod
from quernel.persistence import ModelFileError
from support.models import plain_regressor


def width(low, high):
    return high - low + 0.01


def make_blocks(request):
    fold = np.arange(request.n_rows) * 4 // request.n_rows
    return [(fold != k, np.flatnonzero(fold == k)) for k in range(4)]


@pytest.fixture(autouse=True)
def methods(monkeypatch):
    monkeypatch.setitem(METHODS, "relative", ConformalMethod(METHODS["split"].split, models="one", scale=width))
    monkeypatch.setitem(METHODS, "blocks", ConformalMethod(make_blocks, models="several", scale=width))


class TooNarrow(BaseEstimator):
    """Half of the width that 90 % intervals of y ~ N(0, x^2) have."""

    def fit(self, X, y):
        return self

    def predict(self, X):
        return 0.5 * 1.645 * np.hstack([-X, X])


def draw(rng, n):
    X = 0.2 + rng.random((n, 1))
    return X, X[:, 0] * rng.standard_normal(n)


def coverage_of_narrow_and_wide(predict, repetitions=200):
    """Mean coverage over all rows, and over those with the least and the most noise, by the known law of y."""
    found = []
    for seed in range(repetitions):
        rng = np.random.default_rng(seed)
        X, y = draw(rng, 300)
        new, _ = draw(rng, 300)
        low, high = predict(X, y, new).T / new[:, 0]
        inside, calm = ndtr(high) - ndtr(low), new[:, 0] < 0.5
        found.append([inside.mean(), inside[calm].mean(), inside[~calm].mean()])
    return np.mean(found, axis=0)


@pytest.mark.parametrize("method", ["relative", "blocks"])
def test_it_covers_and_equally_where_the_noise_is_proportional_to_the_width(method):
    everywhere = coverage_of_narrow_and_wide(
        lambda X, y, new: ConformalQuantileRegressor(TooNarrow(), method=method).fit(X, y).predict_interval(new)
    )
    assert np.all(np.abs(everywhere - 0.9) < 0.015)


def test_without_the_unit_calm_rows_are_covered_too_often_and_without_calibration_none_is():
    _, calm, wild = coverage_of_narrow_and_wide(
        lambda X, y, new: ConformalQuantileRegressor(TooNarrow()).fit(X, y).predict_interval(new)
    )
    assert calm > 0.97
    assert wild < 0.89
    assert coverage_of_narrow_and_wide(lambda X, y, new: TooNarrow().predict(new), repetitions=5)[0] < 0.65


def test_a_correction_in_other_units_than_the_scores_is_noticed():
    def predict(X, y, new):
        model = ConformalQuantileRegressor(TooNarrow(), method="relative").fit(X, y)
        model.method_ = "split"
        return model.predict_interval(new)

    assert np.max(np.abs(coverage_of_narrow_and_wide(predict, repetitions=20) - 0.9)) > 0.05


@pytest.fixture(scope="module")
def rows():
    return draw(np.random.default_rng(0), 200)


@pytest.mark.parametrize("method", ["relative", "blocks"])
def test_model_files_and_onnx_follow(rows, tmp_path, method):
    onnxruntime = pytest.importorskip("onnxruntime")
    base = plain_regressor(n_components=20, alpha=1e-3, random_state=0)
    model = ConformalQuantileRegressor(base, 0.8, method=method, random_state=0).fit(*rows)
    interval = model.set_params(method="split").predict_interval(rows[0])  # takes effect with the next fit
    quernel.save(model, tmp_path / "m.quernel")
    np.testing.assert_array_equal(quernel.load(tmp_path / "m.quernel").predict_interval(rows[0]), interval)
    quernel.to_onnx(model, tmp_path / "m.onnx")
    low, high = onnxruntime.InferenceSession(tmp_path / "m.onnx").run(["lower", "upper"], {"X": rows[0]})
    np.testing.assert_allclose(np.column_stack([low, high]), interval, rtol=0, atol=1e-9)
    del METHODS[method]
    with pytest.raises(ModelFileError, match=f"its conformal method '{method}' is unknown"):
        quernel.load(tmp_path / "m.quernel")


def test_its_demands_are_those_of_its_entry(rows):
    with pytest.raises(ValueError, match="time_ordered=True divides the rows"):
        ConformalQuantileRegressor(TooNarrow(), method="blocks", time_ordered=True).fit(*rows)
    with pytest.raises(ValueError, match="Known: 'split', 'cv\\+', 'prefit', 'relative', 'blocks'"):
        ConformalQuantileRegressor(TooNarrow(), method="other").fit(*rows)
