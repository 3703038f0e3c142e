"""scikit-learn estimators."""

from quernel.estimators.cost import Cost, estimate_cost
from quernel.estimators.quantile import KernelQuantileRegressor

__all__ = ["Cost", "KernelQuantileRegressor", "estimate_cost"]
