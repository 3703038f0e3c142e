"""A sample of the rows of files is a random one, and knows which rows it has."""

import numpy as np
import pyarrow as pa
from scipy.stats import chisquare

from quernel.data.parquet import open_parquet
from quernel.tables.files import find_files
from quernel.tables.training_data import ReadOptions, choose_sample_size, prepare, sample_rows
from support.tables import collect_rows, sales, write_files
from support.tables import prepare as prepare_table


def test_the_size_of_a_sample_is_bounded_on_both_sides():
    assert choose_sample_size(10, 1e3) == 1000
    assert choose_sample_size(10, 1e6) == 0.25 * 1e6 / 80
    assert choose_sample_size(10, 1e12) == 100_000


def test_rows_drawn_from_files_have_the_numbers_of_the_rows_that_are_fitted(tmp_path):
    table = sales()
    files = open_parquet(find_files(write_files(tmp_path, table, 4, 37)))
    training = prepare(files, ReadOptions("price"))
    _, y, _ = collect_rows(training.rows)
    sample = sample_rows(files, training.encoder.inputs, "price", 300, seed=0)
    price = sample.table["price"].to_numpy(zero_copy_only=False)
    there = np.isfinite(price)
    assert (sample.n_rows, sample.n_counted, len(price), sample.whole) == (400, len(y), 300, False)
    assert np.sum(~there) > 0
    np.testing.assert_array_equal(y[sample.target_row[there]], price[there])
    np.testing.assert_array_equal(table["price"].to_numpy(zero_copy_only=False)[sample.row], price)
    assert sample.table.column_names == [*training.encoder.inputs, "price"]
    everything = sample_rows(files, training.encoder.inputs, "price", 400, seed=0)
    assert everything.whole
    assert everything.table.equals(files.read(everything.table.column_names))


def test_numbers_go_on_through_the_batches_of_a_large_row_group(tmp_path):
    rng, n = np.random.default_rng(0), 150_000
    table = pa.table({"x": rng.random(n), "y": np.where(rng.random(n) < 0.1, np.nan, np.arange(n))})
    files = open_parquet(find_files(write_files(tmp_path, table, 2, 100_000)))
    sample = sample_rows(files, ["x"], "y", 500, seed=0)
    y = sample.table["y"].to_numpy()
    there = np.isfinite(y)
    np.testing.assert_array_equal(prepare_table(table, ReadOptions("y")).rows.y[sample.target_row[there]], y[there])
    # From everywhere: each tenth of the file gives a tenth of the sample, as far as chance goes.
    assert chisquare(np.histogram(sample.row, 10, (0, n))[0]).pvalue > 1e-4
    assert not np.array_equal(sample.row, sample_rows(files, ["x"], "y", 500, seed=1).row)
