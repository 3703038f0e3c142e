"""A pipeline of scikit-learn with an estimator of quernel is one ONNX graph, written by skl2onnx."""

import sys

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.ensemble import StackingRegressor
from sklearn.impute import SimpleImputer
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler

import quernel
from quernel import (
    ConformalQuantileRegressor,
    KernelClassifier,
    KernelRegressor,
    TableEncoder,
)
from quernel.persistence import register_converters
from support.models import LEVELS, SMALL, conformal_by_group, labels, plain_regressor, rows
from support.tables import sales

onnxruntime = pytest.importorskip("onnxruntime")
skl2onnx = pytest.importorskip("skl2onnx")

X, Y = rows()
X_NEW = rows(40, seed=1)[0]
CURVES, MEDIAN = plain_regressor(LEVELS, **SMALL), plain_regressor(0.5, **SMALL)
INTERVAL = ConformalQuantileRegressor(CURVES, 0.7, random_state=0)
PIPELINES = {
    "quantiles": (make_pipeline(StandardScaler(), CURVES), Y),
    "median": (make_pipeline(StandardScaler(), MEDIAN), Y),
    "exact": (make_pipeline(StandardScaler(), KernelRegressor("huber", kernel="matern", n_components="exact")), Y),
    "classes": (make_pipeline(StandardScaler(), KernelClassifier("logistic", **SMALL)), labels(X, ["a", "b", "c"])),
    "scores": (make_pipeline(StandardScaler(), KernelClassifier("hinge", **SMALL)), labels(X, [3, 7])),
    "interval": (make_pipeline(StandardScaler(), INTERVAL), Y),
    "search": (GridSearchCV(make_pipeline(StandardScaler(), MEDIAN), {"standardscaler__with_std": [True]}, cv=2), Y),
    "stacked": (StackingRegressor([("a", MEDIAN), ("b", KernelRegressor(**SMALL))], cv=2), Y),
}


def run(content, inputs):
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    return dict(zip([one.name for one in session.get_outputs()], session.run(None, inputs), strict=True))


@pytest.mark.parametrize("name", PIPELINES)
def test_the_graph_of_a_pipeline_predicts_what_it_predicts(tmp_path, name):
    model, target = PIPELINES[name]
    model.fit(X, target)
    quernel.to_onnx(model, tmp_path / "m.onnx")
    outputs, expected = run(tmp_path / "m.onnx", {"X": X_NEW}), model.predict(X_NEW)
    if name in ("classes", "scores"):
        np.testing.assert_array_equal(outputs.pop("label"), expected)
        expected = model.predict_proba(X_NEW) if name == "classes" else model.decision_function(X_NEW)
    if name == "interval":
        interval = model[-1].predict_interval(model[:-1].transform(X_NEW))
        found = np.column_stack([outputs.pop("lower"), outputs.pop("upper")])
        np.testing.assert_allclose(found, interval, rtol=0, atol=1e-10)
    (found,) = outputs.values()
    assert found.shape == (40, 1 if expected.ndim == 1 else expected.shape[1])
    np.testing.assert_allclose(found.reshape(expected.shape), expected, rtol=0, atol=1e-10)
    assert np.std(found[:, 0]) > 0.01


def test_skl2onnx_itself_knows_the_estimators_once_they_are_registered():
    register_converters()
    model = make_pipeline(StandardScaler(), CURVES).fit(X, Y)
    content = skl2onnx.to_onnx(model, X.astype(np.float32), target_opset=18).SerializeToString()
    outputs = run(content, {"X": X_NEW.astype(np.float32)})
    np.testing.assert_allclose(outputs["quantiles"], model.predict(X_NEW), atol=1e-3)  # features in float32
    with pytest.raises(ValueError, match="need operator set 18; got target_opset=15"):
        skl2onnx.to_onnx(model, X, target_opset=15)


def test_a_pipeline_of_a_table_takes_its_columns_by_name(tmp_path):
    frame, new = sales(200).to_pandas().dropna(subset="price"), sales(50, seed=1).to_pandas()
    model = make_pipeline(TableEncoder(), StandardScaler(), CURVES).fit(frame.drop(columns="price"), frame["price"])
    quernel.to_onnx(model, tmp_path / "m.onnx")
    outputs, expected = run(tmp_path / "m.onnx", quernel.onnx_inputs(model, new)), model.predict(new)
    np.testing.assert_allclose(outputs["quantiles"], expected, rtol=0, atol=1e-10 * np.std(expected))
    assert len(np.unique(expected.round(3))) > 50
    encoder = model[0]
    quernel.to_onnx(encoder, tmp_path / "e.onnx")
    outputs = run(tmp_path / "e.onnx", quernel.onnx_inputs(encoder, new))
    np.testing.assert_allclose(outputs["encoded"], encoder.transform(new), rtol=1e-12)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_model_that_encodes_its_frame_takes_the_columns_by_name(tmp_path):
    frame = sales(200).to_pandas().dropna(subset="price")
    target, frame = frame.pop("price"), frame
    model = plain_regressor(LEVELS, **SMALL).fit(frame, target)
    interval = ConformalQuantileRegressor(clone(model), 0.7, random_state=0).fit(frame, target)
    for one, name in ((model, "quantiles"), (interval, "prediction")):
        quernel.to_onnx(one, tmp_path / "m.onnx", overwrite=True)
        outputs, expected = run(tmp_path / "m.onnx", quernel.onnx_inputs(one, frame)), one.predict(frame)
        np.testing.assert_allclose(outputs[name], expected, rtol=0, atol=1e-10 * np.std(expected))
    bounds = np.column_stack([outputs["lower"], outputs["upper"]])
    np.testing.assert_allclose(bounds, interval.predict_interval(frame), rtol=0, atol=1e-10 * np.std(expected))
    with pytest.raises(ValueError, match="Each model of cv\\+ has an encoder of its own"):
        quernel.to_onnx(interval.set_params(method="cv+", cv=2).fit(frame, target), tmp_path / "n.onnx")


def test_an_encoder_of_a_matrix_takes_it_as_one_input():
    gaps = np.where(np.abs(X) > 1.5, np.nan, X)
    model = make_pipeline(TableEncoder(), CURVES).fit(gaps, Y)
    register_converters()
    content = skl2onnx.to_onnx(model, gaps, target_opset=18).SerializeToString()
    found = run(content, {"X": gaps})["quantiles"]
    np.testing.assert_allclose(found, model.predict(gaps), rtol=0, atol=1e-10)
    kinds = [("x0", skl2onnx.common.data_types.DoubleTensorType([None, 1])), ("z", None)]
    with pytest.raises(ValueError, match="no input for the column 'x1'"):
        skl2onnx.convert_sklearn(model, initial_types=[kinds[0], ("z", kinds[0][1])], target_opset=18)


def test_what_no_graph_can_be_made_of_is_refused(tmp_path):
    path = tmp_path / "m.onnx"
    by_group = make_pipeline(StandardScaler().fit(X), conformal_by_group(["low", "high"]))
    with pytest.raises(ValueError, match="calibrated by group"):
        quernel.to_onnx(by_group, path)
    polynomials = make_pipeline(SimpleImputer(), PolynomialFeatures(2), MEDIAN).fit(X, Y)
    with pytest.raises(ValueError, match="skl2onnx has no valid graph in float64 for a step of Pipeline"):
        quernel.to_onnx(polynomials, path)
    assert list(tmp_path.iterdir()) == []


def test_without_skl2onnx_the_export_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "skl2onnx", None)
    with pytest.raises(ImportError, match=r"pip install skl2onnx"):
        quernel.to_onnx(make_pipeline(StandardScaler(), MEDIAN).fit(X, Y), tmp_path / "m.onnx")
    assert list(tmp_path.iterdir()) == []
