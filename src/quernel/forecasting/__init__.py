"""Forecasts of series: features of time, a forecaster of quantiles, rolling origins, coverage under drift."""

from quernel.forecasting.adaptive import AdaptiveCalibrator, AdaptiveConformalRegressor
from quernel.forecasting.features import CalendarFeatures, Holidays, Lags, WeatherScenarios, mixture_quantiles
from quernel.forecasting.forecaster import QuantileForecaster
from quernel.forecasting.series import Backtest, time_splits

__all__ = [
    "AdaptiveCalibrator",
    "AdaptiveConformalRegressor",
    "Backtest",
    "CalendarFeatures",
    "Holidays",
    "Lags",
    "QuantileForecaster",
    "WeatherScenarios",
    "mixture_quantiles",
    "time_splits",
]
