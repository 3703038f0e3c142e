"""The fast cosine is the cosine."""

import subprocess
import sys

import numpy as np
import pytest

import quernel
from quernel.features import random
from quernel.features.random import COMPILE_FROM, RandomFeatures
from quernel.kernels import fourier, numba_loops
from support.models import plain_regressor


@pytest.fixture(params=[fourier, numba_loops], ids=["numpy", "numba"])
def scaled_cosine(request):
    return request.param.scaled_cosine


@pytest.mark.parametrize("size", [1e-8, 1.0, 1e3, 0.999e6, 1e9])
def test_it_is_accurate_for_every_size_of_argument(size, scaled_cosine):
    z = np.random.default_rng(0).uniform(-size, size, (200, 70))
    out = np.empty_like(z)
    scaled_cosine(z, np.zeros(70), np.ones(70), out)
    np.testing.assert_allclose(out, np.cos(z), rtol=0, atol=1e-12)


def test_it_is_accurate_where_the_reduction_is_hardest(scaled_cosine):
    """At multiples of pi / 2, where one part of pi too few would show."""
    k = np.arange(-300_000, 300_000, 997)
    z = np.concatenate([k * np.pi / 2, np.nextafter(k * np.pi, 0), k * np.pi])[None, :]
    out = np.empty_like(z)
    scaled_cosine(z, np.zeros(z.shape[1]), np.ones(z.shape[1]), out)
    np.testing.assert_allclose(out, np.cos(z), rtol=0, atol=1e-12)
    naive = z - np.rint(z / np.pi) * np.pi  # negative control: pi in one part loses the small digits
    assert np.abs(np.cos(naive) * (1 - 2 * (np.rint(z / np.pi) % 2)) - np.cos(z)).max() > 1e-12


def test_phase_scale_in_place_and_single_precision(scaled_cosine):
    rng = np.random.default_rng(1)
    z, phase = rng.normal(size=(30, 11)), rng.uniform(0, 6, 11)
    scale = rng.uniform(0.1, 2, 11)
    expected = scale * np.cos(z + phase)
    single = np.empty(z.shape, dtype=np.float32)
    scaled_cosine(z, phase, scale, single)
    np.testing.assert_allclose(single, expected, atol=3e-7)
    scaled_cosine(z, phase, scale, z)
    np.testing.assert_allclose(z, expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("size", [1e-8, 1.0, 30.0, 1e3, 0.999e6, 1e7, 1e12])
def test_numpy_and_numba_give_the_same_bits(size, dtype):
    rng = np.random.default_rng(3)
    X, frequencies = rng.uniform(-1, 1, (300, 5)), rng.standard_normal((5, 77)) * size
    phase, scale = rng.uniform(0, 6, 77), rng.uniform(0.1, 2, 77)
    X[7], X[8, 0], X[9, 0] = 0, np.inf, np.nan
    with np.errstate(invalid="ignore"):
        z = X @ frequencies
    for arguments in ((z, phase, scale), (X, frequencies, phase, scale)):
        name = "scaled_cosine" if len(arguments) == 3 else "scaled_cosine_fused"
        plain, fast = np.empty(z.shape, dtype), np.empty(z.shape, dtype)
        getattr(fourier, name)(*arguments, plain)
        getattr(numba_loops, name)(*arguments, fast)
        np.testing.assert_array_equal(plain, fast, strict=True)


# Predict by the saved model after some history, in this thread and in others, and in a forked child.
PREDICT = """
import multiprocessing, pathlib, sys, threading
import numpy as np, quernel
{history}
folder = pathlib.Path({folder!r})
X, model = np.load(folder / "X.npy"), quernel.load(folder / "model.quernel")
bits = [model.predict(X).tobytes()]
threads = [threading.Thread(target=lambda: bits.append(model.predict(X).tobytes())) for _ in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
if sys.platform == "linux":
    with multiprocessing.get_context("fork").Pool(1) as pool:
        bits.append(pool.apply(model.predict, (X,)).tobytes())
assert len(bits) >= 4 and len(set(bits)) == 1
(folder / f"{{len(list(folder.iterdir()))}}.bits").write_bytes(bits[0])
"""
HISTORIES = {
    "fresh": "",
    "after a large fit": """
from quernel.features.random import COMPILE_FROM
large = np.random.default_rng(1).random((COMPILE_FROM // 20 + 1, 2))
model = quernel.KernelQuantileRegressor(0.5, bandwidth="auto", n_components=20, alpha=1e-2, random_state=0)
model.fit(large, large[:, 0])
""",
    "after numba": "import quernel.kernels.numba_loops, quernel.features.random as r; r._load_compiled()\n",
}


@pytest.mark.parametrize("columns", [3, 12])
def test_predictions_do_not_depend_on_what_the_process_did_before(columns, tmp_path):
    """Fitted here; loaded in processes with a history or without, in a thread, and a fork of one."""
    rng = np.random.default_rng(4)
    X = rng.random((700, columns))
    model = plain_regressor([0.2, 0.6], n_components=90, alpha=1e-4, random_state=0).fit(X, X.sum(axis=1))
    np.save(tmp_path / "X.npy", X)
    quernel.save(model, tmp_path / "model.quernel")
    for name, history in HISTORIES.items():
        code = PREDICT.format(folder=str(tmp_path), history=history)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, (name, done.stderr)
    expected = model.predict(X).tobytes()
    for path in sorted(tmp_path.glob("*.bits")):
        assert path.read_bytes() == expected, path.name
    assert len(list(tmp_path.glob("*.bits"))) == 3
    random._load_compiled()
    assert model.predict(X).tobytes() == expected


def test_large_and_small_transforms_agree():
    """Few rows are computed by numpy, many by the compiled loop."""
    X = np.random.default_rng(2).uniform(-5, 5, (COMPILE_FROM // 50, 4))
    features = RandomFeatures("gaussian", 60, random_state=0).fit(X)
    whole = features.transform(X)
    assert whole.size >= COMPILE_FROM
    expected = np.sqrt(2 / 60) * np.cos(X[:500] @ features.frequencies_ + features.phases_)
    np.testing.assert_allclose(whole[:500], expected, rtol=0, atol=1e-12)


def test_importing_quernel_does_not_load_the_compiler():
    code = "import sys, quernel; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=120).returncode == 0
