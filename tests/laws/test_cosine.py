"""The fast cosine is the cosine."""

import subprocess
import sys

import numpy as np
import pytest

from quernel.features.cosine import scaled_cosine
from quernel.features.random import COMPILE_FROM, RandomFeatures


@pytest.mark.parametrize("size", [1e-8, 1.0, 1e3, 0.999e6, 1e9])
def test_it_is_accurate_for_every_size_of_argument(size):
    z = np.random.default_rng(0).uniform(-size, size, (200, 70))
    out = np.empty_like(z)
    scaled_cosine(z, np.zeros(70), np.ones(70), out)
    np.testing.assert_allclose(out, np.cos(z), rtol=0, atol=1e-12)


def test_it_is_accurate_where_the_reduction_is_hardest():
    """At multiples of pi / 2, where one part of pi too few would show."""
    k = np.arange(-300_000, 300_000, 997)
    z = np.concatenate([k * np.pi / 2, np.nextafter(k * np.pi, 0), k * np.pi])[None, :]
    out = np.empty_like(z)
    scaled_cosine(z, np.zeros(z.shape[1]), np.ones(z.shape[1]), out)
    np.testing.assert_allclose(out, np.cos(z), rtol=0, atol=1e-12)
    naive = z - np.rint(z / np.pi) * np.pi  # negative control: pi in one part loses the small digits
    assert np.abs(np.cos(naive) * (1 - 2 * (np.rint(z / np.pi) % 2)) - np.cos(z)).max() > 1e-12


def test_phase_scale_in_place_and_single_precision():
    rng = np.random.default_rng(1)
    z, phase = rng.normal(size=(30, 11)), rng.uniform(0, 6, 11)
    scale = rng.uniform(0.1, 2, 11)
    expected = scale * np.cos(z + phase)
    single = np.empty(z.shape, dtype=np.float32)
    scaled_cosine(z, phase, scale, single)
    np.testing.assert_allclose(single, expected, atol=3e-7)
    scaled_cosine(z, phase, scale, z)
    np.testing.assert_allclose(z, expected, rtol=0, atol=1e-14)


def test_large_and_small_transforms_agree():
    """Few rows go through numpy's cosine, many through the compiled one."""
    X = np.random.default_rng(2).uniform(-5, 5, (COMPILE_FROM // 50, 4))
    features = RandomFeatures("gaussian", 60, random_state=0).fit(X)
    whole = features.transform(X)
    assert whole.size >= COMPILE_FROM
    expected = np.sqrt(2 / 60) * np.cos(X[:500] @ features.frequencies_ + features.phases_)
    np.testing.assert_allclose(whole[:500], expected, rtol=0, atol=1e-12)


def test_importing_quernel_does_not_load_the_compiler():
    code = "import sys, quernel; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=120).returncode == 0
