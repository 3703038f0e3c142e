"""Conformal prediction: intervals of guaranteed coverage around any quantile model.

`ConformalQuantileRegressor` is the estimator. `methods` has the registry of methods with their splits, conformity
scores and intervals; `adapters` reads intervals off other models, and rows in memory or out of core.
"""

from quernel.conformal.regressor import ConformalQuantileRegressor

__all__ = ["ConformalQuantileRegressor"]
