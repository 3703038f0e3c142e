"""The slopes of random features are differences of the features."""

import numpy as np
import pytest

from quernel.features import RandomFeatures
from quernel.features.slopes import squared_slopes
from quernel.kernels import Gaussian, Matern


@pytest.mark.parametrize("kernel", [Gaussian([0.5, 2.0, 30.0]), Matern(1.0), Gaussian(1.0) + 0.5 * Matern(3.0)])
def test_slopes_are_differences(kernel):
    rng = np.random.default_rng(0)
    X, coef, weight = rng.standard_normal((50, 3)), rng.standard_normal((40, 2)), rng.random(50)
    share = weight / weight.sum()
    features = RandomFeatures(kernel, 40, center=[1.0, 0.0, 0.0], random_state=0).fit(X)
    by_difference, steps = np.empty(3), np.array([1e-5, 0.3, 2.0])
    for j in range(3):
        step = steps[j] * np.eye(3)[j]
        slope = (features.transform(X + step) - features.transform(X - step)) @ coef / (2 * steps[j])
        by_difference[j] = np.mean(share @ slope**2)
    np.testing.assert_allclose(squared_slopes(features, X, coef, share, steps), by_difference, rtol=1e-6)
    for wrong in ((np.full(50, 1 / 50), steps), (share, 2 * steps)):
        assert np.abs(squared_slopes(features, X, coef, *wrong) / by_difference - 1).max() > 1e-3
