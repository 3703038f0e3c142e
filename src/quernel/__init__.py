"""Conditional quantiles with kernels, at the cost of a linear model, each fit with a certificate."""

from quernel.estimators import KernelClassifier, KernelQuantileRegressor, KernelRegressor, estimate_cost
from quernel.selection import KernelQuantileRegressorCV

__version__ = "0.1.0"

__all__ = [
    "KernelClassifier",
    "KernelQuantileRegressor",
    "KernelQuantileRegressorCV",
    "KernelRegressor",
    "__version__",
    "estimate_cost",
]
