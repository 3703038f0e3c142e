"""Laws of the encoder: what it makes of a table does not depend on the library, the order or the number of rows."""

import pickle
import subprocess
import sys

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from sklearn.base import clone

from quernel import TableEncoder
from quernel.tables import TableError
from quernel.tables.columns import FOLDS, row_folds, shrink_means, sum_targets
from support.houses import houses

X, Y = houses(300)
X["note"] = ["fine", None, "a b", "", "NA"] * 60
X["clock"] = [f"{i % 24:02}:{i % 60:02}" for i in range(300)]
X["day"] = [f"{i % 28 + 1}.{i % 12 + 1}.2021" for i in range(300)]


@pytest.fixture(scope="module")
def encoder():
    return TableEncoder().fit(X, Y)


def test_pandas_polars_and_arrow_are_encoded_alike_bit_by_bit(encoder):
    expected = encoder.transform(X)
    others = [pl.from_pandas(X), pa.Table.from_pandas(X), X.convert_dtypes(), X.to_dict("list")]
    for table in others:
        np.testing.assert_array_equal(encoder.transform(table), expected)
        again = TableEncoder().fit(table, Y)
        assert again.columns_ == encoder.columns_
        np.testing.assert_array_equal(again.fit_transform(table, Y), encoder.encode(X, 0))


def test_arrays_are_encoded_like_frames():
    frame = X[["size", "place", "garden", "built"]]
    found = TableEncoder().fit(frame.to_numpy(dtype=object), Y)
    assert found.n_features_in_ == 4
    assert not hasattr(found, "feature_names_in_")
    expected = TableEncoder().fit(frame, Y).transform(frame)
    np.testing.assert_array_equal(found.transform(frame.to_numpy(dtype=object)), expected)
    with pytest.raises(TableError, match="X has 3 features, but TableEncoder is expecting 4"):
        found.transform(frame.to_numpy(dtype=object)[:, :3])


def test_columns_without_names_are_known_by_their_position(encoder):
    expected, matrix = encoder.transform(X), X.to_numpy(dtype=object)
    np.testing.assert_array_equal(encoder.transform(matrix), expected)
    np.testing.assert_array_equal(TableEncoder().fit(matrix, Y).transform(X), expected)
    with pytest.raises(TableError, match=f"X has 2 features, but TableEncoder is expecting {X.shape[1]}"):
        encoder.transform(matrix[:, :2])


def test_columns_may_be_permuted(encoder):
    np.testing.assert_array_equal(encoder.transform(X[X.columns[::-1]]), encoder.transform(X))
    names = TableEncoder().fit(X[X.columns[::-1]], Y).get_feature_names_out()
    assert sorted(names) == sorted(encoder.get_feature_names_out())


def test_rows_may_be_permuted_and_taken_one_by_one(encoder):
    order = np.random.default_rng(0).permutation(len(X))
    expected = encoder.transform(X)
    np.testing.assert_array_equal(encoder.transform(X.iloc[order]), expected[order])
    again = TableEncoder().fit(X.iloc[order], Y[order]).transform(X)
    np.testing.assert_allclose(again, expected, rtol=1e-9)
    for table in (X, pl.from_pandas(X), pa.Table.from_pandas(X)):
        rows = [table[i : i + 1] if not isinstance(table, pa.Table) else table.slice(i, 1) for i in range(0, 300, 30)]
        np.testing.assert_array_equal(np.vstack([encoder.transform(row) for row in rows]), expected[::30])


def test_copies_encode_alike(encoder):
    np.testing.assert_array_equal(clone(encoder).fit(X, Y).transform(X), encoder.transform(X))
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(encoder)).transform(X), encoder.transform(X))


def test_unseen_categories_and_gaps_are_encoded(encoder):
    new = X.head(3).assign(street=["Nowhere", None, "Oak Street"], place=["west", None, "north"], sold=pd.NaT)
    found = dict(zip(encoder.get_feature_names_out(), encoder.transform(new).T, strict=True))
    assert found["street mean"][0] == pytest.approx(Y.mean())
    assert found["place = north"].tolist() == [0, 0, 1]
    assert found["place = (missing)"].tolist() == [0, 1, 0]
    assert all(np.isfinite(values).all() for values in found.values())


def test_the_encoder_gives_frames_if_asked(encoder):
    found = clone(encoder).set_output(transform="pandas").fit(X, Y).transform(X)
    assert list(found.columns) == encoder.get_feature_names_out().tolist()
    assert isinstance(clone(encoder).set_output(transform="polars").fit_transform(X, Y), pl.DataFrame)


def test_batches_of_training_rows_are_those_of_the_whole(encoder):
    parts = [encoder.encode(X.iloc[k : k + 70], k) for k in range(0, 300, 70)]
    np.testing.assert_array_equal(np.vstack(parts), encoder.encode(X, 0))
    assert np.any(encoder.encode(X, 0) != encoder.transform(X))


def test_means_of_a_training_row_do_not_know_its_target(encoder):
    (column,) = (column for column in encoder.columns_ if getattr(column, "means", None) is not None)
    other = Y.copy()
    other[7] += 1e6
    before, after = encoder.encode(X, 0), TableEncoder().fit_transform(X, other)
    place = encoder.names.index(column.names[0])
    assert before[7, place] == after[7, place]
    changed = before[:, place] != after[:, place]
    assert set(row_folds(np.arange(300))[~changed]) == {row_folds(np.array([7]))[0]}  # all rows of other folds see it


def test_means_are_those_of_weighted_rows_and_shrink():
    rng = np.random.default_rng(0)
    codes, y, weight = rng.integers(0, 6, 500), rng.normal(size=(500, 1)), rng.integers(1, 4, 500).astype(float)
    y += codes[:, None]
    folds = row_folds(np.arange(500))
    sums = sum_targets(codes, 8, y, weight, folds)
    twice = np.repeat(np.arange(500), weight.astype(int))
    np.testing.assert_allclose(sums, sum_targets(codes[twice], 8, y[twice], None, folds[twice]))
    means = shrink_means(sums.sum(axis=0))[0]
    plain = np.array([np.average(y[codes == k, 0], weights=weight[codes == k]) for k in range(6)])
    overall = np.average(y[:, 0], weights=weight)
    assert means[6] == means[7] == pytest.approx(overall)  # nothing is known of unseen categories
    assert np.all(np.abs(means[:6] - overall) < np.abs(plain - overall))
    np.testing.assert_allclose(means[:6], plain, atol=0.05)
    noise = shrink_means(sum_targets(codes, 8, rng.normal(size=(500, 1)), None, folds).sum(axis=0))[0]
    assert np.ptp(noise) < 0.1  # the negative control: categories that say nothing
    assert np.bincount(row_folds(np.arange(10_000))).min() > 900
    assert FOLDS == 10


def test_labels_have_a_mean_for_each_class_but_the_first():
    labels = np.array(["low", "mid", "high"])[np.digitize(Y, np.quantile(Y, [0.3, 0.7]))]
    names = TableEncoder().fit(X[["street", "size"]], labels).get_feature_names_out()
    assert names.tolist() == ["street mean 0", "street mean 1", "size", "size missing"]


@pytest.mark.parametrize(
    ("days", "order"),
    [
        (["1/13/21", "2/28/21", "12/31/21"], "month first"),
        (["13.1.2021", "28.2.2021", "31.12.2021"], "day first"),
        (["2021-01-13", "2021-02-28", "2021-12-31"], "year first"),
    ],
)
def test_dates_in_text_are_the_same_dates_in_any_order(days, order):
    encoder = TableEncoder().fit({"day": days * 5})
    (column,) = encoder.columns_
    assert column.order == order
    assert "read as these" in encoder.notes_[0]
    expected = TableEncoder().fit({"day": np.array(["2021-01-13", "2021-02-28", "2021-12-31"] * 5, "M8[D]")})
    np.testing.assert_array_equal(encoder.transform({"day": days}), expected.transform({"day": np.array(
        ["2021-01-13", "2021-02-28", "2021-12-31"], "M8[D]")}))  # fmt: skip


def test_dates_that_may_mean_two_things_stay_text():
    encoder = TableEncoder().fit({"day": ["1/2/2021", "3/4/2021"] * 9})
    assert encoder.columns_[0].kind == "text"
    assert "looks like numbers or dates" in encoder.notes_[0]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"categorical": "size"}, "categorical must be a list of names; got 'size'"),
        ({"keep": ["Size"]}, "There is no column 'Size' for keep. Did you mean 'size'"),
    ],
)
def test_wrong_parameters_are_refused(parameters, message):
    with pytest.raises(TableError, match=message):
        TableEncoder(**parameters).fit(X)


def test_targets_of_another_length_are_refused():
    with pytest.raises(TableError, match=r"X has 300 rows but y has shape \(299,\)"):
        TableEncoder().fit(X, Y[1:])


def test_no_library_of_tables_is_imported():
    """Core installations have neither pandas nor polars nor pyarrow."""
    code = (
        "import sys; sys.modules.update(dict.fromkeys(('pandas', 'polars', 'pyarrow')))\n"
        "import numpy as np; from quernel.tables import TableEncoder\n"
        "days = np.arange('2024-01-01', '2024-01-28', dtype='M8[D]')\n"
        "X = {'x': [1.0, 2.0, None] * 9, 'c': ['a', 'b', None] * 9, 't': days}\n"
        "print(TableEncoder().fit_transform(X, np.arange(27.0)).shape)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.stdout.strip() == "(27, 8)", ran.stderr
