"""scikit-learn estimators."""

from quernel.estimators.classifier import KernelClassifier
from quernel.estimators.cost import Cost, estimate_cost
from quernel.estimators.extrapolation import ExtrapolationWarning
from quernel.estimators.quantile import KernelQuantileRegressor
from quernel.estimators.regressor import KernelRegressor

__all__ = [
    "Cost",
    "ExtrapolationWarning",
    "KernelClassifier",
    "KernelQuantileRegressor",
    "KernelRegressor",
    "estimate_cost",
]
