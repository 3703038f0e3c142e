"""Conditional quantiles with kernels, at the cost of a linear model, each fit with a certificate."""

from quernel.estimators import KernelQuantileRegressor, estimate_cost

__version__ = "0.1.0"

__all__ = ["KernelQuantileRegressor", "__version__", "estimate_cost"]
