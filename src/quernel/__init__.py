"""Conditional quantiles with kernels, at the cost of a linear model, each fit with a certificate."""

from quernel.conformal import ConformalQuantileRegressor
from quernel.estimators import (
    ExtrapolationWarning,
    KernelClassifier,
    KernelQuantileRegressor,
    KernelRegressor,
    TabularQuantileRegressor,
    estimate_cost,
)
from quernel.estimators.quantile_cv import KernelQuantileRegressorCV
from quernel.persistence import load, onnx_inputs, save, to_onnx
from quernel.tables import TableEncoder

__version__ = "0.1.0"

__all__ = [
    "ConformalQuantileRegressor",
    "ExtrapolationWarning",
    "KernelClassifier",
    "KernelQuantileRegressor",
    "KernelQuantileRegressorCV",
    "KernelRegressor",
    "TableEncoder",
    "TabularQuantileRegressor",
    "__version__",
    "estimate_cost",
    "load",
    "onnx_inputs",
    "save",
    "to_onnx",
]
