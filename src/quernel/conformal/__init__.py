"""Intervals whose coverage holds: conformal calibration of any model of quantiles."""

from quernel.conformal.regressor import ConformalQuantileRegressor

__all__ = ["ConformalQuantileRegressor"]
