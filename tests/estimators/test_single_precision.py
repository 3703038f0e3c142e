"""Features stored in single precision: half the memory, and a certificate that says what it costs."""

import numpy as np
import pytest

from quernel import KernelQuantileRegressor, estimate_cost
from quernel.datasets import make_homoscedastic
from quernel.features import RandomFeatures
from quernel.losses import Pinball
from quernel.rows import ArrayRows, LiftedRows


def fitted(X, y, **options):
    return KernelQuantileRegressor([0.1, 0.5], bandwidth=1.0, n_components=60, random_state=0, **options).fit(X, y)


@pytest.mark.parametrize("n", [2000, 50_000])
def test_the_gap_is_that_of_the_features_that_predict(n):
    X, y, _ = make_homoscedastic(n, random_state=0)
    single, double = (
        fitted(X, y, alpha=1e-4, dtype=dtype, tol=tol) for dtype, tol in [("float32", 1e-6), ("float64", 1e-9)]
    )
    loss = Pinball([0.1, 0.5]).value(y[:, None] - single.feature_map_.transform(X) @ single.coef_ - single.intercept_)
    objective = loss.mean(axis=0) + 1e-4 * np.sum(single.coef_**2, axis=0)
    np.testing.assert_allclose(single.objective_, objective, rtol=1e-12)
    assert np.all(single.duality_gap_ >= objective / double.objective_ - 1 - 2e-9)
    assert np.all(single.duality_gap_ <= 2e-6)


def test_a_gap_that_rounding_does_not_allow_is_reported_not_hidden():
    X, y, _ = make_homoscedastic(2000, random_state=0)
    with pytest.warns(match="gap"):
        model = fitted(X, y, alpha=1e-9, dtype="float32", tol=1e-9)
    assert model.duality_gap_.max() > 1e-9
    assert fitted(X, y, alpha=1e-9, tol=1e-9).duality_gap_.max() <= 1e-9, "control: double precision reaches it"


def test_stored_features_take_half():
    X, y, _ = make_homoscedastic(3000, random_state=0)
    features = RandomFeatures("gaussian", 50, random_state=0).fit(X)
    rows = LiftedRows(ArrayRows(X, y), features, dtype=np.float32)
    assert rows.resident("a test looks at them").dtype == np.float32
    np.testing.assert_allclose(rows.resident("so"), features.transform(X), rtol=0, atol=1e-7)
    single, double = (estimate_cost(10**6, 3, 300, dtype=dtype, max_memory=10**10) for dtype in ("float32", "float64"))
    assert 2 * single.features == double.features


def test_bad_input():
    X, y, _ = make_homoscedastic(100, random_state=0)
    with pytest.raises(ValueError, match="Unknown dtype 'float16'"):
        fitted(X, y, dtype="float16")
    with pytest.raises(ValueError, match="solver='newton' only"):
        fitted(X, y, dtype="float32", solver="admm")
