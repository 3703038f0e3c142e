"""Every estimator takes a mixed frame as it is, and learns nothing from it that a new row would not have."""

import pickle
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from sklearn.base import clone
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline

import quernel
from quernel import (
    ConformalQuantileRegressor,
    KernelClassifier,
    KernelQuantileRegressorCV,
    KernelRegressor,
    TableEncoder,
)
from quernel.tables import TableWarning
from support.houses import houses
from support.models import plain_regressor

pytestmark = pytest.mark.filterwarnings("ignore:Column '(id|noise|carID|instant|tailnum)' is left out")
LEVELS = [0.05, 0.5, 0.95]
SMALL = {"n_components": 40, "random_state": 0}
DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
LIBRARIES = {
    "pandas": lambda X: X,
    "polars": pl.from_pandas,
    "arrow": lambda X: pa.Table.from_pandas(X, preserve_index=False),
}


@pytest.fixture(scope="module")
def table():
    return houses()


@pytest.fixture(scope="module")
def model(table):
    return plain_regressor(LEVELS, **SMALL).fit(*table)


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_same_frame_in_any_library_gives_the_same_model(table, model, library):
    X, y = table
    given = LIBRARIES[library](X)
    other = plain_regressor(LEVELS, **SMALL).fit(given, y)
    np.testing.assert_array_equal(other.predict(given), model.predict(X))
    assert other.n_features_in_ == X.shape[1]
    assert other.feature_names_in_.tolist() == list(X.columns)


def test_it_is_the_pipeline_of_encoder_and_estimator(table, model):
    X, y = table
    line = make_pipeline(TableEncoder(), plain_regressor(LEVELS, **SMALL)).fit(X, y)
    np.testing.assert_array_equal(line.predict(X), model.predict(X))
    assert not hasattr(line[-1], "encoder_")


def test_the_order_of_columns_does_not_matter(table, model):
    X = table[0]
    np.testing.assert_array_equal(model.predict(X[X.columns[::-1]]), model.predict(X))


def test_traps_are_called_out_before_any_work(table):
    X, y = table
    small = plain_regressor(LEVELS, **SMALL)
    with pytest.warns(TableWarning, match=r"^Column 'id' is left out: it counts the rows from 1 to 400") as caught:
        small.fit(X, y)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    plan = str(small.plan_)
    assert f"encoder_ makes {len(small.encoder_.names)} columns of numbers of its 9" in plan
    for words in (
        "Column 'street' has 42 categories",
        "'built' is text that holds numbers",
        "long right tail",
    ):
        assert words in plan
        assert words not in str(caught[0].message)
    with pytest.warns(
        TableWarning, match=r"Column 'copy' equals the target.*Column 'twice' predicts the target almost"
    ):
        small.fit(X.drop(columns="id").assign(copy=y, twice=2 * y + 1), y)
    numbers = pd.DataFrame({"size": X["size"].fillna(80), "row": np.arange(len(y)), "copy": y})
    with pytest.warns(TableWarning, match=r"Column 'row' looks like an identifier.*Column 'copy' equals"):
        small.fit(numbers, y)
    assert not hasattr(small, "encoder_")  # numbers are used as they are


def test_a_column_is_no_trap_because_of_its_name(table):
    X, y = table
    named = X.drop(columns="id").assign(**{"equals the target": "no", "an identifier of the row": 1.0})
    with warnings.catch_warnings():
        warnings.simplefilter("error", TableWarning)
        model = plain_regressor(LEVELS, **SMALL).fit(named, y)
    assert any("'equals the target' is left out: it is 'no' everywhere" in note for note in model.encoder_.notes_)
    assert model.encoder_.alarms_ == ()


def test_identifiers_can_be_brought_back(table):
    X, y = table
    encoder = TableEncoder(keep=["id"]).fit(X, y)
    assert "id" in encoder.inputs
    assert not any("'id' is left out" in note for note in encoder.notes_)


def test_numbers_that_all_differ_are_no_identifiers():
    rng = np.random.default_rng(0)
    X = pd.DataFrame(
        {"weight": rng.normal(size=300), "grams": rng.choice(10**6, 300, replace=False), "c": ["a", "b"] * 150}
    )
    assert TableEncoder().fit(X).inputs == ["weight", "grams", "c"]
    assert TableEncoder().fit(X.rename(columns={"grams": "customer_id"})).inputs == ["weight", "c"]
    assert TableEncoder().fit(X.assign(grams=rng.permutation(300))).inputs == ["weight", "c"]


def test_one_row_at_a_time_is_the_same(table, model):
    X = table[0].iloc[::40]
    one_by_one = np.vstack([model.predict(X.iloc[[i]]) for i in range(len(X))])
    np.testing.assert_allclose(one_by_one, model.predict(X), rtol=1e-12)


def test_all_estimators_take_it(table):
    X, y = table
    low = y < np.median(y)
    search = KernelQuantileRegressorCV(LEVELS, alphas=[1e-11, 1e-10], cv=3, **SMALL).fit(X, y)
    interval = ConformalQuantileRegressor(plain_regressor(**SMALL), 0.8, random_state=0).fit(X, y)
    assert search.score(X, y) > 0.4
    assert KernelRegressor(**SMALL).fit(X, y).score(X, y) > 0.3
    assert KernelClassifier(**SMALL).fit(X, np.where(low, "low", "high")).score(X, np.where(low, "low", "high")) > 0.65
    assert interval.predict_interval(X).shape == (len(y), 2)
    assert interval.n_features_in_ == X.shape[1]


def test_copies_and_files_predict_the_same(table, model, tmp_path):
    X, y = table
    quernel.save(model, tmp_path / "m.quernel")
    again = clone(model).fit(X, y)
    for other in (again, pickle.loads(pickle.dumps(model)), quernel.load(tmp_path / "m.quernel")):
        np.testing.assert_array_equal(other.predict(X), model.predict(X))


@pytest.mark.parametrize("library", LIBRARIES)
def test_predictions_as_a_frame(table, model, library):
    X = table[0].iloc[5:9]
    given = LIBRARIES[library](X)
    found = model.predict(given, as_frame=True)
    assert type(found) is type(given)
    columns = found.column_names if library == "arrow" else list(found.columns)
    assert columns == ["q0.05", "q0.5", "q0.95"]
    np.testing.assert_array_equal(np.column_stack([np.asarray(found[name]) for name in columns]), model.predict(X))
    if library == "pandas":
        assert found.index.tolist() == X.index.tolist()
    assert model.predict(given, 0.3, as_frame=True).shape == (4, 1)
    bounds = model.predict_interval(given, 0.8, as_frame=True)
    np.testing.assert_array_equal(np.asarray(bounds["upper"]), model.predict_interval(X, 0.8)[:, 1])


def test_frames_of_predictions_need_a_frame(model):
    numbers = plain_regressor(LEVELS, **SMALL).fit(np.arange(60.0)[:, None], np.arange(60.0))
    with pytest.raises(ValueError, match="as_frame=True needs X as a data frame; got ndarray"):
        numbers.predict(np.ones((2, 1)), as_frame=True)


def test_a_missing_number_in_an_array_is_the_median_and_a_flag():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 2))
    gap = rng.random(200) < 0.3
    y = np.where(gap, 3.0, X[:, 0]) + 0.1 * rng.normal(size=200)
    X[gap, 0] = np.nan
    model = plain_regressor(**SMALL).fit(X, y)
    assert model.encoder_.names == ["x0", "x0 missing", "x1"]
    assert np.median(model.predict(X[gap])) == pytest.approx(3.0, abs=0.2)  # that it is missing tells


def test_another_schema_is_refused_with_the_remedy(table, model):
    X = table[0]
    with pytest.raises(ValueError, match=r"column 'place' is missing. Did you mean 'Place'"):
        model.predict(X.rename(columns={"place": "Place"}))
    with pytest.raises(ValueError, match=r"'size' holds strings such as 'large', but the model was fitted to numbers"):
        model.predict(X.assign(size="large"))
    with pytest.raises(ValueError, match=r"infinity in column 'size'"):
        model.predict(X.assign(size=np.inf))


def test_a_category_of_noise_is_not_learnt_by_heart():
    """Means of the target that contain the row's own target would predict it."""
    rng = np.random.default_rng(1)
    n = 600
    X = pd.DataFrame({"noise": [f"k{i}" for i in rng.integers(0, n // 2, n)], "x": rng.normal(size=n)})
    y = rng.normal(size=n)
    estimator = plain_regressor(n_components=40, alpha=1e-4, random_state=0)
    encoder = TableEncoder()
    encoded, as_new = encoder.fit_transform(X, y), encoder.transform(X)
    by_chance = np.column_stack([rng.permutation(encoded[:, 0]), X["x"]])
    fitted, leaking, chance = (estimator.fit(rows, y).score(rows, y) for rows in (encoded, as_new, by_chance))
    assert fitted < chance + 0.03
    assert leaking > chance + 0.15  # the negative control: training rows encoded as if they were new ones
    assert cross_val_score(estimator, X, y, cv=3).mean() < 0.02


FRAMES = {
    "bike sharing": ("bike_sharing_hour.csv.gz", "cnt", ["casual", "registered"]),
    "California": ("california_housing.csv.gz", "median_house_value", []),
    "flights": ("nycflights13_flights.parquet", "arr_delay", ["arr_time", "dep_time", "dep_delay"]),
    "used cars": ("uk_used_cars_kaggle_7632.csv.gz", "price", ["kaggle_split"]),
}


@pytest.mark.skipif(not DATA.is_dir(), reason="needs the data files beside the project")
@pytest.mark.parametrize("name", FRAMES)
def test_real_frames_fit_without_any_preparation(name):
    file, target, others = FRAMES[name]
    path = DATA / file
    frame = pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)
    frame = frame[frame[target].notna()].sample(500, random_state=0)
    X, y = frame.drop(columns=[target, *others]), frame[target].astype(float)
    fitted = plain_regressor(LEVELS, **SMALL).fit(X.iloc[:400], y.iloc[:400])
    assert hasattr(fitted, "encoder_")
    assert np.isfinite(fitted.predict(X.iloc[400:])).all()
    assert fitted.score(X.iloc[:400], y.iloc[:400]) > 0.05
