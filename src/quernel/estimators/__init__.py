"""Scikit-learn estimators: kernel quantile regression, regression under other losses, and classification.

`quantile`, `quantile_cv`, `regressor` and `classifier` hold the public classes, `base` the fit that they share. The
other modules each serve one step of it: `inputs` and `validation` the data, `checkpoint` warm starts, `full_kernel` the
exact kernel, `cost` memory, `convergence` and `extrapolation` warnings, `out_of_core_predict` predictions blockwise.
"""

from quernel.estimators.classifier import KernelClassifier
from quernel.estimators.quantile import KernelQuantileRegressor
from quernel.estimators.regressor import KernelRegressor
from quernel.estimators.warnings import ExtrapolationWarning
from quernel.tuning.cost import Cost, estimate_cost

__all__ = [
    "Cost",
    "ExtrapolationWarning",
    "KernelClassifier",
    "KernelQuantileRegressor",
    "KernelRegressor",
    "estimate_cost",
]
