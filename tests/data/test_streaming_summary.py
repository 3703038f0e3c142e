"""Statistics of streamed rows: those of the same rows in memory, however they are cut, ordered or repeated."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from quernel.data import ArrayRows, MemmapRows, ParquetRows, RowsError, sources, statistics
from quernel.data.statistics import (
    column_range,
    compute_moments,
    distinct_labels,
    hash_sample,
    join_moments,
    join_samples,
    mean_absolute_deviation,
    streamed_quantiles,
    summarise,
)
from quernel.features.landmarks import distinct_rows
from quernel.losses import weighted_quantiles
from quernel.tuning import bandwidth
from quernel.tuning.bandwidth import bandwidth_from
from quernel.tuning.data_summary import column_scales, deduplicated_sample, robust_scale

N, LIMIT = 6000, 250
LEVELS = np.array([0.01, 0.25, 0.5, 0.75, 0.9])
DATA = ("plain", "weighted", "whole weights", "sorted", "offset", "repeated", "few x", "many y", "constant y")


def make(name):
    """X, y and weights of one kind."""
    rng = np.random.default_rng(DATA.index(name))
    X = rng.standard_normal((N, 4)) * [1, 10, 0.01, 1]
    X[:, 3] = rng.integers(0, 3, N)
    y = np.exp(rng.standard_normal(N)) + X[:, 0]
    weight = None
    if name in ("weighted", "sorted", "offset"):
        weight = rng.uniform(0, 2, N) * (rng.uniform(size=N) > 0.1)
    if name == "whole weights":
        weight = rng.integers(0, 4, N).astype(float)
    if name == "sorted":
        order = np.argsort(y)
        X, y, weight = X[order], y[order], weight[order]
    if name == "offset":
        X += [1e9, -1e7, 1e5, 1e10]
        y -= 1e8
    if name == "repeated":
        chosen = rng.integers(0, 400, N)
        X, y = X[chosen], np.where(rng.uniform(size=N) < 0.5, y[chosen], -0.0)
    if name == "few x":
        X = np.round(X / [1, 10, 0.01, 1])
        y = np.round(y)
    if name == "many y":
        X = np.floor(10 * rng.uniform(size=(N, 4)) * [1, 0, 0, 0.3])
    if name == "constant y":
        y = np.where(rng.uniform(size=N) < 0.8, 3.0, y)
        X[:, 1] = 0.1
    return X, y, weight


def in_memory(X, y, weight):
    """Rows as an estimator takes them: those of weight 0 left out."""
    if weight is None:
        return ArrayRows(X, y)
    return ArrayRows(X[weight > 0], y[weight > 0], weight[weight > 0])


@pytest.fixture(params=[97, 1000, N], ids=lambda size: f"blocks of {size}")
def cut(request, monkeypatch):
    monkeypatch.setattr(sources, "BLOCK_ROWS", request.param)


@pytest.mark.parametrize("name", DATA)
def test_the_automatic_choices_see_the_rows_that_they_would_see_in_memory(cut, name):
    X, y, weight = make(name)
    whole, found = in_memory(X, y, weight), summarise(MemmapRows(X, y, weight), LIMIT)
    rows = found.sample.rows()
    wanted, streamed = deduplicated_sample(whole, LIMIT), deduplicated_sample(rows, LIMIT)
    np.testing.assert_array_equal(streamed.X, wanted.X)
    np.testing.assert_array_equal(streamed.y, wanted.y)
    np.testing.assert_allclose(streamed.share(), wanted.share(), rtol=1e-12)
    different, share = distinct_rows(whole.X, whole.share(), 100)
    again, weight_again = distinct_rows(rows.X, rows.weight / found.moments.total, 100)
    np.testing.assert_array_equal(again, different)
    np.testing.assert_allclose(weight_again, share, rtol=1e-12)


@pytest.mark.parametrize("name", DATA)
def test_moments_and_bandwidths_are_those_in_memory(cut, name, monkeypatch):
    fewer = replace(bandwidth.OPTIONS, distance_rows=LIMIT)
    monkeypatch.setattr(bandwidth, "OPTIONS", fewer)  # the median of fewer distances takes less time
    X, y, weight = make(name)
    whole, found = in_memory(X, y, weight), summarise(MemmapRows(X, y, weight), LIMIT)
    one = found.moments
    heavy = np.ones(N) if weight is None else weight
    assert one.n_rows == whole.n_rows
    assert one.total == pytest.approx(heavy.sum(), rel=1e-13)
    assert one.largest == heavy.max()
    np.testing.assert_array_equal(one.range, column_range(whole.X))
    scales, varies = column_scales(whole.X, whole.share()), np.ptp(X, axis=0) > 0
    np.testing.assert_allclose(np.sqrt(one.variance)[varies], scales[varies], rtol=1e-10)
    assert np.all(one.variance[~varies] == 0)
    np.testing.assert_allclose(one.mean, whole.share() @ whole.X, rtol=1e-12, atol=1e-12 * np.sqrt(one.variance).max())
    rows = found.sample.rows()
    wanted = bandwidth_from(scales, whole.X, whole.share())
    np.testing.assert_allclose(bandwidth_from(scales, rows.X, rows.share()), wanted, rtol=1e-10)


def test_moments_far_from_zero_keep_their_digits(cut):
    """Against whole numbers, whose sums are exact: twelve digits of the variance at an offset of a billion."""
    rng = np.random.default_rng(3)
    small = rng.integers(-1000, 1000, (N, 1))
    weight = rng.integers(0, 5, N)
    n, s, q = (int(weight.sum()), int(weight @ small[:, 0]), int(weight @ small[:, 0] ** 2))
    exact = (n * q - s * s) / n**2
    rows = MemmapRows(small + 1e9, np.zeros(N), weight)
    assert summarise(rows, 10).moments.variance[0] == pytest.approx(exact, rel=1e-12)
    naive = weight @ (small[:, 0] + 1e9) ** 2 / n - (weight @ (small[:, 0] + 1e9) / n) ** 2
    assert naive != pytest.approx(exact, rel=1e-6)  # negative control: the textbook formula does not


def test_joins_do_not_depend_on_their_order():
    X, _, weight = make("offset")
    parts = [compute_moments(X[k : k + 500], weight[k : k + 500]) for k in range(0, N, 500)]
    empty = compute_moments(X[:3], np.zeros(3))
    one = join_moments(parts)
    other = join_moments([empty, join_moments(parts[7:]), empty, join_moments(parts[:2]), *parts[2:7]])
    np.testing.assert_allclose(other.variance, one.variance, rtol=1e-12)
    np.testing.assert_array_equal(other.range, one.range)
    assert (other.n_rows, other.largest) == (one.n_rows, one.largest)


@pytest.mark.parametrize("name", DATA)
def test_quantiles_are_exact(cut, name):
    X, y, weight = make(name)
    whole, rows = in_memory(X, y, weight), MemmapRows(X, y, weight)
    total = whole.n_rows if weight is None else weight.sum()
    found = streamed_quantiles(rows, LEVELS, total)
    np.testing.assert_array_equal(found, weighted_quantiles(whole.y, whole.share(), LEVELS))
    first, median, third = streamed_quantiles(rows, np.array([0.25, 0.5, 0.75]), total)
    scale = (third - first) / 1.349 if third > first else mean_absolute_deviation(rows, median, total)
    assert scale == pytest.approx(robust_scale(whole.y, whole.share()), rel=1e-12)
    assert (third == first) == (name == "constant y")


@pytest.mark.parametrize("n", [1, 2, 4, 5, 8])
def test_quantiles_of_few_rows_lie_in_the_middle(n):
    """Levels that are met exactly between two values, signs of all kinds, and extremes of floating point."""
    y = np.array([-1e300, -1.0, -5e-324, -0.0, 0.0, 5e-324, 2.0, 1e300])[:n]
    levels = np.array([0.0, 0.125, 0.2, 0.25, 0.5, 0.75, 0.8, 1.0])
    for weight in (None, np.full(n, 0.1), np.arange(n) + 1.0):
        share = np.full(n, 1 / n) if weight is None else weight / weight.sum()
        found = streamed_quantiles(
            MemmapRows(np.zeros((n, 1)), y, weight), levels, n if weight is None else weight.sum()
        )
        np.testing.assert_array_equal(found, weighted_quantiles(y, share, levels))


def test_labels_are_found_up_to_a_limit(cut):
    y = np.random.default_rng(4).integers(0, 7, N).astype(float)
    rows = MemmapRows(np.zeros((N, 1)), y, (y != 5).astype(float))
    np.testing.assert_array_equal(distinct_labels(rows, 10), [0, 1, 2, 3, 4, 6])
    assert len(distinct_labels(rows, 6)) == 6
    assert len(distinct_labels(rows, 4)) == 5  # one more than allowed: there are too many


def test_very_many_y_at_few_x_stay_bounded_and_do_not_depend_on_blocks(monkeypatch):
    """More pairs than there is room for: some stand for all, the same whatever the blocks, and weights are kept."""
    monkeypatch.setattr(statistics, "PAIRS", 2)
    rng = np.random.default_rng(5)
    X, y, weight = rng.integers(0, 30, (N, 1)).astype(float), rng.standard_normal(N), rng.uniform(0, 2, N)
    found = []
    for size, order in ((97, np.arange(N)), (N, np.arange(N)), (1000, np.argsort(X[:, 0])), (800, np.argsort(y))):
        monkeypatch.setattr(sources, "BLOCK_ROWS", size)
        found.append(summarise(MemmapRows(X[order], y[order], weight[order]), LIMIT).sample)
    for one in found:
        assert len(one.y) == 30 * (2 * LIMIT // 30)
        np.testing.assert_array_equal(one.X, found[0].X)
        np.testing.assert_array_equal(one.y, found[0].y)
        np.testing.assert_allclose(one.rows().weight, found[0].rows().weight, rtol=1e-12)
    rows = found[0].rows()
    kept = np.bincount(rows.X[:, 0].astype(int), rows.weight)
    np.testing.assert_allclose(kept, np.bincount(X[:, 0].astype(int), weight), rtol=1e-12)


def test_files_sorted_by_target_have_the_summary_of_shuffled_ones(tmp_path, monkeypatch):
    X, y, weight = make("weighted")
    found = []
    for name, order in (("shuffled", np.arange(N)), ("sorted", np.argsort(y))):
        columns = {f"x{j}": X[order, j] for j in range(4)} | {"y": y[order], "w": weight[order]}
        (tmp_path / name).mkdir()
        for k in range(5):
            some = pa.table(columns).slice(k * N // 5, N // 5)
            pq.write_table(some, tmp_path / name / f"{k}.parquet", row_group_size=500 if name == "sorted" else 333)
        rows = ParquetRows(tmp_path / name, "y", weight="w")
        found.append((summarise(rows, LIMIT), streamed_quantiles(rows, LEVELS, weight.sum())))
    (one, levels), (other, other_levels) = found
    np.testing.assert_array_equal(one.sample.X, other.sample.X)
    np.testing.assert_array_equal(one.sample.y, other.sample.y)
    np.testing.assert_allclose(one.moments.variance, other.moments.variance, rtol=1e-12)
    np.testing.assert_array_equal(levels, other_levels)


def test_weights_that_are_all_zero():
    with pytest.raises(RowsError, match="The weight is zero for every row"):
        summarise(MemmapRows(np.ones((10, 2)), np.ones(10), np.zeros(10)), 5)


def test_blocks_of_zero_weight_count_like_none(monkeypatch):
    X, y, weight = make("weighted")
    weight[1000:3000] = 0
    monkeypatch.setattr(sources, "BLOCK_ROWS", 100)
    found = summarise(MemmapRows(X, y, weight), LIMIT)
    some = weight > 0
    wanted = summarise(MemmapRows(X[some], y[some], weight[some]), LIMIT)
    np.testing.assert_array_equal(found.sample.X, wanted.sample.X)
    np.testing.assert_allclose(found.moments.variance, wanted.moments.variance, rtol=1e-12)
    np.testing.assert_array_equal(found.moments.range, wanted.moments.range)


@pytest.mark.parametrize("name", DATA)
def test_different_rows_are_counted_about_and_exactly_where_few_x_differ(name):
    X, y, weight = make(name)
    rows = in_memory(X, y, weight)
    truth = len(np.unique(np.column_stack([rows.X, rows.y]), axis=0))
    assert hash_sample(X, y, weight, 10_000).n_pairs == truth
    found = hash_sample(X, y, weight, LIMIT)
    if len(np.unique(rows.X, axis=0)) < LIMIT:
        assert found.n_pairs == truth
    else:
        assert found.n_pairs == pytest.approx(truth, rel=4 / np.sqrt(LIMIT))
    halves = [hash_sample(X[half], y[half], None if weight is None else weight[half], LIMIT) for half in CUT]
    assert join_samples(halves).n_pairs == found.n_pairs


CUT = (slice(0, N // 3), slice(N // 3, N))
