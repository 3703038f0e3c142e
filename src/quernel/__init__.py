"""Conditional quantiles with kernels, at the cost of a linear model, each fit with a certificate."""

from quernel.calibration import ConformalQuantileRegressor
from quernel.estimators import KernelClassifier, KernelQuantileRegressor, KernelRegressor, estimate_cost

__version__ = "0.1.0"

__all__ = [
    "ConformalQuantileRegressor",
    "KernelClassifier",
    "KernelQuantileRegressor",
    "KernelRegressor",
    "__version__",
    "estimate_cost",
]
