"""Dask design matrix: the same sums in any chunking and on any scheduler, also after a worker has died."""

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import replace
from multiprocessing import get_context

import numpy as np
import pytest

from quernel.data import ArrayRows, DaskDesign, DaskRows, InMemoryDesign, dask_design, sum_tuples
from quernel.data.dask_design import assign_workers, partition_bounds
from quernel.data.dask_tasks import SamplePlan
from quernel.data.sources import RowsError
from quernel.features import RandomFeatures
from quernel.kernels import Gaussian
from quernel.losses import LOSSES, Pinball
from quernel.objective import Problem
from quernel.solvers import SOLVERS
from quernel.solvers import screening as driver
from quernel.solvers.result import InitialPoint
from support import map_reduce_steps as steps

dask = pytest.importorskip("dask")
da = pytest.importorskip("dask.array")
dd = pytest.importorskip("dask.dataframe")
distributed = pytest.importorskip("distributed")
pd = pytest.importorskip("pandas")

N, M = 3000, 12


@pytest.fixture(scope="module")
def client():
    """Two worker processes, each with a nanny that replaces it when it dies."""
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=":0", silence_logs="CRITICAL", memory_limit="2GiB"
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


@pytest.fixture(params=["synchronous", "threads", "distributed"])
def scheduler(request):
    if request.param == "distributed":
        yield request.getfixturevalue("client")
    else:
        with dask.config.set(scheduler=request.param, num_workers=2):
            yield request.param


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(dask_design, "OPTIONS", replace(dask_design.OPTIONS, small_part=100))
    monkeypatch.setattr("quernel._machine.BLOCK_BYTES", 1)
    monkeypatch.setattr("quernel._machine.BLOCK_ROWS", 400)  # several blocks a part


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(81)
    X = rng.uniform(size=(N, 3))
    y = np.exp(X[:, 1] - X[:, 0]) + rng.standard_normal(N)
    return X, y, rng.uniform(0, 2, N) * (rng.uniform(size=N) > 0.1)


@pytest.fixture(scope="module")
def feature_map(data):
    return RandomFeatures(Gaussian(0.5), M, random_state=0).fit(data[0])


@pytest.fixture(scope="module")
def coef():
    return np.random.default_rng(82).standard_normal((M, 2))


@pytest.fixture
def expected(data, feature_map, coef):
    """From the definitions."""
    X, y, weight = data
    Phi, share = feature_map.transform(X), weight / weight.sum()
    residual = y[:, None] - Phi @ coef
    return share @ np.abs(residual), Phi.T @ (share[:, None] * np.sign(residual)), N


def frame(X, y, weight, parts=4):
    table = pd.DataFrame(X, columns=["a", "b", "c"]).assign(target=y, weight=weight)
    return dd.from_pandas(table, npartitions=parts)


def ragged(X, y, weight):
    """Chunks of very different lengths, some of them empty, columns apart, y and weights cut in other places."""
    rows = (1, 0, 1700, 299, 0, 1000)
    return DaskRows(da.from_array(X, chunks=(rows, (1, 2))), da.from_array(y, chunks=777), da.from_array(weight, -1))


def filtered(X, y, weight):
    """Chunks whose lengths nobody knows, one of them empty."""
    X, y, weight = (np.concatenate([np.full_like(one[:500], -5.0), one]) for one in (X, y, weight))
    X, y, weight = da.from_array(X, chunks=(500, 3)), da.from_array(y, chunks=500), da.from_array(weight, chunks=500)
    return DaskRows(X[y > -5], y[y > -5], weight[y > -5])


def two_frames(X, y, weight):
    """A series cut in other places than its frame."""
    table = frame(X, y, weight)
    return DaskRows(table[["a", "b", "c"]], frame(X, y, weight, 7)["target"], da.from_array(weight, chunks=900))


SOURCES = {
    "one chunk": lambda X, y, w: DaskRows(da.from_array(X, chunks=-1), da.from_array(y, chunks=-1), w),
    "many chunks": lambda X, y, w: DaskRows(da.from_array(X, chunks=(111, 3)), y, w),
    "ragged": ragged,
    "unknown lengths": filtered,
    "frame": lambda X, y, w: DaskRows(frame(X, y, w), "target", "weight"),
    "two frames": two_frames,
}


def assert_same(found, expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-12 * np.max(np.abs(other)))


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("source", SOURCES)
def test_sums_agree_in_any_chunking_on_any_scheduler(scheduler, data, feature_map, coef, expected, source, kept):
    rows = DaskDesign(SOURCES[source](*data), feature_map, max_memory=None if kept else 0)
    assert rows.cached == kept
    state = rows.new_state()
    for _ in range(3):  # from the third on, stored features are used
        assert_same(rows.map_reduce(steps.value_and_gradient, state, coef, reduce=sum_tuples), expected)
    assert (rows._store.features is not None) == kept
    weight = data[2]
    assert rows.largest_share == pytest.approx(weight.max() / weight.sum(), rel=1e-12)
    in_memory = InMemoryDesign(ArrayRows(*data), feature_map)
    assert rows.kernel_scale() == pytest.approx(in_memory.kernel_scale(), rel=1e-12)


def test_sums_agree_with_processes(data, feature_map, coef, expected):
    with (
        ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool,
        dask.config.set(scheduler="processes", pool=pool, num_workers=2),
    ):
        rows = DaskDesign(ragged(*data), feature_map)
        state = rows.new_state()
        assert not rows.cached  # features would have to be sent to a process in every sweep
        for _ in range(2):
            assert_same(rows.map_reduce(steps.value_and_gradient, state, coef, reduce=sum_tuples), expected)


def test_one_row_more_or_less_would_be_noticed(client, data, feature_map, coef, expected):
    """Negative control."""
    X, y, weight = data
    y = y.copy()
    y[np.argmax(weight)] += 1
    rows = DaskDesign(ragged(X, y, weight), feature_map)
    loss, _, _ = rows.map_reduce(steps.value_and_gradient, rows.new_state(), coef, reduce=sum_tuples)
    assert np.all(np.abs(loss - expected[0]) > 1e-6)


def test_rows_keep_their_order_and_numbers(scheduler, data, feature_map, coef):
    rows = DaskDesign(ragged(*data), feature_map)
    state = rows.new_state()
    rows.map_reduce(steps.value_and_gradient, state, coef, reduce=sum_tuples)
    found = rows.map_rows(steps.recall, state, reduce=steps.chain)
    assert [start for start, _ in found] == [span.start for span in rows.spans]
    assert len(found) > 4
    expected = data[1][:, None] - feature_map.transform(data[0]) @ coef
    np.testing.assert_allclose(np.concatenate([residual for _, residual in found]), expected, atol=1e-12)


def test_steps_write_into_memory_and_leave_what_was_there(scheduler, data, feature_map, coef, expected):
    """A step may overwrite row state; the state before the pass is unchanged."""
    rows = DaskDesign(ragged(*data), feature_map)
    state = rows.new_state()
    rows.map_reduce(steps.value_and_gradient, state, coef, reduce=sum_tuples)
    before = list(state.kept)
    X, y, weight = data
    residual, share = y[:, None] - feature_map.transform(X) @ coef, weight / weight.sum()
    for moves in (1, 2, 3):
        loss, counted = rows.map_rows(steps.move, state, 0.1, reduce=sum_tuples)
        np.testing.assert_allclose(loss, share @ np.abs(residual - 0.1 * moves), rtol=1e-12)
        np.testing.assert_allclose(counted, moves, rtol=1e-12)
    assert state.sweeps == 1
    state.kept = before
    assert rows.map_rows(steps.move, state, 0.1, reduce=sum_tuples)[1] == pytest.approx([1, 1])


def test_memory_of_some_columns(scheduler, data, feature_map, coef):
    rows = DaskDesign(ragged(*data), feature_map)
    state = rows.new_state()
    rows.map_reduce(steps.value_and_gradient, state, coef, reduce=sum_tuples)
    whole = rows.map_rows(steps.recall, state, reduce=steps.chain)
    some = rows.map_rows(steps.recall, state.take(np.array([1])), reduce=steps.chain)
    for (_, one), (_, other) in zip(some, whole, strict=True):
        np.testing.assert_array_equal(one, other[:, [1]])


def test_memory_may_begin_with_arrays(scheduler, data, feature_map):
    rows = DaskDesign(ragged(*data), feature_map)
    array = np.arange(2.0 * N).reshape(N, 2)
    found = rows.map_rows(steps.recall, rows.new_state(residual=array), reduce=steps.chain)
    np.testing.assert_array_equal(np.concatenate([one for _, one in found]), array)


def test_every_block_may_have_a_message_of_its_own(scheduler, data, feature_map):
    rows = DaskDesign(ragged(*data), feature_map)
    each = list(range(len(rows.spans)))
    share = data[2] / data[2].sum()
    expected = sum(k * share[span].sum() for k, span in enumerate(rows.spans))
    handle, _ = rows.run_at(lambda numbers: (numbers, None), each)
    for own in (each, handle):
        found, numbers = rows.map_reduce(steps.weighted, rows.new_state(), reduce=sum_tuples, per_block_args=own)
        assert found == pytest.approx(expected, rel=1e-12)
        assert numbers == sum(each)


def test_what_is_large_stays(scheduler, data, feature_map, coef):
    rows = DaskDesign(ragged(*data), feature_map)
    state = rows.new_state()
    rows.map_reduce(steps.value_and_gradient, state, coef, reduce=sum_tuples)
    before = rows.traffic.bytes_in
    small, large = rows.map_reduce_split(steps.halves, state, 0.0, reduce=steps.join_halves)
    assert small == pytest.approx(1)
    ordered, shape = rows.run_at(steps.describe, large)
    (X, y, _), Phi = data, feature_map.transform(data[0])
    chosen = X[(y[:, None] - Phi @ coef)[:, 0] > 0]
    assert shape == chosen.shape
    assert rows.traffic.bytes_in - before < 1000
    if not isinstance(scheduler, str):
        assert isinstance(large, distributed.Future)
        assert rows.traffic.bytes_gathered > chosen.nbytes
        large, ordered = large.result().stays, ordered.result().stays
    np.testing.assert_array_equal(large, chosen)
    np.testing.assert_array_equal(ordered, chosen[np.lexsort(chosen.T)])


def test_features_within_a_basis(scheduler, data, feature_map):
    X, y, weight = data
    basis = np.linalg.qr(np.random.default_rng(3).standard_normal((M, 5)))[0]
    coef, share = np.random.default_rng(4).standard_normal((5, 2)), weight / weight.sum()
    expected = share @ np.abs(y[:, None] - feature_map.transform(X) @ basis @ coef)
    for kept in (None, 0):
        rows = DaskDesign(ragged(*data), feature_map, max_memory=kept).project(basis)
        assert rows.n_features == 5
        loss, *_ = rows.map_reduce(steps.value_and_gradient, rows.new_state(), coef, reduce=sum_tuples)
        np.testing.assert_allclose(loss, expected, rtol=1e-12)


def test_a_target_for_each_fit(scheduler, data, feature_map, coef):
    X, y, _ = data
    targets = np.column_stack([y, -y, 2 * y])
    rows = DaskDesign(DaskRows(da.from_array(X, chunks=(700, 3)), da.from_array(targets, (500, 2))), feature_map)
    rows = rows.take(np.array([0, 2])).take(np.array([1, 0]))
    loss, *_ = rows.map_reduce(steps.value_and_gradient, rows.new_state(), coef, reduce=sum_tuples)
    residual = targets[:, [2, 0]] - feature_map.transform(X) @ coef
    np.testing.assert_allclose(loss, np.abs(residual).mean(axis=0), rtol=1e-12)


# Where features are stored


@pytest.mark.parametrize("kept", [True, False])
def test_features_are_stored_if_they_fit_once_they_are_used_often(client, data, feature_map, coef, kept):
    needed = 8 * N * M
    rows = DaskDesign(ragged(*data), steps.Counting(feature_map), max_memory=needed if kept else needed - 1)
    client.run(steps.reset_transformed)
    state = rows.new_state()
    for _ in range(6):
        rows.map_reduce(steps.value_and_gradient, state, coef, reduce=sum_tuples)
    rows.map_rows(steps.move, state, 0.1, reduce=sum_tuples)
    assert sum(client.run(steps.count_transformed).values()) == (
        3 * N if kept else 6 * N
    )  # two looks, and then once more


def test_parts_are_dealt_to_all_workers(client, data, feature_map):
    """Also where a single chunk holds all rows."""
    rows = DaskDesign(SOURCES["one chunk"](*data), feature_map)
    distributed.wait(rows._parts)
    holders = [client.who_has(part)[part.key] for part in rows._parts]
    assert len({tuple(holder) for holder in holders}) == len(holders) == 2


@pytest.mark.parametrize(
    ("lengths", "threads", "expected"),
    [
        ([100, 100], 2, [0, 100, 200]),
        ([90, 110], 2, [0, 90, 200]),  # at the end of a chunk
        ([10, 190], 2, [0, 100, 200]),  # through a chunk
        ([200], 4, [0, 50, 100, 150, 200]),
        ([1] * 8, 2, [0, 4, 8]),
        ([3], 8, [0, 1, 2, 3]),
    ],
)
def test_partition_bounds(lengths, threads, expected):
    assert partition_bounds(lengths, 10**6, threads) == expected


def test_parts_go_where_their_rows_are_as_far_as_there_is_room():
    assert assign_workers([1, 1], [0, 10, 20], [10, 10], [1, 0]) == [1, 0]
    assert sorted(assign_workers([1, 1], [0, 10, 20], [10, 10], [0, 0])) == [0, 1]
    assert assign_workers([2, 1], [0, 10, 20, 30], [10, 10, 10], [0, 0, None]) == [0, 0, 1]


# Samples


@pytest.mark.parametrize("size", [1, 50, 999, N])
def test_samples_are_rows_in_random_order(scheduler, data, feature_map, size):
    X, y, weight = data
    rows = DaskDesign(ragged(*data), feature_map)
    _, (features, target, share, shuffled) = rows.run_at(steps.content, rows.sample(size, np.random.default_rng(0)))
    place = {value: k for k, value in enumerate(y)}
    chosen = np.array([place[value] for value in target])
    assert shuffled
    assert len(np.unique(chosen)) == size
    np.testing.assert_allclose(features, feature_map.transform(X[chosen]), atol=1e-13)
    if weight[chosen].sum() > 0:
        np.testing.assert_allclose(share, weight[chosen] / weight[chosen].sum(), rtol=1e-12)
    if size > 100:
        assert abs(np.corrcoef(np.arange(size), chosen)[0, 1]) < 0.15


def test_smaller_samples_begin_larger_ones(client, data, feature_map):
    rows = DaskDesign(ragged(*data), feature_map)
    basis = np.eye(M)[:, :4]
    _, (small, some, *_) = rows.run_at(steps.content, rows.sample(80, np.random.default_rng(5), basis))
    _, (_, more, *_) = rows.run_at(steps.content, rows.sample(640, np.random.default_rng(6)))
    assert small.shape == (80, 4)
    np.testing.assert_array_equal(more[:80], some)
    other = DaskDesign(ragged(*data), feature_map)
    _, (_, others, *_) = other.run_at(steps.content, other.sample(80, np.random.default_rng(6)))
    assert not np.array_equal(others, some)


@pytest.mark.parametrize("lengths", [(1000,), (10, 990), (1, 1, 998), (300, 300, 400)])
def test_every_beginning_has_each_parts_share(lengths):
    drawing = SamplePlan(7, lengths)
    for size in (1, 10, 333, 1000):
        counts, order = drawing.first(size)
        assert np.array_equal(np.sort(order), np.arange(size))
        assert np.all(np.abs(np.array(counts) - size * np.array(lengths) / 1000) <= len(lengths))
        for k, count in enumerate(counts):
            assert len(np.unique(drawing.rows(k, count))) == count


# What is sent


def transfer(n, feature_map, coef, step=steps.value_and_gradient, join=sum_tuples):
    X = np.random.default_rng(1).uniform(size=(n, 3))
    rows = DaskDesign(DaskRows(da.from_array(X, chunks=(n // 4, 3)), X[:, 0]), feature_map)
    state = rows.new_state()
    rows.map_reduce(steps.value_and_gradient, state, coef, reduce=sum_tuples)
    first = (rows.traffic.bytes_out, rows.traffic.bytes_in)
    rows.map_reduce(step, state, coef, reduce=join)
    return rows.traffic.sweeps, rows.traffic.bytes_out - first[0], rows.traffic.bytes_in - first[1]


def test_what_a_sweep_moves_does_not_depend_on_the_rows(client, feature_map, coef):
    few, many = transfer(1000, feature_map, coef), transfer(16_000, feature_map, coef)
    assert few == many
    assert few[0] == 2
    assert 2 * coef.nbytes < few[1] < 10_000  # a message to each worker
    assert 2 * coef.nbytes < few[2] < 10_000  # an answer from each


def test_rows_that_travel_would_be_noticed(client, feature_map, coef):
    """Negative control."""
    few, many = (transfer(n, feature_map, coef, steps.recall, steps.chain) for n in (1000, 16_000))
    assert many[2] - few[2] >= 15_000 * 2 * 8


def test_many_parts_are_joined_in_a_tree(monkeypatch, data, feature_map, coef, expected):
    monkeypatch.setattr(dask_design, "OPTIONS", replace(dask_design.OPTIONS, fan_in=3))
    with dask.config.set(scheduler="synchronous"):
        monkeypatch.setattr("quernel.data.dask_tasks.LocalScheduler.__init__", lambda self, kind: _many(self))
        rows = DaskDesign(ragged(*data), feature_map)
        state = rows.new_state()
        assert len(state.kept) == 20
        assert_same(rows.map_reduce(steps.value_and_gradient, state, coef, reduce=sum_tuples), expected)
        found = rows.map_rows(steps.recall, state, reduce=steps.chain)
        assert [start for start, _ in found] == [span.start for span in rows.spans]
        _, large = rows.map_reduce_split(steps.halves, state, -np.inf, reduce=steps.join_halves)
        np.testing.assert_array_equal(large, data[0])


def _many(scheduler):
    scheduler.threads, scheduler.together, scheduler._separate = [20], 1, False


def test_large_messages_arrive(client, data, feature_map, coef, expected, monkeypatch):
    monkeypatch.setattr(dask_design, "OPTIONS", replace(dask_design.OPTIONS, small_message=10))
    rows = DaskDesign(ragged(*data), feature_map)
    assert_same(rows.map_reduce(steps.value_and_gradient, rows.new_state(), coef, reduce=sum_tuples), expected)


# Faults


def test_errors_of_steps_come_back_as_they_are(client, data, feature_map):
    rows = DaskDesign(ragged(*data), feature_map)
    with pytest.raises(KeyError, match="residual"):
        rows.map_rows(steps.recall, rows.new_state(), reduce=steps.chain)


def spoilt(array, place, value):
    array = np.array(array, dtype=object if isinstance(value, str) else float)
    array[place] = value
    return array


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda X, y, w: (da.from_array(spoilt(X, (1200, 1), np.nan), (500, 3)), y, w), r"Chunk 2.*row 200.*column 1"),
        (lambda X, y, w: (da.from_array(X, (500, 3)), spoilt(y, 2999, np.inf), w), r"Chunk 5.*row 499.*y is infinite"),
        (lambda X, y, w: (da.from_array(X, (500, 3)), y, spoilt(w, 0, -1.0)), r"Chunk 0.*weight is negative"),
        (lambda X, y, w: (da.from_array(X, (500, 3)), y, 0 * w), r"weights sum to 0"),
        (
            lambda X, y, w: (da.from_array(spoilt(X, (1200, 1), "high"), (500, 3)), y, w),
            r"Chunk 2 of X, column 1 holds str, not numbers",
        ),
    ],
)
def test_bad_numbers_are_found_where_they_are(scheduler, data, feature_map, make, message):
    with pytest.raises(RowsError, match=message):
        DaskDesign(DaskRows(*make(*data)), feature_map)


def partition(k):
    table = pd.DataFrame({"a": [1.0, 2.0], "b": [3.0, 4.0]})
    return {
        0: table,
        1: table.assign(b=["x", "y"]),
        2: table.rename(columns={"b": "B"}),
        3: table.assign(a=pd.array([1, None], dtype="Int64")),
    }[k]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (1, r"Partition 1 of the data frame, column 'b' holds .*not numbers"),
        (2, r"Partition 1 of the data frame has the columns \['a', 'B'\], not \['a', 'b'\]"),
        (3, r"Chunk 1 of the Dask rows, row 1: a is missing"),
    ],
)
def test_partitions_of_another_kind_are_found(scheduler, bad, message):
    table = dd.from_map(partition, [0, bad], meta=partition(0).iloc[:0])
    feature_map = RandomFeatures(Gaussian(), M, random_state=0).fit(np.zeros((1, 2)))
    with pytest.raises(RowsError, match=message):
        DaskDesign(DaskRows(table, np.zeros(4)), feature_map)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda X, y: DaskRows(X, y), r"Dask array or data frame; got ndarray.*ArrayRows"),
        (lambda X, y: DaskRows(da.from_array(X), y[1:]), r"y must have a row for each of the 3,000.*\(2999,\)"),
        (lambda X, y: DaskRows(da.from_array(X), "target"), r"no column named 'target'"),
        (lambda X, y: DaskRows(frame(X, y, y), "goal"), r"no column 'goal'; it has 'a', 'b', 'c', 'target', 'weight'"),
        (lambda X, y: DaskRows(da.from_array(X)[:0], y[:0]), r"no rows"),
        (lambda X, y: DaskRows(da.from_array(X)[:, 0], y), r"two dimensions.*\(3000,\)"),
        (
            lambda X, y: DaskRows(da.from_array(X), y, X),
            r"weight must have one number a row; got the shape \(3000, 3\)",
        ),
        (lambda X, y: DaskRows(frame(X, y, y), frame(X, y, y)), r"y must be one column"),
    ],
)
def test_what_is_no_table_of_rows_is_refused_at_once(data, make, message):
    with dask.config.set(scheduler="synchronous"), pytest.raises(RowsError, match=message):
        make(*data[:2])


def test_collections_are_left_as_they_were(data):
    X = da.from_array(data[0], chunks=(500, 3))
    X = X[X[:, 0] > 0.5]
    with dask.config.set(scheduler="synchronous"):
        DaskRows(X, X[:, 1])
    assert np.isnan(X.shape[0])


def test_a_lost_scheduler_is_explained(data, feature_map, coef):
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0", silence_logs="CRITICAL"
    ) as cluster:
        client = distributed.Client(cluster, set_as_default=False)
        with client.as_current():
            rows = DaskDesign(ragged(*data), feature_map)
        cluster.close()
        with pytest.raises(ConnectionError, match=r"scheduler was lost.*Start the cluster again"):
            rows.map_reduce(steps.value_and_gradient, rows.new_state(), coef, reduce=sum_tuples)
        client.close()


def test_dask_is_imported_only_for_dask_objects():
    code = "import sys, quernel.data; quernel.data.DaskRows; sys.exit(bool({'dask', 'distributed'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# Solves


@pytest.mark.parametrize("order", ["as it comes", "sorted by target"])
def test_a_solve_gives_the_same_answer(client, order, monkeypatch):
    # Of rows at hand the guess would be brought nearer first, which takes features that are stored here.
    monkeypatch.setattr(driver, "OPTIONS", replace(driver.OPTIONS, steps_from=np.inf))
    rng = np.random.default_rng(90)
    n, levels = 60_000, np.array([0.2, 0.7])
    X = rng.uniform(size=(n, 2))
    y = np.sin(5 * X[:, 0]) + (0.3 + X[:, 1]) * rng.standard_normal(n)
    if order == "sorted by target":
        X, y = X[np.argsort(y)], np.sort(y)
    feature_map = RandomFeatures(Gaussian(0.5), 50, random_state=0).fit(X)
    rows = DaskDesign(DaskRows(da.from_array(X, chunks=(9_000, 2)), y), feature_map)
    in_memory = InMemoryDesign(ArrayRows(X, y), feature_map)
    found, expected = (
        SOLVERS["newton"](Problem(where, Pinball(levels), 1e-4), tol=1e-9) for where in (rows, in_memory)
    )
    assert found.converged
    assert expected.converged
    np.testing.assert_allclose(found.objective, expected.objective, rtol=1e-9)
    assert found.sweeps <= 1.5 * expected.sweeps
    assert rows.traffic.bytes_in < 200_000


@pytest.mark.parametrize("loss", [Pinball(np.array([0.2, 0.7])), LOSSES["logcosh"]()], ids=["levels", "logcosh"])
def test_rounded_features_of_workers_lead_to_a_proof_on_unrounded_ones(client, loss):
    rng = np.random.default_rng(91)
    X = rng.uniform(size=(60_000, 2))
    y = np.sin(5 * X[:, 0]) + (0.3 + X[:, 1]) * rng.standard_normal(len(X))
    feature_map = RandomFeatures(Gaussian(0.5), 50, random_state=0).fit(X)
    rows = DaskDesign(DaskRows(da.from_array(X, chunks=(9_000, 2)), y), feature_map, dtype=np.float32)
    assert not rows.rounded
    first = SOLVERS["newton"](Problem(rows, loss, 1e-4), tol=1e-6)
    exact = rows.as_float64()
    assert (rows.rounded, exact.rounded) == (True, False)
    before = rows.traffic.sweeps
    initial = InitialPoint.solution(first.coef, first.intercept, len(X), first.parameters, 1e-6)
    proved = SOLVERS["newton"](Problem(exact, loss, 1e-4), tol=1e-6, initial=initial)
    assert exact.traffic.sweeps == before + 1
    assert proved.converged
    np.testing.assert_array_equal(proved.coef, first.coef)
    in_memory = SOLVERS["newton"](Problem(InMemoryDesign(ArrayRows(X, y), feature_map), loss, 1e-4), tol=1e-9)
    assert np.all(proved.objective - in_memory.objective <= proved.gap + 1e-15)
    assert np.all(proved.objective != first.objective), "control: rounding shows"


# Workers that die: last, for those that take their places begin by importing everything


def worker_pids(client):
    """Of both workers; one that is just going or coming may close the connection."""
    for _ in range(20):
        client.wait_for_workers(2)
        with suppress(OSError):
            pids = client.run(os.getpid)
            if len(pids) == 2:
                return list(pids.values())
        time.sleep(0.5)
    raise AssertionError("the workers did not come back")


def kill_one(client):
    os.kill(worker_pids(client)[0], signal.SIGKILL)


def test_a_killed_worker_costs_no_digit(client, data, feature_map, coef, expected):
    """One dies between two passes, one during a pass: rows, features and row state are recomputed."""
    rows = DaskDesign(ragged(*data), feature_map)
    state = rows.new_state()
    assert_same(rows.map_reduce(steps.value_and_gradient, state, coef, reduce=sum_tuples), expected)
    moved = rows.map_rows(steps.move, state, 0.1, reduce=sum_tuples)
    kill_one(client)
    X, y, weight = data
    residual, share = y[:, None] - feature_map.transform(X) @ coef, weight / weight.sum()
    np.testing.assert_allclose(moved[0], share @ np.abs(residual - 0.1), rtol=1e-12)
    loss, moves = rows.map_rows(steps.move, state, 0.1, reduce=sum_tuples)
    np.testing.assert_allclose(loss, share @ np.abs(residual - 0.2), rtol=1e-12)
    np.testing.assert_allclose(moves, 2, rtol=1e-12)
    pids = worker_pids(client)
    threading.Timer(0.4, os.kill, (pids[1], signal.SIGKILL)).start()
    assert_same(rows.map_reduce(steps.slow_value_and_gradient, state, coef, reduce=sum_tuples), expected)
    assert set(worker_pids(client)) != set(pids)  # it did die


def test_workers_that_die_again_and_again_are_explained(client, data, feature_map):
    rows = DaskDesign(ragged(*data), feature_map)
    client.run_on_scheduler(_allow_failures, 0)
    try:
        with pytest.raises(RowsError, match=r"died again and again.*memory.*max_memory"):
            rows.map_reduce(steps.deadly, rows.new_state(), reduce=sum_tuples)
    finally:
        client.run_on_scheduler(_allow_failures, 3)
        client.wait_for_workers(2)


def _allow_failures(count, dask_scheduler=None):
    dask_scheduler.allowed_failures = count
