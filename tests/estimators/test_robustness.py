"""What went wrong once, or could: types, odd targets, threads, forks, memory."""

import os
import signal
import threading
from pathlib import Path

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from quernel._machine import _controller, parallel_map, single_threaded_blas, submit
from quernel.datasets import make_homoscedastic
from quernel.estimators.warnings import warn_not_converged
from support.models import plain_regressor


@pytest.fixture
def table():
    rng = np.random.default_rng(0)
    X = rng.random((600, 3))
    return X, np.sin(5 * X[:, 0]) + X[:, 1] + 0.3 * rng.standard_normal(600)


def test_single_precision_inputs_converge_like_double(table):
    X, y = table
    settings = {"n_components": 200, "alpha": 1e-6, "random_state": 0}
    single = plain_regressor(0.3, **settings).fit(X.astype(np.float32), y.astype(np.float32))
    double = plain_regressor(0.3, **settings).fit(X.astype(np.float32).astype(float), y.astype(np.float32))
    assert single.duality_gap_[0] <= 1e-6
    np.testing.assert_allclose(single.predict(X), double.predict(X), rtol=0, atol=1e-9)


@pytest.mark.parametrize("level", [0.5, 0.9, 0.9999])
def test_a_target_that_is_almost_always_zero(level):
    """A first sample may see nothing but zeros."""
    rng = np.random.default_rng(1)
    X, y = rng.random((20_000, 2)), np.zeros(20_000)
    y[rng.choice(20_000, 4, replace=False)] = 5.0
    model = plain_regressor([level], n_components=101, random_state=0).fit(X, y)
    assert model.duality_gap_[0] <= 1e-6


def test_the_callers_arrays_are_neither_changed_nor_kept(table):
    X, y = table
    bandwidth, weight = np.array([0.5, 0.6, 0.7]), np.linspace(0.1, 1, 600)
    copies = [array.copy() for array in (X, y, bandwidth, weight)]
    model = plain_regressor([0.2, 0.8], n_components="exact", bandwidth=bandwidth, alpha=1e-4)
    before = model.fit(X, y, weight).predict(X)
    for array, copy in zip((X, y, bandwidth, weight), copies, strict=True):
        np.testing.assert_array_equal(array, copy)
    bandwidth *= 3
    np.testing.assert_array_equal(model.predict(X), before)
    assert model.bandwidth_.shape == (3,)


def test_exact_refuses_a_kernel_that_memory_cannot_hold(table):
    X, y = table
    model = plain_regressor(kernel="laplacian", n_components="exact", max_memory=1_000_000)
    with pytest.raises(ValueError, match=r"memory allows.*random features.*max_memory"):
        model.fit(X, y)
    plain_regressor(bandwidth=3.0, n_components="exact", alpha=1e-3, max_memory=1_000_000).fit(X, y)


def test_features_are_recomputed_where_they_may_not_be_stored(table):
    X, y = table
    stored = plain_regressor(0.3, n_components=50, random_state=0).fit(X, y)
    recomputed = plain_regressor(0.3, n_components=50, random_state=0, max_memory=1).fit(X, y)
    np.testing.assert_allclose(recomputed.predict(X), stored.predict(X), rtol=0, atol=1e-9)


def test_an_interval_needs_two_levels(table):
    X, y = table
    model = plain_regressor(0.5, n_components=20, alpha=1e-2).fit(X, y)
    with pytest.raises(ValueError, match=r"either side.*\[0\.5\].*0\.05, 0\.95"):
        model.predict_interval(X)


def test_a_gap_that_is_no_number_warns(table):
    X, y = table
    model = plain_regressor(0.5, n_components=20, alpha=1e-2).fit(X, y)
    model.duality_gap_ = np.array([np.nan])
    with pytest.warns(ConvergenceWarning):
        warn_not_converged(model, ["0.5"])


def blas_threads():
    return [pool["num_threads"] for pool in _controller().info() if pool["user_api"] == "blas"]


def test_overlapping_fits_give_blas_back_as_it_was():
    before = blas_threads()
    entered, leave = threading.Event(), threading.Event()

    def other():
        with single_threaded_blas(10**6, 10**3):
            entered.set()
            leave.wait(10)

    with single_threaded_blas(10**6, 10**3):
        thread = threading.Thread(target=other)
        thread.start()
        assert entered.wait(10)
        assert set(blas_threads()) == {1}
    assert set(blas_threads()) == {1}, "the other one is still at work"
    leave.set()
    thread.join(10)
    assert blas_threads() == before


def test_threads_take_every_item_once_and_in_order():
    for threads in (1, 2, 3, 7):
        for items in (0, 1, 5, 20):
            assert parallel_map(lambda k: k * k, range(items), threads) == [k * k for k in range(items)]


def test_an_error_in_a_thread_reaches_the_caller():
    def fails(k):
        if k == 3:
            raise ZeroDivisionError
        return k

    with pytest.raises(ZeroDivisionError):
        parallel_map(fails, range(4), 2)


def test_after_an_error_threads_do_not_go_on():
    begun = []

    def fails(k):
        begun.append(k)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        parallel_map(fails, range(1_000), 2)
    assert len(begun) <= 2


def test_a_thread_that_is_held_up_holds_up_one_item():
    by, released = {}, threading.Event()

    def slow_at_first(k):
        by[k] = threading.get_ident()
        if k == 0:
            assert released.wait(20)
        if k == 9:
            released.set()
        return k

    assert parallel_map(slow_at_first, range(10), 2) == list(range(10))
    assert len({by[k] for k in range(1, 10)}) == 1, "the other thread took all others"


def test_what_another_thread_begins_is_what_one_would_have_done():
    for threads in (1, 2):
        assert submit(pow, 2, 5, threads=threads)() == 32
        with pytest.raises(ZeroDivisionError):
            submit(lambda: 1 / 0, threads=threads)()
    inside = submit(lambda: parallel_map(abs, range(-3, 0), 2), threads=2)  # waits for no other thread
    assert inside() == [3, 2, 1]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_process_can_use_threads_again():
    assert parallel_map(abs, range(4), 2) == [0, 1, 2, 3]
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # a child that waits for its parent's threads would wait for ever
        os._exit(0 if parallel_map(abs, range(4), 2) == [0, 1, 2, 3] else 1)
    _, status = os.waitpid(child, 0)
    assert status == 0


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not tell a process's peak memory")
def test_peak_memory_stays_near_the_size_of_phi():
    """Screening copies the rows in doubt of one level at a time, not of all."""
    import subprocess
    import sys

    code = """
import pathlib, re, numpy as np
from quernel import KernelQuantileRegressor
from quernel.datasets import make_homoscedastic
X, y, _ = make_homoscedastic(200_000, random_state=0)
plain = {"bandwidth": "auto", "recalibrate": False, "n_components": 200, "random_state": 0}
KernelQuantileRegressor([0.5], **plain).fit(X[:20_000], y[:20_000])  # loads what is compiled
def peak():  # not ru_maxrss, which remembers the process that started this one
    return 1024 * int(re.search(r"VmHWM:\\s+(\\d+)", pathlib.Path("/proc/self/status").read_text())[1])
before = peak()
KernelQuantileRegressor(np.linspace(0.1, 0.9, 9), alpha=1e-4, **plain).fit(X, y)
print((peak() - before) / (200_000 * 200 * 8))
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert 1.0 < float(ran.stdout) < 2.0  # Phi, the band of one level, and (n, 9) residuals, duals and changes


def test_large_and_default(table):
    """The default path at a size where samples, screening and threads all take part."""
    X, y, quantile = make_homoscedastic(60_000, random_state=3)
    model = plain_regressor([0.1, 0.5], n_components=60, alpha=1e-5, random_state=0).fit(X, y)
    assert np.all(model.duality_gap_ <= 1e-6)
    error = model.predict(X[:2000]) - quantile(X[:2000], [0.1, 0.5])
    assert np.sqrt(np.mean(error**2)) < 0.1
