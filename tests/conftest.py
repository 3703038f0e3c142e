"""Test processes run side by side: a BLAS pool in each would spin on the others' cores."""

import os
import signal

import pytest

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

pytest.register_assert_rewrite("support")

# A shell ignores Ctrl-C in what it starts in the background, and children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _blas_is_given_back():
    """No test leaves BLAS limited to one thread, however its fits ended."""
    yield
    from quernel import _machine

    assert not _machine._blas_limit._users
