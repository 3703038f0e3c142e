"""Scikit-learn estimators: kernel quantile regression, regression under other losses, and classification.

`quantile`, `quantile_cv`, `regressor` and `classifier` hold the public classes, `base` the three steps of a fit: plan
(`tuning.plan`), solve (`solve`), store. `inputs` and `validation` read the data, `warm_start` has warm starts and
checkpoints, `warnings` what a fit or prediction tells the user, `levels` and `multiclass` what lies between the outputs
of a fit and its predictions.
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
