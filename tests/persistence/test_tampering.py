"""Files that somebody changed and sealed again are refused in one line, not by an error when the model is used."""

import hashlib

import pytest

import quernel
from quernel import ConformalQuantileRegressor, KernelQuantileRegressor
from quernel.conformal.table_model import TableModel
from quernel.persistence.archive import HEADER_SIZE, MAGIC
from quernel.tables.training_data import ReadOptions, prepare
from support.model_files import assert_refused, tamper
from support.models import LEVELS, fitted
from support.tables import sales, with_times


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

    def change(_, arrays):
        header = text + b"\n"
        arrays[0] = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(8)

    assert_refused(tmp_path / "m", tamper(whole, change), message)


def test_members_that_need_a_password_are_refused(whole, tmp_path):
    content = bytearray(whole[HEADER_SIZE:])
    for start, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.index(start) + place] |= 1
    assert_refused(tmp_path / "m", MAGIC + hashlib.sha256(content).digest() + content, "password")


@pytest.fixture(scope="module")
def whole_table(tmp_path_factory):
    """The file of a model of tables, with columns of all kinds and a calibrated interval."""
    path = tmp_path_factory.mktemp("whole") / "t.quernel"
    training = prepare(with_times(sales(200)), ReadOptions("price", missing=["?"]))
    model = KernelQuantileRegressor(LEVELS, n_components=8, random_state=0)
    interval = ConformalQuantileRegressor(model, 0.7, method="cv+", cv=2, random_state=0).fit(training.X, training.y)
    quernel.save(TableModel(training.encoder, interval.estimators_[0], "price", False, interval), path)
    return path.read_bytes()


def entries(node, name):
    """The entries of a document, anywhere in it, that hold what is called so."""
    inside = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    found = [entry for one in inside for entry in entries(one, name)]
    return [node, *found] if isinstance(node, list) and len(node) == 2 and node[0] == name else found


FORGED = {
    "fill": (None, "many"),
    "name": (7, None),
    "cycles": ({"tuple": ["zzz"]}, 3),
    "categories": ({"tuple": [7]}, None),
    "missing": ({"tuple": [7]},),
    "target": (None, 3),
    "start": (None, "1970"),
    "phases_": (None, "zzz"),
    "frequencies_": (None, 1.0),
    "input_range_": (None, "zzz"),
    "coverage_": (None, "zzz"),
}


@pytest.mark.parametrize("name", FORGED)
def test_parts_that_make_no_sense_are_refused_before_they_are_used(whole_table, tmp_path, name):
    for forged in FORGED[name]:

        def change(document, _, forged=forged):
            for entry in entries(document, name):
                entry[1] = forged

        assert_refused(tmp_path / "m", tamper(whole_table, change))


@pytest.mark.parametrize("name", ["phases_", "input_range_", "quantiles_", "calibration_", "fill", "_groups"])
def test_parts_that_are_not_there_are_refused_before_they_are_used(whole_table, tmp_path, name):
    def remove(node):
        for one in list(node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()):
            if isinstance(one, list) and len(one) == 2 and one[0] == name:
                node.remove(one)
            else:
                remove(one)

    assert_refused(tmp_path / "m", tamper(whole_table, lambda document, _: remove(document)))


def test_a_table_written_again_without_change_is_accepted(whole_table, tmp_path):
    """So that the refusals above are due to the changes."""
    (tmp_path / "m").write_bytes(tamper(whole_table, lambda *_: None))
    assert quernel.load(tmp_path / "m").predict_interval(with_times(sales(5))).shape == (5, 2)
