"""scikit-learn estimators."""

from quernel.estimators.quantile import KernelQuantileRegressor

__all__ = ["KernelQuantileRegressor"]
