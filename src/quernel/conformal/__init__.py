"""Conformal prediction: intervals of guaranteed coverage around any quantile model.

`ConformalQuantileRegressor` is the estimator. `scores` has the conformity scores and their quantile, `splits` divides
the rows, `adapters` reads intervals off other models, and `validation` checks the arguments.
"""

from quernel.conformal.regressor import ConformalQuantileRegressor

__all__ = ["ConformalQuantileRegressor"]
