"""Scikit-learn estimators: conditional quantiles of tables, kernel quantile regression, other losses, classification.

`quantile`, `quantile_cv`, `regressor` and `classifier` hold the public classes of kernels, `base` the three steps of a
fit, plan (`tuning.plan`), solve (`solve`), store, with warm starts and checkpoints. `tabular` is a kernel and forests
together: `tabular_parts` fits and weighs them, `location_scale` and `forest_weights` are the two kinds. `inputs` and
`validation` read the data, `warnings` what a fit or prediction tells the user, `levels` and `multiclass` what lies
between the outputs of a fit and its predictions.
"""

from quernel.estimators.classifier import KernelClassifier
from quernel.estimators.quantile import KernelQuantileRegressor
from quernel.estimators.regressor import KernelRegressor
from quernel.estimators.tabular import TabularQuantileRegressor
from quernel.estimators.warnings import ExtrapolationWarning
from quernel.tuning.cost import Cost, estimate_cost

__all__ = [
    "Cost",
    "ExtrapolationWarning",
    "KernelClassifier",
    "KernelQuantileRegressor",
    "KernelRegressor",
    "TabularQuantileRegressor",
    "estimate_cost",
]
