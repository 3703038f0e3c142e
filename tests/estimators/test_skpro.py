"""The adapter passes skpro's own tests, and says what the estimator inside says."""

import sys

import numpy as np
import pandas as pd
import pytest

from quernel import KernelQuantileRegressor


def test_without_skpro_the_adapter_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "skpro", None)
    monkeypatch.delitem(sys.modules, "quernel.estimators.skpro", raising=False)
    with pytest.raises(ImportError, match=r"quernel\[skpro\]"):
        import quernel.estimators.skpro  # noqa: F401


@pytest.fixture
def adapter():
    pytest.importorskip("skpro")
    from quernel.estimators.skpro import SkproQuantileRegressor

    return SkproQuantileRegressor


@pytest.mark.filterwarnings("ignore")  # of skpro and of pandas
def test_the_conformance_tests_of_skpro_pass(adapter):
    from skpro.utils import check_estimator

    kernel = adapter(adapter.get_test_params()[0]["estimator"])
    results = check_estimator(kernel, raise_exceptions=True, verbose=False)
    assert len(results) > 20
    assert set(results.values()) == {"PASSED"}


@pytest.mark.filterwarnings("ignore")
def test_the_adapter_says_what_the_estimator_says(adapter):
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"a": rng.uniform(-1, 1, 200), "b": rng.uniform(-1, 1, 200)}, index=np.arange(200) + 7)
    y = X["a"] ** 2 + 0.1 * rng.standard_normal(200)
    kernel = KernelQuantileRegressor([0.02, 0.3, 0.5, 0.7, 0.98], n_components=20, bandwidth="auto", random_state=0)
    model, alone = adapter(kernel).fit(X[:150], y[:150]), kernel.fit(X[:150], y[:150])
    levels = [0.7, 0.1]
    found = model.predict_quantiles(X[150:], levels)
    np.testing.assert_array_equal(found, alone.predict(X[150:], levels))
    bounds = model.predict_interval(X[150:], 0.8).to_numpy()
    np.testing.assert_allclose(bounds, alone.predict(X[150:], [0.1, 0.9]), rtol=1e-12)
    # The distribution has the median and, about, the spread of the quantiles.
    law = model.predict_proba(X[150:])
    np.testing.assert_allclose(law.ppf(0.5).to_numpy()[:, 0], alone.predict(X[150:], 0.5), atol=0.01)
    np.testing.assert_array_equal(law.mean().index, X.index[150:])
    # Leakage: the forecast of a row depends neither on the rows beside it nor on targets after the fit.
    shuffled = X[150:].sample(frac=1.0, random_state=0)
    np.testing.assert_allclose(model.predict_quantiles(shuffled, levels).loc[X.index[150:]], found, rtol=1e-9)
    with pytest.raises(ValueError, match="outside the fitted range"):
        model.predict_quantiles(X, [0.001])
