"""Weights that overflow are refused by name, wherever rows are; huge ones that do not are as good as any."""

import dask.array as da
import numpy as np
import pytest

from quernel import (
    ConformalQuantileRegressor,
    KernelClassifier,
    KernelQuantileRegressorCV,
    KernelRegressor,
)
from quernel.data import MemmapRows
from quernel.metrics import pinball_loss
from support.models import plain_regressor

SMALL = {"n_components": 10, "alpha": 1e-2, "random_state": 0}
ROWS = 400


@pytest.fixture
def table():
    rng = np.random.default_rng(0)
    X = rng.random((ROWS, 2))
    return X, X[:, 0] + rng.standard_normal(ROWS)


def streamed(X, y, weight):
    return plain_regressor(**SMALL, max_memory=8000).fit(MemmapRows(X, y, weight))


FITS = {
    "quantiles": lambda X, y, weight: plain_regressor(**SMALL).fit(X, y, weight),
    "search": lambda X, y, weight: KernelQuantileRegressorCV(alphas=[1e-2], bandwidths=[1.0]).fit(X, y, weight),
    "classes": lambda X, y, weight: KernelClassifier(**SMALL).fit(X, y > 0, weight),
    "mean": lambda X, y, weight: KernelRegressor("squared", **SMALL).fit(X, y, weight),
    "intervals": lambda X, y, weight: ConformalQuantileRegressor(plain_regressor(**SMALL)).fit(X, y, weight),
    "streamed": streamed,
    "dask": lambda X, y, weight: plain_regressor(**SMALL).fit(
        *(da.from_array(part, chunks=(100, *part.shape[1:])) for part in (X, y, weight))
    ),
    "score": lambda X, y, weight: plain_regressor(**SMALL).fit(X, y).score(X, y, weight),
    "metric": lambda X, y, weight: pinball_loss(y, X[:, 0], 0.5, sample_weight=weight),
}


@pytest.mark.parametrize("name", FITS)
@pytest.mark.parametrize("places", [slice(0, 3), slice(0, None, 150)], ids=["one block", "several blocks"])
def test_weights_whose_sum_overflows_are_refused(name, places, table):
    weight = np.ones(ROWS)
    weight[places] = 1e308
    with pytest.raises(ValueError, match=r"sum of .*weights? overflows: its largest entry is 1e\+308.* divide them by"):
        FITS[name](*table, weight)


@pytest.mark.parametrize("name", [name for name in FITS if name not in ("score", "metric")])
@pytest.mark.parametrize("weight", [1e308, 1e-320])
def test_weights_that_make_others_underflow_are_refused(name, weight, table):
    with pytest.raises(ValueError, match=r"range from .* to .*a ratio above 1e\+150.*Give those rows a weight of 0"):
        FITS[name](*table, np.where(np.arange(ROWS) == 7, weight, 1.0))


@pytest.mark.parametrize("name", ["quantiles", "mean", "streamed", "dask"])
@pytest.mark.parametrize("factor", [1e300, 1e-300])
def test_only_ratios_of_weights_matter(name, factor, table):
    weight = np.random.default_rng(1).integers(0, 3, ROWS).astype(float)
    expected, found = (FITS[name](*table, one) for one in (weight, factor * weight))
    np.testing.assert_allclose(found.predict(table[0]), expected.predict(table[0]), rtol=1e-6)


def test_density_ratios_whose_sum_overflows_are_refused(table):
    model = ConformalQuantileRegressor(plain_regressor(**SMALL))
    with pytest.raises(ValueError, match="sum of density_ratio overflows"):
        model.fit(*table, density_ratio=np.full(ROWS, 1e308))
