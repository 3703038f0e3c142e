"""Test processes run side by side: a BLAS pool in each would spin on the others' cores."""

import os

import pytest

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

pytest.register_assert_rewrite("support")
