"""Files that somebody changed and sealed again are refused in one line, not by an error when the model is used."""

import random

import numpy as np
import pandas as pd
import pytest

import quernel
from quernel import ConformalQuantileRegressor, QuantileForecaster
from quernel.conformal.table_model import TableModel
from quernel.forecasting import AdaptiveConformalRegressor
from quernel.persistence import ModelFileError
from quernel.persistence.archive import HEADER_SIZE, add_checksum, walk_nodes
from quernel.tables.training_data import ReadOptions
from support.model_files import assert_refused, node, read_archive, replace, tamper, write_archive
from support.models import LEVELS, conformal_by_group, fitted, plain_regressor, rows
from support.tables import prepare, sales, with_times


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "m.quernel"
    quernel.save(fitted("one level"), path)
    return path.read_bytes()


HEADERS = {
    "unfinished": (b"{'descr': (", "EOF|not a valid|unexpected"),
    "shape of truth": (b"{'descr': '<f8', 'fortran_order': False, 'shape': (True,), }", "array"),
    "shape of words": (b"{'descr': '<f8', 'fortran_order': False, 'shape': ('a',), }", "shape|valid"),
    "negative shape": (b"{'descr': '<f8', 'fortran_order': False, 'shape': (-1,), }", "does not hold"),
    "immense shape": (b"{'descr': 'V0', 'fortran_order': False, 'shape': (10 ** 30,), }", "not a valid"),
    "no literal": (b"{'descr': !", "not a valid"),
}


@pytest.mark.parametrize("name", HEADERS)
def test_headers_of_arrays_that_make_no_sense_are_refused(whole, tmp_path, name):
    text, message = HEADERS[name]

    def change(_, members):
        header = text + b"\n"
        members["0.npy"] = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(8)

    assert_refused(tmp_path / "m", tamper(whole, change), message)


def test_members_that_need_a_password_are_refused(whole, tmp_path):
    content = bytearray(whole[HEADER_SIZE:])
    for start, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.index(start) + place] |= 1
    assert_refused(tmp_path / "m", add_checksum(bytes(content)), "password")


@pytest.fixture(scope="module")
def whole_table(tmp_path_factory):
    """The file of a model of tables, with columns of all kinds and a calibrated interval."""
    path = tmp_path_factory.mktemp("whole") / "t.quernel"
    training = prepare(with_times(sales(200)), ReadOptions("price", missing=["?"]))
    model = plain_regressor(LEVELS, n_components=8, random_state=0)
    interval = ConformalQuantileRegressor(model, 0.7, method="cv+", cv=2, random_state=0).fit(
        training.rows.X, training.rows.y
    )
    quernel.save(TableModel(training.encoder, interval.estimators_[0], "price", False, interval), path)
    return path.read_bytes()


FORGED = {
    "fill": (None, "many"),
    "name": (7, None),
    "cycles": (("zzz",), 3),
    "categories": ((7,), None),
    "missing": ((7,),),
    "target": (None, 3),
    "start": (None, "1970"),
    "phases_": (None, "zzz"),
    "frequencies_": (None, 1.0),
    "input_range_": (None, "zzz"),
    "coverage_": (None, "zzz"),
    "features": ("zzz",),
    "n_features_in_": (10**15,),
}


@pytest.mark.parametrize("name", FORGED)
def test_parts_that_make_no_sense_are_refused_before_they_are_used(whole_table, tmp_path, name):
    for forged in map(node, FORGED[name]):
        assert_refused(tmp_path / "m", tamper(whole_table, lambda schema, _, it=forged: replace(schema, name, it)))


@pytest.mark.parametrize("name", ["phases_", "input_range_", "quantiles_", "_calibration", "fill", "_groups"])
def test_parts_that_are_not_there_are_refused_before_they_are_used(whole_table, tmp_path, name):
    assert_refused(tmp_path / "m", tamper(whole_table, lambda schema, _: replace(schema, name, None)))


def test_groups_without_scores_are_refused(tmp_path):
    """Whatever kind of error they lead to, here that of an empty iterator."""
    quernel.save(conformal_by_group(["low", "high"]), tmp_path / "m")
    whole = (tmp_path / "m").read_bytes()
    assert_refused(tmp_path / "m", tamper(whole, lambda schema, _: replace(schema, "_calibration", node(()))))


def test_a_table_written_again_without_change_is_accepted(whole_table, tmp_path):
    """So that the refusals above are due to the changes."""
    (tmp_path / "m").write_bytes(tamper(whole_table, lambda *_: None))
    assert quernel.load(tmp_path / "m").predict_interval(with_times(sales(5))).shape == (5, 2)


@pytest.fixture(scope="module")
def mixed():
    """A model that encodes its frame itself, and the frame: a category, one of many, gaps, dates, truth values."""
    rng, n = np.random.default_rng(0), 300
    numbers = np.where(rng.random(n) < 0.1, np.nan, rng.gamma(2, 50, n))
    frame = pd.DataFrame({
        "size": numbers,
        "place": rng.choice(["north", "south", None], n),
        "street": [f"street {i % 50}" for i in range(n)],
        "sold": pd.Timestamp("2025-01-01") + pd.to_timedelta(rng.integers(0, 900, n), unit="D"),
        "garden": rng.random(n) > 0.5,
    })  # fmt: skip
    model = plain_regressor(LEVELS, n_components=20, alpha=1e-3, random_state=0)
    return model.fit(frame, np.nan_to_num(numbers, nan=90.0) + rng.standard_normal(n)), frame


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_model_of_mixed_columns_is_kept_with_its_encoder(mixed, tmp_path):
    model, frame = mixed
    assert [column.kind for column in model.encoder_.columns_] == ["number", "text", "text", "date", "boolean"]
    assert [getattr(column, "means", None) is not None for column in model.encoder_.columns_] == [0, 0, 1, 0, 0]
    quernel.save(model, tmp_path / "m")
    whole = (tmp_path / "m").read_bytes()
    np.testing.assert_array_equal(quernel.load(tmp_path / "m").predict(frame), model.predict(frame))
    forgeries = {"means": None, "columns_": ("size",), "encoder_": 7, "missing": (7,), "categories": "north",
                 "other": "yes", "cycles": ("moon",), "order": "sun", "kind": "color",
                 "feature_names_in_": None}  # fmt: skip
    for name, forged in forgeries.items():

        def change(schema, _, name=name, forged=forged):
            replace(schema, name, node(forged))

        assert_refused(tmp_path / "m", tamper(whole, change))


JUNK = (None, "zzz", 7, -1, 1e300, True, (), (1, "a"))


def make_forecaster():
    t = np.arange(150.0)
    small = plain_regressor([0.1, 0.5, 0.9], n_components=8, alpha=1e-3, random_state=0)
    model = QuantileForecaster(4, season=12, estimator=small, random_state=0)
    return model.fit(5 + np.sin(t) + np.random.default_rng(0).random(150))


def make_adaptive():
    small = plain_regressor([0.1, 0.9], n_components=8, alpha=1e-3, random_state=0)
    return AdaptiveConformalRegressor(small, 0.8, method="aggregated", window=20).fit(*rows(60))


FORECASTS = {"forecaster": make_forecaster, "adaptive": make_adaptive}


def use(model):
    if isinstance(model, QuantileForecaster):
        return model.predict()
    if isinstance(model, AdaptiveConformalRegressor):
        return model.update(*rows(5)).predict_interval(rows(5)[0])
    return model.predict(rows(5)[0])


@pytest.mark.parametrize("name", ["one level", "conformal cv+", "isotonic multinomial", "old random state", *FORECASTS])
def test_anything_replaced_by_anything_is_refused_or_does_no_harm(tmp_path, name):
    """Objects of a file by others and by junk: `load` refuses the file, or the model predicts."""
    path, rng = tmp_path / "m", random.Random(0)
    model = FORECASTS[name]() if name in FORECASTS else fitted(name)
    quernel.save(model, path)
    np.testing.assert_array_equal(use(quernel.load(path)), use(model))
    schema, members = read_archive(path.read_bytes())
    nodes = [part for _, part in walk_nodes(schema)][1:]
    refused = 0
    for _ in range(40):
        old, new = rng.choice(nodes), rng.choice([*map(node, JUNK), rng.choice(nodes)])
        path.write_bytes(write_archive(_with_other(schema, old["__id__"], new), members))
        try:
            use(quernel.load(path))
        except ModelFileError:
            refused += 1
    assert 10 < refused < 40  # what predictions do not need, such as `verbose`, may be anything


def _with_other(part, number, new):
    """A schema with another node wherever the object of this number is."""
    if isinstance(part, list):
        return [_with_other(child, number, new) for child in part]
    if not isinstance(part, dict):
        return part
    if part.get("__id__") == number:
        return new
    return {key: _with_other(child, number, new) for key, child in part.items()}
