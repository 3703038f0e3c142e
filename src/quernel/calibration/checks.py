"""What `ConformalQuantileRegressor.fit` is given: refused where it is unfit, with advice."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import _num_samples, has_fit_parameter

from quernel.calibration.models import is_frozen
from quernel.calibration.splits import check_size
from quernel.estimators.validation import check_choice, check_share, check_target, check_weight

Array = NDArray[np.floating]


def check_parameters(model: Any) -> bool:
    """Refuse unfit arguments; return whether the estimator is taken as fitted."""
    check_share("coverage", model.coverage)
    check_choice("method", model.method, ("split", "cv+", "prefit"))
    check_size(model.calibration_size)
    for name in ("symmetric", "time_ordered"):
        if not isinstance(getattr(model, name), bool | np.bool_):
            raise ValueError(f"{name} must be True or False; got {getattr(model, name)!r}.")
    prefit = model.method == "prefit" or is_frozen(model.estimator)
    if model.time_ordered and (prefit or model.method != "split"):
        raise ValueError(
            "time_ordered=True divides the rows into earlier and later ones, which method='split' does and "
            f"method={'prefit' if prefit else model.method!r} does not. Use method='split', or leave it False."
        )
    if model.method == "prefit" and model.estimator is None:
        raise ValueError("method='prefit' needs a fitted estimator; got None. Give one, or use method='split'.")
    if prefit and model.method == "cv+":
        raise ValueError("method='cv+' fits a model for each fold, and a FrozenEstimator cannot be fitted again.")
    return prefit


def checked_checkpoint(model: Any, checkpoint: Any, prefit: bool) -> dict[str, Any]:
    """What the fit of the model is given besides its rows."""
    if checkpoint is None:
        return {}
    if prefit or model.method == "cv+":
        how = "several models" if model.method == "cv+" else "none"
        raise ValueError(f"checkpoint is for the fit of one model, and here {how} will be fitted. Leave it out.")
    if model.estimator is not None and not has_fit_parameter(model.estimator, "checkpoint"):
        raise ValueError(f"{type(model.estimator).__name__} takes no checkpoint. Leave it out.")
    return {"checkpoint": checkpoint}


def check_rows(model: Any, X: Any, y: Any, sample_weight: Any, prefit: bool) -> tuple[Array, Array | None]:
    """The target, and the weights if there are any."""
    if y is None:
        raise ValueError(f"This {type(model).__name__} estimator requires y to be passed, but the target y is None.")
    y, n = check_target(y), _num_samples(X)
    if n != len(y):
        raise ValueError(
            f"X has {n} rows but y has {len(y)} entries (inconsistent numbers of samples): give one per row."
        )
    if sample_weight is None:
        return y, None
    if prefit:
        raise ValueError(
            "sample_weight is for fitting, and a prefit model is not fitted again. Leave it out; to weigh "
            "calibration rows use density_ratio."
        )
    if model.estimator is not None and not has_fit_parameter(model.estimator, "sample_weight"):
        raise ValueError(f"{type(model.estimator).__name__} takes no sample_weight. Leave it out.")
    return y, check_weight(sample_weight, n)
