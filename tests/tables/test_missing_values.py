"""Words say the same in any format: other spellings, and what stands for a gap."""

import warnings

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from quernel.conformal.table_model import TableModel, UnseenCategories, UnseenCategoriesWarning
from quernel.tables import TableError, TextColumn
from quernel.tables.columns import MISSING_MARKERS, equivalent_spellings, find_places
from quernel.tables.csv_files import CsvOptions, model_csv_options
from quernel.tables.training_data import ReadOptions
from support.models import plain_regressor
from support.tables import fit_encoder, prepare, read_table


def learnt(categorical=(), missing=(), **columns):
    return fit_encoder(pa.table(columns), list(columns), missing, categorical)


@pytest.mark.parametrize(
    ("word", "ways"),
    [
        ("True", {"true", "True", "TRUE"}),
        ("500.0", {"500", "500.0"}),
        ("500", {"500", "500.0"}),
        ("1e-05", {"1e-05", "0.00001"}),
        ("2.5", {"2.5"}),
        ("01234", {"01234"}),
        ("1.10", {"1.10"}),
        ("10000000000000001", {"10000000000000001"}),
        ("tRue", {"tRue"}),
        ("nan", {"nan"}),
        ("", {""}),
    ],
)
def test_spellings_are_those_of_programs(word, ways):
    assert set(equivalent_spellings(word)) == ways


def test_categories_are_the_same_in_other_spellings():
    table = pa.table({"flag": [True, False] * 9, "code": [500.0, None, 20.0] * 6, "size": [1e-5, 2.5] * 9})
    encoder = fit_encoder(table, table.column_names, categorical=table.column_names)
    text = table.to_pandas().astype(str).replace("nan", None)
    assert text["flag"][0] == "True"
    assert text["code"][0] == "500.0"
    assert text["size"][0] == "1e-05"
    np.testing.assert_array_equal(encoder.transform(text), encoder.transform(table))
    again = fit_encoder(pa.Table.from_pandas(text), table.column_names, categorical=table.column_names)
    assert [column.categories for column in again.columns_] == [("False", "True"), ("20.0", "500.0"), ("1e-05", "2.5")]
    for other in (table, table.set_column(1, "code", pa.array([500, None, 20] * 6))):
        np.testing.assert_array_equal(again.transform(other), again.transform(text))


def test_a_level_that_is_written_so_is_not_another():
    both = learnt(w=["500", "500.0", "1", "2.0", "x"] * 6).columns_[0]
    assert find_places(both.categories)["500"] != find_places(both.categories)["500.0"]
    assert both.categories[find_places(both.categories)["1.0"]] == "1"
    truths = TextColumn("w", ("TRUE", "true"), other=False, missing=False)
    assert "True" not in find_places(truths.categories)  # which of them it is nobody knows


def test_words_that_are_often_there_are_words_and_the_same_ones_are_gaps_elsewhere():
    encoder = learnt(place=["NA", "EU", None] * 6, kind=["a", "b", "NA"] + ["a", "b", "c"] * 5)
    place, kind = encoder.columns_
    assert place == TextColumn("place", ("EU", "NA"), other=False, missing=True)
    assert kind == TextColumn("kind", ("a", "b", "c"), other=False, missing=True)
    found = encoder.transform({"place": ["NA", "NULL", ""], "kind": ["NA", "a", "nan"]})
    np.testing.assert_array_equal(found, encoder.transform({"place": ["NA", None, None], "kind": [None, "a", None]}))
    assert found[0, 1] == 1


def test_missing_markers_that_are_no_categories_are_missing_at_the_fit():
    texts = [f"w{i:02}" for i in range(50) for _ in range(9)] + ["NA"] * 6
    (column,) = learnt(w=texts).columns_
    assert column == TextColumn("w", tuple(sorted(set(texts) - {"NA"})), other=False, missing=True)
    with pytest.raises(TableError, match=r"no usable input column. Column 'w' is left out: it holds no values"):
        learnt(w=["NA", None, "NULL"] * 3)


def test_csv_files_have_the_words_of_the_model(tmp_path):
    encoder = learnt(place=["NA", "EU", None] * 6, n=[1.0, None, 3.0] * 6)
    path = tmp_path / "x.csv"
    path.write_text('place,n,more\nNA,NA,NA\nEU,1,x\n"",2,\nNULL,3,null\n')
    found = read_table(path, model_csv_options(encoder, ["more"])).to_pydict()
    expected = {"place": ["NA", "EU", None, None], "n": [None, 1, 2, 3]}
    np.testing.assert_array_equal(encoder.transform(found), encoder.transform(expected))
    assert found["more"] == ["NA", "x", "", "null"]
    assert read_table(path)["place"].to_pylist() == [None, "EU", None, None]


def test_the_list_is_arrows():
    from pyarrow import csv

    assert set(csv.ConvertOptions().null_values) == set(MISSING_MARKERS)


def test_numeric_missing_markers_are_missing_in_any_table(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("n,k,code,y\n" + "1,-999,-999.0,1\n-999.00,2,a,2\n3.5,3,b,-999\n-999,4,b,4\n" * 6)
    table = read_table(path, CsvOptions(("-999",), ("code",)))
    assert table.slice(0, 4).to_pydict() == {
        "n": [1, -999, 3.5, None], "k": [None, 2, 3, 4], "code": [None, "a", "b", "b"], "y": [1, 2, None, 4],
    }  # fmt: skip
    encoder = prepare(table, ReadOptions("y", missing=["-999"])).encoder
    assert encoder.columns_[0].fill == 1  # without -999.00, which is the same number
    expected = encoder.transform({"n": [None, 2.0], "k": [1, None], "code": ["a", None]})
    for n, k, code in (
        ([-999.0, 2], [1, -999], ["a", "-999"]),
        (["-999.0", "2"], [1.0, -999.0], ["a", "-999.0"]),
        (pa.array([-999, 2], pa.int16()), pa.array(["1", "-999"]).dictionary_encode(), ["a", None]),
    ):
        np.testing.assert_array_equal(encoder.transform(pa.table({"n": n, "k": k, "code": code})), expected)


@pytest.fixture(scope="module")
def model():
    rng = np.random.default_rng(0)
    table = pa.table({"w": rng.choice(["a", "b", "c", "d"], 80), "x": rng.normal(size=80), "y": rng.normal(size=80)})
    made = prepare(table, ReadOptions("y"))
    return TableModel(made.encoder, plain_regressor(0.5, n_components=10).fit(made.rows.X, made.rows.y), "y")


def test_a_column_of_unknown_categories_is_pointed_out(model):
    with pytest.warns(
        UnseenCategoriesWarning, match=r"'w' is known .* 2 rows: it holds 'A', .* to 'a', 'b', 'c', \.\.\."
    ):
        model.predict({"w": ["A", None, "B"], "x": [0.0, 1.0, 2.0]})
    with warnings.catch_warnings():
        warnings.simplefilter("error", UnseenCategoriesWarning)
        model.predict({"w": ["new"], "x": [0.0]})  # a new word is welcome
        model.predict({"w": ["A", "b", "C"], "x": [0.0] * 3})
        model.predict({"w": [None, ""], "x": [0.0] * 2})


def test_categories_that_are_known_later_are_known(model):
    unseen = UnseenCategories(model.encoder)
    pieces = [pa.table({"w": texts, "x": [0.0, 0.0]}) for texts in (["A", "A"], ["B", "a"], ["C", "D"])]
    unseen.check(pieces[0])
    assert "in 2 rows" in unseen.describe()[0]
    for piece in pieces[1:]:
        unseen.check(piece)
    assert unseen.describe() == []


@pytest.mark.parametrize(
    "frame",
    [
        pd.DataFrame({"w": ["a"], "x": [1.0], "mixed": [object()]}),
        pl.DataFrame({"w": ["a"], "x": [1.0], "more": [object()]}),
    ],
)
def test_columns_of_a_frame_that_are_not_needed_do_not_matter(model, frame):
    np.testing.assert_array_equal(model.predict(frame), model.predict({"w": ["a"], "x": [1.0]}))


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (pl.LazyFrame({"w": ["a"], "x": [1.0]}), r"LazyFrame. Call .collect\(\) first"),
        (pl.Series("x", [1.0]), "Expected 2D array, got 1D array"),
        (
            pd.DataFrame({"w": ["a", "b"], "x": [1.0, "b"]}),
            "'x' holds strings such as 'b', but the model was fitted to numbers",
        ),
        (pd.DataFrame([["a", 1.0, 2.0]], columns=["w", "x", "x"]), "several columns of one name: 'x'"),
        (pd.DataFrame({"w": ["a"], "X": [1.0], "more": [object()]}), "'x' is missing. Did you mean 'X'"),
    ],
)
def test_what_is_wrong_with_a_frame_is_said(model, frame, message):
    with pytest.raises(ValueError, match=message):
        model.predict(frame)
