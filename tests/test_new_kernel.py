"""A kernel is one class and one entry in a registry: that of CONTRIBUTING, run as printed, outside of the library."""

import re
import sys
import types
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from scipy.special import gammaincinv

import quernel
from quernel import KernelQuantileRegressor, kernels
from quernel.features import Nystroem, RandomFeatures
from quernel.kernels import ShiftInvariantKernel
from quernel.persistence import ModelFileError
from support.models import plain_regressor

PAGE = (Path(__file__).parent.parent / "CONTRIBUTING.md").read_text()
NAME = "rational_quadratic"
X = np.random.default_rng(0).uniform(-1, 1, (150, 2))
Y = np.sin(4 * X[:, 0]) + 0.3 * np.random.default_rng(1).standard_normal(150)


@pytest.fixture
def rational_quadratic(monkeypatch):
    section = PAGE.partition("## Adding a kernel")[2].partition("\n## ")[0]
    (code,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    assert len([line for line in code.splitlines() if line.strip()]) <= 15
    names = {"dataclass": dataclass, "ShiftInvariantKernel": ShiftInvariantKernel, "ClassVar": ClassVar, "np": np}
    exec(code, names | {"gammaincinv": gammaincinv, "__name__": "added"}, names)
    monkeypatch.setitem(kernels.KERNELS, NAME, names["RationalQuadratic"])
    monkeypatch.setitem(sys.modules, "added", types.SimpleNamespace(**names))
    return names["RationalQuadratic"]


def formula(shape, bandwidth):
    """The kernel once more, by hand."""
    squared = np.sum(((X[:, None] - X[None]) / bandwidth) ** 2, axis=2)
    return (1 + squared / (2 * shape)) ** -shape


def largest_error(kernel):
    """Of the mean product of 40,000 random features beside the Gram matrix, which is exact."""
    Phi = RandomFeatures(kernel, 40_000, random_state=0).fit(X).transform(X)
    return np.abs(Phi @ Phi.T - formula(kernel.shape, kernel.bandwidth)).max()


@pytest.mark.parametrize("shape", [0.7, 2.0])
def test_its_random_features_multiply_to_its_gram_matrix(rational_quadratic, shape):
    kernel = rational_quadratic(0.8, shape=shape)
    np.testing.assert_allclose(kernel.gram(X, X), formula(shape, 0.8), rtol=1e-12)
    assert largest_error(kernel) < 0.04


def test_a_wrong_spectral_measure_would_be_seen(rational_quadratic):
    class Wrong(rational_quadratic):
        def _standard_frequencies(self, normal, mixing):
            return normal

    assert largest_error(Wrong(0.8, shape=0.7)) > 0.1


@pytest.mark.parametrize("n_components", [60, "exact"])
def test_it_is_fitted_saved_and_loaded_by_its_name(rational_quadratic, tmp_path, n_components):
    model = plain_regressor([0.1, 0.9], kernel=NAME, alpha=1e-3, n_components=n_components, random_state=0)
    model.fit(X, Y)
    assert np.all(model.duality_gap_ <= 1e-6)
    assert isinstance(model.kernel_, rational_quadratic)
    quernel.save(model, tmp_path / "m.quernel")
    np.testing.assert_array_equal(quernel.load(tmp_path / "m.quernel").predict(X), model.predict(X))


def test_its_bandwidths_can_be_learned_without_a_gradient_of_its_own(rational_quadratic):
    model = KernelQuantileRegressor(0.5, kernel=NAME, bandwidth="learned", n_components=60, random_state=0).fit(X, Y)
    first, second = model.kernel_.bandwidth
    assert second > 2 * first  # the second column says nothing about y
    assert isinstance(model.feature_map_, RandomFeatures)


def test_learned_fits_of_a_rough_one_take_landmarks(rational_quadratic, monkeypatch):
    monkeypatch.setattr(rational_quadratic, "rough", True)
    model = KernelQuantileRegressor(0.5, kernel=NAME, bandwidth="learned", n_components=60, random_state=0).fit(X, Y)
    assert isinstance(model.feature_map_, Nystroem)


def test_onnx_takes_its_random_features_and_refuses_its_gram_matrix(rational_quadratic, tmp_path):
    settings = {"kernel": NAME, "alpha": 1e-3, "random_state": 0}
    model = plain_regressor(0.5, n_components=60, **settings).fit(X, Y)
    quernel.to_onnx(model, tmp_path / "m.onnx")
    exact = plain_regressor(0.5, n_components="exact", **settings).fit(X, Y)
    with pytest.raises(ValueError, match="The kernel RationalQuadratic has no formula for ONNX"):
        quernel.to_onnx(exact, tmp_path / "exact.onnx")


def test_without_its_entry_it_is_unknown(rational_quadratic, tmp_path, monkeypatch):
    quernel.save(plain_regressor(0.5, kernel=NAME, n_components=20).fit(X, Y), tmp_path / "m.quernel")
    monkeypatch.delitem(kernels.KERNELS, NAME)
    with pytest.raises(ModelFileError, match=r"untrusted type added\.RationalQuadratic"):
        quernel.load(tmp_path / "m.quernel")
    with pytest.raises(ValueError, match="Unknown kernel 'rational_quadratic'"):
        plain_regressor(0.5, kernel=NAME).fit(X, Y)


def test_nothing_stays_behind():
    assert not any(kernel.__module__ == "added" for kernel in kernels.KERNELS.values())
