"""An ONNX graph says what the model says."""

import copy
import dataclasses

import numpy as np
import pyarrow as pa
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LinearRegression

import quernel
from quernel import ConformalQuantileRegressor, KernelClassifier, KernelQuantileRegressor, KernelRegressor
from quernel.conformal.table_model import TableModel
from quernel.estimators.classifier import Isotonic, ProbabilityCurves
from quernel.kernels import Gaussian, RandomFeatureKernel, SpectralKernel
from quernel.tables.training_data import ReadOptions
from support.models import LEVELS, MAKERS, SMALL, conformal_by_group, fitted, plain_regressor, rows
from support.tables import prepare, sales, with_times

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

X_NEW, Y_NEW = rows(80, seed=2)
SPREAD = float(np.std(Y_NEW))


def run(path, **inputs):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, inputs), strict=True))


def held_against_onnx(model, path, X=X_NEW, tol=1e-10):
    """The answers of the graph, after they were found equal to the model's."""
    quernel.to_onnx(model, path, overwrite=True)
    outputs = run(path, X=X)
    if isinstance(model, ConformalQuantileRegressor):
        held_interval(outputs, model, model.predict_interval(X))
    elif isinstance(model, KernelClassifier):
        np.testing.assert_array_equal(outputs["label"], model.predict(X))
        if "probabilities" in outputs:
            np.testing.assert_allclose(outputs["probabilities"], model.predict_proba(X), rtol=0, atol=tol)
        else:
            np.testing.assert_allclose(outputs["scores"], model.decision_function(X), rtol=0, atol=tol)
    else:
        found = outputs["quantiles" if isinstance(model, KernelQuantileRegressor) else "prediction"]
        assert found.shape == model.predict(X).shape
        np.testing.assert_allclose(found, model.predict(X), rtol=0, atol=tol * SPREAD)
    return outputs


def held_interval(outputs, model, expected, X=X_NEW):
    assert set(outputs) == {"lower", "upper", "prediction"}
    np.testing.assert_allclose(
        np.column_stack([outputs["lower"], outputs["upper"]]), expected, rtol=0, atol=1e-10 * SPREAD
    )
    np.testing.assert_allclose(outputs["prediction"], model.predict(X), rtol=0, atol=1e-10 * SPREAD)


# Splines, and exact arc-cosine kernels, have no formula in a graph.
REFUSED = [
    name for name in MAKERS if "spline" in name or "sum of kinds" in name or ("exact" in name and "arccosine" in name)
]


@pytest.mark.parametrize("name", REFUSED)
def test_kernels_without_a_formula_are_refused(name, tmp_path):
    with pytest.raises(ValueError, match=r"(PeriodicSpline|ArcCosine) has no formula for ONNX\. Use "):
        quernel.to_onnx(fitted(name), tmp_path / "m.onnx")
    assert not (tmp_path / "m.onnx").exists()


@pytest.mark.parametrize("name", [name for name in MAKERS if name not in REFUSED])
def test_the_graph_predicts_what_the_model_predicts(name, tmp_path):
    held_against_onnx(fitted(name), tmp_path / "m.onnx")
    assert (tmp_path / "m.onnx").stat().st_size < 1_000_000


@pytest.mark.parametrize("way", ["sigmoid", "isotonic"])
def test_calibrated_probabilities_are_given_out_where_scores_are_far(way, tmp_path):
    for names in (2, 3):
        outputs = held_against_onnx(fitted(f"{way} chances of {names}"), tmp_path / "m.onnx", X=20 * X_NEW)
        assert set(outputs) == {"label", "probabilities"}


def test_no_class_that_is_possible_makes_all_equally_likely(tmp_path):
    model = copy.copy(fitted("isotonic chances of 3"))
    never = Isotonic(np.array([0.0]), np.array([0.0]))
    model.calibrated_ = ProbabilityCurves((never, never, Isotonic(np.array([0.0, 1.0]), np.array([0.0, 1.0]))))
    chances = held_against_onnx(model, tmp_path / "m.onnx")["probabilities"]
    assert np.all((chances == 1 / 3) | (chances == [0, 0, 1]))
    assert 0 < np.mean(chances[:, 2] == 1) < 1


def test_another_model_predicts_something_else(tmp_path):
    """So that the equality above can fail."""
    quernel.to_onnx(fitted("random laplacian"), tmp_path / "m.onnx")
    found = run(tmp_path / "m.onnx", X=X_NEW)["quantiles"]
    assert np.abs(found - fitted("random gaussian").predict(X_NEW)).max() > 0.01 * SPREAD


def test_levels_that_cross_are_sorted_by_the_graph(tmp_path):
    X, y = rows(40)
    settings = {"n_components": 200, "alpha": 1e-7, "random_state": 0}
    raw = plain_regressor(LEVELS, noncrossing=None, **settings).fit(X, y)
    crossed = held_against_onnx(raw, tmp_path / "raw.onnx")["quantiles"]
    assert (np.diff(crossed[:, [1, 2, 0]], axis=1) < 0).any()
    model = plain_regressor(LEVELS, **settings).fit(X, y)
    found = held_against_onnx(model, tmp_path / "m.onnx")["quantiles"]
    assert (np.diff(found[:, [1, 2, 0]], axis=1) >= 0).all()


@pytest.mark.parametrize("failed", [[0], [1, 2]])
def test_levels_that_failed_are_between_their_neighbours_in_the_graph_too(tmp_path, failed):
    X, y = rows(40)
    model = plain_regressor(LEVELS, n_components=200, alpha=1e-7, random_state=0).fit(X, y)
    model.duality_gap_, model.intercept_ = np.zeros(len(LEVELS)), model.intercept_.copy()
    model.duality_gap_[failed], model.intercept_[failed] = 1.0, 7.0
    held_against_onnx(model, tmp_path / "m.onnx")


def test_curves_at_frequent_values_are_there_in_the_graph_too(tmp_path):
    X, _ = rows()
    claims = np.random.default_rng(0).poisson(0.3, len(X))
    model = plain_regressor(LEVELS, n_components=50, alpha=0.01, random_state=0).fit(X, claims)
    found = held_against_onnx(model, tmp_path / "m.onnx")["quantiles"]
    assert len(model.frequent_values_) > 1
    assert np.mean(found == 0.0) > 0.2
    np.testing.assert_array_equal(found == 0.0, model.predict(X_NEW) == 0.0)


def test_large_angles_and_small_alphas_keep_their_digits(tmp_path):
    """Columns far from 0 in small units, and coefficients that nearly cancel: single precision would be lost."""
    X, y = rows()
    for settings in ({"n_components": 300}, {"n_components": "exact"}):
        model = plain_regressor([0.1, 0.9], alpha=1e-7, random_state=0, tol=1e-4, **settings)
        model.fit(1e4 + X, y)
        held_against_onnx(model, tmp_path / "m.onnx", 1e4 + X_NEW, tol=1e-6)


def test_one_row_and_no_row(tmp_path):
    quernel.to_onnx(fitted("random gaussian"), tmp_path / "m.onnx")
    assert run(tmp_path / "m.onnx", X=X_NEW[:1])["quantiles"].shape == (1, 3)
    assert run(tmp_path / "m.onnx", X=X_NEW[:0])["quantiles"].shape == (0, 3)


def box(rng, n_components, n_columns):
    return rng.uniform(-1, 1, (n_columns, n_components))


def test_a_kernel_of_ones_own_has_waves_but_no_gram(tmp_path):
    random = plain_regressor(kernel=SpectralKernel(0.5, box), **SMALL).fit(*rows())
    held_against_onnx(random, tmp_path / "m.onnx")
    kernel = SpectralKernel(0.5, box, lambda X, Z: np.sinc((X[:, None] - Z[None]) / np.pi).prod(axis=2))
    exact = plain_regressor(kernel=kernel, **(SMALL | {"n_components": "exact"})).fit(*rows())
    with pytest.raises(ValueError, match=r"SpectralKernel has no formula for ONNX.*random features"):
        quernel.to_onnx(exact, tmp_path / "exact.onnx")


class Narrow(Gaussian):
    """A kernel of the user's own, with waves of quernel's."""


def test_a_subclass_has_waves_but_no_gram(tmp_path):
    held_against_onnx(plain_regressor(kernel=Narrow(), **SMALL).fit(*rows()), tmp_path / "m.onnx")
    exact = plain_regressor(kernel=Narrow(), **(SMALL | {"n_components": "exact"})).fit(*rows())
    with pytest.raises(ValueError, match="Narrow has no formula for ONNX"):
        quernel.to_onnx(exact, tmp_path / "exact.onnx")


@pytest.mark.parametrize("name", ["quantiles", "upper"])
def test_a_column_with_the_name_of_an_output_is_refused(tmp_path, name):
    training = prepare(sales(60).rename_columns([name, *sales(1).column_names[1:]]), ReadOptions("price"))
    interval = ConformalQuantileRegressor(plain_regressor(LEVELS, n_components=5), 0.5, random_state=0)
    interval.fit(training.rows.X, training.rows.y)
    (model,) = interval.estimators_
    with pytest.raises(ValueError, match=f"{name!r}.*Rename it"):
        quernel.to_onnx(TableModel(training.encoder, model, "price", interval=interval), tmp_path / "m.onnx")
    if name == "upper":  # there is no such output without an interval
        quernel.to_onnx(TableModel(training.encoder, model, "price"), tmp_path / "m.onnx")


@pytest.mark.parametrize("name", ["", "quernel/constant0"])
def test_a_column_whose_name_no_input_can_have_is_refused(tmp_path, name):
    training = prepare(sales(60), ReadOptions("price"))
    model = plain_regressor(LEVELS, n_components=5).fit(training.rows.X, training.rows.y)
    first, *others = training.encoder.columns_
    encoder = training.encoder
    encoder.columns_ = (dataclasses.replace(first, name=name), *others)
    with pytest.raises(ValueError, match=f"The input {name!r} cannot be one of a graph.*Rename"):
        quernel.to_onnx(TableModel(encoder, model, "price"), tmp_path / "m.onnx")
    assert list(tmp_path.iterdir()) == []


def test_a_table_model_without_an_interval_says_how_to_get_one():
    training = prepare(sales(60), ReadOptions("price"))
    model = plain_regressor(LEVELS, n_components=5).fit(training.rows.X, training.rows.y)
    with pytest.raises(ValueError, match="fit --conformal"):
        TableModel(training.encoder, model, "price").predict_interval(sales(5))


class Bumps(RandomFeatureKernel):
    """Features of the user's own that are no waves."""

    name = "bumps"

    def gram(self, X, Z):
        raise NotImplementedError

    def diagonal(self, X):
        raise NotImplementedError

    def wave(self, X, frequencies, phases):
        return np.tanh(X @ frequencies + phases)

    def frequencies_from(self, normal, mixing):
        return normal

    def phases_at(self, uniform):
        return uniform


def test_what_cannot_be_written_is_refused(tmp_path):
    path = tmp_path / "m.onnx"
    with pytest.raises(NotFittedError):
        quernel.to_onnx(KernelRegressor(), path)
    with pytest.raises(
        TypeError, match=r"quernel\.to_onnx takes a fitted estimator of quernel or scikit-learn; got Gaussian"
    ):
        quernel.to_onnx(Gaussian(), path)
    with pytest.raises(ValueError, match="Bumps has no formula for ONNX"):
        quernel.to_onnx(plain_regressor(kernel=Bumps(), **SMALL).fit(*rows()), path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("labels", [["low", "high"], [3, 7], [False, True]])
@pytest.mark.parametrize("method", ["split", "cv+"])
def test_groups_are_an_input_of_the_graph(tmp_path, labels, method):
    model = conformal_by_group(labels, method=method)
    quernel.to_onnx(model, tmp_path / "m.onnx")
    groups = np.array(labels)[(X_NEW[:, 0] > 0).astype(int)]
    kind = object if isinstance(labels[0], str) else np.int64
    outputs = run(tmp_path / "m.onnx", X=X_NEW, groups=groups.astype(kind))
    held_interval(outputs, model, model.predict_interval(X_NEW, groups=groups))
    unknown = np.array(["neither"] * 80, dtype=object) if kind is object else np.full(80, 99)
    outputs = run(tmp_path / "m.onnx", X=X_NEW, groups=unknown)
    assert np.isnan(outputs["lower"]).all()
    assert np.isnan(outputs["upper"]).all()


def test_intervals_that_would_be_empty_are_points_in_the_graph(tmp_path):
    """A model that is far too wide for its calibration rows."""
    X, y = rows(300)
    wide = plain_regressor([0.01, 0.99], **(SMALL | {"alpha": 1.0})).fit(X, y + 5 * np.random.RandomState(0).randn(300))
    model = ConformalQuantileRegressor(wide, 0.1, method="prefit").fit(X[:, :], np.zeros(300))
    scores = dataclasses.replace(model.calibration_[None], below=np.full(300, -40.0), above=np.full(300, -39.0))
    model._calibration = [(None, scores)]
    expected = model.predict_interval(X_NEW)
    assert (expected[:, 0] == expected[:, 1]).all()
    quernel.to_onnx(model, tmp_path / "m.onnx")
    held_interval(run(tmp_path / "m.onnx", X=X_NEW), model, expected)


def test_intervals_that_no_graph_can_give_are_refused(tmp_path):
    X, y = rows()
    base = ConformalQuantileRegressor(plain_regressor(LEVELS, **SMALL), 0.7, random_state=0)
    for given, message in (
        ({"density_ratio": np.exp(X[:, 0])}, r"density_ratio cannot be written as ONNX.*estimators_\[0\]"),
        ({"groups": lambda X: X[:, 0] > 0}, "groups was given to fit as a function.*input"),
        ({"groups": np.where(X[:, 0] > 0, 0.5, 1.5)}, "text or whole numbers in ONNX; got float"),
    ):
        with pytest.raises(ValueError, match=message):
            quernel.to_onnx(clone(base).fit(X, y, **given), tmp_path / "m.onnx")

    class Band(LinearRegression):
        def predict(self, X):
            return super().predict(X)[:, None] + np.array([-1.0, 1.0])

    with pytest.raises(ValueError, match="The model inside is a Band"):
        quernel.to_onnx(ConformalQuantileRegressor(Band(), random_state=0).fit(X, y), tmp_path / "m.onnx")
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten_unless_asked(tmp_path):
    path = tmp_path / "m.onnx"
    path.write_bytes(b"mine")
    with pytest.raises(FileExistsError, match="overwrite=True"):
        quernel.to_onnx(fitted("one level"), path)
    assert path.read_bytes() == b"mine"


def test_missing_markers_are_missing_in_the_graph(tmp_path):
    texts = ["a", "b", None, "c"] * 30
    table = pa.table({"w": texts, "y": np.arange(120) % 4 + np.arange(120) / 500})
    training = prepare(table, ReadOptions("y", missing=["?", "none"]))
    model = plain_regressor(0.5, n_components=20, random_state=0).fit(training.rows.X, training.rows.y)
    quernel.to_onnx(TableModel(training.encoder, model, "y"), tmp_path / "m.onnx")
    found = run(tmp_path / "m.onnx", w=np.array([["a"], [""], ["?"], ["none"], ["new"]], dtype=object))["quantiles"]
    np.testing.assert_allclose(found[2:4], found[1])
    assert abs(found[1] - found[0]) > 0.5
    assert found[4] != found[1]


def test_text_and_numbers_of_other_files_are_the_same_in_the_graph(tmp_path):
    rng = np.random.default_rng(0)
    columns = {"place": rng.choice(["NA", "EU", "US"], 150), "code": rng.choice([1.0, 2.0, np.nan], 150)}
    table = pa.table(columns | {"x": rng.normal(size=150), "y": rng.normal(size=150)})
    training = prepare(table, ReadOptions("y", missing=["-999"], categorical=["code"]))
    model = plain_regressor(0.5, n_components=20, random_state=0).fit(training.rows.X, training.rows.y)
    whole = TableModel(training.encoder, model, "y")
    quernel.to_onnx(whole, tmp_path / "m.onnx")
    places, codes = ["NA", "NULL", "US", "n/a"], ["1", "1.0", "-999.0", "3"]
    rows = {"place": places, "code": codes, "x": [0.5, -999.0, 1.0, -998.0]}
    given = {name: np.array(values, dtype=object)[:, None] for name, values in rows.items()}
    found = run(tmp_path / "m.onnx", **given | {"x": np.array(rows["x"])[:, None]})["quantiles"]
    np.testing.assert_allclose(np.ravel(found), whole.predict(rows))


def test_a_model_of_tables_takes_its_columns_by_name(tmp_path):
    table, new = with_times(sales()), with_times(sales(100, seed=1), seed=1)
    new = new.set_column(2, "place", pa.array([*new["place"].to_pylist()[:-1], "nowhere yet"]))
    for log_target in (False, True):
        training = prepare(table, ReadOptions("price", log_target=log_target))
        model = plain_regressor(LEVELS, n_components=50, random_state=0)
        interval = ConformalQuantileRegressor(model, 0.75, random_state=0).fit(training.rows.X, training.rows.y)
        fitted_table = TableModel(training.encoder, interval.estimators_[0], "price", log_target, interval)
        quernel.to_onnx(fitted_table, tmp_path / "m.onnx", overwrite=True)
        kinds = {column.kind for column in training.encoder.columns_}
        assert kinds == {"number", "duration", "boolean", "text", "date", "time"}
        outputs = run(tmp_path / "m.onnx", **quernel.onnx_inputs(fitted_table, new))
        expected, ends = fitted_table.predict(new), fitted_table.predict_interval(new)
        np.testing.assert_allclose(outputs["quantiles"], expected, rtol=0, atol=1e-9 * np.std(expected))
        found = np.column_stack([outputs["lower"], outputs["upper"]])
        np.testing.assert_allclose(found, ends, rtol=0, atol=1e-9 * np.std(expected))
        quernel.save(fitted_table, tmp_path / "m.quernel", overwrite=True)
        loaded = quernel.load(tmp_path / "m.quernel")
        np.testing.assert_array_equal(loaded.predict(new), expected)
        np.testing.assert_array_equal(loaded.predict_interval(new), ends)
        assert np.std(expected[:, 1]) > 0.1 * np.std(new["price"].drop_null().to_numpy())  # it looks at the columns


def odd_table(n=120):
    """Columns as data frames and files have them: one of each kind, and its gap in the first row."""
    rng = np.random.default_rng(0)
    day = np.arange(n) * 7919 % n

    def gappy(values):
        return [None, *values[1:]]

    return pa.table(
        {
            "duration": pa.array(gappy([int(d) * 10**6 for d in day]), pa.duration("us")),
            "duration in ns": pa.array(gappy([int(d) * 10**9 for d in day]), pa.duration("ns")),
            "time": pa.array(gappy([int(d) * 700 for d in day]), pa.time32("s")),
            "zoned": pa.array(gappy([int(d) * 86_400 * 10**9 for d in day]), pa.timestamp("ns", "Europe/Berlin")),
            "day": pa.array(gappy(day.astype("datetime64[D]").astype(object).tolist()), pa.date32()),
            "zip": pa.array(gappy([500.0 + d % 4 for d in day])),
            "shop": pa.array(gappy([int(d) % 3 for d in day])),
            "open": pa.array(gappy([d % 5 > 1 for d in day])),
            "word": pa.array(gappy(["a" if d % 2 else "b" for d in day])).dictionary_encode(),
            "text": pa.array(gappy([str(d % 9) for d in day])),
            "amount": pa.array(gappy(rng.standard_normal(n).tolist())),
            "y": rng.standard_normal(n) + day % 4 + day / n,
        }
    )


@pytest.mark.parametrize("kept_as", ["arrow", "pandas", "polars", "text"])
def test_columns_of_all_kinds_are_fed_as_they_are_predicted_from(tmp_path, kept_as):
    table = odd_table()
    training = prepare(table, ReadOptions("y", categorical=["zip", "shop"], missing=["?"]))
    model = plain_regressor(LEVELS, n_components=50, random_state=0).fit(training.rows.X, training.rows.y)
    model = TableModel(training.encoder, model, "y")
    quernel.to_onnx(model, tmp_path / "m.onnx")
    new = table
    if kept_as == "pandas":
        new = table.to_pandas()
    elif kept_as == "polars":
        new = pytest.importorskip("polars").from_arrow(table)
    elif kept_as == "text":
        for name in ("amount", "open", "zip", "shop", "time"):
            new = new.set_column(new.schema.get_field_index(name), name, new[name].cast(pa.string()))
        new = new.set_column(new.schema.get_field_index("word"), "word", pa.array(["?"] * len(new)))
    fed = quernel.onnx_inputs(model, new)
    assert {values.shape for values in fed.values()} == {(120, 1)}
    expected = model.predict(new)
    found = run(tmp_path / "m.onnx", **fed)["quantiles"]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9 * np.std(expected))
    assert len(np.unique(expected[:, 1].round(6))) > 100  # it looks at the columns


def test_only_models_of_tables_are_fed_by_column():
    with pytest.raises(TypeError, match=r"model of tables.*got KernelQuantileRegressor"):
        quernel.onnx_inputs(fitted("one level"), sales(5))
