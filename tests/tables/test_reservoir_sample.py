"""A sample of rows that pass by is a random one: every set of rows is as likely as any other."""

from itertools import combinations

import numpy as np
import pyarrow as pa
import pytest
from scipy.stats import chisquare

from quernel.tables.parquet_table import open_parquet
from quernel.tables.reservoir_sample import choose_sample_size, merge_samples, sample_batch
from quernel.tables.streaming_training import prepare_streamed, sample_rows
from quernel.tables.training_data import ReadOptions, prepare
from support.tables import collect_rows, sales, write_files


def numbered(n):
    return pa.table({"row": np.arange(n)})


def in_pieces(table, ends, **more):
    """The samples of the pieces that end at these rows."""
    starts = [0, *ends[:-1]]
    return [sample_batch(table.slice(a, b - a), row=a, **more) for a, b in zip(starts, ends, strict=True)]


def p_value(picked):
    """How likely so uneven a choice of pairs of six rows is, if all pairs are equally likely."""
    pairs = list(combinations(range(6), 2))
    counts = [sum(tuple(one) == pair for one in picked) for pair in pairs]
    assert sum(counts) == len(picked)
    return chisquare(counts).pvalue


@pytest.mark.parametrize("ends", [[6], [1, 6], [2, 3, 6]])
@pytest.mark.parametrize("in_a_tree", [False, True])
def test_all_pairs_of_rows_are_equally_likely(ends, in_a_tree):
    picked = []
    for seed in range(600):
        parts = in_pieces(numbered(6), ends, limit=2, seed=seed)
        if in_a_tree and len(parts) > 1:
            parts = [merge_samples(parts[:2]), *parts[2:]]
        picked.append(merge_samples(parts).table["row"].to_pylist())
    assert p_value(picked) > 1e-4
    # The first of each piece, or a row from either end more often, would be noticed.
    assert p_value([[0, 5] if k % 10 == 0 else one for k, one in enumerate(picked)]) < 1e-6


def test_a_sample_knows_its_rows_and_how_many_there_are():
    counts = np.arange(100) % 3 > 0
    table, ends = numbered(100), [17, 40, 100]
    parts = [
        sample_batch(table.slice(a, b - a), counts[a:b], limit=30, seed=1, row=a, target_row=int(counts[:a].sum()))
        for a, b in zip([0, *ends[:-1]], ends, strict=True)
    ]
    sample = merge_samples(parts)
    assert (sample.n_rows, sample.n_counted, len(sample.table), sample.whole) == (100, counts.sum(), 30, False)
    np.testing.assert_array_equal(sample.table["row"].to_numpy(), sample.row)
    np.testing.assert_array_equal(sample.target_row, (np.cumsum(counts) - counts)[sample.row])
    assert np.all(np.diff(sample.row) > 0)
    fewer = sample.subsample(10)
    assert set(fewer.row) < set(sample.row)
    everything = merge_samples(in_pieces(table, ends, limit=100, seed=1))
    assert everything.whole
    np.testing.assert_array_equal(everything.row, np.arange(100))


def test_the_size_of_a_sample_is_bounded_on_both_sides():
    assert choose_sample_size(10, 1e3) == 1000
    assert choose_sample_size(10, 1e6) == 0.25 * 1e6 / 80
    assert choose_sample_size(10, 1e12) == 100_000


def test_rows_drawn_from_files_have_the_numbers_of_the_rows_that_are_fitted(tmp_path):
    table = sales()
    training = prepare_streamed(open_parquet(write_files(tmp_path, table, 4, 37)), ReadOptions("price"))
    _, y, _ = collect_rows(training.rows)
    sample = sample_rows(training, 300, seed=0)
    price = sample.table["price"].to_numpy(zero_copy_only=False)
    there = np.isfinite(price)
    assert (sample.n_rows, sample.n_counted, len(price)) == (400, len(y), 300)
    assert np.sum(~there) > 0
    np.testing.assert_array_equal(y[sample.target_row[there]], price[there])
    np.testing.assert_array_equal(table["price"].to_numpy(zero_copy_only=False)[sample.row], price)
    assert sample.table.column_names == [*training.encoder.inputs, "price"]


def test_numbers_go_on_through_the_slabs_of_a_large_row_group(tmp_path):
    rng, n = np.random.default_rng(0), 150_000
    table = pa.table({"x": rng.random(n), "y": np.where(rng.random(n) < 0.1, np.nan, np.arange(n))})
    training = prepare_streamed(open_parquet(write_files(tmp_path, table, 2, 100_000)), ReadOptions("y"))
    sample = sample_rows(training, 500, seed=0)
    y = sample.table["y"].to_numpy()
    there = np.isfinite(y)
    np.testing.assert_array_equal(prepare(table, ReadOptions("y")).y[sample.target_row[there]], y[there])
    # From everywhere: each tenth of the file gives a tenth of the sample, as far as chance goes.
    assert chisquare(np.histogram(sample.row, 10, (0, n))[0]).pvalue > 1e-4
