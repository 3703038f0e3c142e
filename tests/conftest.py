"""Test processes run side by side: a BLAS pool in each would spin on the others' cores."""

import os
import signal

import pytest

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

pytest.register_assert_rewrite("support")

# A shell ignores Ctrl-C in what it starts in the background, and children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
