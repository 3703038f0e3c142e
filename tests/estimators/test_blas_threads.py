"""BLAS runs on one thread during a fit and as before afterwards, whichever thread fits."""

import itertools
import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import joblib
import numpy as np
import pytest
from sklearn.base import clone
from threadpoolctl import threadpool_limits

from quernel import _machine
from quernel._machine import _controller, single_threaded_blas
from quernel.solvers.progress import listening
from support.models import plain_regressor


def blas_threads():
    """The threads of all BLAS libraries, as seen in this thread."""
    return {library.num_threads for library in _controller().lib_controllers if library.user_api == "blas"}


@pytest.fixture(autouse=True)
def _two_threads():
    """BLAS on two threads by order of the main thread, which thereby controls it (threadpoolctl 3.8)."""
    limits = threadpool_limits(2, user_api="blas")
    assert blas_threads() == {2}
    yield
    assert blas_threads() == {2}
    limits.restore_original_limits()


@pytest.fixture
def table():
    rng = np.random.default_rng(0)
    X = rng.random((3000, 12))
    return X, X[:, 0] + 0.3 * rng.standard_normal(3000)


@pytest.fixture
def model():
    return plain_regressor([0.2, 0.7], n_components=60, alpha=1e-4, random_state=0)


def fit_and_count(model, table):
    """The bits of a fit's predictions, the BLAS threads seen while it solves, and those seen after it."""
    seen = set()
    with listening(lambda progress: seen.update(blas_threads() if progress.columns else ())):
        fitted = clone(model).fit(*table)
    return fitted.predict(table[0]).tobytes(), seen, blas_threads()


@pytest.mark.parametrize("parallel", [False, True])
def test_a_fit_is_the_same_in_every_thread(parallel, model, table, monkeypatch):
    if parallel:
        monkeypatch.setattr(_machine, "MIN_PARALLEL_SIZE", 1000)
    here = fit_and_count(model, table)
    assert here[1:] == ({1}, {2})
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(fit_and_count, model, table).result() == here
    with ThreadPoolExecutor(3) as pool:
        together = [pool.submit(fit_and_count, model, table) for _ in range(6)]
        for future in together:
            assert future.result()[:2] == here[:2]
    jobs = joblib.Parallel(2, backend="threading")(joblib.delayed(fit_and_count)(model, table) for _ in range(4))
    for job in jobs:
        assert job[:2] == here[:2]


def test_a_fit_is_the_same_in_other_processes(model, table):
    fitted = joblib.Parallel(2, backend="loky")(joblib.delayed(clone(model).fit)(*table) for _ in range(2))
    here = clone(model).fit(*table).predict(table[0]).tobytes()
    assert [other.predict(table[0]).tobytes() for other in fitted] == [here, here]


@pytest.mark.parametrize("fail", [False, True])
def test_overlapping_fits_restore_the_setting(fail, model, table):
    """The second begins before the first ends, and ends last, in another thread; both may end by an exception."""
    first_inside, second_inside, first_done = (threading.Event() for _ in range(3))

    def fit(inside, wait_for):
        def listener(progress):
            if not progress.columns:  # no solver reports
                return
            inside.set()
            assert wait_for.wait(60)
            assert blas_threads() == {1}
            if fail:
                raise ZeroDivisionError

        with listening(listener):
            clone(model).fit(*table)

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(fit, first_inside, second_inside)
        assert first_inside.wait(60)
        second = pool.submit(fit, second_inside, first_done)
        errors = [first.exception(60)]
        assert blas_threads() == {1}, "the second is still at work"
        first_done.set()
        errors.append(second.exception(60))
    assert [type(error) for error in errors] == [ZeroDivisionError if fail else type(None)] * 2
    assert blas_threads() == {2}


def test_users_can_still_set_limits_in_any_thread(model, table):
    """A fit leaves nobody in control of BLAS, neither its own thread nor the one before."""

    def limit():
        with threadpool_limits(1, user_api="blas"):
            return blas_threads()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(clone(model).fit, *table).result()
        assert limit() == {1}
        clone(model).fit(*table)
        assert pool.submit(limit).result() == {1}


def test_blas_is_given_back_wherever_an_interrupt_comes():
    """Also just before the call that gives it back, of which the context manager then knows nothing."""

    def use():
        with single_threaded_blas(1, 1):
            assert blas_threads() == {1}

    def interrupt(k):
        calls = itertools.count(1)

        def at_call(frame, event, _):
            if event == "call" and frame.f_code.co_filename == _machine.__file__ and next(calls) == k:
                raise KeyboardInterrupt

        sys.setprofile(at_call)
        try:
            use()
        finally:
            sys.setprofile(None)

    use()
    n_interrupts = 0
    while True:
        try:
            interrupt(n_interrupts + 1)
            break
        except KeyboardInterrupt:
            n_interrupts += 1
        assert blas_threads() == {2}
    assert n_interrupts > 5


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_fork_during_a_fit_of_another_thread_has_the_users_setting():
    entered, leave = threading.Event(), threading.Event()

    def other():
        with single_threaded_blas(1, 1):
            entered.set()
            leave.wait(60)

    thread = threading.Thread(target=other)
    thread.start()
    assert entered.wait(60)
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        os._exit(0 if blas_threads() == {2} else 1)
    leave.set()
    thread.join(60)
    assert os.waitpid(child, 0)[1] == 0


def test_libraries_with_a_setting_per_thread_are_limited_in_each(monkeypatch):
    """As OpenBLAS on OpenMP, which this machine need not have."""

    class PerThread(threading.local):
        user_api, threading_layer, num_threads = "blas", "openmp", 5

        def set_num_threads(self, n_threads):
            self.num_threads = n_threads

    library = PerThread()
    monkeypatch.setattr(_machine, "_controller", lambda: SimpleNamespace(lib_controllers=[library]))
    monkeypatch.setattr(_machine, "count_cores", lambda: 3)
    inside = threading.Barrier(2, timeout=60)

    def use():
        with single_threaded_blas(10**5, 10**3) as outer:
            inside.wait()
            with single_threaded_blas(10**5, 10**3) as inner:
                seen = library.num_threads
            seen_later = library.num_threads
            inside.wait()
        return outer, inner, seen, seen_later, library.num_threads

    with ThreadPoolExecutor(2) as pool:
        assert [future.result() for future in [pool.submit(use), pool.submit(use)]] == [(3, 3, 1, 1, 5)] * 2
    with _machine._pool.__wrapped__(2) as own:
        assert own.submit(lambda: library.num_threads).result() == 1
