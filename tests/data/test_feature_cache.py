"""Feature caches: features are computed once, the fit is the same, and no file is left behind."""

import gc
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from quernel import KernelRegressor
from quernel.data import (
    MemmapRows,
    ParquetRows,
    RowsError,
    SelectedRows,
    StreamedDesign,
    feature_cache,
    sources,
    sum_tuples,
)
from quernel.data.feature_cache import DiskCache, MemoryCache, disk_pays, in_memory, new_cache
from quernel.data.sources import check_policy, watching
from quernel.features import RandomFeatures
from quernel.kernels import Gaussian
from quernel.solvers.screening import rounds
from support.map_reduce_steps import halves, join_halves, value_and_gradient
from support.models import plain_regressor

N, M = 60_000, 40
ROOM = 1_800_000  # the raw rows have no room in it
PLENTY = 8 * N * M * 2


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch):
    monkeypatch.setattr(sources, "BLOCK_ROWS", 7_000)


@pytest.fixture(autouse=True)
def temporary_folder_on_disk(monkeypatch, tmp_path_factory):
    """The temporary folder counts as a disk, even where it is in memory."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("temporary")))
    monkeypatch.setattr(feature_cache, "in_memory", lambda folder: folder == "/dev/shm")


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (N, 3))
    return X, np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] + (0.3 + 0.2 * X[:, 2] ** 2) * rng.standard_normal(N)


class Counting:
    """A feature map that counts the rows it transforms."""

    def __init__(self, seconds=0.0):
        self.map = RandomFeatures(kernel=Gaussian(1.0), n_components=M, random_state=0).fit(np.zeros((1, 3)))
        self.n_components_, self.lifted, self.seconds = M, 0, seconds

    def transform(self, X, **kwargs):
        self.lifted += len(X)
        time.sleep(self.seconds)
        return self.map.transform(X, **kwargs)


class Watched(MemmapRows):
    """A row source that counts how many rows of X were read."""

    read = 0

    def stream(self, blocks, *, X=True):
        for piece in super().stream(blocks, X=X):
            self.read += 0 if piece.X is None else len(piece.X)
            yield piece


def streamed(data, cache, *, max_memory=ROOM, threads=1, seconds=0.0, dtype=float):
    kwargs = {"max_memory": max_memory, "threads": threads, "dtype": dtype}
    return StreamedDesign(Watched(*data, cache=cache), Counting(seconds), total=N, largest=1.0, **kwargs)


def sweep(rows, coef, state=None):
    return rows.map_reduce(value_and_gradient, rows.new_state() if state is None else state, coef, reduce=sum_tuples)


def policies(folder):
    return [("memory", PLENTY), ("auto", PLENTY), ("disk", ROOM), (folder, ROOM), (str(folder), ROOM)]


def open_files(folder):
    """Open files of this process in a folder, with or without a name."""
    if not Path("/proc/self/fd").exists():
        pytest.skip("the system does not tell which files are open")
    found = []
    for fd in Path("/proc/self/fd").iterdir():
        try:
            found.append(os.readlink(fd))
        except FileNotFoundError:  # the one with which the folder was read
            continue
    return [name for name in found if name.startswith(str(folder))]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("which", range(5))
def test_cached_features_are_computed_once_and_are_the_same(which, threads, data, tmp_path):
    cache, max_memory = policies(tmp_path)[which]
    coef = np.random.default_rng(1).standard_normal((M, 2))
    plain = streamed(data, "recompute", threads=threads)
    expected = [sweep(plain, k * coef) for k in range(3)]
    assert (plain.feature_map.lifted, plain.source.read) == (3 * N, 3 * N)
    rows = streamed(data, cache, max_memory=max_memory, threads=threads)
    for k in range(3):
        for one, other in zip(sweep(rows, k * coef), expected[k], strict=True):
            np.testing.assert_array_equal(one, other)
    assert (rows.feature_map.lifted, rows.source.read) == (N, N)  # and X is not even read again
    rows.close()
    sweep(rows, coef)
    assert rows.feature_map.lifted == 2 * N


def test_columns_of_a_problem_share_the_cache(data):
    rows = streamed(data, "disk")
    some = rows.take(np.array([0]))
    sweep(some, np.zeros((M, 1)))
    sweep(rows, np.zeros((M, 1)))
    assert rows.feature_map.lifted == N
    rows.close()


def test_rows_that_stay_are_raw_where_features_are_cached(data):
    found = []
    for cache in ("recompute", "disk"):
        rows = streamed(data, cache)
        state = rows.new_state()
        sweep(rows, np.ones((M, 1)), state)
        found.append(rows.map_reduce_split(halves, state, 0.5, reduce=join_halves))
        assert rows.feature_map.lifted == (2 * N if cache == "recompute" else N)
        rows.close()
    (plain, raw), (cached, raw_beside_cache) = found
    assert plain == cached
    assert 0 < len(raw) < N
    np.testing.assert_array_equal(raw, raw_beside_cache)


def test_a_sweep_that_failed_leaves_what_it_had(data):
    rows = streamed(data, "disk")

    def deadly(block, state, message):
        if block.start > N // 2:
            raise ArithmeticError
        return (block.start,)

    with pytest.raises(ArithmeticError):
        rows.map_reduce(deadly, rows.new_state(), reduce=sum_tuples)
    before = rows.feature_map.lifted
    assert N // 2 < before < N
    sweep(rows, np.zeros((M, 1)))
    assert rows.feature_map.lifted == N  # the block that failed had been written
    rows.close()


def test_passes_over_cached_features_report_progress(data):
    rows, reported = streamed(data, "disk"), []
    with watching(reported.append):
        for _ in range(2):
            sweep(rows, np.zeros((M, 1)))
    assert [one.done for one in reported].count(N) == 2
    rows.close()


# float32 blocks


class RoundedByHand(Counting):
    def transform(self, X):
        return super().transform(X).astype(np.float32)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("which", range(4))
def test_rounded_features_are_those_of_every_sweep(which, threads, data, tmp_path):
    cache, max_memory = policies(tmp_path)[which]
    coef = np.random.default_rng(1).standard_normal((M, 2))
    plain = streamed(data, "recompute", threads=threads)
    rounded = StreamedDesign(plain.source, RoundedByHand(), total=N, largest=1.0, max_memory=ROOM, threads=threads)
    rows = streamed(data, cache, max_memory=max_memory, threads=threads, dtype=np.float32)
    assert not rows.rounded
    for k in range(3):
        for one, other in zip(sweep(rows, k * coef), sweep(rounded, k * coef), strict=True):
            np.testing.assert_array_equal(one, other)
    assert rows.rounded
    assert rows.feature_map.lifted == N
    (_, gradient, *_), exact = sweep(rows, coef), sweep(plain, coef)
    assert 0 < np.abs(gradient - exact[1]).max() < 1e-6, "control: rounding shows"
    after = rows.as_float64()
    for one, other in zip(sweep(after, coef), exact, strict=True):
        np.testing.assert_array_equal(one, other)
    assert not after.rounded
    assert open_files(tmp_path) == []


def test_what_is_not_cached_is_not_rounded(data):
    for cache in ("recompute", "auto"):  # such cheap features do not pay
        rows = streamed(data, cache, dtype=np.float32)
        for one, other in zip(sweep(rows, np.ones((M, 1))), sweep(streamed(data, cache), np.ones((M, 1))), strict=True):
            np.testing.assert_array_equal(one, other)
        assert not rows.rounded


def test_rounded_features_take_half(data, tmp_path):
    for dtype, item in ((float, 8), (np.float32, 4)):
        rows = streamed(data, tmp_path, dtype=dtype)
        sweep(rows, np.zeros((M, 1)))
        assert os.fstat(rows._cache()._file.fileno()).st_size == item * N * M
        rows.close()
        kept = streamed(data, "memory", max_memory=PLENTY, dtype=dtype)
        sweep(kept, np.zeros((M, 1)))
        spans = range(len(kept.spans))
        assert sum(kept._cache().get(k).nbytes for k in spans) == item * N * M


def test_room_is_counted_in_numbers_of_the_type(data, tmp_path, monkeypatch):
    with pytest.raises(RowsError, match=r"take 0.0192 GB as float64, and cache='memory' has room for 0.0096 GB"):
        streamed(data, "memory", max_memory=8 * N * M)
    half = streamed(data, "memory", max_memory=8 * N * M, dtype=np.float32)
    assert isinstance(half._cache(), MemoryCache)
    assert isinstance(streamed(data, "auto", max_memory=8 * N * M, dtype=np.float32)._cache(), MemoryCache)
    with pytest.raises(RowsError, match=r"take 0.0096 GB as float32, and cache='memory' has room for 0.00952 GB"):
        streamed(data, "memory", max_memory=8 * N * M - 160_000, dtype=np.float32)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=4 * N * M))
    with pytest.raises(RowsError, match=r"take 0.0096 GB as float32, but .* has only 0.0096 GB left"):
        streamed(data, tmp_path, dtype=np.float32)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=4 * N * M * 1.1))
    streamed(data, tmp_path, dtype=np.float32).close()


# The whole fit


def fitted(source, name="quantiles", **kwargs):
    kwargs = {"n_components": M, "random_state": 0, "max_memory": ROOM} | kwargs
    model = KernelRegressor("huber", **kwargs) if name == "huber" else plain_regressor([0.1, 0.5], **kwargs)
    return model.fit(source)


@pytest.mark.parametrize("name", ["quantiles", "huber"])
def test_the_same_certified_fit_and_nothing_is_left(name, data, tmp_path, monkeypatch):
    transformed, held, transform = [], [], RandomFeatures.transform

    def counted(self, X, **kwargs):
        transformed.append(len(X))
        held.extend(open_files(tmp_path / "cache"))
        return transform(self, X, **kwargs)

    monkeypatch.setattr(RandomFeatures, "transform", counted)
    (tmp_path / "cache").mkdir()
    X, y = data
    pq.write_table(pa.table({"a": X[:, 0], "b": X[:, 1], "c": X[:, 2], "y": y}), tmp_path / "rows.parquet")
    models, work = [], []
    for cache in ("recompute", tmp_path / "cache"):
        models.append(fitted(ParquetRows(tmp_path / "rows.parquet", "y", cache=cache), name))
        work.append(sum(transformed))
        transformed.clear()
        assert bool(held) == (cache != "recompute")
    np.testing.assert_array_equal(models[0].coef_, models[1].coef_)
    np.testing.assert_array_equal(models[0].duality_gap_, models[1].duality_gap_)
    assert models[1].duality_gap_.max() <= 1e-6
    assert work[0] - work[1] >= N
    assert (work[0] - work[1]) % N == 0  # whole sweeps
    assert open_files(tmp_path / "cache") == list((tmp_path / "cache").iterdir()) == []


def test_nothing_is_left_after_an_error(data, tmp_path, monkeypatch):
    held = []

    def fail(*_):
        held.extend(open_files(tmp_path))
        raise ArithmeticError

    monkeypatch.setattr(rounds, "verify", fail)
    with pytest.raises(ArithmeticError):
        fitted(MemmapRows(*data, cache=tmp_path))
    assert held
    assert open_files(tmp_path) == list(tmp_path.iterdir()) == []


KILLED = """
import sys
import numpy as np
from quernel.data.feature_cache import DiskCache
cache = DiskCache(sys.argv[1], [slice(0, 1000)], 100)
cache.put(0, np.ones((1000, 100)))
assert cache.complete
print("written", flush=True)
sys.stdin.read()
"""


def test_nothing_is_left_of_a_process_that_was_killed(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "written\n"
        process.send_signal(signal.SIGKILL)
    assert list(tmp_path.iterdir()) == []


def test_a_cache_that_is_forgotten_closes_its_file(tmp_path):
    cache = DiskCache(tmp_path, [slice(0, 10)], 2)
    assert len(open_files(tmp_path)) == 1
    del cache
    gc.collect()
    assert open_files(tmp_path) == []


# When there is no room


@pytest.fixture
def small_disk():
    """No file may become larger than a third of the features: writing fails as it does on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8 * N * M // 3, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_that_fills_up_ends_the_cache_and_not_the_fit(small_disk, data, tmp_path):
    with pytest.warns(RuntimeWarning, match=r"can no longer be cached in .*computed again"):
        cached = fitted(MemmapRows(*data, cache=tmp_path))
    np.testing.assert_array_equal(cached.coef_, fitted(MemmapRows(*data, cache="recompute")).coef_)
    assert open_files(tmp_path) == []


def test_features_remain_rounded_when_the_disk_fills_up(small_disk, data, tmp_path):
    rows, coef = streamed(data, tmp_path, dtype=np.float32), np.ones((M, 1))
    kept = streamed(data, "memory", max_memory=PLENTY, dtype=np.float32)
    with pytest.warns(RuntimeWarning, match=r"can no longer be cached in .*computed again"):
        sweep(rows, coef)
    for one, other in zip(sweep(rows, coef), sweep(kept, coef), strict=True):
        np.testing.assert_array_equal(one, other)
    assert rows.feature_map.lifted == 2 * N


def test_too_little_disk_is_refused_before_any_row_is_read(data, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=8 * N * M))
    with pytest.raises(
        RowsError, match=r"60,000 rows take 0.0192 GB as float64, but .* has only 0.0192 GB left\. Name another"
    ):
        streamed(data, tmp_path)
    assert new_cache("auto", [slice(0, N)], M, ROOM) is None
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=8 * N * M * 3))
    with_room = new_cache("auto", [slice(0, N)], M, ROOM)
    assert isinstance(with_room, DiskCache)
    with_room.close()


def test_a_temporary_folder_in_memory_is_no_disk(monkeypatch):
    if not Path("/proc/mounts").exists() or "tmpfs /dev/shm " not in Path("/proc/mounts").read_text():
        pytest.skip("no folder is known to lie in memory")
    monkeypatch.setattr(tempfile, "tempdir", "/dev/shm")
    monkeypatch.setattr(feature_cache, "in_memory", in_memory)
    assert not in_memory("/proc/self")
    with pytest.raises(RowsError, match="The temporary folder /dev/shm lies in memory: name a folder of a disk"):
        new_cache("disk", [slice(0, 10)], M, 0)
    assert new_cache("auto", [slice(0, 10)], M, 0) is None
    named = new_cache("/dev/shm", [slice(0, 10)], M, 0)  # if that is what is wanted
    assert isinstance(named, DiskCache)
    named.close()


def test_too_little_memory_is_refused_before_any_row_is_read(data):
    with pytest.raises(
        RowsError, match=r"take 0.0192 GB as float64, and cache='memory' has room for 0.0009 GB, a half of max_mem"
    ):
        streamed(data, "memory")
    assert isinstance(new_cache("memory", [slice(0, N)], M, PLENTY), MemoryCache)


@pytest.mark.parametrize("make", [lambda cache: MemmapRows(np.ones((3, 1)), np.ones(3), cache=cache), check_policy])
def test_unfit_folders_are_refused_when_rows_are_made(make, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    for cache, message in (
        (tmp_path / "nowhere", "There is no folder .*nowhere"),
        (tmp_path / "file", "There is no folder .*file"),
        ("dsik", "There is no folder 'dsik': cache must be one of 'auto', 'recompute', 'memory', 'disk', or a folder"),
        (True, "got True"),
        (None, "got None"),
    ):
        with pytest.raises(RowsError, match=message):
            make(cache)

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    with pytest.raises(
        RowsError, match=r"cannot be cached in '.*': Permission denied\. Name a folder in which files can"
    ):
        make(tmp_path)


def test_files_are_refused_too(data, tmp_path):
    pq.write_table(pa.table({"a": [1.0, 2.0], "y": [1.0, 2.0]}), tmp_path / "rows.parquet")
    with pytest.raises(RowsError, match="There is no folder"):
        ParquetRows(tmp_path / "rows.parquet", "y", cache=tmp_path / "nowhere")
    rows = ParquetRows(tmp_path / "rows.parquet", "y", cache="disk")
    assert SelectedRows(rows, np.array([True, False])).cache == "disk"


# The automatic choice


def test_disk_is_chosen_where_features_are_dear(data):
    cheap, dear = streamed(data, "auto"), streamed(data, "auto", seconds=0.05)
    for rows in (cheap, dear):
        rows.sample(256, np.random.default_rng(0))  # what is timed takes part in no sweep
        rows.feature_map.lifted = 0
        sweep(rows, np.zeros((M, 1)))
        sweep(rows, np.zeros((M, 1)))
    assert dear.feature_map.lifted < N + N // 2
    assert cheap.feature_map.lifted >= 2 * N
    dear.close()


def test_what_counts_is_reading_rows_and_lifting_them(data, monkeypatch):
    rows = streamed(data, "auto", seconds=0.05)
    assert 0.05 / 1024 <= rows._estimate_recompute_cost() <= 0.5 / 1024
    rows.threads = 2
    lifting = rows._estimate_recompute_cost() - rows._shared.read_seconds
    assert 0.05 / 1024 / 2 <= lifting <= 0.4 / 1024
    slow = streamed(data, "auto")
    stream = slow.source.stream
    monkeypatch.setattr(slow.source, "stream", lambda *args, **kwargs: (time.sleep(0.3), stream(*args, **kwargs))[1])
    assert slow._estimate_recompute_cost() >= 0.3 / N


def test_disk_pays_from_a_cost_that_grows_with_the_features():
    per_feature = 8 * (1 / 1e9 + 1 / (3 * 0.35e9))  # read it, and a third of writing it
    for n_features in (1, 200, 5_000):
        assert disk_pays(1.01 * per_feature * n_features, 10**9, n_features)
        assert not disk_pays(0.99 * per_feature * n_features, 10**9, n_features)
        half = 4 * (3 / 1e9 + 1 / 0.35e9) / 2  # three times read and once written, and two of four sweeps saved
        assert disk_pays(1.01 * half * n_features, 10**9, n_features, np.float32)
        assert not disk_pays(0.99 * half * n_features, 10**9, n_features, np.float32)
    assert not disk_pays(1e-4, 9_900, 10)  # sweeps of less than a second
    assert disk_pays(1e-4, 10_100, 10)
