"""Intervals whose coverage holds: conformal calibration of any model of quantiles."""

from quernel.calibration.conformal import ConformalQuantileRegressor

__all__ = ["ConformalQuantileRegressor"]
